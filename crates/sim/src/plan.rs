//! What a seed makes of a scenario: which pods there are, and what happens when.

use crate::chance::Chance;
use crate::scenario::{Scenario, Style, Trouble};
use crate::script::{Hook, OnTerm, Script};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) struct Deed {
    pub(crate) at: Duration,
    pub(crate) what: Act,
}

pub(crate) enum Act {
    Create(Box<Pod>),
    Delete {
        name: String,
        grace: Option<u32>,
    },
    /// In the middle of a step, or at once if it is 0.
    CrashAgent {
        host: usize,
        steps: u64,
        downtime: Duration,
    },
    /// When it next stops a container.
    CrashAtStop {
        host: usize,
        downtime: Duration,
    },
    CrashPlane {
        downtime: Duration,
    },
    CutPlane {
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
    Weather {
        host: usize,
        delay: u64,
        lost: u64,
        dropped: u64,
        lasts: Duration,
    },
    JumpClock {
        seconds: i64,
    },
}

/// In the order of time.
pub(crate) fn draw(scenario: &Scenario, seed: u64) -> Vec<Deed> {
    let mut chance = Chance::new(seed, 2);
    let span = scenario.span.as_millis() as u64;
    let mut deeds = Vec::new();
    let count = chance.between(scenario.pods.0, scenario.pods.1);
    match scenario.style {
        Style::Once => {
            for number in 0..count {
                let name = format!("p{number}");
                let born = chance.between(0, span / 3);
                let dies = chance.between(born, span * 9 / 10);
                life(&mut deeds, &mut chance, scenario, &name, born, dies);
            }
        }
        Style::Mix | Style::Identity | Style::Settle => {}
        Style::Churn => {
            for slot in 0..count {
                let (mut at, mut number) = (chance.between(0, 60_000), 0);
                while at < span {
                    let name = format!("s{slot}-{number}");
                    let dies = at + chance.between(60_000, 900_000);
                    life(&mut deeds, &mut chance, scenario, &name, at, dies.min(span));
                    at = dies + chance.between(0, 20_000);
                    number += 1;
                }
            }
        }
    }
    if !scenario.troubles.is_empty() {
        for _ in 0..chance.between(1, 4) {
            let trouble = *chance.pick(scenario.troubles);
            let at = Duration::from_millis(chance.between(0, span));
            deeds.push(Deed { at, what: trouble_of(&mut chance, scenario, trouble) });
        }
    }
    // Ties in the order they were drawn.
    deeds.sort_by_key(|deed| deed.at);
    deeds
}

fn life(
    deeds: &mut Vec<Deed>,
    chance: &mut Chance,
    scenario: &Scenario,
    name: &str,
    born: u64,
    dies: u64,
) {
    let at = Duration::from_millis;
    deeds.push(Deed { at: at(born), what: Act::Create(Box::new(pod(chance, name))) });
    let grace = match chance.below(10) {
        0 => Some(0),
        1 | 2 => Some(chance.between(1, 20) as u32),
        _ => None,
    };
    let name = name.to_owned();
    deeds.push(Deed { at: at(dies), what: Act::Delete { name: name.clone(), grace } });
    if chance.percent(scenario.second_deletes) {
        let later = dies + chance.between(0, 12_000);
        let grace = *chance.pick(&[Some(0), Some(1), Some(2), Some(5), Some(40), None]);
        deeds.push(Deed { at: at(later), what: Act::Delete { name, grace } });
    }
}

fn trouble_of(chance: &mut Chance, scenario: &Scenario, trouble: Trouble) -> Act {
    let host = chance.below(u64::from(scenario.nodes)) as usize;
    let lasts = chance.millis(100, 30_000);
    match trouble {
        Trouble::AgentCrash => {
            let steps = if chance.percent(30) { 0 } else { chance.between(1, 60) };
            Act::CrashAgent { host, steps, downtime: chance.millis(0, 20_000) }
        }
        Trouble::StopCrash => Act::CrashAtStop { host, downtime: chance.millis(0, 20_000) },
        Trouble::PlaneCrash => Act::CrashPlane { downtime: chance.millis(0, 15_000) },
        Trouble::PlaneCut => {
            let writes = chance.between(0, 30);
            Act::CutPlane { writes, downtime: chance.millis(0, 15_000) }
        }
        Trouble::Refused => Act::Refuse { host, lasts },
        Trouble::Silent => Act::Silence { host, lasts },
        Trouble::Torn => Act::Tear { host },
        Trouble::Weather => Act::Weather {
            host,
            delay: chance.between(0, 2000),
            lost: chance.between(0, 40),
            dropped: chance.between(0, 40),
            lasts,
        },
        Trouble::ClockJump => Act::JumpClock { seconds: chance.between(0, 7200) as i64 - 3600 },
    }
}

fn pod(chance: &mut Chance, name: &str) -> Pod {
    let grace = *chance.pick(&[1, 2, 3, 5, 8, 12, 30]);
    let policy = *chance.pick(&["Always", "Always", "Always", "Never", "OnFailure"]);
    let count = chance.between(1, 3);
    let containers: Vec<Value> =
        (0..count).map(|number| container(chance, &format!("c{number}"))).collect();
    let mut sidecars = Vec::new();
    if chance.percent(20) {
        for number in 0..chance.between(1, 2) {
            let mut sidecar = container(chance, &format!("side{number}"));
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

fn container(chance: &mut Chance, name: &str) -> Value {
    let term = match chance.below(100) {
        0..40 => OnTerm::Exit { after: Duration::ZERO, code: 0 },
        40..75 => {
            let code = *chance.pick(&[0, 143]);
            OnTerm::Exit { after: chance.millis(50, 9000), code }
        }
        _ => OnTerm::Ignore,
    };
    let start = if chance.percent(15) { chance.millis(200, 4000) } else { Duration::ZERO };
    let run = chance
        .percent(10)
        .then(|| (chance.millis(500, 40_000), if chance.percent(50) { 0 } else { 1 }));
    let script = Script { start, term, run };
    let image = match chance.percent(10) {
        true => format!("sim/slow:{}", chance.between(100, 8000)),
        false => "sim/here:1".to_owned(),
    };
    let mut container = json!({ "name": name, "image": image, "args": script.args() });
    if chance.percent(35) {
        let takes = (!chance.percent(20)).then(|| chance.millis(0, 7000));
        let code = if chance.percent(20) { 1 } else { 0 };
        let hook = Hook { takes, code };
        container["lifecycle"] = json!({ "preStop": { "exec": { "command": hook.command() } } });
    }
    container
}
