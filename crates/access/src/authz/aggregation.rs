//! Aggregated ClusterRoles, which combine the rules of others that they select by label.
//!
//! The policy aggregates itself and does not wait for the controller: `view`, `edit` and `admin` work before the
//! controller has filled in their rules, and never grant rules that it has yet to remove.

use api::selector::LabelSelector;
use api::value::ValueExt as _;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

/// ClusterRoles by name.
pub type Roles<'a> = BTreeMap<&'a str, &'a Value>;

/// The rules of a ClusterRole: its own, or those of every role it aggregates.
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
        // An invalid selector selects nothing.
        let selectors: Vec<LabelSelector> =
            selectors.iter().filter_map(|given| LabelSelector::from_object(given).ok()).collect();
        for (name, candidate) in all {
            let label = |key: &str| candidate.at(&["metadata", "labels", key])?.as_str();
            if selectors.iter().any(|selector| selector.matches(label)) && seen.insert(name) {
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
