//! What controllers of workloads, and the suites that test them, rely on from the server (C-25, C-191,
//! C-192, C-202 to C-208, T-CTRL-49, T-CTRL-50, T-CTRL-57). There are no controllers here: what a test
//! writes stays.

use crate::cluster::{
    APPLY, Client, Cluster, DEPLOYMENTS, JSON_PATCH, MERGE, STRATEGIC, now, seconds, template,
    version,
};
use serde_json::{Value, json};

const APPS: &str = "/apis/apps/v1/namespaces/default";
const CORE: &str = "/api/v1/namespaces/default";
const BATCH: &str = "/apis/batch/v1/namespaces/default";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

fn named(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"suite": "yes"}}, "spec": spec})
}

/// A merge patch.
fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (field, value) in change {
                merge(into.entry(field.clone()).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

fn selecting(more: Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": "w"}}, "template": template("w")});
    merge(&mut spec, &more);
    spec
}

fn job() -> Value {
    json!({"template": {"spec": {"restartPolicy": "Never",
           "containers": [{"name": "c", "image": "i"}]}}})
}

/// Collections of the workloads that have replicas, and one of each.
fn scalable() -> Vec<(String, Value)> {
    let plain = json!({"replicas": 2, "selector": {"app": "w"}, "template": template("w")});
    let two = || selecting(json!({"replicas": 2}));
    vec![
        (format!("{APPS}/deployments"), named("w", two())),
        (format!("{APPS}/replicasets"), named("w", two())),
        (format!("{APPS}/statefulsets"), named("w", two())),
        (format!("{CORE}/replicationcontrollers"), named("w", plain)),
    ]
}

#[tokio::test]
async fn c_25_c_204_all_kinds_with_replicas_are_scaled_in_the_same_way() {
    let cluster = Cluster::start().await;
    for (collection, wanted) in scalable() {
        cluster.make(&collection, wanted).await;
        let (it, scale) = (format!("{collection}/w"), format!("{collection}/w/scale"));
        let run = json!({"status": {"replicas": 2}});
        cluster.patch(&format!("{it}/status"), run).await.ok();
        let mut shown = cluster.read(&scale).await;
        assert_eq!(shown["spec"], json!({"replicas": 2}), "{it}");
        assert_eq!(shown["status"], json!({"replicas": 2, "selector": "app=w"}), "{it}");
        // Without a resource version the write is unconditional.
        cluster.patch(&it, json!({"metadata": {"annotations": {"a": "b"}}})).await.ok();
        shown["metadata"]["resourceVersion"] = "".into();
        shown["spec"]["replicas"] = 1.into();
        assert_eq!(cluster.put(&scale, &shown).await.ok()["spec"]["replicas"], 1, "{it}");
        let whole = json!({"metadata": {}, "spec": {"replicas": 4}, "status": {"replicas": 0}});
        let reply = cluster.patch_as(STRATEGIC, &scale, whole.to_string()).await.ok();
        let replicas = (&reply["spec"]["replicas"], &reply["status"]["replicas"]);
        assert_eq!(replicas, (&4.into(), &2.into()), "{it}: of a scale only the number counts");
        let stored = cluster.read(&it).await;
        assert_eq!((&stored["spec"]["replicas"], &stored["status"]["replicas"]), replicas);
        assert_eq!(stored["spec"]["template"]["spec"]["containers"][0]["name"], "app", "{it}");
    }
}

fn signing_request() -> Value {
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let request = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pem);
    named(
        "s",
        json!({"request": request, "signerName": "example.com/s", "usages": ["client auth"]}),
    )
}

/// Collections whose status the suites write, one object of each, and a part of its status.
fn with_status() -> Vec<(String, Value, Value)> {
    let at = "2026-01-01T00:00:07Z";
    let condition = json!({"conditions": [{"type": "StatusUpdate", "status": "True",
        "reason": "E2E", "message": "Set from e2e test", "lastTransitionTime": at}]});
    let mut all: Vec<(String, Value, Value)> =
        scalable().into_iter().map(|(place, body)| (place, body, condition.clone())).collect();
    let storage = json!({"requests": {"storage": "1Gi"}});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": storage});
    let volume = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                        "csi": {"driver": "d.example.com", "volumeHandle": "h"}});
    let budget = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "w"}}});
    let cron = json!({"schedule": "* * * * ?", "jobTemplate": {"spec": job()}});
    let allowed = json!({"conditions": condition["conditions"], "observedGeneration": 1,
        "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
    all.extend([
        (format!("{APPS}/daemonsets"), named("w", selecting(json!({}))), condition.clone()),
        (format!("{BATCH}/jobs"), named("j", job()), condition.clone()),
        (format!("{BATCH}/cronjobs"), named("c", cron), json!({"lastScheduleTime": at})),
        (BUDGETS.into(), named("b", budget), allowed),
        ("/api/v1/namespaces".into(), named("shop", json!({})), condition.clone()),
        (
            format!("{CORE}/resourcequotas"),
            named("q", json!({"hard": {"pods": "1"}})),
            json!({"hard": {"pods": "2"}}),
        ),
        ("/api/v1/persistentvolumes".into(), named("v", volume), json!({"message": "E2E"})),
        (
            format!("{CORE}/persistentvolumeclaims"),
            named("c", claim),
            json!({"conditions": [{"type": "StatusUpdate", "status": "True", "reason": "E2E",
                                   "lastTransitionTime": at}]}),
        ),
        (
            "/apis/certificates.k8s.io/v1/certificatesigningrequests".into(),
            signing_request(),
            condition,
        ),
    ]);
    all
}

/// Whether the status contains `part`. Conditions may have more fields than were written.
fn has(there: &Value, part: &Value) -> bool {
    match (there, part) {
        (Value::Object(there), Value::Object(part)) => {
            part.iter().all(|(field, value)| there.get(field).is_some_and(|one| has(one, value)))
        }
        (Value::Array(there), Value::Array(part)) => {
            part.iter().all(|value| there.iter().any(|one| has(one, value)))
        }
        (there, part) => there == part,
    }
}

#[tokio::test]
async fn c_202_a_status_is_read_put_and_patched_with_its_annotations() {
    let cluster = Cluster::start().await;
    for (collection, wanted, part) in with_status() {
        let made = cluster.make(&collection, wanted).await;
        let it = format!("{collection}/{}/status", made["metadata"]["name"].as_str().unwrap());
        let mut put = cluster.read(&it).await;
        put["metadata"]["annotations"] = json!({"put": "yes"});
        merge(&mut put["status"], &part);
        let reply = cluster.put(&it, &put).await.ok();
        assert_eq!(reply["metadata"]["annotations"]["put"], "yes", "{it}");
        assert!(has(&reply["status"], &part), "{it}: {}", reply["status"]);
        for media in [MERGE, STRATEGIC] {
            let kind = (&reply["kind"], &reply["apiVersion"]);
            let patch = json!({"kind": kind.0, "apiVersion": kind.1, "status": part,
                               "metadata": {"annotations": {"patched": media}}});
            let reply = cluster.patch_as(media, &it, patch.to_string()).await.ok();
            assert_eq!(reply["metadata"]["annotations"]["patched"], media, "{it}");
        }
        let read = cluster.read(&it).await;
        assert!(has(&read["status"], &part), "{it}: {}", read["status"]);
        assert_eq!(read["spec"], put["spec"], "{it}");
        assert_eq!(read["metadata"]["generation"], made["metadata"]["generation"], "{it}");
    }
}

#[tokio::test]
async fn c_203_conditions_merge_by_type_and_ports_by_number() {
    let cluster = Cluster::start().await;
    let mut wanted = named("w", selecting(json!({})));
    wanted["spec"]["template"]["spec"]["containers"] = json!([
        {"name": "a", "image": "a:1", "ports": [{"containerPort": 80, "name": "http"}]},
        {"name": "b", "image": "b:1"},
    ]);
    cluster.make(DEPLOYMENTS, wanted).await;
    let d = format!("{DEPLOYMENTS}/w");
    let condition = |type_: &str, message: &str| json!({"type": type_, "status": "True", "reason": "r", "message": message});
    let types = |object: &Value| -> Vec<String> {
        let all = object["status"]["conditions"].as_array().unwrap();
        let of = |one: &Value| format!("{} {}", one["type"], one["message"]).replace('"', "");
        let mut all: Vec<String> = all.iter().map(of).collect();
        all.sort();
        all
    };
    let patch = async |media: &str, conditions: Value| {
        let body = json!({"status": {"conditions": conditions}}).to_string();
        cluster.patch_as(media, &format!("{d}/status"), body).await.ok()
    };
    patch(MERGE, json!([condition("A", "1"), condition("B", "1")])).await;
    let reply = patch(STRATEGIC, json!([condition("B", "2"), condition("C", "1")])).await;
    assert_eq!(types(&reply), ["A 1", "B 2", "C 1"]);
    let reply = patch(MERGE, json!([condition("D", "1")])).await;
    assert_eq!(types(&reply), ["D 1"], "a merge patch replaces lists");

    let ports = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "a", "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 81}]}]}}}});
    let reply = cluster.patch_as(STRATEGIC, &d, ports.to_string()).await.ok();
    let containers = reply["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2, "by name");
    let mut ports: Vec<(i64, &str)> = containers[0]["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| (port["containerPort"].as_i64().unwrap(), port["name"].as_str().unwrap_or("")))
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [(80, "web"), (81, "")]);
}

#[tokio::test]
async fn c_206_a_collection_is_deleted_by_label() {
    let cluster = Cluster::start().await;
    let mut all = scalable();
    let budget = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "w"}}});
    let mut revision = named("w", Value::Null);
    (revision["data"], revision["revision"]) = (json!({"a": "b"}), json!(1));
    let mut pods = named("w", Value::Null);
    pods["template"] = template("w");
    for object in [&mut revision, &mut pods] {
        object.as_object_mut().unwrap().remove("spec");
    }
    all.truncate(3);
    all.extend([
        (format!("{APPS}/daemonsets"), named("w", selecting(json!({})))),
        (format!("{BATCH}/jobs"), named("w", job())),
        (format!("{APPS}/controllerrevisions"), revision),
        (format!("{CORE}/podtemplates"), pods),
        (BUDGETS.to_owned(), named("w", budget)),
    ]);
    for (collection, mut wanted) in all {
        cluster.make(&collection, wanted.clone()).await;
        wanted["metadata"]["name"] = "other".into();
        wanted["metadata"]["labels"] = json!({"suite": "no"});
        cluster.make(&collection, wanted).await;
        let mut options = json!({"gracePeriodSeconds": 1});
        if collection.ends_with("/jobs") {
            options["propagationPolicy"] = "Background".into();
        }
        let which = format!("{collection}?labelSelector=suite=yes");
        cluster.delete_with(&which, options).await.ok();
        assert!(cluster.names(&which).await.is_empty(), "{collection}");
        assert_eq!(cluster.names(&collection).await, ["other"], "{collection}");
    }
}

