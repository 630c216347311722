//! Finds the pods of the same Service, ReplicaSet, StatefulSet or ReplicationController. They are spread by default
//! (N-192).

use crate::pod::PodInfo;
use crate::pod_counts::PodQuery;
use crate::selector_index::{self, SelectorIndex, index_key, required_label};
use api::selector::LabelSelector;
use client::ObjectKey;
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Debug, Default)]
pub(crate) struct Workloads {
    services: BTreeMap<ObjectKey, LabelSelector>,
    /// The Services that may select a pod.
    index: SelectorIndex<ObjectKey>,
    /// By kind, namespace and name.
    owners: HashMap<(&'static str, ObjectKey), LabelSelector>,
}

impl Workloads {
    /// A Service without a selector selects nothing.
    pub(crate) fn put_service(&mut self, key: &ObjectKey, selector: Option<LabelSelector>) {
        if let Some(before) = self.services.remove(key) {
            self.index.remove(&index_key(Some(key.namespace()), required_label(&before)), key);
        }
        if let Some(selector) = selector.filter(|selector| !selector.is_everything()) {
            self.index
                .insert(index_key(Some(key.namespace()), required_label(&selector)), key.clone());
            self.services.insert(key.clone(), selector);
        }
    }

    /// The selectors of the Services that select a pod.
    fn services_of(&self, pod: &PodInfo) -> Vec<&LabelSelector> {
        let keys: BTreeSet<&ObjectKey> =
            selector_index::namespace_keys(pod).flat_map(|key| self.index.get(&key)).collect();
        let selectors = keys.into_iter().filter_map(|key| self.services.get(key));
        selectors.filter(|selector| selector.matches(|key| pod.label(key))).collect()
    }

    pub(crate) fn put_owner(
        &mut self,
        kind: &'static str,
        key: &ObjectKey,
        selector: Option<LabelSelector>,
    ) {
        let key = (kind, key.clone());
        match selector {
            Some(selector) => drop(self.owners.insert(key, selector)),
            None => drop(self.owners.remove(&key)),
        }
    }

    /// A query for the pods of the same workload, if the pod belongs to one.
    pub(crate) fn siblings(&self, pod: &PodInfo) -> Option<PodQuery> {
        let namespace = pod.namespace();
        let ours = self.services_of(pod).into_iter();
        let owners = pod.pod.metadata.owner_references.iter().flatten();
        let owner = owners.filter(|owner| owner.controller == Some(true)).find_map(|owner| {
            let kinds = ["ReplicaSet", "StatefulSet", "ReplicationController"];
            let kind = kinds.into_iter().find(|kind| *kind == owner.kind)?;
            self.owners.get(&(kind, ObjectKey::new(namespace, &owner.name)))
        });
        let here = Some([namespace.to_owned()].into());
        let all: Vec<_> =
            ours.chain(owner).map(|selector| (here.clone(), selector.clone())).collect();
        (!all.is_empty()).then_some(PodQuery { all, exclude_terminating: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod_with;
    use serde_json::json;

    #[test]
    fn n_192_services_are_found_by_their_current_selectors() {
        let mut workloads = Workloads::default();
        let selector = |labels| Some(LabelSelector::from_labels(&labels));
        let service = |name: &str| ObjectKey::new("default", name);
        workloads.put_service(&service("web"), selector(json!({ "app": "web" })));
        workloads.put_service(&service("both"), selector(json!({ "app": "web", "tier": "x" })));
        workloads.put_service(&service("db"), selector(json!({ "app": "db" })));
        workloads.put_service(&service("none"), selector(json!({})));
        workloads.put_service(&ObjectKey::new("other", "web"), selector(json!({ "app": "web" })));
        let pod = pod_with("p", json!({ "app": "web", "tier": "y" }), json!({}));
        assert_eq!(workloads.services_of(&pod).len(), 1);
        let pod = pod_with("p", json!({ "app": "web", "tier": "x" }), json!({}));
        assert_eq!(workloads.services_of(&pod).len(), 2);
        workloads.put_service(&service("web"), selector(json!({ "app": "db" })));
        assert_eq!(workloads.services_of(&pod).len(), 1);
        workloads.put_service(&service("both"), None);
        assert!(workloads.siblings(&pod).is_none());
        workloads.put_service(&service("web"), None);
        workloads.put_service(&service("db"), None);
        workloads.put_service(&ObjectKey::new("other", "web"), None);
        assert!(workloads.services.is_empty() && workloads.index.count() == 0);
    }
}
