//! Each row is a spec, an old status, a new status, and the expected errors.

use super::super::super::rules;
use super::*;
use serde_json::{Value, json};

const START: &str = "2026-01-01T00:00:00Z";
const END: &str = "2026-01-01T01:00:00Z";

fn messages(spec: Value, old: Value, new: Value) -> Vec<String> {
    let job = |status: Value| json!({ "spec": spec, "status": status });
    let (old, new) = (job(old), job(new));
    let mut errors = Errors::default();
    (rules("Job").validate_status_update)(&At::root(&new), &At::root(&old), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

fn conditions(types: &[&str]) -> Value {
    types.iter().map(|type_| json!({ "type": type_, "status": "True" })).collect()
}

fn ended(types: &[&str], more: Value) -> Value {
    let mut status = json!({ "startTime": START, "conditions": conditions(types) });
    api::patch::merge_into(&mut status, &more);
    status
}

fn completed(more: Value) -> Value {
    let mut status = ended(&["SuccessCriteriaMet", "Complete"], json!({ "completionTime": END }));
    api::patch::merge_into(&mut status, &more);
    status
}

#[test]
fn c_120_a_finished_status_is_complete() {
    let failed = |more| ended(&["FailureTarget", "Failed"], more);
    let cases: &[(&str, Value, &[&str])] = &[
        ("complete", completed(json!({})), &[]),
        ("failed", failed(json!({})), &[]),
        (
            "complete without its herald",
            ended(&["Complete"], json!({ "completionTime": END })),
            &[
                "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
            ],
        ),
        (
            "complete without a time",
            completed(json!({ "completionTime": null })),
            &[
                "status.completionTime: Required value: completionTime is required for Complete jobs",
            ],
        ),
        (
            "failed without its herald",
            ended(&["Failed"], json!({})),
            &[
                "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
            ],
        ),
        (
            "failed with a time of completion",
            failed(json!({ "completionTime": END })),
            &[
                "status.completionTime: Invalid value: \"2026-01-01T01:00:00Z\": cannot set completionTime when there is no Complete=True condition",
            ],
        ),
        (
            "both",
            ended(
                &["SuccessCriteriaMet", "Complete", "FailureTarget", "Failed"],
                json!({ "completionTime": END }),
            ),
            &[
                "status.conditions: Invalid value: cannot set Complete=True and Failed=true conditions",
                "status.conditions: Invalid value: cannot set Complete=True and FailureTarget=true conditions",
                "status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and Failed=true conditions",
                "status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
            ],
        ),
        (
            "before it began",
            completed(json!({ "startTime": "2026-01-01T02:00:00Z" })),
            &[
                "status.completionTime: Invalid value: \"2026-01-01T01:00:00Z\": completionTime cannot be set before startTime",
            ],
        ),
        (
            "with something left",
            failed(json!({ "active": 1, "terminating": 2, "startTime": null,
                           "uncountedTerminatedPods": { "failed": ["u"] } })),
            &[
                "status.active: Invalid value: 1: active>0 is invalid for finished job",
                "status.startTime: Required value: startTime is required for finished job",
                "status.uncountedTerminatedPods: Invalid value: {\"failed\":[\"u\"]}: uncountedTerminatedPods needs to be empty for finished job",
                "status.terminating: Invalid value: 2: terminating>0 is invalid for finished job",
            ],
        ),
    ];
    for (what, status, expected) in cases {
        assert_eq!(messages(json!({}), json!({}), status.clone()), *expected, "{what}");
    }
}

#[test]
fn c_120_conditions_and_counts_are_not_reverted() {
    let plain = json!({});
    let elastic = json!({ "completionMode": "Indexed", "completions": 3, "parallelism": 3 });
    let fixed = json!({ "completionMode": "Indexed", "completions": 3, "parallelism": 2 });
    let counted = |failed: i64, succeeded: i64| json!({ "startTime": START, "failed": failed, "succeeded": succeeded });
    let started = |at: &str| json!({ "startTime": at });
    let suspended = json!({ "startTime": START, "conditions": conditions(&["Suspended"]) });
    let cases: &[(&str, &Value, Value, Value, &[&str])] = &[
        (
            "an end",
            &plain,
            completed(json!({})),
            json!({ "startTime": START }),
            &[
                "status.conditions: Invalid value: cannot disable the terminal Complete=True condition",
                "status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition",
            ],
        ),
        (
            "a failure to come",
            &plain,
            ended(&["FailureTarget"], json!({})),
            ended(&[], json!({})),
            &[
                "status.conditions: Invalid value: cannot disable the terminal FailureTarget=True condition",
            ],
        ),
        (
            "counters",
            &plain,
            counted(2, 2),
            counted(1, 1),
            &[
                "status.failed: Invalid value: 1: cannot decrease the failed counter",
                "status.succeeded: Invalid value: 1: cannot decrease the succeeded counter",
            ],
        ),
        ("one that shrank", &elastic, counted(0, 2), counted(0, 1), &[]),
        (
            "one that cannot shrink",
            &fixed,
            counted(0, 2),
            counted(0, 1),
            &["status.succeeded: Invalid value: 1: cannot decrease the succeeded counter"],
        ),
        (
            "when it was complete",
            &plain,
            completed(json!({})),
            completed(json!({ "completionTime": "2026-01-01T01:00:01Z" })),
            &[
                "status.completionTime: Invalid value: \"2026-01-01T01:00:01Z\": completionTime cannot be mutated",
            ],
        ),
        (
            "when it began",
            &plain,
            started(START),
            started(END),
            &[
                "status.startTime: Invalid value: \"2026-01-01T01:00:00Z\": field is immutable for unsuspended job once set",
            ],
        ),
        (
            "a suspended one has no start",
            &json!({ "suspend": true }),
            started(START),
            json!({}),
            &[],
        ),
        ("a resumed job starts again", &plain, suspended, started(END), &[]),
        (
            "a herald after the end",
            &plain,
            ended(&["Complete"], json!({ "completionTime": END })),
            completed(json!({})),
            &[
                "status.conditions: Invalid value: cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
            ],
        ),
    ];
    for (what, spec, old, new, expected) in cases {
        assert_eq!(messages((*spec).clone(), old.clone(), new.clone()), *expected, "{what}");
    }
}

#[test]
fn c_120_numbers_and_indexes_are_well_formed() {
    let indexed =
        json!({ "completionMode": "Indexed", "completions": 10, "backoffLimitPerIndex": 1 });
    let done = |text: &str| json!({ "completedIndexes": text });
    let cases: &[(&str, Value, Value, &[&str])] = &[
        ("runs", indexed.clone(), done("0,2-4,9"), &[]),
        (
            "falling",
            indexed.clone(),
            done("3,1"),
            &[
                "status.completedIndexes: Invalid value: \"3,1\": error parsing completedIndexes: non-increasing order, previous: 3, current: 1",
            ],
        ),
        (
            "too large",
            indexed.clone(),
            done("10"),
            &[
                "status.completedIndexes: Invalid value: \"10\": error parsing completedIndexes: too large index: \"10\"",
            ],
        ),
        (
            "no number",
            indexed.clone(),
            done("a"),
            &[
                "status.completedIndexes: Invalid value: \"a\": error parsing completedIndexes: cannot convert string to integer for index: \"a\"",
            ],
        ),
        (
            "three ends",
            indexed.clone(),
            json!({ "failedIndexes": "1-2-3" }),
            &[
                "status.failedIndexes: Invalid value: \"1-2-3\": error parsing failedIndexes: the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'",
            ],
        ),
        (
            "both",
            indexed,
            json!({ "completedIndexes": "0,3-5", "failedIndexes": "1,4" }),
            &[
                "status.failedIndexes: Invalid value: \"1,4\": failedIndexes and completedIndexes overlap at index: 4",
            ],
        ),
        (
            "of a Job without indexes",
            json!({ "completions": 2 }),
            json!({ "completedIndexes": "1", "failedIndexes": "" }),
            &[
                "status.completedIndexes: Invalid value: \"1\": cannot set non-empty completedIndexes when non-indexed completion mode",
                "status.failedIndexes: Invalid value: \"\": cannot set non-null failedIndexes when backoffLimitPerIndex is null",
            ],
        ),
        (
            "ready but not active",
            json!({}),
            json!({ "active": 1, "ready": 2 }),
            &["status.ready: Invalid value: 2: cannot set more ready pods than active"],
        ),
        (
            "counted twice",
            json!({}),
            json!({ "uncountedTerminatedPods": { "succeeded": ["a", ""], "failed": ["a"] } }),
            &[
                "status.uncountedTerminatedPods.succeeded[1]: Invalid value: \"\": must not be empty",
                "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
            ],
        ),
    ];
    for (what, spec, status, expected) in cases {
        assert_eq!(messages(spec.clone(), json!({}), status.clone()), *expected, "{what}");
    }
}

#[test]
fn c_120_only_changed_fields_are_validated() {
    let wrong = json!({ "active": 1, "ready": 5, "completedIndexes": "x",
                        "conditions": conditions(&["Failed"]) });
    let mut more = wrong.clone();
    more["failed"] = json!(3);
    assert_eq!(messages(json!({ "completions": 1 }), wrong, more), [""; 0]);
}
