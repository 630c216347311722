//! Tables of pod statuses.

mod container_statuses;

use super::*;
use crate::fixture::{NOW, at, container, deleted, healthy, observed, pod};
use crate::observed::StartFailure;
use crate::probe::Outcome::Unknown;
use k8s_openapi::api::core::v1 as core;

const HOST: &[IpAddr] = &[IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 0, 5))];

fn facts(stage: WorkerState) -> Facts<'static> {
    Facts {
        now: at(NOW),
        host_ips: HOST,
        pod_ips: &[],
        runtime: "landfall",
        stage,
        verdict: None,
        conditions: &[],
    }
}

fn status_of(pod: &Pod, world: &Observed) -> PodStatus {
    status(pod, world, &facts(WorkerState::Syncing), &PodStatus::default())
}

fn ended(pod: &Pod, world: &Observed, previous: &PodStatus) -> PodStatus {
    status(pod, world, &facts(WorkerState::Terminated), previous)
}

fn failing(mut world: Observed, name: &str, reason: &str) -> Observed {
    let failure = StartFailure { reason: reason.into(), message: format!("no {name}") };
    world.failures.insert(name.into(), failure);
    world
}

fn of<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().find(|status| status.name == name).unwrap()
}

/// `waiting ErrImagePull`, `running`, `terminated Completed 0`
fn state_of(state: &Option<core::ContainerState>) -> String {
    let Some(state) = state else { return String::new() };
    let word = |text: &Option<String>| text.clone().unwrap_or_default();
    match (&state.waiting, &state.running, &state.terminated) {
        (Some(waiting), None, None) => format!("waiting {}", word(&waiting.reason)),
        (None, Some(_), None) => "running".into(),
        (None, None, Some(end)) => format!("terminated {} {}", word(&end.reason), end.exit_code),
        _ => panic!("N-81: not exactly one state: {state:?}"),
    }
}

fn condition<'a>(status: &'a PodStatus, type_: &str) -> &'a PodCondition {
    status.conditions.iter().flatten().find(|condition| condition.type_ == type_).unwrap()
}

