//! Creating and updating: what the server adds, keeps and refuses, and the subresources that write
//! (A-59 to A-72, A-84 to A-90).

use crate::cluster::{
    Cluster, DEPLOYMENTS, JSON_PATCH, MAPS, MERGE, PODS, STRATEGIC, deployment, held, map, now,
    pod, seconds, version,
};
use serde_json::{Value, json};

fn m(name: &str) -> String {
    format!("{MAPS}/{name}")
}

fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or(0)
}

#[tokio::test]
async fn a_59_the_server_sets_identity_and_time() {
    let cluster = Cluster::start().await;
    let mut wanted = map("m");
    wanted["metadata"]["uid"] = "mine".into();
    wanted["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
    wanted["metadata"]["selfLink"] = "/x".into();
    wanted["metadata"]["generation"] = 7.into();
    let made = cluster.make(MAPS, wanted).await;
    let metadata = &made["metadata"];
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    assert!((seconds(&metadata["creationTimestamp"]) - now()).abs() <= 1);
    assert_eq!((metadata.get("selfLink"), metadata.get("generation")), (None, None));
    assert_eq!(cluster.read(&m("m")).await, made);
}

#[tokio::test]
async fn a_60_the_namespace_comes_from_the_url() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.make(MAPS, map("m")).await["metadata"]["namespace"], "default");
    let mut other = map("n");
    other["metadata"]["namespace"] = "shop".into();
    let reply = cluster.post(MAPS, other).await;
    let wanted =
        "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!(reply.refused(400, "BadRequest"), wanted);
    let node = json!({"metadata": {"name": "n1", "namespace": "default"}});
    let made = cluster.make("/api/v1/nodes", node).await;
    assert_eq!(made["metadata"].get("namespace"), None);
    // A-93: in a namespace that does not exist.
    let reply = cluster.post("/api/v1/namespaces/none/configmaps", map("m")).await;
    assert_eq!(reply.refused(404, "NotFound"), "namespaces \"none\" not found");
}

#[tokio::test]
async fn a_61_a_name_is_generated_from_a_prefix() {
    let cluster = Cluster::start().await;
    let long = "a".repeat(70);
    for (prefix, length) in [("web-", 4), (long.as_str(), 58)] {
        let made = cluster.make(MAPS, json!({"metadata": {"generateName": prefix}})).await;
        let name = made["metadata"]["name"].as_str().unwrap();
        assert_eq!(name.len(), length + 5, "{name}");
        assert!(name.starts_with(&prefix[..length]));
        let random = |c: char| "bcdfghjklmnpqrstvwxz2456789".contains(c);
        assert!(name[length..].chars().all(random), "{name}");
        assert_eq!(made["metadata"]["generateName"], prefix);
    }
    let made = cluster.make(MAPS, json!({"metadata": {"name": "m", "generateName": "x-"}})).await;
    assert_eq!(
        (&made["metadata"]["name"], &made["metadata"]["generateName"]),
        (&"m".into(), &"x-".into())
    );
    let reply = cluster.post(MAPS, json!({})).await;
    assert!(reply.refused(422, "Invalid").contains("name or generateName is required"));
}

#[tokio::test]
async fn a_62_to_64_a_create_refuses_resource_version_and_existing_names() {
    let cluster = Cluster::start().await;
    let mut wanted = map("m");
    wanted["metadata"]["resourceVersion"] = "5".into();
    let reply = cluster.post(MAPS, wanted).await;
    let text = "resourceVersion should not be set on objects to be created";
    assert_eq!((reply.code, reply.message()), (500, text));
    // A-63: a create does not set the status, except of a Node.
    let mut wanted = pod("p");
    wanted["status"] = json!({"phase": "Running", "message": "x"});
    let made = cluster.make(PODS, wanted).await;
    assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    let node = json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}});
    assert_eq!(cluster.make("/api/v1/nodes", node).await["status"]["capacity"]["cpu"], "4");
    // A name that is being deleted is taken too (A-64).
    cluster.make(MAPS, held(map("m"), "example.com/hold")).await;
    let reply = cluster.post(MAPS, map("m")).await;
    assert_eq!(reply.refused(409, "AlreadyExists"), "configmaps \"m\" already exists");
    cluster.delete(&m("m")).await.ok();
    let reply = cluster.post(MAPS, map("m")).await;
    let text = "object is being deleted: configmaps \"m\" already exists";
    assert_eq!(reply.refused(409, "AlreadyExists"), text);
    assert_eq!(reply.body["details"], json!({"name": "m", "kind": "configmaps"}));
}

