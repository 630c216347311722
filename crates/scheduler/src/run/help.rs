//! Whether something that happened helps a pod that waits (N-185).
//!
//! Where one node says it all, as many are surely helped as find room there together; the rest may try
//! after their back-off, since those before them may go elsewhere. A thousand pods that wait for one place
//! are not decided about a thousand times because one pod left.

use crate::filters::{Plugins, check_alone};
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::queue::{Help, Queue};
use crate::world::World;
use std::sync::Arc;

/// What may help a pod that waits.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event<'a> {
    /// A node came, or offers something else.
    Node(&'a str),
    /// A pod left a node, or takes less of it.
    Room(&'a str),
    /// A pod came to a node, or has other labels.
    Neighbour,
    Volumes,
}

impl Event<'_> {
    pub(super) fn is_for_anyone(self, queue: &Queue) -> bool {
        match self {
            Event::Node(_) | Event::Room(_) => queue.is_anyone_waiting(),
            Event::Neighbour => queue.is_anyone_waiting_for(Plugins::WIDE),
            Event::Volumes => queue.is_anyone_waiting_for(Plugins::VOLUMES),
        }
    }
}

/// Answers for one event, pod by pod.
pub(super) struct Helper<'a> {
    event: Event<'a>,
    world: &'a World,
    /// The event's node, with those on it that it surely helps.
    filled: Option<NodeState>,
}

impl<'a> Helper<'a> {
    pub(super) fn new(event: Event<'a>, world: &'a World) -> Helper<'a> {
        Helper { event, world, filled: None }
    }

    /// Whether the event helps a pod that these rejected. The most important pod is to be asked for first.
    pub(super) fn helps(&mut self, pod: &Arc<PodInfo>, by: Plugins) -> Help {
        match self.event {
            // It was something about the pod, or the node is still not for it.
            Event::Node(_) if by.is_within(Plugins::VOLUMES) && by != Plugins::default() => {
                Help::None
            }
            Event::Node(node) | Event::Room(node) if by.is_within(Plugins::LOCAL) => {
                self.fill(node, pod)
            }
            Event::Node(node) => match self.fits(node, pod) {
                true => Help::Perhaps,
                false => Help::None,
            },
            Event::Room(_) => Help::Perhaps,
            Event::Neighbour if by.meets(Plugins::WIDE) => Help::Perhaps,
            Event::Volumes if by.meets(Plugins::VOLUMES) => Help::Perhaps,
            Event::Neighbour | Event::Volumes => Help::None,
        }
    }

    fn fits(&self, node: &str, pod: &PodInfo) -> bool {
        self.world.node(node).is_some_and(|node| check_alone(pod, node).is_ok())
    }

    fn fill(&mut self, node: &str, pod: &Arc<PodInfo>) -> Help {
        if !self.fits(node, pod) {
            return Help::None;
        }
        if self.filled.is_none() {
            self.filled = self.world.node(node).cloned();
        }
        match &mut self.filled {
            Some(filled) if check_alone(pod, filled).is_ok() => {
                filled.add(Arc::clone(pod));
                Help::Surely
            }
            _ => Help::Perhaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters::Plugin;
    use crate::node::tests::node;
    use crate::pod::tests::asking;
    use crate::world::tests::world;
    use serde_json::json;

    /// The node has 4 CPUs, of which 3 are free.
    fn helped(event: Event, pods: &[(&str, &str)], by: Plugin) -> Vec<Help> {
        let there = asking("there", "1", "1Gi").on(&"n".into());
        let world = world([node("n", json!({}))], [there]);
        let mut helper = Helper::new(event, &world);
        let ask = |(name, cpu): &(&str, &str)| {
            helper.helps(&Arc::new(asking(name, cpu, "1Mi")), Plugins::of(&[by]))
        };
        pods.iter().map(ask).collect()
    }

    #[test]
    fn n_185_as_many_are_surely_helped_as_find_room_and_the_rest_back_off() {
        use Help::{None, Perhaps, Surely};
        use Plugin::{InterPodAffinity, NodeResourcesFit, VolumeBinding};
        let four = [("a", "2"), ("b", "2"), ("c", "1"), ("d", "4")];
        let fit = NodeResourcesFit;
        assert_eq!(helped(Event::Room("n"), &four, fit), [Surely, Perhaps, Surely, None]);
        assert_eq!(helped(Event::Node("n"), &four, fit), [Surely, Perhaps, Surely, None]);
        assert_eq!(helped(Event::Room("gone"), &four, fit), [None; 4]);
        assert_eq!(helped(Event::Room("n"), &four, InterPodAffinity), [Perhaps; 4]);
        assert_eq!(helped(Event::Neighbour, &four, fit), [None; 4]);
        assert_eq!(helped(Event::Neighbour, &four, InterPodAffinity), [Perhaps; 4]);
        assert_eq!(helped(Event::Volumes, &four, VolumeBinding), [Perhaps; 4]);
        assert_eq!(helped(Event::Node("n"), &four, VolumeBinding), [None; 4]);
    }

    #[test]
    fn n_185_nobody_is_asked_about_what_helps_nobody() {
        let mut queue = Queue::default();
        let pod = Arc::new(asking("p", "1", "1Gi"));
        let (key, now) = (pod.key.clone(), tokio::time::Instant::now());
        queue.put(pod, false, now);
        queue.take(now);
        assert!(!Event::Room("n").is_for_anyone(&queue));
        queue.rejected(&key, Plugins::of(&[Plugin::NodePorts]), now);
        assert!(Event::Room("n").is_for_anyone(&queue));
        assert!(!Event::Neighbour.is_for_anyone(&queue) && !Event::Volumes.is_for_anyone(&queue));
        queue.help(now, |_, _| Help::Surely);
        queue.take(now);
        queue.rejected(&key, Plugins::of(&[Plugin::PodTopologySpread]), now);
        assert!(Event::Neighbour.is_for_anyone(&queue));
        queue.remove(&key);
        assert!(!Event::Neighbour.is_for_anyone(&queue));
    }
}
