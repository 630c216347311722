//! What can be simulated: a table of stories, each of which every seed tells differently.

use std::time::Duration;

#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    pub(crate) nodes: u16,
    /// At least and at most so many pods.
    pub(crate) pods: (u64, u64),
    /// Things go on happening for so long; after that everything heals and has to end.
    pub(crate) span: Duration,
    pub(crate) style: Style,
    /// What may go wrong. How often, the seed decides.
    pub(crate) troubles: &'static [Trouble],
    /// Percent of pods that are deleted a second time.
    pub(crate) second_deletes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Every pod lives once.
    Once,
    /// A pod that is gone is replaced by the next one.
    Churn,
    /// The seed chooses one of the others, [`MIXED`] of them.
    Mix,
    /// Told in `identity.rs`.
    Identity,
    /// Told in `settle.rs`.
    Settle,
}

impl Style {
    /// Where people make pods themselves, the controllers that would make them are left out: they would only
    /// watch, and ten thousand seeds would take twice as long.
    pub(crate) fn who(self) -> controllers::Who {
        match self {
            Style::Once | Style::Churn | Style::Mix => controllers::Who::OfPods,
            Style::Identity | Style::Settle => controllers::Who::All,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// An agent is killed, at some moment or in the middle of some step.
    AgentCrash,
    /// An agent is killed when it has decided to stop a container and before the signal is sent.
    StopCrash,
    /// The control plane is killed.
    PlaneCrash,
    /// The control plane is killed after exactly so many writes.
    PlaneCut,
    /// A node's connections are refused.
    Refused,
    /// A node's packets vanish.
    Silent,
    /// A node's watches break.
    Torn,
    /// Requests of a node come late, or never, or their answers are lost.
    Weather,
    /// Somebody sets the clock.
    ClockJump,
}

use Trouble::*;

/// So many of the first are short, and worth ten thousand seeds.
const MIXED: u64 = 5;

pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "endings",
        about: "pods of every temper are deleted, and nothing else goes wrong",
        nodes: 2,
        pods: (2, 4),
        span: Duration::from_secs(60),
        style: Style::Once,
        troubles: &[],
        second_deletes: 10,
    },
    Scenario {
        name: "hurry",
        about: "pods are deleted again while they end: sooner, later, by force",
        nodes: 2,
        pods: (2, 4),
        span: Duration::from_secs(60),
        style: Style::Once,
        troubles: &[ClockJump],
        second_deletes: 90,
    },
    Scenario {
        name: "crash",
        about: "agents and the control plane are killed at any step while pods end",
        nodes: 2,
        pods: (2, 4),
        span: Duration::from_secs(60),
        style: Style::Once,
        troubles: &[AgentCrash, AgentCrash, AgentCrash, PlaneCrash, PlaneCut],
        second_deletes: 20,
    },
    Scenario {
        name: "partition",
        about: "nodes are cut off, answers are lost, watches tear while pods end",
        nodes: 3,
        pods: (2, 4),
        span: Duration::from_secs(90),
        style: Style::Once,
        troubles: &[Refused, Silent, Torn, Torn, Weather, Weather],
        second_deletes: 20,
    },
    Scenario {
        name: "everything",
        about: "all of it at once",
        nodes: 3,
        pods: (3, 8),
        span: Duration::from_secs(90),
        style: Style::Once,
        troubles: &[
            AgentCrash, AgentCrash, PlaneCrash, PlaneCut, Refused, Silent, Torn, Weather, ClockJump,
        ],
        second_deletes: 40,
    },
    Scenario {
        name: "churn",
        about: "an hour of two hundred pods that come and go",
        nodes: 4,
        pods: (200, 200),
        span: Duration::from_secs(3600),
        style: Style::Churn,
        troubles: &[],
        second_deletes: 5,
    },
    Scenario {
        name: "identity",
        about: "pods with names of their own, nodes cut off for up to 400 s, people who force it",
        nodes: 3,
        pods: (0, 0),
        span: Duration::from_secs(600),
        style: Style::Identity,
        troubles: &[],
        second_deletes: 0,
    },
    Scenario {
        name: "settle",
        about: "workloads of every kind come, change and go; then an hour in which nothing is written",
        nodes: 2,
        pods: (0, 0),
        span: Duration::from_secs(90),
        style: Style::Settle,
        troubles: &[],
        second_deletes: 0,
    },
    Scenario {
        name: "unsent",
        about: "agents are killed between the wish to stop a container and its signal; clocks are set",
        nodes: 1,
        pods: (3, 6),
        span: Duration::from_secs(60),
        style: Style::Once,
        troubles: &[StopCrash, StopCrash, ClockJump],
        second_deletes: 10,
    },
    Scenario {
        name: "mix",
        about: "one of the first five; the seed chooses",
        nodes: 0,
        pods: (0, 0),
        span: Duration::ZERO,
        style: Style::Mix,
        troubles: &[],
        second_deletes: 0,
    },
];

/// The one that is measured and not judged ([`crate::scale`]): its name, and what it is about.
pub const SCALE: (&str, &str) =
    ("scale", "what a pod costs: Deployments are made, rolled and deleted; --nodes, --pods");

impl Scenario {
    pub fn find(name: &str) -> Option<&'static Scenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// What this seed tells.
    pub(crate) fn told_by(&'static self, seed: u64) -> &'static Scenario {
        match self.style {
            Style::Mix => &SCENARIOS[(seed % MIXED) as usize],
            Style::Once | Style::Churn | Style::Identity | Style::Settle => self,
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
