//! Derives from a seed which pods a scenario has, and what happens when.

use crate::random::Random;
use crate::scenario::{Fault, Scenario, Style};
use crate::script::{Hook, OnTerm, Script};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) struct PlannedAction {
    pub(crate) at: Duration,
    pub(crate) what: Action,
}

pub(crate) enum Action {
    Create(Box<Pod>),
    Delete {
        name: String,
        grace: Option<u32>,
    },
    /// After this many steps, in the middle of the last one; 0: at once.
    CrashAgent {
        host: usize,
        steps: u64,
        downtime: Duration,
    },
    /// The agent crashes when it next stops a container.
    CrashAtStop {
        host: usize,
        downtime: Duration,
    },
    CrashControlPlane {
        downtime: Duration,
    },
    StopStoring {
        writes: u64,
        downtime: Duration,
    },
    Refuse {
        host: usize,
        lasts: Duration,
    },
    Silence {
        host: usize,
        lasts: Duration,
    },
    Tear {
        host: usize,
    },
    NetworkFaults {
        host: usize,
        delay: u64,
        lost_responses: u64,
        lost_requests: u64,
        lasts: Duration,
    },
    JumpClock {
        seconds: i64,
    },
}

/// All actions, ordered by time.
pub(crate) fn draw(scenario: &Scenario, seed: u64) -> Vec<PlannedAction> {
    let mut random = Random::new(seed, 2);
    let span = scenario.span.as_millis() as u64;
    let mut actions = Vec::new();
    let count = random.between(scenario.pods.0, scenario.pods.1);
    match scenario.style {
        Style::Once => {
            for number in 0..count {
                let name = format!("p{number}");
                let born = random.between(0, span / 3);
                let dies = random.between(born, span * 9 / 10);
                life(&mut actions, &mut random, scenario, &name, born, dies);
            }
        }
        Style::Mix | Style::Identity | Style::Settle | Style::Traffic => {}
        Style::Churn => {
            for slot in 0..count {
                let (mut at, mut number) = (random.between(0, 60_000), 0);
                while at < span {
                    let name = format!("s{slot}-{number}");
                    let dies = at + random.between(60_000, 900_000);
                    life(&mut actions, &mut random, scenario, &name, at, dies.min(span));
                    at = dies + random.between(0, 20_000);
                    number += 1;
                }
            }
        }
    }
    if !scenario.faults.is_empty() {
        for _ in 0..random.between(1, 4) {
            let fault = *random.pick(scenario.faults);
            let at = Duration::from_millis(random.between(0, span));
            actions.push(PlannedAction { at, what: fault_of(&mut random, scenario, fault) });
        }
    }
    // The sort is stable: actions at the same time stay in the order in which they were drawn.
    actions.sort_by_key(|action| action.at);
    actions
}

fn life(
    actions: &mut Vec<PlannedAction>,
    random: &mut Random,
    scenario: &Scenario,
    name: &str,
    born: u64,
    dies: u64,
) {
    let at = Duration::from_millis;
    actions.push(PlannedAction { at: at(born), what: Action::Create(Box::new(pod(random, name))) });
    let grace = match random.below(10) {
        0 => Some(0),
        1 | 2 => Some(random.between(1, 20) as u32),
        _ => None,
    };
    let name = name.to_owned();
    actions
        .push(PlannedAction { at: at(dies), what: Action::Delete { name: name.clone(), grace } });
    if random.percent(scenario.second_deletes) {
        let later = dies + random.between(0, 12_000);
        let grace = *random.pick(&[Some(0), Some(1), Some(2), Some(5), Some(40), None]);
        actions.push(PlannedAction { at: at(later), what: Action::Delete { name, grace } });
    }
}

/// An action that causes this fault.
pub(crate) fn fault_of(random: &mut Random, scenario: &Scenario, fault: Fault) -> Action {
    let host = random.below(u64::from(scenario.nodes)) as usize;
    let lasts = random.millis(100, 30_000);
    match fault {
        Fault::AgentCrash => {
            let steps = if random.percent(30) { 0 } else { random.between(1, 60) };
            Action::CrashAgent { host, steps, downtime: random.millis(0, 20_000) }
        }
        Fault::StopCrash => Action::CrashAtStop { host, downtime: random.millis(0, 20_000) },
        Fault::ControlPlaneCrash => {
            Action::CrashControlPlane { downtime: random.millis(0, 15_000) }
        }
        Fault::StorageStop => {
            let writes = random.between(0, 30);
            Action::StopStoring { writes, downtime: random.millis(0, 15_000) }
        }
        Fault::Refused => Action::Refuse { host, lasts },
        Fault::Silent => Action::Silence { host, lasts },
        Fault::Torn => Action::Tear { host },
        Fault::Network => Action::NetworkFaults {
            host,
            delay: random.between(0, 2000),
            lost_responses: random.between(0, 40),
            lost_requests: random.between(0, 40),
            lasts,
        },
        Fault::ClockJump => Action::JumpClock { seconds: random.between(0, 7200) as i64 - 3600 },
    }
}

fn pod(random: &mut Random, name: &str) -> Pod {
    let grace = *random.pick(&[1, 2, 3, 5, 8, 12, 30]);
    let policy = *random.pick(&["Always", "Always", "Always", "Never", "OnFailure"]);
    let count = random.between(1, 3);
    let containers: Vec<Value> =
        (0..count).map(|number| container(random, &format!("c{number}"))).collect();
    let mut sidecars = Vec::new();
    if random.percent(20) {
        for number in 0..random.between(1, 2) {
            let mut sidecar = container(random, &format!("side{number}"));
            sidecar["restartPolicy"] = "Always".into();
            sidecars.push(sidecar);
        }
    }
    let pod = json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": grace,
            "restartPolicy": policy,
            "initContainers": sidecars,
            "containers": containers,
        },
    });
    typed::from_value(pod).unwrap_or_default()
}

fn container(random: &mut Random, name: &str) -> Value {
    let term = match random.below(100) {
        0..40 => OnTerm::Exit { after: Duration::ZERO, code: 0 },
        40..75 => {
            let code = *random.pick(&[0, 143]);
            OnTerm::Exit { after: random.millis(50, 9000), code }
        }
        _ => OnTerm::Ignore,
    };
    let start = if random.percent(15) { random.millis(200, 4000) } else { Duration::ZERO };
    let run = random
        .percent(10)
        .then(|| (random.millis(500, 40_000), if random.percent(50) { 0 } else { 1 }));
    let script = Script { start, term, run, listen: None };
    let image = match random.percent(10) {
        true => format!("sim/slow:{}", random.between(100, 8000)),
        false => "sim/here:1".to_owned(),
    };
    let mut container = json!({ "name": name, "image": image, "args": script.args() });
    if random.percent(35) {
        let takes = (!random.percent(20)).then(|| random.millis(0, 7000));
        let code = if random.percent(20) { 1 } else { 0 };
        let hook = Hook { takes, code };
        container["lifecycle"] = json!({ "preStop": { "exec": { "command": hook.command() } } });
    }
    container
}
