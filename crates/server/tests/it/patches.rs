//! Patching and applying, dry runs, and fields that nobody knows (A-117 to A-122, A-131, A-134 to
//! A-144).

use crate::door::{
    APPLY, Cluster, DEPLOYMENTS, JSON_PATCH, MAPS, MERGE, STRATEGIC, deployment, map, version,
};
use serde_json::{Value, json};

fn m(name: &str) -> String {
    format!("{MAPS}/{name}")
}

#[tokio::test]
async fn a_117_and_118_a_patch_is_what_its_content_type_says() {
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

/// A-119
#[tokio::test]
async fn a_119_a_patch_is_laid_over_the_version_in_the_url() {
    let cluster = Cluster::start().await;
    let v1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let hpa = json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": target,
        "maxReplicas": 3, "targetCPUUtilizationPercentage": 50}});
    cluster.make(v1, hpa).await;
    let patch = json!({"spec": {"targetCPUUtilizationPercentage": 70}});
    let said = cluster.patch(&format!("{v1}/h"), patch).await.ok();
    assert_eq!(said["spec"]["targetCPUUtilizationPercentage"], 70);
    let v2 =
        cluster.read("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h").await;
    assert_eq!(v2["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);
}

/// A-120
#[tokio::test]
async fn a_120_a_patch_is_conditional_only_if_it_says_so() {
    let cluster = Cluster::start().await;
    let made = cluster.make(MAPS, map("m")).await;
    cluster.patch(&m("m"), json!({"data": {"a": "1"}})).await.ok();
    let stale = json!({"metadata": {"resourceVersion": version(&made)}, "data": {"a": "2"}});
    let said = cluster.patch(&m("m"), stale).await;
    assert!(said.refused(409, "Conflict").contains("the object has been modified"));
    cluster.patch(&m("m"), json!({"metadata": {"uid": "other"}})).await.refused(409, "Conflict");
    cluster.patch(&m("m"), json!({"metadata": {"name": "n"}})).await.refused(400, "BadRequest");
    let moved = json!({"metadata": {"namespace": "shop"}});
    let said = cluster.patch(&m("m"), moved).await;
    assert_eq!(said.code, 400, "{}", said.body);
    // Others writing at the same time is the server's business.
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

/// A-121
#[tokio::test]
async fn a_121_patches_that_cannot_be() {
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
        let said = cluster.patch_as(media, &d, body).await;
        assert_eq!(said.code, code, "{shown}: {}", said.body);
    }
    let said = cluster.patch(&d, json!({"spec": {"replicas": "many"}})).await;
    assert_eq!(said.body["details"]["causes"][0]["field"], "patch", "{}", said.body);
    assert_eq!(cluster.read(&d).await, before);
}

#[tokio::test]
async fn a_122_json_patches_and_merge_patches_do_what_their_standards_say() {
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
    let said = cluster.patch_as(JSON_PATCH, &m("m"), patch.to_string()).await.ok();
    assert_eq!(said["data"], json!({"a": "9", "d": "9"}));
    assert_eq!(said["metadata"]["annotations"], json!({"x/y": "3", "tu": "2"}));
    assert_eq!(said["metadata"]["finalizers"], json!(["example.com/one", "example.com/two"]));
    let patch =
        json!({"data": {"a": null, "e": "5"}, "metadata": {"finalizers": ["example.com/three"]}});
    let said = cluster.patch(&m("m"), patch).await.ok();
    assert_eq!(said["data"], json!({"d": "9", "e": "5"}));
    assert_eq!(said["metadata"]["finalizers"], json!(["example.com/three"]));
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
async fn a_131_whoever_changes_a_field_owns_it() {
    let cluster = Cluster::start().await;
    let agent = [("content-type", "application/json"), ("user-agent", "tool/1.2 (x)")];
    let mut wanted = map("m");
    wanted["data"] = json!({"a": "1", "b": "1"});
    let made = cluster.send("POST", MAPS, &agent, wanted.to_string()).await.ok();
    assert_eq!(managers(&made), ["tool Update"]);
    let said = cluster
        .patch(&format!("{}?fieldManager=other", m("m")), json!({"data": {"a": "2"}}))
        .await
        .ok();
    assert_eq!(managers(&said), ["other Update", "tool Update"]);
    let fields =
        |said: &Value, n: usize| said["metadata"]["managedFields"][n]["fieldsV1"]["f:data"].clone();
    assert_eq!(fields(&said, 0), json!({"f:a": {}}));
    assert_eq!(fields(&said, 1), json!({".": {}, "f:b": {}}));
    let long = "x".repeat(129);
    cluster
        .patch(&format!("{}?fieldManager={long}", m("m")), json!({}))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn a_134_what_an_apply_has_to_say() {
    let cluster = Cluster::start().await;
    let said = cluster.patch_as(APPLY, &m("m"), map("m").to_string()).await;
    said.refused(422, "Invalid");
    assert_eq!(said.body["details"]["causes"][0]["field"], "fieldManager");
    let said = cluster.patch(&format!("{}?force=true", m("m")), json!({})).await;
    said.refused(422, "Invalid");
    let mut other = map("m");
    other["kind"] = "Secret".into();
    let said = cluster.apply(&m("m"), "me", other).await;
    assert!(said.refused(400, "BadRequest").contains("invalid object type"));
    cluster.apply(&m("m"), "me", map("n")).await.refused(400, "BadRequest");
    let mut managed = map("m");
    managed["metadata"]["managedFields"] = json!([]);
    let said = cluster.apply(&m("m"), "me", managed).await;
    assert_eq!(said.refused(400, "BadRequest"), "metadata.managedFields must be nil");
    let yaml = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: \"1\"\n";
    let path = format!("{}?fieldManager=me", m("m"));
    assert_eq!(cluster.patch_as(APPLY, &path, yaml).await.code, 201);
    assert_eq!(cluster.patch_as(APPLY, &path, yaml).await.code, 200);
    // A-118: creating this way needs the right to create.
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "status": {"replicas": 1}});
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let said = cluster.apply(&format!("{DEPLOYMENTS}/d/status"), "me", status).await.ok();
    assert_eq!(said["status"]["replicas"], 1);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 2}});
    cluster.apply(&format!("{DEPLOYMENTS}/d/scale"), "me", scale).await.ok();
}