/// `False ContainersNotReady containers with unready status: [app]`
fn word(status: &PodStatus, type_: &str) -> String {
    let condition = condition(status, type_);
    let parts =
        [Some(condition.status.clone()), condition.reason.clone(), condition.message.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn phase_of(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap()
}

#[test]
fn n_76_the_first_matching_row_decides_the_phase() {
    for (row, policy, spec, world, wanted) in [
        ("1", "Never", "i:one app", "one=exit1", "Failed"),
        ("1: may restart", "OnFailure", "i:one app", "one=exit1", "Pending"),
        ("2: no status", "Always", "i:one app", "", "Pending"),
        ("2: running", "Always", "i:one app", "one=run", "Pending"),
        ("4: init is done", "Always", "i:one app", "one=exit0", "Pending"),
        ("4", "Always", "app web", "app=run", "Pending"),
        ("4: never ran", "Always", "app", "app=created", "Pending"),
        ("5", "Always", "app web", "app=run web=run", "Running"),
        ("5: one has ended", "Never", "app web", "app=run web=exit1", "Running"),
        ("5: with init", "Always", "i:one app", "app=run one=exit0", "Running"),
        ("6", "Always", "app", "app=exit0", "Running"),
        ("6", "OnFailure", "app web", "app=exit0 web=exit1", "Running"),
        ("7", "Never", "app web", "app=exit0 web=exit0", "Succeeded"),
        ("7", "OnFailure", "app", "app=exit0", "Succeeded"),
        ("8", "Never", "app web", "app=exit0 web=exit1", "Failed"),
        ("9", "Always", "app", "app=unknown", "Pending"),
        (
            "T-NODE-39: the sidecar still runs",
            "Never",
            "s:proxy app",
            "app=exit0 proxy=run",
            "Running",
        ),
        ("T-NODE-40", "Never", "s:proxy app", "app=exit0 proxy=exit137", "Succeeded"),
        ("T-NODE-43", "Never", "app e:debug", "debug=exit1 app=exit0", "Succeeded"),
        ("T-NODE-43", "Never", "app e:debug", "debug=run app=exit0", "Succeeded"),
    ] {
        let status = status_of(&pod(policy, spec), &observed(world));
        assert_eq!(phase_of(&status), wanted, "N-76, row {row}: {policy} {spec:?} when {world:?}");
    }
}

#[test]
fn n_76_a_pod_is_pending_until_its_sidecars_or_its_regular_containers_have_started() {
    let mut pod = pod("Always", "s:proxy app");
    container(&mut pod, "proxy").startup_probe = Some(core::Probe::default());
    let phase = |world: Observed| phase_of(&status_of(&pod, &world)).to_owned();
    assert_eq!(phase(observed("proxy=run")), "Pending", "row 3");
    let restarting = healthy(observed("proxy#1=run proxy=exit1 app=run"), "proxy", [Unknown; 3]);
    assert_eq!(phase(restarting), "Running", "row 3: its regular container has started");
    // Until the startup probe succeeds, a pod in a new sandbox has not started.
    assert_eq!(phase(observed("[second] proxy=run app@s0=exit1")), "Pending", "row 3");
}

#[test]
fn n_76_and_204_a_crash_loop_is_running_and_a_failed_pull_is_pending() {
    let looping = failing(observed("app=exit1"), "app", "CrashLoopBackOff");
    let status = status_of(&pod("Always", "app"), &looping);
    assert_eq!(phase_of(&status), "Running");
    assert_eq!(state_of(&of(&status, "app").state), "waiting CrashLoopBackOff", "T-NODE-66");
    assert_eq!(state_of(&of(&status, "app").last_state), "terminated Error 1", "N-84");
    let pulling = failing(observed("app=run"), "web", "ImagePullBackOff");
    assert_eq!(phase_of(&status_of(&pod("Always", "app web"), &pulling)), "Pending", "N-204");
    // A failed init container that waits for its next attempt.
    let init = failing(observed("one=exit1"), "one", "CrashLoopBackOff");
    assert_eq!(phase_of(&status_of(&pod("Always", "i:one app"), &init)), "Pending");
}

#[test]
fn n_77_reason_and_message_are_reset_with_the_phase() {
    let previous = PodStatus {
        phase: Some("Pending".into()),
        reason: Some("SomeReason".into()),
        message: Some("some message".into()),
        ..Default::default()
    };
    let pod = pod("Always", "app");
    let now = |world: &str| status(&pod, &observed(world), &facts(WorkerState::Syncing), &previous);
    assert_eq!(now("").reason.as_deref(), Some("SomeReason"));
    assert_eq!((now("app=run").reason, now("app=run").message), (None, None));
}

#[test]
fn t_node_51_to_52_only_regular_containers_decide_the_final_phase() {
    for (rule, policy, spec, world, wanted) in [
        ("T-NODE-51", "Always", "app", "app=exit0", "Succeeded"),
        ("T-NODE-51", "Always", "app", "app=exit143", "Failed"),
        ("T-NODE-51", "OnFailure", "app web", "app=exit0 web=exit137", "Failed"),
        ("T-NODE-51, 40", "Always", "s:proxy app", "app=exit0 proxy=exit137", "Succeeded"),
        ("T-NODE-52", "Always", "app", "", "Failed"),
        ("T-NODE-52", "Always", "app", "[none]", "Failed"),
        ("T-NODE-52", "Always", "i:one app", "one=exit143", "Failed"),
        ("T-NODE-52", "Always", "i:one app", "one=exit0", "Failed"),
    ] {
        let pod = deleted(pod(policy, spec), 30);
        let status = ended(&pod, &observed(world), &PodStatus::default());
        assert_eq!(phase_of(&status), wanted, "{rule}: {policy} {spec:?} when {world:?}");
        assert_eq!(condition(&status, "Ready").status, "False", "T-NODE-54");
        let reason = if wanted == "Succeeded" { "PodCompleted" } else { "PodFailed" };
        assert_eq!(condition(&status, "Ready").reason.as_deref(), Some(reason), "T-NODE-54");
        assert_eq!(condition(&status, "ContainersReady").reason.as_deref(), Some(reason));
    }
}

#[test]
fn t_node_44_a_deletion_timestamp_changes_no_condition() {
    let going = deleted(pod("Always", "app"), 30);
    let status = status(
        &going,
        &observed("app=run"),
        &facts(WorkerState::Terminating),
        &PodStatus::default(),
    );
    assert_eq!(word(&status, "Ready"), "True");
    assert_eq!(phase_of(&status), "Running");
}

#[test]
fn t_edge_5_each_exit_is_reported_immediately() {
    let going = deleted(pod("Always", "app web"), 30);
    let world = observed("app=exit143 web=run");
    let status = status(&going, &world, &facts(WorkerState::Terminating), &PodStatus::default());
    assert_eq!(state_of(&of(&status, "app").state), "terminated Error 143", "T-NODE-45, 47");
    assert_eq!(phase_of(&status), "Running");
    let unready = "False ContainersNotReady containers with unready status: [app]";
    assert_eq!(word(&status, "Ready"), unready);
}

#[test]
fn t_node_92_a_static_pod_gets_no_terminal_phase_forced_on_it() {
    let mut pod = pod("Always", "app");
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    pod.metadata.annotations = Some([source].into());
    let status = ended(&pod, &observed("app=exit0"), &PodStatus::default());
    assert_eq!(phase_of(&status), "Running");
}

#[test]
fn t_node_57_a_terminal_phase_is_never_left() {
    let failed = PodStatus {
        phase: Some("Failed".into()),
        reason: Some("Evicted".into()),
        message: Some("low on memory".into()),
        ..Default::default()
    };
    let mut pod = pod("Never", "app");
    for stage in [WorkerState::Syncing, WorkerState::Terminating, WorkerState::Terminated] {
        let now = status(&pod, &observed("app=exit0"), &facts(stage), &failed);
        assert_eq!(phase_of(&now), "Failed");
        assert_eq!(now.reason.as_deref(), Some("Evicted"), "N-77");
    }
    pod.status = Some(failed);
    assert_eq!(phase_of(&status_of(&pod, &observed("app=exit0"))), "Failed", "as in the API");
}

#[test]
fn t_node_53_58_and_80_the_reason_of_a_termination_is_reported_when_nothing_runs() {
    let verdict = Verdict {
        reason: "Evicted".into(),
        message: "The node was low on resource: memory. ".into(),
        disruption: true,
    };
    let pod = pod("Always", "app");
    let before = status_of(&pod, &observed("app=run"));
    let facts = |stage| Facts { verdict: Some(&verdict), ..facts(stage) };
    let ending = status(&pod, &observed("app=run"), &facts(WorkerState::Terminating), &before);
    assert_eq!(phase_of(&ending), "Failed", "decided");
    let published = withheld(ending, &before);
    assert_eq!(phase_of(&published), "Running", "T-NODE-53");
    assert_eq!(published.reason, None);
    let types = |status: &PodStatus| -> Vec<String> {
        status.conditions.iter().flatten().map(|condition| condition.type_.clone()).collect()
    };
    assert!(!types(&published).contains(&"DisruptionTarget".into()), "T-NODE-58");
    let last = status(&pod, &observed("app=exit0"), &facts(WorkerState::Terminated), &published);
    assert_eq!(phase_of(&last), "Failed", "T-NODE-80: although its containers succeeded");
    assert_eq!(last.reason.as_deref(), Some("Evicted"));
    assert_eq!(last.message, Some(verdict.message.clone()));
    let disrupted = "True TerminationByKubelet The node was low on resource: memory. ";
    assert_eq!(word(&last, "DisruptionTarget"), disrupted);
    assert_eq!(withheld(last.clone(), &last), last, "a reported terminal phase stays");
}

#[test]
fn t_node_53_a_terminal_phase_stays_withheld_in_every_report() {
    let verdict = Verdict { reason: "Evicted".into(), message: "low".into(), disruption: true };
    let facts = Facts { verdict: Some(&verdict), ..facts(WorkerState::Terminating) };
    let pod = pod("Always", "app");
    let world = observed("app=run");
    let mut last = status_of(&pod, &world);
    for _ in 0..3 {
        last = withheld(status(&pod, &world, &facts, &last), &last);
        assert_eq!((phase_of(&last), last.reason.as_deref()), ("Running", None));
    }
}

#[test]
fn t_node_88_a_pod_that_succeeded_stays_succeeded_in_a_shutdown() {
    let verdict = Verdict {
        reason: REASON_SHUTDOWN.into(),
        message: "Pod was terminated in response to imminent node shutdown.".into(),
        disruption: true,
    };
    let facts = Facts { verdict: Some(&verdict), ..facts(WorkerState::Terminated) };
    let pod = pod("Always", "app");
    for (world, wanted) in [("app=exit0", "Succeeded"), ("app=exit143", "Failed")] {
        let status = status(&pod, &observed(world), &facts, &PodStatus::default());
        assert_eq!(phase_of(&status), wanted);
        assert_eq!(status.reason.as_deref(), Some("Terminated"));
    }
}

#[test]
fn t_node_77_a_deadline_counts_from_the_start_time() {
    let mut pod = pod("Always", "app");
    pod.spec.as_mut().unwrap().active_deadline_seconds = Some(5);
    let status = status_of(&pod, &observed("app=run"));
    assert_eq!(deadline(&pod, &status), Some(at(NOW + 5)));
    assert_eq!(deadline_exceeded(&pod, &status, at(NOW + 4)), None);
    let verdict = deadline_exceeded(&pod, &status, at(NOW + 5)).unwrap();
    assert_eq!(verdict.reason, "DeadlineExceeded");
    let message = "Pod was active on the node longer than the specified deadline";
    assert_eq!(verdict.message, message);
    let facts = Facts { verdict: Some(&verdict), ..facts(WorkerState::Syncing) };
    let late = super::status(&pod, &observed("app=run"), &facts, &status);
    assert!(is_terminal(&late) && !verdict.disruption);
}

#[test]
fn n_27_and_t_node_82_a_rejected_pod_has_a_reason_and_no_containers() {
    let pod = pod("Always", "app");
    let message =
        "Node didn't have enough resource: cpu, requested: 1000, used: 900, capacity: 940";
    let status = rejected(&pod, &facts(WorkerState::Syncing), "OutOfcpu", message);
    assert_eq!(phase_of(&status), "Failed");
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    assert_eq!(status.message.unwrap(), format!("Pod was rejected: {message}"));
    assert_eq!(status.container_statuses, None);
    assert_eq!(status.start_time, Some(Time(at(NOW))), "N-72");
    assert_eq!(status.observed_generation, Some(1));
}

#[test]
fn n_71_and_72_the_generation_is_updated_and_the_start_time_is_kept() {
    let mut pod = pod("Always", "app");
    let first = status_of(&pod, &observed(""));
    assert_eq!(first.start_time, Some(Time(at(NOW))));
    pod.metadata.generation = Some(4);
    let later = Facts { now: at(NOW + 60), ..facts(WorkerState::Syncing) };
    let second = status(&pod, &observed("app=run"), &later, &first);
    assert_eq!(second.start_time, first.start_time, "N-72");
    assert_eq!(second.observed_generation, Some(4), "N-71");
    let all = second.conditions.iter().flatten();
    assert!(all.into_iter().all(|condition| condition.observed_generation == Some(4)), "N-71");
    pod.metadata.generation = Some(3);
    let third = status(&pod, &observed("app=run"), &later, &second);
    assert_eq!(third.observed_generation, Some(4), "N-71: it never decreases");
}

/// NET-12: a pod of the host network has the node's addresses, and keeps the first ones.
#[test]
fn n_73_there_is_one_address_per_family_and_it_outlives_the_sandbox() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let (v4, v6, other) = (ip("10.0.0.7"), ip("fd00::7"), ip("10.0.0.8"));
    let pod = pod("Always", "app");
    let ips = |status: &PodStatus| -> Vec<String> {
        status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect()
    };
    let given = [v6, v4, other];
    let both = Facts { pod_ips: &given, ..facts(WorkerState::Syncing) };
    let status = super::status(&pod, &observed("app=run"), &both, &PodStatus::default());
    assert_eq!(ips(&status), ["10.0.0.7", "fd00::7"], "the node's family first");
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.7"));
    assert_eq!(status.host_ip.as_deref(), Some("192.168.0.5"));
    let gone = ended(&pod, &observed("[dead] app=exit0"), &status);
    assert_eq!(ips(&gone), ips(&status), "T-NODE-56");
    let sandbox_only = status_of(&pod, &observed("app=run"));
    assert_eq!(ips(&sandbox_only), ["10.0.0.7"], "the addresses of the sandbox");
    let mut host = pod.clone();
    host.spec.as_mut().unwrap().host_network = Some(true);
    let first = status_of(&host, &observed("[none]"));
    assert_eq!(ips(&first), ["192.168.0.5"], "N-73: from the first write");
    let moved = [ip("192.168.0.99")];
    let moved = Facts { host_ips: &moved, ..facts(WorkerState::Syncing) };
    let later = super::status(&host, &observed("[host]"), &moved, &first);
    assert_eq!(ips(&later), ["192.168.0.5"], "N-73: stable");
}

#[test]
fn n_74_n_205_statuses_are_sorted_and_conditions_in_order() {
    let mut pod = pod("Always", "i:zeta i:alpha web app e:two e:one");
    let foreign =
        PodCondition { type_: "example.com/x".into(), status: "True".into(), ..Default::default() };
    let previous = PodStatus { conditions: Some(vec![foreign]), ..Default::default() };
    pod.metadata.generation = None;
    let status = status(&pod, &observed(""), &facts(WorkerState::Syncing), &previous);
    let names = |list: &Option<Vec<ContainerStatus>>| -> Vec<String> {
        list.iter().flatten().map(|status| status.name.clone()).collect()
    };
    assert_eq!(names(&status.init_container_statuses), ["zeta", "alpha"], "spec order");
    assert_eq!(names(&status.container_statuses), ["app", "web"]);
    assert_eq!(names(&status.ephemeral_container_statuses), ["one", "two"]);
    let types: Vec<_> = status.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
    let wanted = [
        "example.com/x",
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ];
    assert_eq!(types, wanted);
}

#[test]
fn n_75_owned_conditions_are_overwritten_and_foreign_ones_preserved() {
    let lie = |type_: &str| PodCondition {
        type_: type_.into(),
        status: "True".into(),
        ..Default::default()
    };
    let previous = PodStatus {
        conditions: Some(vec![lie("Ready"), lie("DisruptionTarget"), lie("example.com/x")]),
        nominated_node_name: Some("n2".into()),
        ..Default::default()
    };
    let kept = [lie("PodResizePending")];
    let facts = Facts { conditions: &kept, ..facts(WorkerState::Syncing) };
    let status = status(&pod("Always", "app"), &observed(""), &facts, &previous);
    assert_eq!(condition(&status, "Ready").status, "False");
    assert_eq!(condition(&status, "DisruptionTarget").status, "True", "T-NODE-58");
    assert_eq!(condition(&status, "example.com/x").status, "True");
    assert_eq!(
        condition(&status, "PodResizePending").status,
        "True",
        "owned by another component of the node"
    );
    assert_eq!(status.nominated_node_name.as_deref(), Some("n2"));
}

#[test]
fn n_213_conditions_of_a_finished_resize_are_removed() {
    let condition_of = |type_: &str| PodCondition {
        type_: type_.into(),
        status: "True".into(),
        ..Default::default()
    };
    let conditions =
        Some(vec![condition_of("PodResizePending"), condition_of("PodResizeInProgress")]);
    let previous = PodStatus { conditions, ..Default::default() };
    let status =
        status(&pod("Always", "app"), &observed(""), &facts(WorkerState::Syncing), &previous);
    let types: Vec<&str> = status.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
    assert!(!types.iter().any(|type_| type_.starts_with("PodResize")), "{types:?}");
}

#[test]
fn n_78_conditions_name_the_containers_that_are_not_ready() {
    let init = "i:init1 i:init2 app";
    let incomplete = |names: &str| {
        format!("False ContainersNotInitialized containers with incomplete status: [{names}]")
    };
    for (spec, world, wanted) in [
        (init, "", incomplete("init1 init2")),
        (init, "init1=exit0", incomplete("init2")),
        (init, "init1=exit1", incomplete("init1 init2")),
        (init, "init2=exit0 init1=exit0", "True".into()),
        ("s:proxy app", "", incomplete("proxy")),
        ("s:proxy app", "proxy=run", "True".into()),
        ("s:proxy app", "app=run proxy=exit1", "True".into()),
        ("app", "", "True".into()),
    ] {
        let status = status_of(&pod("Always", spec), &observed(world));
        assert_eq!(word(&status, "Initialized"), wanted, "N-78: {spec:?} when {world:?}");
    }
    let unready =
        |names: &str| format!("False ContainersNotReady containers with unready status: [{names}]");
    for (policy, spec, world, wanted) in [
        ("Always", "web app", "", unready("web app")),
        ("Always", "web app", "app=run", unready("web")),
        ("Always", "s:proxy web", "", unready("proxy web")),
        ("Always", "i:one web", "", unready("web")),
        ("Always", "web app", "app=run web=run", "True".into()),
        ("Never", "app", "app=exit0", "False PodCompleted".into()),
        ("Never", "app", "app=exit1", "False PodFailed".into()),
    ] {
        let status = status_of(&pod(policy, spec), &observed(world));
        assert_eq!(word(&status, "ContainersReady"), wanted, "N-78: {spec:?} when {world:?}");
        assert_eq!(word(&status, "Ready"), wanted, "N-78: {spec:?} when {world:?}");
    }
    let succeeded = status_of(&pod("Never", "i:one app"), &observed("app=exit0 one=exit0"));
    assert_eq!(word(&succeeded, "Initialized"), "True PodCompleted");
    let failed = status_of(&pod("Never", "i:init1 app"), &observed("init1=exit1"));
    assert_eq!(word(&failed, "Initialized"), incomplete("init1"), "stays False in a Failed pod");
}

#[test]
fn n_78_a_pod_is_ready_to_start_containers_when_its_sandbox_has_a_network() {
    for (world, wanted) in [
        ("[none]", "False"),
        ("", "True"),
        ("[unconnected]", "False"),
        ("[dead] app=run", "False"),
        ("app=run", "True"),
    ] {
        let status = status_of(&pod("Always", "app"), &observed(world));
        assert_eq!(word(&status, "PodReadyToStartContainers"), wanted, "{world}");
        assert_eq!(word(&status, "PodScheduled"), "True");
    }
}

#[test]
fn n_78_an_initialized_pod_stays_initialized() {
    let pod = pod("Always", "i:one app");
    let first = status_of(&pod, &observed("one=exit0"));
    assert_eq!(word(&first, "Initialized"), "True");
    let again = status(&pod, &observed("[second] one=run"), &facts(WorkerState::Syncing), &first);
    assert_eq!(word(&again, "Initialized"), "True");
}

#[test]
fn n_79_readiness_gates_count_when_the_containers_are_ready() {
    let mut pod = pod("Always", "app");
    let gate = |name: &str| core::PodReadinessGate { condition_type: name.into() };
    pod.spec.as_mut().unwrap().readiness_gates = Some(vec![gate("a"), gate("b")]);
    let says = |conditions: &[(&str, &str)]| {
        let conditions = conditions.iter().map(|(type_, status)| PodCondition {
            type_: (*type_).into(),
            status: (*status).into(),
            ..Default::default()
        });
        let previous = PodStatus { conditions: Some(conditions.collect()), ..Default::default() };
        word(&status(&pod, &observed("app=run"), &facts(WorkerState::Syncing), &previous), "Ready")
    };
    let missing = "False ReadinessGatesNotReady corresponding condition of pod readiness gate \"a\" \
                   does not exist., the status of pod readiness gate \"b\" is not \"True\", but False";
    assert_eq!(says(&[("b", "False")]), missing);
    assert_eq!(says(&[("a", "True"), ("b", "True")]), "True");
}

#[test]
fn n_80_a_transition_time_changes_only_with_the_status() {
    let pod = pod("Always", "app");
    let first = status_of(&pod, &observed("app=run"));
    let later = Facts { now: at(NOW + 60), ..facts(WorkerState::Syncing) };
    let same = status(&pod, &observed("app=run"), &later, &first);
    assert_eq!(condition(&same, "Ready").last_transition_time, Some(Time(at(NOW))));
    let unready = status(&pod, &observed("app=exit1"), &later, &same);
    assert_eq!(condition(&unready, "Ready").last_transition_time, Some(Time(at(NOW + 60))));
    let scheduled = condition(&unready, "PodScheduled").last_transition_time.clone();
    assert_eq!(scheduled, Some(Time(at(NOW))));
}

#[test]
fn n_81_and_203_before_the_first_start_containers_wait_for_the_pod() {
    for (spec, world, name, wanted) in [
        ("app", "", "app", "waiting ContainerCreating"),
        // N-37: a sandbox that could not be made changes nothing here.
        ("app", "[none]", "app", "waiting ContainerCreating"),
        ("i:one app", "[none]", "app", "waiting PodInitializing"),
        ("i:one app", "", "one", "waiting PodInitializing"),
        ("i:one app", "one=run", "app", "waiting PodInitializing"),
        ("i:one app", "one=exit1", "app", "waiting PodInitializing"),
        ("i:one i:two app", "one=exit1", "two", "waiting PodInitializing"),
        ("app", "app=created", "app", "waiting ContainerCreating"),
        ("app e:debug", "app=run", "debug", "waiting ContainerCreating"),
    ] {
        let status = status_of(&pod("Always", spec), &observed(world));
        let shown = of(&status, name);
        assert_eq!(state_of(&shown.state), wanted, "N-81: {spec:?} when {world:?}");
        assert_eq!(shown.restart_count, 0, "N-81");
        assert!(!shown.ready);
    }
}
