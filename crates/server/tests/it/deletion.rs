//! Deletion: grace periods, finalizers, propagation, and the responses to DELETE (T-API-1 to T-API-57 of the termination rules, A-78 to A-83).

use crate::cluster::{
    self, Cluster, DEPLOYMENTS, MAPS, PODS, deployment, held, labelled, map, now, pod, seconds,
    template, version,
};
use serde_json::{Value, json};
use server::authn::User;
use std::time::Duration;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const HOLD: &str = "example.com/hold";

fn path(name: &str) -> String {
    format!("{PODS}/{name}")
}

fn with_grace(name: &str, grace: i64) -> Value {
    let mut pod = pod(name);
    pod["spec"]["terminationGracePeriodSeconds"] = grace.into();
    pod
}

fn grace(object: &Value) -> &Value {
    &object["metadata"]["deletionGracePeriodSeconds"]
}

fn deleted_at(object: &Value) -> i64 {
    seconds(&object["metadata"]["deletionTimestamp"])
}

async fn phase(cluster: &Cluster, name: &str, phase: &str) -> Value {
    let status = json!({"status": {"phase": phase}});
    cluster.patch(&format!("{}/status", path(name)), status).await.ok()
}

/// Each row: the pod's own grace period, scheduled, phase, requested grace period, resulting grace period.
#[tokio::test]
async fn t_api_1_to_6_the_grace_period_of_a_pod_is_resolved_in_order() {
    let cluster = Cluster::start().await;
    let gone = None;
    let rows = [
        // T-API-1: that of the pod, 30 by default.
        (None, true, "Running", None, Some(30)),
        (Some(7), true, "Running", None, Some(7)),
        // T-API-2: the requested one replaces it, shorter or longer.
        (None, true, "Running", Some(120), Some(120)),
        (None, true, "Running", Some(5), Some(5)),
        (Some(0), true, "Running", None, gone),
        (None, true, "Running", Some(0), gone),
        // T-API-3: it is on no node, so nothing has to be terminated.
        (None, false, "Pending", None, gone),
        (None, false, "Pending", Some(60), gone),
        // T-API-4: its phase is terminal.
        (None, true, "Succeeded", Some(60), gone),
        (None, true, "Failed", None, gone),
        // T-API-5: these rules come before a negative value becomes 1 ...
        (None, false, "Pending", Some(-5), gone),
        (None, true, "Failed", Some(-5), gone),
        // ... T-API-6: a negative value becomes 1.
        (None, true, "Running", Some(-1), Some(1)),
        (None, true, "Pending", None, Some(30)),
    ];
    for (row, (own, scheduled, stage, asked, left)) in rows.into_iter().enumerate() {
        let name = format!("p{row}");
        let wanted = own.map_or_else(|| pod(&name), |own| with_grace(&name, own));
        if scheduled {
            cluster.bound(wanted).await;
        } else {
            cluster.make(PODS, wanted).await;
        }
        phase(&cluster, &name, stage).await;
        let query = asked.map_or(String::new(), |asked| format!("?gracePeriodSeconds={asked}"));
        let reply = cluster.delete(&format!("{}{query}", path(&name))).await;
        assert_eq!(reply.code, 200, "row {row}: {}", reply.body);
        assert_eq!(reply.body["kind"], "Pod", "row {row}");
        let there = cluster.get(&path(&name)).await;
        match left {
            None => assert_eq!(there.code, 404, "row {row}"),
            Some(left) => {
                assert_eq!(*grace(&there.body), left, "row {row}");
                assert!((deleted_at(&there.body) - now() - left).abs() <= 1, "row {row}");
            }
        }
    }
}

#[tokio::test]
async fn t_api_7_a_negative_grace_period_becomes_1_in_a_pod_and_stays_in_a_template() {
    let cluster = Cluster::start().await;
    let made = cluster.make(PODS, with_grace("p", -3)).await;
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 1);
    assert_eq!(cluster.read(&path("p")).await["spec"]["terminationGracePeriodSeconds"], 1);
    let mut wanted = deployment("d");
    wanted["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = (-3).into();
    let reply = cluster.post(DEPLOYMENTS, wanted).await;
    let kept = &reply.body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
    assert_eq!(*kept, -3, "{}", reply.body);
    assert_eq!(
        reply.warnings(),
        [
            "299 - \"spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1\""
        ]
    );
}

#[tokio::test]
async fn t_api_8_the_grace_period_of_a_pod_is_immutable() {
    let cluster = Cluster::start().await;
    cluster.make(PODS, pod("p")).await;
    let longer = json!({"spec": {"terminationGracePeriodSeconds": 60}});
    let reply = cluster.patch(&path("p"), longer).await;
    let message = reply.refused(422, "Invalid");
    assert!(message.contains("pod updates may not change fields other than"), "{message}");
    assert_eq!(reply.body["details"]["causes"][0]["reason"], "FieldValueForbidden");
}