/// A-135
#[tokio::test]
async fn a_135_what_is_no_longer_applied_goes() {
    let cluster = Cluster::start().await;
    let data = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data});
    cluster.apply(&m("m"), "one", data(json!({"a": "1", "b": "1"}))).await.ok();
    cluster.apply(&m("m"), "two", data(json!({"b": "1", "c": "1"}))).await.ok();
    let said = cluster.apply(&m("m"), "one", data(json!({"a": "1"}))).await.ok();
    assert_eq!(said["data"], json!({"a": "1", "b": "1", "c": "1"}));
    let said = cluster.apply(&m("m"), "two", data(json!({"c": "1"}))).await.ok();
    assert_eq!(said["data"], json!({"a": "1", "c": "1"}));
    let mut unknown = map("m");
    unknown["spec"] = json!({"x": 1});
    let said = cluster.apply(&m("m"), "one", unknown).await;
    assert!(said.message().contains(".spec: field not declared in schema"), "{}", said.body);
}

/// A-136
#[tokio::test]
async fn a_136_another_owner_is_a_conflict_unless_forced_or_agreed_with() {
    let cluster = Cluster::start().await;
    let d = format!("{DEPLOYMENTS}/d");
    let mut wanted = deployment("d");
    cluster.apply(&d, "one", wanted.clone()).await.ok();
    let same = cluster.apply(&d, "two", wanted.clone()).await.ok();
    assert_eq!(managers(&same), ["one Apply", "two Apply"]);
    wanted["spec"]["replicas"] = 5.into();
    let said = cluster.apply(&d, "two", wanted.clone()).await;
    let text = "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas";
    assert_eq!(said.refused(409, "Conflict"), text);
    assert_eq!(
        said.body["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "field": ".spec.replicas", "message": "conflict with \"one\""}])
    );
    wanted["spec"]["minReadySeconds"] = 1.into();
    cluster
        .patch(&format!("{d}?fieldManager=three"), json!({"spec": {"minReadySeconds": 9}}))
        .await
        .ok();
    let said = cluster.apply(&d, "two", wanted.clone()).await;
    let message = said.refused(409, "Conflict");
    assert!(message.starts_with("Apply failed with 2 conflicts: "), "{message}");
    assert!(message.contains("conflicts with \"three\" using apps/v1"), "{message}");
    let said = cluster.apply(&d, "two&force=true", wanted).await.ok();
    assert_eq!(said["spec"]["replicas"], 5);
}

