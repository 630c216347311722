//! InterPodAffinity: required affinity and anti-affinity of the pod and of the pods that are already on nodes (N-193).

use super::{Plugin, Rejection};
use crate::affinity_terms::{AffinityTerm, Role};
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::pod_counts::PodQuery;
use crate::view::View;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const NOT_NEAR: &str = "node(s) didn't match pod affinity rules";
const NOT_FAR: &str = "node(s) didn't match pod anti-affinity rules";
const UNWANTED: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// Values of a topology key.
type Domains = HashSet<String>;

pub(super) struct Plan {
    /// For each required affinity term: the domains with matching pods.
    near: Vec<(String, Domains)>,
    /// There is no matching pod, and the pod matches its own terms.
    first: bool,
    /// For each required anti-affinity term: the domains with matching pods.
    far: Vec<(String, Domains)>,
    /// The domains of existing pods whose anti-affinity matches the pod.
    unwanted: Vec<(String, Domains)>,
}

impl Plan {
    pub(super) fn make(view: View, pod: &PodInfo) -> Plan {
        let near: Vec<&Arc<AffinityTerm>> = pod.terms.with(Role::RequiredAffinity).collect();
        let near_domains = near_domains(view, &near);
        let nowhere = near_domains.iter().all(|(_, domains)| domains.is_empty());
        let namespaces = &view.cluster.namespaces;
        let far = pod.terms.with(Role::RequiredAntiAffinity).map(|term| {
            let query = PodQuery::of(term.namespaces(namespaces), term.selector.clone());
            (term.topology_key.clone(), domains(view, &view.counts(&query), &term.topology_key))
        });
        Plan {
            first: nowhere && near.iter().all(|term| term.matches(pod, namespaces)),
            near: near_domains,
            far: far.collect(),
            unwanted: unwanted(view, pod),
        }
    }

    pub(super) fn check(&self, node: &NodeState) -> Result<(), Rejection> {
        let mut satisfied = true;
        for (key, domains) in &self.near {
            let Some(domain) = node.label(key) else {
                return Err(Rejection::hard(Plugin::InterPodAffinity, NOT_NEAR));
            };
            satisfied &= domains.contains(domain);
        }
        if !satisfied && !self.first {
            return Err(Rejection::hard(Plugin::InterPodAffinity, NOT_NEAR));
        }
        let is_in = |(key, domains): &(String, Domains)| {
            node.label(key).is_some_and(|domain| domains.contains(domain))
        };
        if self.far.iter().any(is_in) {
            return Err(Rejection::soft(Plugin::InterPodAffinity, NOT_FAR));
        }
        if self.unwanted.iter().any(is_in) {
            return Err(Rejection::soft(Plugin::InterPodAffinity, UNWANTED));
        }
        Ok(())
    }
}

/// A pod counts only if it matches all terms.
fn near_domains(view: View, terms: &[&Arc<AffinityTerm>]) -> Vec<(String, Domains)> {
    if terms.is_empty() {
        return Vec::new();
    }
    let namespaces = &view.cluster.namespaces;
    let all = terms.iter().map(|term| (term.namespaces(namespaces), term.selector.clone()));
    let counts = view.counts(&PodQuery { all: all.collect(), exclude_terminating: false });
    let domains_of = |term: &&Arc<AffinityTerm>| {
        (term.topology_key.clone(), domains(view, &counts, &term.topology_key))
    };
    terms.iter().map(domains_of).collect()
}

fn unwanted(view: View, pod: &PodInfo) -> Vec<(String, Domains)> {
    if !view.cluster.has_groups() && view.change.is_none() {
        return Vec::new();
    }
    let namespaces = &view.cluster.namespaces;
    let mut unwanted = Vec::new();
    for group in view.cluster.groups().filter(|group| group.role == Role::RequiredAntiAffinity) {
        if group.term.matches(pod, namespaces) {
            let key = &group.term.topology_key;
            unwanted.push((key.clone(), domains(view, &view.nodes_of(group), key)));
        }
    }
    // Added pods may be the first with their terms.
    if let Some(change) = view.change {
        for added in &change.added {
            for term in added
                .terms
                .with(Role::RequiredAntiAffinity)
                .filter(|term| term.matches(pod, namespaces))
            {
                let domain = change.node.label(&term.topology_key).map(str::to_owned);
                unwanted.push((term.topology_key.clone(), domain.into_iter().collect()));
            }
        }
    }
    unwanted
}

