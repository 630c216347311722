//! Counts ready nodes per zone, and limits the rate at which nodes are tainted. Pure: time is an argument.

use super::ready;
use client::ObjectKey;
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Upstream: `NodeEvictionRate` 0.1 and `SecondaryNodeEvictionRate` 0.01 nodes a second.
const PACE: Duration = Duration::from_secs(10);
const SLOW_PACE: Duration = Duration::from_secs(100);

/// Upstream: `LargeClusterSizeThreshold`, `UnhealthyZoneThreshold` (in percent).
const LARGE: usize = 50;
const UNHEALTHY: usize = 55;

/// Up to this many lost nodes are not a failure of the zone. Upstream: `ComputeZoneState`.
const FEW: usize = 2;

#[derive(Debug, PartialEq, Clone, Copy)]
enum State {
    Normal,
    Partial,
    Full,
}

#[derive(Default)]
pub(super) struct Zones {
    nodes: BTreeMap<ObjectKey, (String, bool)>,
    zones: BTreeMap<String, Zone>,
    /// Zones in which no node is ready.
    full: usize,
}

#[derive(Default)]
struct Zone {
    ready: usize,
    lost: usize,
    next: Option<Instant>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Turn {
    Now,
    /// After this time, or when a node changes.
    Later(Option<Duration>),
}

impl Zone {
    /// Upstream: `ComputeZoneState`.
    fn state(&self) -> State {
        let all = self.ready + self.lost;
        match () {
            () if self.ready == 0 && self.lost > 0 => State::Full,
            () if self.lost > FEW && self.lost * 100 >= all * UNHEALTHY => State::Partial,
            () => State::Normal,
        }
    }

    fn pace(&self) -> Option<Duration> {
        match self.state() {
            State::Normal | State::Full => Some(PACE),
            State::Partial if self.ready + self.lost > LARGE => Some(SLOW_PACE),
            State::Partial => None,
        }
    }
}

impl Zones {
    /// Records the state of a node. True if that affects all nodes: the last ready node was lost, the first one came
    /// back, or the rate of a zone changed.
    pub(super) fn update(&mut self, key: &ObjectKey, node: Option<&Node>) -> bool {
        let now = node.map(|node| (zone_of(node), ready(node) == Some("True")));
        if self.nodes.get(key) == now.as_ref() {
            return false;
        }
        let all_lost = self.all_lost();
        let mut paced = false;
        if let Some((zone, was_ready)) = self.nodes.remove(key) {
            paced |= self.count(&zone, was_ready, false);
        }
        if let Some((zone, is_ready)) = now {
            paced |= self.count(&zone, is_ready, true);
            self.nodes.insert(key.clone(), (zone, is_ready));
        }
        paced || all_lost != self.all_lost()
    }

    /// Returns whether the rate of the zone changed.
    fn count(&mut self, name: &str, ready: bool, comes: bool) -> bool {
        let zone = self.zones.entry(name.to_owned()).or_default();
        let (before, pace) = (zone.state(), zone.pace());
        let counter = if ready { &mut zone.ready } else { &mut zone.lost };
        *counter = if comes { *counter + 1 } else { counter.saturating_sub(1) };
        let (after, new_pace) = (zone.state(), zone.pace());
        let empty = zone.ready + zone.lost == 0;
        self.full += usize::from(after == State::Full && before != State::Full);
        self.full -= usize::from(after != State::Full && before == State::Full);
        if empty {
            self.zones.remove(name);
        }
        pace.is_some() != new_pace.is_some()
    }

    /// No node is ready anywhere: the cause is probably this process.
    pub(super) fn all_lost(&self) -> bool {
        !self.zones.is_empty() && self.full == self.zones.len()
    }

    /// Whether this node may be tainted now, by the rate of its zone.
    pub(super) fn turn(&mut self, key: &ObjectKey, now: Instant) -> Turn {
        let zone = self.nodes.get(key).and_then(|(zone, _)| self.zones.get_mut(zone));
        let Some(zone) = zone else { return Turn::Later(None) };
        let Some(pace) = zone.pace() else { return Turn::Later(None) };
        match zone.next.map(|next| next.saturating_duration_since(now)) {
            Some(left) if !left.is_zero() => Turn::Later(Some(left)),
            _ => {
                zone.next = Some(now + pace);
                Turn::Now
            }
        }
    }
}

fn zone_of(node: &Node) -> String {
    let label = |key: &str| {
        let value = node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        value.cloned().unwrap_or_default()
    };
    format!("{}:{}", label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(zone: &str, ready: &str) -> Node {
        typed::from_value(json!({
            "metadata": { "labels": { "topology.kubernetes.io/zone": zone } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    fn zones(all: &[(&str, usize, usize)]) -> Zones {
        let mut zones = Zones::default();
        for (zone, ready, lost) in all {
            for number in 0..ready + lost {
                let status = if number < *ready { "True" } else { "Unknown" };
                let key = ObjectKey::cluster(&format!("{zone}{number}"));
                zones.update(&key, Some(&node(zone, status)));
            }
        }
        zones
    }

    #[tokio::test(start_paused = true)]
    async fn t_ctrl_40_nodes_are_tainted_at_a_limited_rate_and_not_if_most_are_lost() {
        let now = Instant::now();
        let seconds = |count| Turn::Later(Some(Duration::from_secs(count)));
        let cases = [
            ("one of three", zones(&[("a", 2, 1)]), seconds(10)),
            ("two of two, other zones ready", zones(&[("a", 0, 2), ("b", 1, 0)]), seconds(10)),
            ("most of a large zone", zones(&[("a", 20, 40)]), seconds(100)),
        ];
        for (what, mut zones, then) in cases {
            let key = ObjectKey::cluster("a0");
            assert_eq!(zones.turn(&key, now), Turn::Now, "{what}");
            assert_eq!(zones.turn(&key, now), then, "{what}");
            assert_eq!(zones.turn(&key, now + PACE * 10), Turn::Now, "{what}");
        }
        let mut most = zones(&[("a", 2, 3)]);
        assert_eq!(
            most.turn(&ObjectKey::cluster("a0"), now),
            Turn::Later(None),
            "most of a small zone"
        );
    }

    #[test]
    fn t_ctrl_40_no_node_is_tainted_if_none_is_ready() {
        let mut all = zones(&[("a", 0, 1), ("b", 0, 2)]);
        assert!(all.all_lost());
        let key = ObjectKey::cluster("b0");
        assert!(all.update(&key, Some(&node("b", "True"))), "affects all nodes");
        assert!(!all.all_lost());
        assert!(!all.update(&key, Some(&node("b", "True"))), "no change");
        assert!(all.update(&key, None) && all.all_lost());
        assert!(!Zones::default().all_lost());
    }
}
