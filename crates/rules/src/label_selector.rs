//! `metav1.LabelSelector` inside objects: validation, emptiness, matching.
//!
//! Not here: selectors in query strings (`api::selector`).

use super::check;
use api::field::{At, Errors};
use api::{metadata, names};
use serde_json::Value;

/// Validates a selector, which may be absent.
pub(crate) fn validate(selector: &At, errors: &mut Errors) {
    metadata::labels(&selector.field("matchLabels"), errors);
    for expression in selector.field("matchExpressions").items() {
        validate_expression(&expression, errors);
    }
}

fn validate_expression(expression: &At, errors: &mut Errors) {
    let values = expression.field("values");
    match expression.field("operator").text() {
        "In" | "NotIn" => {
            if values.is_empty() {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.required(&values, detail);
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&values, detail);
            }
        }
        other => {
            let operator = expression.field("operator");
            errors.invalid_value(&operator, other, "not a valid selector operator");
        }
    }
    check::text(&expression.field("key"), names::qualified_name, errors);
    for value in values.items() {
        check::text(&value, names::label_value, errors);
    }
}

/// Whether the selector selects everything.
pub(crate) fn is_empty(selector: &At) -> bool {
    selector.field("matchLabels").is_empty() && selector.field("matchExpressions").is_empty()
}

/// An absent selector matches nothing, an empty one everything.
pub(crate) fn matches(selector: &At, labels: &At) -> bool {
    if !selector.is_set() {
        return false;
    }
    let label = |key: &str| labels.value().and_then(|map| map.get(key)).and_then(Value::as_str);
    let all_labels = selector
        .field("matchLabels")
        .entries()
        .all(|(key, value)| label(key).is_some_and(|found| found == value.text()));
    all_labels
        && selector.field("matchExpressions").items().all(|expression| {
            let found = label(expression.field("key").text());
            let listed = || {
                let values = expression.field("values");
                values.items().any(|value| Some(value.text()) == found)
            };
            match expression.field("operator").text() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_match_labels_as_in_upstream() {
        let labels = json!({"app": "web", "tier": "front"});
        for (selector, chosen) in [
            (json!(null), false),
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (
                json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["a"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}),
                false,
            ),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false),
        ] {
            assert_eq!(matches(&At::root(&selector), &At::root(&labels)), chosen, "{selector}");
        }
    }

    #[test]
    fn a_92_operators_and_their_values_are_validated() {
        let selector = json!({"matchExpressions": [
            {"key": "a", "operator": "In"},
            {"key": "a", "operator": "Exists", "values": ["x"]},
            {"key": "a", "operator": "Near"},
        ]});
        let mut errors = Errors::default();
        validate(&At::root(&selector), &mut errors);
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "matchExpressions[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                "matchExpressions[2].operator: Invalid value: \"Near\": not a valid selector operator",
            ]
        );
    }
}
