//! Fills in the rules of aggregated ClusterRoles (C-147). The server does not need this, because it computes the rules
//! itself; it is for clients that read the roles.

use crate::start::Cluster;
use api::selector::LabelSelector;
use client::{Cache, ObjectKey, Queue, run_controller};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use serde_json::json;
use std::sync::Arc;

const MANAGER: &str = "clusterrole-aggregation-controller";
const BY_AGGREGATION: &str = "aggregation";
const AGGREGATED: &str = "aggregated";

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    let roles = Cache::<ClusterRole>::builder(&cluster.client)
        .index(BY_AGGREGATION, |role| {
            is_aggregated(role).then(|| AGGREGATED.to_owned()).into_iter().collect()
        })
        .start();
    // Any role may be part of any other, so each reconcile checks all of them.
    roles.feed(&queue, |_| vec![()]);
    roles.synced().await;
    let client = cluster.client.clone().named(MANAGER);
    run_controller("clusterrole-aggregation", &queue, 1, |()| async {
        let all = roles.list();
        for role in roles.by_index(BY_AGGREGATION, AGGREGATED) {
            let rules = rules(&role, &all);
            if role.rules.as_deref().unwrap_or_default() == rules {
                continue;
            }
            let key = ObjectKey::of(role.as_ref());
            client
                .apply::<ClusterRole>(json!({
                    "metadata": { "name": key.name() }, "rules": rules,
                }))
                .await?;
        }
        Ok::<(), client::Error>(())
    })
    .await;
}

fn is_aggregated(role: &ClusterRole) -> bool {
    role.aggregation_rule.as_ref().is_some_and(|rule| rule.cluster_role_selectors.is_some())
}

/// The rules of all selected roles, sorted by selector and role name, without duplicates. Upstream: `syncClusterRole`.
fn rules(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Vec<PolicyRule> {
    let selectors = role.aggregation_rule.iter();
    let selectors = selectors.flat_map(|rule| rule.cluster_role_selectors.iter().flatten());
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in selectors {
        let selector = typed::to_value(selector).ok();
        let Some(selector) = selector.and_then(|s| LabelSelector::from_object(&s).ok()) else {
            continue; // An invalid selector selects nothing.
        };
        for other in all.iter().filter(|other| other.metadata.name != role.metadata.name) {
            let labels = other.metadata.labels.as_ref();
            if !selector.matches(|key| labels?.get(key).map(String::as_str)) {
                continue;
            }
            for rule in other.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn c_147_rules_of_matching_roles_are_merged_in_the_order_of_names() {
        let role = |name: &str, label: &str, verbs: Value| -> Arc<ClusterRole> {
            Arc::new(
                typed::from_value(json!({
                    "metadata": { "name": name, "labels": { "part": label } },
                    "rules": [{ "verbs": verbs, "resources": ["pods"], "apiGroups": [""] }],
                }))
                .unwrap(),
            )
        };
        let whole: ClusterRole = typed::from_value(json!({
            "metadata": { "name": "whole", "labels": { "part": "a" } },
            "aggregationRule": { "clusterRoleSelectors": [
                { "matchLabels": { "part": "b" } }, { "matchLabels": { "part": "a" } },
            ]},
            "rules": [{ "verbs": ["old"] }],
        }))
        .unwrap();
        let all = [
            role("a1", "a", json!(["get"])),
            role("a2", "a", json!(["list"])),
            role("b", "b", json!(["list"])),
            role("c", "c", json!(["delete"])),
            Arc::new(whole.clone()),
        ];
        let verbs: Vec<String> =
            rules(&whole, &all).iter().map(|rule| rule.verbs.join(",")).collect();
        assert_eq!(verbs, ["list", "get"]);
    }
}
