//! Looks up in the documents what kubectl looks up, in the same way.

use super::super::fixtures::{schema, with_cron_tab};
use super::*;

fn core() -> Value {
    document(&Registry::built_in(), "", "v1").unwrap()
}

fn schemas(document: &Value) -> &Map<String, Value> {
    document["components"]["schemas"].as_object().unwrap()
}

/// Calls `f` with every object inside a value.
fn walk<'a>(value: &'a Value, f: &mut impl FnMut(&'a Map<String, Value>)) {
    match value {
        Value::Object(map) => {
            f(map);
            map.values().for_each(|inner| walk(inner, f));
        }
        Value::Array(list) => list.iter().for_each(|inner| walk(inner, f)),
        _ => {}
    }
}

/// Follows `$ref`, alone or in `allOf`, as explain does.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let target = schema.get("$ref").or_else(|| schema["allOf"][0].get("$ref"));
    match target.and_then(Value::as_str) {
        Some(target) => document.pointer(&target[1..]).expect(target),
        None => schema,
    }
}

/// The schema at `pods.spec.containers`: paths of A-50, then the kind, then field by field.
fn explain<'a>(document: &'a Value, root: &str, path: &str) -> &'a Value {
    let mut words = path.split('.');
    let plural = words.next().unwrap();
    let paths = [
        format!("{root}/{plural}"),
        format!("{root}/{plural}/{{name}}"),
        format!("{root}/namespaces/{{namespace}}/{plural}"),
        format!("{root}/namespaces/{{namespace}}/{plural}/{{name}}"),
    ];
    let gvk = paths
        .iter()
        .filter_map(|path| document["paths"].get(path))
        .flat_map(|item| item.as_object().unwrap().values())
        .find_map(|operation| operation.get("x-kubernetes-group-version-kind"))
        .unwrap_or_else(|| panic!("no operation for {plural}"));
    let is_kind = |schema: &&Value| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.is_some_and(|kinds| kinds.contains(gvk))
    };
    let mut schema = schemas(document).values().find(is_kind).unwrap();
    for word in words {
        let mut owner = resolve(document, schema);
        while owner.get("properties").is_none() {
            let inner = owner.get("items").or_else(|| owner.get("additionalProperties"));
            owner = resolve(document, inner.unwrap_or_else(|| panic!("nothing inside {word}")));
        }
        schema = owner["properties"].get(word).unwrap_or_else(|| panic!("no {word}"));
    }
    schema
}

#[test]
fn a_46_the_index_has_every_group_and_version() {
    let registry = Registry::built_in();
    let index = index(&registry);
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 24);
    let url = paths["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
    let bytes = document_bytes(&registry, "apps", "v1").unwrap();
    assert_eq!(url, format!("/openapi/v3/apis/apps/v1?hash={}", super::super::hash(&bytes)));
    assert!(paths["api/v1"]["serverRelativeURL"].as_str().unwrap().contains("/api/v1?hash="));
    assert!(document(&registry, "apps", "v7").is_none());
}

#[test]
fn a_47_hashes_are_stable_and_change_with_the_schema() {
    let registry = with_cron_tab(schema());
    let hash = |registry| document_hash(registry, "stable.example.com", "v1");
    assert_eq!(hash(&registry), hash(&registry));
    let mut other = schema();
    other["description"] = "Changed.".into();
    assert_ne!(hash(&registry), hash(&with_cron_tab(other)));
    // Built-in documents do not change, so they can be cached.
    let apps = |registry| document_hash(registry, "apps", "v1");
    assert_eq!(apps(&registry), apps(&Registry::built_in()));
    assert!(is_constant(&registry, "apps", "v1"));
    assert!(!is_constant(&registry, "stable.example.com", "v1"));
}

#[test]
fn a_48_every_patch_says_that_it_validates_fields() {
    let registry = with_cron_tab(schema());
    for (group, version) in documents(&registry) {
        let document = document(&registry, group, version).unwrap();
        for (path, item) in document["paths"].as_object().unwrap() {
            let Some(patch) = item.get("patch") else { continue };
            if patch["x-kubernetes-action"] == "connect" {
                continue;
            }
            let parameters = patch["parameters"].as_array().unwrap();
            assert!(parameters.iter().any(|p| p["name"] == "fieldValidation"), "{path}");
            let content = patch["requestBody"]["content"].as_object().unwrap();
            let strategic = content.contains_key("application/strategic-merge-patch+json");
            assert_eq!(strategic, group != "stable.example.com", "{path}");
            assert!(content.contains_key("application/apply-patch+yaml"), "{path}");
        }
    }
}

