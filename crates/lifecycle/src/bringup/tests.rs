//! Tables of plans, and properties of every plan.

use super::*;
use crate::fixture::{NOW, at, container, deleted, healthy, observed, pod};
use crate::observed::{Exit, State};
use crate::probe::Outcome::{Failure, Success, Unknown};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

/// A plan as one line.
fn summary(plan: &Plan) -> String {
    let mut words = Vec::new();
    match plan.end_all {
        Some(EndAll::Done) => words.push("done".into()),
        Some(EndAll::Sandbox) => words.push("end all".into()),
        None => {}
    }
    words.extend(plan.reset.iter().map(|reset| format!("reset {}", reset.id)));
    words.extend(plan.kill.iter().map(|kill| format!("kill {}", kill.id)));
    if let Some(sandbox) = &plan.sandbox {
        let changed = if sandbox.changed { " changed" } else { "" };
        words.push(format!("sandbox {}{changed}", sandbox.attempt));
    }
    words.extend(plan.start.iter().map(|start| format!("start {}#{}", start.name, start.attempt)));
    words.extend(plan.waiting.iter().map(|waiting| format!("wait {}", waiting.name)));
    words.join(", ")
}

fn decide(pod: &core::Pod, observed: &Observed) -> Plan {
    plan(pod, observed, &Backoffs::default(), at(NOW))
}

fn check(rule: &str, policy: &str, spec: &str, world: &str, wanted: &str) {
    let plan = decide(&pod(policy, spec), &observed(world));
    assert_eq!(summary(&plan), wanted, "{rule}: {policy} {spec:?} when {world:?}");
}

#[test]
fn n_36_a_new_sandbox_is_created_if_there_is_no_usable_one() {
    let rule = "N-36";
    check(rule, "Always", "app", "[none]", "sandbox 0, start app#0");
    check(rule, "Always", "app", "app=run", "");
    check(rule, "Always", "app", "[two] app=run", "end all, sandbox 2 changed, start app#1");
    check(rule, "Always", "app", "[dead] app=run", "end all, sandbox 1 changed, start app#1");
    check(rule, "Always", "app", "[host] app=run", "end all, sandbox 1 changed, start app#1");
    check(rule, "Always", "app", "[unconnected]", "end all, sandbox 1 changed, start app#0");
    // Init containers run again, and restart counts continue.
    let changed = "end all, sandbox 1 changed, start one#1";
    check(rule, "Always", "i:one i:two app", "[dead] app=run two=exit0 one=exit0", changed);
    check(rule, "Always", "i:one i:two app", "[second] app@s0=exit137 one@s0=exit0", "start one#1");
    // No new sandbox if no container would start in it.
    check(rule, "Never", "app", "[dead] app=exit137", "done");
    check(rule, "Never", "app", "[dead]", "end all, sandbox 1 changed, start app#0");
    check(rule, "OnFailure", "app web", "[dead] app=exit0 web=exit0", "done");
    let failed_only = "end all, sandbox 1 changed, start web#1";
    check(rule, "OnFailure", "app web", "[dead] app=exit0 web=exit1", failed_only);
}

#[test]
fn n_36_a_pod_on_the_host_network_needs_no_address() {
    let mut host = pod("Always", "app");
    host.spec.as_mut().unwrap().host_network = Some(true);
    let mut world = observed("[host] app=run");
    world.sandboxes[0].addresses.clear();
    assert_eq!(summary(&decide(&host, &world)), "");
}

#[test]
fn n_38_init_containers_run_one_at_a_time_until_they_succeed() {
    let rule = "N-38";
    let spec = "i:one i:two app";
    check(rule, "Always", spec, "[none]", "sandbox 0, start one#0");
    check(rule, "Always", spec, "", "start one#0");
    check(rule, "Always", spec, "one=run", "");
    check(rule, "Always", spec, "one=exit0", "start two#0");
    check(rule, "Always", spec, "two=run one=exit0", "");
    check(rule, "Always", spec, "two=exit0 one=exit0", "start app#0");
    // The last one decides, because the records of earlier ones may be gone.
    check(rule, "Always", spec, "two=exit0", "start app#0");
    check(rule, "Always", spec, "app=run", "");
    check(rule, "Always", spec, "app=exit0", "start app#1");
    // Failures.
    check(rule, "Always", spec, "one=exit1", "start one#1");
    check(rule, "OnFailure", spec, "one=exit1", "start one#1");
    check("N-38, T-NODE-42", "Never", spec, "one=exit1", "done");
    check("N-38, T-NODE-42: OOM", "Never", spec, "one=oom0", "done");
    check("N-38: OOM", "OnFailure", spec, "one=oom0", "start one#1");
    check(rule, "Always", spec, "one=created", "start one#1");
    check(rule, "Always", spec, "one=unknown", "kill one-0, start one#1");
    check(rule, "Never", spec, "one=unknown", "done");
}

