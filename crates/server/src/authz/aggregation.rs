//! ClusterRoles made of others, found by label.
//!
//! The policy works this out itself, so that `view`, `edit` and `admin` mean something before a
//! controller has filled in their rules, and never grant what a controller has yet to take away.

use api::value::ValueExt as _;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

/// ClusterRoles by name.
pub type Roles<'a> = BTreeMap<&'a str, &'a Value>;

/// The rules of a ClusterRole: its own, or those of all it aggregates, each once.
pub fn rules_of<'a>(role: &'a Value, all: &Roles<'a>) -> Vec<&'a Value> {
    let mut seen: HashSet<&str> = HashSet::from([role.text(&["metadata", "name"])]);
    let mut waiting = vec![role];
    let mut rules: Vec<&Value> = Vec::new();
    while let Some(role) = waiting.pop() {
        let Some(selectors) = selectors(role) else {
            let own = role.get("rules").and_then(Value::as_array).into_iter().flatten();
            rules.extend(own);
            continue;
        };
        for (name, candidate) in all {
            if selectors.iter().any(|selector| selects(selector, candidate)) && seen.insert(name) {
                waiting.push(candidate);
            }
        }
    }
    rules
}

pub fn is_aggregated(role: &Value) -> bool {
    selectors(role).is_some()
}

fn selectors(role: &Value) -> Option<&Vec<Value>> {
    role.at(&["aggregationRule", "clusterRoleSelectors"])?
        .as_array()
        .filter(|selectors| !selectors.is_empty())
}

/// A label selector over a role's labels; an empty one selects everything.
fn selects(selector: &Value, role: &Value) -> bool {
    let label = |key: &str| role.at(&["metadata", "labels", key]).and_then(Value::as_str);
    let equal = selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .all(|(key, value)| label(key) == value.as_str());
    equal
        && selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten().all(
            |expression| {
                let have = label(expression.text(&["key"]));
                let listed = have.is_some_and(|have| {
                    let values = expression.get("values").and_then(Value::as_array);
                    values.into_iter().flatten().any(|value| value == have)
                });
                match expression.text(&["operator"]) {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => have.is_some(),
                    "DoesNotExist" => have.is_none(),
                    _ => false,
                }
            },
        )
}