/// The domains of the nodes with a count.
fn domains(view: View, counts: &HashMap<Arc<str>, usize>, key: &str) -> Domains {
    let there = counts.iter().filter(|(_, count)| **count > 0);
    let there = there.filter_map(|(name, _)| view.node(name));
    there.filter_map(|node| node.label(key).map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use crate::cluster_state::ClusterState;
    use crate::cluster_state::tests::cluster;
    use crate::filters::Cycle;
    use crate::filters::tests::reasons;
    use crate::node::NodeState;
    use crate::node::tests::node;
    use crate::pod::PodInfo;
    use crate::pod::tests::{pod_with, read};
    use crate::view::{Change, View};
    use serde_json::{Value, json};
    use std::sync::Arc;

    const NOT_NEAR: &str = "node(s) didn't match pod affinity rules (hard)";
    const NOT_FAR: &str = "node(s) didn't match pod anti-affinity rules";
    const UNWANTED: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

    fn zoned(name: &str, zone: &str) -> NodeState {
        node(name, json!({ "metadata": { "labels": { "zone": zone } } }))
    }

    /// Two in zone x, one in y, one without a zone.
    fn nodes() -> [NodeState; 4] {
        [zoned("a", "x"), zoned("b", "x"), zoned("c", "y"), node("d", json!({}))]
    }

    fn requiring(kind: &str, app: &str, more: Value) -> Value {
        let mut term = json!({ "topologyKey": "zone",
                               "labelSelector": { "matchLabels": { "app": app } } });
        for (key, value) in more.as_object().unwrap() {
            term[key] = value.clone();
        }
        let mut affinity = json!({});
        affinity[kind] = json!({ "requiredDuringSchedulingIgnoredDuringExecution": [term] });
        affinity
    }

    fn pod(name: &str, app: &str, affinity: Value) -> PodInfo {
        pod_with(name, json!({ "app": app }), json!({ "affinity": affinity }))
    }

    fn db_on(node: &str) -> PodInfo {
        pod("db", "db", json!({})).on(&node.into())
    }

    fn checked(view: View, pod: &PodInfo) -> Vec<String> {
        let cycle = Cycle::begin(view, pod).unwrap();
        view.nodes().map(|node| reasons(cycle.pod_affinity.check(node))).collect()
    }

    fn in_world(cluster: &ClusterState, pod: &PodInfo) -> Vec<String> {
        checked(View::of(cluster), pod)
    }

    #[test]
    fn n_193_required_affinity_needs_a_matching_pod_in_the_domain() {
        let cluster = cluster(nodes(), [db_on("a")]);
        let near = pod("p", "web", requiring("podAffinity", "db", json!({})));
        assert_eq!(in_world(&cluster, &near), ["fits", "fits", NOT_NEAR, NOT_NEAR]);
    }

    #[test]
    fn n_193_a_pod_that_matches_its_own_terms_may_be_the_first() {
        let empty = cluster(nodes(), []);
        let own = pod("p", "web", requiring("podAffinity", "web", json!({})));
        assert_eq!(in_world(&empty, &own), ["fits", "fits", "fits", NOT_NEAR]);
        let other = pod("p", "web", requiring("podAffinity", "db", json!({})));
        assert_eq!(in_world(&empty, &other), [NOT_NEAR, NOT_NEAR, NOT_NEAR, NOT_NEAR]);
        let second = cluster(nodes(), [pod("1", "web", json!({})).on(&"c".into())]);
        assert_eq!(in_world(&second, &own), [NOT_NEAR, NOT_NEAR, "fits", NOT_NEAR]);
    }

    #[test]
    fn n_193_anti_affinity_applies_in_both_directions() {
        let far = pod("p", "web", requiring("podAntiAffinity", "db", json!({})));
        let there = cluster(nodes(), [db_on("a")]);
        assert_eq!(in_world(&there, &far), [NOT_FAR, NOT_FAR, "fits", "fits"]);
        let shy = pod("shy", "x", requiring("podAntiAffinity", "web", json!({}))).on(&"c".into());
        let cluster = cluster(nodes(), [shy]);
        assert_eq!(
            in_world(&cluster, &pod("p", "web", json!({}))),
            ["fits", "fits", UNWANTED, "fits"]
        );
        assert_eq!(in_world(&cluster, &pod("p", "db", json!({}))), ["fits"; 4]);
    }

    #[test]
    fn n_193_terms_apply_to_the_own_namespace_by_default() {
        let elsewhere = read(json!({
            "metadata": { "namespace": "other", "name": "db", "uid": "db", "labels": { "app": "db" } },
            "spec": { "nodeName": "a", "containers": [] },
        }));
        let mut cluster = cluster(nodes(), [elsewhere]);
        cluster.namespaces.insert("other".into(), [("team".into(), "blue".into())].into());
        let result = |more: Value| {
            let far = pod("p", "web", requiring("podAntiAffinity", "db", more));
            in_world(&cluster, &far)[0].clone()
        };
        let by_team =
            |team: &str| json!({ "namespaceSelector": { "matchLabels": { "team": team } } });
        assert_eq!(result(json!({})), "fits");
        assert_eq!(result(json!({ "namespaces": ["other"] })), NOT_FAR);
        assert_eq!(result(json!({ "namespaceSelector": {} })), NOT_FAR);
        assert_eq!(result(by_team("blue")), NOT_FAR);
        assert_eq!(result(by_team("red")), "fits");
    }

    #[test]
    fn n_193_a_pod_counts_only_if_it_matches_all_terms() {
        let mut affinity = requiring("podAffinity", "db", json!({}));
        let second = json!({ "topologyKey": "zone",
                             "labelSelector": { "matchLabels": { "tier": "back" } } });
        let terms = &mut affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        terms.as_array_mut().unwrap().push(second);
        let near = pod("p", "web", affinity);
        let cluster = cluster(nodes(), [db_on("a")]);
        assert_eq!(in_world(&cluster, &near)[0], NOT_NEAR);
    }

    #[test]
    fn added_and_removed_pods_of_a_view_count() {
        let cluster = cluster(nodes(), [db_on("a")]);
        let far = pod("p", "web", requiring("podAntiAffinity", "db", json!({})));
        let mut change = Change::none(cluster.node("a").unwrap());
        change.remove(&db_on("a").key);
        assert_eq!(checked(View::with(&cluster, &change), &far), ["fits"; 4]);
        let shy = pod("shy", "x", requiring("podAntiAffinity", "web", json!({}))).on(&"a".into());
        change.add(&Arc::new(shy));
        let expected = [UNWANTED, UNWANTED, "fits", "fits"];
        assert_eq!(checked(View::with(&cluster, &change), &far), expected);
    }
}
