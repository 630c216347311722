//! Tables of terminations: what happens at which second, and what must be done at which second.

use super::*;
use crate::fixture::{container, deleted, observed, pod};

pub(super) const PLAIN: &str = "app";

/// `app`, `app+hook`, `s:proxy`, `s:proxy+hook`, `i:one`, `e:debug`: in the order of declaration.
pub(super) fn cast(text: &str) -> Vec<Member> {
    let one = |(place, word): (usize, &str)| {
        let (kind, rest) = match word.split_once(':') {
            Some(("s", rest)) => (Kind::Sidecar, rest),
            Some(("i", rest)) => (Kind::Init, rest),
            Some(("e", rest)) => (Kind::Ephemeral, rest),
            _ => (Kind::Regular, word),
        };
        let (name, hook) = rest.split_once('+').map_or((rest, false), |(name, _)| (name, true));
        let (id, name) = (name.to_owned(), name.to_owned());
        Member { id, name, kind, hook, place, progress: Progress::Fresh }
    };
    text.split_whitespace().enumerate().map(one).collect()
}

pub(super) fn term(seconds: u64) -> Input {
    Input::Terminate { grace: Duration::from_secs(seconds) }
}

pub(super) fn hook(name: &str) -> Input {
    Input::HookFinished { id: name.into() }
}

pub(super) fn exit(name: &str) -> Input {
    Input::Exited { id: name.into() }
}

/// Plays inputs against a clock in milliseconds that ticks when something is due. Every stop signal
/// is reported as sent immediately.
pub(super) fn play(mut machine: Termination, inputs: &[(u64, Input)]) -> Vec<(u64, Action)> {
    play_until(&mut machine, inputs, u64::MAX)
}

/// The same up to a moment, and leaves the machine in its state at that moment.
pub(super) fn play_until(
    machine: &mut Termination,
    inputs: &[(u64, Input)],
    until: u64,
) -> Vec<(u64, Action)> {
    let mut done = Vec::new();
    let mut inputs = inputs.iter().filter(|(at, _)| *at < until).peekable();
    loop {
        let due = machine.next_due().map(|due| due.0.as_millis() as u64);
        let (at, input) = match (inputs.peek(), due.filter(|due| *due < until)) {
            (Some((at, _)), due) if due.is_none_or(|due| *at <= due) => {
                let (at, input) = inputs.next().unwrap();
                (*at, input.clone())
            }
            (_, Some(due)) => (due, Input::Tick),
            (_, None) => return done,
        };
        let now = Moment(Duration::from_millis(at));
        let actions = machine.step(now, input);
        for action in &actions {
            if let Action::SendStop { id, .. } = action {
                assert_eq!(machine.step(now, Input::StopSent { id: id.clone() }), []);
            }
        }
        done.extend(actions.into_iter().map(|action| (at, action)));
    }
}

/// `30 kill app`; announcements are left out.
fn summary((at, action): &(u64, Action)) -> Option<String> {
    let (what, id) = match action {
        Action::Announce { .. } => return None,
        Action::RunPreStop { id } => ("hook", id),
        Action::HookOverran { id } => ("overran", id),
        Action::SendStop { id, .. } => ("stop", id),
        Action::SendKill { id } => ("kill", id),
    };
    Some(format!("{} {what} {id}", *at / 1000))
}

#[track_caller]
fn check(case: &str, containers: &str, inputs: &[(u64, Input)], wanted: &[&str]) {
    check_machine(case, Termination::new(cast(containers)), inputs, wanted);
}

#[track_caller]
fn check_machine(case: &str, machine: Termination, inputs: &[(u64, Input)], wanted: &[&str]) {
    let inputs: Vec<_> = inputs.iter().map(|(at, input)| (at * 1000, input.clone())).collect();
    let done: Vec<_> = play(machine, &inputs).iter().filter_map(summary).collect();
    assert_eq!(done, wanted, "{case}");
}

#[test]
fn t_node_16_to_20_a_container_gets_a_stop_signal_and_is_killed_at_its_deadline() {
    check("exits in time", PLAIN, &[(0, term(30)), (4, exit("app"))], &["0 stop app"]);
    check("ignores the signal", PLAIN, &[(0, term(30))], &["0 stop app", "30 kill app"]);
    check("T-NODE-19: at least two seconds", PLAIN, &[(0, term(1))], &["0 stop app", "2 kill app"]);
    check("exits before the termination", PLAIN, &[(0, exit("app")), (1, term(30))], &[]);
    let exits_at_the_last = [(0, term(30)), (30, exit("app"))];
    check("exits at its deadline", PLAIN, &exits_at_the_last, &["0 stop app"]);
}