#[test]
fn n_39_init_containers_do_not_run_again_in_a_running_pod_unless_they_are_sidecars() {
    check("N-39", "Always", "i:one app", "app=exit1 one=exit0", "start app#1");
    let mut changed = pod("Always", "i:one s:proxy app");
    container(&mut changed, "one").image = Some("another".into());
    let world = observed("app=run proxy=run one=exit0");
    assert_eq!(summary(&decide(&changed, &world)), "", "N-39: a plain init container");
    container(&mut changed, "proxy").image = Some("another".into());
    let plan = decide(&changed, &world);
    assert_eq!(summary(&plan), "kill proxy-0, start proxy#1", "N-39: a sidecar");
    assert_eq!(plan.kill[0].message, "Init container proxy definition changed");
}

#[test]
fn n_40_a_sidecar_starts_in_spec_order_and_is_restarted() {
    let rule = "N-40";
    let spec = "i:one s:proxy i:two app";
    check(rule, "Never", spec, "one=exit0", "start proxy#0");
    check(rule, "Never", spec, "proxy=run one=exit0", "start two#0");
    check(rule, "Never", spec, "two=run proxy=run one=exit0", "");
    check(rule, "Never", spec, "two=run proxy=exit1 one=exit0", "start proxy#1");
    check(rule, "Never", spec, "two=run one=exit0", "start proxy#0");
    check(rule, "Never", spec, "two=exit0 proxy=run", "start app#0");
    check(rule, "Never", spec, "two=exit0 proxy=exit0", "start proxy#1, start app#0");
    check(rule, "Never", spec, "app=run proxy=exit0", "start proxy#1");
    check(rule, "Never", spec, "app=run proxy=unknown", "kill proxy-0, start proxy#1");
    check("N-40, T-NODE-39", "Never", spec, "app=exit0 proxy=run", "done");
    check("N-40, T-NODE-39", "Never", spec, "app=exit0 proxy=exit0", "done");
    // The last one: regular containers wait for it.
    check(rule, "Always", "s:proxy app", "proxy=exit1", "start proxy#1");
    check(rule, "Always", "s:proxy app", "proxy=run", "start app#0");
}

#[test]
fn n_40_the_next_container_waits_until_a_sidecar_is_started() {
    let mut pod = pod("Always", "s:proxy app");
    container(&mut pod, "proxy").startup_probe = Some(core::Probe::default());
    container(&mut pod, "proxy").readiness_probe = Some(core::Probe::default());
    let world = observed("proxy=run");
    assert_eq!(summary(&decide(&pod, &world)), "", "no result yet");
    let started = healthy(world.clone(), "proxy", [Success, Failure, Success]);
    assert_eq!(summary(&decide(&pod, &started)), "start app#0", "does not wait for readiness");
    let failed = healthy(world, "proxy", [Failure, Failure, Success]);
    let plan = decide(&pod, &failed);
    assert_eq!(summary(&plan), "kill proxy-0, start proxy#1");
    assert_eq!(plan.kill[0].message, "Init container proxy failed startup probe", "T-NODE-17");
}

#[test]
fn n_41_regular_containers_start_in_spec_order_and_do_not_stop_each_other() {
    check("N-41", "Always", "web app db", "", "start web#0, start app#0, start db#0");
    let plan = decide(&pod("Always", "i:one s:proxy app"), &observed("proxy=run one=exit0"));
    assert!(plan.start.iter().all(|start| !start.failure_ends_pass()), "N-41");
    let plan = decide(&pod("Always", "i:one app"), &observed(""));
    assert!(plan.start[0].failure_ends_pass(), "N-38");
}

#[test]
fn n_42_ephemeral_containers_start_immediately_and_only_once() {
    let rule = "N-42";
    check(rule, "Always", "i:one app e:debug", "one=run", "start debug#0");
    check(rule, "Always", "app e:debug", "app=run", "start debug#0");
    check(rule, "Always", "app e:debug", "debug=exit1 app=run", "");
    check(rule, "Always", "app e:debug", "debug=created app=run", "");
}

