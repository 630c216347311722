//! Rules for objects: owners, labels, names, immutable fields, sizes, and error messages.

use crate::cluster::{
    self, Cluster, DEPLOYMENTS, JSON_PATCH, MAPS, PODS, STRATEGIC, deployment, map, pod, version,
};
use serde_json::{Value, json};

const CORE: &str = "/api/v1/namespaces/default";

fn owner(name: &str, controller: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": controller})
}

#[tokio::test]
async fn a_73_owners_are_named_in_full_and_only_one_controls() {
    let cluster = Cluster::start().await;
    let with = |owners: Value| {
        let mut map = map("m");
        map["metadata"]["ownerReferences"] = owners;
        map
    };
    let path = format!("{MAPS}?dryRun=All");
    for field in ["apiVersion", "kind", "name", "uid"] {
        let mut incomplete = owner("a", false);
        incomplete[field] = "".into();
        let reply = cluster.post(&path, with(json!([incomplete]))).await;
        let message = reply.refused(422, "Invalid");
        assert!(message.contains("metadata.ownerReferences"), "{field}: {message}");
    }
    let reply = cluster.post(&path, with(json!([owner("a", true), owner("b", true)]))).await;
    assert!(
        reply
            .refused(422, "Invalid")
            .contains("Only one reference can have Controller set to true")
    );
    let event = json!({"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "e"});
    cluster.post(&path, with(json!([event]))).await.refused(422, "Invalid");
    let reply = cluster.post(&path, with(json!([owner("a", true), owner("a", true)]))).await;
    assert_eq!(reply.code, 201, "{}", reply.body);
    assert_eq!(reply.body["metadata"]["ownerReferences"], json!([owner("a", true)]));
    assert_eq!(
        reply.warnings(),
        [
            "299 - \".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: a\""
        ]
    );
}

/// requests for Endpoints get a deprecation warning.
#[tokio::test]
async fn a_146_endpoints_are_deprecated() {
    let cluster = Cluster::start().await;
    let reply = cluster.get("/api/v1/namespaces/default/endpoints").await;
    assert_eq!(
        reply.warnings(),
        ["299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\""]
    );
    assert!(cluster.get("/api/v1/namespaces/default/services").await.warnings().is_empty());
}

/// Each row: the invalid value, and the field in the error.
#[tokio::test]
async fn a_74_labels_annotations_and_finalizers_are_qualified_names() {
    let cluster = Cluster::start().await;
    let long = "x".repeat(64);
    let big = "x".repeat(256 * 1024);
    let rows = [
        (json!({"labels": {"a b": "c"}}), "metadata.labels"),
        (json!({"labels": {"a": "b c"}}), "metadata.labels"),
        (json!({"labels": {"a": long}}), "metadata.labels"),
        (json!({"labels": {"-a": "b"}}), "metadata.labels"),
        (json!({"labels": {"UPPER.example.com/a": "b"}}), "metadata.labels"),
        (json!({"annotations": {"a b": "c"}}), "metadata.annotations"),
        (json!({"annotations": {"a": big}}), "metadata.annotations"),
        (json!({"finalizers": ["plain"]}), "metadata.finalizers[0]"),
    ];
    for (metadata, field) in rows {
        let mut wanted = map("m");
        wanted["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        let reply = cluster.post(MAPS, wanted).await;
        reply.refused(422, "Invalid");
        assert_eq!(reply.body["details"]["causes"][0]["field"], field, "{field}: {}", reply.body);
    }
    let mut wanted = map("m");
    wanted["metadata"]["labels"] = json!({"example.com/A_b.c-d": "", "n": "1"});
    wanted["metadata"]["annotations"] = json!({"Example.com/a": "any text\n"});
    cluster.make(MAPS, wanted).await;
}

#[tokio::test]
async fn a_75_names_follow_their_kind() {
    let cluster = Cluster::start().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let long = "a".repeat(64);
    let cron = "/apis/batch/v1/namespaces/default/cronjobs";
    let job = json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "a", "image": "a:1"}]}}}}});
    let ports = json!({"ports": [{"port": 80}]});
    let rows: [(&str, String, Value, bool); 12] = [
        ("/api/v1/namespaces", "a.b".into(), json!({}), false),
        ("/api/v1/namespaces", long.clone(), json!({}), false),
        (&format!("{CORE}/services"), "a.b".into(), ports.clone(), false),
        (&format!("{CORE}/services"), "1a".into(), ports, true),
        (MAPS, "a.b".into(), json!({}), true),
        (MAPS, long, json!({}), true),
        (MAPS, "A".into(), json!({}), false),
        (MAPS, "a_b".into(), json!({}), false),
        (rbac, "Any:Name_at all".into(), json!({}), true),
        (rbac, "a%b".into(), json!({}), false),
        (cron, "a".repeat(53), job.clone(), false),
        (cron, "a".repeat(52), job, true),
    ];
    for (collection, name, spec, fits) in rows {
        let body = json!({"metadata": {"name": name}, "spec": spec});
        let reply =
            cluster.post(&format!("{collection}?dryRun=All&fieldValidation=Ignore"), body).await;
        assert_eq!(reply.code, if fits { 201 } else { 422 }, "{collection} {name}: {}", reply.body);
        if !fits {
            assert_eq!(reply.body["details"]["causes"][0]["field"], "metadata.name", "{name}");
        }
    }
}

