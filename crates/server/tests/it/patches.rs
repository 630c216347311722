//! Patch and apply, dry runs, and unknown fields (A-117 to A-122, A-131, A-134 to
//! A-144).

use crate::cluster::{
    APPLY, Cluster, DEPLOYMENTS, JSON_PATCH, MAPS, MERGE, STRATEGIC, deployment, map, version,
};
use serde_json::{Value, json};

fn m(name: &str) -> String {
    format!("{MAPS}/{name}")
}

#[tokio::test]
async fn a_117_and_118_the_content_type_decides_the_form_of_a_patch() {
    let cluster = Cluster::start().await;
    let d = format!("{DEPLOYMENTS}/d");
    let containers = |cluster: &Cluster| {
        let (admin, d) = (cluster.admin(), d.clone());
        async move { admin.read(&d).await["spec"]["template"]["spec"]["containers"].clone() }
    };
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let second = json!([{"name": "second", "image": "b:1"}]);
    let patch = json!({"spec": {"template": {"spec": {"containers": second}}}}).to_string();
    cluster
        .patch_as("application/strategic-merge-patch+json; charset=utf-8", &d, patch.clone())
        .await
        .ok();
    assert_eq!(containers(&cluster).await.as_array().unwrap().len(), 2);
    cluster.patch_as(MERGE, &d, patch.clone()).await.ok();
    assert_eq!(containers(&cluster).await.as_array().unwrap().len(), 1);
    for media in ["application/json", "application/apply-patch+cbor", "text/plain", ""] {
        cluster.patch_as(media, &d, patch.clone()).await.refused(415, "UnsupportedMediaType");
    }
    for media in [MERGE, STRATEGIC, JSON_PATCH] {
        let body = if media == JSON_PATCH { "[]" } else { "{}" };
        cluster.patch_as(media, &m("none"), body).await.refused(404, "NotFound");
    }
    assert_eq!(cluster.apply(&m("none"), "me", map("none")).await.code, 201);
}

