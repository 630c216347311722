//! `$(VAR)` in commands, arguments, environment values and subPathExpr (N-50).
//!
//! Values are not expanded again. References to unknown variables stay as they are.

/// `value` returns None for unknown variables.
pub fn expand(input: &str, mut value: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        rest = match (after.chars().next(), reference) {
            (Some('$'), _) => {
                out.push('$');
                &after[1..]
            }
            (_, Some((name, beyond))) => {
                out.push_str(&value(name).unwrap_or_else(|| format!("$({name})")));
                beyond
            }
            _ => {
                out.push('$');
                after
            }
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_50_n_206_references_are_replaced_once_and_unknown_ones_stay() {
        let value = |name: &str| match name {
            "A" => Some("a".to_owned()),
            "B" => Some("$(A)".to_owned()),
            "EMPTY" => Some(String::new()),
            "" => Some("nameless".to_owned()),
            _ => None,
        };
        for (input, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x$(A)y$(A)z", "xayaz"),
            ("$(B)", "$(A)"),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$(EMPTY)", ""),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("$", "$"),
            ("a$", "a$"),
            ("$$", "$"),
            ("$()", "nameless"),
            ("$($(A))", "$($(A))"),
            ("$é$(A)", "$éa"),
            ("--$(A)--$", "--a--$"),
            ("$(UNKNOWN)$(A)", "$(UNKNOWN)a"),
        ] {
            assert_eq!(expand(input, value), expected, "{input}");
        }
    }
}