#[tokio::test]
async fn t_api_9_a_create_cannot_set_a_deletion_timestamp() {
    let cluster = Cluster::start().await;
    let mut wanted = pod("p");
    wanted["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    wanted["metadata"]["deletionGracePeriodSeconds"] = 5.into();
    let made = cluster.make(PODS, wanted).await;
    assert_eq!(made["metadata"].get("deletionTimestamp"), None);
    assert_eq!(made["metadata"].get("deletionGracePeriodSeconds"), None);
}

#[tokio::test]
async fn t_api_10_a_mirror_pod_gets_the_normal_grace_period() {
    let cluster = Cluster::start().await;
    let mut mirror = pod("mirror");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    mirror["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": true}]);
    mirror["spec"]["nodeName"] = "n1".into();
    mirror["spec"]["automountServiceAccountToken"] = false.into();
    cluster.make(PODS, mirror).await;
    assert_eq!(*grace(&cluster.delete(&path("mirror")).await.ok()), 30);
}

#[tokio::test(start_paused = true)]
async fn t_api_11_the_first_delete_sets_timestamp_and_grace_period_in_one_write() {
    let cluster = Cluster::on_simulated_time().await;
    let before = cluster.bound(pod("p")).await;
    let mut watch = cluster.watch(&format!("{PODS}?resourceVersion={}", version(&before))).await;
    let at = now();
    let reply = cluster.delete_with(&path("p"), json!({"gracePeriodSeconds": 40})).await.ok();
    assert_eq!((deleted_at(&reply), grace(&reply)), (at + 40, &40.into()));
    let event = watch.next().await;
    assert_eq!((&event["type"], &event["object"]), (&"MODIFIED".into(), &reply));
    assert_eq!(cluster.read(&path("p")).await, reply);
}

#[tokio::test]
async fn t_api_12_only_the_first_delete_increments_the_generation() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.bound(pod("p")).await["metadata"]["generation"], 1);
    let first = cluster.delete(&path("p")).await.ok();
    assert_eq!(first["metadata"]["generation"], 2);
    let second = cluster.delete(&format!("{}?gracePeriodSeconds=3", path("p"))).await.ok();
    assert_eq!((grace(&second), &second["metadata"]["generation"]), (&3.into(), &2.into()));
    // A-72: the same with finalizers; kinds without a generation get none.
    cluster.make(DEPLOYMENTS, held(deployment("d"), HOLD)).await;
    let kept = cluster.delete(&format!("{DEPLOYMENTS}/d")).await.ok();
    assert_eq!(kept["metadata"]["generation"], 2);
    cluster.make(MAPS, held(map("m"), HOLD)).await;
    let kept = cluster.delete(&format!("{MAPS}/m")).await.ok();
    assert_eq!(kept["metadata"].get("generation"), None);
}

/// T-API-13, T-API-14: one DELETED event, after a MODIFIED event for a pod without grace period.
#[tokio::test]
async fn t_api_13_and_14_watch_events_of_a_removal() {
    let cluster = Cluster::start().await;
    let made = cluster.make(MAPS, map("m")).await;
    let mut maps = cluster.watch(&format!("{MAPS}?resourceVersion={}", version(&made))).await;
    cluster.delete(&format!("{MAPS}/m")).await.ok();
    cluster.make(MAPS, map("after")).await;
    assert_eq!(maps.reply(2).await, ["DELETED m", "ADDED after"]);

    let made = cluster.bound(pod("p")).await;
    let mut pods = cluster.watch(&format!("{PODS}?resourceVersion={}", version(&made))).await;
    let reply = cluster.delete(&format!("{}?gracePeriodSeconds=0", path("p"))).await;
    assert_eq!(reply.code, 200);
    let events = pods.take(2).await;
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&"MODIFIED".into(), &"DELETED".into()));
    assert_eq!(*grace(&events[0]["object"]), 0);
    assert!((deleted_at(&events[0]["object"]) - now()).abs() <= 1);
    // T-API-52: the last state, with the version of the deletion.
    let (marked, gone) = (&events[0]["object"], &events[1]["object"]);
    let number = |object: &Value| version(object).parse::<u64>().unwrap();
    assert!(number(gone) > number(marked));
    let mut same = gone.clone();
    same["metadata"]["resourceVersion"] = marked["metadata"]["resourceVersion"].clone();
    assert_eq!(same, *marked);
}