#[tokio::test]
async fn a_119_a_patch_is_applied_to_the_version_in_the_url() {
    let cluster = Cluster::start().await;
    let v1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let hpa = json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": target,
        "maxReplicas": 3, "targetCPUUtilizationPercentage": 50}});
    cluster.make(v1, hpa).await;
    let patch = json!({"spec": {"targetCPUUtilizationPercentage": 70}});
    let reply = cluster.patch(&format!("{v1}/h"), patch).await.ok();
    assert_eq!(reply["spec"]["targetCPUUtilizationPercentage"], 70);
    let v2 =
        cluster.read("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h").await;
    assert_eq!(v2["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);
}

#[tokio::test]
async fn a_120_a_patch_is_conditional_only_with_a_resource_version() {
    let cluster = Cluster::start().await;
    let made = cluster.make(MAPS, map("m")).await;
    cluster.patch(&m("m"), json!({"data": {"a": "1"}})).await.ok();
    let stale = json!({"metadata": {"resourceVersion": version(&made)}, "data": {"a": "2"}});
    let reply = cluster.patch(&m("m"), stale).await;
    assert!(reply.refused(409, "Conflict").contains("the object has been modified"));
    cluster.patch(&m("m"), json!({"metadata": {"uid": "other"}})).await.refused(409, "Conflict");
    cluster.patch(&m("m"), json!({"metadata": {"name": "n"}})).await.refused(400, "BadRequest");
    let moved = json!({"metadata": {"namespace": "shop"}});
    let reply = cluster.patch(&m("m"), moved).await;
    assert_eq!(reply.code, 400, "{}", reply.body);
    // The server retries if others write at the same time.
    let writers = (0..20).map(|n| {
        let admin = cluster.admin();
        tokio::spawn(async move {
            admin.patch(&m("m"), json!({"data": {format!("k{n}"): "v"}})).await.code
        })
    });
    for code in futures::future::join_all(writers).await {
        assert_eq!(code.unwrap(), 200);
    }
    assert_eq!(cluster.read(&m("m")).await["data"].as_object().unwrap().len(), 21);
}

#[tokio::test]
async fn a_121_invalid_patches_are_refused() {
    let cluster = Cluster::start().await;
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let d = format!("{DEPLOYMENTS}/d");
    let many = json!(vec![json!({"op": "test", "path": "/kind", "value": "Deployment"}); 10_001]);
    let rows = [
        (MERGE, "{".to_owned(), 400),
        (STRATEGIC, "[]".into(), 400),
        (JSON_PATCH, "{}".into(), 400),
        (
            JSON_PATCH,
            json!([{"op": "test", "path": "/spec/replicas", "value": 7}]).to_string(),
            422,
        ),
        (JSON_PATCH, json!([{"op": "remove", "path": "/spec/nothing"}]).to_string(), 422),
        (JSON_PATCH, json!([{"op": "replace", "path": "/spec/x/y", "value": 1}]).to_string(), 422),
        (MERGE, json!({"spec": {"replicas": "many"}}).to_string(), 422),
        (JSON_PATCH, many.to_string(), 413),
    ];
    let before = cluster.read(&d).await;
    for (media, body, code) in rows {
        let shown: String = body.chars().take(60).collect();
        let reply = cluster.patch_as(media, &d, body).await;
        assert_eq!(reply.code, code, "{shown}: {}", reply.body);
    }
    let reply = cluster.patch(&d, json!({"spec": {"replicas": "many"}})).await;
    assert_eq!(reply.body["details"]["causes"][0]["field"], "patch", "{}", reply.body);
    assert_eq!(cluster.read(&d).await, before);
}

#[tokio::test]
async fn a_122_json_patches_and_merge_patches_follow_their_standards() {
    let cluster = Cluster::start().await;
    let mut wanted = map("m");
    wanted["data"] = json!({"a": "1", "b": "2"});
    wanted["metadata"]["annotations"] = json!({"x/y": "1"});
    wanted["metadata"]["finalizers"] = json!(["example.com/one"]);
    cluster.make(MAPS, wanted).await;
    let patch = json!([
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/data/a", "value": "9"},
        {"op": "remove", "path": "/data/b"},
        {"op": "replace", "path": "/metadata/annotations/x~1y", "value": "3"},
        {"op": "add", "path": "/metadata/annotations/t~0u", "value": "2"},
        {"op": "move", "from": "/metadata/annotations/t~0u", "path": "/metadata/annotations/tu"},
        {"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/two"},
        {"op": "copy", "from": "/data/a", "path": "/data/c"},
        {"op": "move", "from": "/data/c", "path": "/data/d"},
    ]);
    let reply = cluster.patch_as(JSON_PATCH, &m("m"), patch.to_string()).await.ok();
    assert_eq!(reply["data"], json!({"a": "9", "d": "9"}));
    assert_eq!(reply["metadata"]["annotations"], json!({"x/y": "3", "tu": "2"}));
    assert_eq!(reply["metadata"]["finalizers"], json!(["example.com/one", "example.com/two"]));
    let patch =
        json!({"data": {"a": null, "e": "5"}, "metadata": {"finalizers": ["example.com/three"]}});
    let reply = cluster.patch(&m("m"), patch).await.ok();
    assert_eq!(reply["data"], json!({"d": "9", "e": "5"}));
    assert_eq!(reply["metadata"]["finalizers"], json!(["example.com/three"]));
}

fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap().iter();
    entries
        .map(|entry| {
            format!(
                "{} {}",
                entry["manager"].as_str().unwrap(),
                entry["operation"].as_str().unwrap()
            )
        })
        .collect()
}

#[tokio::test]
async fn a_131_the_manager_of_a_change_owns_the_field() {
    let cluster = Cluster::start().await;
    let agent = [("content-type", "application/json"), ("user-agent", "tool/1.2 (x)")];
    let mut wanted = map("m");
    wanted["data"] = json!({"a": "1", "b": "1"});
    let made = cluster.send("POST", MAPS, &agent, wanted.to_string()).await.ok();
    assert_eq!(managers(&made), ["tool Update"]);
    let reply = cluster
        .patch(&format!("{}?fieldManager=other", m("m")), json!({"data": {"a": "2"}}))
        .await
        .ok();
    assert_eq!(managers(&reply), ["other Update", "tool Update"]);
    let fields = |reply: &Value, n: usize| {
        reply["metadata"]["managedFields"][n]["fieldsV1"]["f:data"].clone()
    };
    assert_eq!(fields(&reply, 0), json!({"f:a": {}}));
    assert_eq!(fields(&reply, 1), json!({".": {}, "f:b": {}}));
    let long = "x".repeat(129);
    cluster
        .patch(&format!("{}?fieldManager={long}", m("m")), json!({}))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn a_134_an_apply_needs_a_field_manager_and_a_matching_object() {
    let cluster = Cluster::start().await;
    let reply = cluster.patch_as(APPLY, &m("m"), map("m").to_string()).await;
    reply.refused(422, "Invalid");
    assert_eq!(reply.body["details"]["causes"][0]["field"], "fieldManager");
    let reply = cluster.patch(&format!("{}?force=true", m("m")), json!({})).await;
    reply.refused(422, "Invalid");
    let mut other = map("m");
    other["kind"] = "Secret".into();
    let reply = cluster.apply(&m("m"), "me", other).await;
    assert!(reply.refused(400, "BadRequest").contains("invalid object type"));
    cluster.apply(&m("m"), "me", map("n")).await.refused(400, "BadRequest");
    let mut managed = map("m");
    managed["metadata"]["managedFields"] = json!([]);
    let reply = cluster.apply(&m("m"), "me", managed).await;
    assert_eq!(reply.refused(400, "BadRequest"), "metadata.managedFields must be nil");
    let yaml = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: \"1\"\n";
    let path = format!("{}?fieldManager=me", m("m"));
    assert_eq!(cluster.patch_as(APPLY, &path, yaml).await.code, 201);
    assert_eq!(cluster.patch_as(APPLY, &path, yaml).await.code, 200);
    // A-118: creating this way needs the right to create.
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "status": {"replicas": 1}});
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let reply = cluster.apply(&format!("{DEPLOYMENTS}/d/status"), "me", status).await.ok();
    assert_eq!(reply["status"]["replicas"], 1);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 2}});
    cluster.apply(&format!("{DEPLOYMENTS}/d/scale"), "me", scale).await.ok();
}

