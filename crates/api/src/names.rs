//! Stand-in until the real names land.
fn alnum(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}
fn lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}
pub fn dns_label(t: &str) -> Vec<String> {
    let ok = !t.is_empty()
        && t.bytes().all(|b| lower(b) || b == b'-')
        && lower(t.as_bytes()[0])
        && lower(t.as_bytes()[t.len() - 1]);
    if ok && t.len() <= 63 {
        vec![]
    } else {
        vec!["a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')".into()]
    }
}
pub fn dns_subdomain(t: &str) -> Vec<String> {
    if t.len() <= 253 && t.split('.').all(|p| p.len() > 63 || dns_label(p).is_empty()) {
        vec![]
    } else {
        vec!["a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')".into()]
    }
}
pub fn label_value(t: &str) -> Vec<String> {
    let ok = t.is_empty()
        || (t.bytes().all(|b| alnum(b) || b"-_.".contains(&b))
            && alnum(t.as_bytes()[0])
            && alnum(t.as_bytes()[t.len() - 1]));
    if ok && t.len() <= 63 {
        vec![]
    } else {
        vec!["a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".into()]
    }
}
pub fn qualified_name(t: &str) -> Vec<String> {
    let name = t.rsplit('/').next().unwrap_or(t);
    if !name.is_empty() && label_value(name).is_empty() {
        vec![]
    } else {
        vec!["name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')".into()]
    }
}
pub fn path_segment(t: &str) -> Vec<String> {
    if t == "." || t == ".." {
        return vec![format!("may not be '{t}'")];
    }
    let mut w = vec![];
    for c in ["/", "%"] {
        if t.contains(c) {
            w.push(format!("may not contain '{c}'"));
        }
    }
    w
}