/// A server that crashes between the two writes of a removal leaves a marked pod without grace period and finalizers
/// (T-API-15).
#[tokio::test]
async fn t_api_15_the_next_update_or_delete_removes_a_pod_that_a_crash_left() {
    let cluster = Cluster::start().await;
    let mut left = Vec::new();
    for name in ["main", "status", "put", "delete"] {
        cluster.make(PODS, held(pod(name), HOLD)).await;
        let mut marked = cluster.delete(&path(name)).await.ok();
        assert_eq!(*grace(&marked), 0);
        marked["metadata"].as_object_mut().unwrap().remove("finalizers");
        left.push(marked);
    }
    let cluster = cluster.with_stored("pods", &left).await;
    assert_eq!(cluster.names(PODS).await, ["delete", "main", "put", "status"]);
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    let reply = cluster.patch(&path("main"), label.clone()).await;
    assert_eq!((reply.code, &reply.body["metadata"]["labels"]), (200, &json!({"x": "y"})));
    let reply = cluster.patch(&format!("{}/status", path("status")), label).await;
    assert_eq!((reply.code, &reply.body["kind"]), (200, &"Pod".into()));
    let unchanged = cluster.read(&path("put")).await;
    assert_eq!(cluster.put(&path("put"), &unchanged).await.code, 200);
    cluster.delete(&path("delete")).await.ok();
    assert_eq!(cluster.names(PODS).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn t_api_16_to_19_a_second_delete_can_only_shorten_the_grace_period() {
    let cluster = Cluster::on_simulated_time().await;
    cluster.bound(pod("p")).await;
    let start = now();
    let first = cluster.delete(&path("p")).await.ok();
    assert_eq!(deleted_at(&first), start + 30);
    // T-API-16, T-API-17: no value, the same, a longer one.
    for query in ["", "?gracePeriodSeconds=30", "?gracePeriodSeconds=31"] {
        let again = cluster.delete(&format!("{}{query}", path("p"))).await;
        assert_eq!((again.code, &again.body), (200, &first), "{query}");
    }
    // T-API-18: counted from the first delete.
    tokio::time::advance(Duration::from_secs(5)).await;
    let shorter = cluster.delete(&format!("{}?gracePeriodSeconds=10", path("p"))).await.ok();
    assert_eq!((deleted_at(&shorter), grace(&shorter)), (start + 10, &10.into()));
    assert_ne!(version(&shorter), version(&first));
    // T-API-19: a deadline in the past becomes now, and the deletion stays graceful.
    tokio::time::advance(Duration::from_secs(15)).await;
    let late = cluster.delete(&format!("{}?gracePeriodSeconds=8", path("p"))).await.ok();
    assert_eq!((deleted_at(&late), grace(&late)), (start + 20, &1.into()));
    assert_eq!(cluster.get(&path("p")).await.code, 200);
    // T-API-20: zero removes the pod at any time.
    cluster.delete(&format!("{}?gracePeriodSeconds=0", path("p"))).await.ok();
    assert_eq!(cluster.get(&path("p")).await.code, 404);
}

#[tokio::test]
async fn t_api_21_a_later_propagation_policy_counts_only_without_grace_period() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("p")).await;
    let foreground = json!({"propagationPolicy": "Foreground"});
    let background = json!({"propagationPolicy": "Background"});
    let marked = cluster.delete_with(&path("p"), foreground.clone()).await.ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let again = cluster.delete_with(&path("p"), background.clone()).await.ok();
    assert_eq!(again, marked);

    let d = format!("{DEPLOYMENTS}/d");
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let marked = cluster.delete_with(&d, foreground).await.ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    cluster.delete_with(&d, background).await.ok();
    assert_eq!(cluster.get(&d).await.code, 404);
}

#[tokio::test]
async fn t_api_22_an_update_cannot_revert_a_deletion() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("p")).await;
    let marked = cluster.delete(&path("p")).await.ok();
    let mut wanted = marked.clone();
    let metadata = wanted["metadata"].as_object_mut().unwrap();
    metadata.remove("deletionTimestamp");
    metadata.remove("deletionGracePeriodSeconds");
    wanted["metadata"]["labels"] = json!({"a": "b"});
    let put = cluster.put(&path("p"), &wanted).await.ok();
    assert_eq!(put["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!((deleted_at(&put), grace(&put)), (deleted_at(&marked), grace(&marked)));
    let other = json!({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}});
    assert_eq!(deleted_at(&cluster.patch(&path("p"), other).await.ok()), deleted_at(&marked));
    let other = json!({"metadata": {"deletionGracePeriodSeconds": 5}});
    let reply = cluster.patch(&path("p"), other).await;
    assert!(reply.refused(422, "Invalid").ends_with("field is immutable"), "{}", reply.body);
}