/// A-138
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

/// A-141
#[tokio::test]
async fn a_141_a_dry_run_shows_and_stores_nothing() {
    let cluster = Cluster::start().await;
    let before = cluster.version(MAPS).await;
    let said = cluster
        .post(&format!("{MAPS}?dryRun=All"), json!({"metadata": {"generateName": "x-"}}))
        .await;
    assert_eq!(said.code, 201);
    assert!(said.body["metadata"]["uid"].is_string());
    assert!(said.body["metadata"]["name"].as_str().unwrap().starts_with("x-"));
    assert_eq!(said.body["metadata"].get("resourceVersion"), None);
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let said = cluster.post(&format!("{services}?dryRun=All"), service).await.ok();
    assert!(said["spec"]["clusterIP"].is_string());
    let said = cluster.apply(&m("m"), "me&dryRun=All", map("m")).await;
    assert_eq!(said.code, 201);
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

/// A-142, A-143, A-144
#[tokio::test]
async fn a_142_to_144_unknown_and_doubled_fields_are_refused_told_or_ignored() {
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
    let said = cluster.send("POST", &path, &headers, body).await;
    let message = said.refused(400, "BadRequest");
    let (_, told) = message.split_once("strict decoding error: ").expect(message);
    let mut told: Vec<_> = told.split(", ").collect();
    told.sort_unstable();
    assert_eq!(told, problems);
    for query in ["", "&fieldValidation=Warn"] {
        let said =
            cluster.send("POST", &format!("{DEPLOYMENTS}?dryRun=All{query}"), &headers, body).await;
        assert_eq!(said.code, 201, "{}", said.body);
        let mut warned = said.warnings();
        warned.sort_unstable();
        let wanted = problems.map(|problem| format!("299 - \"{}\"", problem.replace('"', "\\\"")));
        assert_eq!(warned, wanted);
    }
    let path = format!("{DEPLOYMENTS}?dryRun=All&fieldValidation=Ignore");
    let said = cluster.send("POST", &path, &headers, body).await;
    assert_eq!((said.code, said.warnings().len()), (201, 0));
    let path = format!("{DEPLOYMENTS}?fieldValidation=Maybe");
    cluster.send("POST", &path, &headers, body).await.refused(422, "Invalid");

    cluster.make(DEPLOYMENTS, deployment("d")).await;
    let strict = format!("{DEPLOYMENTS}/d?fieldValidation=Strict");
    for (media, body) in [
        (MERGE, json!({"spec": {"foo": 1}})),
        (STRATEGIC, json!({"spec": {"foo": 1}})),
        (JSON_PATCH, json!([{"op": "add", "path": "/spec/foo", "value": 1}])),
    ] {
        let said = cluster.patch_as(media, &strict, body.to_string()).await;
        let message = said.refused(422, "Invalid");
        assert!(
            message.ends_with("strict decoding error: unknown field \"spec.foo\""),
            "{message}"
        );
    }
    let yaml = "metadata:\n  name: m\ndata:\n  a: x\n  a: y\n";
    let path = format!("{MAPS}?fieldValidation=Strict");
    let said = cluster.send("POST", &path, &[("content-type", "application/yaml")], yaml).await;
    let message = said.refused(400, "BadRequest");
    assert!(message.contains("line 5: key \"a\" already set in map"), "{message}");
}