#[tokio::test]
async fn a_65_a_put_is_conditional_on_its_resource_version() {
    let cluster = Cluster::start().await;
    let first = cluster.make(MAPS, map("m")).await;
    let mut wanted = first.clone();
    wanted["data"] = json!({"a": "1"});
    let second = cluster.put(&m("m"), &wanted).await.ok();
    wanted["data"] = json!({"a": "2"});
    let reply = cluster.put(&m("m"), &wanted).await;
    assert_eq!(
        reply.refused(409, "Conflict"),
        "Operation cannot be fulfilled on configmaps \"m\": the object has been modified; please apply your changes to the latest version and try again"
    );
    assert_eq!(cluster.read(&m("m")).await, second);
    let reply = cluster.put(&m("other"), &wanted).await;
    assert_eq!(
        reply.refused(400, "BadRequest"),
        "the name of the object (m) does not match the name on the URL (other)"
    );
    // A-66: without a version it overwrites.
    wanted["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(cluster.put(&m("m"), &wanted).await.ok()["data"], json!({"a": "2"}));
}

#[tokio::test]
async fn a_66_some_kinds_are_not_overwritten_blindly() {
    let cluster = Cluster::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let drivers = "/apis/storage.k8s.io/v1/csidrivers";
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    for (collection, body) in [
        (leases, json!({"spec": {}})),
        (budgets, json!({"spec": {"minAvailable": 1}})),
        (drivers, json!({"spec": {}})),
        (classes, json!({"handler": "x"})),
    ] {
        let mut body = body;
        body["metadata"] = json!({"name": "x"});
        let made = cluster.make(collection, body.clone()).await;
        let reply = cluster.put(&format!("{collection}/x"), &body).await;
        let message = reply.refused(422, "Invalid");
        assert!(
            message.ends_with(
                "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            ),
            "{message}"
        );
        assert_eq!(cluster.put(&format!("{collection}/x"), &made).await.code, 200);
    }
}

#[tokio::test]
async fn a_67_some_kinds_can_be_created_by_an_update() {
    let cluster = Cluster::start().await;
    let core = "/api/v1/namespaces/default";
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for (collection, body) in [
        (format!("{core}/limitranges"), json!({"spec": {"limits": []}})),
        (format!("{rbac}/namespaces/default/roles"), json!({"rules": []})),
        (format!("{rbac}/clusterroles"), json!({"rules": []})),
        (format!("{core}/endpoints"), json!({})),
    ] {
        let mut body = body;
        body["metadata"] = json!({"name": "x"});
        let reply = cluster.put(&format!("{collection}/x"), &body).await;
        assert_eq!(reply.code, 201, "{collection}: {}", reply.body);
        assert_eq!(cluster.get(&format!("{collection}/x")).await.code, 200);
    }
    cluster.put(&m("none"), &map("none")).await.refused(404, "NotFound");
    cluster.put(&format!("{PODS}/none"), &pod("none")).await.refused(404, "NotFound");
}

#[tokio::test]
async fn a_68_uid_and_name_of_an_object_cannot_change() {
    let cluster = Cluster::start().await;
    let made = cluster.make(MAPS, map("m")).await;
    let mut wanted = made.clone();
    wanted["metadata"]["uid"] = "other".into();
    let reply = cluster.put(&m("m"), &wanted).await;
    let message = reply.refused(409, "Conflict");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let text =
        format!("Precondition failed: UID in precondition: other, UID in object meta: {uid}");
    assert!(message.ends_with(&text), "{message}");
    let mut wanted = made.clone();
    for field in ["uid", "creationTimestamp"] {
        wanted["metadata"].as_object_mut().unwrap().remove(field);
    }
    wanted["data"] = json!({"a": "b"});
    let put = cluster.put(&m("m"), &wanted).await.ok();
    for field in ["uid", "creationTimestamp"] {
        assert_eq!(put["metadata"][field], made["metadata"][field]);
    }
}

#[tokio::test]
async fn a_69_a_write_without_changes_keeps_the_resource_version() {
    let cluster = Cluster::start().await;
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let made = cluster.read(&format!("{DEPLOYMENTS}/d")).await;
    let mut watch =
        cluster.watch(&format!("{DEPLOYMENTS}?resourceVersion={}", version(&made))).await;
    let path = format!("{DEPLOYMENTS}/d");
    assert_eq!(cluster.put(&path, &made).await.ok(), made);
    // Another manager and explicit defaults make no difference.
    let agent = [("content-type", MERGE), ("user-agent", "somebody/1.0")];
    let same = json!({"spec": {"replicas": 2}}).to_string();
    assert_eq!(cluster.send("PATCH", &path, &agent, same).await.ok(), made);
    assert_eq!(cluster.put(&path, &deployment("d")).await.ok(), made);
    assert_eq!(cluster.patch_as(STRATEGIC, &path, "{}").await.ok(), made);
    assert_eq!(cluster.patch_as(JSON_PATCH, &path, "[]").await.ok(), made);
    cluster.make(DEPLOYMENTS, deployment("e")).await;
    assert_eq!(watch.reply(1).await, ["ADDED e"]);
}

#[tokio::test]
async fn a_70_resource_versions_are_numbers_that_increase_with_every_write() {
    let cluster = Cluster::start().await;
    let mut last = 0;
    for n in 0..5 {
        let made = if n % 2 == 0 {
            cluster.make(MAPS, map(&format!("m{n}"))).await
        } else {
            cluster.make(PODS, pod(&format!("p{n}"))).await
        };
        let text = version(&made);
        let number: u64 = text.parse().unwrap();
        assert_eq!(number.to_string(), text);
        assert!(number > last);
        last = number;
    }
}

#[tokio::test]
async fn a_71_the_generation_counts_changes_of_the_spec() {
    let cluster = Cluster::start().await;
    let d = format!("{DEPLOYMENTS}/d");
    let mut first = deployment("d");
    first["metadata"]["generation"] = 9.into();
    assert_eq!(generation(&cluster.make(DEPLOYMENTS, first).await), 1);
    let rows = [
        (json!({"metadata": {"labels": {"a": "b"}}}), 1),
        (json!({"status": {"replicas": 3}}), 1),
        (json!({"metadata": {"generation": 40}}), 1),
        (json!({"spec": {"replicas": 3}}), 2),
        (json!({"metadata": {"annotations": {"a": "b"}}}), 3),
    ];
    for (patch, wanted) in rows {
        let reply = cluster.patch(&d, patch.clone()).await.ok();
        assert_eq!(generation(&reply), wanted, "{patch}");
    }
    let status = json!({"status": {"replicas": 3}});
    assert_eq!(generation(&cluster.patch(&format!("{d}/status"), status).await.ok()), 3);
    let scaled = json!({"spec": {"replicas": 5}});
    cluster.patch(&format!("{d}/scale"), scaled).await.ok();
    assert_eq!(generation(&cluster.read(&d).await), 4);
}

#[tokio::test]
async fn a_71_every_change_of_a_pod_spec_counts_through_every_endpoint() {
    let cluster = Cluster::start().await;
    let p = format!("{PODS}/p");
    let mut wanted = pod("p");
    wanted["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    assert_eq!(generation(&cluster.bound(wanted).await), 1);
    let image = json!({"spec": {"containers": [{"name": "app", "image": "nginx:1.28"}]}});
    let reply = cluster.patch_as(STRATEGIC, &p, image.to_string()).await.ok();
    assert_eq!(generation(&reply), 2);
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "busybox:1"}]}});
    let reply =
        cluster.patch_as(STRATEGIC, &format!("{p}/ephemeralcontainers"), debug.to_string()).await;
    assert_eq!(generation(&reply.ok()), 3);
    let more =
        json!({"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "2"}}}]}});
    let reply = cluster.patch_as(STRATEGIC, &format!("{p}/resize"), more.to_string()).await;
    assert_eq!(generation(&reply.ok()), 4);
    let status = json!({"status": {"phase": "Running"}});
    assert_eq!(generation(&cluster.patch(&format!("{p}/status"), status).await.ok()), 4);
}

#[tokio::test]
async fn a_84_status_and_spec_are_written_through_separate_endpoints() {
    let cluster = Cluster::start().await;
    let d = format!("{DEPLOYMENTS}/d");
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let both = json!({"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}},
                      "spec": {"replicas": 9}, "status": {"replicas": 4, "observedGeneration": 1}});
    let reply = cluster.patch(&format!("{d}/status"), both.clone()).await.ok();
    assert_eq!((&reply["spec"]["replicas"], &reply["status"]["replicas"]), (&2.into(), &4.into()));
    // The status of a Deployment accepts annotations but no labels; other kinds accept both.
    assert_eq!(reply["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(reply["metadata"].get("labels"), None);
    let reply = cluster.patch(&d, both).await.ok();
    assert_eq!((&reply["spec"]["replicas"], &reply["status"]["replicas"]), (&9.into(), &4.into()));
    let node = json!({"metadata": {"name": "n1"}});
    cluster.make("/api/v1/nodes", node).await;
    let patch = json!({"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}});
    let reply = cluster.patch("/api/v1/nodes/n1/status", patch).await.ok();
    assert_eq!(
        (&reply["metadata"]["annotations"]["a"], &reply["metadata"]["labels"]["c"]),
        (&"b".into(), &"d".into())
    );
    let reply = cluster.get(&format!("{d}/status")).await.ok();
    assert_eq!((&reply["kind"], &reply["spec"]["replicas"]), (&"Deployment".into(), &9.into()));
    let mut stale = reply.clone();
    stale["metadata"]["resourceVersion"] = "1".into();
    cluster.put(&format!("{d}/status"), &stale).await.refused(409, "Conflict");
}

#[tokio::test]
async fn a_85_scale_has_one_form_for_all_kinds() {
    let cluster = Cluster::start().await;
    let d = format!("{DEPLOYMENTS}/d");
    let scale = format!("{d}/scale");
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let made = cluster.read(&d).await;
    let mut shown = cluster.read(&scale).await;
    assert_eq!((&shown["kind"], &shown["apiVersion"]), (&"Scale".into(), &"autoscaling/v1".into()));
    assert_eq!(
        (&shown["spec"], &shown["status"]),
        (&json!({"replicas": 2}), &json!({"replicas": 0, "selector": "app=d"}))
    );
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        assert_eq!(shown["metadata"][field], made["metadata"][field]);
    }
    shown["spec"]["replicas"] = 3.into();
    assert_eq!(cluster.put(&scale, &shown).await.ok()["spec"]["replicas"], 3);
    shown["spec"]["replicas"] = 4.into();
    cluster.put(&scale, &shown).await.refused(409, "Conflict");
    shown["metadata"]["resourceVersion"] = "".into();
    assert_eq!(cluster.put(&scale, &shown).await.ok()["spec"]["replicas"], 4);
    let patch = json!({"spec": {"replicas": 5}}).to_string();
    for media in [MERGE, STRATEGIC] {
        assert_eq!(
            cluster.patch_as(media, &scale, patch.clone()).await.ok()["spec"]["replicas"],
            5
        );
    }
    let patch = json!([{"op": "replace", "path": "/spec/replicas", "value": 6}]).to_string();
    cluster.patch_as(JSON_PATCH, &scale, patch).await.ok();
    assert_eq!(cluster.read(&d).await["spec"]["replicas"], 6);
    let negative = json!({"spec": {"replicas": -1}});
    cluster.patch(&scale, negative).await.refused(422, "Invalid");
    let dry = json!({"spec": {"replicas": 1}});
    assert_eq!(
        cluster.patch(&format!("{scale}?dryRun=All"), dry).await.ok()["spec"]["replicas"],
        1
    );
    assert_eq!(cluster.read(&d).await["spec"]["replicas"], 6);
}

#[tokio::test]
async fn a_86_a_pod_is_bound_once() {
    let cluster = Cluster::start().await;
    let labels = json!({"topology.kubernetes.io/zone": "z1", "other": "x"});
    cluster.make("/api/v1/nodes", json!({"metadata": {"name": "n1", "labels": labels}})).await;
    cluster.make(PODS, pod("p")).await;
    let binding = |pod: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "Binding",
               "metadata": {"name": pod, "annotations": {"why": "fits"}},
               "target": {"kind": "Node", "name": node}})
    };
    let place = format!("{PODS}/p/binding");
    cluster.post(&place, binding("p", "")).await.refused(422, "Invalid");
    let dry = cluster.post(&format!("{place}?dryRun=All"), binding("p", "n1")).await;
    assert_eq!(dry.code, 201);
    assert_eq!(cluster.read(&format!("{PODS}/p")).await["spec"].get("nodeName"), None);
    let reply = cluster.post(&place, binding("p", "n1")).await;
    assert_eq!(reply.code, 201);
    assert_eq!(
        reply.body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
    );
    let bound = cluster.read(&format!("{PODS}/p")).await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["annotations"], json!({"why": "fits"}));
    assert_eq!(bound["metadata"]["labels"], json!({"topology.kubernetes.io/zone": "z1"}));
    let condition = &bound["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&"PodScheduled".into(), &"True".into())
    );
    let reply = cluster.post(&place, binding("p", "n2")).await;
    let text = "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\"";
    assert_eq!(reply.refused(409, "Conflict"), text);
    let mut gated = pod("gated");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    cluster.make(PODS, gated).await;
    let reply = cluster.post(&format!("{PODS}/gated/binding"), binding("gated", "n1")).await;
    assert!(reply.refused(409, "Conflict").contains("has non-empty .spec.schedulingGates"));
    // The other endpoint.
    cluster.make(PODS, pod("q")).await;
    let reply = cluster.post("/api/v1/namespaces/default/bindings", binding("q", "n1")).await;
    assert_eq!(reply.code, 201, "{}", reply.body);
    assert_eq!(cluster.read(&format!("{PODS}/q")).await["spec"]["nodeName"], "n1");
}