#[test]
fn t_node_26_to_29_the_hook_runs_first_and_counts_against_the_grace_period() {
    let containers = "app+hook";
    check(
        "T-NODE-27: grace 10, hook 4 s",
        containers,
        &[(0, term(10)), (4, hook("app"))],
        &["0 hook app", "4 stop app", "10 kill app"],
    );
    check(
        "T-NODE-19, 28: the hook uses the whole grace period",
        containers,
        &[(0, term(30))],
        &["0 hook app", "30 overran app", "30 stop app", "32 kill app"],
    );
    check(
        "the hook ends at its deadline",
        containers,
        &[(0, term(30)), (30, hook("app"))],
        &["0 hook app", "30 stop app", "32 kill app"],
    );
    check(
        "the hook leaves one second of the grace period",
        containers,
        &[(0, term(10)), (9, hook("app"))],
        &["0 hook app", "9 stop app", "11 kill app"],
    );
    check(
        "T-NODE-26: the container exits during the hook",
        containers,
        &[(0, term(30)), (3, exit("app")), (4, hook("app"))],
        &["0 hook app"],
    );
    check(
        "T-NODE-26: no hook with grace period 0",
        containers,
        &[(0, term(0))],
        &["0 stop app", "2 kill app"],
    );
    check(
        "T-NODE-14: a forced delete has a grace period of one second",
        containers,
        &[(0, term(1))],
        &["0 hook app", "1 overran app", "1 stop app", "3 kill app"],
    );
    check(
        "the hook ends after its deadline",
        containers,
        &[(0, term(5)), (6, hook("app"))],
        &["0 hook app", "5 overran app", "5 stop app", "7 kill app"],
    );
}

#[test]
fn t_edge_2_a_later_request_can_only_shorten_the_grace_period() {
    check(
        "a shorter grace period",
        PLAIN,
        &[(0, term(30)), (5, term(10))],
        &["0 stop app", "15 kill app"],
    );
    check(
        "a longer grace period",
        PLAIN,
        &[(0, term(10)), (5, term(60))],
        &["0 stop app", "10 kill app"],
    );
    check(
        "forced while the hook runs",
        "app+hook",
        &[(0, term(30)), (5, term(0))],
        &["0 hook app", "5 overran app", "5 stop app", "7 kill app"],
    );
    check(
        "forced after the stop signal",
        PLAIN,
        &[(0, term(30)), (5, term(1))],
        &["0 stop app", "7 kill app"],
    );
    check(
        "forced while a sidecar waits for its turn",
        "s:proxy app",
        &[(0, term(30)), (5, term(3))],
        &["0 stop app", "8 stop proxy", "8 kill app", "10 kill proxy"],
    );
}

#[test]
fn t_node_15_all_containers_terminate_at_the_same_time() {
    let containers = "i:one app web+hook e:debug";
    let inputs = [(0, term(10)), (2, exit("debug")), (3, hook("web")), (4, exit("one"))];
    let wanted = [
        "0 hook web",
        "0 stop one",
        "0 stop app",
        "0 stop debug",
        "3 stop web",
        "10 kill app",
        "10 kill web",
    ];
    check("T-NODE-15, 41, 43", containers, &inputs, &wanted);
}

