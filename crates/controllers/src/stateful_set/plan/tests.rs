//! Each row is a set with its pods, and the steps of one reconcile.

use super::*;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T01:00:00Z";

fn set(replicas: i32, more: Value) -> StatefulSet {
    let mut spec = json!({
        "replicas": replicas, "serviceName": "db", "selector": {},
        "template": { "spec": { "containers": [] } },
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    let meta = json!({ "namespace": "a", "name": "db", "uid": "s", "generation": 2 });
    typed::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
}

/// `0n+` is pod 0 of the new revision, available; `1o-` pod 1 of the old one, not ready; `t` in place
/// of the sign is terminating, `f` failed, `p` pending.
fn pods(text: &str) -> Vec<Arc<Pod>> {
    text.split_whitespace().map(|text| Arc::new(pod(text))).collect()
}

fn pod(text: &str) -> Pod {
    let (ordinal, rest) = text.split_at(text.len() - 2);
    let (revision, state) = rest.split_at(1);
    let revision = if revision == "n" { "new" } else { "old" };
    let ready = if matches!(state, "+" | "t") { "True" } else { "False" };
    let deleted = (state == "t").then_some(NOW);
    let phase = match state {
        "f" => "Failed",
        "p" => "Pending",
        _ => "Running",
    };
    typed::from_value(json!({
        "metadata": {
            "name": format!("db-{ordinal}"), "uid": ordinal, "deletionTimestamp": deleted,
            "labels": { "controller-revision-hash": revision,
                "statefulset.kubernetes.io/pod-name": format!("db-{ordinal}"),
                "apps.kubernetes.io/pod-index": ordinal },
        },
        "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready,
                    "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
    }))
    .unwrap()
}

fn revision(name: &str) -> Revision {
    Revision { name: name.to_owned(), template: PodTemplateSpec::default() }
}

fn decided(set: &StatefulSet, text: &str) -> Plan {
    decide(set, &pods(text), &revision("old"), &revision("new"), 0, NOW.parse().unwrap())
}

fn steps(set: &StatefulSet, text: &str) -> String {
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap().replace("db-", "");
    let steps = decided(set, text).steps.into_iter().filter_map(|step| match step {
        Step::Create(pod) => {
            Some(format!("+{}{}", name(&pod), &identity::revision(&pod).unwrap()[..1]))
        }
        Step::Delete(pod) => Some(format!("-{}", name(&pod))),
        Step::Label(pod) => Some(format!("l{}", name(&pod))),
        Step::MakeClaims(_) | Step::OwnClaims(_) => None,
    });
    steps.collect::<Vec<_>>().join(" ")
}

#[test]
fn c_72_t_ctrl_15_t_ctrl_16_an_ordered_set_takes_one_step_at_a_time() {
    let three = set(3, json!({}));
    let one = set(1, json!({}));
    let cases = [
        (&three, "", "+0n"),
        (&three, "0n-", ""),
        (&three, "0n+", "+1n"),
        (&three, "0n+ 1n+", "+2n"),
        (&three, "0n+ 1n+ 2n+", ""),
        (&three, "0n+ 1nt 2n+", ""),
        (&three, "0n+ 1nf 2n+", "-1"),
        (&three, "0n+ 2n+", "+1n"),
        (&one, "0n+ 1n+ 2n+", "-2"),
        (&one, "0n+ 1n+ 2nt", ""),
        (&one, "0n- 1n+ 2n+", ""),
        (&one, "0n+ 1n+ 2n-", "-2"),
        (&one, "0n+ 1n- 2n+", "-2"),
        (&one, "0n+ 1n- 2n-", ""),
    ];
    for (set, pods, expected) in cases {
        assert_eq!(steps(set, pods), expected, "{pods}");
    }
}

/// As upstream: the controller waits for a pod that never gets ready, even if the template was rolled back. A pod that
/// a user deletes is created from the new revision.
#[test]
fn t_edge_20_a_broken_revision_blocks_its_own_rollback() {
    let three = set(3, json!({}));
    assert_eq!(steps(&three, "0n+ 1n+ 2o-"), "");
    assert_eq!(steps(&three, "0n+ 1n+ 2ot"), "");
    assert_eq!(steps(&three, "0n+ 1n+"), "+2n");
    assert_eq!(steps(&three, "0n+ 1n+ 2o+"), "-2", "a ready pod is replaced");
}

#[test]
fn c_73_t_ctrl_17_a_parallel_set_waits_only_for_occupied_ordinals() {
    let parallel = |replicas| set(replicas, json!({ "podManagementPolicy": "Parallel" }));
    let cases = [
        (3, "", "+0n +1n +2n"),
        (3, "0n- 1nt", "+2n"),
        (0, "0n+ 1n- 2n+", "-2 -1 -0"),
        (3, "0o+ 1o+ 2o+", "-2"),
        (3, "0o+ 1o+ 2n-", ""),
    ];
    for (replicas, pods, expected) in cases {
        assert_eq!(steps(&parallel(replicas), pods), expected, "{pods}");
    }
}

/// Steps of a batch run concurrently, so two of them must not write the same claim.
#[test]
fn c_65_c_73_the_claims_of_a_pod_are_written_by_one_step() {
    let template = json!([{ "metadata": { "name": "data" }, "spec": {} }]);
    let claims = |policy: &str, pods: &str| {
        let policy = json!({ "podManagementPolicy": policy, "volumeClaimTemplates": template });
        let steps =
            decided(&set(4, policy), pods).steps.into_iter().filter_map(|step| match step {
                Step::MakeClaims(pod) => Some(format!("m{}", pod.metadata.uid.clone().unwrap())),
                Step::OwnClaims(pod) => Some(format!("o{}", pod.metadata.uid.clone().unwrap())),
                _ => None,
            });
        steps.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(claims("Parallel", "0np 1np 2n- 3n+"), "m0 m1 o2 o3");
    assert_eq!(claims("OrderedReady", "0n+ 1np"), "o0 m1");
}

/// C-73: the cost of a reconcile depends on the existing pods, not on `spec.replicas`.
#[test]
fn c_73_a_reconcile_of_a_huge_set_creates_at_most_one_burst() {
    let parallel = set(100_000, json!({ "podManagementPolicy": "Parallel" }));
    let mut failed = decided(&parallel, "1n+ 700nf 701n+").steps;
    let last = failed.pop();
    assert!(matches!(&last, Some(Step::Delete(pod)) if pod.metadata.uid.as_deref() == Some("700")));
    let made = failed.iter().filter(|step| matches!(step, Step::Create(_))).count();
    assert_eq!((made, failed.len()), (BURST, BURST));
    let ordered = set(i32::MAX, json!({}));
    assert_eq!(steps(&ordered, "0n+ 1n+"), "+2n");
    assert_eq!(steps(&ordered, &format!("{}n+", i32::MAX - 1)), "+0n");
}

#[test]
fn c_71_c_74_c_75_t_ctrl_18_an_update_goes_down_to_the_partition() {
    let partition = |at: i32| {
        set(
            3,
            json!({ "updateStrategy": { "type": "RollingUpdate",
            "rollingUpdate": { "partition": at } } }),
        )
    };
    let on_delete = set(3, json!({ "updateStrategy": { "type": "OnDelete" } }));
    let from_five = set(
        3,
        json!({ "ordinals": { "start": 5 }, "updateStrategy": {
        "type": "RollingUpdate", "rollingUpdate": { "partition": 2 } } }),
    );
    let cases = [
        (&partition(0), "0o+ 1o+ 2o+", "-2"),
        (&partition(0), "0o+ 1o+ 2n+", "-1"),
        (&partition(0), "0o+ 1o+", "+2n"),
        (&partition(2), "0o+ 1o+ 2o+", "-2"),
        (&partition(2), "0o+ 1o+ 2n+", ""),
        (&partition(2), "1o+ 2n+", "+0o"),
        (&partition(9), "0o+ 1o+ 2o+", ""),
        (&on_delete, "0o+ 1o+ 2o+", ""),
        (&on_delete, "0o+ 1o+", "+2n"),
        (&from_five, "5o+ 6o+ 7o+", "-7"),
        (&from_five, "5o+ 6o+ 7n+", ""),
        (&from_five, "0o+ 5o+ 6o+ 7o+", "-0"),
    ];
    for (set, pods, expected) in cases {
        assert_eq!(steps(set, pods), expected, "{pods}");
    }
}

#[test]
fn c_78_t_ctrl_21_terminating_pods_count_as_ready_but_for_no_revision() {
    let status = decided(&set(3, json!({})), "0o+ 1ot 2n-").status;
    assert_eq!((status.replicas, status.ready_replicas), (3, Some(2)));
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(1), Some(1)));
    assert_eq!(status.available_replicas, Some(2));
    assert_eq!(status.collision_count, Some(0));
    let rolling = decided(&set(1, json!({})), "0o+");
    assert_eq!(
        rolling.status.current_replicas, None,
        "the delete of a rolling update is counted at once"
    );
    assert_eq!(rolling.status_before.current_replicas, Some(1));
}

#[test]
fn c_70_the_update_revision_becomes_current_when_all_pods_have_it() {
    let three = set(3, json!({}));
    let mut status = decided(&three, "0n+ 1n+ 2n+").status;
    finish(&three, &mut status);
    assert_eq!(status.current_revision.as_deref(), Some("new"));
    assert_eq!(status.current_replicas, Some(3));
    let mut status = decided(&three, "0n+ 1n+ 2n-").status;
    finish(&three, &mut status);
    assert_eq!(status.current_revision.as_deref(), Some("old"));
}

/// T-EDGE-20: its pods are deleted with it in no particular order; for ordered termination scale it to zero first.
#[test]
fn t_ctrl_20_a_set_being_deleted_takes_no_steps() {
    let mut set = set(3, json!({}));
    set.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(NOW.parse().unwrap()));
    assert_eq!(steps(&set, "0n+"), "");
}

