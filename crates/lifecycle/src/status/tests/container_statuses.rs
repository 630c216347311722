//! Tables of container statuses.

use super::*;
use crate::observed::{Exit, Mounted, User};
use crate::probe::Outcome::{Failure, Success};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

#[test]
fn n_82_a_status_describes_the_running_container() {
    let mut pod = pod("Always", "app");
    let mount = |name: &str, path: &str, read_only, recursive: Option<&str>| core::VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only,
        recursive_read_only: recursive.map(Into::into),
        ..Default::default()
    };
    container(&mut pod, "app").volume_mounts = Some(vec![
        mount("data", "/data", None, None),
        mount("conf", "/conf", Some(true), None),
        mount("deep", "/deep", Some(true), Some("IfPossible")),
    ]);
    let mut world = observed("app#2=run app#1=exit3");
    world.containers[0].user = Some(User { uid: 1, gid: 2, groups: vec![3] });
    world.containers[0].mounts =
        vec![Mounted { target: "/deep".into(), recursive_read_only: true }];
    let status = status_of(&pod, &world);
    let app = of(&status, "app");
    assert_eq!(app.restart_count, 2);
    assert_eq!(app.container_id.as_deref(), Some("landfall://app-2"));
    assert_eq!(app.image, "docker.io/library/image:latest");
    assert_eq!(app.image_id, "docker.io/library/image@sha256:1234");
    assert_eq!((app.started, app.ready), (Some(true), true));
    assert_eq!(state_of(&app.state), "running");
    assert_eq!(state_of(&app.last_state), "terminated Error 3", "the previous instance only");
    let linux = app.user.as_ref().and_then(|user| user.linux.as_ref()).unwrap();
    assert_eq!((linux.uid, linux.gid, linux.supplemental_groups.clone()), (1, 2, Some(vec![3])));
    let mounts = app.volume_mounts.iter().flatten().map(|mount| {
        (mount.mount_path.as_str(), mount.read_only, mount.recursive_read_only.as_deref())
    });
    let wanted = [
        ("/data", None, None),
        ("/conf", Some(true), Some("Disabled")),
        ("/deep", Some(true), Some("Enabled")),
    ];
    assert_eq!(mounts.collect::<Vec<_>>(), wanted);
    assert_eq!(status_of(&pod, &observed("app=run e=run")).ephemeral_container_statuses, None);
}

#[test]
fn n_82_and_91_probes_decide_whether_a_container_is_started_and_ready() {
    let probe = || Some(core::Probe::default());
    // (startup probe?, readiness probe?), their results, (started, ready)
    for (has, world, says, wanted) in [
        ((false, false), "app=run", None, (true, true)),
        ((false, true), "app=run", None, (true, false)),
        ((false, true), "app=run", Some([Unknown, Failure, Success]), (true, false)),
        ((false, true), "app=run", Some([Unknown, Success, Success]), (true, true)),
        ((true, false), "app=run", None, (false, false)),
        ((true, false), "app=run", Some([Unknown, Unknown, Success]), (false, false)),
        ((true, false), "app=run", Some([Failure, Unknown, Success]), (false, false)),
        ((true, false), "app=run", Some([Success, Unknown, Success]), (true, true)),
        ((true, true), "app=run", Some([Success, Failure, Success]), (true, false)),
        ((true, true), "app=run", Some([Failure, Success, Success]), (false, false)),
        ((false, true), "app=exit0", Some([Success, Success, Success]), (false, false)),
        ((false, false), "app=created", None, (false, false)),
    ] {
        for spec in ["app", "s:app web"] {
            let mut pod = pod("Always", spec);
            container(&mut pod, "app").startup_probe = probe().filter(|_| has.0);
            container(&mut pod, "app").readiness_probe = probe().filter(|_| has.1);
            let world = observed(world);
            let world = says.map_or(world.clone(), |says| healthy(world, "app", says));
            let status = status_of(&pod, &world);
            let app = of(&status, "app");
            assert_eq!((app.started, app.ready), (Some(wanted.0), wanted.1), "{has:?} {says:?}");
        }
    }
}