#[test]
fn n_43_the_restart_policy_decides_whether_an_exited_container_restarts() {
    for (state, always, on_failure, never) in [
        ("", "start app#0", "start app#0", "start app#0"),
        ("app=created", "start app#1", "start app#1", "start app#1"),
        (
            "app=unknown",
            "kill app-0, start app#1",
            "kill app-0, start app#1",
            "kill app-0, start app#1",
        ),
        ("app=exit0", "start app#1", "done", "done"),
        ("app=exit1", "start app#1", "start app#1", "done"),
    ] {
        check("N-43, T-NODE-64", "Always", "app", state, always);
        check("N-43, T-NODE-64", "OnFailure", "app", state, on_failure);
        check("N-43, T-NODE-64", "Never", "app", state, never);
    }
    check("N-43: one of two", "Never", "app web", "app=exit1 web=run", "");
}

#[test]
fn n_43_policy_and_rules_of_a_container_override_those_of_the_pod() {
    let rule = |action: &str, operator: &str, codes: &[i32]| core::ContainerRestartRule {
        action: action.into(),
        exit_codes: Some(core::ContainerRestartRuleOnExitCodes {
            operator: operator.into(),
            values: Some(codes.to_vec()),
        }),
    };
    for (story, pods, own, rules, state, wanted) in [
        ("own policy", "Always", "Never", vec![], "app=exit1", "done"),
        ("own policy", "Never", "OnFailure", vec![], "app=exit1", "start app#1"),
        ("In", "Never", "Never", vec![rule("Restart", "In", &[42])], "app=exit42", "start app#1"),
        ("In", "Never", "Never", vec![rule("Restart", "In", &[42])], "app=exit1", "done"),
        (
            "NotIn",
            "Never",
            "Never",
            vec![rule("Restart", "NotIn", &[1])],
            "app=exit2",
            "start app#1",
        ),
        ("NotIn", "Never", "Never", vec![rule("Restart", "NotIn", &[1])], "app=exit1", "done"),
        (
            "first match",
            "Never",
            "Never",
            vec![rule("Restart", "In", &[1]), rule("RestartAllContainers", "In", &[1])],
            "app=exit1",
            "start app#1",
        ),
    ] {
        let mut pod = pod(pods, "app");
        container(&mut pod, "app").restart_policy = Some(own.into());
        container(&mut pod, "app").restart_policy_rules = Some(rules);
        assert_eq!(summary(&decide(&pod, &observed(state))), wanted, "N-43: {story}");
    }
}

#[test]
fn n_43_after_a_failed_probe_the_policy_decides_and_not_the_rules() {
    for (policy, own, wanted) in [
        ("Always", None, "kill app-0, start app#1"),
        ("OnFailure", None, "kill app-0, start app#1"),
        ("Never", None, "kill app-0"),
        ("Never", Some("Always"), "kill app-0, start app#1"),
        ("Always", Some("Never"), "kill app-0"),
    ] {
        let mut pod = pod(policy, "app");
        container(&mut pod, "app").restart_policy = own.map(Into::into);
        container(&mut pod, "app").restart_policy_rules = Some(vec![core::ContainerRestartRule {
            action: "Restart".into(),
            exit_codes: Some(core::ContainerRestartRuleOnExitCodes {
                operator: "NotIn".into(),
                values: Some(vec![]),
            }),
        }]);
        let world = healthy(observed("app=run"), "app", [Success, Failure, Failure]);
        assert_eq!(summary(&decide(&pod, &world)), wanted, "N-43: {policy} {own:?}");
    }
}

#[test]
fn t_node_17_and_18_a_kill_has_a_message_and_the_grace_period_of_the_probe() {
    let probe = |grace| {
        let termination_grace_period_seconds = grace;
        Some(core::Probe { termination_grace_period_seconds, ..Default::default() })
    };
    let restarted = "Container app failed liveness probe, will be restarted";
    for (policy, spec, words, message, grace) in [
        ("Always", "app", [Success, Success, Failure], restarted, 5),
        ("Never", "app", [Success, Success, Failure], "Container app failed liveness probe", 5),
        (
            "Always",
            "app",
            [Failure, Failure, Success],
            "Container app failed startup probe, will be restarted",
            30,
        ),
        (
            "Always",
            "s:app web",
            [Success, Success, Failure],
            "Init container app failed liveness probe",
            5,
        ),
    ] {
        let mut pod = pod(policy, spec);
        container(&mut pod, "app").liveness_probe = probe(Some(5));
        container(&mut pod, "app").startup_probe = probe(None);
        let plan = decide(&pod, &healthy(observed("app=run"), "app", words));
        assert_eq!(plan.kill[0].message, message, "T-NODE-17");
        assert_eq!(plan.kill[0].grace.as_secs(), grace, "T-NODE-18: {message}");
    }
}

