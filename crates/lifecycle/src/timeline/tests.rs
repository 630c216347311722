//! Steps as they happen, and the record that follows from them.

use super::StepKind::*;
use super::*;

const NODE: &str = "node/n1";

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
}

fn step(millis: i64, actor: &str, container: &str, what: StepKind, sequence: i64) -> Step {
    Step {
        at: at(millis),
        monotonic: millis * 1_000_000,
        actor: actor.into(),
        incarnation: "run".into(),
        sequence,
        container: container.into(),
        what,
        message: String::new(),
    }
}

fn subject() -> Subject {
    Subject {
        name: "web".into(),
        uid: "0123abcd-1".into(),
        node: "n1".into(),
        owner: String::new(),
    }
}

fn empty() -> TerminationRecord {
    TerminationRecord::new("default", subject(), "u", at(0))
}

/// A record of (millisecond, actor, container, what).
fn record(story: &[(i64, &str, &str, StepKind)]) -> TerminationRecord {
    let mut record = empty();
    let numbered = story.iter().zip(0..);
    record.append(numbered.map(|((millis, actor, container, what), sequence)| {
        step(*millis, actor, container, what.clone(), sequence)
    }));
    record
}

fn requested(grace: i64) -> StepKind {
    Requested(Request {
        by: "admin".into(),
        agent: "kubectl/v1.36.4 (linux/amd64)".into(),
        grace_seconds: Some(grace),
        deadline: Some(at(grace * 1000)),
        ..Request::default()
    })
}

fn seen(reason: &str) -> StepKind {
    Seen { grace_seconds: Some(30), reason: reason.into() }
}

fn signal(signal: &str) -> StepKind {
    Signal { signal: signal.into(), target: "process 1".into(), reason: String::new() }
}

fn exited(exit_code: i32, signal: &str) -> StepKind {
    Exited { exit_code, signal: signal.into(), oom: false }
}

fn hook_ended(succeeded: bool, output: &str) -> StepKind {
    let exit_code = Some(if succeeded { 0 } else { 3 });
    HookEnded { succeeded, exit_code, http_status: None, output: output.into() }
}

/// The last steps of every deleted pod.
fn over(millis: i64) -> [(i64, &'static str, &'static str, StepKind); 3] {
    [
        (millis, NODE, "", SandboxStopped),
        (millis + 1, NODE, "", StatusWritten),
        (millis + 2, SERVER, "", Removed),
    ]
}

/// What happened, its steps, and what follows from them: outcome, confirmed, summary.
type OutcomeCase<'a> = (&'a str, Vec<(i64, &'a str, &'a str, StepKind)>, Outcome, bool, &'a str);

fn check_outcomes<'a>(cases: impl IntoIterator<Item = OutcomeCase<'a>>) {
    for (case, steps, outcome, confirmed, summary) in cases {
        let record = record(&steps);
        assert_eq!(record.outcome, outcome, "{case}");
        assert_eq!(record.confirmed, confirmed, "{case}");
        assert_eq!(record.summary, summary, "{case}");
    }
}

#[test]
fn a_forced_removal_has_the_outcome_forced() {
    let request = (0, SERVER, "", requested(30));
    let forced = (3, SERVER, "", UnsafeByRequest { by: "admin".into() });
    let unknown = (2, SERVER, "", UnsafeByRequest { by: UNKNOWN.into() });
    check_outcomes([
        (
            "forced by an unknown user",
            vec![unknown.clone(), (3, SERVER, "", Removed)],
            Outcome::Forced,
            false,
            "unsafe by request of an unknown user: may still run",
        ),
        (
            "forced; the user becomes known later",
            vec![request.clone(), unknown, (2, SERVER, "", Removed), forced.clone()],
            Outcome::Forced,
            false,
            "unsafe by request of admin: may still run",
        ),
        (
            "W-56: removed by force, not confirmed",
            vec![request.clone(), forced.clone(), (4, SERVER, "", Removed)],
            Outcome::Forced,
            false,
            "unsafe by request of admin: may still run",
        ),
        (
            "W-56: removed by force, confirmed later",
            vec![
                request.clone(),
                forced,
                (4, SERVER, "", Removed),
                (900, NODE, "", SandboxStopped),
            ],
            Outcome::Forced,
            true,
            "unsafe by request of admin: confirmed later",
        ),
    ]);
}