#[tokio::test]
async fn a_88_ephemeral_containers_can_only_be_added() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("p")).await;
    let place = format!("{PODS}/p/ephemeralcontainers");
    let debug = |name: &str, image: &str| json!({"name": name, "image": image});
    let patch = |list: Value| json!({"spec": {"ephemeralContainers": list}}).to_string();
    let reply = cluster.patch_as(STRATEGIC, &place, patch(json!([debug("a", "x:1")]))).await.ok();
    assert_eq!(reply["spec"]["ephemeralContainers"][0]["terminationMessagePolicy"], "File");
    let reply = cluster.patch_as(STRATEGIC, &place, patch(json!([debug("b", "x:1")]))).await.ok();
    assert_eq!(reply["spec"]["ephemeralContainers"].as_array().unwrap().len(), 2);
    cluster
        .patch_as(STRATEGIC, &place, patch(json!([debug("a", "x:2")])))
        .await
        .refused(422, "Invalid");
    cluster
        .patch_as(MERGE, &place, patch(json!([debug("b", "x:1")])))
        .await
        .refused(422, "Invalid");
    // Neither through the main endpoint, nor other changes through this one.
    let more = patch(json!([debug("c", "x:1")]));
    cluster.patch_as(STRATEGIC, &format!("{PODS}/p"), more).await.refused(422, "Invalid");
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let reply = cluster.patch(&place, labels).await.ok();
    assert_eq!(reply["metadata"].get("labels"), None);
}