#[tokio::test]
async fn a_135_fields_that_are_no_longer_applied_are_removed() {
    let cluster = Cluster::start().await;
    let data = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data});
    cluster.apply(&m("m"), "one", data(json!({"a": "1", "b": "1"}))).await.ok();
    cluster.apply(&m("m"), "two", data(json!({"b": "1", "c": "1"}))).await.ok();
    let reply = cluster.apply(&m("m"), "one", data(json!({"a": "1"}))).await.ok();
    assert_eq!(reply["data"], json!({"a": "1", "b": "1", "c": "1"}));
    let reply = cluster.apply(&m("m"), "two", data(json!({"c": "1"}))).await.ok();
    assert_eq!(reply["data"], json!({"a": "1", "c": "1"}));
    let mut unknown = map("m");
    unknown["spec"] = json!({"x": 1});
    let reply = cluster.apply(&m("m"), "one", unknown).await;
    assert!(reply.message().contains(".spec: field not declared in schema"), "{}", reply.body);
}

#[tokio::test]
async fn a_136_a_field_of_another_manager_is_a_conflict_unless_forced_or_equal() {
    let cluster = Cluster::start().await;
    let d = format!("{DEPLOYMENTS}/d");
    let mut wanted = deployment("d");
    cluster.apply(&d, "one", wanted.clone()).await.ok();
    let same = cluster.apply(&d, "two", wanted.clone()).await.ok();
    assert_eq!(managers(&same), ["one Apply", "two Apply"]);
    wanted["spec"]["replicas"] = 5.into();
    let reply = cluster.apply(&d, "two", wanted.clone()).await;
    let text = "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas";
    assert_eq!(reply.refused(409, "Conflict"), text);
    assert_eq!(
        reply.body["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "field": ".spec.replicas", "message": "conflict with \"one\""}])
    );
    wanted["spec"]["minReadySeconds"] = 1.into();
    cluster
        .patch(&format!("{d}?fieldManager=three"), json!({"spec": {"minReadySeconds": 9}}))
        .await
        .ok();
    let reply = cluster.apply(&d, "two", wanted.clone()).await;
    let message = reply.refused(409, "Conflict");
    assert!(message.starts_with("Apply failed with 2 conflicts: "), "{message}");
    assert!(message.contains("conflicts with \"three\" using apps/v1"), "{message}");
    let reply = cluster.apply(&d, "two&force=true", wanted).await.ok();
    assert_eq!(reply["spec"]["replicas"], 5);
}

#[tokio::test]
async fn a_138_applying_the_same_again_changes_nothing() {
    let cluster = Cluster::start().await;
    let d = format!("{DEPLOYMENTS}/d");
    let first = cluster.apply(&d, "me", deployment("d")).await.ok();
    assert_eq!(cluster.apply(&d, "me", deployment("d")).await.ok(), first);
    let owned = first["metadata"]["managedFields"][0]["fieldsV1"].to_string();
    assert!(owned.contains("f:image") && !owned.contains("f:imagePullPolicy"), "{owned}");
    assert!(!owned.contains("f:strategy"), "{owned}");
}