/// Each row: collection, object, a patch of an immutable field.
#[tokio::test]
async fn a_77_some_fields_are_immutable() {
    let cluster = Cluster::start().await;
    let apps = "/apis/apps/v1/namespaces/default";
    let template = cluster::template("x");
    let set = json!({"spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template}});
    let selector = json!({"spec": {"selector": {"matchLabels": {"other": "y"}}}});
    let job = json!({"spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "a", "image": "a:1"}]}}}});
    let role = json!({"kind": "Role", "name": "a", "apiGroup": "rbac.authorization.k8s.io"});
    let rows = [
        (
            DEPLOYMENTS.to_owned(),
            set.clone(),
            json!({"spec": {"selector": {"matchLabels": {"z": "y"}},
            "template": {"metadata": {"labels": {"z": "y"}}}}}),
        ),
        (
            format!("{apps}/replicasets"),
            set.clone(),
            json!({"spec": {"selector": {"matchLabels": {"z": "y"}},
            "template": {"metadata": {"labels": {"z": "y"}}}}}),
        ),
        (format!("{apps}/statefulsets"), set, json!({"spec": {"serviceName": "other"}})),
        ("/apis/batch/v1/namespaces/default/jobs".into(), job.clone(), selector),
        (
            "/apis/batch/v1/namespaces/default/jobs".into(),
            job,
            json!({"spec": {"completionMode": "Indexed"}}),
        ),
        (
            format!("{CORE}/services"),
            json!({"spec": {"ports": [{"port": 80}]}}),
            json!({"spec": {"clusterIP": "10.96.99.99"}}),
        ),
        (
            format!("{CORE}/secrets"),
            json!({"type": "example.com/a"}),
            json!({"type": "example.com/b"}),
        ),
        (MAPS.into(), json!({"immutable": true, "data": {"a": "1"}}), json!({"data": {"a": "2"}})),
        (MAPS.into(), json!({"immutable": true}), json!({"immutable": null})),
        (
            "/apis/storage.k8s.io/v1/storageclasses".into(),
            json!({"provisioner": "a.b/c"}),
            json!({"provisioner": "a.b/d"}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings".into(),
            json!({"roleRef": role}),
            json!({"roleRef": {"name": "b"}}),
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses".into(),
            json!({"value": 5}),
            json!({"value": 6}),
        ),
        (
            "/apis/node.k8s.io/v1/runtimeclasses".into(),
            json!({"handler": "a"}),
            json!({"handler": "b"}),
        ),
        (
            format!("{CORE}/persistentvolumeclaims"),
            json!({"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}),
            json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
        ),
    ];
    for (row, (collection, mut object, patch)) in rows.into_iter().enumerate() {
        let name = format!("x{row}");
        object["metadata"] = json!({"name": name});
        let made = cluster.make(&collection, object).await;
        let place = format!("{collection}/{name}");
        let reply = cluster.patch(&place, patch.clone()).await;
        assert_eq!(
            (reply.code, reply.reason()),
            (422, "Invalid"),
            "{place} {patch}: {}",
            reply.body
        );
        assert_eq!(version(&cluster.read(&place).await), version(&made));
        // Other fields can still change.
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        assert_eq!(cluster.patch(&place, label).await.code, 200, "{place}");
    }
}

/// validation errors.
#[tokio::test]
async fn a_91_and_92_errors_list_every_invalid_field_with_a_reason() {
    let cluster = Cluster::start().await;
    let mut wanted = pod("p");
    wanted["spec"]["restartPolicy"] = "Sometimes".into();
    wanted["spec"]["containers"] = json!([
        {"name": "A", "image": "x:1"}, {"name": "b", "image": "x:1"}, {"name": "b", "image": ""},
    ]);
    let reply = cluster.post(PODS, wanted).await;
    let message = reply.refused(422, "Invalid");
    assert!(
        message.starts_with("Pod \"p\" is invalid: [spec.containers[0].name: Invalid value: \"A\""),
        "{message}"
    );
    let details = &reply.body["details"];
    assert_eq!(
        (&details["kind"], &details["name"], details.get("group")),
        (&"Pod".into(), &"p".into(), None)
    );
    let causes: Vec<_> = details["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| {
            format!("{} {}", cause["field"].as_str().unwrap(), cause["reason"].as_str().unwrap())
        })
        .collect();
    for wanted in [
        "spec.containers[0].name FieldValueInvalid",
        "spec.containers[2].name FieldValueDuplicate",
        "spec.containers[2].image FieldValueRequired",
        "spec.restartPolicy FieldValueNotSupported",
    ] {
        assert!(causes.iter().any(|cause| cause == wanted), "{wanted}: {causes:?}");
    }
    let reply = cluster.post(DEPLOYMENTS, json!({"metadata": {"name": "d"}, "spec": {}})).await;
    assert_eq!(
        (&reply.body["details"]["kind"], &reply.body["details"]["group"]),
        (&"Deployment".into(), &"apps".into())
    );
    assert!(reply.message().starts_with("Deployment.apps \"d\" is invalid: "));
    let reply = cluster.get(&format!("{DEPLOYMENTS}/none")).await;
    assert_eq!(reply.refused(404, "NotFound"), "deployments.apps \"none\" not found");
    assert_eq!(
        reply.body["details"],
        json!({"name": "none", "group": "apps", "kind": "deployments"})
    );
    assert_eq!(
        (&reply.body["apiVersion"], &reply.body["metadata"], &reply.body["status"]),
        (&"v1".into(), &json!({}), &"Failure".into())
    );
}

/// A-93, T-CTRL-52: creating in a namespace that is being deleted is forbidden.
#[tokio::test]
async fn a_93_nothing_can_be_created_in_a_terminating_namespace() {
    let cluster = Cluster::start().await;
    let namespaces = "/api/v1/namespaces";
    cluster.make(namespaces, json!({"metadata": {"name": "shop"}})).await;
    cluster.make(&format!("{namespaces}/shop/configmaps"), map("there")).await;
    cluster.delete(&format!("{namespaces}/shop")).await.ok();
    let reply = cluster.post(&format!("{namespaces}/shop/configmaps"), map("m")).await;
    let message = reply.refused(403, "Forbidden");
    let text = "configmaps \"m\" is forbidden: unable to create new content in namespace shop because it is being terminated";
    assert_eq!(message, text);
    let cause = &reply.body["details"]["causes"][0];
    assert_eq!(
        (&cause["reason"], &cause["field"]),
        (&"NamespaceTerminating".into(), &"metadata.namespace".into())
    );
    assert_eq!(cause["message"], "namespace shop is being terminated");
    // Existing objects can still be changed and deleted.
    let there = format!("{namespaces}/shop/configmaps/there");
    cluster.patch(&there, json!({"data": {"a": "b"}})).await.ok();
    cluster.delete(&there).await.ok();
}

#[tokio::test]
async fn a_94_a_config_map_has_at_most_one_mebibyte() {
    let cluster = Cluster::start().await;
    for (collection, value) in [
        (MAPS.to_owned(), "x".repeat(1 << 20)),
        (format!("{CORE}/secrets"), "eHh4".repeat((1 << 20) / 3)),
    ] {
        let mut body = json!({"metadata": {"name": "full"}, "data": {"k": value}});
        let reply = cluster.post(&format!("{collection}?dryRun=All"), body.clone()).await;
        assert_eq!(reply.code, 201, "{collection}");
        body["data"]["one"] = "eHh4".into();
        let reply = cluster.post(&format!("{collection}?dryRun=All"), body).await;
        reply.refused(422, "Invalid");
        assert_eq!(reply.body["details"]["causes"][0]["reason"], "FieldValueTooLong");
    }
}

/// merge keys and directives.
#[tokio::test]
async fn a_123_and_124_strategic_patches_merge_lists_by_key() {
    let cluster = Cluster::start().await;
    let mut wanted = deployment("d");
    wanted["spec"]["template"]["spec"]["containers"] = json!([
        {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
        {"name": "b", "image": "b:1", "args": ["1", "2"]},
    ]);
    cluster.make(DEPLOYMENTS, wanted).await;
    let d = format!("{DEPLOYMENTS}/d");
    let patch = |spec: Value| {
        let body = json!({"spec": {"template": {"spec": spec}}}).to_string();
        let (admin, d) = (cluster.admin(), d.clone());
        async move { admin.patch_as(STRATEGIC, &d, body).await.ok()["spec"]["template"]["spec"].clone() }
    };
    let names = |spec: &Value| -> Vec<String> {
        let all = spec["containers"].as_array().unwrap();
        all.iter().map(|container| container["name"].as_str().unwrap().to_owned()).collect()
    };
    let reply = patch(json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "9"}, {"name": "Z", "value": "3"}]},
        {"name": "b", "args": ["3"]}]})).await;
    let env = reply["containers"][0]["env"].as_array().unwrap();
    assert_eq!((env.len(), &reply["containers"][1]["args"]), (3, &json!(["3"])));
    assert!(env.contains(&json!({"name": "X", "value": "9"})));
    let reply = patch(json!({"containers": [{"name": "c", "image": "c:1"}],
        "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}))
    .await;
    assert_eq!(names(&reply), ["c", "b", "a"]);
    let reply = patch(json!({"containers": [{"name": "b", "$patch": "delete"}]})).await;
    assert_eq!(names(&reply), ["c", "a"]);
    let reply =
        patch(json!({"containers": [{"$patch": "replace"}, {"name": "z", "image": "z:1"}]})).await;
    assert_eq!(names(&reply), ["z"]);
    let reply = patch(json!({"volumes": [{"name": "v", "emptyDir": {}}]})).await;
    assert!(reply["volumes"][0]["emptyDir"].is_object());
    let reply = patch(json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]})).await;
    assert_eq!(
        (&reply["volumes"][0]["hostPath"]["path"], reply["volumes"][0].get("emptyDir")),
        (&"/x".into(), None)
    );
    let mut held = map("m");
    held["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    cluster.make(MAPS, held).await;
    let body = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"], "finalizers": ["example.com/c"]}});
    let reply = cluster.patch_as(STRATEGIC, &format!("{MAPS}/m"), body.to_string()).await.ok();
    assert_eq!(reply["metadata"]["finalizers"], json!(["example.com/c", "example.com/b"]));
    let bad = json!({"spec": {"template": {"spec": {"containers": [{"image": "x:1"}]}}}});
    let reply = cluster.patch_as(STRATEGIC, &d, bad.to_string()).await;
    assert!(reply.code >= 400, "{}", reply.body);
}

fn entries(object: &Value) -> &Vec<Value> {
    object["metadata"]["managedFields"].as_array().unwrap()
}

#[tokio::test]
async fn a_128_to_130_managed_fields_have_the_field_sets_of_managers() {
    let cluster = Cluster::start().await;
    let mut wanted = deployment("d");
    wanted["metadata"]["labels"] = json!({"a": "b"});
    let made = cluster.post(&format!("{DEPLOYMENTS}?fieldManager=me"), wanted).await.ok();
    let entry = &entries(&made)[0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&"me".into(), &"Update".into()));
    assert_eq!(
        (&entry["apiVersion"], &entry["fieldsType"]),
        (&"apps/v1".into(), &"FieldsV1".into())
    );
    let fields = &entry["fieldsV1"];
    assert_eq!(fields["f:metadata"], json!({"f:labels": {".": {}, "f:a": {}}}));
    let containers = &fields["f:spec"]["f:template"]["f:spec"]["f:containers"];
    assert_eq!(containers["k:{\"name\":\"app\"}"]["f:image"], json!({}));
    assert_eq!((fields.get("f:status"), fields.get("f:kind")), (None, None));
    let status = json!({"spec": {"paused": true}, "status": {"replicas": 1}});
    let reply =
        cluster.patch(&format!("{DEPLOYMENTS}/d/status?fieldManager=ctl"), status).await.ok();
    let entry = entries(&reply).iter().find(|entry| entry["manager"] == "ctl").unwrap();
    assert_eq!(
        (&entry["subresource"], &entry["fieldsV1"]),
        (&"status".into(), &json!({"f:status": {"f:replicas": {}}}))
    );
}

/// limits of managedFields.
#[tokio::test]
async fn a_132_and_133_managed_fields_are_bounded_and_can_be_reset() {
    let cluster = Cluster::start().await;
    let mut wanted = map("m");
    wanted["data"] = json!({"a": "1"});
    cluster.make(MAPS, wanted).await;
    let path = format!("{MAPS}/m");
    let mut reply = Value::Null;
    for n in 0..12 {
        let patch = json!({"data": {format!("k{n}"): "v"}});
        reply = cluster.patch(&format!("{path}?fieldManager=m{n}"), patch).await.ok();
    }
    let managers: Vec<_> =
        entries(&reply).iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
    assert!(managers.len() <= 11 && managers.contains(&"ancient-changes"), "{managers:?}");
    reply["metadata"].as_object_mut().unwrap().remove("managedFields");
    reply["data"]["b"] = "2".into();
    let kept = cluster.put(&path, &reply).await.ok();
    assert!(entries(&kept).len() > 5);
    // Clients that do not know the field send an empty list, so that keeps it too.
    let mut empty = cluster.read(&path).await;
    empty["metadata"]["managedFields"] = json!([]);
    assert_eq!(entries(&cluster.put(&path, &empty).await.ok()), entries(&kept));
    let mut reset = cluster.read(&path).await;
    reset["metadata"]["managedFields"] = json!([{}]);
    let reply = cluster.put(&path, &reset).await.ok();
    assert_eq!(reply["metadata"].get("managedFields"), None);
    // The first apply assigns an owner to existing fields.
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}});
    let reply = cluster.apply(&path, "me", apply).await.ok();
    let managers: Vec<_> =
        entries(&reply).iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
    assert_eq!(managers, ["me", "before-first-apply"]);
}

