//! One rule of a role, and what it matches.

use super::Attributes;
use serde_json::{Map, Value, json};

/// A `PolicyRule`. The lists are short, so they are searched from front to back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
    pub non_resource_urls: Vec<String>,
}

impl Rule {
    pub fn from_json(rule: &Value) -> Rule {
        let list = |field: &str| {
            let items = rule.get(field).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Rule {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    /// The rules of a Role or ClusterRole.
    pub fn all_of(role: &Value) -> impl Iterator<Item = Rule> {
        role.get("rules").and_then(Value::as_array).into_iter().flatten().map(Rule::from_json)
    }

    /// As in a SelfSubjectRulesReview: without empty lists, except for the verbs.
    pub fn to_json(&self) -> Value {
        let mut json = Map::new();
        json.insert("verbs".into(), json!(self.verbs));
        for (field, list) in [
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ] {
            if !list.is_empty() {
                json.insert(field.into(), json!(list));
            }
        }
        Value::Object(json)
    }

    pub fn matches(&self, request: &Attributes) -> bool {
        if !request.is_resource() {
            return has_or_all(&self.verbs, request.verb)
                && self.non_resource_urls.iter().any(|url| url_covers(url, request.path));
        }
        has_or_all(&self.api_groups, request.group)
            && self.resources.iter().any(|own| names(own, request.resource, request.subresource))
            && has_or_all(&self.verbs, request.verb)
            && (self.resource_names.is_empty() || has(&self.resource_names, request.name))
    }
}

pub(super) fn has(list: &[String], item: &str) -> bool {
    list.iter().any(|own| own == item)
}

pub(super) fn has_or_all(list: &[String], item: &str) -> bool {
    list.iter().any(|own| own == "*" || own == item)
}

/// Whether `*`, `pods`, `pods/log` or `*/log` covers this resource (and subresource).
fn names(own: &str, resource: &str, subresource: &str) -> bool {
    match own.split_once('/') {
        _ if own == "*" => true,
        None => subresource.is_empty() && own == resource,
        // Split at the first slash: a subresource may contain one itself.
        Some((own, sub)) => {
            !subresource.is_empty() && sub == subresource && (own == "*" || own == resource)
        }
    }
}

/// Exact match, or prefix match if the rule ends in `*`.
pub(super) fn url_covers(own: &str, path: &str) -> bool {
    own == path || own.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}