#[tokio::test]
async fn c_207_a_pod_template_is_stored_with_defaults_and_creates_no_pod() {
    let cluster = Cluster::start().await;
    let place = format!("{CORE}/podtemplates");
    cluster.make(&place, json!({"metadata": {"name": "t"}, "template": template("w")})).await;
    let stored = cluster.read(&format!("{place}/t")).await;
    let spec = &stored["template"]["spec"];
    let defaults = (&spec["restartPolicy"], &spec["terminationGracePeriodSeconds"]);
    assert_eq!(defaults, (&"Always".into(), &30.into()));
    assert_eq!(stored["template"]["metadata"]["labels"], json!({"app": "w"}));
    let place = format!("{APPS}/controllerrevisions");
    let revision = json!({"metadata": {"name": "r"}, "data": {"a": {"b": [1]}}, "revision": 1});
    cluster.make(&place, revision).await;
    let r = format!("{place}/r");
    let reply = cluster.patch(&r, json!({"data": {"a": null}})).await;
    assert!(reply.refused(422, "Invalid").contains("field is immutable"), "{}", reply.body);
    assert_eq!(cluster.patch(&r, json!({"revision": 3})).await.ok()["revision"], 3);
    assert!(cluster.names(&format!("{CORE}/pods")).await.is_empty());
}

