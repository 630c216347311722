//! The RBAC objects that every cluster starts with, made from the tables in `roles` and `controllers`.

mod controllers;
mod roles;

use crate::authz::aggregation;
use api::value::ValueExt as _;
use controllers::CONTROLLERS;
use roles::{AGGREGATED, BINDINGS, CLUSTER_ROLES, JOINING, LOCAL_BINDINGS, LOCAL_ROLES};
use serde_json::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";
const CONTROLLER_PREFIX: &str = "system:controller:";

/// One rule in a table. Lists are words between spaces; the core group is spelled `core`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Grant {
    /// Verbs, groups, resources.
    On(&'static str, &'static str, &'static str),
    /// Verbs, groups, resources, names.
    Named(&'static str, &'static str, &'static str, &'static str),
    /// Verbs, paths.
    Paths(&'static str, &'static str),
}

impl Grant {
    fn rule(self) -> Value {
        match self {
            Grant::On(verbs, groups, resources) => json!({
                "verbs": words(verbs), "apiGroups": groups_of(groups), "resources": words(resources),
            }),
            Grant::Named(verbs, groups, resources, names) => json!({
                "verbs": words(verbs), "apiGroups": groups_of(groups), "resources": words(resources),
                "resourceNames": words(names),
            }),
            Grant::Paths(verbs, paths) => {
                json!({"verbs": words(verbs), "nonResourceURLs": words(paths)})
            }
        }
    }
}

/// The subject of a binding.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject {
    Group(&'static str),
    User(&'static str),
    /// A service account in kube-system.
    Account(&'static str),
}

impl Subject {
    fn json(self) -> Value {
        match self {
            Subject::Group(name) => json!({"kind": "Group", "apiGroup": GROUP, "name": name}),
            Subject::User(name) => json!({"kind": "User", "apiGroup": GROUP, "name": name}),
            Subject::Account(name) => {
                json!({"kind": "ServiceAccount", "name": name, "namespace": "kube-system"})
            }
        }
    }
}

pub fn cluster_roles() -> Vec<Value> {
    let plain = CLUSTER_ROLES.iter().map(|(name, grants)| {
        let mut role = object("ClusterRole", "", name);
        role["rules"] = rules(grants);
        let part = name.split_once(':').and_then(|(_, name)| name.strip_prefix("aggregate-to-"));
        let part = part.or((*name == "system:aggregated-metrics-reader").then_some("view"));
        if let Some(part) = part {
            role["metadata"]["labels"][aggregate_to(part)] = "true".into();
        }
        role
    });
    let aggregated = AGGREGATED.iter().map(|(name, into)| {
        let mut role = object("ClusterRole", "", name);
        let labels = json!({aggregate_to(name): "true"});
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
        if let Some(into) = into {
            role["metadata"]["labels"][aggregate_to(into)] = "true".into();
        }
        role
    });
    let controllers = CONTROLLERS.iter().map(|(name, grants)| {
        let mut role = object("ClusterRole", "", &format!("{CONTROLLER_PREFIX}{name}"));
        role["rules"] = rules(grants);
        role
    });
    let mut roles: Vec<Value> = plain.chain(aggregated).chain(controllers).collect();
    fill_aggregated(&mut roles);
    roles
}

/// Fills in the rules that upstream's aggregation controller would fill in.
fn fill_aggregated(roles: &mut [Value]) {
    let by_name: aggregation::Roles =
        roles.iter().map(|role| (role.text(&["metadata", "name"]), role)).collect();
    let gathered: Vec<Option<Value>> = roles
        .iter()
        .map(|role| aggregation::is_aggregated(role).then(|| rules_of(role, &by_name)))
        .collect();
    for (role, rules) in roles.iter_mut().zip(gathered) {
        if let Some(rules) = rules {
            role["rules"] = rules;
        }
    }
}

fn rules_of(role: &Value, all: &aggregation::Roles) -> Value {
    aggregation::rules_of(role, all).into_iter().cloned().collect()
}

pub fn cluster_role_bindings() -> Vec<Value> {
    let plain =
        BINDINGS.iter().map(|(role, subjects)| binding("", role, "ClusterRole", role, subjects));
    let controllers = CONTROLLERS.iter().map(|(name, _)| {
        let role = format!("{CONTROLLER_PREFIX}{name}");
        binding("", &role, "ClusterRole", &role, &[Subject::Account(name)])
    });
    let joining = JOINING.iter().map(|(name, role, group)| {
        binding("", name, "ClusterRole", role, &[Subject::Group(group)])
    });
    plain.chain(controllers).chain(joining).collect()
}

/// Roles in kube-system and kube-public.
pub fn roles() -> Vec<Value> {
    let role = |(namespace, name, grants): &(&str, &str, &[Grant])| {
        let mut role = object("Role", namespace, name);
        role["rules"] = rules(grants);
        role
    };
    LOCAL_ROLES.iter().map(role).collect()
}

pub fn role_bindings() -> Vec<Value> {
    LOCAL_BINDINGS
        .iter()
        .map(|(namespace, name, role, subjects)| binding(namespace, name, "Role", role, subjects))
        .collect()
}

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        },
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn binding(namespace: &str, name: &str, kind: &str, role: &str, subjects: &[Subject]) -> Value {
    let own = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    let mut binding = object(own, namespace, name);
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": kind, "name": role});
    if !subjects.is_empty() {
        binding["subjects"] = subjects.iter().map(|subject| subject.json()).collect();
    }
    binding
}

fn rules(grants: &[Grant]) -> Value {
    grants.iter().map(|grant| grant.rule()).collect()
}

fn aggregate_to(role: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{role}")
}

/// Sorted, as in upstream's objects.
fn words(list: &str) -> Vec<&str> {
    let mut words: Vec<&str> = list.split_whitespace().collect();
    words.sort_unstable();
    words
}

fn groups_of(list: &str) -> Vec<&str> {
    let mut groups: Vec<&str> =
        list.split_whitespace().map(|group| if group == "core" { "" } else { group }).collect();
    groups.sort_unstable();
    groups
}

#[cfg(test)]
mod tests;