#[tokio::test]
async fn t_api_23_delete_options_come_from_the_body_or_else_from_the_query() {
    let cluster = Cluster::start().await;
    for name in ["query", "both", "own", "bad"] {
        cluster.bound(pod(name)).await;
    }
    let reply = cluster.delete(&format!("{}?gracePeriodSeconds=5", path("query"))).await.ok();
    assert_eq!(*grace(&reply), 5);
    let body = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 9});
    let reply = cluster.delete_with(&format!("{}?gracePeriodSeconds=5", path("both")), body).await;
    assert_eq!(*grace(&reply.ok()), 9);
    // A-16: in any version of the endpoint's group.
    let body =
        json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 8});
    assert_eq!(*grace(&cluster.delete_with(&path("own"), body).await.ok()), 8);
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let body = json!({"kind": "DeleteOptions", "apiVersion": "apps/v1",
                      "propagationPolicy": "Foreground"});
    let reply = cluster.delete_with(&format!("{DEPLOYMENTS}/d"), body).await.ok();
    assert_eq!(reply["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    for body in ["{", "[]", "{\"gracePeriodSeconds\": \"soon\"}", "{\"kind\": \"Pod\"}"] {
        let headers = [("content-type", "application/json")];
        let reply = cluster.send("DELETE", &path("bad"), &headers, body).await;
        reply.refused(400, "BadRequest");
    }
    assert_eq!(cluster.read(&path("bad")).await["metadata"].get("deletionTimestamp"), None);
}

#[tokio::test]
async fn t_api_24_contradictory_options_are_refused() {
    let cluster = Cluster::start().await;
    cluster.make(MAPS, map("m")).await;
    for options in [
        json!({"orphanDependents": true, "propagationPolicy": "Orphan"}),
        json!({"propagationPolicy": "Sideways"}),
        json!({"dryRun": ["Some"]}),
    ] {
        let reply = cluster.delete_with(&format!("{MAPS}/m"), options.clone()).await;
        reply.refused(422, "Invalid");
        assert_eq!(reply.body["details"]["kind"], "DeleteOptions", "{options}");
    }
    assert_eq!(cluster.get(&format!("{MAPS}/m")).await.code, 200);
}

#[tokio::test]
async fn t_api_25_deleting_a_missing_object_is_not_found() {
    let cluster = Cluster::start().await;
    let reply = cluster.delete(&path("x")).await;
    assert_eq!(reply.refused(404, "NotFound"), "pods \"x\" not found");
    assert_eq!(reply.body["details"], json!({"name": "x", "kind": "pods"}));
    // A-78: before preconditions are checked.
    let options = json!({"preconditions": {"uid": "other"}});
    cluster.delete_with(&path("x"), options).await.refused(404, "NotFound");
}

/// T-API-26, T-API-27: the body of the response to a delete.
#[tokio::test]
async fn t_api_26_and_27_some_kinds_return_the_object_the_others_a_status() {
    let cluster = Cluster::start().await;
    let core = "/api/v1/namespaces/default";
    let rows = [
        (format!("{core}/services"), json!({"spec": {"ports": [{"port": 80}]}})),
        (format!("{core}/serviceaccounts"), json!({})),
        (format!("{core}/podtemplates"), json!({"template": template("x")})),
        (format!("{core}/resourcequotas"), json!({})),
        (
            "/apis/storage.k8s.io/v1/storageclasses".into(),
            json!({"provisioner": "example.com/none"}),
        ),
        ("/apis/storage.k8s.io/v1/csidrivers".into(), json!({})),
    ];
    for (collection, body) in rows {
        let mut body = body;
        body["metadata"] = json!({"name": "x"});
        let made = cluster.make(&collection, body).await;
        let reply = cluster.delete(&format!("{collection}/x")).await.ok();
        assert_eq!(reply["kind"], made["kind"], "{collection}");
        assert_eq!(reply["metadata"]["uid"], made["metadata"]["uid"], "{collection}");
    }
    for (collection, body, group) in [
        (DEPLOYMENTS.to_owned(), deployment("x"), Some("apps")),
        (MAPS.to_owned(), map("x"), None),
        (format!("{core}/secrets"), json!({"metadata": {"name": "x"}}), None),
        ("/api/v1/nodes".into(), json!({"metadata": {"name": "x"}}), None),
    ] {
        let made = cluster.make(&collection, body).await;
        let reply = cluster.delete(&format!("{collection}/x")).await.ok();
        let resource = collection.rsplit('/').next().unwrap();
        let mut details = json!({"name": "x", "kind": resource, "uid": made["metadata"]["uid"]});
        if let Some(group) = group {
            details["group"] = group.into();
        }
        let receipt = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                             "status": "Success", "details": details});
        assert_eq!(reply, receipt);
    }
}

/// T-API-28, T-API-29: only orphanDependents=false returns 202.
#[tokio::test]
async fn t_api_28_and_29_an_object_that_is_not_removed_is_returned_with_200_except_for_one_case() {
    let cluster = Cluster::start().await;
    for name in ["d1", "d2"] {
        cluster.make(DEPLOYMENTS, held(deployment(name), HOLD)).await;
    }
    let options = json!({"propagationPolicy": "Foreground"});
    let reply = cluster.delete_with(&format!("{DEPLOYMENTS}/d1"), options).await;
    assert_eq!((reply.code, &reply.body["kind"]), (200, &"Deployment".into()));
    assert_eq!(reply.body["metadata"]["finalizers"], json!([HOLD, "foregroundDeletion"]));
    assert!(reply.body["metadata"]["deletionTimestamp"].is_string());
    let options = json!({"orphanDependents": false});
    let reply = cluster.delete_with(&format!("{DEPLOYMENTS}/d2"), options.clone()).await;
    assert_eq!(reply.code, 202);
    cluster.make(MAPS, map("m")).await;
    assert_eq!(cluster.delete_with(&format!("{MAPS}/m"), options).await.code, 200);
    cluster.bound(pod("p")).await;
    assert_eq!(cluster.delete(&path("p")).await.code, 200);
}