/// C-208: values that existed only between two writes.
#[tokio::test]
async fn c_208_a_late_watcher_gets_every_intermediate_status() {
    let cluster = Cluster::start().await;
    for (collection, wanted) in scalable() {
        let from = version(&cluster.make(&collection, wanted).await);
        for replicas in [3, 0, 3, 1, 0] {
            let patch = json!({"status": {"readyReplicas": replicas, "replicas": 3}});
            cluster.patch(&format!("{collection}/w/status"), patch).await.ok();
        }
        let mut watch = cluster.watch(&format!("{collection}?resourceVersion={from}")).await;
        let mut seen = Vec::new();
        for event in watch.take(5).await {
            assert_eq!(event["type"], "MODIFIED");
            seen.push(event["object"]["status"]["readyReplicas"].as_i64().unwrap_or(0));
        }
        assert_eq!(seen, [3, 0, 3, 1, 0], "{collection}");
    }
}

#[tokio::test]
async fn c_191_the_storage_version_is_not_visible() {
    let cluster = Cluster::start().await;
    let groups = cluster.read("/apis").await;
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"apps"));
    for off in ["internal.apiserver.k8s.io", "storagemigration.k8s.io"] {
        assert!(!names.contains(&off), "{off}");
        assert_eq!(cluster.get(&format!("/apis/{off}")).await.code, 404);
    }
}