#[test]
fn c_62_removed_labels_are_restored() {
    let mut all = pods("0n+");
    Arc::make_mut(&mut all[0]).metadata.labels.as_mut().unwrap().remove(identity::POD_NAME);
    let plan = decide(
        &set(1, json!({})),
        &all,
        &revision("new"),
        &revision("new"),
        0,
        NOW.parse().unwrap(),
    );
    assert!(matches!(plan.steps.as_slice(), [Step::Label(_)]), "{:?}", plan.steps);
}

#[test]
fn c_77_pods_outside_a_moved_range_are_deleted() {
    let from_one = set(3, json!({ "ordinals": { "start": 1 } }));
    let from_four = set(2, json!({ "ordinals": { "start": 4 } }));
    let parallel = set(3, json!({ "ordinals": { "start": 1 }, "podManagementPolicy": "Parallel" }));
    let cases = [
        (&from_one, "0n+ 1n+ 2n+", "+3n"),
        (&from_one, "0n+ 1n+ 2n+ 3n+", "-0"),
        (&from_one, "1n+ 2n+ 3n+", ""),
        (&from_four, "0n+ 1n+", "+4n"),
        (&from_four, "0n+ 1n+ 4n+ 5n+", "-1"),
        (&parallel, "0n+ 1n+ 2n+", "+3n -0"),
    ];
    for (set, pods, expected) in cases {
        assert_eq!(steps(set, pods), expected, "{pods}");
    }
}

