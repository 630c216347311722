//! Each row is a Job with its pods, and what one reconcile does.

use super::*;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T01:00:00Z";

fn job(spec: Value, status: Value) -> Job {
    let mut spec = spec;
    spec["template"] =
        json!({ "spec": { "containers": [{ "name": "c" }], "restartPolicy": "Never" } });
    spec["backoffLimit"] = spec.get("backoffLimit").cloned().unwrap_or(json!(6));
    typed::from_value(json!({
        "metadata": { "namespace": "a", "name": "j", "uid": "j" }, "spec": spec, "status": status,
    }))
    .unwrap()
}

/// Words: `r` running, `s` succeeded, `f` failed, `d` failed by disruption, `t` terminating, followed by the index if
/// there is one; a `'` at the end: without finalizer, `!n` at the end: the failures of its index.
fn pods(text: &str) -> Vec<Arc<Pod>> {
    let words = text.split_whitespace().enumerate();
    words.map(|(number, word)| Arc::new(pod(number, word))).collect()
}

fn pod(number: usize, word: &str) -> Pod {
    let (word, index_failures) = word.split_once('!').unwrap_or((word, ""));
    let freed = word.ends_with('\'');
    let word = word.trim_end_matches('\'');
    let (what, index) = word.split_at(1);
    let phase = match what {
        "s" => "Succeeded",
        "f" | "d" => "Failed",
        _ => "Running",
    };
    let mut annotations = json!({});
    if !index.is_empty() {
        annotations["batch.kubernetes.io/job-completion-index"] = json!(index);
    }
    if !index_failures.is_empty() {
        annotations["batch.kubernetes.io/job-index-failure-count"] = json!(index_failures);
    }
    typed::from_value(json!({
        "metadata": {
            "name": format!("p{number}"), "uid": format!("u{number}"), "annotations": annotations,
            "finalizers": if freed { json!([]) } else { json!([pods::TRACKING]) },
            "deletionTimestamp": (what == "t").then_some(NOW),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": { "nodeName": "n", "containers": [] },
        "status": { "phase": phase, "conditions": (what == "d")
            .then(|| json!([{ "type": "DisruptionTarget", "status": "True" }])) },
    }))
    .unwrap()
}

fn decided(job: &Job, text: &str) -> Plan {
    decide(job, &pods(text), &Record::default(), false, NOW.parse().unwrap())
}

fn summary(plan: &Plan) -> String {
    let index = |pod: &Pod| pods::index(pod).map_or(String::new(), |index| index.to_string());
    let name = |pod: &Arc<Pod>| pod.metadata.name.clone().unwrap();
    let made = plan.create.iter().map(|pod| format!("+{}", index(pod)));
    let removed = plan.remove.iter().map(|pod| format!("-{}", name(pod)));
    let deleted = plan.delete.iter().map(|pod| format!("x{}", name(pod)));
    let finish = plan.finish.iter().map(|finish| finish.reason.clone());
    made.chain(removed).chain(deleted).chain(finish).collect::<Vec<_>>().join(" ")
}

#[test]
fn c_101_pods_are_created_until_enough_have_succeeded() {
    let two_of_three = json!({ "parallelism": 2, "completions": 3 });
    let queue = json!({ "parallelism": 2 });
    let cases = [
        (two_of_three.clone(), "", "+ +"),
        (two_of_three.clone(), "r r", ""),
        (two_of_three.clone(), "s r", "+"),
        (two_of_three.clone(), "s s", "+"),
        (two_of_three.clone(), "s s r", ""),
        (two_of_three.clone(), "s s s", "CompletionsReached"),
        (two_of_three.clone(), "s s s r", "-p3 CompletionsReached"),
        (two_of_three, "r r r", "-p0"),
        (queue.clone(), "", "+ +"),
        (queue.clone(), "s r", ""),
        (queue.clone(), "s", "CompletionsReached"),
        (queue, "r", "+"),
        (json!({ "parallelism": 2, "completions": 0 }), "", "CompletionsReached"),
        (json!({ "parallelism": 0, "completions": 1 }), "", ""),
        (json!({ "parallelism": 2, "completions": 2, "suspend": true }), "r s", "-p0"),
    ];
    for (spec, pods, expected) in cases {
        let plan = decided(&job(spec.clone(), json!({})), pods);
        assert_eq!(summary(&plan), expected, "{spec} {pods}");
    }
}

#[test]
fn c_103_lowest_indexes_are_filled_first_and_duplicates_are_removed() {
    let spec = json!({ "parallelism": 2, "completions": 4, "completionMode": "Indexed" });
    let cases = [
        ("", "+0 +1"),
        ("r1", "+0"),
        ("s0 r1", "+2"),
        ("s0 s0 r1", "+2"),
        ("r0 r0", "-p0"),
        ("r0 r9", "-p1"),
        ("s0 s1 s2 s3", "CompletionsReached"),
    ];
    for (pods, expected) in cases {
        assert_eq!(summary(&decided(&job(spec.clone(), json!({})), pods)), expected, "{pods}");
    }
    let status = decided(&job(spec, json!({ "completedIndexes": "3" })), "s0 r1").status;
    assert_eq!(status.completed_indexes.as_deref(), Some("0,3"));
    assert_eq!(status.succeeded, Some(2));
    assert_eq!(status.failed_indexes, None);
    let most = json!({ "parallelism": 2, "completions": i32::MAX, "completionMode": "Indexed" });
    let done = json!({ "completedIndexes": "0-2147483639,2147483642" });
    assert_eq!(summary(&decided(&job(most, done), "r2147483640")), "+2147483641");
}

/// T-EDGE-19: Jobs whose pods must not run twice use the policy `Failed`.
#[test]
fn t_ctrl_25_c_106_the_replacement_policy_decides_whether_terminating_pods_are_replaced() {
    let failed = json!({ "parallelism": 1, "completions": 2, "podReplacementPolicy": "Failed" });
    let either = json!({ "parallelism": 1, "completions": 2 });
    let plan = decided(&job(either.clone(), json!({})), "t");
    assert_eq!(plan.status.uncounted_terminated_pods.clone().unwrap().failed.unwrap(), ["u0"]);
    assert_eq!(plan.status.terminating, Some(1));
    assert_eq!(plan.next, Some(Duration::from_secs(10)), "C-112");
    // The backoff is over, and the pod is still terminating.
    let indexed = |policy: &str| {
        json!({ "parallelism": 2, "completions": 3, "completionMode": "Indexed",
            "podReplacementPolicy": policy })
    };
    let cases = [
        (either, "t", "+"),
        (failed, "t", ""),
        (indexed("TerminatingOrFailed"), "t0", "+0 +1"),
        (indexed("Failed"), "t0", "+1"),
        (indexed("Failed"), "t0 t1", ""),
    ];
    for (spec, there, expected) in cases {
        let later = "2026-01-01T01:00:10Z".parse().unwrap();
        let job = job(spec.clone(), json!({}));
        let plan = decide(&job, &pods(there), &Record::default(), false, later);
        assert_eq!(summary(&plan), expected, "{spec} {there}");
    }
}

#[test]
fn c_112_a_failed_pod_is_replaced_after_its_backoff() {
    let spec = json!({ "parallelism": 1, "completions": 1 });
    let mut all = pods("f");
    ended_at(&mut all[0], "2026-01-01T00:59:57Z");
    let plan = decide(&job(spec, json!({})), &all, &Record::default(), false, NOW.parse().unwrap());
    assert_eq!(summary(&plan), "");
    assert_eq!(plan.next, Some(Duration::from_secs(7)));
}

/// Sets when the failed pod finished.
fn ended_at(pod: &mut Arc<Pod>, at: &str) {
    let status = Arc::make_mut(pod).status.as_mut().unwrap();
    status.container_statuses = serde_json::from_value(json!([{ "name": "c", "image": "",
        "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": 1, "finishedAt": at } } }]))
    .unwrap();
}

