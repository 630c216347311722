//! Validation of names: DNS labels, qualified names, label values, keys, ports.
//!
//! Every check returns its errors as upstream's messages (A-74, A-75); an empty list means that the name
//! is valid. The caller adds the path.

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;
const PORT_NAME_MAX: usize = 15;

const LABEL_FORM: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FORM: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const QUALIFIED_FORM: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// Which names a kind's objects may have (A-75).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// DNS-1123 subdomain, at most 253 characters.
    Subdomain,
    /// DNS-1123 label, at most 63 characters.
    Label,
    /// Anything that fits into one path segment.
    PathSegment,
    /// The kind's `validate` function checks metadata.name itself (CRD, APIService, IPAddress, CronJob).
    Own,
}

/// The errors of an object's name under its kind's rule (A-75).
pub fn object_name(rule: NameRule, name: &str) -> Vec<String> {
    match rule {
        NameRule::Subdomain => dns1123_subdomain(name),
        NameRule::Label => dns1123_label(name),
        NameRule::PathSegment => path_segment(name),
        NameRule::Own => Vec::new(),
    }
}

/// The same for `generateName`: it may end with a dash, because a suffix follows.
pub fn object_name_prefix(rule: NameRule, prefix: &str) -> Vec<String> {
    if rule == NameRule::PathSegment {
        return path_segment_prefix(prefix);
    }
    match prefix.strip_suffix('-') {
        Some(rest) if prefix.len() > 1 => object_name(rule, &format!("{rest}a")),
        _ => object_name(rule, prefix),
    }
}

pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, LABEL_MAX);
    if !is_label(value) {
        wrong.push(if is_subdomain(value) {
            "must not contain dots".into()
        } else {
            form(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL_FORM,
                &["my-name", "123-abc"],
            )
        });
    }
    wrong
}

pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, SUBDOMAIN_MAX);
    if !is_subdomain(value) {
        wrong.push(form(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            SUBDOMAIN_FORM,
            &["example.com"],
        ));
    }
    wrong
}

/// A subdomain that may have underscores, as DNS search domains do.
pub fn dns1123_subdomain_with_underscore(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, SUBDOMAIN_MAX);
    let good = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        encloses(label, lower_alnum, |c| lower_alnum(c) || c == b'-' || c == b'_')
    };
    if !value.split('.').all(good) {
        let label = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
        wrong.push(form(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character",
            &format!(r"{label}(\.{label})*"),
            &["example.com"],
        ));
    }
    wrong
}

/// `*.` and a subdomain.
pub fn wildcard_subdomain(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, SUBDOMAIN_MAX);
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        wrong.push(form(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!(r"\*\.{SUBDOMAIN_FORM}"),
            &["*.example.com"],
        ));
    }
    wrong
}

pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, LABEL_MAX);
    if !(is_label(value) && value.as_bytes()[0].is_ascii_lowercase()) {
        wrong.push(form(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    wrong
}

/// `[prefix/]name`: label and annotation keys, finalizers, taints, resource names.
pub fn qualified_name(value: &str) -> Vec<String> {
    let examples = &["MyName", "my.name", "123-abc"];
    let parts: Vec<&str> = value.split('/').collect();
    let mut wrong = Vec::new();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(dns1123_subdomain(prefix).iter().map(|w| format!("prefix part {w}")));
            }
            name
        }
        _ => {
            let form = form(QUALIFIED, QUALIFIED_FORM, examples);
            return vec![format!(
                "a valid label key {form} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".into());
    }
    wrong.extend(too_long(name, LABEL_MAX).iter().map(|w| format!("name part {w}")));
    if !is_qualified_part(name) {
        wrong.push(format!("name part {}", form(QUALIFIED, QUALIFIED_FORM, examples)));
    }
    wrong
}

pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, LABEL_MAX);
    if !value.is_empty() && !is_qualified_part(value) {
        wrong.push(form(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            &format!("({QUALIFIED_FORM})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    wrong
}

/// One segment of a URL path: every name must be one (A-75).
pub fn path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    path_segment_prefix(value)
}

fn path_segment_prefix(value: &str) -> Vec<String> {
    ["/", "%"]
        .iter()
        .filter(|bad| value.contains(**bad))
        .map(|bad| format!("may not contain '{bad}'"))
        .collect()
}

/// Names of environment variables: printable ASCII without `=`.
pub fn env_var_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.is_empty() {
        wrong.push("environment variable name must be non-empty".to_owned());
    }
    if value.chars().any(|c| !(' '..='~').contains(&c) || c == '=') {
        wrong.push("a valid environment variable name must consist only of printable ASCII characters other than '='".into());
    }
    wrong
}

/// Keys of ConfigMaps and Secrets.
pub fn config_map_key(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, SUBDOMAIN_MAX);
    if value.is_empty() || !value.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c))
    {
        wrong.push(form(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    if value == "." || value == ".." {
        wrong.push(format!("must not be '{value}'"));
    } else if value.starts_with("..") {
        wrong.push("must not start with '..'".into());
    }
    wrong
}

/// IANA service names, used as names of ports.
pub fn port_name(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, PORT_NAME_MAX);
    if value.is_empty() || !value.bytes().all(|c| lower_alnum(c) || c == b'-') {
        wrong.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !value.bytes().any(|c| c.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".into());
    }
    if value.contains("--") {
        wrong.push("must not contain consecutive hyphens".into());
    }
    if value.starts_with('-') || value.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".into());
    }
    wrong
}

pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

pub fn in_range(value: i64, min: i64, max: i64) -> Vec<String> {
    if (min..=max).contains(&value) {
        return Vec::new();
    }
    vec![format!("must be between {min} and {max}, inclusive")]
}

/// Unix user and group ids.
pub fn user_id(id: i64) -> Vec<String> {
    in_range(id, 0, u32::MAX.into())
}

pub fn http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        return Vec::new();
    }
    vec![form(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// `25%`
pub fn percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) {
        return Vec::new();
    }
    vec![form(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

/// Upstream's message for a text that does not match a pattern.
pub fn form(description: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{description} (regex used for validation is '{pattern}')");
    }
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!(
        "{description} (e.g. {}regex used for validation is '{pattern}')",
        examples.join(" or ")
    )
}

pub fn too_long(value: &str, max: usize) -> Vec<String> {
    if value.len() <= max {
        return Vec::new();
    }
    vec![format!("must be no more than {max} bytes")]
}

fn is_label(value: &str) -> bool {
    encloses(value, lower_alnum, |c| lower_alnum(c) || c == b'-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_qualified_part(value: &str) -> bool {
    encloses(
        value,
        |c| c.is_ascii_alphanumeric(),
        |c| c.is_ascii_alphanumeric() || b"-_.".contains(&c),
    )
}

/// Not empty, with `edge` at both ends and `inner` in between.
fn encloses(value: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match value.as_bytes() {
        [] => false,
        [one] => edge(*one),
        [first, between @ .., last] => {
            edge(*first) && edge(*last) && between.iter().all(|c| inner(*c))
        }
    }
}

fn lower_alnum(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_75_valid_names_pass_and_invalid_names_fail() {
        type Check = fn(&str) -> Vec<String>;
        let table: &[(Check, &[&str], &[&str])] = &[
            (dns1123_label, &["a", "0", "a-b", "9-9"], &["", "-a", "a-", "A", "a.b", "a_b", "é"]),
            (dns1123_subdomain, &["a.b", "0.0", "a-b.c"], &["", ".", "a.", ".a", "a..b", "A.b"]),
            (dns1035_label, &["a", "a0"], &["", "0a", "a-", "-"]),
            (qualified_name, &["a", "A.b_c", "x.io/a"], &["", "/a", "a/", "X/a", "a/b/c", "a b"]),
            (label_value, &["", "a", "A_b.c"], &["-", "a b", "a/"]),
            (path_segment, &["a:b", "A b", "..."], &[".", "..", "a/b", "50%"]),
            (env_var_name, &["A", "a.b-c", "0 x"], &["", "A=B", "ä"]),
            (config_map_key, &["a", ".x", "A_B"], &["", ".", "..", "..a", "a b", "a/b"]),
            (port_name, &["http", "a-1"], &["", "1", "HTTP", "a--b", "-a", "a-"]),
            (percent, &["0%", "125%"], &["", "%", "1", "a%", "-1%"]),
        ];
        for (check, good, bad) in table {
            for name in *good {
                assert_eq!(check(name), Vec::<String>::new(), "{name:?} is fine");
            }
            for name in *bad {
                assert_ne!(check(name), Vec::<String>::new(), "{name:?} is wrong");
            }
        }
    }

    #[test]
    fn a_75_errors_have_upstreams_messages() {
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            dns1123_label("Bad_Name"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(dns1123_label(&"a".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(path_segment("a/%"), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(port_number(70000), ["must be between 1 and 65535, inclusive"]);
    }

    #[test]
    fn a_61_a_prefix_may_end_with_a_dash() {
        assert!(object_name_prefix(NameRule::Subdomain, "gen-").is_empty());
        assert!(!object_name_prefix(NameRule::Subdomain, "Gen-").is_empty());
        assert!(!object_name_prefix(NameRule::Label, "-").is_empty());
    }
}