#[tokio::test]
async fn a_88_a_resize_changes_resources_and_nothing_else() {
    let cluster = Cluster::start().await;
    let mut wanted = pod("p");
    wanted["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}});
    cluster.bound(wanted).await;
    let place = format!("{PODS}/p/resize");
    let patch = |resources: Value| {
        json!({"spec": {"containers": [{"name": "app", "image": "other:1", "resources": resources}]}})
            .to_string()
    };
    let reply = cluster
        .patch_as(STRATEGIC, &place, patch(json!({"requests": {"cpu": "1500m"}})))
        .await
        .ok();
    let container = &reply["spec"]["containers"][0];
    assert_eq!(
        (&container["resources"]["requests"]["cpu"], &container["image"]),
        (&"1500m".into(), &"nginx:1.27".into())
    );
    // Its QoS class stays the same.
    let same =
        json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    let reply = cluster.patch_as(STRATEGIC, &place, patch(same)).await;
    assert!(
        reply
            .refused(422, "Invalid")
            .contains("Pod QOS Class may not change as a result of resizing")
    );
    let disk = json!({"requests": {"ephemeral-storage": "1Gi"}});
    cluster.patch_as(STRATEGIC, &place, patch(disk)).await.refused(422, "Invalid");
    let main = cluster
        .patch_as(STRATEGIC, &format!("{PODS}/p"), patch(json!({"requests": {"cpu": "1"}})))
        .await;
    main.refused(422, "Invalid");
}

#[tokio::test]
async fn a_90_a_signing_request_is_decided_through_approval_only() {
    let cluster = Cluster::start().await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "ana");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    use base64::Engine as _;
    let pem = base64::engine::general_purpose::STANDARD.encode(pem);
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = json!({"metadata": {"name": "r"}, "spec": {"request": pem, "usages": ["client auth"],
        "signerName": "example.com/nobody", "username": "root"}});
    let made = cluster.make(requests, request).await;
    assert_eq!(made["spec"]["username"], "admin");
    let place = format!("{requests}/r");
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Because"});
    let conditions = |list: Value| json!({"status": {"conditions": list}});
    let reply =
        cluster.patch(&format!("{place}/status"), conditions(json!([condition("Approved")]))).await;
    assert!(
        reply
            .refused(422, "Invalid")
            .contains("updates may not add a condition of type \"Approved\"")
    );
    let both = conditions(json!([condition("Approved"), condition("Denied")]));
    cluster.patch(&format!("{place}/approval"), both).await.refused(422, "Invalid");
    let mut approve = conditions(json!([condition("Approved")]));
    approve["spec"] = json!({"username": "root"});
    approve["metadata"] = json!({"labels": {"team": "a"}, "annotations": {"by": "ana"}});
    approve["status"]["certificate"] = "eA==".into();
    let reply = cluster.patch(&format!("{place}/approval"), approve).await.ok();
    let approved = &reply["status"]["conditions"][0];
    assert!((seconds(&approved["lastUpdateTime"]) - now()).abs() <= 1, "{approved}");
    assert!((seconds(&approved["lastTransitionTime"]) - now()).abs() <= 1);
    assert_eq!(
        (&reply["spec"]["username"], reply["status"].get("certificate")),
        (&"admin".into(), None)
    );
    assert_eq!(reply["metadata"]["labels"], json!({"team": "a"}));
    assert_eq!(reply["metadata"]["annotations"], json!({"by": "ana"}));
    let mut relabelled = json!({"metadata": {"labels": {"team": "b"}}});
    relabelled["status"]["conditions"] = json!([condition("Approved")]);
    relabelled["status"]["conditions"][0]["message"] = "mine".into();
    let status = cluster.patch(&format!("{place}/status"), relabelled).await.ok();
    assert_eq!(status["metadata"]["labels"], json!({"team": "b"}));
    assert_eq!(&status["status"]["conditions"][0], approved, "a decision keeps its words");
    let back = cluster.patch(&format!("{place}/approval"), conditions(json!([]))).await;
    assert!(
        back.refused(422, "Invalid")
            .contains("updates may not remove a condition of type \"Approved\"")
    );
    let reply = cluster.patch(&format!("{place}/status"), conditions(json!([]))).await;
    assert!(
        reply
            .refused(422, "Invalid")
            .contains("updates may not remove a condition of type \"Approved\"")
    );
    let failed = conditions(json!([approved, condition("Failed")]));
    let reply = cluster.patch(&format!("{place}/status"), failed).await.ok();
    assert_eq!(reply["status"]["conditions"].as_array().unwrap().len(), 2);
}