#[tokio::test]
async fn a_141_a_dry_run_returns_the_result_and_stores_nothing() {
    let cluster = Cluster::start().await;
    let before = cluster.version(MAPS).await;
    let reply = cluster
        .post(&format!("{MAPS}?dryRun=All"), json!({"metadata": {"generateName": "x-"}}))
        .await;
    assert_eq!(reply.code, 201);
    assert!(reply.body["metadata"]["uid"].is_string());
    assert!(reply.body["metadata"]["name"].as_str().unwrap().starts_with("x-"));
    assert_eq!(reply.body["metadata"].get("resourceVersion"), None);
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let reply = cluster.post(&format!("{services}?dryRun=All"), service).await.ok();
    assert!(reply["spec"]["clusterIP"].is_string());
    let reply = cluster.apply(&m("m"), "me&dryRun=All", map("m")).await;
    assert_eq!(reply.code, 201);
    assert_eq!(cluster.version(MAPS).await, before);
    let made = cluster.make(MAPS, map("m")).await;
    let mut wanted = made.clone();
    wanted["data"] = json!({"a": "b"});
    assert_eq!(
        cluster.put(&format!("{}?dryRun=All", m("m")), &wanted).await.ok()["data"],
        wanted["data"]
    );
    let patch = json!({"data": {"a": "b"}});
    assert_eq!(
        cluster.patch(&format!("{}?dryRun=All", m("m")), patch.clone()).await.ok()["data"],
        wanted["data"]
    );
    assert_eq!(cluster.read(&m("m")).await, made);
    cluster.post(&format!("{MAPS}?dryRun=All"), map("m")).await.refused(409, "AlreadyExists");
    for query in ["dryRun=Some", "dryRun=All&dryRun=Some"] {
        cluster.patch(&format!("{}?{query}", m("m")), patch.clone()).await.refused(422, "Invalid");
    }
}

#[tokio::test]
async fn a_142_to_144_unknown_and_duplicate_fields_are_refused_warned_about_or_ignored() {
    let cluster = Cluster::start().await;
    let body = r#"{"metadata": {"name": "d", "name": "d", "Labels": {}},
        "spec": {"foo": 1, "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [
        {"name": "app", "image": "a:1", "imagee": "x"}]}}}}"#;
    let headers = [("content-type", "application/json")];
    let problems = [
        "duplicate field \"metadata.name\"",
        "unknown field \"metadata.Labels\"",
        "unknown field \"spec.foo\"",
        "unknown field \"spec.template.spec.containers[0].imagee\"",
    ];
    let path = format!("{DEPLOYMENTS}?dryRun=All&fieldValidation=Strict");
    let reply = cluster.send("POST", &path, &headers, body).await;
    let message = reply.refused(400, "BadRequest");
    let (_, reported) = message.split_once("strict decoding error: ").expect(message);
    let mut reported: Vec<_> = reported.split(", ").collect();
    reported.sort_unstable();
    assert_eq!(reported, problems);
    for query in ["", "&fieldValidation=Warn"] {
        let reply =
            cluster.send("POST", &format!("{DEPLOYMENTS}?dryRun=All{query}"), &headers, body).await;
        assert_eq!(reply.code, 201, "{}", reply.body);
        let mut warned = reply.warnings();
        warned.sort_unstable();
        let wanted = problems.map(|problem| format!("299 - \"{}\"", problem.replace('"', "\\\"")));
        assert_eq!(warned, wanted);
    }
    let path = format!("{DEPLOYMENTS}?dryRun=All&fieldValidation=Ignore");
    let reply = cluster.send("POST", &path, &headers, body).await;
    assert_eq!((reply.code, reply.warnings().len()), (201, 0));
    let path = format!("{DEPLOYMENTS}?fieldValidation=Maybe");
    cluster.send("POST", &path, &headers, body).await.refused(422, "Invalid");

    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let strict = format!("{DEPLOYMENTS}/d?fieldValidation=Strict");
    for (media, body) in [
        (MERGE, json!({"spec": {"foo": 1}})),
        (STRATEGIC, json!({"spec": {"foo": 1}})),
        (JSON_PATCH, json!([{"op": "add", "path": "/spec/foo", "value": 1}])),
    ] {
        let reply = cluster.patch_as(media, &strict, body.to_string()).await;
        let message = reply.refused(422, "Invalid");
        assert!(
            message.ends_with("strict decoding error: unknown field \"spec.foo\""),
            "{message}"
        );
    }
    let yaml = "metadata:\n  name: m\ndata:\n  a: x\n  a: y\n";
    let path = format!("{MAPS}?fieldValidation=Strict");
    let reply = cluster.send("POST", &path, &[("content-type", "application/yaml")], yaml).await;
    let message = reply.refused(400, "BadRequest");
    assert!(message.contains("line 5: key \"a\" already set in map"), "{message}");
}