/// C-76: the feature is off, so pods are updated one at a time.
#[test]
fn c_76_max_unavailable_is_ignored() {
    let three = set(
        4,
        json!({ "updateStrategy": { "type": "RollingUpdate",
            "rollingUpdate": { "maxUnavailable": 3 } } }),
    );
    assert_eq!(steps(&three, "0o+ 1o+ 2o+ 3o+"), "-3");
    assert_eq!(steps(&three, "0o+ 1o+ 2o+ 3n-"), "");
}

#[test]
fn c_63_claims_replace_volumes_of_the_same_name() {
    let claim = |name: &str| json!({ "metadata": { "name": name }, "spec": {} });
    let set = set(1, json!({ "volumeClaimTemplates": [claim("data"), claim("log")] }));
    let template: PodTemplateSpec = typed::from_value(json!({ "spec": {
        "containers": [],
        "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "own", "emptyDir": {} }],
    } }))
    .unwrap();
    let pod = identity::make(&set, &Revision { name: "new".into(), template }, 7);
    let volumes = serde_json::to_value(pod.spec.unwrap().volumes).unwrap();
    let of_claim = |name: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": format!("{name}-db-7") } });
    let own = json!({ "name": "own", "emptyDir": {} });
    assert_eq!(volumes, json!([own, of_claim("data"), of_claim("log")]));
}