#[tokio::test]
async fn a_137_kubectl_migrates_ownership_with_a_json_patch_on_one_version() {
    let cluster = Cluster::start().await;
    let mut wanted = map("m");
    wanted["data"] = json!({"a": "1"});
    let path = format!("{MAPS}/m");
    let made =
        cluster.post(&format!("{MAPS}?fieldManager=kubectl-client-side-apply"), wanted).await.ok();
    let mut moved = made["metadata"]["managedFields"].clone();
    moved[0]["manager"] = "kubectl".into();
    moved[0]["operation"] = "Apply".into();
    let patch = |version: String| {
        json!([{"op": "replace", "path": "/metadata/managedFields", "value": moved},
               {"op": "replace", "path": "/metadata/resourceVersion", "value": version}])
        .to_string()
    };
    cluster.patch_as(JSON_PATCH, &path, patch("1".into())).await.refused(409, "Conflict");
    let reply = cluster.patch_as(JSON_PATCH, &path, patch(version(&made))).await.ok();
    let entry = &entries(&reply)[0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&"kubectl".into(), &"Apply".into()));
}

#[tokio::test]
async fn a_145_unknown_fields_of_custom_objects_are_dropped_with_a_warning() {
    let cluster = Cluster::start().await;
    let definition = json!({"metadata": {"name": "ships.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "ships", "kind": "Ship"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "properties": {
                "n": {"type": "integer"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}}}]}});
    cluster.make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let ships = "/apis/example.com/v1/namespaces/default/ships";
    let ship = json!({"apiVersion": "example.com/v1", "kind": "Ship", "metadata": {"name": "s", "odd": 1},
                      "spec": {"n": 1, "m": 2, "free": {"any": {"thing": 1}}}});
    let reply = cluster.post(ships, ship.clone()).await;
    let mut warned = reply.warnings();
    warned.sort_unstable();
    assert_eq!(
        warned,
        ["299 - \"unknown field \\\"metadata.odd\\\"\"", "299 - \"unknown field \\\"spec.m\\\"\""]
    );
    assert_eq!(reply.ok()["spec"], json!({"n": 1, "free": {"any": {"thing": 1}}}));
    cluster.post(&format!("{ships}?fieldValidation=Strict"), ship).await.refused(400, "BadRequest");
    // no strategic patch, but applies by its schema.
    cluster
        .patch_as(STRATEGIC, &format!("{ships}/s"), "{}")
        .await
        .refused(415, "UnsupportedMediaType");
    let apply = json!({"apiVersion": "example.com/v1", "kind": "Ship", "spec": {"n": 5}});
    let reply = cluster.apply(&format!("{ships}/s"), "me&force=true", apply).await.ok();
    assert_eq!(reply["spec"]["n"], 5);
    assert_eq!(entries(&reply)[0]["fieldsV1"], json!({"f:spec": {"f:n": {}}}));
}