#[test]
fn a_48_operations_name_their_kind_and_action() {
    let core = core();
    let pod = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"];
    let gvk = json!({"group": "", "version": "v1", "kind": "Pod"});
    for (method, action) in
        [("get", "get"), ("put", "put"), ("patch", "patch"), ("delete", "delete")]
    {
        assert_eq!(pod[method]["x-kubernetes-group-version-kind"], gvk);
        assert_eq!(pod[method]["x-kubernetes-action"], action);
    }
    assert_eq!(pod["get"]["operationId"], "readCoreV1NamespacedPod");
    let pods = &core["paths"]["/api/v1/namespaces/{namespace}/pods"];
    assert_eq!(pods["get"]["x-kubernetes-action"], "list");
    assert_eq!(pods["post"]["x-kubernetes-action"], "post");
    assert_eq!(pods["delete"]["x-kubernetes-action"], "deletecollection");
    assert_eq!(pods["delete"]["operationId"], "deleteCoreV1CollectionNamespacedPod");
    let all = &core["paths"]["/api/v1/pods"]["get"];
    assert_eq!(all["operationId"], "listCoreV1PodForAllNamespaces");
    let exec = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/exec"]["post"];
    assert_eq!(exec["operationId"], "connectCoreV1PostNamespacedPodExec");
    assert_eq!(exec["x-kubernetes-group-version-kind"]["kind"], "PodExecOptions");
    let evict = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/eviction"]["post"];
    assert_eq!(evict["x-kubernetes-group-version-kind"]["group"], "policy");
    // Namespaces have no deletecollection.
    assert!(core["paths"]["/api/v1/namespaces"].get("delete").is_none());
}

#[test]
fn a_48_kinds_carry_their_names_as_a_list() {
    let core = core();
    assert_eq!(
        core["components"]["schemas"]["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "Pod"}])
    );
}

#[test]
fn a_49_every_reference_can_be_resolved() {
    let registry = with_cron_tab(schema());
    for (group, version) in documents(&registry) {
        let document = document(&registry, group, version).unwrap();
        walk(&document, &mut |object| {
            if let Some(Value::String(target)) = object.get("$ref") {
                assert!(document.pointer(&target[1..]).is_some(), "{group}: {target}");
            }
        });
    }
}

#[test]
fn a_49_lists_have_merge_keys() {
    let core = core();
    let containers = explain(&core, "/api/v1", "pods.spec.containers");
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    let volumes = explain(&core, "/api/v1", "pods.spec.volumes");
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
    let protocol = explain(&core, "/api/v1", "pods.spec.containers.ports.protocol");
    assert_eq!(protocol["default"], "TCP");
    let reference = &schemas(&core)["io.k8s.api.core.v1.ObjectReference"];
    assert_eq!(reference["x-kubernetes-map-type"], "atomic");
}

#[test]
fn a_50_explain_finds_the_fields_of_a_hook() {
    let core = core();
    let lifecycle = explain(&core, "/api/v1", "pods.spec.containers.lifecycle");
    assert!(!lifecycle["description"].as_str().unwrap().is_empty());
    let lifecycle = resolve(&core, lifecycle);
    let names: Vec<&String> = lifecycle["properties"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["postStart", "preStop", "stopSignal"]);
    let seconds = explain(&core, "/api/v1", "pods.spec.containers.lifecycle.preStop.sleep.seconds");
    assert_eq!((&seconds["type"], &seconds["format"]), (&json!("integer"), &json!("int64")));
    let grace = explain(&core, "/api/v1", "pods.spec.terminationGracePeriodSeconds");
    assert_eq!(grace["type"], "integer");
    explain(&core, "/api/v1", "nodes.status.addresses.address");
    explain(&core, "/api/v1", "configmaps.data");
}

#[test]
fn a_50_every_kind_that_can_be_read_is_explained() {
    let registry = with_cron_tab(schema());
    for (group, version) in documents(&registry) {
        let document = document(&registry, group, version).unwrap();
        for kind in discovery::resources(&registry, group, version) {
            let metadata = explain(
                &document,
                &names::root(group, version),
                &format!("{}.metadata", kind.plural),
            );
            assert!(metadata["allOf"][0]["$ref"].is_string(), "{}", kind.kind);
        }
    }
}

#[test]
fn a_50_custom_kinds_are_explained_with_their_own_descriptions() {
    let registry = with_cron_tab(schema());
    let document = document(&registry, "stable.example.com", "v1").unwrap();
    let root = "/apis/stable.example.com/v1";
    let bars = explain(&document, root, "crontabs.spec.bars");
    assert_eq!(bars["description"], "List of Bars.");
    assert_eq!(explain(&document, root, "crontabs.spec.bars.age")["type"], "integer");
    explain(&document, root, "crontabs.metadata.labels");
    explain(&document, root, "crontabs.spec.template.metadata.name");
    assert!(schemas(&document).contains_key("com.example.stable.v1.CronTab"));
    assert!(schemas(&document).contains_key("com.example.stable.v1.CronTabList"));
    assert!(schemas(&document).contains_key("io.k8s.api.autoscaling.v1.Scale"));
}