#[test]
fn n_82_an_init_container_is_ready_when_it_has_succeeded() {
    for (world, started, ready) in [
        ("", false, false),
        ("one=run", true, false),
        ("one=exit0", false, true),
        ("one=exit1", false, false),
        ("one=oom0", false, false),
    ] {
        let status = status_of(&pod("Always", "i:one app"), &observed(world));
        let one = of(&status, "one");
        assert_eq!((one.started, one.ready), (Some(started), ready), "{world}");
    }
    let status = status_of(&pod("Always", "app e:debug"), &observed("debug=run app=run"));
    assert_eq!(of(&status, "debug").started, None, "N-82: absent for ephemeral containers");
}

#[test]
fn t_node_47_and_48_an_exit_has_a_code_a_reason_and_times() {
    for (world, wanted) in [
        ("app=exit0", "terminated Completed 0"),
        ("app=exit1", "terminated Error 1"),
        ("app=exit143", "terminated Error 143"),
        ("app=oom137", "terminated OOMKilled 137"),
    ] {
        let status = status_of(&pod("Never", "app"), &observed(world));
        let app = of(&status, "app");
        assert_eq!(state_of(&app.state), wanted);
        let end = app.state.as_ref().unwrap().terminated.as_ref().unwrap();
        let times = (end.started_at.clone(), end.finished_at.clone());
        assert_eq!(times, (Some(Time(at(10))), Some(Time(at(20)))));
        assert_eq!(end.container_id.as_deref(), Some("landfall://app-0"));
    }
}

#[test]
fn n_45_a_container_that_failed_to_start_has_the_zero_start_time() {
    let mut world = observed("app=exit128");
    let exit = Exit {
        code: 128,
        signal: None,
        reason: "StartError".into(),
        message: "no such file".into(),
        started_at: None,
        finished_at: at(20),
    };
    world.containers[0].state = State::Exited(exit);
    let status = status_of(&pod("Never", "app"), &world);
    let state = of(&status, "app").state.clone();
    assert_eq!(state_of(&state), "terminated StartError 128");
    let end = state.unwrap().terminated.unwrap();
    assert_eq!(end.started_at, Some(Time(Timestamp::UNIX_EPOCH)));
    assert_eq!(end.message.as_deref(), Some("no such file"));
}

#[test]
fn n_84_an_exited_container_is_waiting_only_after_a_failed_attempt() {
    let world = observed("app=exit1");
    let ended = status_of(&pod("Always", "app"), &world);
    assert_eq!(state_of(&of(&ended, "app").state), "terminated Error 1");
    let failed = status_of(&pod("Always", "app"), &failing(world.clone(), "app", "ErrImagePull"));
    let app = of(&failed, "app");
    assert_eq!(state_of(&app.state), "waiting ErrImagePull");
    assert_eq!(state_of(&app.last_state), "terminated Error 1");
    let message = app.state.as_ref().unwrap().waiting.as_ref().unwrap().message.as_deref();
    assert_eq!(message, Some("no app"), "N-45");
    // It will not be restarted, so it is not waiting.
    let over = status_of(&pod("Never", "app"), &failing(world, "app", "ErrImagePull"));
    assert_eq!(state_of(&of(&over, "app").state), "terminated Error 1");
    // A running container is not waiting, even if an earlier attempt failed.
    let runs =
        status_of(&pod("Always", "app"), &failing(observed("app=run"), "app", "ErrImagePull"));
    assert_eq!(state_of(&of(&runs, "app").state), "running", "N-47");
}

#[test]
fn n_203_during_initialization_regular_containers_wait_with_pod_initializing() {
    let pod = pod("Always", "i:one app");
    let shown = |world: &str| {
        let status = status_of(&pod, &failing(observed(world), "app", "CrashLoopBackOff"));
        state_of(&of(&status, "app").state)
    };
    assert_eq!(shown("[second] one=run"), "waiting PodInitializing");
    assert_eq!(shown("[second] one=exit1"), "waiting PodInitializing");
    assert_eq!(shown("one=exit0"), "waiting CrashLoopBackOff");
    assert_eq!(shown("app=exit1"), "waiting CrashLoopBackOff");
}

#[test]
fn n_85_a_lost_init_container_of_a_running_pod_is_assumed_to_have_completed() {
    let pod = pod("Always", "i:one app");
    let status = status_of(&pod, &observed("app=run"));
    let one = of(&status, "one");
    assert_eq!(state_of(&one.state), "terminated Completed 0");
    assert!(one.ready);
    let before = status_of(&pod, &observed("app=run one=exit0"));
    let kept =
        super::super::status(&pod, &observed("app=run"), &facts(WorkerState::Syncing), &before);
    assert_eq!(of(&kept, "one"), of(&before, "one"), "the previous status is more exact");
}

