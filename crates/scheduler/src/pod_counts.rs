//! Cached counts of matching pods per node.
//!
//! Topology spread and pod affinity need such counts, and the pods of one workload need the same ones. A query is
//! counted once over all pods that may match; after that, each added or removed pod updates the cached counts. So the
//! cost of a decision does not grow with the number of pods.

use crate::pod::PodInfo;
use crate::selector_index::{self, SelectorIndex, index_key, required_label};
use api::selector::LabelSelector;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Maximum number of cached queries. Each is checked for every added or removed pod that has the query's label, or for
/// every pod of its namespaces if it requires no label.
const QUERIES_MAX: usize = 1024;

/// A query for more namespaces than this is indexed as one for all namespaces.
const NAMESPACES_MAX: usize = 16;

/// A set of namespaces; `None` means all.
pub(crate) type Namespaces = Option<BTreeSet<String>>;

/// Selects pods that match all of these selectors.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodQuery {
    pub(crate) all: Vec<(Namespaces, LabelSelector)>,
    /// Leave out pods that are being deleted.
    pub(crate) exclude_terminating: bool,
}

/// Number of pods per node, without zeros.
pub(crate) type CountsByNode = HashMap<Arc<str>, usize>;

#[derive(Debug, Default)]
pub(crate) struct PodCounts {
    cached: HashMap<String, CachedCounts>,
    /// The queries that a pod may affect.
    index: SelectorIndex<String>,
    /// Number of calls so far.
    uses: u64,
}

#[derive(Debug)]
struct CachedCounts {
    query: PodQuery,
    counts: Arc<CountsByNode>,
    /// The value of `PodCounts::uses` at its last use.
    last_use: u64,
}

impl PodQuery {
    pub(crate) fn of(namespaces: Namespaces, selector: LabelSelector) -> PodQuery {
        PodQuery { all: vec![(namespaces, selector)], exclude_terminating: false }
    }

    pub(crate) fn matches(&self, pod: &PodInfo) -> bool {
        if self.exclude_terminating && pod.is_terminating() {
            return false;
        }
        self.all.iter().all(|(namespaces, selector)| {
            namespaces.as_ref().is_none_or(|some| some.contains(pod.namespace()))
                && selector.matches(|key| pod.label(key))
        })
    }

    /// The namespaces that it is limited to; `None` if there is no limit or there are many.
    pub(crate) fn namespace_limit(&self) -> Namespaces {
        let some = self.all.iter().filter_map(|(namespaces, _)| namespaces.as_ref());
        some.min_by_key(|some| some.len()).filter(|some| some.len() <= NAMESPACES_MAX).cloned()
    }

    /// One label that all matching pods have.
    pub(crate) fn label(&self) -> Option<(&str, &str)> {
        self.all.iter().find_map(|(_, selector)| required_label(selector))
    }

    /// The index keys of the query. Each matching pod has one of them.
    fn index_keys(&self) -> Vec<String> {
        let label = self.label();
        match self.namespace_limit() {
            Some(namespaces) => {
                namespaces.iter().map(|name| index_key(Some(name), label)).collect()
            }
            None => vec![index_key(None, label)],
        }
    }

    fn cache_key(&self) -> String {
        let nothing = self.all.iter().any(|(_, selector)| selector.is_nothing());
        format!("{:?} {} {nothing}", self.all, self.exclude_terminating)
    }
}

