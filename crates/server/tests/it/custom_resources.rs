//! Custom resources, tested through requests.

use crate::cluster::Cluster;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn spec_schema() -> Value {
    json!({"type": "object", "required": ["n"], "properties": {
        "mode": {"type": "string", "default": "slow", "enum": ["slow", "fast"]},
        "color": {"type": "string"},
        "n": {"type": "integer", "minimum": 1, "maximum": 9}}})
}

fn version(name: &str, storage: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": spec_schema(),
            "status": {"type": "object", "properties": {"n": {"type": "integer"}}}}}},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n",
                                                "statusReplicasPath": ".status.n"}},
        "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}],
        "selectableFields": [{"jsonPath": ".spec.color"}],
    })
}

fn definition(plural: &str, kind: &str, versions: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced", "versions": versions,
                 "names": {"plural": plural, "kind": kind, "shortNames": ["wd"], "categories": ["all"]}},
    })
}

fn widgets() -> Value {
    definition("widgets", "Widget", json!([version("v1", true)]))
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

fn condition(definition: &Value, kind: &str) -> String {
    let list = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = list.iter().find(|condition| condition["type"] == kind);
    found.map_or("none".into(), |c| {
        format!("{} {}", c["status"].as_str().unwrap(), c["reason"].as_str().unwrap())
    })
}

#[tokio::test]
async fn a_206_a_definition_is_established_when_its_create_returns() {
    let cluster = Cluster::start().await;
    let made = cluster.post(DEFINITIONS, widgets()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.body["spec"]["names"]["listKind"], "WidgetList");
    let stored = cluster.get(&format!("{DEFINITIONS}/widgets.example.com")).await.body;
    assert_eq!(condition(&stored, "NamesAccepted"), "True NoConflicts");
    assert_eq!(condition(&stored, "Established"), "True InitialNamesAccepted");
    assert_eq!(stored["status"]["acceptedNames"], stored["spec"]["names"]);
    assert_eq!(stored["status"]["storedVersions"], json!(["v1"]));
    let list = cluster.get(WIDGETS).await;
    assert_eq!((list.code, &list.body["kind"]), (200, &"WidgetList".into()));
    let found = cluster.get("/apis/example.com/v1").await.body;
    let names: Vec<_> = found["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["widgets", "widgets/scale", "widgets/status"]);
    let verbs = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    assert_eq!(found["resources"][0]["verbs"], json!(verbs));
}

#[tokio::test]
async fn a_210_a_custom_object_is_pruned_defaulted_and_validated() {
    let cluster = Cluster::start().await;
    cluster.post(DEFINITIONS, widgets()).await;
    let mut wanted = widget("w", json!({"n": 3, "pruned": true}));
    wanted["status"] = json!({"n": 9});
    let made = cluster.post(WIDGETS, wanted).await;
    assert_eq!((made.code, &made.body["spec"]), (201, &json!({"n": 3, "mode": "slow"})));
    assert_eq!(made.warnings(), [r#"299 - "unknown field \"spec.pruned\"""#]);
    assert_eq!(made.body.get("status"), None);
    assert_eq!(made.body["metadata"]["generation"], 1);
    for (spec, reply) in [
        (
            json!({"n": 10}),
            "spec.n: Invalid value: 10: spec.n in body should be less than or equal to 9",
        ),
        (json!({}), "spec.n: Required value"),
        (
            json!({"n": "x"}),
            "spec.n: Invalid value: \"string\": spec.n in body must be of type integer: \"string\"",
        ),
    ] {
        let refused = cluster.post(WIDGETS, widget("bad", spec)).await;
        assert_eq!(refused.code, 422);
        assert_eq!(
            refused.body["message"],
            format!("Widget.example.com \"bad\" is invalid: {reply}")
        );
    }
    let strict = cluster
        .post(
            &format!("{WIDGETS}?fieldValidation=Strict"),
            widget("x", json!({"n": 3, "bogus": 1})),
        )
        .await;
    assert_eq!(
        strict.body["message"],
        "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"spec.bogus\""
    );
    let odd = cluster.post(WIDGETS, json!([])).await;
    assert_eq!(odd.code, 400, "{}", odd.body);
}

#[tokio::test]
async fn a_215_status_and_scale_are_separate_from_the_main_endpoint() {
    let cluster = Cluster::start().await;
    cluster.post(DEFINITIONS, widgets()).await;
    cluster.post(WIDGETS, widget("w", json!({"n": 3}))).await;
    let path = format!("{WIDGETS}/w");
    let status = cluster
        .patch(&format!("{path}/status"), json!({"spec": {"n": 5}, "status": {"n": 2}}))
        .await;
    assert_eq!((&status.body["spec"]["n"], &status.body["status"]["n"]), (&3.into(), &2.into()));
    assert_eq!(status.body["metadata"]["generation"], 1);
    let scale = cluster.get(&format!("{path}/scale")).await.body;
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&3.into(), &2.into()));
    let scaled = cluster.patch(&format!("{path}/scale"), json!({"spec": {"replicas": 7}})).await;
    assert_eq!(scaled.code, 200, "{}", scaled.body);
    let now = cluster.get(&path).await.body;
    assert_eq!((&now["spec"]["n"], &now["metadata"]["generation"]), (&7.into(), &2.into()));
}

#[tokio::test]
async fn a_103_selectable_fields_of_a_definition_can_be_selected() {
    let cluster = Cluster::start().await;
    cluster.post(DEFINITIONS, widgets()).await;
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        cluster.post(WIDGETS, widget(name, json!({"n": 1, "color": color}))).await;
    }
    assert_eq!(cluster.names(&format!("{WIDGETS}?fieldSelector=spec.color=red")).await, ["a", "c"]);
    assert_eq!(
        cluster.names(&format!("{WIDGETS}?fieldSelector=spec.color!=red,metadata.name=b")).await,
        ["b"]
    );
    assert_eq!(cluster.get(&format!("{WIDGETS}?fieldSelector=spec.n=1")).await.code, 400);
}

#[tokio::test]
async fn a_206_a_name_in_use_is_refused_until_it_is_free() {
    let cluster = Cluster::start().await;
    cluster.post(DEFINITIONS, widgets()).await;
    cluster.post(DEFINITIONS, definition("wodgets", "Widget", json!([version("v1", true)]))).await;
    let path = format!("{DEFINITIONS}/wodgets.example.com");
    let refused = cluster.get(&path).await.body;
    assert!(condition(&refused, "NamesAccepted").starts_with("False"), "{refused}");
    assert_eq!(condition(&refused, "Established"), "False NotAccepted");
    let wodgets = "/apis/example.com/v1/wodgets";
    assert_eq!(cluster.get(wodgets).await.code, 404);
    cluster.delete(&format!("{DEFINITIONS}/widgets.example.com")).await;
    assert!(cluster.until(wodgets, 200).await, "{}", cluster.get(&path).await.body);
}

#[tokio::test]
async fn a_207_deleting_a_definition_deletes_instances_and_ends_watches() {
    let cluster = Cluster::start().await;
    cluster.post(DEFINITIONS, widgets()).await;
    let mut held = widget("held", json!({"n": 1}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(WIDGETS, held).await;
    cluster.post(WIDGETS, widget("free", json!({"n": 1}))).await;
    let mut watch = cluster.watch(WIDGETS).await;

    let path = format!("{DEFINITIONS}/widgets.example.com");
    assert_eq!(cluster.get(&path).await.body["metadata"].get("finalizers"), None);
    assert_eq!(cluster.delete(&path).await.code, 200);
    let marked = cluster.get(&path).await.body;
    let cleanup = "customresourcecleanup.apiextensions.k8s.io";
    assert_eq!(marked["metadata"]["finalizers"], json!([cleanup]));
    assert_eq!(condition(&marked, "Terminating"), "True InstanceDeletionInProgress");
    let refused = cluster.post(WIDGETS, widget("late", json!({"n": 1}))).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.body["message"],
        "widgets.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating"
    );
    assert!(cluster.until(&format!("{WIDGETS}/free"), 404).await);
    // One is still held, so the kind is still served.
    assert_eq!(cluster.get(&format!("{WIDGETS}/held")).await.code, 200);

    cluster.patch(&format!("{WIDGETS}/held"), json!({"metadata": {"finalizers": null}})).await;
    assert!(cluster.until(&path, 404).await);
    assert!(cluster.until(WIDGETS, 404).await);
    let mut deleted = 0;
    while let Some(line) = watch.line().await {
        deleted += usize::from(line.contains("DELETED"));
    }
    assert_eq!(deleted, 2);

    assert_eq!(cluster.post(DEFINITIONS, widgets()).await.code, 201);
    assert_eq!(cluster.get(WIDGETS).await.body["items"], json!([]));
}

#[tokio::test]
async fn a_216_without_conversion_only_the_version_differs() {
    let cluster = Cluster::start().await;
    let versions = json!([version("v1", true), version("v1beta1", false)]);
    cluster.post(DEFINITIONS, definition("widgets", "Widget", versions)).await;
    let old = "/apis/example.com/v1beta1/namespaces/default/widgets";
    let mut wanted = widget("w", json!({"n": 1}));
    wanted["apiVersion"] = "example.com/v1beta1".into();
    let made = cluster.post(old, wanted).await;
    assert_eq!((made.code, &made.body["apiVersion"]), (201, &"example.com/v1beta1".into()));
    let new = cluster.get(&format!("{WIDGETS}/w")).await.body;
    assert_eq!((&new["apiVersion"], &new["spec"]), (&"example.com/v1".into(), &made.body["spec"]));
    let list = cluster.get(old).await.body;
    assert_eq!(list["items"][0]["apiVersion"], "example.com/v1beta1");
}

#[tokio::test]
async fn a_217_served_versions_follow_the_definition() {
    let cluster = Cluster::start().await;
    let mut deprecated = version("v1beta1", false);
    deprecated["deprecated"] = true.into();
    cluster
        .post(
            DEFINITIONS,
            definition("widgets", "Widget", json!([version("v1", true), deprecated])),
        )
        .await;
    let old = cluster.get("/apis/example.com/v1beta1/widgets").await;
    assert_eq!(old.warnings(), [r#"299 - "example.com/v1beta1 Widget is deprecated""#]);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let mut stored = cluster.get(&path).await.body;
    stored["spec"]["versions"][1]["served"] = false.into();
    assert_eq!(cluster.put(&path, &stored).await.code, 200);
    assert_eq!(cluster.get("/apis/example.com/v1beta1/widgets").await.code, 404);
    assert_eq!(cluster.get(WIDGETS).await.code, 200);
}

#[tokio::test]
async fn a_211_defaults_and_pruning_apply_to_stored_objects_too() {
    let cluster = Cluster::start().await;
    cluster.post(DEFINITIONS, widgets()).await;
    cluster.post(WIDGETS, widget("w", json!({"n": 1, "color": "red"}))).await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let mut stored = cluster.get(&path).await.body;
    let properties = &mut stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        ["spec"]["properties"];
    properties.as_object_mut().unwrap().remove("color");
    properties["size"] = json!({"type": "integer", "default": 4});
    stored["spec"]["versions"][0].as_object_mut().unwrap().remove("selectableFields");
    let put = cluster.put(&path, &stored).await;
    assert_eq!(put.code, 200, "{}", put.body);
    let expected = json!({"n": 1, "mode": "slow", "size": 4});
    assert_eq!(cluster.get(&format!("{WIDGETS}/w")).await.body["spec"], expected);
    assert_eq!(cluster.get(WIDGETS).await.body["items"][0]["spec"], expected);
}

#[tokio::test]
async fn a_206_custom_kinds_are_served_after_a_restart() {
    let cluster = Cluster::start().await;
    cluster.post(DEFINITIONS, widgets()).await;
    cluster.post(WIDGETS, widget("w", json!({"n": 1}))).await;
    let cluster = cluster.restart().await;
    assert_eq!(cluster.get(&format!("{WIDGETS}/w")).await.code, 200);
    cluster.delete(&format!("{DEFINITIONS}/widgets.example.com")).await;
    assert!(cluster.until(WIDGETS, 404).await);
}

#[tokio::test]
async fn a_206_a_definition_cannot_replace_a_built_in_resource() {
    let cluster = Cluster::start().await;
    let mut definition = definition("leases", "Lease", json!([version("v1", true)]));
    definition["metadata"] = json!({"name": "leases.coordination.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://example.com/approved"}});
    definition["spec"]["group"] = "coordination.k8s.io".into();
    assert_eq!(cluster.post(DEFINITIONS, definition).await.code, 201);
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    assert_eq!(cluster.post(path, lease).await.body["spec"]["holderIdentity"], "me");
    let definition = format!("{DEFINITIONS}/leases.coordination.k8s.io");
    cluster.delete(&definition).await;
    assert!(cluster.until(&definition, 404).await);
    assert_eq!(cluster.get(&format!("{path}/l")).await.code, 200);
}

/// A definition that preserves unknown fields.
fn free_widgets() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true,
                         "schema": {"openAPIV3Schema": schema}});
    definition("widgets", "Widget", json!([version]))
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!("x"), |inner, _| json!({ "a": inner }))
}