#[test]
fn n_86_a_container_that_will_not_restart_stays_terminated() {
    for (policy, world, kept) in [
        ("Never", "app=exit1", true),
        ("Never", "app=exit0", true),
        ("OnFailure", "app=exit0", true),
        ("OnFailure", "app=exit1", false),
        ("Always", "app=exit0", false),
    ] {
        let pod = pod(policy, "app web");
        let before = status_of(&pod, &observed(&format!("{world} web=run")));
        let world = observed("app#1=run web=run");
        let now = super::super::status(&pod, &world, &facts(WorkerState::Syncing), &before);
        let stayed = of(&now, "app") == of(&before, "app");
        assert_eq!(stayed, kept, "N-86: {policy}");
    }
}

#[test]
fn n_83_small_cpu_amounts_are_reported_as_requested() {
    let list = |cpu: &str| Some([("cpu".to_owned(), Quantity(cpu.into()))].into());
    for (asked, limit, read, read_limit, wanted, wanted_limit) in [
        ("1m", "5m", "2m", "10m", "1m", "5m"),
        ("100m", "200m", "100m", "200m", "100m", "200m"),
        ("100m", "200m", "50m", "400m", "50m", "400m"),
        ("1m", "5m", "3m", "11m", "3m", "11m"),
        ("1000m", "2", "1", "2000m", "1000m", "2"),
    ] {
        let mut pod = pod("Always", "app");
        let (requests, limits) = (list(asked), list(limit));
        let resources = core::ResourceRequirements { requests, limits, claims: None };
        container(&mut pod, "app").resources = Some(resources);
        let mut world = observed("app=run");
        let (requests, limits) = (list(read), list(read_limit));
        world.containers[0].resources =
            Some(core::ResourceRequirements { requests, limits, claims: None });
        let status = status_of(&pod, &world);
        let app = of(&status, "app");
        assert_eq!(app.allocated_resources, list(asked), "N-82");
        let shown = app.resources.as_ref().unwrap();
        assert_eq!(shown.requests, list(wanted), "N-83");
        assert_eq!(shown.limits, list(wanted_limit), "N-83");
        world.containers[0].state = State::Created;
        let status = status_of(&pod, &world);
        assert_eq!(of(&status, "app").resources.as_ref().unwrap().requests, list(asked), "N-82");
    }
}

#[test]
fn n_88_and_t_node_59_messages_share_twelve_kibibytes_and_times_are_whole_seconds() {
    for (spec, wanted) in [("app", 12288), ("app web db", 4096), ("i:one app web db", 3072)] {
        let mut world = observed("app=exit1");
        let fine = Timestamp::new(at(20).as_second(), 123_456_789).unwrap();
        if let State::Exited(exit) = &mut world.containers[0].state {
            exit.message = "x".repeat(20_000);
            exit.finished_at = fine;
        }
        let status = status_of(&pod("Never", spec), &world);
        let state = of(&status, "app").state.clone().unwrap();
        let end = state.terminated.unwrap();
        assert_eq!(end.message.unwrap().len(), wanted, "T-NODE-59: {spec}");
        assert_eq!(end.finished_at, Some(Time(at(20))), "N-88");
    }
}

#[test]
fn t_node_49_a_container_that_vanished_was_lost() {
    let pod = pod("Always", "app");
    let before = status_of(&pod, &observed("app#1=run"));
    let now = |pod: &Pod| {
        let world = observed("");
        super::super::status(pod, &world, &facts(WorkerState::Syncing), &before)
    };
    let status = now(&pod);
    let app = of(&status, "app");
    assert_eq!(state_of(&app.state), "waiting ContainerCreating");
    assert_eq!(state_of(&app.last_state), "terminated ContainerStatusUnknown 137");
    let last = app.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    let message = "The container could not be located when the pod was deleted.  The container used to be Running";
    assert_eq!(last.message.as_deref(), Some(message));
    assert_eq!(app.restart_count, 2);
    assert_eq!(phase_of(&status), "Running", "not Pending again");
    let again = super::super::status(&pod, &observed(""), &facts(WorkerState::Syncing), &status);
    assert_eq!(of(&again, "app").restart_count, 2, "counted once");
    assert_eq!(of(&now(&deleted(pod, 30)), "app").restart_count, 1, "not when it is deleted");
}

