//! What older clients and the conformance tests expect.

use super::super::fixtures::{schema, with_cron_tab};
use super::*;

fn check_references(value: &Value, document: &Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                assert!(document.pointer(&target[1..]).is_some(), "{target}");
                assert!(map.get("type").is_none(), "{target}: kubectl refuses a type beside it");
            }
            map.values().for_each(|inner| check_references(inner, document));
        }
        Value::Array(list) => list.iter().for_each(|inner| check_references(inner, document)),
        _ => {}
    }
}

#[test]
fn a_54_definitions_paths_and_parameters_are_consistent() {
    let document = document(&with_cron_tab(schema()));
    assert_eq!(document["swagger"], "2.0");
    assert!(document["info"]["version"].as_str().unwrap().starts_with("v1.36."));
    check_references(&document, &document);
    assert_eq!(
        document["definitions"]["io.k8s.api.apps.v1.Deployment"]["x-kubernetes-group-version-kind"],
        json!([{"group": "apps", "version": "v1", "kind": "Deployment"}])
    );
    let item = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}";
    let patch = &document["paths"][item]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "apps", "version": "v1", "kind": "Deployment"})
    );
    let consumes = patch["consumes"].as_array().unwrap();
    assert!(consumes.contains(&json!("application/strategic-merge-patch+json")));
    let names: Vec<&Value> =
        patch["parameters"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    // Inline, so that clients before 1.27 find them.
    assert!(names.contains(&&json!("dryRun")) && names.contains(&&json!("fieldValidation")));
    assert_eq!(document["paths"][item]["parameters"][0]["$ref"], "#/parameters/name-in-path");
}

#[test]
fn a_54_a_published_definition_is_the_schema_that_was_given() {
    let mut given = schema();
    // What v2 cannot express is tested below.
    let spec = given["properties"]["spec"].as_object_mut().unwrap();
    let properties = spec["properties"].as_object_mut().unwrap();
    properties.retain(|name, _| name == "cron" || name == "bars");
    properties["cron"].as_object_mut().unwrap().remove("default");
    let document = document(&with_cron_tab(given.clone()));
    let mut published = document["definitions"]["com.example.stable.v1.CronTab"].clone();
    let body = published.as_object_mut().unwrap();
    body.remove("x-kubernetes-group-version-kind").unwrap();
    for name in ["apiVersion", "kind", "metadata"] {
        body["properties"].as_object_mut().unwrap().remove(name).unwrap();
    }
    assert_eq!(published, given);
}

#[test]
fn a_54_what_v2_cannot_express_is_dropped() {
    let document = document(&with_cron_tab(schema()));
    let spec = &document["definitions"]["com.example.stable.v1.CronTab"]["properties"]["spec"];
    assert_eq!(spec["required"], json!(["cron"]));
    let properties = &spec["properties"];
    assert_eq!(properties["since"], json!({}));
    assert_eq!(properties["open"], json!({"x-kubernetes-preserve-unknown-fields": true}));
    assert_eq!(properties["port"], json!({"x-kubernetes-int-or-string": true}));
    assert!(properties["cron"].get("default").is_none());
    assert_eq!(properties["template"]["required"], json!(["kind", "apiVersion"]));
}

#[test]
fn a_54_a_kind_that_keeps_everything_is_an_empty_object() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let document = document(&with_cron_tab(open));
    assert_eq!(
        document["definitions"]["com.example.stable.v1.CronTab"],
        json!({
            "type": "object",
            "x-kubernetes-group-version-kind":
                [{"group": "stable.example.com", "version": "v1", "kind": "CronTab"}],
        })
    );
}

#[test]
fn a_53_definitions_have_forms_that_old_kubectl_reads() {
    fn check(path: &str, schema: &Value) {
        if schema["type"] == "array" {
            assert!(schema["items"].is_object(), "{path}");
        }
        assert!(schema.get("default").is_none(), "{path}");
        assert!(schema.get("oneOf").is_none() && schema.get("anyOf").is_none(), "{path}");
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}.{name}"), inner);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get(key) {
                check(&format!("{path}.{key}"), inner);
            }
        }
    }
    let document = document(&with_cron_tab(schema()));
    for (name, schema) in document["definitions"].as_object().unwrap() {
        check(name, schema);
    }
}
