//! The default roles and bindings are complete and refer to each other correctly.

use super::*;
use std::collections::BTreeSet;

fn names(objects: &[Value]) -> Vec<String> {
    let name = |object: &Value| {
        format!("{}/{}", object["metadata"]["namespace"], object["metadata"]["name"])
    };
    objects.iter().map(name).collect()
}

/// the default roles and bindings of upstream.
#[test]
fn a_186_names_are_unique_and_every_binding_refers_to_an_existing_role() {
    let lists = [cluster_roles(), cluster_role_bindings(), self::roles(), role_bindings()];
    for list in &lists {
        let all = names(list);
        let once: BTreeSet<&String> = all.iter().collect();
        assert_eq!(once.len(), all.len());
    }
    let [cluster_roles, cluster_role_bindings, roles, role_bindings] = lists;
    for binding in cluster_role_bindings.iter().chain(&role_bindings) {
        let reference = &binding["roleRef"];
        let found = cluster_roles.iter().chain(&roles).any(|role| {
            role["kind"] == reference["kind"]
                && role["metadata"]["name"] == reference["name"]
                && role["metadata"]["namespace"] == binding["metadata"]["namespace"]
        });
        assert!(found, "{binding}");
        assert_eq!(binding["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
    }
    for wanted in ["cluster-admin", "admin", "edit", "view", "system:auth-delegator", "system:node"]
    {
        assert!(cluster_roles.iter().any(|role| role["metadata"]["name"] == wanted), "{wanted}");
    }
}

#[test]
fn a_186_aggregation_labels_lead_from_view_to_admin() {
    let label = |name: &str, into: &str| {
        let all = cluster_roles();
        let role = all.iter().find(|role| role["metadata"]["name"] == name).unwrap();
        role["metadata"]["labels"][format!("rbac.authorization.k8s.io/aggregate-to-{into}")].clone()
    };
    for (role, into) in [
        ("view", "edit"),
        ("edit", "admin"),
        ("system:aggregate-to-view", "view"),
        ("system:aggregate-to-edit", "edit"),
        ("system:aggregate-to-admin", "admin"),
        ("system:aggregated-metrics-reader", "view"),
    ] {
        assert_eq!(label(role, into), "true", "{role}");
    }
}