#[test]
fn w_35_the_summary_says_how_a_process_reacted_to_its_stop_signal() {
    let request = (0, SERVER, "", requested(30));
    let begins = (1, NODE, "", seen("Deleted"));
    let term = (2, NODE, "app", signal("SIGTERM"));
    check_outcomes([
        (
            "W-35: no handler",
            [
                vec![
                    request.clone(),
                    begins.clone(),
                    term.clone(),
                    (4, NODE, "app", exited(143, "SIGTERM")),
                ],
                over(50).into(),
            ]
            .concat(),
            Outcome::Clean,
            true,
            "app has no handler for SIGTERM and was terminated by it",
        ),
        (
            "W-35: ignored",
            [
                vec![
                    request.clone(),
                    begins.clone(),
                    term.clone(),
                    (30_002, NODE, "app", signal("SIGKILL")),
                    (30_004, NODE, "app", exited(137, "SIGKILL")),
                ],
                over(30_050).into(),
            ]
            .concat(),
            Outcome::Killed,
            true,
            "app did not exit within 30.0 s of SIGTERM and was killed",
        ),
        (
            "W-35: ignored, and the runtime does not report the signal",
            [
                vec![
                    request.clone(),
                    begins.clone(),
                    term.clone(),
                    (30_002, NODE, "app", signal("SIGKILL")),
                    (30_004, NODE, "app", exited(137, "")),
                ],
                over(30_050).into(),
            ]
            .concat(),
            Outcome::Killed,
            true,
            "app did not exit within 30.0 s of SIGTERM and was killed",
        ),
    ]);
}

#[test]
fn the_outcome_follows_from_the_steps() {
    let request = (0, SERVER, "", requested(30));
    let begins = (1, NODE, "", seen("Deleted"));
    let term = (2, NODE, "app", signal("SIGTERM"));
    check_outcomes([
        ("nothing but the request", vec![request.clone()], Outcome::Ending, false, ""),
        (
            "exits in time",
            [
                vec![
                    request.clone(),
                    begins.clone(),
                    term.clone(),
                    (40, NODE, "app", exited(0, "")),
                ],
                over(50).into(),
            ]
            .concat(),
            Outcome::Clean,
            true,
            "all containers exited in time",
        ),
        (
            "a hook that fails",
            [
                vec![
                    request.clone(),
                    (2, NODE, "app", HookStarted { hook: "exec".into() }),
                    (9, NODE, "app", hook_ended(false, "no")),
                    (40, NODE, "app", exited(0, "")),
                ],
                over(50).into(),
            ]
            .concat(),
            Outcome::Clean,
            true,
            "app: the preStop hook failed with 3",
        ),
        (
            "completed, deleted days later",
            vec![
                (0, NODE, "", seen("Completed")),
                (0, NODE, "app", exited(0, "")),
                (5, NODE, "", SandboxStopped),
                (6, NODE, "", StatusWritten),
                (90_000_000, SERVER, "", requested(0)),
                (90_000_001, SERVER, "", Removed),
            ],
            Outcome::Completed,
            true,
            "",
        ),
        (
            "the exit was not observed",
            [vec![request, begins, (5, NODE, "app", Lost)], over(50).into()].concat(),
            Outcome::Lost,
            true,
            "a container's exit was not observed",
        ),
    ]);
}

#[test]
fn a_completed_pod_ended_when_its_status_was_written_and_has_no_request() {
    let record = record(&[
        (0, NODE, "", seen("Completed")),
        (5, NODE, "", SandboxStopped),
        (6, NODE, "", StatusWritten),
        (9_000, SERVER, "", requested(0)),
        (9_001, SERVER, "", Removed),
    ]);
    assert_eq!((record.started, record.ended), (Some(at(0)), Some(at(6))));
    assert_eq!(record.request, None);
}

#[test]
fn a_later_request_changes_the_grace_period_but_not_the_requester() {
    let shorter = Request {
        by: "another user".into(),
        grace_seconds: Some(5),
        deadline: Some(at(5000)),
        ..Request::default()
    };
    let record = record(&[(0, SERVER, "", requested(30)), (1000, SERVER, "", Shortened(shorter))]);
    let request = record.request.unwrap();
    assert_eq!((request.by.as_str(), request.grace_seconds), ("admin", Some(5)));
    assert_eq!(request.deadline, Some(at(5000)));
}

