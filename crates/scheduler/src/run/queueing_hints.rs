//! Queueing hints: whether a change of the cluster may make a waiting pod schedulable (N-185).
//!
//! If only one node matters, as many pods are activated as fit on it together; the others are tried after their
//! backoff, because the first ones may be placed elsewhere. So one deleted pod does not cause a decision for each of
//! a thousand waiting pods.

use crate::cluster_state::ClusterState;
use crate::filters::{Plugins, check_single_node};
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::queue::{Queue, QueueingHint};
use std::sync::Arc;

/// A change that may make a waiting pod schedulable.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event<'a> {
    /// A node was added or changed.
    NodeChanged(&'a str),
    /// A pod on a node was deleted or needs less.
    ResourcesFreed(&'a str),
    /// A pod was added to a node, or its labels changed.
    PodPlaced,
    VolumesChanged,
}

impl Event<'_> {
    pub(super) fn is_relevant(self, queue: &Queue) -> bool {
        match self {
            Event::NodeChanged(_) | Event::ResourcesFreed(_) => queue.has_waiting(),
            Event::PodPlaced => queue.has_waiting_for(Plugins::TOPOLOGY),
            Event::VolumesChanged => queue.has_waiting_for(Plugins::VOLUMES),
        }
    }
}

/// Evaluates one event, pod by pod.
pub(super) struct HintEvaluator<'a> {
    event: Event<'a>,
    cluster: &'a ClusterState,
    /// The event's node with the pods that are activated so far.
    filled: Option<NodeState>,
}

impl<'a> HintEvaluator<'a> {
    pub(super) fn new(event: Event<'a>, cluster: &'a ClusterState) -> HintEvaluator<'a> {
        HintEvaluator { event, cluster, filled: None }
    }

    /// The hint for a pod that these plugins rejected. Must be called in the order of priority.
    pub(super) fn hint(&mut self, pod: &Arc<PodInfo>, by: Plugins) -> QueueingHint {
        match self.event {
            // Only volumes rejected the pod, so a node does not matter.
            Event::NodeChanged(_)
                if by.is_subset_of(Plugins::VOLUMES) && by != Plugins::default() =>
            {
                QueueingHint::Skip
            }
            Event::NodeChanged(node) | Event::ResourcesFreed(node)
                if by.is_subset_of(Plugins::SINGLE_NODE) =>
            {
                self.fill(node, pod)
            }
            Event::NodeChanged(node) => match self.fits(node, pod) {
                true => QueueingHint::QueueAfterBackoff,
                false => QueueingHint::Skip,
            },
            Event::ResourcesFreed(_) => QueueingHint::QueueAfterBackoff,
            Event::PodPlaced if by.intersects(Plugins::TOPOLOGY) => QueueingHint::QueueAfterBackoff,
            Event::VolumesChanged if by.intersects(Plugins::VOLUMES) => {
                QueueingHint::QueueAfterBackoff
            }
            Event::PodPlaced | Event::VolumesChanged => QueueingHint::Skip,
        }
    }

    fn fits(&self, node: &str, pod: &PodInfo) -> bool {
        self.cluster.node(node).is_some_and(|node| check_single_node(pod, node).is_ok())
    }

    fn fill(&mut self, node: &str, pod: &Arc<PodInfo>) -> QueueingHint {
        if !self.fits(node, pod) {
            return QueueingHint::Skip;
        }
        if self.filled.is_none() {
            self.filled = self.cluster.node(node).cloned();
        }
        match &mut self.filled {
            Some(filled) if check_single_node(pod, filled).is_ok() => {
                filled.add(Arc::clone(pod));
                QueueingHint::QueueNow
            }
            _ => QueueingHint::QueueAfterBackoff,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_state::tests::cluster;
    use crate::filters::Plugin;
    use crate::node::tests::node;
    use crate::pod::tests::asking;
    use serde_json::json;

    /// The node has 4 CPUs, of which 3 are free.
    fn hints(event: Event, pods: &[(&str, &str)], by: Plugin) -> Vec<QueueingHint> {
        let there = asking("there", "1", "1Gi").on(&"n".into());
        let cluster = cluster([node("n", json!({}))], [there]);
        let mut evaluator = HintEvaluator::new(event, &cluster);
        let ask = |(name, cpu): &(&str, &str)| {
            evaluator.hint(&Arc::new(asking(name, cpu, "1Mi")), Plugins::of(&[by]))
        };
        pods.iter().map(ask).collect()
    }

    #[test]
    fn n_185_as_many_pods_are_activated_as_fit_and_the_rest_back_off() {
        use Plugin::{InterPodAffinity, NodeResourcesFit, VolumeBinding};
        use QueueingHint::{QueueAfterBackoff, QueueNow, Skip};
        let four = [("a", "2"), ("b", "2"), ("c", "1"), ("d", "4")];
        let fit = NodeResourcesFit;
        assert_eq!(
            hints(Event::ResourcesFreed("n"), &four, fit),
            [QueueNow, QueueAfterBackoff, QueueNow, Skip]
        );
        assert_eq!(
            hints(Event::NodeChanged("n"), &four, fit),
            [QueueNow, QueueAfterBackoff, QueueNow, Skip]
        );
        assert_eq!(hints(Event::ResourcesFreed("gone"), &four, fit), [Skip; 4]);
        assert_eq!(
            hints(Event::ResourcesFreed("n"), &four, InterPodAffinity),
            [QueueAfterBackoff; 4]
        );
        assert_eq!(hints(Event::PodPlaced, &four, fit), [Skip; 4]);
        assert_eq!(hints(Event::PodPlaced, &four, InterPodAffinity), [QueueAfterBackoff; 4]);
        assert_eq!(hints(Event::VolumesChanged, &four, VolumeBinding), [QueueAfterBackoff; 4]);
        assert_eq!(hints(Event::NodeChanged("n"), &four, VolumeBinding), [Skip; 4]);
    }

    #[test]
    fn n_185_irrelevant_events_are_not_evaluated() {
        let mut queue = Queue::default();
        let pod = Arc::new(asking("p", "1", "1Gi"));
        let (key, now) = (pod.key.clone(), tokio::time::Instant::now());
        queue.put(pod, false, now);
        queue.take(now);
        assert!(!Event::ResourcesFreed("n").is_relevant(&queue));
        queue.rejected(&key, Plugins::of(&[Plugin::NodePorts]), now);
        assert!(Event::ResourcesFreed("n").is_relevant(&queue));
        assert!(
            !Event::PodPlaced.is_relevant(&queue) && !Event::VolumesChanged.is_relevant(&queue)
        );
        queue.requeue(now, |_, _| QueueingHint::QueueNow);
        queue.take(now);
        queue.rejected(&key, Plugins::of(&[Plugin::PodTopologySpread]), now);
        assert!(Event::PodPlaced.is_relevant(&queue));
        queue.remove(&key);
        assert!(!Event::PodPlaced.is_relevant(&queue));
    }
}
