//! Image names: `[registry/][path/]name[:tag][@digest]` (N-172).
//!
//! Short names refer to Docker Hub: `busybox` means `docker.io/library/busybox:latest`.

use super::digest::Digest;
use crate::{Error, Result};
use std::fmt;

const HUB: &str = "docker.io";
/// Longest repository name, registry included. Upstream: `reference.NameTotalLengthMax`.
const NAME_MAX: usize = 255;
const TAG_MAX: usize = 128;

/// A complete image name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName {
    /// Host, and port if there is one.
    pub registry: String,
    pub repository: String,
    /// `latest` if the name has neither tag nor digest.
    pub tag: Option<String>,
    pub(crate) digest: Option<Digest>,
}

impl ImageName {
    pub fn parse(text: &str) -> Result<ImageName> {
        let invalid = |why: &str| Error::ImageName { name: text.to_owned(), why: why.to_owned() };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                let digest =
                    Digest::parse(digest).ok_or_else(|| invalid("invalid digest format"))?;
                (rest, Some(digest))
            }
            None => (text, None),
        };
        let (path, tag) = match rest.rsplit_once(':') {
            // A colon before the last slash precedes the registry's port.
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid("invalid reference format"));
        }
        let (registry, repository) = split_registry(path);
        if !is_registry(&registry) {
            return Err(invalid("invalid reference format"));
        }
        if repository.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(invalid("invalid reference format: repository name must be lowercase"));
        }
        if !repository.split('/').all(is_component) {
            return Err(invalid("invalid reference format"));
        }
        if registry.len() + 1 + repository.len() > NAME_MAX {
            return Err(invalid("repository name must not be more than 255 characters"));
        }
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, None) => Some("latest".to_owned()),
            (None, Some(_)) => None,
        };
        Ok(ImageName { registry, repository, tag, digest })
    }

    /// `docker.io/library/busybox`
    pub fn full_repository(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// `sha256:…`, if the name has a digest.
    pub fn digest(&self) -> Option<String> {
        self.digest.as_ref().map(Digest::to_string)
    }

    /// `docker.io/library/busybox:latest`. `None` if the name has a digest, which takes precedence.
    pub(crate) fn tagged(&self) -> Option<String> {
        let tag = self.tag.as_ref().filter(|_| self.digest.is_none())?;
        Some(format!("{}:{tag}", self.full_repository()))
    }

    /// `docker.io/library/busybox@sha256:…`
    pub(crate) fn with_digest(&self, digest: &Digest) -> String {
        format!("{}@{digest}", self.full_repository())
    }
}

/// If there are both tag and digest, shows only the digest, which takes precedence.
impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(f, "{}@{digest}", self.full_repository()),
            (None, Some(tag)) => write!(f, "{}:{tag}", self.full_repository()),
            (None, None) => f.write_str(&self.full_repository()),
        }
    }
}

/// The first part is a registry if it contains a dot, a port or upper case, or is `localhost`.
fn split_registry(path: &str) -> (String, String) {
    let host = |first: &str| {
        first.contains(['.', ':'])
            || first == "localhost"
            || first.bytes().any(|b| b.is_ascii_uppercase())
    };
    let (registry, rest) = match path.split_once('/') {
        Some((first, rest)) if host(first) => (first, rest),
        _ => (HUB, path),
    };
    let registry = if registry == "index.docker.io" { HUB } else { registry };
    if registry == HUB && !rest.contains('/') {
        return (HUB.to_owned(), format!("library/{rest}"));
    }
    (registry.to_owned(), rest.to_owned())
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return false;
    }
    if let Some(inside) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return inside.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(label)
}

/// `[a-z0-9]+` joined by `.`, `_`, `__` or any number of `-`.
fn is_component(text: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let mut bytes = text.bytes();
    if !edge(bytes.clone().next()) || !edge(bytes.next_back()) {
        return false;
    }
    text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        .all(|gap| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|b| b == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= TAG_MAX
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn short_names_refer_to_docker_hub_n_172() {
        for (text, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("kind/node", "docker.io/kind/node:latest"),
            ("docker.io/busybox", "docker.io/library/busybox:latest"),
            ("index.docker.io/library/busybox:1", "docker.io/library/busybox:1"),
            ("localhost/a", "localhost/a:latest"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            ("r.example/a/b_c/d--e:V1", "r.example/a/b_c/d--e:V1"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            ("Registry.example/a", "Registry.example/a:latest"),
        ] {
            assert_eq!(ImageName::parse(text).unwrap().to_string(), full, "{text}");
        }
    }

    #[test]
    fn a_digest_takes_precedence_over_a_tag_n_172() {
        let name = ImageName::parse(&format!("busybox:1@sha256:{HEX}")).unwrap();
        assert_eq!(name.to_string(), format!("docker.io/library/busybox@sha256:{HEX}"));
        assert_eq!(name.tagged(), None);
    }

    #[test]
    fn invalid_names_are_rejected_n_172() {
        let digest = format!("a@sha256:{}", &HEX[1..]);
        for text in [
            "",
            "Busybox",
            "a/B",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:-",
            "a@",
            "a@sha256:00",
            "a b",
            "a:1:2",
            "a..b",
            "a_",
            "-a",
            "r.example:99999/a",
            "r..example/a",
            "a?b",
            "a/../b",
            &digest,
        ] {
            let outcome = ImageName::parse(text);
            assert!(matches!(outcome, Err(Error::ImageName { .. })), "{text:?}: {outcome:?}");
        }
        let long = "a".repeat(256);
        assert!(ImageName::parse(&long).is_err());
        let error = ImageName::parse("Busybox").unwrap_err().to_string();
        let text = "couldn't parse image name \"Busybox\": invalid reference format: \
                    repository name must be lowercase";
        assert_eq!(error, text);
    }
}