#[test]
fn a_step_that_is_posted_twice_is_recorded_once() {
    let mut record = record(&[(0, SERVER, "", requested(30))]);
    let posted = [step(1, NODE, "", seen("Deleted"), 0), step(2, NODE, "a", signal("SIGTERM"), 1)];
    assert!(record.append(posted.clone()));
    let once = record.clone();
    assert!(!record.append(posted.clone()));
    assert_eq!(record, once);
    // Another run of the same agent counts from the beginning.
    let mut again = posted[0].clone();
    again.incarnation = "another".into();
    assert!(record.append([again]));
    assert_eq!(record.steps.len(), 4);
}

#[test]
fn steps_are_sorted_by_time() {
    let mut late = empty();
    let posted = [step(5, NODE, "a", exited(0, ""), 2), step(1, NODE, "", seen("Deleted"), 0)];
    for step in posted {
        late.append([step]);
    }
    late.append([step(0, SERVER, "", requested(30), 0), step(0, NODE, "", AgentRestarted, 9)]);
    let order: Vec<i64> = late.steps.iter().map(|step| step.monotonic / 1_000_000).collect();
    assert_eq!(order, [0, 0, 1, 5]);
    // At the same time, the step of the server comes first.
    assert_eq!(late.steps[0].actor, SERVER);
}

#[test]
fn a_record_is_bounded_and_keeps_the_steps_that_decide_its_outcome() {
    let mut record = empty();
    let many = (0..1000).map(|n| step(n, NODE, "a", HookOverran, n));
    record.append(many);
    record.append([step(2000, NODE, "", SandboxStopped, 2000), step(2001, SERVER, "", Removed, 0)]);
    assert!(record.steps.len() <= STEPS_MAX);
    assert!(record.confirmed && record.ended.is_some());
    assert!(record.dropped > 700);
}

#[test]
fn the_output_of_a_hook_is_cut_at_a_character() {
    let long = "é".repeat(4000);
    let record = record(&[(0, NODE, "a", hook_ended(false, &long))]);
    let HookEnded { output, .. } = &record.steps[0].what else { panic!("no hook") };
    assert!(output.len() <= OUTPUT_MAX && output.ends_with('…'), "{}", output.len());
}

#[test]
fn records_are_named_after_the_pod_and_its_uid() {
    assert_eq!(name("web-1", "0123abcd-4567"), "web-1.0123abcd");
    let long = name(&"a.".repeat(126), "0123abcd-4567");
    assert!(long.len() <= 253 && long.ends_with("a.0123abcd"), "{long}");
}

#[test]
fn a_record_survives_json_and_its_steps_are_flat_objects() {
    let record = record(&[
        (0, SERVER, "", requested(30)),
        (7, NODE, "app", exited(137, "SIGKILL")),
        (8, NODE, "app", hook_ended(true, "bye")),
    ]);
    let json = serde_json::to_value(&record).unwrap();
    assert_eq!(json["steps"][1]["what"], "Exited");
    assert_eq!(json["steps"][1]["exitCode"], 137);
    assert_eq!(json["steps"][1]["at"], "2027-01-15T08:00:00.007000Z");
    assert_eq!(json["steps"][0]["graceSeconds"], 30);
    assert_eq!(json["request"]["by"], "admin");
    let back: TerminationRecord = typed::from_value(json).unwrap();
    assert_eq!(back, record);
}

