//! What `plan` answers, as a table, and what it never answers.

use super::*;
use crate::fixture::{NOW, at, container, deleted, healthy, observed, pod};
use crate::observed::{Exit, State};
use crate::probe::Outcome::{Failure, Success, Unknown};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

/// A plan in one line.
fn said(plan: &Plan) -> String {
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

fn check(rule: &str, policy: &str, spec: &str, so: &str, wanted: &str) {
    let plan = decide(&pod(policy, spec), &observed(so));
    assert_eq!(said(&plan), wanted, "{rule}: {policy} {spec:?} when {so:?}");
}

#[test]
fn n_36_a_new_sandbox_is_made_when_there_is_no_good_one() {
    let rule = "N-36";
    check(rule, "Always", "app", "[none]", "sandbox 0, start app#0");
    check(rule, "Always", "app", "app=run", "");
    check(rule, "Always", "app", "[two] app=run", "end all, sandbox 2 changed, start app#1");
    check(rule, "Always", "app", "[dead] app=run", "end all, sandbox 1 changed, start app#1");
    check(rule, "Always", "app", "[host] app=run", "end all, sandbox 1 changed, start app#1");
    check(rule, "Always", "app", "[unconnected]", "end all, sandbox 1 changed, start app#0");
    // Init containers are forgotten, restart counts go on.
    let changed = "end all, sandbox 1 changed, start one#1";
    check(rule, "Always", "i:one i:two app", "[dead] app=run two=exit0 one=exit0", changed);
    check(rule, "Always", "i:one i:two app", "[second] app@s0=exit137 one@s0=exit0", "start one#1");
    // Not worth it.
    check(rule, "Never", "app", "[dead] app=exit137", "done");
    check(rule, "Never", "app", "[dead]", "end all, sandbox 1 changed, start app#0");
    check(rule, "OnFailure", "app web", "[dead] app=exit0 web=exit0", "done");
    let failed_only = "end all, sandbox 1 changed, start web#1";
    check(rule, "OnFailure", "app web", "[dead] app=exit0 web=exit1", failed_only);
}

#[test]
fn n_36_a_pod_on_the_hosts_network_needs_no_address_of_its_own() {
    let mut host = pod("Always", "app");
    host.spec.as_mut().unwrap().host_network = Some(true);
    let mut so = observed("[host] app=run");
    so.sandboxes[0].addresses.clear();
    assert_eq!(said(&decide(&host, &so)), "");
}

#[test]
fn n_38_init_containers_run_one_at_a_time_to_a_good_end() {
    let rule = "N-38";
    let spec = "i:one i:two app";
    check(rule, "Always", spec, "[none]", "sandbox 0, start one#0");
    check(rule, "Always", spec, "", "start one#0");
    check(rule, "Always", spec, "one=run", "");
    check(rule, "Always", spec, "one=exit0", "start two#0");
    check(rule, "Always", spec, "two=run one=exit0", "");
    check(rule, "Always", spec, "two=exit0 one=exit0", "start app#0");
    // The search goes from the last: records of the first may be gone.
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
fn n_39_init_containers_do_not_run_again_in_a_running_pod() {
    check("N-39", "Always", "i:one app", "app=exit1 one=exit0", "start app#1");
    let mut changed = pod("Always", "i:one s:proxy app");
    container(&mut changed, "one").image = Some("another".into());
    let so = observed("app=run proxy=run one=exit0");
    assert_eq!(said(&decide(&changed, &so)), "", "N-39: a plain init container");
    container(&mut changed, "proxy").image = Some("another".into());
    let plan = decide(&changed, &so);
    assert_eq!(said(&plan), "kill proxy-0, start proxy#1", "N-39: a sidecar");
    assert_eq!(plan.kill[0].message, "Init container proxy definition changed");
}

#[test]
fn n_40_a_sidecar_starts_in_its_place_and_is_kept_running() {
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
    let so = observed("proxy=run");
    assert_eq!(said(&decide(&pod, &so)), "", "no result yet");
    let started = healthy(so.clone(), "proxy", [Success, Failure, Success]);
    assert_eq!(said(&decide(&pod, &started)), "start app#0", "readiness is not waited for");
    let failed = healthy(so, "proxy", [Failure, Failure, Success]);
    let plan = decide(&pod, &failed);
    assert_eq!(said(&plan), "kill proxy-0, start proxy#1");
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
fn n_42_ephemeral_containers_start_when_seen_and_never_again() {
    let rule = "N-42";
    check(rule, "Always", "i:one app e:debug", "one=run", "start debug#0");
    check(rule, "Always", "app e:debug", "app=run", "start debug#0");
    check(rule, "Always", "app e:debug", "debug=exit1 app=run", "");
    check(rule, "Always", "app e:debug", "debug=created app=run", "");
}

#[test]
fn n_43_what_ended_is_started_again_as_the_policy_says() {
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
fn n_43_the_policy_and_the_rules_of_a_container_come_first() {
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
        assert_eq!(said(&decide(&pod, &observed(state))), wanted, "N-43: {story}");
    }
}

#[test]
fn n_43_a_failed_probe_asks_the_policy_and_not_the_rules() {
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
        let so = healthy(observed("app=run"), "app", [Success, Failure, Failure]);
        assert_eq!(said(&decide(&pod, &so)), wanted, "N-43: {policy} {own:?}");
    }
}

#[test]
fn t_node_17_and_18_a_kill_says_why_and_takes_the_grace_of_the_probe() {
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
fn n_21_another_image_restarts_a_container_under_every_policy() {
    for policy in ["Always", "OnFailure", "Never"] {
        let mut pod = pod(policy, "app");
        container(&mut pod, "app").image = Some("another".into());
        let plan = decide(&pod, &observed("app=run"));
        assert_eq!(said(&plan), "kill app-0, start app#1", "N-21: {policy}");
        let text = "Container app definition changed, will be restarted";
        assert_eq!(plan.kill[0].message, text, "T-NODE-17");
        // Nothing else is part of what a container is made from.
        container(&mut pod, "app").image = Some("image".into());
        container(&mut pod, "app").command = Some(vec!["other".into()]);
        assert_eq!(said(&decide(&pod, &observed("app=run"))), "", "N-21");
    }
}

#[test]
fn n_120_other_resources_restart_a_container_only_where_its_policy_says_so() {
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
            let mut so = observed("app=run proxy=run");
            assert_eq!(said(&decide(&pod, &so)), "", "N-120: it is as the spec says");
            let running = so.containers.iter_mut().find(|c| c.name == name).unwrap();
            running.resources = Some(memory("1Gi"));
            let plan = decide(&pod, &so);
            assert_eq!(said(&plan), wanted.replace("NAME", name), "N-120: {policy}");
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
fn what_probes_said_about_an_earlier_instance_does_not_count() {
    let mut so = healthy(observed("app=run"), "app", [Success, Success, Failure]);
    so.health.get_mut("app").unwrap().container_id = "an earlier one".into();
    assert_eq!(said(&decide(&pod("Always", "app"), &so)), "");
}

#[test]
fn n_44_a_container_that_exits_at_once_starts_at_0_0_10_30_70_150() {
    let pod = pod("Always", "app");
    let mut backoffs = Backoffs::default();
    let mut so = observed("");
    let (mut second, mut starts) = (0, Vec::new());
    while second < 1200 {
        let plan = plan(&pod, &so, &backoffs, at(second));
        if let Some(start) = plan.start.first() {
            starts.push(second);
            start.note(&mut backoffs, at(second));
            let attempt = start.attempt;
            so = observed(&format!("app#{attempt}=exit0"));
            so.containers[0].state = exit_at(0, second);
        }
        match plan.next_due() {
            Some(due) => second = due.as_second() - at(0).as_second(),
            None => second += 1,
        }
    }
    // The second start is a pass later, here a second.
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
fn t_node_66_a_crash_loop_says_how_long_it_waits() {
    let pod = pod("Always", "app web");
    let mut backoffs = Backoffs::default();
    let mut so = observed("app=exit1 web=run");
    so.containers[0].state = exit_at(1, NOW);
    for _ in 0..4 {
        plan(&pod, &so, &Backoffs::default(), at(NOW)).start[0].note(&mut backoffs, at(NOW));
    }
    let plan = plan(&pod, &so, &backoffs, at(NOW));
    assert_eq!(said(&plan), "wait app", "others go on");
    let waiting = &plan.waiting[0];
    assert_eq!(plan.next_due(), Some(at(NOW + 80)), "N-33");
    let failure = waiting.failure();
    assert_eq!(failure.reason, "CrashLoopBackOff");
    let message = "back-off 1m20s restarting failed container=app pod=web_shop(0a1b)";
    assert_eq!(failure.message, message);
    assert_eq!(waiting.event, "Back-off restarting failed container app in pod web_shop(0a1b)");
}

#[test]
fn n_44_a_failed_init_container_waits_too_and_holds_up_the_rest() {
    let pod = pod("Always", "i:one app");
    let mut so = observed("one=exit1");
    so.containers[0].state = exit_at(1, NOW);
    let mut backoffs = Backoffs::default();
    plan(&pod, &so, &backoffs, at(NOW)).start[0].note(&mut backoffs, at(NOW));
    assert_eq!(said(&plan(&pod, &so, &backoffs, at(NOW + 9))), "wait one");
    assert_eq!(said(&plan(&pod, &so, &backoffs, at(NOW + 10))), "start one#1");
}

#[test]
fn n_48_restart_counts_go_on_when_records_are_lost() {
    let mut pod = pod("Always", "app");
    let mut so = observed("");
    so.past_attempts.insert("app".into(), 6);
    assert_eq!(said(&decide(&pod, &so)), "start app#7", "N-48: from a log");
    let told = core::ContainerStatus {
        name: "app".into(),
        restart_count: 8,
        container_id: Some("landfall://x".into()),
        ..Default::default()
    };
    let container_statuses = Some(vec![told]);
    pod.status = Some(core::PodStatus { container_statuses, ..Default::default() });
    assert_eq!(said(&decide(&pod, &so)), "start app#9", "N-48: from what was told");
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
    let so = observed("app=exit88 web=run proxy=run one=exit0");
    let plan = decide(&pod, &so);
    let wanted = "reset web-0, reset proxy-0, reset one-0, reset app-0";
    assert_eq!(said(&plan), wanted, "the one that asked is removed last");
    assert!(plan.reset[0].running && !plan.reset[3].running);
    assert_eq!(said(&decide(&pod, &observed(""))), "start one#0", "then init starts over");
}

#[test]
fn t_node_1_a_pod_that_is_to_end_or_has_ended_never_starts_a_container() {
    let going = deleted(pod("Always", "app"), 30);
    let mut failed = pod("Always", "app");
    failed.status = Some(core::PodStatus { phase: Some("Failed".into()), ..Default::default() });
    for so in ["[none]", "", "app=exit1", "app=run", "[dead] app=run"] {
        assert_eq!(said(&decide(&going, &observed(so))), "done", "T-NODE-1, T-NODE-64: {so}");
        assert_eq!(said(&decide(&failed, &observed(so))), "done", "T-NODE-2, T-NODE-3: {so}");
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
        let mut so = observed(&format!("{sandbox} {}", text.join(" ")));
        for name in names {
            if so.latest(name).is_some() {
                so = healthy(so, name, words);
            }
        }
        (so, states)
    }
}

proptest! {
    /// N-38, N-40: whatever is so, a regular container is started only after initialisation, or
    /// where it has run before in this sandbox.
    #[test]
    fn no_regular_container_starts_before_init_is_done(
        (so, states) in any_world(),
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
    ) {
        let plan = decide(&pod(policy, "i:one s:proxy i:two app web"), &so);
        let starts_regular = plan.start.iter().any(|start| start.kind == Kind::Regular);
        let good = so.sandboxes.len() == 1 && so.sandboxes[0].ready || so.sandboxes.len() == 2 && !so.sandboxes[1].ready;
        let existed = states[..2].iter().any(|state| state.is_some_and(|state| state != "unknown"));
        let passed = states[2] == Some("exit0");
        prop_assert!(!starts_regular || (good && (existed || passed)), "{}", said(&plan));
    }

    /// Each container at most once; never one that runs, unless it is ended first.
    #[test]
    fn nothing_is_started_twice_or_beside_itself(
        (so, _) in any_world(),
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
    ) {
        let plan = decide(&pod(policy, "i:one s:proxy i:two app web"), &so);
        for (index, start) in plan.start.iter().enumerate() {
            prop_assert!(plan.start[..index].iter().all(|other| other.name != start.name));
            let latest = so.latest(&start.name);
            let ends = plan.end_all.is_some() || plan.kill.iter().any(|kill| kill.name == start.name);
            prop_assert!(ends || !latest.is_some_and(|c| c.is_running()), "{}", said(&plan));
            prop_assert!(latest.is_none_or(|c| c.attempt < start.attempt));
        }
        // An ordinary init container is never started together with a regular one.
        let has = |kind| plan.start.iter().any(|start| start.kind == kind);
        prop_assert!(!(has(Kind::Init) && has(Kind::Regular)));
    }

    /// Done is done: nothing is started, and what runs is not asked to end in another way.
    #[test]
    fn a_plan_that_is_done_does_nothing_else((so, _) in any_world()) {
        let plan = decide(&pod("Never", "i:one s:proxy i:two app web"), &so);
        if plan.is_done() {
            prop_assert_eq!(said(&plan), "done");
        }
    }

    /// A plan that was performed is not planned again: starts are seen, then nothing is left to start.
    #[test]
    fn performing_a_plan_brings_a_pod_up(
        (so, _) in any_world(),
    ) {
        let pod = pod("Always", "i:one s:proxy i:two app web");
        let mut so = so;
        so.health.clear();
        for _ in 0..12 {
            let plan = decide(&pod, &so);
            perform(&mut so, &plan);
        }
        prop_assert_eq!(said(&decide(&pod, &so)), "");
        for name in ["proxy", "app", "web"] {
            prop_assert!(so.latest(name).is_some_and(|c| c.is_running()), "{name}");
        }
    }
}

/// A perfect node: what is killed ends, what is started runs, init containers end well at once.
fn perform(so: &mut Observed, plan: &Plan) {
    for container in &mut so.containers {
        let ends = plan.end_all.is_some() || plan.kill.iter().any(|kill| kill.id == container.id);
        if ends && container.exit().is_none() {
            container.state = exit_at(137, NOW);
        } else if matches!(container.name.as_str(), "one" | "two") && container.is_running() {
            container.state = exit_at(0, NOW);
        }
    }
    if let Some(new) = &plan.sandbox {
        so.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
        let mut made = observed("").sandboxes.remove(0);
        made.id = format!("s{}", new.attempt);
        made.attempt = new.attempt;
        so.sandboxes.insert(0, made);
    }
    let sandbox = so.sandboxes[0].id.clone();
    for start in &plan.start {
        let state = if start.kind == Kind::Init { "exit0" } else { "run" };
        let text = format!("{}#{}@{sandbox}={state}", start.name, start.attempt);
        so.containers.insert(0, observed(&text).containers.remove(0));
    }
}