/// T-EDGE-11: as upstream, a sidecar's hook does not wait for its turn.
#[test]
fn t_node_35_to_37_sidecars_stop_after_the_others_in_reverse_order() {
    let containers = "s:log s:proxy app web";
    check(
        "T-NODE-35: all containers exit in time",
        containers,
        &[(0, term(30)), (2, exit("web")), (5, exit("app")), (7, exit("proxy")), (8, exit("log"))],
        &["0 stop app", "0 stop web", "5 stop proxy", "7 stop log"],
    );
    check(
        "T-NODE-36: the hook of a sidecar runs immediately, only its stop signal waits",
        "s:proxy+hook app",
        &[(0, term(30)), (4, hook("proxy")), (9, exit("app")), (10, exit("proxy"))],
        &["0 hook proxy", "0 stop app", "9 stop proxy"],
    );
    check(
        "its hook may run longer than the other containers",
        "s:proxy+hook app",
        &[(0, term(30)), (4, exit("app")), (9, hook("proxy"))],
        &["0 hook proxy", "0 stop app", "9 stop proxy", "30 kill proxy"],
    );
    check(
        "T-NODE-37: waiting counts against its own grace period",
        "s:proxy app",
        &[(0, term(10))],
        &["0 stop app", "10 stop proxy", "10 kill app", "12 kill proxy"],
    );
    check(
        "T-NODE-38: sidecars wait until an exit is observed",
        "s:proxy app",
        &[(0, term(10)), (1, Input::StopFailed { id: "app".into() })],
        &["0 stop app", "2 stop app", "10 stop proxy", "10 kill app", "12 kill proxy"],
    );
    check(
        "sidecars do not wait for init and ephemeral containers",
        "i:one s:proxy e:debug",
        &[(0, term(10)), (3, exit("proxy"))],
        &["0 stop one", "0 stop proxy", "0 stop debug", "10 kill one", "10 kill debug"],
    );
    check(
        "T-NODE-39: a pod that completed has only sidecars left",
        "s:log s:proxy",
        &[(0, term(30)), (1, exit("proxy")), (2, exit("log"))],
        &["0 stop proxy", "1 stop log"],
    );
    check(
        "T-NODE-62: a single sidecar does not wait",
        "s:proxy+hook",
        &[(0, term(5)), (1, hook("proxy"))],
        &["0 hook proxy", "1 stop proxy", "5 kill proxy"],
    );
}

#[test]
fn a_held_termination_waits_for_traffic_to_drain_but_not_beyond_its_grace_period() {
    let held = || {
        let mut machine = Termination::new(cast("app+hook web"));
        machine.hold();
        machine
    };
    check_machine(
        "traffic drains",
        held(),
        &[(0, term(30)), (2, Input::Drained), (5, hook("app")), (6, exit("web"))],
        &["2 hook app", "2 stop web", "5 stop app", "30 kill app"],
    );
    check_machine(
        "traffic never drains",
        held(),
        &[(0, term(30))],
        &["30 stop app", "30 stop web", "32 kill app", "32 kill web"],
    );
    check_machine(
        "forced while it is held",
        held(),
        &[(0, term(30)), (3, term(0))],
        &["3 stop app", "3 stop web", "5 kill app", "5 kill web"],
    );
    check_machine(
        "traffic had drained before",
        held(),
        &[(0, Input::Drained), (1, term(9))],
        &[
            "1 hook app",
            "1 stop web",
            "10 overran app",
            "10 stop app",
            "10 kill web",
            "12 kill app",
        ],
    );
}

#[test]
fn t_edge_3_a_restarted_agent_does_not_repeat_hooks_and_stop_signals() {
    let resumed = |progress| {
        let mut members = cast("app+hook");
        members[0].progress = progress;
        Termination::new(members)
    };
    let rest = [(0, term(7))];
    check_machine("hook done", resumed(Progress::HookDone), &rest, &["0 stop app", "7 kill app"]);
    let stop_sent = |s| Progress::StopSent { kill_at: Moment(Duration::from_secs(s)) };
    check_machine("stop sent", resumed(stop_sent(7)), &rest, &["7 kill app"]);
    check_machine(
        "a longer grace period now",
        resumed(stop_sent(7)),
        &[(0, term(30))],
        &["7 kill app"],
    );
    check_machine(
        "a shorter grace period now",
        resumed(stop_sent(7)),
        &[(0, term(1))],
        &["2 kill app"],
    );
    check_machine(
        "the deadline has passed",
        resumed(stop_sent(0)),
        &[(0, term(0))],
        &["0 kill app"],
    );
    check_machine(
        "shortened afterwards",
        resumed(stop_sent(20)),
        &[(0, term(20)), (3, term(5))],
        &["8 kill app"],
    );
    check_machine(
        "the deadline has passed, but no stop signal was sent",
        resumed(Progress::HookDone),
        &[(0, term(0))],
        &["0 stop app", "2 kill app"],
    );
}

#[test]
fn t_edge_3_a_stage_says_what_need_not_be_repeated_after_a_restart() {
    let (now, due) = (Moment(Duration::from_secs(9)), Moment(Duration::from_secs(12)));
    let sent = |kill_at| Progress::StopSent { kill_at };
    for (stage, wanted) in [
        (ContainerStage::Running, Progress::Fresh),
        (ContainerStage::Held { due }, Progress::Fresh),
        (ContainerStage::PreStop { due }, Progress::Fresh),
        (ContainerStage::Turn { due }, Progress::HookDone),
        (ContainerStage::Stopping { due, signal: SignalState::InProgress }, Progress::HookDone),
        (
            ContainerStage::Stopping { due, signal: SignalState::Failed { again: now } },
            Progress::HookDone,
        ),
        (ContainerStage::Stopping { due, signal: SignalState::Sent }, sent(due)),
        (ContainerStage::Killed { resend: None }, sent(now)),
        (ContainerStage::Gone, sent(now)),
    ] {
        assert_eq!(stage.progress(now), wanted, "{stage:?}");
    }
}