/// The API's schema is written by hand; this compares it with the types.
#[test]
fn every_field_of_a_record_is_in_the_schema_of_the_api() {
    let full = Request {
        through: "eviction".into(),
        grace_asked_seconds: Some(1),
        ..match requested(1) {
            Requested(request) => request,
            _ => unreachable!(),
        }
    };
    let all = [
        Requested(full.clone()),
        Shortened(full),
        UnsafeByRequest { by: "a".into() },
        seen("Deleted"),
        HookStarted { hook: "exec".into() },
        HookEnded {
            succeeded: true,
            exit_code: Some(0),
            http_status: Some(200),
            output: "a".into(),
        },
        HookOverran,
        Held,
        Acknowledged { by: "node n2".into() },
        Drained,
        DrainTimedOut { missing: vec!["node n3".into()] },
        Signal { signal: "SIGTERM".into(), target: "a".into(), reason: "b".into() },
        Exited { exit_code: 1, signal: "SIGKILL".into(), oom: true },
        Lost,
        SandboxStopped,
        NetworkGone,
        VolumesGone,
        CgroupGone,
        StatusWritten,
        Removed,
        EndpointFlipped { slice: "s".into(), generation: Some(1) },
        RulesCommitted { slice: "s".into(), generation: Some(1) },
        AgentRestarted,
    ];
    let story: Vec<_> = all.into_iter().map(|what| (0, NODE, "app", what)).collect();
    let mut record = record(&story);
    record.steps[0].message = "m".into();
    record.dropped = 1;
    let mut json = serde_json::to_value(&record).unwrap();
    json["apiVersion"] = API_VERSION.into();
    json["kind"] = "Termination".into();
    let registry = api::Registry::built_in();
    let kind = registry.resource(GROUP, "v1", PLURAL).unwrap();
    let decoded = api::decode::value(&kind.schema, kind.ty, json.clone()).unwrap();
    assert_eq!(decoded.problems, []);
    assert_eq!(decoded.value["steps"], json["steps"]);
    let words = api::schema::docs::of_field("dev.landfall.v1.TerminationStep", "what").unwrap();
    for step in json["steps"].as_array().unwrap() {
        assert!(words.contains(step["what"].as_str().unwrap()), "{}", step["what"]);
    }
}

fn story_of_a_kill() -> TerminationRecord {
    let mut story = vec![
        (0, SERVER, "", requested(30)),
        (3, NODE, "", seen("Deleted")),
        (4, NODE, "app", HookStarted { hook: "exec".into() }),
        (10_004, NODE, "app", hook_ended(false, "draining\n\u{1b}[31mfailed\n")),
        (10_005, NODE, "app", signal("SIGTERM")),
        (5, NODE, "sidecar", signal("SIGTERM")),
        (1_000, NODE, "sidecar", exited(0, "")),
        (30_003, NODE, "app", signal("SIGKILL")),
        (30_005, NODE, "app", exited(137, "SIGKILL")),
    ];
    story.extend(over(30_050));
    record(&story)
}

#[test]
fn a_record_is_drawn_with_heading_bars_and_steps() {
    let drawn = draw(&story_of_a_kill(), 80, at(60_000));
    let expected = "\
pod default/web on node n1
requested by admin (kubectl/v1.36.4), grace period 30 s
Killed after 30.1 s
  app: the preStop hook failed with 3
  app did not exit within 20.0 s of SIGTERM and was killed

app      ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒██████████████████████████████████████████████✗
sidecar  ██●
         0                                                                30.1 s
         ▒ preStop hook  █ stop signal sent  ✗ killed  ● exited

   +0.000 s  server   termination requested by admin (kubectl/v1.36.4), grace
                      period 30 s
   +0.003 s  node/n1  termination starts (Deleted), grace period 30 s
   +0.004 s  node/n1  app: preStop hook starts (exec)
   +0.005 s  node/n1  sidecar: SIGTERM to process 1
   +1.000 s  node/n1  sidecar: exited with 0
  +10.004 s  node/n1  app: preStop hook FAILED, exit code 3
                      │ draining
                      │ \u{fffd}[31mfailed
  +10.005 s  node/n1  app: SIGTERM to process 1
  +30.003 s  node/n1  app: SIGKILL to process 1
  +30.005 s  node/n1  app: terminated by SIGKILL, exit code 137
  +30.050 s  node/n1  no process is left
  +30.051 s  node/n1  last status written
  +30.052 s  server   object removed
";
    assert_eq!(drawn, expected, "{drawn}");
}

#[test]
fn no_line_is_too_wide_and_no_control_character_is_printed() {
    let mut record = story_of_a_kill();
    record.pod.owner = "ReplicaSet/\u{7}".to_owned() + &"x".repeat(300);
    record.steps[0].message = "word ".repeat(100);
    for width in [60, 80, 100] {
        let drawn = draw(&record, width, at(60_000));
        for line in drawn.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }
    // An empty record can be drawn too.
    assert!(draw(&empty(), 10, at(0)).contains("pod default/web"));
}

#[test]
fn durations_are_printed_in_a_suitable_unit() {
    for (micros, words) in [
        (0, "0 µs"),
        (850, "850 µs"),
        (12_400, "12 ms"),
        (1_250_000, "1.25 s"),
        (31_500_000, "31.5 s"),
        (125_000_000, "2m05s"),
        (3_600_000_000, "1h00m"),
    ] {
        assert_eq!(span(jiff::SignedDuration::from_micros(micros)), words);
    }
}
