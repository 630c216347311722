//! Pods and observations as one line of text each, for test tables.
//!
//! A spec: `i:setup s:proxy app e:debug` is an init container, a sidecar, a regular and an ephemeral one.
//! An observation, newest first: `app#1=run app=exit1` is a second instance after a first that failed.
//! The sandbox is usable unless a word in brackets says otherwise.

use crate::observed::{Container, Exit, Health, Observed, Sandbox, State, fingerprint};
use crate::probe::Outcome;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// Everything happens at second 100, unless a test says otherwise.
pub(crate) const NOW: i64 = 100;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

pub(crate) fn pod(policy: &str, spec: &str) -> core::Pod {
    let named = |name: &str| core::Container {
        name: name.into(),
        image: Some("image".into()),
        ..Default::default()
    };
    let (mut init, mut regular, mut ephemeral) = (Vec::new(), Vec::new(), Vec::new());
    for word in spec.split_whitespace() {
        match word.split_once(':') {
            Some(("i", name)) => init.push(named(name)),
            Some(("s", name)) => {
                let restart_policy = Some("Always".into());
                init.push(core::Container { restart_policy, ..named(name) });
            }
            Some(("e", name)) => {
                let name = name.into();
                ephemeral.push(core::EphemeralContainer { name, ..Default::default() });
            }
            _ => regular.push(named(word)),
        }
    }
    core::Pod {
        metadata: ObjectMeta {
            name: Some("web".into()),
            namespace: Some("shop".into()),
            uid: Some("0a1b".into()),
            generation: Some(1),
            ..Default::default()
        },
        spec: Some(core::PodSpec {
            restart_policy: Some(policy.into()),
            termination_grace_period_seconds: Some(30),
            init_containers: Some(init).filter(|list| !list.is_empty()),
            containers: regular,
            ephemeral_containers: Some(ephemeral).filter(|list| !list.is_empty()),
            ..Default::default()
        }),
        status: None,
    }
}

pub(crate) fn deleted(mut pod: core::Pod, grace: i64) -> core::Pod {
    pod.metadata.deletion_timestamp = Some(Time(at(NOW + grace)));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

/// The container of that name, for changes.
pub(crate) fn container<'a>(pod: &'a mut core::Pod, name: &str) -> &'a mut core::Container {
    let spec = pod.spec.as_mut().unwrap();
    let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    all.into_iter().find(|container| container.name == name).unwrap()
}

pub(crate) fn observed(text: &str) -> Observed {
    let mut observed = Observed::default();
    let sandbox = |attempt: u32, ready: bool| Sandbox {
        id: format!("s{attempt}"),
        attempt,
        ready,
        host_network: false,
        addresses: vec!["10.0.0.7".parse().unwrap()],
    };
    let (brackets, words) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap(),
        None => ("", text),
    };
    observed.sandboxes = match brackets {
        "" => vec![sandbox(0, true)],
        "none" => vec![],
        "dead" => vec![sandbox(0, false)],
        "two" => vec![sandbox(1, true), sandbox(0, true)],
        "second" => vec![sandbox(1, true), sandbox(0, false)],
        "host" => vec![Sandbox { host_network: true, ..sandbox(0, true) }],
        "unconnected" => vec![Sandbox { addresses: vec![], ..sandbox(0, true) }],
        other => panic!("no such sandbox: {other}"),
    };
    let newest = observed.sandboxes.first().map_or("s0", |sandbox| &sandbox.id).to_owned();
    observed.containers = words.split_whitespace().map(|word| one(word, &newest)).collect();
    observed
}

/// `name[#attempt][@sandbox]=state`
fn one(word: &str, newest: &str) -> Container {
    let (who, state) = word.split_once('=').unwrap();
    let (who, sandbox) = who.split_once('@').unwrap_or((who, newest));
    let (name, attempt) = who.split_once('#').unwrap_or((who, "0"));
    Container {
        id: format!("{name}-{attempt}"),
        name: name.into(),
        sandbox: sandbox.into(),
        attempt: attempt.parse().unwrap(),
        state: parse_state(state),
        image: "docker.io/library/image:latest".into(),
        image_id: "docker.io/library/image@sha256:1234".into(),
        fingerprint: fingerprint(name, Some("image")),
        resources: None,
        user: None,
        mounts: vec![],
    }
}

/// `run`, `created`, `unknown`, `exit1`, `oom0`. Runs begin at second 10 and end at second 20.
fn parse_state(text: &str) -> State {
    let exit = |code: &str, reason: &str| {
        State::Exited(Exit {
            code: code.parse().unwrap(),
            signal: None,
            reason: reason.into(),
            message: String::new(),
            started_at: Some(at(10)),
            finished_at: at(20),
        })
    };
    match text {
        "run" => State::Running { started_at: at(10) },
        "created" => State::Created,
        "unknown" => State::Unknown,
        text => match text.strip_prefix("oom") {
            Some(code) => exit(code, "OOMKilled"),
            None => exit(text.strip_prefix("exit").unwrap(), ""),
        },
    }
}

/// Adds probe results for the newest instance.
pub(crate) fn healthy(mut observed: Observed, name: &str, words: [Outcome; 3]) -> Observed {
    let [startup, readiness, liveness] = words;
    let container_id = observed.latest(name).unwrap().id.clone();
    let health = Health { container_id, startup, readiness, liveness };
    observed.health.insert(name.into(), health);
    observed
}