/// T-API-31, T-API-32: preconditions on uid and resourceVersion.
#[tokio::test]
async fn t_api_31_and_32_a_failed_precondition_is_a_conflict() {
    let cluster = Cluster::start().await;
    let made = cluster.bound(pod("p")).await;
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}});
    let reply = cluster.delete_with(&path("p"), options).await;
    let message = reply.refused(409, "Conflict");
    assert!(message.contains("(other)") && message.contains(uid), "{message}");
    assert!(message.contains("deleted and then recreated"), "{message}");
    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"resourceVersion": "1"}});
    let reply = cluster.delete_with(&path("p"), options).await;
    let message = reply.refused(409, "Conflict");
    assert!(message.contains("(1)") && message.contains(&version(&made)), "{message}");
    assert_eq!(cluster.read(&path("p")).await, made);
    // The server's own first write does not fail the precondition of its second one.
    let right = json!({"uid": uid, "resourceVersion": version(&made)});
    let options = json!({"gracePeriodSeconds": 0, "preconditions": right});
    cluster.delete_with(&path("p"), options).await.ok();
    assert_eq!(cluster.get(&path("p")).await.code, 404);
}

#[tokio::test]
async fn t_api_33_a_delete_does_not_affect_a_recreated_namespace() {
    let cluster = Cluster::start().await;
    let namespace = json!({"metadata": {"name": "shop"}});
    let first = cluster.make("/api/v1/namespaces", namespace.clone()).await;
    let place = "/api/v1/namespaces/shop";
    let marked = cluster.delete(place).await.ok();
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let mut finalized = marked.clone();
    finalized["spec"]["finalizers"] = json!([]);
    cluster.put(&format!("{place}/finalize"), &finalized).await.ok();
    assert_eq!(cluster.get(place).await.code, 404);
    cluster.make("/api/v1/namespaces", namespace).await;
    let options = json!({"preconditions": {"uid": first["metadata"]["uid"]}});
    cluster.delete_with(place, options).await.refused(409, "Conflict");
    assert_eq!(cluster.read(place).await["status"]["phase"], "Active");
    // A-83: some namespaces cannot be deleted.
    let reply = cluster.delete("/api/v1/namespaces/default").await;
    let message = reply.refused(403, "Forbidden");
    assert!(message.ends_with("this namespace may not be deleted"), "{message}");
}

#[tokio::test]
async fn t_api_35_a_node_may_delete_only_its_own_pods() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("p")).await;
    let reply = cluster.node("n2").delete(&path("p")).await;
    let message = reply.refused(403, "Forbidden");
    let wanted = "node \"n2\" can only delete pods with spec.nodeName set to itself";
    assert!(message.ends_with(wanted), "{message}");
    let options = json!({"gracePeriodSeconds": 0});
    cluster.node("n1").delete_with(&path("p"), options).await.ok();
    assert_eq!(cluster.get(&path("p")).await.code, 404);
}

/// T-API-36, T-API-37: the update that removes the last finalizer removes the object.
#[tokio::test]
async fn t_api_36_and_37_an_object_stays_until_its_last_finalizer_is_removed() {
    let cluster = Cluster::start().await;
    let mut wanted = map("m");
    wanted["metadata"]["finalizers"] = json!([HOLD, "example.com/second"]);
    cluster.make(MAPS, wanted).await;
    let m = format!("{MAPS}/m");
    let marked = cluster.delete(&m).await.ok();
    assert_eq!(*grace(&marked), 0);
    let again = cluster.delete(&m).await.ok();
    assert_eq!(again, marked);
    let one = json!({"metadata": {"finalizers": [HOLD]}});
    let kept = cluster.patch(&m, one).await.ok();
    assert_eq!(deleted_at(&cluster.read(&m).await), deleted_at(&marked));
    let mut watch = cluster.watch(&format!("{MAPS}?resourceVersion={}", version(&kept))).await;
    let mut none = kept.clone();
    none["metadata"].as_object_mut().unwrap().remove("finalizers");
    none["data"] = json!({"last": "words"});
    let reply = cluster.put(&m, &none).await;
    assert_eq!((reply.code, &reply.body["data"]), (200, &json!({"last": "words"})));
    assert_eq!(cluster.get(&m).await.code, 404);
    assert_eq!(watch.reply(1).await, ["DELETED m"]);
}