/// If an agent crashes between the decision and the signal, nothing says that the signal was sent: the next agent
/// sends it, and kills only after that.
#[test]
fn t_edge_3_a_stop_signal_counts_only_after_it_was_sent() {
    let second = |s| Moment(Duration::from_secs(s));
    let mut machine = Termination::new(cast(PLAIN));
    let actions = machine.step(second(0), term(10));
    assert!(actions.contains(&Action::SendStop { id: "app".into(), kill_at: second(10) }));
    let progress = |machine: &Termination, now| machine.stages().next().unwrap().1.progress(now);
    assert_eq!(progress(&machine, second(0)), Progress::HookDone);
    let mut next = cast(PLAIN);
    next[0].progress = progress(&machine, second(0));
    let late = [(0, term(0))];
    check_machine(
        "the deadline has passed",
        Termination::new(next),
        &late,
        &["0 stop app", "2 kill app"],
    );
    machine.step(second(1), Input::StopSent { id: "app".into() });
    assert_eq!(progress(&machine, second(1)), Progress::StopSent { kill_at: second(10) });
    machine.step(second(2), Input::StopFailed { id: "app".into() });
    assert_eq!(progress(&machine, second(2)), Progress::HookDone);
}

/// T-NODE-7: upstream waits for the one kill; here the rest of the pod joins immediately.
#[test]
fn t_edge_4_a_delete_does_not_wait_for_the_restart_of_one_container() {
    let deleted_after = |before: &[(u64, Input)], grace: u64| {
        let mut machine = Termination::new(cast("app+hook"));
        let mut done = Vec::new();
        for (at, input) in before {
            let actions = machine.step(Moment(Duration::from_secs(*at)), input.clone());
            done.extend(actions.into_iter().map(|action| (at * 1000, action)));
        }
        machine.join(cast("s:proxy app+hook web+hook"));
        done.extend(play(machine, &[(2000, term(grace))]));
        done.iter().filter_map(summary).collect::<Vec<_>>()
    };
    let alive = [(0, term(5))];
    let wanted = "0 hook app, 2 hook web, 5 overran app, 5 stop app, 7 kill app, 32 stop proxy, \
                  32 overran web, 32 stop web, 34 kill proxy, 34 kill web";
    assert_eq!(
        deleted_after(&alive, 30).join(", "),
        wanted,
        "no second hook, and the same deadline"
    );
    let stopping = [(0, term(30)), (1, hook("app"))];
    let wanted = "0 hook app, 1 stop app, 2 hook web, 5 kill app, 5 stop proxy, 5 overran web, \
                  5 stop web, 7 kill proxy, 7 kill web";
    assert_eq!(
        deleted_after(&stopping, 3).join(", "),
        wanted,
        "no second signal, but an earlier deadline"
    );
}

#[test]
fn a_signal_that_could_not_be_sent_is_sent_again() {
    let failed = |id: &str| Input::KillFailed { id: id.into() };
    check(
        "kill fails twice",
        PLAIN,
        &[(0, term(5)), (5, Input::Tick), (6, failed("app")), (8, failed("app"))],
        &["0 stop app", "5 kill app", "7 kill app", "9 kill app"],
    );
    check(
        "it exits although the signal failed",
        PLAIN,
        &[(0, term(5)), (1, Input::StopFailed { id: "app".into() }), (1, exit("app"))],
        &["0 stop app"],
    );
}

#[test]
fn t_edge_4_a_container_that_is_found_late_terminates_with_the_others() {
    let late = cast("late+hook").remove(0);
    let found = Input::Found(late);
    check(
        "it gets the rest of the grace period",
        PLAIN,
        &[(0, term(10)), (4, found.clone()), (4, found), (6, hook("late"))],
        &["0 stop app", "4 hook late", "6 stop late", "10 kill app", "10 kill late"],
    );
}

