//! Definitions: defaults, validation errors and immutable fields.

use super::rules;
use api::field::{At, Errors};
use serde_json::{Value, json};

fn definition(schema: Value) -> Value {
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                          "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn plain() -> Value {
    definition(json!({"type": "object"}))
}

fn created(mut definition: Value) -> Value {
    let rules = rules("CustomResourceDefinition");
    (rules.default)(&mut definition);
    (rules.prepare_create)(&mut definition);
    definition
}

fn messages(definition: Value) -> Vec<String> {
    let definition = created(definition);
    let mut errors = Errors::default();
    (rules("CustomResourceDefinition").validate)(&At::root(&definition), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn a_147_a_definition_gets_its_defaults() {
    let definition = created(plain());
    assert_eq!(
        definition["spec"]["names"],
        json!({"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"})
    );
    assert_eq!(definition["spec"]["conversion"], json!({"strategy": "None"}));
}

#[test]
fn a_206_a_new_definition_stores_one_version_and_has_no_finalizers() {
    let definition = created(plain());
    assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(definition["metadata"].get("finalizers"), None);
}

#[test]
fn a_206_stored_versions_grow_with_the_storage_version() {
    let old = created(plain());
    let mut new = old.clone();
    new["spec"]["versions"][0]["storage"] = json!(false);
    let second = json!({"name": "v2", "served": true, "storage": true});
    new["spec"]["versions"].as_array_mut().unwrap().push(second);
    (rules("CustomResourceDefinition").prepare_update)(&mut new, &old);
    assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
}

#[test]
fn a_204_invalid_definitions_are_rejected() {
    let with = |pointer: &str, value: Value| {
        let mut definition = plain();
        *definition.pointer_mut(pointer).unwrap() = value;
        definition
    };
    assert!(messages(plain()).is_empty());
    for (definition, expected) in [
        (
            with("/metadata/name", json!("wrong")),
            "metadata.name: Invalid value: \"wrong\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            with("/spec/scope", json!("Everywhere")),
            "spec.scope: Unsupported value: \"Everywhere\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        (
            with("/spec/versions/0/schema", json!(null)),
            "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
        ),
        (with("/spec/names/kind", json!("")), "spec.names.singular: Required value"),
    ] {
        assert_eq!(messages(definition.clone())[0], expected, "{definition}");
    }
    let mut storage = plain();
    storage["spec"]["versions"][0]["storage"] = json!(false);
    let messages = messages(storage);
    assert!(
        messages[0].ends_with("must have exactly one version marked as storage version"),
        "{messages:?}"
    );
}

#[test]
fn a_204_community_groups_need_approval() {
    let mut definition = plain();
    definition["spec"]["group"] = json!("example.k8s.io");
    definition["metadata"]["name"] = json!("widgets.example.k8s.io");
    assert_eq!(
        messages(definition.clone()),
        [
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
        ]
    );
    let annotation = json!({"api-approved.kubernetes.io": "unapproved, a test"});
    definition["metadata"]["annotations"] = annotation;
    assert!(messages(definition).is_empty());
}

#[test]
fn a_205_schemas_must_be_structural() {
    check_structure(&[
        (object(json!({"a": {"type": "array", "items": {"type": "string"}}})), &[]),
        (
            object(json!({"a": {"x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}]}})),
            &[],
        ),
        (
            object(json!({"a": {"x-kubernetes-int-or-string": true, "type": "string",
                "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^a"}})),
            &[],
        ),
        (
            object(json!({"a": {"x-kubernetes-int-or-string": true,
                "x-kubernetes-preserve-unknown-fields": true}})),
            &[
                ".properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
            ],
        ),
        (
            object(json!({"a": {"type": "string",
                "oneOf": [{"x-kubernetes-validations": [{"rule": "true"}]}]}})),
            &[
                ".properties[a].oneOf[0].x-kubernetes-validations: Forbidden: must be empty to be structural",
            ],
        ),
        (
            object(
                json!({"metadata": {"type": "object", "properties": {"name": {"type": "string"}}}}),
            ),
            &[],
        ),
        (
            json!({"type": "string"}),
            &[".type: Invalid value: \"string\": must be object at the root"],
        ),
        (json!({}), &[".type: Required value: must not be empty at the root"]),
        (
            object(json!({"a": {}})),
            &[".properties[a].type: Required value: must not be empty for specified object fields"],
        ),
        (
            object(json!({"a": {"type": "array"}})),
            &[".properties[a].items: Required value: must be specified"],
        ),
        (
            object(json!({"a": {"type": "array", "items": {}}})),
            &[
                ".properties[a].items.type: Required value: must not be empty for specified array items",
            ],
        ),
    ]);
}

#[test]
fn a_205_schemas_must_not_use_what_is_not_structural() {
    check_structure(&[
        (
            object(json!({"a": {"$ref": "#/x", "type": "string"}})),
            &[".properties[a].$ref: Forbidden: $ref is not supported"],
        ),
        (
            object(
                json!({"a": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}}),
            ),
            &[
                ".properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ],
        ),
        (
            object(json!({"a": {"type": "string", "anyOf": [{"type": "string"}]}})),
            &[".properties[a].anyOf[0].type: Forbidden: must be empty to be structural"],
        ),
        (
            object(
                json!({"a": {"type": "object", "anyOf": [{"properties": {"b": {"minimum": 1}}}]}}),
            ),
            &[
                ".properties[a].properties[b]: Required value: because it is defined in spec.versions[0].schema.openAPIV3Schema.properties[a].anyOf[0].properties[b]",
            ],
        ),
        (
            object(
                json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}}),
            ),
            &[
                ".properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
            ],
        ),
        (
            object(
                json!({"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}),
            ),
            &[
                ".properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        ),
        (
            object(
                json!({"a": {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}}),
            ),
            &[
                ".properties[a].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
            ],
        ),
    ]);
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

/// Schemas and their messages, which all begin with the path of the schema.
fn check_structure(cases: &[(Value, &[&str])]) {
    let at = "spec.versions[0].schema.openAPIV3Schema";
    for (schema, expected) in cases {
        let expected: Vec<_> = expected.iter().map(|message| format!("{at}{message}")).collect();
        assert_eq!(messages(definition(schema.clone())), expected, "{schema}");
    }
}

#[test]
fn a_208_kind_and_scope_are_immutable_once_established() {
    let update = |established: bool| {
        let mut old = created(plain());
        let status = if established { "True" } else { "False" };
        old["status"]["conditions"] = json!([{"type": "Established", "status": status}]);
        let mut new = old.clone();
        new["spec"]["names"]["kind"] = json!("Gadget");
        let mut errors = Errors::default();
        let rules = rules("CustomResourceDefinition");
        (rules.validate_update)(&At::root(&new), &At::root(&old), &mut errors);
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(update(false).is_empty());
    assert_eq!(update(true), ["spec.names.kind: Invalid value: \"Gadget\": field is immutable"]);
}

#[test]
fn a_208_a_stored_version_cannot_be_removed() {
    let mut definition = created(plain());
    definition["status"]["storedVersions"] = json!(["v0", "v1"]);
    let mut errors = Errors::default();
    (rules("CustomResourceDefinition").validate)(&At::root(&definition), &mut errors);
    let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 1);
    assert!(messages[0].starts_with(
        "status.storedVersions[0]: Invalid value: \"v0\": missing from spec.versions; v0 was previously a storage version, and must remain"
    ));
}