/// One of the four kinds of devices: its path, an object, and a valid change.
struct Device {
    place: &'static str,
    everywhere: &'static str,
    spec: Value,
    changed: Option<Value>,
}

fn devices() -> [Device; 4] {
    const RESOURCE: &str = "/apis/resource.k8s.io/v1";
    let request = |class: &str| json!({"name": "req-0", "exactly": {"deviceClassName": class}});
    let claim = json!({"devices": {"requests": [request("c")]}});
    let class = |cel: &str| json!({"selectors": [{"cel": {"expression": cel}}]});
    let slice = |devices: Value| {
        json!({"driver": "d.example.com", "nodeName": "no-such-node", "devices": devices,
               "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}})
    };
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let templates = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
    let of = |place, everywhere, spec, changed| Device { place, everywhere, spec, changed };
    let all = [
        of("deviceclasses", "deviceclasses", class("false"), Some(class("1 == 0"))),
        of(claims, "resourceclaims", claim.clone(), None),
        of(templates, "resourceclaimtemplates", json!({"spec": claim}), None),
        of(
            "resourceslices",
            "resourceslices",
            slice(json!([{"name": "a"}, {"name": "b"}])),
            Some(slice(json!([{"name": "c"}]))),
        ),
    ];
    all.map(|device| {
        let whole = |path: &'static str| match path.starts_with('/') {
            true => path,
            false => Box::leak(format!("{RESOURCE}/{path}").into_boxed_str()),
        };
        let (place, everywhere) = (whole(device.place), whole(device.everywhere));
        Device { place, everywhere, ..device }
    })
}

async fn patched_alike(cluster: &Client, it: &str, kind: &Value) {
    let patches = [
        (MERGE, json!({"metadata": {"annotations": {"merge": "x"}}})),
        (STRATEGIC, json!({"metadata": {"annotations": {"strategic": "x"}}})),
        (JSON_PATCH, json!([{"op": "add", "path": "/metadata/annotations/json", "value": "x"}])),
    ];
    for (media, patch) in patches {
        cluster.patch_as(media, it, patch.to_string()).await.ok();
    }
    let applied = json!({"kind": kind["kind"], "apiVersion": kind["apiVersion"],
        "metadata": {"name": kind["metadata"]["name"], "annotations": {"applied": "x"}}});
    cluster.apply(it, "suite", applied).await.ok();
    let annotations = cluster.read(it).await["metadata"]["annotations"].clone();
    for key in ["merge", "strategic", "json", "applied"] {
        assert_eq!(annotations[key], "x", "{it} {key}");
    }
}

#[tokio::test]
async fn c_192_devices_are_plain_objects_with_every_verb() {
    let cluster = Cluster::start().await;
    for device in devices() {
        let (place, it) = (device.place, format!("{}/one", device.place));
        let which = format!("{place}?labelSelector=suite=yes");
        let from = cluster.version(place).await;
        let mut here = cluster.watch(&format!("{which}&resourceVersion={from}")).await;
        let everywhere = format!("{}?labelSelector=suite=yes", device.everywhere);
        let mut all = cluster.watch(&format!("{everywhere}&resourceVersion={from}")).await;
        let made = cluster.make(place, named("one", device.spec.clone())).await;
        assert_eq!(cluster.names(&everywhere).await, ["one"], "{place}");
        patched_alike(&cluster, &it, &made).await;
        let mut updated = cluster.read(&it).await;
        match &device.changed {
            Some(changed) => {
                updated["spec"] = changed.clone();
                let reply = cluster.put(&it, &updated).await.ok();
                let generation = |object: &Value| object["metadata"]["generation"].as_i64();
                assert!(generation(&reply) > generation(&made), "{it}");
            }
            None => {
                updated["metadata"]["labels"]["more"] = "x".into();
                cluster.put(&it, &updated).await.ok();
                let other = json!({"spec": {"devices": null, "spec": {"devices": null}}});
                cluster.patch(&it, other).await.refused(422, "Invalid");
            }
        }
        cluster.delete(&it).await.ok();
        cluster.make(place, named("two", device.spec.clone())).await;
        cluster.delete(&which).await.ok();
        assert!(cluster.names(&which).await.is_empty(), "{place}");
        let mut told = vec!["ADDED one"];
        told.extend(["MODIFIED one"; 5]);
        told.extend(["DELETED one", "ADDED two", "DELETED two"]);
        assert_eq!(here.reply(told.len()).await, told, "{place}");
        assert_eq!(all.reply(told.len()).await, told, "{place}");
    }
}

/// C-192: a list of devices is replaced as a whole, and a claim keeps its allocation.
#[tokio::test]
async fn c_192_device_lists_are_replaced_as_a_whole_and_a_claim_keeps_its_allocation() {
    let cluster = Cluster::start().await;
    let [_, claim, _, slice] = devices();
    cluster.make(slice.place, named("s", slice.spec)).await;
    let patch = json!({"spec": {"devices": [{"name": "z"}]}}).to_string();
    let reply = cluster.patch_as(STRATEGIC, &format!("{}/s", slice.place), patch).await.ok();
    assert_eq!(reply["spec"]["devices"], json!([{"name": "z"}]));

    let made = cluster.make(claim.place, named("c", claim.spec)).await;
    let exactly = &made["spec"]["devices"]["requests"][0]["exactly"];
    let defaults = (&exactly["allocationMode"], &exactly["count"]);
    assert_eq!(defaults, (&"ExactCount".into(), &1.into()));
    let status = format!("{}/c/status", claim.place);
    let mut given = cluster.read(&status).await;
    given["status"] = json!({"allocation": {}});
    let mut reply = vec![cluster.put(&status, &given).await.ok()];
    let part = json!({"status": {"allocation": {}}});
    for media in [MERGE, STRATEGIC] {
        reply.push(cluster.patch_as(media, &status, part.to_string()).await.ok());
    }
    let operation = json!([{"op": "replace", "path": "/status/allocation", "value": {}}]);
    reply.push(cluster.patch_as(JSON_PATCH, &status, operation.to_string()).await.ok());
    let applied = json!({"kind": made["kind"], "apiVersion": made["apiVersion"],
                         "metadata": {"name": "c"}, "status": {"allocation": {}}});
    let path = format!("{status}?fieldManager=suite&force=true");
    reply.push(cluster.patch_as(APPLY, &path, applied.to_string()).await.ok());
    reply.push(cluster.read(&status).await);
    assert!(reply.iter().all(|claim| claim["status"]["allocation"] == json!({})), "{reply:#?}");
}

#[tokio::test]
async fn t_ctrl_49_50_a_namespace_gets_its_deletion_timestamp_once_and_no_grace_period() {
    let cluster = Cluster::start().await;
    let made = cluster.make("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]), "T-CTRL-49");
    assert_eq!(made["status"]["phase"], "Active", "T-CTRL-49");
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "shop", "T-CTRL-49");
    let mut watch =
        cluster.watch(&format!("/api/v1/namespaces?resourceVersion={}", version(&made))).await;
    let marked = cluster.delete("/api/v1/namespaces/shop").await.ok();
    assert_eq!(marked["kind"], "Namespace");
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert!((now() - seconds(&marked["metadata"]["deletionTimestamp"])).abs() <= 2, "T-CTRL-50");
    assert_eq!(marked["metadata"].get("deletionGracePeriodSeconds"), None, "T-CTRL-50");
    assert_eq!(marked["metadata"].get("generation"), made["metadata"].get("generation"));
    // One write: both are in the first event.
    let seen = watch.next().await["object"].take();
    assert_eq!(seen["status"]["phase"], "Terminating");
    assert_eq!(seen["metadata"]["deletionTimestamp"], marked["metadata"]["deletionTimestamp"]);
    let again = cluster.delete("/api/v1/namespaces/shop").await.ok();
    assert_eq!(version(&again), version(&marked), "T-CTRL-50: nothing more is written");
}

#[tokio::test]
async fn t_ctrl_57_only_finalize_changes_the_finalizers_of_a_namespace() {
    let cluster = Cluster::start().await;
    let made = cluster.make("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
    let place = "/api/v1/namespaces/shop";
    let mut none = made.clone();
    none["spec"]["finalizers"] = json!([]);
    let put = cluster.put(place, &none).await.ok();
    assert_eq!(put["spec"]["finalizers"], json!(["kubernetes"]));
    // A namespace that is not being deleted stays, even without finalizers.
    none["metadata"]["resourceVersion"] = put["metadata"]["resourceVersion"].clone();
    let finalized = cluster.put(&format!("{place}/finalize"), &none).await.ok();
    assert!(finalized["spec"].get("finalizers").is_none_or(|all| *all == json!([])));
    assert_eq!(cluster.read(place).await["status"]["phase"], "Active");
    // A namespace that is being deleted is removed with its last finalizer; those in its metadata count too.
    let mut held = json!({"metadata": {"name": "held"}});
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.make("/api/v1/namespaces", held).await;
    let place = "/api/v1/namespaces/held";
    let mut marked = cluster.delete(place).await.ok();
    marked["spec"]["finalizers"] = json!([]);
    cluster.put(&format!("{place}/finalize"), &marked).await.ok();
    assert_eq!(cluster.read(place).await["status"]["phase"], "Terminating");
    cluster.patch(place, json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(cluster.get(place).await.code, 404);
}