#[test]
fn t_node_49_a_container_without_any_record_was_lost() {
    let pod = deleted(pod("Always", "app"), 30);
    let before = status_of(&pod, &observed("app=run"));
    let world = observed("app=unknown");
    let status = super::super::status(&pod, &world, &facts(WorkerState::Terminating), &before);
    let state = &of(&status, "app").state;
    assert_eq!(state_of(state), "terminated ContainerStatusUnknown 137");
    let message = state.as_ref().unwrap().terminated.as_ref().unwrap().message.as_deref();
    assert_eq!(message, Some("The container could not be located when the pod was terminated"));
}

#[test]
fn t_node_50_in_the_final_status_every_container_that_should_have_run_is_terminated() {
    let unknown = "terminated ContainerStatusUnknown 137";
    for (spec, world, name, wanted) in [
        ("app", "", "app", unknown),
        ("app web", "web=exit0", "app", unknown),
        ("app web", "web=exit0", "web", "terminated Completed 0"),
        ("i:one app", "", "app", "waiting PodInitializing"),
        ("i:one app", "one=exit143", "app", "waiting PodInitializing"),
        ("i:one app", "one=exit0", "app", unknown),
        ("i:one i:two app", "two=exit1", "one", unknown),
        ("i:one i:two app", "one=exit1", "two", "waiting PodInitializing"),
    ] {
        let pod = deleted(pod("Always", spec), 30);
        let world = failing(observed(world), "app", "ImagePullBackOff");
        let status = ended(&pod, &world, &PodStatus::default());
        assert_eq!(state_of(&of(&status, name).state), wanted, "T-NODE-50: {spec:?}");
        assert_eq!(phase_of(&status), "Failed", "T-NODE-52");
    }
}

fn restart_all_on(pod: &mut core::Pod, name: &str, code: i32) {
    container(pod, name).restart_policy_rules = Some(vec![core::ContainerRestartRule {
        action: "RestartAllContainers".into(),
        exit_codes: Some(core::ContainerRestartRuleOnExitCodes {
            operator: "In".into(),
            values: Some(vec![code]),
        }),
    }]);
}

const RESTARTING: &str =
    "True RestartAllContainersStarted container exited with restart policy rule";

#[test]
fn t_node_68_a_restart_of_all_containers_is_reported() {
    let mut pod = pod("Never", "i:one app web");
    restart_all_on(&mut pod, "app", 88);
    let next = |world: &str, before: &PodStatus| {
        super::super::status(&pod, &observed(world), &facts(WorkerState::Syncing), before)
    };
    let runs = next("app=run web=run one=exit0", &PodStatus::default());
    assert_eq!(word(&runs, "AllContainersRestarting"), "False");
    let asked = next("app=exit88 web=run one=exit0", &runs);
    assert_eq!(word(&asked, "AllContainersRestarting"), RESTARTING);
    assert_eq!(phase_of(&asked), "Running", "the pod has not finished");
    let stopped = next("app=exit88 web=exit1 one=exit0", &asked);
    assert_eq!(
        phase_of(&stopped),
        "Running",
        "containers that are stopped for the restart have not failed"
    );
    let removed = next("", &asked);
    assert_eq!(word(&removed, "AllContainersRestarting"), "False");
    let past = |name: &str| state_of(&of(&removed, name).last_state);
    assert_eq!(past("app"), "terminated Error 88");
    assert_eq!(past("web"), "terminated RestartingAllContainers 137");
    assert_eq!(past("one"), "terminated Completed 0");
    for name in ["app", "web", "one"] {
        assert_eq!(of(&removed, name).restart_count, 1, "{name}");
    }
    let back = next("app#1=run web#1=run one#1=exit0", &removed);
    assert_eq!(phase_of(&back), "Running");
    assert_eq!(state_of(&of(&back, "app").state), "running");
    assert_eq!(of(&back, "one").restart_count, 1);
    let over = next("app#1=exit0 web#1=exit0 one#1=exit0", &back);
    assert_eq!(word(&over, "AllContainersRestarting"), "False PodCompleted");
}