#[tokio::test]
async fn t_api_38_a_pod_with_a_grace_period_stays_after_its_last_finalizer_is_removed() {
    let cluster = Cluster::start().await;
    cluster.bound(held(with_grace("p", 60), HOLD)).await;
    cluster.delete(&path("p")).await.ok();
    let released = cluster.patch(&path("p"), json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(*grace(&released), 60);
    assert_eq!(*grace(&cluster.read(&path("p")).await), 60);
    cluster.delete(&format!("{}?gracePeriodSeconds=0", path("p"))).await.ok();
    assert_eq!(cluster.get(&path("p")).await.code, 404);
}

#[tokio::test]
async fn t_api_39_a_finished_pod_with_finalizers_is_marked_without_grace_period() {
    let cluster = Cluster::start().await;
    cluster.bound(held(pod("p"), HOLD)).await;
    let status = json!({"status": {"phase": "Succeeded", "containerStatuses": [{
        "name": "app", "image": "nginx:1.27", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}});
    cluster.patch(&format!("{}/status", path("p")), status).await.ok();
    let kept = cluster.delete(&path("p")).await.ok();
    assert_eq!((grace(&kept), &kept["status"]["phase"]), (&0.into(), &"Succeeded".into()));
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let shown = cluster.get_with(&path("p"), &[("accept", table)]).await.ok();
    assert_eq!(shown["rows"][0]["cells"][2], "Completed");
}

/// T-API-40, T-API-41: rules for finalizers of an object that is being deleted.
#[tokio::test]
async fn t_api_40_and_41_no_finalizer_can_be_added_late_and_two_exclude_each_other() {
    let cluster = Cluster::start().await;
    let mut wanted = map("m");
    wanted["metadata"]["finalizers"] = json!([HOLD, "example.com/second"]);
    cluster.make(MAPS, wanted).await;
    let m = format!("{MAPS}/m");
    let both = json!({"metadata": {"finalizers": ["orphan", "foregroundDeletion"]}});
    let reply = cluster.patch(&m, both).await;
    let message = reply.refused(422, "Invalid");
    let wanted = "finalizer orphan and foregroundDeletion cannot be both set";
    assert!(message.contains(wanted), "{message}");
    cluster.delete(&m).await.ok();
    let more = json!({"metadata": {"finalizers": [HOLD, "example.com/second", "example.com/new"]}});
    let reply = cluster.patch(&m, more).await;
    let message = reply.refused(422, "Invalid");
    let wanted = "no new finalizers can be added if the object is being deleted, found new finalizers []string{\"example.com/new\"}";
    assert!(message.ends_with(wanted), "{message}");
    assert_eq!(reply.body["details"]["causes"][0]["field"], "metadata.finalizers");
    let turned = json!({"metadata": {"finalizers": ["example.com/second", HOLD]}});
    cluster.patch(&m, turned).await.ok();
}

#[tokio::test]
async fn t_api_42_other_fields_can_change_during_a_deletion() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("p")).await;
    cluster.delete(&path("p")).await.ok();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]);
    let mut tolerations = cluster.read(&path("p")).await["spec"]["tolerations"].clone();
    tolerations.as_array_mut().unwrap().push(json!({"key": "k", "operator": "Exists"}));
    for patch in [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"annotations": {"a": "b"}}}),
        json!({"metadata": {"ownerReferences": owner}}),
        json!({"spec": {"containers": [{"name": "app", "image": "nginx:1.28",
            "imagePullPolicy": "IfNotPresent"}]}}),
        json!({"spec": {"tolerations": tolerations}}),
    ] {
        let body = patch.to_string();
        let reply = cluster.patch_as(cluster::STRATEGIC, &path("p"), body.clone()).await;
        assert_eq!(reply.code, 200, "{body}: {}", reply.body);
    }
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox:1"}]}});
    cluster.patch(&format!("{}/ephemeralcontainers", path("p")), debug).await.ok();
}

#[tokio::test]
async fn t_api_43_a_pod_that_is_being_deleted_is_not_bound() {
    let cluster = Cluster::start().await;
    cluster.make(PODS, held(pod("p"), HOLD)).await;
    cluster.delete(&path("p")).await.ok();
    let reply = cluster.bind("p").await;
    let message = reply.refused(409, "Conflict");
    assert!(message.ends_with("pod p is being deleted, cannot be assigned to a host"), "{message}");
}