/// A-148: Events expire after an hour.
#[tokio::test(start_paused = true)]
async fn events_are_deleted_an_hour_after_they_were_last_observed() {
    let cluster = Cluster::on_simulated_time().await;
    let events = "/api/v1/namespaces/default/events";
    let event = |name: &str| {
        json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a"},
               "reason": "Killing", "type": "Normal", "firstTimestamp": clock::rfc3339(clock::now()),
               "lastTimestamp": clock::rfc3339(clock::now()), "count": 1})
    };
    let names = async || {
        let named = |event: &Value| event["metadata"]["name"].as_str().unwrap().to_owned();
        let all = cluster.read(events).await;
        let all = all["items"].as_array().unwrap().iter().map(named);
        all.filter(|name| ["once", "again"].contains(&name.as_str())).collect::<Vec<_>>()
    };
    cluster.make(events, event("once")).await;
    cluster.make(events, event("again")).await;
    let minutes = |count: u64| tokio::time::sleep(std::time::Duration::from_secs(60 * count));
    minutes(50).await;
    let seen = json!({"count": 2, "lastTimestamp": clock::rfc3339(clock::now())});
    cluster.patch(&format!("{events}/again"), seen).await.ok();
    minutes(8).await;
    assert_eq!(names().await.len(), 2);
    minutes(4).await;
    assert_eq!(names().await, ["again"]);
    minutes(45).await;
    assert_eq!(names().await, ["again"]);
    minutes(5).await;
    assert!(names().await.is_empty());
}