#[test]
fn t_node_68_an_init_container_that_is_stopped_for_a_restart_of_all_has_not_failed() {
    let mut pod = pod("Never", "s:proxy i:one app");
    restart_all_on(&mut pod, "proxy", 88);
    let mut last = PodStatus::default();
    for world in [
        "proxy=run one=run",
        "proxy=exit88 one=run",
        "proxy=exit88 one=exit1",
        "proxy=exit88",
        "",
        "proxy#1=run",
        "proxy#1=run one#1=run",
        "proxy#1=run one#1=exit0 app=run",
    ] {
        last = super::super::status(&pod, &observed(world), &facts(WorkerState::Syncing), &last);
        assert!(!is_terminal(&last), "{world:?}: {last:#?}");
    }
    assert_eq!(phase_of(&last), "Running");
    assert_eq!(of(&last, "one").restart_count, 1);
}

fn any_state() -> impl Strategy<Value = Option<&'static str>> {
    prop::option::of(prop::sample::select(vec![
        "run", "exit0", "exit1", "oom0", "created", "unknown",
    ]))
}

prop_compose! {
    fn any_world()(
        states in prop::collection::vec(any_state(), 5),
        brackets in prop::sample::select(vec!["", "[none]", "[dead]", "[second]"]),
        failures in prop::collection::vec(any::<bool>(), 5),
    ) -> Observed {
        let names = ["debug", "web", "app", "proxy", "one"];
        let words = names.iter().zip(states);
        let words = words.filter_map(|(name, state)| Some(format!("{name}={}", state?)));
        let mut world = observed(&format!("{brackets} {}", words.collect::<Vec<_>>().join(" ")));
        for (name, _) in names.iter().zip(failures).filter(|(_, fails)| *fails) {
            world = failing(world, name, "ErrImagePull");
        }
        world
    }
}

fn any_policy() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["Always", "OnFailure", "Never"])
}

fn any_stage() -> impl Strategy<Value = WorkerState> {
    prop::sample::select(vec![
        WorkerState::Syncing,
        WorkerState::Terminating,
        WorkerState::Terminated,
    ])
}

const SPEC: &str = "i:one s:proxy app web e:debug";

proptest! {
    /// N-70: an unchanged status is not written: the same observation gives the same status.
    #[test]
    fn the_same_observation_gives_the_same_status(world in any_world(), policy in any_policy(), stage in any_stage()) {
        let pod = pod(policy, SPEC);
        let first = super::super::status(&pod, &world, &facts(stage), &PodStatus::default());
        let later = Facts { now: at(NOW + 60), ..facts(stage) };
        let second = super::super::status(&pod, &world, &later, &first);
        prop_assert_eq!(first, second);
    }

    /// N-81: each container has exactly one state, and a pod with a terminal phase is never Ready.
    #[test]
    fn every_status_is_consistent(world in any_world(), policy in any_policy(), stage in any_stage()) {
        let pod = pod(policy, SPEC);
        let status = super::super::status(&pod, &world, &facts(stage), &PodStatus::default());
        for name in ["one", "proxy", "app", "web", "debug"] {
            let shown = of(&status, name);
            prop_assert!(!state_of(&shown.state).is_empty());
            prop_assert!(!shown.ready || world.latest(name).is_some() || name == "one");
        }
        let terminal = is_terminal(&status);
        prop_assert!(!terminal || condition(&status, "Ready").status == "False", "T-NODE-54");
        prop_assert!(terminal || stage != WorkerState::Terminated, "T-NODE-52");
    }

    /// T-NODE-57: a terminal phase never changes, whatever is observed later.
    #[test]
    fn a_terminal_phase_never_changes(
        before in any_world(), after in any_world(), policy in any_policy(), stage in any_stage(),
    ) {
        let pod = pod(policy, SPEC);
        let first = super::super::status(&pod, &before, &facts(stage), &PodStatus::default());
        prop_assume!(is_terminal(&first));
        let second = super::super::status(&pod, &after, &facts(stage), &first);
        prop_assert_eq!(first.phase, second.phase);
    }

    /// T-NODE-53, T-INV-2: a withheld status is not terminal unless the previous one was.
    #[test]
    fn no_terminal_phase_is_reported_while_a_process_may_run(world in any_world(), policy in any_policy()) {
        let pod = pod(policy, SPEC);
        let before = PodStatus { phase: Some("Running".into()), ..Default::default() };
        let status = super::super::status(&pod, &world, &facts(WorkerState::Terminating), &before);
        prop_assert!(!is_terminal(&withheld(status, &before)));
    }
}