#[test]
fn t_node_16_a_termination_is_announced_first() {
    let done = play(Termination::new(cast("s:proxy app+hook")), &[(0, term(1))]);
    for name in ["proxy", "app"] {
        let id = name.to_owned();
        let of = |action: &Action| match action {
            Action::Announce { id }
            | Action::RunPreStop { id }
            | Action::HookOverran { id }
            | Action::SendStop { id, .. }
            | Action::SendKill { id } => id == name,
        };
        let first = done.iter().find(|(_, action)| of(action));
        assert_eq!(first, Some(&(0, Action::Announce { id })), "T-NODE-16");
    }
}

#[test]
fn a_stop_signal_names_the_time_of_the_kill() {
    let done = play(Termination::new(cast(PLAIN)), &[(3000, term(30))]);
    let kill_at = Moment(Duration::from_secs(33));
    assert_eq!(done[1], (3000, Action::SendStop { id: "app".into(), kill_at }));
}

#[test]
fn t_node_15_only_running_containers_are_terminated() {
    let mut pod = pod("Always", "i:one s:log s:proxy app web e:debug");
    for name in ["proxy", "app"] {
        let pre_stop = Some(k8s_openapi::api::core::v1::LifecycleHandler::default());
        let lifecycle = core::Lifecycle { pre_stop, ..Default::default() };
        container(&mut pod, name).lifecycle = Some(lifecycle);
    }
    let observed_state =
        observed("debug=run web=exit1 app=run proxy=run log=run one=exit0 stray=run");
    let members = members(&pod, &observed_state);
    let rows: Vec<_> = members.iter().map(|m| (m.name.as_str(), m.kind, m.hook, m.place)).collect();
    let wanted = [
        ("debug", Kind::Ephemeral, false, 0),
        ("app", Kind::Regular, true, 0),
        ("proxy", Kind::Sidecar, true, 2),
        ("log", Kind::Sidecar, false, 1),
        ("stray", Kind::Regular, false, 0),
    ];
    assert_eq!(rows, wanted);
}

#[test]
fn t_node_5_the_smallest_grace_period_counts_and_it_is_at_least_a_second() {
    let plain = || pod("Always", "app");
    let manifest = || {
        let mut pod = plain();
        let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
        pod.metadata.annotations = Some([source].into());
        pod
    };
    for (rule, pod, internal, gone, wanted) in [
        ("T-NODE-5: its own", plain(), None, false, 30),
        ("T-NODE-5: of the delete", deleted(plain(), 10), None, false, 10),
        ("T-NODE-5: a longer one", deleted(plain(), 60), None, false, 60),
        ("T-NODE-5: the smaller", deleted(plain(), 60), Some(5), false, 5),
        ("T-NODE-5: the smaller", deleted(plain(), 3), Some(5), false, 3),
        ("T-NODE-14: forced", deleted(plain(), 0), None, false, 1),
        ("T-NODE-14: forced, and its object is gone", plain(), None, true, 1),
        ("T-EDGE-2: forced while it terminates", deleted(plain(), 30), None, true, 1),
        ("T-NODE-89: its manifest is gone", manifest(), None, true, 30),
        ("T-NODE-89: and the node allows less time", manifest(), Some(4), true, 4),
        ("T-NODE-79: eviction", plain(), Some(0), false, 1),
    ] {
        assert_eq!(pod_grace(&pod, internal, gone).as_secs(), wanted, "{rule}");
    }
}

#[test]
fn t_node_84_a_pod_that_the_node_terminates_is_reported_after_one_and_a_half_grace_periods() {
    for (grace, wanted) in [(1, 10), (6, 10), (10, 15), (30, 45)] {
        assert_eq!(reported_after(Duration::from_secs(grace)).as_secs(), wanted, "{grace}");
    }
}

#[test]
fn t_node_18_and_63_a_probe_may_have_its_own_grace_period_unless_the_pod_is_deleted() {
    let probe =
        |grace| core::Probe { termination_grace_period_seconds: grace, ..Default::default() };
    let plain = || pod("Always", "app");
    let mut bare = plain();
    bare.spec.as_mut().unwrap().termination_grace_period_seconds = None;
    for (rule, pod, probe, wanted) in [
        ("T-NODE-18", plain(), None, 30),
        ("T-NODE-18", plain(), Some(probe(Some(5))), 5),
        ("T-NODE-63", plain(), Some(probe(Some(90))), 90),
        ("T-NODE-63", deleted(plain(), 7), Some(probe(Some(90))), 7),
        ("T-NODE-18", plain(), Some(probe(None)), 30),
        ("T-NODE-18", bare, None, 2),
    ] {
        assert_eq!(container_grace(&pod, probe.as_ref()).as_secs(), wanted, "{rule}");
    }
}