/// Each row: kind, its finalizer, requested policy, resulting finalizers (none: removed). T-API-44, T-API-45, T-API-46,
/// T-API-47, T-EDGE-25.
#[tokio::test]
async fn t_api_44_to_47_the_propagation_policy_sets_finalizers() {
    let cluster = Cluster::start().await;
    let job = json!({"metadata": {"name": "x"}, "spec": {"template": {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a:1"}]}}}});
    let rc = json!({"metadata": {"name": "x"}, "spec": {"template": template("x")}});
    let event = json!({"metadata": {"name": "x"}, "involvedObject": {"namespace": "default"},
                       "reason": "r"});
    let core = "/api/v1/namespaces/default";
    let controllers = format!("{core}/replicationcontrollers");
    let events = format!("{core}/events");
    let d = || deployment("x");
    type Row<'a> = (&'a str, Value, Option<&'a str>, Option<&'a str>, &'a [&'a str]);
    let rows: [Row; 13] = [
        (DEPLOYMENTS, d(), None, None, &[]),
        (DEPLOYMENTS, d(), None, Some("Background"), &[]),
        (DEPLOYMENTS, d(), None, Some("Foreground"), &["foregroundDeletion"]),
        (DEPLOYMENTS, d(), None, Some("Orphan"), &["orphan"]),
        (DEPLOYMENTS, d(), Some("orphan"), None, &["orphan"]),
        (DEPLOYMENTS, d(), Some("foregroundDeletion"), None, &["foregroundDeletion"]),
        (DEPLOYMENTS, d(), Some("orphan"), Some("Background"), &[]),
        (DEPLOYMENTS, d(), Some("orphan"), Some("Foreground"), &["foregroundDeletion"]),
        (JOBS, job.clone(), None, None, &["orphan"]),
        (JOBS, job, None, Some("Background"), &[]),
        (&controllers, rc, None, None, &["orphan"]),
        (&events, event.clone(), None, Some("Foreground"), &[]),
        (&events, event, None, None, &[]),
    ];
    for (row, (collection, body, finalizer, policy, left)) in rows.into_iter().enumerate() {
        let body = finalizer.map_or(body.clone(), |finalizer| held(body, finalizer));
        cluster.make(collection, body).await;
        let place = format!("{collection}/x");
        let options = policy.map_or(json!({}), |policy| json!({"propagationPolicy": policy}));
        let reply = cluster.delete_with(&place, options).await.ok();
        if left.is_empty() {
            assert_eq!(cluster.get(&place).await.code, 404, "row {row}");
            continue;
        }
        assert_eq!(reply["metadata"]["finalizers"], json!(left), "row {row}");
        cluster.patch(&place, json!({"metadata": {"finalizers": null}})).await.ok();
        assert_eq!(cluster.get(&place).await.code, 404, "row {row}");
    }
}

/// T-API-48, T-API-49: deletecollection deletes each object like a single delete.
#[tokio::test]
async fn t_api_48_and_49_each_pod_of_a_collection_gets_its_own_grace_period() {
    let cluster = Cluster::start().await;
    for (name, grace, app) in [("a", 5, "x"), ("b", 60, "x"), ("c", 60, "y")] {
        cluster.bound(labelled(with_grace(name, grace), json!({"app": app}))).await;
    }
    let before = cluster.read(&format!("{PODS}?labelSelector=app=x")).await;
    let reply = cluster.delete(&format!("{PODS}?labelSelector=app=x")).await.ok();
    assert_eq!((&reply["kind"], &reply["items"]), (&"PodList".into(), &before["items"]));
    assert_eq!(*grace(&cluster.read(&path("a")).await), 5);
    assert_eq!(*grace(&cluster.read(&path("b")).await), 60);
    // A-104: pods that are not selected stay.
    assert_eq!(cluster.read(&path("c")).await["metadata"].get("deletionTimestamp"), None);
    let options = json!({"gracePeriodSeconds": 0});
    cluster.delete_with(&format!("{PODS}?fieldSelector=metadata.name!=b"), options).await.ok();
    assert_eq!(cluster.names(PODS).await, ["b"]);
}

#[tokio::test]
async fn t_api_50_namespaces_have_no_deletecollection() {
    let cluster = Cluster::start().await;
    let core = cluster.read("/api/v1").await;
    let verbs = |name: &str| {
        let all = core["resources"].as_array().unwrap();
        all.iter().find(|resource| resource["name"] == name).unwrap()["verbs"].to_string()
    };
    assert!(!verbs("namespaces").contains("deletecollection"));
    assert!(verbs("configmaps").contains("deletecollection"));
    cluster.delete("/api/v1/namespaces").await.refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn t_api_51_a_dry_run_returns_the_deletion_and_changes_nothing() {
    let cluster = Cluster::start().await;
    let made = cluster.bound(pod("p")).await;
    let mut watch = cluster.watch(&format!("{PODS}?resourceVersion={}", version(&made))).await;
    let reply = cluster.delete(&format!("{}?dryRun=All", path("p"))).await.ok();
    assert_eq!(*grace(&reply), 30);
    assert!(reply["metadata"]["deletionTimestamp"].is_string());
    let body = json!({"dryRun": ["All"], "gracePeriodSeconds": 0});
    cluster.delete_with(&path("p"), body.clone()).await.ok();
    cluster.delete_with(PODS, body).await.ok();
    assert_eq!(cluster.read(&path("p")).await, made);
    cluster.make(PODS, pod("after")).await;
    assert_eq!(watch.reply(1).await, ["ADDED after"]);
    let refused = json!({"dryRun": ["All"], "preconditions": {"uid": "other"}});
    cluster.delete_with(&path("p"), refused).await.refused(409, "Conflict");
}

#[tokio::test]
async fn t_api_53_a_watch_by_phase_sees_a_terminated_pod_as_deleted() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("p")).await;
    let running = phase(&cluster, "p", "Running").await;
    let mut watch = cluster
        .watch(&format!(
            "{PODS}?fieldSelector=status.phase=Running&resourceVersion={}",
            version(&running)
        ))
        .await;
    let failed = phase(&cluster, "p", "Failed").await;
    let event = watch.next().await;
    assert_eq!(
        (&event["type"], &event["object"]["status"]),
        (&"DELETED".into(), &running["status"])
    );
    assert_eq!(version(&event["object"]), version(&failed));
}

#[tokio::test]
async fn t_api_54_the_status_of_a_terminating_pod_can_be_written() {
    let cluster = Cluster::start().await;
    cluster.bound(held(pod("p"), HOLD)).await;
    let marked = cluster.delete(&path("p")).await.ok();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]);
    let patch = json!({
        "metadata": {"labels": {"new": "label"}, "annotations": {"new": "note"},
                     "ownerReferences": owner, "deletionTimestamp": null},
        "spec": {"containers": [{"name": "app", "image": "other:1"}]},
        "status": {"phase": "Running", "message": "going"},
    });
    let reply = cluster.patch(&format!("{}/status", path("p")), patch).await.ok();
    assert_eq!(reply["status"]["message"], "going");
    assert_eq!(reply["metadata"]["labels"], json!({"new": "label"}));
    assert_eq!(reply["metadata"]["annotations"], json!({"new": "note"}));
    assert_eq!(reply["metadata"].get("ownerReferences"), None);
    assert_eq!((&reply["spec"], deleted_at(&reply)), (&marked["spec"], deleted_at(&marked)));
    let release = json!({"metadata": {"finalizers": null}});
    let reply = cluster.patch(&format!("{}/status", path("p")), release).await.ok();
    assert_eq!(reply["metadata"].get("finalizers"), None);
}