/// A stored object can be read, changed and deleted, including what the server adds.
#[tokio::test]
async fn an_object_is_stored_only_if_it_can_be_decoded_again() {
    let cluster = Cluster::start().await;
    cluster.make(DEFINITIONS, free_widgets()).await;
    let (mut kept, mut refused) = (0, 0);
    for levels in 100..=126 {
        let (at, name) = (format!("{WIDGETS}/w{levels}"), format!("w{levels}"));
        let made = cluster.post(WIDGETS, widget(&name, nested(levels))).await;
        if made.code != 201 {
            made.refused(400, "BadRequest");
            refused += 1;
            continue;
        }
        kept += 1;
        cluster.patch(&at, json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
        let applied = json!({"apiVersion": "example.com/v1", "kind": "Widget", "other": 1});
        cluster.apply(&at, "me", applied).await.ok();
        let read: Value = cluster.read(&at).await;
        assert_eq!(read["spec"], nested(levels));
        assert_ne!(cluster.read(WIDGETS).await, Value::Null);
        cluster.delete(&at).await.ok();
    }
    assert!(kept >= 10 && refused >= 5, "{kept} kept, {refused} refused");
    cluster.make(WIDGETS, widget("w", json!({}))).await;
    let at = format!("{WIDGETS}/w");
    for way in ["application/merge-patch+json", "application/apply-patch+yaml"] {
        let deep = widget("w", nested(120)).to_string();
        let reply = cluster.patch_as(way, &format!("{at}?fieldManager=m&force=true"), deep).await;
        assert!((400..500).contains(&reply.code), "{way}: {}", reply.body);
    }
    cluster.delete(&at).await.ok();
}

/// Earlier versions stored objects that they could not decode.
#[tokio::test]
async fn an_object_nested_too_deeply_can_still_be_deleted() {
    let cluster = Cluster::start().await;
    cluster.make(DEFINITIONS, free_widgets()).await;
    let mut deep = Vec::new();
    for name in ["a", "b"] {
        let mut stored = cluster.make(WIDGETS, widget(name, json!({}))).await;
        stored["spec"] = nested(140);
        deep.push(stored);
    }
    let cluster = cluster.with_stored("example.com/widgets", &deep).await;
    let refused = cluster.patch(&format!("{WIDGETS}/a"), json!({"spec": null})).await;
    assert!(refused.refused(500, "InternalError").contains("too deep"), "{}", refused.body);
    cluster.delete(&format!("{WIDGETS}/a")).await.ok();
    assert_eq!(cluster.get(&format!("{WIDGETS}/a")).await.code, 404);
    let definition = format!("{DEFINITIONS}/widgets.example.com");
    cluster.delete(&definition).await.ok();
    assert!(cluster.until(&definition, 404).await, "the definition is still there");
}