impl PodCounts {
    /// The counts for a query. `pods` returns at least all matching pods and is called only if the query is not cached.
    pub(crate) fn counts<'a>(
        &mut self,
        query: &PodQuery,
        pods: impl FnOnce() -> Box<dyn Iterator<Item = &'a Arc<PodInfo>> + 'a>,
    ) -> Arc<CountsByNode> {
        self.uses += 1;
        let cache_key = query.cache_key();
        if let Some(entry) = self.cached.get_mut(&cache_key) {
            entry.last_use = self.uses;
            return entry.counts.clone();
        }
        if self.cached.len() >= QUERIES_MAX {
            let oldest = self.cached.iter().min_by_key(|(_, entry)| entry.last_use);
            if let Some(oldest) = oldest.map(|(cache_key, _)| cache_key.clone()) {
                self.drop_query(&oldest);
            }
        }
        let mut counts = CountsByNode::new();
        for pod in pods().filter(|pod| query.matches(pod)) {
            if let Some(node) = &pod.node {
                *counts.entry(node.clone()).or_default() += 1;
            }
        }
        let counts = Arc::new(counts);
        let entry =
            CachedCounts { query: query.clone(), counts: counts.clone(), last_use: self.uses };
        for key in query.index_keys() {
            self.index.insert(key, cache_key.clone());
        }
        self.cached.insert(cache_key, entry);
        counts
    }

    fn drop_query(&mut self, cache_key: &String) {
        let Some(entry) = self.cached.remove(cache_key) else { return };
        for key in entry.query.index_keys() {
            self.index.remove(&key, cache_key);
        }
    }

    pub(crate) fn add(&mut self, pod: &PodInfo) {
        self.change(pod, |counts, node| *counts.entry(node.clone()).or_default() += 1);
    }

    pub(crate) fn remove(&mut self, pod: &PodInfo) {
        self.change(pod, |counts, node| {
            if let Some(count) = counts.get_mut(node) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    counts.remove(node);
                }
            }
        });
    }

    fn change(&mut self, pod: &PodInfo, change: impl Fn(&mut CountsByNode, &Arc<str>)) {
        let Some(node) = &pod.node else {
            return;
        };
        for key in selector_index::all_keys(pod) {
            for cache_key in self.index.get(&key) {
                if let Some(entry) = self.cached.get_mut(cache_key)
                    && entry.query.matches(pod)
                {
                    change(Arc::make_mut(&mut entry.counts), node);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod_with;
    use proptest::prelude::*;
    use serde_json::json;

    fn query(app: &str) -> PodQuery {
        let selector = json!({ "matchLabels": { "app": app } });
        let namespaces = Some(["default".to_owned()].into());
        PodQuery::of(namespaces, LabelSelector::from_object(&selector).unwrap())
    }

    proptest! {
        /// After any sequence of changes, cached counts equal a new count.
        #[test]
        fn cached_counts_equal_a_new_count(
            steps in prop::collection::vec((0u8..8, 0u8..3, 0u8..2), 0..40),
        ) {
            let mut pod_counts = PodCounts::default();
            let mut pods: Vec<Arc<PodInfo>> = Vec::new();
            for (name, node, app) in steps {
                let name = format!("p{name}");
                if let Some(at) = pods.iter().position(|pod| pod.key.name() == name) {
                    pod_counts.remove(&pods.swap_remove(at));
                } else {
                    let labels = json!({ "app": format!("a{app}") });
                    let pod = pod_with(&name, labels, json!({ "nodeName": format!("n{node}") }));
                    pod_counts.add(&pod);
                    pods.push(Arc::new(pod));
                }
                let of = |namespaces: Namespaces, selector: serde_json::Value| {
                    PodQuery::of(namespaces, LabelSelector::from_object(&selector).unwrap())
                };
                let expression = |operator: &str, values: serde_json::Value| json!({ "matchExpressions": [
                    { "key": "app", "operator": operator, "values": values } ] });
                let here = || Some(["default".to_owned()].into());
                let two = PodQuery {
                    all: vec![query("a0").all[0].clone(), of(None, json!({})).all[0].clone()],
                    exclude_terminating: false,
                };
                for query in [
                    query("a0"),
                    query("a1"),
                    two,
                    of(None, json!({ "matchLabels": { "app": "a1" } })),
                    of(None, json!({})),
                    of(here(), expression("In", json!(["a0", "a1"]))),
                    of(here(), expression("In", json!(["a1"]))),
                    of(here(), expression("NotIn", json!(["a1"]))),
                    of(here(), expression("Exists", json!([]))),
                    of(None, serde_json::Value::Null),
                ] {
                    let cached_counts = pod_counts.counts(&query, || Box::new(pods.iter()));
                    let counted = PodCounts::default().counts(&query, || Box::new(pods.iter()));
                    prop_assert_eq!(cached_counts, counted);
                }
            }
        }
    }

    #[test]
    fn least_recently_used_queries_are_dropped() {
        let mut pod_counts = PodCounts::default();
        for n in 0..QUERIES_MAX + 10 {
            pod_counts.counts(&query(&format!("a{n}")), || Box::new(std::iter::empty()));
        }
        assert_eq!(pod_counts.cached.len(), QUERIES_MAX);
        assert_eq!(pod_counts.index.count(), QUERIES_MAX, "and removed from the index");
    }

    #[test]
    fn a_query_is_limited_to_its_smallest_set_of_namespaces() {
        let names = |count: usize| Some((0..count).map(|n| format!("n{n}")).collect());
        let within = |all: &[Namespaces]| {
            let all = all.iter().map(|some| (some.clone(), LabelSelector::default())).collect();
            PodQuery { all, exclude_terminating: false }.namespace_limit()
        };
        assert_eq!(within(&[names(3), None, names(2)]), names(2));
        assert_eq!(within(&[None]), None);
        assert_eq!(within(&[names(NAMESPACES_MAX + 1)]), None);
    }

    /// The cost of adding a pod depends on the queries for its labels, not on all queries.
    #[test]
    fn a_pod_is_checked_only_against_queries_for_its_labels() {
        let mut pod_counts = PodCounts::default();
        for n in 0..300 {
            pod_counts.counts(&query(&format!("a{n}")), || Box::new(std::iter::empty()));
        }
        let pod = pod_with("p", json!({ "app": "a7" }), json!({ "nodeName": "n" }));
        let checked: usize =
            selector_index::all_keys(&pod).map(|key| pod_counts.index.get(&key).count()).sum();
        assert_eq!(checked, 1);
    }

    /// Many workloads that are scheduled together do not push out each other's queries.
    #[test]
    fn hundreds_of_queries_are_counted_once_each() {
        let mut pod_counts = PodCounts::default();
        let counted = std::cell::Cell::new(0);
        for _ in 0..3 {
            for n in 0..300 {
                pod_counts.counts(&query(&format!("a{n}")), || {
                    counted.set(counted.get() + 1);
                    Box::new(std::iter::empty())
                });
            }
        }
        assert_eq!(counted.get(), 300);
    }
}