#[tokio::test]
async fn t_api_55_any_phase_can_be_set_but_a_terminated_container_stays_terminated() {
    let cluster = Cluster::start().await;
    for (name, policy) in [("never", "Never"), ("always", "Always")] {
        let mut wanted = pod(name);
        wanted["spec"]["restartPolicy"] = policy.into();
        cluster.bound(wanted).await;
    }
    phase(&cluster, "never", "Failed").await;
    assert_eq!(phase(&cluster, "never", "Running").await["status"]["phase"], "Running");
    let state = |state: Value| {
        json!({"status": {"containerStatuses": [{"name": "app", "image": "nginx:1.27",
            "imageID": "", "ready": false, "restartCount": 0, "state": state}]}})
    };
    let ended = state(json!({"terminated": {"exitCode": 0}}));
    let running = state(json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}}));
    for name in ["never", "always"] {
        cluster.patch(&format!("{}/status", path(name)), ended.clone()).await.ok();
    }
    let reply = cluster.patch(&format!("{}/status", path("never")), running.clone()).await;
    let message = reply.refused(422, "Invalid");
    assert!(message.contains("may not be transitioned to non-terminated state"), "{message}");
    cluster.patch(&format!("{}/status", path("always")), running).await.ok();
}

#[tokio::test]
async fn t_api_56_an_update_without_observed_generation_keeps_it() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("p")).await;
    let place = format!("{}/status", path("p"));
    let reply = cluster.patch(&place, json!({"status": {"observedGeneration": 1}})).await.ok();
    assert_eq!(reply["status"]["observedGeneration"], 1);
    for nothing in [json!(0), json!(null)] {
        let patch =
            json!({"status": {"observedGeneration": nothing, "message": nothing.to_string()}});
        let reply = cluster.patch(&place, patch).await.ok();
        assert_eq!(reply["status"]["observedGeneration"], 1, "{nothing}");
    }
    let other = json!({"status": {"qosClass": "Guaranteed"}});
    let reply = cluster.patch(&place, other).await;
    let message = reply.refused(422, "Invalid");
    assert!(
        message.contains("status.qosClass") && message.ends_with("field is immutable"),
        "{message}"
    );
}

#[tokio::test]
async fn t_api_57_the_unsafe_delete_option_is_accepted_without_effect() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("p")).await;
    let options = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true,
                         "gracePeriodSeconds": 4});
    let viewer = cluster.user(User::authenticated("ana", &["system:masters"]));
    assert_eq!(*grace(&viewer.delete_with(&path("p"), options).await.ok()), 4);
}