#[test]
fn n_21_a_changed_image_restarts_a_container_under_every_policy() {
    for policy in ["Always", "OnFailure", "Never"] {
        let mut pod = pod(policy, "app");
        container(&mut pod, "app").image = Some("another".into());
        let plan = decide(&pod, &observed("app=run"));
        assert_eq!(summary(&plan), "kill app-0, start app#1", "N-21: {policy}");
        let text = "Container app definition changed, will be restarted";
        assert_eq!(plan.kill[0].message, text, "T-NODE-17");
        // No other field restarts a container.
        container(&mut pod, "app").image = Some("image".into());
        container(&mut pod, "app").command = Some(vec!["other".into()]);
        assert_eq!(summary(&decide(&pod, &observed("app=run"))), "", "N-21");
    }
}

#[test]
fn n_120_a_resize_restarts_a_container_only_if_its_resize_policy_requires_it() {
    let memory = |amount: &str| {
        let list = [("memory".to_owned(), Quantity(amount.to_owned()))].into();
        core::ResourceRequirements { limits: Some(list), ..Default::default() }
    };
    for (policy, wanted) in [("RestartContainer", "kill NAME-0, start NAME#1"), ("NotRequired", "")]
    {
        for name in ["proxy", "app"] {
            let mut pod = pod("Always", "s:proxy app");
            let of = container(&mut pod, name);
            of.resources = Some(memory("2Gi"));
            of.resize_policy = Some(vec![core::ContainerResizePolicy {
                resource_name: "memory".into(),
                restart_policy: policy.into(),
            }]);
            let mut world = observed("app=run proxy=run");
            assert_eq!(summary(&decide(&pod, &world)), "", "N-120: nothing has changed");
            let running = world.containers.iter_mut().find(|c| c.name == name).unwrap();
            running.resources = Some(memory("1Gi"));
            let plan = decide(&pod, &world);
            assert_eq!(summary(&plan), wanted.replace("NAME", name), "N-120: {policy}");
            let text = format!("Container {name} resize requires restart");
            assert!(
                plan.kill
                    .iter()
                    .all(|kill| kill.message == text && kill.why == KillReason::Resized)
            );
        }
    }
}

#[test]
fn probe_results_of_an_earlier_instance_are_ignored() {
    let mut world = healthy(observed("app=run"), "app", [Success, Success, Failure]);
    world.health.get_mut("app").unwrap().container_id = "an earlier one".into();
    assert_eq!(summary(&decide(&pod("Always", "app"), &world)), "");
}

#[test]
fn n_44_a_container_that_exits_immediately_starts_at_0_0_10_30_70_150() {
    let pod = pod("Always", "app");
    let mut backoffs = Backoffs::default();
    let mut world = observed("");
    let (mut second, mut starts) = (0, Vec::new());
    while second < 1200 {
        let plan = plan(&pod, &world, &backoffs, at(second));
        if let Some(start) = plan.start.first() {
            starts.push(second);
            start.note(&mut backoffs, at(second));
            let attempt = start.attempt;
            world = observed(&format!("app#{attempt}=exit0"));
            world.containers[0].state = exit_at(0, second);
        }
        match plan.next_due() {
            Some(due) => second = due.as_second() - at(0).as_second(),
            None => second += 1,
        }
    }
    // The second start is in the next reconcile, here a second later.
    let gaps: Vec<_> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [1, 10, 20, 40, 80, 160, 300, 300], "N-44, T-NODE-65");
}

fn exit_at(code: i32, second: i64) -> State {
    State::Exited(Exit {
        code,
        signal: None,
        reason: String::new(),
        message: String::new(),
        started_at: Some(at(second)),
        finished_at: at(second),
    })
}

