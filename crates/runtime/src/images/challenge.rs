//! Parses the `WWW-Authenticate` header of a registry that answers 401.

/// An authentication scheme that we support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    /// A token from another server.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// Prefers a token if the registry offers several schemes.
    pub(crate) fn read<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Challenge> {
        let mut basic = None;
        for header in headers {
            match Challenge::read_one(header) {
                Some(bearer @ Challenge::Bearer { .. }) => return Some(bearer),
                Some(Challenge::Basic) => basic = Some(Challenge::Basic),
                None => {}
            }
        }
        basic
    }

    fn read_one(header: &str) -> Option<Challenge> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (key, value) in parameters(rest) {
            match key.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Challenge::Bearer { realm: realm?, service, scope })
    }
}

/// Parses `a="b, c",d=e`.
fn parameters(text: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([' ', ',', '\t']);
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        found.push((key, value));
        rest = after;
    }
    found
}

/// The text up to the closing quote, and the rest.
fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_of_registries_are_parsed() {
        let token = r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: Some("r.example".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        let basic = r#"Basic realm="Registry Realm""#;
        assert_eq!(Challenge::read([token].into_iter()), Some(expected.clone()));
        assert_eq!(Challenge::read([basic, token].into_iter()), Some(expected));
        assert_eq!(Challenge::read([basic].into_iter()), Some(Challenge::Basic));
        let plain = r#"bearer realm=x , scope="a\"b""#;
        let expected =
            Challenge::Bearer { realm: "x".into(), service: None, scope: Some("a\"b".into()) };
        assert_eq!(Challenge::read([plain].into_iter()), Some(expected));
        for bad in ["", "Negotiate", "Bearer", "Bearer service=\"x", "Bearer =,=\"\\"] {
            assert_eq!(Challenge::read([bad].into_iter()), None, "{bad}");
        }
    }
}
