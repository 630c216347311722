//! Parses image names for the default pull policy: whether a name is valid, and its tag.
//!
//! Upstream uses `distribution/reference`. A name that it cannot parse has no tag, so the policy is
//! IfNotPresent.

const PATH_MAX: usize = 255;
const TAG_MAX: usize = 128;
/// Digest algorithms and their number of hexadecimal digits.
const DIGESTS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// The tag, `latest` if neither a tag nor a digest is given; none if the name cannot be parsed.
pub(super) fn tag(image: &str) -> Option<&str> {
    // An image ID is not a name.
    if image.len() == 64 && image.bytes().all(is_hex) {
        return None;
    }
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let last = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[last..].find(':') {
        Some(colon) => (&rest[..last + colon], Some(&rest[last + colon + 1..])),
        None => (rest, None),
    };
    let good = is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    match (tag, digest) {
        _ if !good => None,
        (None, None) => Some("latest"),
        (tag, _) => Some(tag.unwrap_or_default()),
    }
}

/// `nginx`, `library/nginx`, `registry.example.com:5000/team/nginx`
fn is_name(name: &str) -> bool {
    let path = match name.split_once('/') {
        Some((first, path))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            if !is_domain(first) {
                return false;
            }
            path
        }
        _ => name,
    };
    path.len() <= PATH_MAX && path.split('/').all(is_path_component)
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rfind(':') {
        Some(colon) if !domain.ends_with(']') => (&domain[..colon], Some(&domain[colon + 1..])),
        _ => (domain, None),
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good = match address {
        Some(address) => {
            !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')
        }
        None => host.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        }),
    };
    good && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// Lower-case letters and digits, with one dot, up to two underscores or any number of dashes between.
fn is_path_component(component: &str) -> bool {
    let is_word = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = bytes.first().is_some_and(is_word) && bytes.last().is_some_and(is_word);
    let separators =
        bytes.chunk_by(|a, b| is_word(a) == is_word(b)).filter(|run| !is_word(&run[0]));
    ends && separators.into_iter().all(|run| {
        matches!(run, b"." | b"_" | b"__") || run.iter().all(|separator| *separator == b'-')
    })
}

fn is_tag(tag: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= TAG_MAX
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    let parts = digest.split_once(':');
    parts.is_some_and(|(algorithm, digits)| {
        DIGESTS.contains(&(algorithm, digits.len())) && digits.bytes().all(is_hex)
    })
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_147_only_a_valid_image_name_has_a_tag() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let with_digest = format!("nginx@{digest}");
        let with_both = format!("nginx:latest@{digest}");
        let hex = "0a".repeat(32);
        for (image, expected) in [
            ("nginx", Some("latest")),
            ("nginx:1.14.2", Some("1.14.2")),
            ("a/b_c/d__e/f--g.h", Some("latest")),
            ("localhost/nginx", Some("latest")),
            ("localhost:5000/nginx:v1", Some("v1")),
            ("[fd00::1]:5000/nginx", Some("latest")),
            ("Registry.example/nginx", Some("latest")),
            (&with_digest, Some("")),
            (&with_both, Some("latest")),
            ("", None),
            ("Nginx", None),
            ("nginx:", None),
            ("nginx:a b", None),
            ("nginx::1", None),
            ("nginx@sha256:00", None),
            ("nginx@md5:00", None),
            ("a//b", None),
            ("a/-b", None),
            ("a/b___c", None),
            ("https://nginx", None),
            ("bad..example:5000/nginx", None),
            (&hex, None),
        ] {
            assert_eq!(tag(image), expected, "{image}");
        }
    }
}