/// C-112: as upstream, an index in backoff keeps its place among the parallel pods.
#[test]
fn c_103_c_117_an_index_in_backoff_keeps_its_place() {
    let with = |parallelism: i32| {
        job(
            json!({ "parallelism": parallelism, "completions": 3, "completionMode": "Indexed",
            "backoffLimit": 99, "backoffLimitPerIndex": 3 }),
            json!({}),
        )
    };
    let mut all = pods("f0!0");
    ended_at(&mut all[0], "2026-01-01T00:59:57Z");
    let cases = [(1, "", Some(7)), (2, "+1", Some(7))];
    for (parallelism, expected, wait) in cases {
        let now = NOW.parse().unwrap();
        let plan = decide(&with(parallelism), &all, &Record::default(), false, now);
        assert_eq!(summary(&plan), expected, "{parallelism}");
        assert_eq!(plan.next.map(|next| next.as_secs()), wait, "{parallelism}");
    }
    ended_at(&mut all[0], "2026-01-01T00:59:50Z");
    let now = NOW.parse().unwrap();
    assert_eq!(summary(&decide(&with(1), &all, &Record::default(), false, now)), "+0");
}

#[test]
fn c_113_c_114_the_first_reason_to_fail_decides() {
    let started = json!({ "startTime": "2026-01-01T00:00:00Z" });
    let base = json!({ "parallelism": 1, "completions": 1 });
    let with = |more: Value| {
        let mut spec = base.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let per_index = |max: Value| {
        json!({ "parallelism": 3, "completions": 3, "completionMode": "Indexed",
            "backoffLimit": 99, "backoffLimitPerIndex": 1, "maxFailedIndexes": max })
    };
    let cases = [
        (with(json!({ "backoffLimit": 1 })), started.clone(), "f f r", "xp2 BackoffLimitExceeded"),
        (
            with(json!({ "backoffLimit": 2 })),
            json!({ "failed": 2 }),
            "f r",
            "xp1 BackoffLimitExceeded",
        ),
        (
            with(json!({ "activeDeadlineSeconds": 3600 })),
            started.clone(),
            "r",
            "xp0 DeadlineExceeded",
        ),
        (with(json!({ "activeDeadlineSeconds": 3601 })), started.clone(), "r", ""),
        (per_index(json!(0)), json!({}), "f0!1 r1 r2", "xp1 xp2 MaxFailedIndexesExceeded"),
        (per_index(json!(null)), json!({}), "f0!1 s1 s2", "FailedIndexes"),
        (per_index(json!(null)), json!({}), "f0!0 s1 s2", "+0"),
    ];
    for (spec, status, pods, expected) in cases {
        let plan = decided(&job(spec.clone(), status), pods);
        assert_eq!(summary(&plan), expected, "{spec} {pods}");
    }
}

/// Each row has several reasons to finish.
#[test]
fn c_113_c_118_reasons_to_finish_are_checked_in_order() {
    let indexed = |more: Value| {
        let mut spec = json!({ "parallelism": 2, "completions": 2, "completionMode": "Indexed",
            "backoffLimit": 99 });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let ended = |type_: &str| {
        json!({ "startTime": "2026-01-01T00:00:00Z", "conditions": [
            { "type": type_, "status": "True", "reason": "Earlier", "message": "m" }] })
    };
    let started = json!({ "startTime": "2026-01-01T00:00:00Z" });
    let enough = json!({ "rules": [{ "succeededIndexes": "0" }] });
    let by_rule = json!({ "rules": [{ "action": "FailJob", "onPodConditions": [
        { "type": "DisruptionTarget", "status": "True" }] }] });
    let too_often = json!({ "backoffLimit": 0, "successPolicy": enough });
    let too_late = json!({ "backoffLimit": 0, "activeDeadlineSeconds": 60 });
    let by_index = |more: Value| {
        let mut spec = indexed(json!({ "backoffLimitPerIndex": 0, "maxFailedIndexes": 0 }));
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let cases = [
        (indexed(too_often.clone()), ended("SuccessCriteriaMet"), "s0 f1", "Earlier"),
        (indexed(too_often.clone()), ended("FailureTarget"), "s0 f1", "Earlier"),
        (
            indexed(json!({ "backoffLimit": 0, "podFailurePolicy": by_rule })),
            started.clone(),
            "s0 d1",
            "PodFailurePolicy",
        ),
        (indexed(too_late), started.clone(), "s0 f1", "BackoffLimitExceeded"),
        (indexed(too_often), started.clone(), "s0 f1", "BackoffLimitExceeded"),
        (
            by_index(json!({ "activeDeadlineSeconds": 60 })),
            started.clone(),
            "s0 f1",
            "DeadlineExceeded",
        ),
        (
            by_index(json!({ "successPolicy": enough })),
            started.clone(),
            "s0 f1",
            "MaxFailedIndexesExceeded",
        ),
        (
            by_index(json!({ "maxFailedIndexes": 1, "successPolicy": enough })),
            started.clone(),
            "s0 f1",
            "FailedIndexes",
        ),
        (indexed(json!({ "successPolicy": enough })), started.clone(), "s0 s1", "SuccessPolicy"),
        (indexed(json!({})), started, "s0 s1", "CompletionsReached"),
    ];
    for (spec, status, pods, expected) in cases {
        let plan = decided(&job(spec.clone(), status.clone()), pods);
        assert_eq!(summary(&plan), expected, "{spec} {status} {pods}");
    }
}

#[test]
fn c_117_a_failed_pod_stays_until_its_index_has_a_new_pod() {
    let spec = json!({ "parallelism": 2, "completions": 2, "completionMode": "Indexed",
        "backoffLimit": 99, "backoffLimitPerIndex": 3 });
    let plan = decided(&job(spec.clone(), json!({})), "f0!1 r1");
    assert_eq!(summary(&plan), "+0");
    assert_eq!(pods::index_failures(&plan.create[0]).failures, 2);
    assert!(plan.release.is_empty(), "the failure count of its index would be lost");
    let plan = decided(&job(spec, json!({})), "f0!1 r0!2 r1");
    assert_eq!(plan.release.len(), 1);
    assert_eq!(plan.status.failed_indexes.as_deref(), Some(""));
}

#[test]
fn c_117_t_ctrl_28_failed_pods_are_released_if_no_new_pod_will_come() {
    let spec = json!({ "parallelism": 2, "completions": 2, "completionMode": "Indexed",
        "backoffLimitPerIndex": 1 });
    let (now, terminating) = (NOW.parse().unwrap(), pods("t0 f1"));
    let mut job = job(spec, json!({}));
    let plan = decide(&job, &terminating, &Record::default(), false, now);
    assert_eq!(plan.release.len(), 0, "new pods will come");
    let plan = decide(&job, &terminating, &Record::default(), true, now);
    assert_eq!(plan.release.len(), 2, "the namespace is terminating");
    job.metadata.deletion_timestamp = Some(Time(now));
    let plan = decide(&job, &terminating, &Record::default(), false, now);
    assert_eq!((plan.release.len(), plan.create.len()), (2, 0), "the Job is being deleted");
    assert_eq!(plan.status.uncounted_terminated_pods.unwrap().failed.unwrap(), ["u0", "u1"]);
}

/// As after a crash between writing the list and removing the first finalizer.
#[test]
fn c_109_listed_pods_are_released_even_if_the_list_is_full() {
    let spec = json!({ "parallelism": 600, "completions": 600 });
    let all = "s ".repeat(501);
    let first = decided(&job(spec.clone(), json!({})), &all);
    let listed = first.status.uncounted_terminated_pods.clone().unwrap().succeeded.unwrap();
    assert_eq!((listed.len(), first.release.len(), first.more), (500, 500, true));
    // The pod that is not in the list comes before some that are.
    let mut again = pods(&all);
    again.rotate_right(1);
    let status = serde_json::to_value(first.status).unwrap();
    let now = NOW.parse().unwrap();
    let plan = decide(&job(spec, status), &again, &Record::default(), false, now);
    assert_eq!((plan.release.len(), plan.more), (500, true));
}

/// C-211: the status of a Job is written in a safe order.
#[test]
fn c_109_t_ctrl_24_a_finished_pod_is_listed_then_released_then_counted() {
    let spec = json!({ "parallelism": 2, "completions": 3 });
    let first = decided(&job(spec.clone(), json!({})), "s r");
    let listed = first.status.uncounted_terminated_pods.clone().unwrap();
    assert_eq!(listed.succeeded.unwrap(), ["u0"]);
    assert_eq!(first.status.succeeded, None);
    assert_eq!(first.release.len(), 1);
    // After a crash behind the list: the pod is released again and not listed twice.
    let status = json!({ "uncountedTerminatedPods": { "succeeded": ["u0"] } });
    let again = decided(&job(spec.clone(), status.clone()), "s r");
    assert_eq!(again.release.len(), 1);
    assert_eq!(again.status.succeeded, None);
    // After a crash behind the release: the pod is counted.
    for pods in ["s' r", "r"] {
        let counted = decided(&job(spec.clone(), status.clone()), pods);
        // In the second row the pod of the UID no longer exists.
        let expected = if pods == "r" { "u9" } else { "u0" };
        let status = json!({ "uncountedTerminatedPods": { "succeeded": [expected] } });
        let counted_gone = decided(&job(spec.clone(), status), pods);
        let plan = if pods == "r" { counted_gone } else { counted };
        assert_eq!(plan.status.succeeded, Some(1), "{pods}");
        assert_eq!(plan.status.uncounted_terminated_pods, Some(Default::default()));
    }
}

/// C-211: the status of a Job is written in a safe order.
#[test]
fn c_18_c_110_zero_counts_are_written_where_clients_expect_them() {
    let status = decided(&job(json!({ "parallelism": 1, "completions": 1 }), json!({})), "").status;
    assert_eq!((status.ready, status.terminating), (Some(0), Some(0)));
    assert_eq!(status.uncounted_terminated_pods, Some(Default::default()));
    assert!(status.start_time.is_some());
}

#[test]
fn c_119_suspending_records_an_event_and_clears_the_start_time() {
    let spec = json!({ "parallelism": 1, "completions": 1, "suspend": true });
    let plan = decided(&job(spec, json!({ "startTime": NOW })), "r");
    assert_eq!(plan.event, Some(("Suspended", "Job suspended")));
    assert_eq!(plan.status.start_time, None);
    assert!(plan.status.uncounted_terminated_pods.unwrap().failed.is_none(), "T-CTRL-27");
    let condition = plan.status.conditions.unwrap().remove(0);
    assert_eq!(condition.reason.as_deref(), Some("JobSuspended"));
    let spec = json!({ "parallelism": 1, "completions": 1 });
    let suspended = json!({ "conditions": [{ "type": "Suspended", "status": "True" }] });
    let plan = decided(&job(spec, suspended), "");
    assert_eq!(plan.event, Some(("Resumed", "Job resumed")));
    assert_eq!(summary(&plan), "+");
}

/// C-211: the interim condition comes first. C-111: pods that were still running count as failed.
#[test]
fn c_115_t_ctrl_26_a_job_finishes_when_all_pods_are_counted_and_none_is_running() {
    let now = NOW.parse().unwrap();
    let spec = json!({ "parallelism": 1, "completions": 1, "backoffLimit": 0 });
    let plan = decided(&job(spec, json!({})), "f r");
    let finish = plan.finish.clone().unwrap();
    let conditions = plan.status.conditions.clone().unwrap();
    assert_eq!(conditions[0].type_, "FailureTarget");
    assert_eq!(plan.status.uncounted_terminated_pods.clone().unwrap().failed.unwrap().len(), 2);
    let mut status = plan.status;
    assert!(!counting::end(&mut status, &finish, now), "not counted");
    counting::settle(&mut status, |_| false);
    assert_eq!(status.failed, Some(2));
    assert!(!counting::end(&mut status, &finish, now), "one is terminating");
    status.terminating = Some(0);
    assert!(counting::end(&mut status, &finish, now));
    assert_eq!(status.conditions.unwrap()[1].type_, "Failed");
    assert_eq!(status.completion_time, None);
}

/// C-111: neither in the status nor towards the limit.
#[test]
fn c_111_ignored_failures_do_not_count() {
    let ignored = json!({ "parallelism": 1, "completions": 1, "backoffLimit": 0,
        "podFailurePolicy": { "rules": [{ "action": "Ignore", "onPodConditions": [
            { "type": "DisruptionTarget", "status": "True" }] }] } });
    let mut all = pods("f");
    let disrupted = json!([{ "type": "DisruptionTarget", "status": "True" }]);
    let status = Arc::make_mut(&mut all[0]).status.as_mut().unwrap();
    status.conditions = serde_json::from_value(disrupted).unwrap();
    let plan =
        decide(&job(ignored, json!({})), &all, &Record::default(), false, NOW.parse().unwrap());
    assert_eq!(plan.finish, None);
    assert_eq!(plan.release.len(), 1, "it is released");
    assert_eq!(plan.status.uncounted_terminated_pods, Some(Default::default()));
}

/// C-121: the next reconcile is exactly at the deadline.
#[test]
fn c_121_next_reconcile_is_at_the_deadline() {
    let spec = json!({ "parallelism": 1, "completions": 1, "activeDeadlineSeconds": 3607 });
    let plan = decided(&job(spec, json!({ "startTime": "2026-01-01T00:00:00Z" })), "r");
    assert_eq!(plan.next, Some(Duration::from_secs(7)));
}
