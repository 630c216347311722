//! Field selectors: `metadata.name=web-1,status.phase!=Running` (A-103).

use std::fmt;

/// Selects objects that meet all requirements; without requirements it selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement {
    pub field: String,
    /// The field must not have the value.
    pub not: bool,
    pub value: String,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<FieldSelector, String> {
        let mut terms = split_terms(text);
        terms.sort_unstable();
        let mut requirements = Vec::new();
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let Some((field, not, value)) = split_term(term) else {
                return Err(format!("invalid selector: '{text}'; can't understand '{term}'"));
            };
            let value = unescape(value)?;
            requirements.push(FieldRequirement { field: field.to_owned(), not, value });
        }
        Ok(FieldSelector { requirements })
    }

    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// A field that the object does not have counts as the empty string.
    pub fn matches<'v>(&self, get: impl Fn(&str) -> Option<&'v str>) -> bool {
        self.requirements.iter().all(|requirement| {
            (get(&requirement.field).unwrap_or_default() == requirement.value) != requirement.not
        })
    }

    /// The value that this field must have, if the selector requires one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|requirement| requirement.field == field && !requirement.not)
            .map(|requirement| requirement.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let operator = if requirement.not { "!=" } else { "=" };
            write!(f, "{comma}{}{operator}{}", requirement.field, escape(&requirement.value))?;
        }
        Ok(())
    }
}

/// Splits at commas that are not escaped by a backslash.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Field, negation, and the value with its escapes. The first operator separates them.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    term.char_indices().find_map(|(i, _)| {
        let (field, rest) = term.split_at(i);
        if let Some(value) = rest.strip_prefix("!=") {
            Some((field, true, value))
        } else {
            let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
            Some((field, false, value))
        }
    })
}

fn unescape(text: &str) -> Result<String, String> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => value.push(c),
                other => {
                    let sequence: String = ['\\'].into_iter().chain(other).collect();
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    ));
                }
            },
            ',' | '=' => {
                // Upstream prints the number of the rune here.
                let rune = u32::from(c);
                return Err(format!(
                    "invalid field selector: unescaped character in value: {rune}"
                ));
            }
            c => value.push(c),
        }
    }
    Ok(value)
}

fn escape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_103_terms_are_parsed_and_matched() {
        let selector = FieldSelector::parse("status.phase!=Running,metadata.name==a").unwrap();
        assert_eq!(selector.to_string(), "metadata.name=a,status.phase!=Running");
        assert_eq!(selector.exact("metadata.name"), Some("a"));
        assert_eq!(selector.exact("status.phase"), None);
        let get = |field: &str| (field == "metadata.name").then_some("a");
        assert!(selector.matches(get));
        assert!(!FieldSelector::parse("metadata.name=b").unwrap().matches(get));
        assert!(FieldSelector::parse("").unwrap().is_everything());
    }

    #[test]
    fn a_103_a_missing_field_is_the_empty_string() {
        assert!(FieldSelector::parse("spec.nodeName=").unwrap().matches(|_| None));
        assert!(!FieldSelector::parse("spec.nodeName!=").unwrap().matches(|_| None));
    }

    #[test]
    fn a_103_values_may_be_escaped() {
        let selector = FieldSelector::parse(r"type=a\,b\=c\\d").unwrap();
        assert_eq!(selector.requirements()[0].value, r"a,b=c\d");
        assert_eq!(selector.to_string(), r"type=a\,b\=c\\d");
    }

    #[test]
    fn a_103_invalid_selectors_are_rejected_with_upstreams_messages() {
        for (text, message) in [
            ("name", "invalid selector: 'name'; can't understand 'name'"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err(), message, "{text}");
        }
    }

    /// Printing sorts the terms and replaces `==` by `=`, so their order may change.
    fn printed_and_parsed(text: &str) -> Option<[Vec<FieldRequirement>; 2]> {
        let selector = FieldSelector::parse(text).ok()?;
        let again = FieldSelector::parse(&selector.to_string()).unwrap();
        Some([selector, again].map(|FieldSelector { mut requirements }| {
            requirements
                .sort_by(|a, b| (&a.field, a.not, &a.value).cmp(&(&b.field, b.not, &b.value)));
            requirements
        }))
    }

    #[test]
    fn two_terms_of_one_field_parse_back_in_any_order() {
        let [parsed, again] = printed_and_parsed(r"==,= \\\=").unwrap();
        assert_eq!(parsed, again);
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_printing_parses_back(text in "[a.=!,\\\\é ]{0,20}") {
            if let Some([parsed, again]) = printed_and_parsed(&text) {
                prop_assert_eq!(parsed, again);
            }
        }
    }
}
