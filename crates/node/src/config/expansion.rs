//! `$(VAR)` in commands, arguments, environment values and subPathExpr (N-50).
//!
//! What is put in is not looked at again, and what is not known stays as it was written.

/// `value` None: the reference is left verbatim.
pub(crate) fn expand(input: &str, mut value: impl FnMut(&str) -> Option<String>) -> String {
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

    /// N-50, N-206.
    #[test]
    fn references_are_replaced_once_and_unknown_ones_stay() {
        let value = |name: &str| match name {
            "A" => Some("a".to_owned()),
            "B" => Some("$(A)".to_owned()),
            "EMPTY" => Some(String::new()),
            "" => Some("nameless".to_owned()),
            _ => None,
        };
        for (input, wanted) in [
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
            assert_eq!(expand(input, value), wanted, "{input}");
        }
    }
}