#[tokio::test]
async fn objects_for_admission_that_is_not_enforced_get_a_warning() {
    let cluster = Cluster::start().await;
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let hook = json!({"metadata": {"name": "h"}, "webhooks": [{"name": "h.example.com",
        "clientConfig": {"url": "https://example.com/"}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "rules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["CREATE"], "resources": ["pods"]}]}]});
    let reply = cluster.post(hooks, hook).await;
    let warned = [
        "299 - \"landfall does not call admission webhooks: this object is stored but not enforced\"",
    ];
    assert_eq!(reply.warnings(), warned, "{}", reply.body);
    let place = format!("{hooks}/h");
    let labels = cluster.patch(&place, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert!(labels.warnings().is_empty(), "nothing new is asked for");
    let mut other = cluster.read(&place).await;
    other["webhooks"][0]["name"] = "i.example.com".into();
    assert_eq!(cluster.put(&place, &other).await.warnings(), warned);
}

/// The condition of a gated pod has a transition time.
#[tokio::test]
async fn a_gated_pod_has_a_time_in_its_condition() {
    let cluster = Cluster::start().await;
    let mut gated = crate::cluster::pod("gated");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    let made = cluster.make(crate::cluster::PODS, gated).await;
    let condition = &made["status"]["conditions"][0];
    assert_eq!(condition["reason"], "SchedulingGated");
    let since = crate::cluster::seconds(&condition["lastTransitionTime"]);
    assert!((since - crate::cluster::now()).abs() <= 1, "{condition}");
}
