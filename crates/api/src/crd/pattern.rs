//! `pattern`: a regular expression in Go's syntax, compiled with a bound on its size.
//!
//! Rust's syntax is nearly Go's. Two differences matter in practice: `\d`, `\w` and `\s` are ASCII in
//! Go, and a bare `[`, `&&` or `~~` inside a character class stands for those characters.

use regex::{Regex, RegexBuilder};

/// Memory for one compiled pattern, and for running it.
const SIZE_MAX: usize = 1 << 20;

#[derive(Debug, Clone)]
pub(super) struct Pattern {
    text: String,
    compiled: Option<Regex>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let compiled = RegexBuilder::new(&from_go(text))
            .size_limit(SIZE_MAX)
            .dfa_size_limit(SIZE_MAX)
            .build()
            .ok();
        Pattern { text: text.into(), compiled }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn is_compiled(&self) -> bool {
        self.compiled.is_some()
    }

    /// A pattern that cannot be compiled matches nothing.
    pub(super) fn matches(&self, value: &str) -> bool {
        self.compiled.as_ref().is_some_and(|compiled| compiled.is_match(value))
    }
}

fn from_go(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('s') => out.push_str("[\\t\\n\\f\\r ]"),
                Some('S') => out.push_str("[^\\t\\n\\f\\r ]"),
                Some('b') if !in_class => out.push_str("(?-u:\\b)"),
                Some('B') if !in_class => out.push_str("(?-u:\\B)"),
                // Go allows escapes of characters that have no special meaning.
                Some(c @ ('"' | '\'' | '/' | ',' | ':' | ';' | '=' | '@' | '%' | '!' | '`')) => {
                    out.push(c);
                }
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            '[' if in_class && chars.peek() != Some(&':') => out.push_str("\\["),
            '[' if in_class => {
                // [:alpha:], up to its own bracket.
                out.push('[');
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' => {
                in_class = true;
                out.push('[');
                // A `]` right at the start is a member of the class.
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                if chars.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            ']' => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => out.extend(['\\', c]),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, value, matches) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "१२", false),
            (r"^[\w.-]+$", "a_b-c.1", true),
            (r"^[^[]$", "[", false),
            (r"^[[:alpha:]]+$", "ab", true),
            (r"^[]a]$", "]", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[\D]$", "x", true),
            (r#"^\"a\"$"#, "\"a\"", true),
            (r"a$", "a\n", false),
            (r"^(\d+(\*|/\d+)?(\s+(\d+(\*|/\d+)?|\*|\*/\d+)){4})|(\*.*)$", "* * * * */5", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(value), matches, "{pattern} {value:?}");
        }
    }

    #[test]
    fn an_invalid_or_too_large_pattern_matches_nothing() {
        for pattern in ["(", "(?=a)", r"((((\pL{100}){100}){100}){100})"] {
            let pattern = Pattern::new(pattern);
            assert!(!pattern.is_compiled() && !pattern.matches("a"), "{pattern:?}");
        }
    }
}