#[test]
fn t_node_66_a_crash_loop_reports_its_back_off() {
    let pod = pod("Always", "app web");
    let mut backoffs = Backoffs::default();
    let mut world = observed("app=exit1 web=run");
    world.containers[0].state = exit_at(1, NOW);
    for _ in 0..4 {
        plan(&pod, &world, &Backoffs::default(), at(NOW)).start[0].note(&mut backoffs, at(NOW));
    }
    let plan = plan(&pod, &world, &backoffs, at(NOW));
    assert_eq!(summary(&plan), "wait app", "other containers are not affected");
    let waiting = &plan.waiting[0];
    assert_eq!(plan.next_due(), Some(at(NOW + 80)), "N-33");
    let failure = waiting.failure();
    assert_eq!(failure.reason, "CrashLoopBackOff");
    let message = "back-off 1m20s restarting failed container=app pod=web_shop(0a1b)";
    assert_eq!(failure.message, message);
    assert_eq!(waiting.event, "Back-off restarting failed container app in pod web_shop(0a1b)");
}

#[test]
fn n_44_a_failed_init_container_backs_off_and_later_containers_wait() {
    let pod = pod("Always", "i:one app");
    let mut world = observed("one=exit1");
    world.containers[0].state = exit_at(1, NOW);
    let mut backoffs = Backoffs::default();
    plan(&pod, &world, &backoffs, at(NOW)).start[0].note(&mut backoffs, at(NOW));
    assert_eq!(summary(&plan(&pod, &world, &backoffs, at(NOW + 9))), "wait one");
    assert_eq!(summary(&plan(&pod, &world, &backoffs, at(NOW + 10))), "start one#1");
}

#[test]
fn n_48_restart_counts_continue_if_container_records_are_lost() {
    let mut pod = pod("Always", "app");
    let mut world = observed("");
    world.past_attempts.insert("app".into(), 6);
    assert_eq!(summary(&decide(&pod, &world)), "start app#7", "N-48: from a log");
    let published = core::ContainerStatus {
        name: "app".into(),
        restart_count: 8,
        container_id: Some("landfall://x".into()),
        ..Default::default()
    };
    let container_statuses = Some(vec![published]);
    pod.status = Some(core::PodStatus { container_statuses, ..Default::default() });
    assert_eq!(summary(&decide(&pod, &world)), "start app#9", "N-48: from the previous status");
}

#[test]
fn t_node_68_an_exit_can_restart_all_containers() {
    let mut pod = pod("Never", "i:one s:proxy app web");
    container(&mut pod, "app").restart_policy_rules = Some(vec![core::ContainerRestartRule {
        action: "RestartAllContainers".into(),
        exit_codes: Some(core::ContainerRestartRuleOnExitCodes {
            operator: "In".into(),
            values: Some(vec![88]),
        }),
    }]);
    let world = observed("app=exit88 web=run proxy=run one=exit0");
    let plan = decide(&pod, &world);
    let wanted = "reset web-0, reset proxy-0, reset one-0, reset app-0";
    assert_eq!(summary(&plan), wanted, "the container whose exit caused it is removed last");
    assert!(plan.reset[0].running && !plan.reset[3].running);
    assert_eq!(
        summary(&decide(&pod, &observed(""))),
        "start one#0",
        "then the init containers run again"
    );
}

#[test]
fn t_node_1_a_terminating_or_terminal_pod_starts_no_container() {
    let going = deleted(pod("Always", "app"), 30);
    let mut failed = pod("Always", "app");
    failed.status = Some(core::PodStatus { phase: Some("Failed".into()), ..Default::default() });
    for world in ["[none]", "", "app=exit1", "app=run", "[dead] app=run"] {
        assert_eq!(
            summary(&decide(&going, &observed(world))),
            "done",
            "T-NODE-1, T-NODE-64: {world}"
        );
        assert_eq!(
            summary(&decide(&failed, &observed(world))),
            "done",
            "T-NODE-2, T-NODE-3: {world}"
        );
    }
}

fn any_state() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("run"),
        Just("exit0"),
        Just("exit1"),
        Just("oom0"),
        Just("created"),
        Just("unknown")
    ]
}

