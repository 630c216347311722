//! The table of scenarios: what kind of cluster there is, and which faults may happen.

use std::time::Duration;

#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// One line for `landfall-sim --list`.
    pub about: &'static str,
    pub(crate) nodes: u16,
    /// The smallest and the largest number of pods.
    pub(crate) pods: (u64, u64),
    /// Actions and faults happen during this time; after it all faults end and all terminations have to finish.
    pub(crate) span: Duration,
    pub(crate) style: Style,
    /// Which faults may happen. The seed decides how many.
    pub(crate) faults: &'static [Fault],
    /// Percent of pods that are deleted a second time.
    pub(crate) second_deletes: u64,
    /// Pods have acknowledged drain.
    pub(crate) acknowledged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Every pod is created once and deleted.
    Once,
    /// A deleted pod is replaced by the next one.
    Churn,
    /// The seed chooses one of the first [`MIXED`] scenarios.
    Mix,
    /// See `identity.rs`.
    Identity,
    /// See `settle.rs`.
    Settle,
    /// See `service_traffic.rs`.
    Traffic,
}

impl Style {
    /// Scenarios in which users create pods run without the controllers of workloads: these would have nothing to do,
    /// and ten thousand seeds would take twice as long.
    pub(crate) fn controllers(self) -> controllers::ControllerSet {
        match self {
            Style::Once | Style::Churn | Style::Mix => controllers::ControllerSet::NodesAndPods,
            Style::Identity | Style::Settle | Style::Traffic => controllers::ControllerSet::All,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An agent crashes, at a random time or at a random step.
    AgentCrash,
    /// An agent crashes after it has decided to stop a container and before it sends the signal.
    StopCrash,
    /// The control plane crashes.
    ControlPlaneCrash,
    /// The control plane crashes after a given number of writes.
    StorageStop,
    /// A node's connections are refused.
    Refused,
    /// A node's packets are dropped.
    Silent,
    /// A node's watches break.
    Torn,
    /// Requests of a node are delayed or lost, or their responses are lost.
    Network,
    /// The wall clock jumps.
    ClockJump,
}

use Fault::*;

/// The number of scenarios at the beginning of the table that are short enough for ten thousand seeds.
const MIXED: u64 = 5;

/// What most scenarios have in common.
const BASE: Scenario = Scenario {
    name: "",
    about: "",
    nodes: 2,
    pods: (2, 4),
    span: Duration::from_secs(60),
    style: Style::Once,
    faults: &[],
    second_deletes: 0,
    acknowledged: false,
};

pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "endings",
        about: "all kinds of pods are deleted, without faults",
        second_deletes: 10,
        ..BASE
    },
    Scenario {
        name: "hurry",
        about: "pods are deleted again while they terminate: with less or more grace, by force",
        faults: &[ClockJump],
        second_deletes: 90,
        ..BASE
    },
    Scenario {
        name: "crash",
        about: "agents and the control plane crash at any step while pods terminate",
        faults: &[AgentCrash, AgentCrash, AgentCrash, ControlPlaneCrash, StorageStop],
        second_deletes: 20,
        ..BASE
    },
    Scenario {
        name: "partition",
        about: "nodes are disconnected, responses are lost, watches break while pods terminate",
        nodes: 3,
        span: Duration::from_secs(90),
        faults: &[Refused, Silent, Torn, Torn, Network, Network],
        second_deletes: 20,
        ..BASE
    },
    Scenario {
        name: "everything",
        about: "all of these faults at once",
        nodes: 3,
        pods: (3, 8),
        span: Duration::from_secs(90),
        faults: &[
            AgentCrash,
            AgentCrash,
            ControlPlaneCrash,
            StorageStop,
            Refused,
            Silent,
            Torn,
            Network,
            ClockJump,
        ],
        second_deletes: 40,
        ..BASE
    },
    Scenario {
        name: "churn",
        about: "two hundred pods that are replaced for an hour",
        nodes: 4,
        pods: (200, 200),
        span: Duration::from_secs(3600),
        style: Style::Churn,
        second_deletes: 5,
        ..BASE
    },
    Scenario {
        name: "identity",
        about: "StatefulSets, nodes disconnected for up to 400 s, users who force deletions",
        nodes: 3,
        pods: (0, 0),
        span: Duration::from_secs(600),
        style: Style::Identity,
        ..BASE
    },
    Scenario {
        name: "settle",
        about: "all kinds of workloads are created, changed and deleted; then nothing is written for an hour",
        pods: (0, 0),
        span: Duration::from_secs(90),
        style: Style::Settle,
        ..BASE
    },
    Scenario {
        name: "traffic",
        about: "Deployments behind Services change while clients send requests through every node; odd seeds have faults",
        nodes: 3,
        pods: (0, 0),
        span: Duration::from_secs(60),
        style: Style::Traffic,
        faults: &[Torn, Torn, Refused, Silent, Network, AgentCrash, ControlPlaneCrash],
        ..BASE
    },
    Scenario {
        name: "drain",
        about: "as traffic, with acknowledged drain: no stop signal before all nodes send requests elsewhere",
        nodes: 3,
        pods: (0, 0),
        span: Duration::from_secs(60),
        style: Style::Traffic,
        faults: &[Torn, Torn, Refused, Silent, Network, AgentCrash, ControlPlaneCrash],
        acknowledged: true,
        ..BASE
    },
    Scenario {
        name: "unsent",
        about: "agents crash between the decision to stop a container and its signal; clocks jump",
        nodes: 1,
        pods: (3, 6),
        faults: &[StopCrash, StopCrash, ClockJump],
        second_deletes: 10,
        ..BASE
    },
    Scenario {
        name: "mix",
        about: "one of the first five; the seed chooses",
        style: Style::Mix,
        ..BASE
    },
];

/// Name and description of the scenario that is measured and not checked ([`crate::scale`]).
pub const SCALE: (&str, &str) = (
    "scale",
    "measures what a pod costs: Deployments are created, rolled out and deleted; --nodes, --pods",
);

impl Scenario {
    pub fn find(name: &str) -> Option<&'static Scenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// The scenario that this seed runs.
    pub(crate) fn resolve(&'static self, seed: u64) -> &'static Scenario {
        match self.style {
            Style::Mix => &SCENARIOS[(seed % MIXED) as usize],
            Style::Once | Style::Churn | Style::Identity | Style::Settle | Style::Traffic => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scenario_is_found_by_its_name() {
        let names: BTreeSet<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
        assert!(names.iter().all(|name| Scenario::find(name).is_some()));
    }
}
