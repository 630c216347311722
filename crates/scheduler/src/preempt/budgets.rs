//! Disruption budgets: how many of their pods may be disrupted.

use crate::affinity_terms::selector;
use crate::pod::PodInfo;
use api::selector::LabelSelector;
use client::ObjectKey;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Budgets {
    all: BTreeMap<ObjectKey, Budget>,
}

#[derive(Debug)]
pub(crate) struct Budget {
    selector: LabelSelector,
    allowed: i32,
    /// Pods whose disruption is already counted.
    disrupted: BTreeSet<String>,
}

impl Budget {
    pub(crate) fn read(budget: &PodDisruptionBudget) -> Budget {
        let wanted = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let status = budget.status.as_ref();
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        Budget {
            selector: selector(wanted),
            allowed: status.and_then(|status| status.disruptions_allowed).unwrap_or_default(),
            disrupted: disrupted.into_iter().flat_map(|pods| pods.keys().cloned()).collect(),
        }
    }
}

impl Budgets {
    pub(crate) fn put(&mut self, key: &ObjectKey, budget: Option<Budget>) {
        match budget {
            Some(budget) => drop(self.all.insert(key.clone(), budget)),
            None => drop(self.all.remove(key)),
        }
    }

    /// Splits pods into those whose deletion would violate a budget, and the others. Keeps their order.
    pub(crate) fn split(&self, pods: Vec<Arc<PodInfo>>) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
        if self.all.is_empty() {
            return (Vec::new(), pods);
        }
        let mut left: BTreeMap<&ObjectKey, i32> =
            self.all.iter().map(|(key, budget)| (key, budget.allowed)).collect();
        pods.into_iter().partition(|pod| {
            let mut violates = false;
            let unlabelled = pod.pod.metadata.labels.as_ref().is_none_or(BTreeMap::is_empty);
            for (key, budget) in self.all.iter().filter(|_| !unlabelled) {
                // A budget with an empty selector does not count here. Upstream: `filterPodsWithPDBViolation`.
                let meant = key.namespace() == pod.namespace()
                    && !budget.selector.is_everything()
                    && budget.selector.matches(|label| pod.label(label))
                    && !budget.disrupted.contains(pod.key.name());
                if let Some(left) = left.get_mut(key).filter(|_| meant) {
                    *left -= 1;
                    violates |= *left < 0;
                }
            }
            violates
        })
    }
}
