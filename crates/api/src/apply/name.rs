//! The name of a field manager.

use crate::field::{Errors, Wrong};
use serde_json::Value;

const MAX_LENGTH: usize = 128;

/// The `fieldManager` parameter, else the beginning of the User-Agent, else `unknown`.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_owned();
    }
    let mut name = String::new();
    let product = user_agent.split('/').next().unwrap_or_default();
    for c in product.chars().filter(|c| is_printable(*c)) {
        if name.len() + c.len_utf8() > MAX_LENGTH {
            break;
        }
        name.push(c);
    }
    if name.is_empty() { "unknown".into() } else { name }
}

/// Checks the `fieldManager` parameter.
pub fn check_manager_name(field_manager: &str, errors: &mut Errors) {
    let field = || "fieldManager".to_owned();
    if field_manager.len() > MAX_LENGTH {
        let detail = format!("may not be more than {MAX_LENGTH} bytes");
        errors.push(Wrong::TooLong, field(), None, &detail);
    }
    if !field_manager.chars().all(is_printable) {
        let detail = "should only contain printable characters";
        errors.push(Wrong::Invalid, field(), Some(&Value::from(field_manager)), detail);
    }
}

fn is_printable(c: char) -> bool {
    !c.is_control() && (c == ' ' || !c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_131_the_manager_name_comes_from_the_parameter_or_the_user_agent() {
        let long = "x".repeat(200);
        for (parameter, agent, name) in [
            ("mine", "kubectl/v1.36", "mine"),
            ("", "kubectl/v1.36 (linux)", "kubectl"),
            ("", "a\u{7}b/1", "ab"),
            ("", "", "unknown"),
            ("", "/1", "unknown"),
            ("", long.as_str(), &long[..128]),
        ] {
            assert_eq!(manager_name(parameter, agent), name);
        }
    }

    #[test]
    fn a_133_a_manager_name_is_short_and_printable() {
        let messages = |name: &str| {
            let mut errors = Errors::default();
            check_manager_name(name, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(messages("kubectl-edit").is_empty());
        assert_eq!(
            messages(&"x".repeat(129)),
            ["fieldManager: Too long: may not be more than 128 bytes"]
        );
        assert_eq!(
            messages("a\u{7}"),
            ["fieldManager: Invalid value: \"a\\u0007\": should only contain printable characters"]
        );
    }
}
