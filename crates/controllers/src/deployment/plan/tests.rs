//! Each row is a Deployment with its sets, and what one reconcile does.

use super::super::rollback;
use super::*;
use k8s_openapi::api::apps::v1::DeploymentCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T01:00:00Z";

fn deployment(replicas: i32, surge: Value, unavailable: Value) -> Deployment {
    typed::from_value(json!({
        "metadata": { "namespace": "a", "name": "web", "uid": "d", "generation": 1 },
        "spec": {
            "replicas": replicas, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10,
            "selector": { "matchLabels": { "app": "web" } },
            "strategy": { "type": "RollingUpdate",
                "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } },
            "template": template("new"),
        },
    }))
    .unwrap()
}

fn template(image: &str) -> Value {
    json!({ "metadata": { "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "c", "image": image }] } })
}

/// Older sets have smaller numbers.
fn set(
    number: u32,
    image: &str,
    size: i32,
    available: i32,
    sized_for: (i32, i32),
) -> Arc<ReplicaSet> {
    Arc::new(
        typed::from_value(json!({
            "metadata": {
                "namespace": "a", "name": format!("web-{number}"), "uid": format!("s{number}"),
                "generation": 1, "creationTimestamp": format!("2026-01-01T00:00:{number:02}Z"),
                "annotations": {
                    "deployment.kubernetes.io/revision": number.to_string(),
                    "deployment.kubernetes.io/desired-replicas": sized_for.0.to_string(),
                    "deployment.kubernetes.io/max-replicas": sized_for.1.to_string(),
                },
            },
            "spec": { "replicas": size, "selector": {}, "template": template(image) },
            "status": { "replicas": size, "readyReplicas": available, "observedGeneration": 1,
                        "availableReplicas": available, "terminatingReplicas": 0 },
        }))
        .unwrap(),
    )
}

fn planned(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Plan {
    decide(deployment, sets, |_| false, NOW.parse().unwrap())
}

/// The sizes of all sets after the plan, in order of their names.
fn sizes(plan: &Plan, sets: &[Arc<ReplicaSet>]) -> Vec<i32> {
    let after = |before: &Arc<ReplicaSet>| {
        let change = plan.update.iter().find(|change| name(&change.after) == name(before.as_ref()));
        change.map_or_else(|| size(before), |change| size(&change.after))
    };
    sets.iter().map(after).collect()
}

#[test]
fn c_40_t_ctrl_9_surge_rounds_up_and_unavailable_down() {
    let cases = [
        (1, "25%", "25%", (1, 0)),
        (3, "25%", "25%", (1, 0)),
        (4, "25%", "25%", (1, 1)),
        (10, "25%", "25%", (3, 2)),
        (10, "1%", "0%", (1, 0)),
        (10, "0%", "1%", (0, 1)),
        (0, "25%", "25%", (0, 0)),
    ];
    for (replicas, surge, unavailable, expected) in cases {
        let limits = RolloutLimits::of(&deployment(replicas, json!(surge), json!(unavailable)));
        assert_eq!(
            (limits.surge, limits.unavailable),
            expected,
            "{replicas} {surge} {unavailable}"
        );
    }
}

#[test]
fn c_29_c_31_the_first_set_has_its_size_and_the_deployment_its_revision() {
    let plan = planned(&deployment(3, json!("25%"), json!("25%")), &[]);
    let set = plan.create.unwrap();
    let hash = set.metadata.labels.as_ref().unwrap()["pod-template-hash"].clone();
    assert_eq!(name(&set), format!("web-{hash}"));
    assert_eq!(size(&set), 3);
    let annotations = set.metadata.annotations.unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "1");
    assert_eq!(annotations["deployment.kubernetes.io/desired-replicas"], "3");
    assert_eq!(annotations["deployment.kubernetes.io/max-replicas"], "4");
    let spec = set.spec.unwrap();
    assert_eq!(spec.selector.match_labels.unwrap()["pod-template-hash"], hash);
    assert_eq!(
        plan.deployment.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"],
        "1"
    );
    let condition = plan.deployment.status.unwrap().conditions.unwrap().remove(0);
    assert_eq!(condition.reason.as_deref(), Some("NewReplicaSetCreated"));
    assert_eq!(condition.message, Some(format!("Created new replica set \"web-{hash}\"")));
}

/// T-CTRL-11: unavailable pods are deleted first, then those of the oldest set, and enough stay available.
#[test]
fn c_41_c_42_c_44_a_rollout_scales_up_then_down_and_waits_for_available_pods() {
    let ten = deployment(10, json!(3), json!(2));
    let at = (10, 13);
    let cases = [
        (
            "the new set grows into the surge",
            vec![set(1, "old", 10, 10, at), set(2, "new", 0, 0, at)],
            vec![10, 3],
        ),
        (
            "then the old set shrinks",
            vec![set(1, "old", 10, 10, at), set(2, "new", 3, 0, at)],
            vec![8, 3],
        ),
        (
            "then the new set grows",
            vec![set(1, "old", 8, 8, at), set(2, "new", 3, 0, at)],
            vec![8, 5],
        ),
        ("and waits", vec![set(1, "old", 8, 8, at), set(2, "new", 5, 0, at)], vec![8, 5]),
        (
            "unavailable pods first",
            vec![set(1, "x", 4, 4, at), set(2, "old", 6, 4, at), set(3, "new", 3, 0, at)],
            vec![4, 4, 3],
        ),
        (
            "oldest first",
            vec![set(1, "x", 4, 4, at), set(2, "old", 4, 4, at), set(3, "new", 5, 5, at)],
            vec![0, 3, 5],
        ),
        ("the end", vec![set(1, "old", 2, 2, at), set(2, "new", 10, 10, at)], vec![0, 10]),
    ];
    for (what, sets, expected) in cases {
        assert_eq!(sizes(&planned(&ten, &sets), &sets), expected, "{what}");
    }
}

/// T-EDGE-18: as upstream, terminating pods do not count towards the surge and do not delay completion; the status has
/// their number.
#[test]
fn t_ctrl_10_t_ctrl_12_terminating_pods_do_not_delay_a_rollout() {
    let three = deployment(3, json!(1), json!(0));
    let ending = |mut set: Arc<ReplicaSet>, pods| {
        let status = Arc::make_mut(&mut set).status.as_mut().unwrap();
        status.terminating_replicas = Some(pods);
        set
    };
    let at = (3, 4);
    let sets = [ending(set(1, "old", 2, 2, at), 5), set(2, "new", 1, 1, at)];
    assert_eq!(sizes(&planned(&three, &sets), &sets), [2, 2], "T-CTRL-10: the surge is free");
    let sets = [ending(set(1, "old", 0, 0, at), 5), set(2, "new", 3, 3, at)];
    let status = planned(&three, &sets).deployment.status.unwrap();
    assert_eq!(status.terminating_replicas, Some(5));
    let conditions = status.conditions.unwrap();
    let progress = conditions.iter().find(|c| c.type_ == "Progressing").unwrap();
    assert_eq!(progress.reason.as_deref(), Some("NewReplicaSetAvailable"), "T-CTRL-12");
}

#[test]
fn c_47_c_48_c_49_scaling_is_spread_in_proportion() {
    let scaled = |replicas| deployment(replicas, json!(3), json!(2));
    let at = (10, 13);
    let cases = [
        ("up", 30, vec![set(1, "old", 8, 8, at), set(2, "new", 5, 0, at)], vec![20, 13]),
        ("down", 5, vec![set(1, "old", 8, 8, at), set(2, "new", 5, 0, at)], vec![5, 3]),
        ("to none", 0, vec![set(1, "old", 8, 8, at), set(2, "new", 5, 0, at)], vec![0, 0]),
        (
            "only one is active",
            5,
            vec![set(1, "old", 0, 0, at), set(2, "new", 10, 10, at)],
            vec![0, 5],
        ),
        // Of two equal sets the newer grows and the older shrinks; after a rollback the older set is the new one.
        ("alike, up", 11, vec![set(1, "old", 6, 6, at), set(2, "new", 6, 0, at)], vec![6, 8]),
        ("back, up", 11, vec![set(1, "new", 6, 0, at), set(2, "old", 6, 6, at)], vec![6, 8]),
        ("back, down", 8, vec![set(1, "new", 6, 0, at), set(2, "old", 6, 6, at)], vec![5, 6]),
    ];
    for (what, replicas, sets, expected) in cases {
        assert_eq!(sizes(&planned(&scaled(replicas), &sets), &sets), expected, "{what}");
    }
}

#[test]
fn c_33_a_rollback_makes_the_old_set_the_new_one_with_the_next_revision() {
    let sets = [set(1, "new", 0, 0, (3, 4)), set(2, "old", 3, 3, (3, 4))];
    let plan = planned(&deployment(3, json!(1), json!(0)), &sets);
    assert!(plan.create.is_none());
    let new = &plan.update.iter().find(|change| name(&change.after) == "web-1").unwrap().after;
    let annotations = new.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "3");
    assert_eq!(annotations["deployment.kubernetes.io/revision-history"], "1");
    assert_eq!(size(new), 1);
}

/// The revision of an adopted set can be any text.
#[test]
fn c_31_revisions_have_64_bits_and_invalid_ones_count_as_zero() {
    let cases = [("3546343826724305832", "3546343826724305833"), ("first", "1"), ("", "1")];
    for (old, expected) in cases {
        let mut adopted = set(1, "old", 3, 3, (3, 4));
        let annotations = &mut Arc::make_mut(&mut adopted).metadata.annotations;
        annotations
            .as_mut()
            .unwrap()
            .insert("deployment.kubernetes.io/revision".to_owned(), old.to_owned());
        let plan = planned(&deployment(3, json!(1), json!(0)), &[adopted]);
        let of = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
            meta.annotations.as_ref().unwrap()["deployment.kubernetes.io/revision"].clone()
        };
        assert_eq!(of(&plan.create.unwrap().metadata), expected);
        assert_eq!(of(&plan.deployment.metadata), expected, "the Deployment has the same revision");
    }
}

#[test]
fn c_36_history_beyond_the_limit_is_deleted_when_the_rollout_is_complete() {
    let mut deployment = deployment(1, json!(1), json!(0));
    deployment.spec.as_mut().unwrap().revision_history_limit = Some(1);
    deployment.status = Some(
        serde_json::from_value(json!({ "observedGeneration": 1, "replicas": 1,
            "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1 }))
        .unwrap(),
    );
    let at = (1, 2);
    let sets = [
        set(1, "a", 0, 0, at),
        set(2, "b", 0, 0, at),
        set(3, "c", 0, 0, at),
        set(4, "new", 1, 1, at),
    ];
    let deleted: Vec<String> = planned(&deployment, &sets)
        .delete
        .iter()
        .map(|set| name(set.as_ref()).to_owned())
        .collect();
    assert_eq!(deleted, ["web-1", "web-2"]);
    deployment.status = None;
    assert!(planned(&deployment, &sets).delete.is_empty(), "not before it is complete");
}

#[test]
fn c_51_t_ctrl_13_recreate_waits_for_the_last_old_pod() {
    let mut deployment = deployment(3, json!(null), json!(null));
    deployment.spec.as_mut().unwrap().strategy =
        Some(serde_json::from_value(json!({ "type": "Recreate" })).unwrap());
    let at = (3, 3);
    let old = [set(1, "old", 3, 3, at)];
    let plan = planned(&deployment, &old);
    assert!(plan.create.is_none());
    assert_eq!(sizes(&plan, &old), [0]);
    let empty = [set(1, "old", 0, 0, at)];
    let waiting = decide(&deployment, &empty, |_| true, NOW.parse().unwrap());
    assert!(waiting.create.is_none() && waiting.update.is_empty());
    assert_eq!(size(&planned(&deployment, &empty).create.unwrap()), 3);
}

#[test]
fn c_57_c_58_conditions_report_progress_and_the_exceeded_deadline() {
    let mut deployment = deployment(1, json!(1), json!(0));
    let at = (1, 2);
    let stuck = [set(1, "new", 1, 0, at)];
    let first = planned(&deployment, &stuck);
    assert_eq!(first.next, Some(Duration::from_secs(601)));
    let progressing = |plan: &Plan| {
        let conditions = plan.deployment.status.clone().unwrap().conditions.unwrap();
        let found = conditions.into_iter().find(|condition| condition.type_ == "Progressing");
        found.map(|condition| (condition.status, condition.reason.unwrap()))
    };
    let is = |status: &str, reason: &str| Some((status.to_owned(), reason.to_owned()));
    assert_eq!(progressing(&first), is("True", "ReplicaSetUpdated"));
    deployment.status = first.deployment.status.clone();
    let later = "2026-01-01T01:10:01Z".parse().unwrap();
    let late = decide(&deployment, &stuck, |_| false, later);
    assert_eq!(progressing(&late), is("False", "ProgressDeadlineExceeded"));
    assert_eq!(late.next, None);
    deployment.status = late.deployment.status.clone();
    let done = [set(1, "new", 1, 1, at)];
    let done = decide(&deployment, &done, |_| false, later);
    assert_eq!(progressing(&done), is("True", "NewReplicaSetAvailable"));
    deployment.status = done.deployment.status.clone();
    let again = decide(&deployment, &stuck, |_| false, later);
    assert_eq!(progressing(&again), is("True", "NewReplicaSetAvailable"), "C-58");
    deployment.spec.as_mut().unwrap().progress_deadline_seconds = Some(i32::MAX);
    assert_eq!(progressing(&decide(&deployment, &stuck, |_| false, later)), None);
}

#[test]
fn c_57_without_a_deadline_there_is_no_progress_condition() {
    for (deadline, has_condition) in [(600, true), (i32::MAX, false)] {
        let mut web = deployment(3, json!(1), json!(0));
        web.spec.as_mut().unwrap().progress_deadline_seconds = Some(deadline);
        super::super::progress::set_create_failed(&mut web, "no".into(), NOW.parse().unwrap());
        let conditions = web.status.unwrap_or_default().conditions.unwrap_or_default();
        assert_eq!(!conditions.is_empty(), has_condition, "{deadline}");
    }
}

#[test]
fn c_53_a_paused_deployment_creates_no_set() {
    let mut deployment = deployment(4, json!(1), json!(0));
    deployment.spec.as_mut().unwrap().paused = Some(true);
    let sets = [set(1, "old", 3, 3, (3, 4))];
    let plan = planned(&deployment, &sets);
    assert!(plan.create.is_none());
    assert_eq!(sizes(&plan, &sets), [4]);
    let conditions = plan.deployment.status.unwrap().conditions.unwrap();
    let paused = &conditions[0];
    assert_eq!(paused.reason.as_deref(), Some("DeploymentPaused"));
    assert_eq!(paused.message.as_deref(), Some("Deployment is paused"));
}

#[test]
fn c_56_availability_allows_for_max_unavailable() {
    let sets = [set(1, "old", 1, 1, (4, 5)), set(2, "new", 4, 2, (4, 5))];
    let status = planned(&deployment(4, json!(1), json!(1)), &sets).deployment.status.unwrap();
    assert_eq!(status.replicas, Some(5));
    assert_eq!(status.updated_replicas, Some(4));
    assert_eq!(status.available_replicas, Some(3));
    assert_eq!(status.unavailable_replicas, Some(2));
    assert_eq!(status.terminating_replicas, Some(0));
    let conditions = status.conditions.unwrap();
    let available = conditions.iter().find(|c| c.type_ == "Available").unwrap();
    assert_eq!(available.reason.as_deref(), Some("MinimumReplicasAvailable"));
}

fn with_annotations(mut deployment: Deployment, annotations: Value) -> Deployment {
    deployment.metadata.annotations = serde_json::from_value(annotations).unwrap();
    deployment
}

fn conditions(plan: &Plan) -> Vec<DeploymentCondition> {
    plan.deployment.status.clone().unwrap().conditions.unwrap()
}

fn reason(plan: &Plan, type_: &str) -> Option<String> {
    conditions(plan).into_iter().find(|condition| condition.type_ == type_)?.reason
}

#[test]
fn c_17_conditions_keep_their_times_if_unchanged() {
    let then = "2026-01-01T00:30:00Z";
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({ "type": type_, "status": status, "reason": reason, "message": "as it was",
                "lastUpdateTime": then, "lastTransitionTime": then })
    };
    let mut web = deployment(2, json!(1), json!(0));
    web.status = serde_json::from_value(json!({
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 1,
        "conditions": [
            condition("Progressing", "True", "NewReplicaSetCreated"),
            condition("Available", "False", "MinimumReplicasUnavailable"),
            condition("Mine", "True", "Because"),
        ],
    }))
    .unwrap();
    let before = web.status.clone().unwrap().conditions.unwrap();
    let plan = planned(&web, &[set(1, "new", 2, 1, (2, 3))]);
    let after = conditions(&plan);
    let types: Vec<&str> = after.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["Available", "Mine", "Progressing"], "changed conditions come last");
    assert_eq!(after[0], before[1], "same status and reason: unchanged, including the message");
    let (then, now) = (Time(then.parse().unwrap()), Time(NOW.parse().unwrap()));
    assert_eq!(after[2].reason.as_deref(), Some("ReplicaSetUpdated"));
    assert_eq!(after[2].last_transition_time, Some(then));
    assert_eq!(after[2].last_update_time, Some(now.clone()));
    let available = conditions(&planned(&web, &[set(1, "new", 2, 2, (2, 3))]));
    let available = available.iter().find(|condition| condition.type_ == "Available").unwrap();
    assert_eq!((available.status.as_str(), &available.last_transition_time), ("True", &Some(now)));
}

#[test]
fn c_30_annotations_are_copied_except_their_own() {
    let own = json!({
        "note": "new", "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "deployment.kubernetes.io/revision": "70",
        "deployment.kubernetes.io/revision-history": "1,2",
        "deployment.kubernetes.io/desired-replicas": "70",
        "deployment.kubernetes.io/max-replicas": "70",
        "deprecated.deployment.rollback.to": "not a number",
    });
    let web = with_annotations(deployment(3, json!(1), json!(0)), own);
    let made = planned(&web, &[]).create.unwrap().metadata.annotations.unwrap();
    assert_eq!(
        json!(made),
        json!({ "note": "new", "deployment.kubernetes.io/revision": "1",
                "deployment.kubernetes.io/desired-replicas": "3",
                "deployment.kubernetes.io/max-replicas": "4" })
    );
    // The set keeps an annotation that the Deployment no longer has.
    let mut there = set(1, "new", 3, 3, (3, 4));
    let annotations = Arc::make_mut(&mut there).metadata.annotations.as_mut().unwrap();
    annotations.extend([("note".into(), "old".into()), ("gone".into(), "x".into())]);
    let plan = planned(&web, &[there]);
    let after = plan.update[0].after.metadata.annotations.clone().unwrap();
    assert_eq!((after["note"].as_str(), after["gone"].as_str()), ("new", "x"));
    assert_eq!(after["deployment.kubernetes.io/revision"], "1");
}

#[test]
fn c_30_oldest_revisions_are_dropped_beyond_2000_characters() {
    let long = (1..=600).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    assert!(long.len() > 2000);
    let mut old = set(1, "new", 0, 0, (1, 2));
    let annotations = Arc::make_mut(&mut old).metadata.annotations.as_mut().unwrap();
    annotations.insert("deployment.kubernetes.io/revision".into(), "601".into());
    annotations.insert("deployment.kubernetes.io/revision-history".into(), long);
    let mut later = set(2, "old", 1, 1, (1, 2));
    let annotations = Arc::make_mut(&mut later).metadata.annotations.as_mut().unwrap();
    annotations.insert("deployment.kubernetes.io/revision".into(), "602".into());
    let plan = planned(&deployment(1, json!(1), json!(0)), &[old, later]);
    let again = plan.update.iter().find(|change| name(&change.after) == "web-1").unwrap();
    let annotations = again.after.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "603");
    let history = &annotations["deployment.kubernetes.io/revision-history"];
    assert!(history.len() <= 2000 && history.len() > 1990, "{}", history.len());
    assert!(history.ends_with("599,600,601") && !history.starts_with("1,"), "{history}");
}

#[test]
fn c_38_a_reconcile_checks_deletion_pause_rollback_scaling_and_strategy_in_order() {
    let sets = [set(1, "old", 3, 3, (3, 4))];
    let rolls = planned(&deployment(3, json!(1), json!(0)), &sets);
    assert!(rolls.create.is_some(), "only the strategy applies");

    let scaled = planned(&deployment(5, json!(1), json!(0)), &sets);
    assert!(scaled.create.is_none(), "scaling comes before the strategy");
    assert_eq!(sizes(&scaled, &sets), [5]);
    let empty = [set(1, "old", 0, 0, (3, 4))];
    let resting = planned(&deployment(5, json!(1), json!(0)), &empty);
    assert!(resting.create.is_some(), "an empty set does not count as scaled");

    let back = json!({ "deprecated.deployment.rollback.to": "1" });
    let mut web = with_annotations(deployment(3, json!(1), json!(0)), back);
    assert!(rollback::decide(&web, &sets).is_some());
    web.spec.as_mut().unwrap().paused = Some(true);
    assert!(rollback::decide(&web, &sets).is_none(), "pause comes before rollback");
    assert!(planned(&web, &sets).create.is_none());

    web.metadata.deletion_timestamp = Some(Time(NOW.parse().unwrap()));
    web.spec.as_mut().unwrap().paused = None;
    web.spec.as_mut().unwrap().replicas = Some(9);
    let terminating = planned(&web, &sets);
    assert!(rollback::decide(&web, &sets).is_none());
    assert!(
        terminating.create.is_none()
            && terminating.update.is_empty()
            && terminating.delete.is_empty()
    );
    assert_eq!(terminating.deployment.status.unwrap().replicas, Some(3), "only the status");
}

#[test]
fn c_45_min_ready_seconds_are_copied_to_the_new_set() {
    let mut web = deployment(3, json!(1), json!(0));
    web.spec.as_mut().unwrap().min_ready_seconds = Some(7);
    let sets = [set(1, "old", 0, 0, (3, 4)), set(2, "new", 3, 3, (3, 4))];
    let plan = planned(&web, &sets);
    let changed: Vec<&str> = plan.update.iter().map(|change| name(&change.after)).collect();
    assert_eq!(changed, ["web-2"], "only the new set");
    assert_eq!(plan.update[0].after.spec.as_ref().unwrap().min_ready_seconds, Some(7));
    assert_eq!(plan.update[0].event_message(), None);
}

/// T-CTRL-12: terminating pods do not delay completion.
#[test]
fn c_46_t_ctrl_12_a_rollout_is_complete_by_its_numbers() {
    let at = (2, 3);
    let mut terminating = set(1, "old", 0, 0, at);
    Arc::make_mut(&mut terminating).status.as_mut().unwrap().terminating_replicas = Some(2);
    let cases = [
        ("all new", vec![set(2, "new", 2, 2, at)], true),
        ("old pods terminating", vec![terminating, set(2, "new", 2, 2, at)], true),
        ("one is not available", vec![set(2, "new", 2, 1, at)], false),
        ("an old one is left", vec![set(1, "old", 1, 1, at), set(2, "new", 2, 2, at)], false),
        ("one is missing", vec![set(2, "new", 1, 1, at)], false),
    ];
    for (what, sets, complete) in cases {
        let plan = planned(&deployment(2, json!(1), json!(0)), &sets);
        let is_complete = reason(&plan, "Progressing").as_deref() == Some("NewReplicaSetAvailable");
        assert_eq!(is_complete, complete, "{what}");
    }
    // If the status is of an older spec, no history is deleted.
    let mut web = deployment(1, json!(1), json!(0));
    web.spec.as_mut().unwrap().revision_history_limit = Some(0);
    let sets = [set(1, "old", 0, 0, (1, 2)), set(2, "new", 1, 1, (1, 2))];
    for (observed, deleted) in [(1, 1), (0, 0)] {
        web.status = serde_json::from_value(json!({ "observedGeneration": observed,
            "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 }))
        .unwrap();
        assert_eq!(planned(&web, &sets).delete.len(), deleted, "{observed}");
    }
}

#[test]
fn c_50_t_ctrl_14_only_changes_of_size_record_events() {
    let sets = [set(1, "old", 8, 8, (10, 13)), set(2, "new", 5, 0, (10, 13))];
    let plan = planned(&deployment(30, json!(3), json!(2)), &sets);
    let messages: Vec<String> = plan.update.iter().filter_map(Change::event_message).collect();
    assert_eq!(
        messages,
        ["Scaled up replica set web-1 from 8 to 20", "Scaled up replica set web-2 from 5 to 13"]
    );
    let down = planned(&deployment(0, json!(3), json!(2)), &sets);
    let messages: Vec<String> = down.update.iter().filter_map(Change::event_message).collect();
    assert_eq!(messages[0], "Scaled down replica set web-1 from 8 to 0");
    // 9 plus a surge of 4 is the same size as 10 plus 3: only the annotations change.
    let same = [set(1, "old", 8, 8, (9, 13)), set(2, "new", 5, 0, (9, 13))];
    let plan = planned(&deployment(10, json!(3), json!(2)), &same);
    assert_eq!(plan.update.len(), 2);
    assert!(plan.update.iter().all(|change| change.event_message().is_none()));
}

#[test]
fn c_55_rollback_by_annotation() {
    let sets = [set(1, "first", 0, 0, (3, 4)), set(2, "second", 0, 0, (3, 4)), {
        let mut now = set(3, "new", 3, 3, (3, 4));
        let labels = json!({ "app": "web", "pod-template-hash": "x" });
        let template = Arc::make_mut(&mut now).spec.as_mut().unwrap().template.as_mut().unwrap();
        template.metadata.as_mut().unwrap().labels = serde_json::from_value(labels).unwrap();
        now
    }];
    let with_rollback = |to: &str| {
        let to = json!({ "deprecated.deployment.rollback.to": to, "mine": "x" });
        with_annotations(deployment(3, json!(1), json!(0)), to)
    };
    let not_found = "DeploymentRollbackRevisionNotFound";
    let cases = [
        (
            "2",
            false,
            "DeploymentRollback",
            "Rolled back deployment \"web\" to revision 2",
            "second",
        ),
        (
            "0",
            false,
            "DeploymentRollback",
            "Rolled back deployment \"web\" to revision 2",
            "second",
        ),
        ("1", false, "DeploymentRollback", "Rolled back deployment \"web\" to revision 1", "first"),
        ("9", true, not_found, "Unable to find the revision to rollback to.", "new"),
        (
            "3",
            true,
            "DeploymentRollbackTemplateUnchanged",
            "The rollback revision contains the same template as current deployment \"web\"",
            "new",
        ),
    ];
    for (to, warns, reason, message, image) in cases {
        let back = rollback::decide(&with_rollback(to), &sets).unwrap();
        let event = (back.is_warning, back.reason, back.message.as_str());
        assert_eq!(event, (warns, reason, message), "{to}");
        let annotations = back.after.metadata.annotations.unwrap();
        assert!(!annotations.contains_key("deprecated.deployment.rollback.to"), "{to}");
        let template = back.after.spec.unwrap().template;
        assert_eq!(template.spec.unwrap().containers[0].image.as_deref(), Some(image), "{to}");
        let labels = template.metadata.unwrap().labels.unwrap();
        assert!(!labels.contains_key("pod-template-hash"), "{to}");
    }
    let last = rollback::decide(&with_rollback("0"), &sets[..1]).unwrap();
    assert_eq!((last.reason, last.message.as_str()), (not_found, "Unable to find last revision."));
    assert!(rollback::decide(&deployment(3, json!(1), json!(0)), &sets).is_none());
}

#[test]
fn c_59_replica_failure_of_a_set_is_copied_to_the_deployment() {
    let failing = |number: u32, image: &str, message: &str| {
        let mut set = set(number, image, 1, 0, (1, 2));
        let failure = json!([{ "type": "ReplicaFailure", "status": "True", "message": message,
                               "reason": "FailedCreate" }]);
        let status = Arc::make_mut(&mut set).status.as_mut().unwrap();
        status.conditions = serde_json::from_value(failure).unwrap();
        set
    };
    let mut web = deployment(1, json!(1), json!(0));
    let message = |plan: &Plan| {
        let all = conditions(plan);
        all.into_iter().find(|one| one.type_ == "ReplicaFailure").and_then(|one| one.message)
    };
    let both = [failing(1, "old", "of the old"), failing(2, "new", "of the new")];
    assert_eq!(message(&planned(&web, &both)).as_deref(), Some("of the new"));
    let old = [failing(1, "old", "of the old"), set(2, "new", 1, 0, (1, 2))];
    let plan = planned(&web, &old);
    assert_eq!(message(&plan).as_deref(), Some("of the old"));
    web.status = plan.deployment.status;
    let healed = [set(1, "old", 1, 0, (1, 2)), set(2, "new", 1, 0, (1, 2))];
    assert_eq!(message(&planned(&web, &healed)), None);
}

#[test]
fn t_ctrl_10_terminating_pods_do_not_count() {
    let at = (10, 13);
    let sets = |terminating: i32| {
        let mut sets = [set(1, "old", 8, 8, at), set(2, "new", 3, 0, at)];
        for set in &mut sets {
            let status = Arc::make_mut(set).status.as_mut().unwrap();
            status.terminating_replicas = Some(terminating);
        }
        sets
    };
    let web = deployment(10, json!(3), json!(2));
    for terminating in [0, 50] {
        assert_eq!(
            sizes(&planned(&web, &sets(terminating)), &sets(terminating)),
            [8, 5],
            "{terminating}"
        );
    }
}