prop_compose! {
    /// Any subset of the containers of `i:one s:proxy i:two app web`, in any state.
    fn any_world()(
        states in prop::collection::vec(prop::option::of(any_state()), 5),
        sandbox in prop_oneof![
            4 => Just(""), 1 => Just("[none]"), 1 => Just("[dead]"), 1 => Just("[second]"), 1 => Just("[two]")
        ],
        words in prop::array::uniform3(prop_oneof![Just(Unknown), Just(Success), Just(Failure)]),
    ) -> (Observed, Vec<Option<&'static str>>) {
        let names = ["web", "app", "two", "proxy", "one"];
        let text: Vec<String> = names.iter().zip(&states)
            .filter_map(|(name, state)| state.map(|state| format!("{name}={state}")))
            .collect();
        let mut world = observed(&format!("{sandbox} {}", text.join(" ")));
        for name in names {
            if world.latest(name).is_some() {
                world = healthy(world, name, words);
            }
        }
        (world, states)
    }
}

proptest! {
    /// N-38, N-40: a regular container starts only after initialization, or if it has run before
    /// in this sandbox.
    #[test]
    fn no_regular_container_starts_before_init_is_done(
        (world, states) in any_world(),
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
    ) {
        let plan = decide(&pod(policy, "i:one s:proxy i:two app web"), &world);
        let starts_regular = plan.start.iter().any(|start| start.kind == Kind::Regular);
        let good = world.sandboxes.len() == 1 && world.sandboxes[0].ready || world.sandboxes.len() == 2 && !world.sandboxes[1].ready;
        let existed = states[..2].iter().any(|state| state.is_some_and(|state| state != "unknown"));
        let passed = states[2] == Some("exit0");
        prop_assert!(!starts_regular || (good && (existed || passed)), "{}", summary(&plan));
    }

    /// A plan starts each container at most once, and a running one only after killing it.
    #[test]
    fn no_container_is_started_twice_or_while_it_runs(
        (world, _) in any_world(),
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
    ) {
        let plan = decide(&pod(policy, "i:one s:proxy i:two app web"), &world);
        for (index, start) in plan.start.iter().enumerate() {
            prop_assert!(plan.start[..index].iter().all(|other| other.name != start.name));
            let latest = world.latest(&start.name);
            let ends = plan.end_all.is_some() || plan.kill.iter().any(|kill| kill.name == start.name);
            prop_assert!(ends || !latest.is_some_and(|c| c.is_running()), "{}", summary(&plan));
            prop_assert!(latest.is_none_or(|c| c.attempt < start.attempt));
        }
        // An ordinary init container is never started together with a regular one.
        let has = |kind| plan.start.iter().any(|start| start.kind == kind);
        prop_assert!(!(has(Kind::Init) && has(Kind::Regular)));
    }

    /// A plan that is `done` starts and kills nothing.
    #[test]
    fn a_plan_that_is_done_does_nothing_else((world, _) in any_world()) {
        let plan = decide(&pod("Never", "i:one s:proxy i:two app web"), &world);
        if plan.is_done() {
            prop_assert_eq!(summary(&plan), "done");
        }
    }

    /// Performing plans repeatedly reaches a state in which nothing is left to do.
    #[test]
    fn performing_a_plan_brings_a_pod_up(
        (world, _) in any_world(),
    ) {
        let pod = pod("Always", "i:one s:proxy i:two app web");
        let mut world = world;
        world.health.clear();
        for _ in 0..12 {
            let plan = decide(&pod, &world);
            perform(&mut world, &plan);
        }
        prop_assert_eq!(summary(&decide(&pod, &world)), "");
        for name in ["proxy", "app", "web"] {
            prop_assert!(world.latest(name).is_some_and(|c| c.is_running()), "{name}");
        }
    }
}

/// A perfect node: killed containers exit, started ones run, init containers succeed immediately.
fn perform(world: &mut Observed, plan: &Plan) {
    for container in &mut world.containers {
        let ends = plan.end_all.is_some() || plan.kill.iter().any(|kill| kill.id == container.id);
        if ends && container.exit().is_none() {
            container.state = exit_at(137, NOW);
        } else if matches!(container.name.as_str(), "one" | "two") && container.is_running() {
            container.state = exit_at(0, NOW);
        }
    }
    if let Some(new) = &plan.sandbox {
        world.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
        let mut made = observed("").sandboxes.remove(0);
        made.id = format!("s{}", new.attempt);
        made.attempt = new.attempt;
        world.sandboxes.insert(0, made);
    }
    let sandbox = world.sandboxes[0].id.clone();
    for start in &plan.start {
        let state = if start.kind == Kind::Init { "exit0" } else { "run" };
        let text = format!("{}#{}@{sandbox}={state}", start.name, start.attempt);
        world.containers.insert(0, observed(&text).containers.remove(0));
    }
}
