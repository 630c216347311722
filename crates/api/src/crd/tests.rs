//! Custom resources: from a definition to kinds, defaults and validation errors.

use super::*;
use crate::decode;
use crate::kind::Kind;
use crate::schema::{ListMerge, Shape};
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;

/// A definition of Widgets with this schema.
fn definition(schema: Value) -> Value {
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget",
                      "listKind": "WidgetList", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n",
                                                        "statusReplicasPath": ".status.n"}},
                "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
            }],
        },
    })
}

/// An object schema whose `spec` has these properties.
fn spec(properties: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})
}

fn messages(schema: Value, object: Value) -> Vec<String> {
    update_messages(schema, object, None)
}

fn update_messages(schema: Value, new: Value, old: Option<Value>) -> Vec<String> {
    let mut errors = Errors::default();
    let old = old.as_ref().map(At::root);
    Custom::new(schema).validate(&At::root(&new), old.as_ref(), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

/// The errors for `spec.x` with this value under this schema.
fn of_x(schema: Value, value: Value) -> Vec<String> {
    messages(spec(json!({"x": schema})), json!({"spec": {"x": value}}))
}

fn defaulted(schema: Value, mut object: Value) -> Value {
    Custom::new(schema).default(&mut object);
    object
}

#[test]
fn a_206_a_definition_becomes_a_kind() {
    let kinds = kinds(&definition(spec(json!({"n": {"type": "integer"}}))));
    let [kind] = &kinds[..] else { panic!("{kinds:?}") };
    assert_eq!(kind.api_version(), "example.com/v1");
    assert_eq!((&*kind.plural, &*kind.singular, &*kind.kind), ("widgets", "widget", "Widget"));
    assert_eq!((&kind.short[..], &kind.categories[..]), (&["wd".into()][..], &["all".into()][..]));
    assert!(kind.namespaced);
    assert_eq!(kind.subresources, ["scale", "status"]);
    assert_eq!(
        (kind.list_kind(), kind.resource_group()),
        ("WidgetList".into(), "widgets.example.com".into())
    );
    let custom = kind.custom.as_ref().unwrap();
    assert_eq!(custom.definition, "widgets.example.com");
    assert_eq!(custom.columns.len(), 1);
    assert!(custom.unsupported().is_empty() && !custom.terminating);
}

#[test]
fn a_217_only_served_versions_are_kinds_and_all_are_stored_as_one() {
    let mut crd = definition(json!({"type": "object"}));
    let version = |name: &str, served: bool, storage: bool| {
        json!({"name": name, "served": served, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object"}}, "deprecated": name == "v1beta1"})
    };
    crd["spec"]["versions"] = json!([
        version("v1alpha1", false, false),
        version("v1beta1", true, false),
        version("v1", true, true)
    ]);
    let kinds = kinds(&crd);
    let versions: Vec<_> = kinds.iter().map(|kind| &*kind.version).collect();
    assert_eq!(versions, ["v1beta1", "v1"]);
    assert!(kinds.iter().all(|kind| kind.storage.version == "v1"));
    let warning = |kind: &Arc<Kind>| kind.custom.as_ref().unwrap().deprecation.clone();
    assert_eq!(warning(&kinds[0]).unwrap(), "example.com/v1beta1 Widget is deprecated");
    assert_eq!(warning(&kinds[1]), None);
}

#[test]
fn a_206_accepted_names_are_the_ones_served() {
    let mut crd = definition(json!({"type": "object"}));
    crd["status"]["acceptedNames"] =
        json!({"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "Widgets"});
    crd["spec"]["names"]["kind"] = "Stolen".into();
    let kind = &kinds(&crd)[0];
    assert_eq!((&*kind.kind, kind.short.len(), &*kind.list_kind()), ("Widget", 0, "Widgets"));
}

#[test]
fn a_145_unknown_fields_are_pruned_and_reported_unless_they_are_preserved() {
    let schema = spec(json!({
        "n": {"type": "integer"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                 "properties": {"tight": {"type": "object"}}},
        "any": {"x-kubernetes-preserve-unknown-fields": true},
        "inner": {"type": "object", "x-kubernetes-embedded-resource": true},
        "port": {"x-kubernetes-int-or-string": true},
    }));
    let kind = kinds(&definition(schema)).remove(0);
    let body = json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "w", "labels": {"a": "b"}, "nome": "x"},
        "spec": {"n": "wrong type, not ours to judge", "pruned": 1, "list": [{"a": "b", "c": 1}],
                 "map": {"k": {"a": "b", "d": 1}}, "free": {"x": {"y": 1}, "tight": {"z": 1}},
                 "any": {"x": [1]}, "port": "http",
                 "inner": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "e": 1}, "spec": {}}},
        "more": 1,
    });
    let text = body.to_string();
    let decoded = decode::custom_json(&kind.schema, kind.ty, text.as_bytes()).unwrap();
    let mut messages: Vec<_> = decoded.problems.iter().map(ToString::to_string).collect();
    messages.sort();
    assert_eq!(
        messages,
        [
            "metadata.nome",
            "more",
            "spec.free.tight.z",
            "spec.inner.metadata.e",
            "spec.inner.spec",
            "spec.list[0].c",
            "spec.map.k.d",
            "spec.pruned",
        ]
        .map(|path| format!("unknown field {path:?}"))
    );
    let mut left = body.clone();
    for (place, name) in [
        ("/metadata", "nome"),
        ("", "more"),
        ("/spec/free/tight", "z"),
        ("/spec/inner/metadata", "e"),
        ("/spec/inner", "spec"),
        ("/spec/list/0", "c"),
        ("/spec/map/k", "d"),
        ("/spec", "pruned"),
    ] {
        left.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(name);
    }
    assert_eq!(decoded.value, left);
    let wrong = json!({"metadata": {"labels": {"a": 1}}});
    assert!(decode::custom_value(&kind.schema, kind.ty, wrong).is_err());
}

#[test]
fn a_139_lists_merge_by_their_list_type() {
    let items = json!({"type": "object", "properties": {
        "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}});
    let (schema, root) = schema_of(&json!({"type": "object", "properties": {
        "plain": {"type": "array", "items": {"type": "string"}},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "map": {"type": "array", "items": items, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"]},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
    }}));
    let shape = |field: &str| schema.shape(schema.field(root, field).unwrap().ty);
    let merge = |field: &str| match shape(field) {
        Shape::List { merge, .. } => merge.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(merge("plain"), ListMerge::Atomic);
    assert_eq!(merge("set"), ListMerge::Set);
    let ListMerge::Map(keys) = merge("map") else { panic!() };
    assert_eq!((&*keys[0].field, &keys[0].default), ("port", &None));
    assert_eq!((&*keys[1].field, &keys[1].default), ("protocol", &Some("TCP".into())));
    assert!(matches!(shape("whole"), Shape::Object(object) if object.atomic));
}

#[test]
fn a_212_errors_equal_those_of_a_real_server() {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["n"], "properties": {
            "mode": {"type": "string", "default": "slow", "enum": ["slow", "fast"]},
            "n": {"type": "integer", "minimum": 1, "maximum": 9}}},
        "status": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
    let spec = |spec: Value| messages(schema.clone(), json!({"spec": spec}));
    assert_eq!(
        spec(json!({"n": 10})),
        ["spec.n: Invalid value: 10: spec.n in body should be less than or equal to 9"]
    );
    assert_eq!(spec(json!({})), ["spec.n: Required value"]);
    assert_eq!(
        spec(json!({"n": 3, "mode": "lazy"})),
        ["spec.mode: Unsupported value: \"lazy\": supported values: \"slow\", \"fast\""]
    );
    assert!(spec(json!({"n": 3, "mode": "fast"})).is_empty());
    assert_eq!(
        defaulted(schema.clone(), json!({"spec": {"n": 3}})),
        json!({"spec": {"n": 3, "mode": "slow"}})
    );
}

#[test]
fn a_212_each_keyword_has_upstreams_message() {
    let integer = json!({"type": "integer", "format": "int32"});
    let string = |more: Value| {
        let mut schema = json!({"type": "string"});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    check_messages([
        (
            json!({"type": "integer"}),
            json!("3"),
            r#"spec.x: Invalid value: "string": spec.x in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "integer"}),
            json!(1.5),
            r#"spec.x: Invalid value: "number": spec.x in body must be of type integer: "number""#,
        ),
        (
            json!({"type": "string"}),
            json!(null),
            r#"spec.x: Invalid value: "null": spec.x in body must be of type string: "null""#,
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            r#"spec.x: Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean""#,
        ),
        (
            integer,
            json!(3_000_000_000i64),
            r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.x"#,
        ),
        (
            json!({"type": "number", "minimum": 0.5, "exclusiveMinimum": true}),
            json!(0.5),
            "spec.x: Invalid value: 0.5: spec.x in body should be greater than 0.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            "spec.x: Invalid value: 7: spec.x in body should be a multiple of 5",
        ),
        (
            string(json!({"minLength": 2})),
            json!("é"),
            r#"spec.x: Invalid value: "é": spec.x in body should be at least 2 chars long"#,
        ),
        (
            string(json!({"maxLength": 2})),
            json!("abc"),
            "spec.x: Too long: may not be more than 2 bytes",
        ),
        (
            string(json!({"pattern": "^[a-z]+$"})),
            json!("A1"),
            r#"spec.x: Invalid value: "A1": spec.x in body should match '^[a-z]+$'"#,
        ),
        (
            string(json!({"format": "date-time"})),
            json!("now"),
            r#"spec.x: Invalid value: "now": spec.x in body must be of type date-time: "now""#,
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!(3),
            r#"spec.x: Unsupported value: 3: supported values: "1", "2""#,
        ),
    ]);
}

#[test]
fn a_212_each_keyword_of_lists_and_maps_has_upstreams_message() {
    check_messages([
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 2}),
            json!(["a"]),
            "spec.x: Invalid value: 1: spec.x in body should have at least 2 items",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            "spec.x: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "string"}}),
            json!({"a": "", "b": "", "c": ""}),
            "spec.x: Too many: 3: must have at most 2 items",
        ),
        (
            json!({"type": "array", "items": {"type": "object", "required": ["name"]}}),
            json!([{"name": "a"}, {}]),
            "spec.x[1].name: Required value",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"a": "b"}),
            r#"spec.x.a: Invalid value: "string": spec.x.a in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
            json!(["a", "b", "a", "a"]),
            "spec.x[2]: Duplicate value: \"a\"",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                   "items": {"type": "object"}}),
            json!([{"k": 1}, {"k": 2}, {"k": 1, "v": 2}]),
            "spec.x[2]: Duplicate value: {\"k\":1}",
        ),
        (
            json!({"type": "string", "not": {"enum": ["a"]}}),
            json!("a"),
            r#"<nil>: Invalid value: "": "spec.x" must not validate the schema (not)"#,
        ),
    ]);
}

/// Schema of `spec.x`, its value, and the only message.
fn check_messages<const N: usize>(cases: [(Value, Value, &str); N]) {
    for (schema, value, expected) in cases {
        assert_eq!(of_x(schema.clone(), value.clone()), [expected], "{schema} {value}");
    }
}

#[test]
fn a_212_valid_objects_have_no_errors() {
    for (schema, value) in [
        (json!({"type": "integer"}), json!(3.0)),
        (json!({"type": "number"}), json!(3)),
        (json!({"type": "string", "nullable": true}), json!(null)),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%")),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), json!([{"a": null}])),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3)),
        (json!({"type": "integer", "maximum": 9}), json!(9)),
        (json!({"type": "string", "enum": ["a"], "nullable": true}), json!("a")),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "default": "b"}}}),
            json!({}),
        ),
    ] {
        assert_eq!(of_x(schema.clone(), value.clone()), [""; 0], "{schema} {value}");
    }
}

#[test]
fn a_212_the_closest_alternative_is_reported() {
    let either = json!([{"required": ["a"]}, {"required": ["b"]}]);
    assert_eq!(
        of_x(json!({"type": "object", "oneOf": either}), json!({})),
        [
            r#"<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). Found none valid"#,
            "spec.x.a: Required value",
        ]
    );
    assert_eq!(
        of_x(json!({"type": "object", "oneOf": either}), json!({"a": 1, "b": 2})),
        [
            r#"<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). Found 2 valid alternatives"#
        ]
    );
    assert!(of_x(json!({"type": "object", "anyOf": either}), json!({"b": 2})).is_empty());
    assert_eq!(
        of_x(json!({"type": "object", "anyOf": either}), json!({}))[0],
        r#"<nil>: Invalid value: "": "spec.x" must validate at least one schema (anyOf)"#
    );
    assert_eq!(
        of_x(json!({"type": "object", "allOf": either}), json!({"b": 2})),
        [
            "spec.x.a: Required value",
            r#"<nil>: Invalid value: "": "spec.x" must validate all the schemas (allOf)"#,
        ]
    );
}

#[test]
fn a_214_unchanged_values_may_stay_invalid() {
    let schema = spec(json!({
        "x": {"type": "string", "maxLength": 1},
        "y": {"type": "string", "maxLength": 1},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                 "items": {"type": "object", "properties": {"v": {"type": "integer", "maximum": 1}}}},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
    }));
    let old =
        json!({"spec": {"x": "long", "y": "a", "list": [{"k": 1, "v": 5}], "set": ["a", "a"]}});
    let new = json!({"spec": {"x": "long", "y": "b", "list": [{"k": 0, "v": 0}, {"k": 1, "v": 5, "w": 1}], "set": ["a", "a"]}});
    assert_eq!(update_messages(schema.clone(), new.clone(), Some(old.clone())), [""; 0]);
    let mut worse = new.clone();
    worse["spec"]["x"] = "longer".into();
    worse["spec"]["list"][1]["v"] = 6.into();
    assert_eq!(
        update_messages(schema.clone(), worse, Some(old)),
        [
            "spec.list[1].v: Invalid value: 6: spec.list[1].v in body should be less than or equal to 1",
            "spec.x: Too long: may not be more than 1 byte",
        ]
    );
    assert_eq!(messages(schema, new).len(), 3);
}

#[test]
fn a_211_defaults_apply_inside_existing_values() {
    let inner = json!({"type": "object", "properties": {"d": {"type": "integer", "default": 7}}});
    let mut with_default = inner.clone();
    with_default["default"] = json!({});
    let schema = spec(json!({
        "absent": inner, "made": with_default, "there": inner,
        "list": {"type": "array", "items": inner},
        "map": {"type": "object", "additionalProperties": inner},
        "null": {"type": "string", "default": "x"},
        "nullable": {"type": "string", "default": "x", "nullable": true},
        "dropped": {"type": "string"},
        "nulls": {"type": "array", "items": {"type": "integer", "default": 1}},
    }));
    let object = json!({"spec": {"there": {}, "list": [{}, {"d": 1}], "map": {"k": {}},
        "null": null, "nullable": null, "dropped": null, "nulls": [null]}});
    assert_eq!(
        defaulted(schema, object),
        json!({"spec": {"made": {"d": 7}, "there": {"d": 7}, "list": [{"d": 7}, {"d": 1}],
            "map": {"k": {"d": 7}}, "null": "x", "nullable": null, "nulls": [1]}})
    );
}

#[test]
fn a_210_embedded_objects_need_kind_and_api_version() {
    let schema = json!({"type": "object", "x-kubernetes-embedded-resource": true,
                        "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(
        of_x(schema, json!({"apiVersion": ""})),
        [
            "spec.x.apiVersion: Required value: must not be empty",
            "spec.x.kind: Required value: must not be empty"
        ]
    );
}

#[test]
fn a_215_replicas_must_fit_into_a_scale() {
    let kind = kinds(&definition(spec(json!({"n": {"type": "integer"}})))).remove(0);
    let custom = kind.custom.clone().unwrap();
    let messages = |n: i64| {
        let mut errors = Errors::default();
        custom.validate(&At::root(&json!({"spec": {"n": n}})), None, &mut errors);
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(messages(3).is_empty());
    assert_eq!(messages(-1), ["spec.n: Invalid value: -1: should be a non-negative integer"]);
    assert_eq!(
        messages(1 << 31),
        ["spec.n: Invalid value: 2147483648: should be less than or equal to 2147483647"]
    );
}

#[test]
fn a_103_selectable_fields_are_read_as_text() {
    let kind = kinds(&definition(json!({"type": "object"}))).remove(0);
    let custom = kind.custom.clone().unwrap();
    assert!(custom.selects("spec.color") && !custom.selects("spec.n"));
    let selected = |object: Value| custom.selected("spec.color", &object);
    assert_eq!(selected(json!({"spec": {"color": "red"}})).unwrap(), "red");
    assert_eq!(selected(json!({"spec": {"color": true}})).unwrap(), "true");
    assert_eq!(selected(json!({"spec": {}})).unwrap(), "");
    assert_eq!(custom.selected("spec.n", &json!({})), None);
}

#[test]
fn a_213_cel_rules_are_reported_as_unsupported() {
    let schema = spec(json!({"x": {"type": "array", "items": {"type": "string",
        "x-kubernetes-validations": [{"rule": "self != ''"}]}}}));
    assert_eq!(
        Custom::new(schema).unsupported(),
        ["spec.x[*]: x-kubernetes-validations are not evaluated"]
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z(\\[*]{0,6}".prop_map(Value::from),
        Just("object".into()),
        Just("array".into()),
        Just("string".into()),
        Just("integer".into()),
        Just("map".into()),
    ];
    scalar.prop_recursive(6, 64, 6, |inner| {
        let key = prop_oneof![
            Just("type".to_owned()),
            Just("properties".into()),
            Just("items".into()),
            Just("additionalProperties".into()),
            Just("default".into()),
            Just("enum".into()),
            Just("required".into()),
            Just("anyOf".into()),
            Just("not".into()),
            Just("pattern".into()),
            Just("format".into()),
            Just("multipleOf".into()),
            Just("maximum".into()),
            Just("x-kubernetes-list-type".into()),
            Just("x-kubernetes-list-map-keys".into()),
            Just("x-kubernetes-embedded-resource".into()),
            "[a-c]".prop_map(String::from),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// With random JSON as schema, definition and object, validation is deterministic and does not panic.
    #[test]
    fn a_212_random_json_does_not_panic(schema in any_json(), object in any_json(), old in any_json()) {
        let kinds = kinds(&definition(schema.clone()));
        let custom = kinds[0].custom.clone().unwrap();
        let mut once = object.clone();
        custom.default(&mut once);
        let mut twice = once.clone();
        custom.default(&mut twice);
        let say = |new: &Value| {
            let mut errors = Errors::default();
            custom.validate(&At::root(new), Some(&At::root(&old)), &mut errors);
            errors
        };
        prop_assert_eq!(say(&once), say(&once));
        prop_assert!(say(&old).iter().all(|error| !error.field.is_empty() || !error.message.is_empty()));
        let _ = decode::custom_value(&kinds[0].schema, kinds[0].ty, object);
        let _ = super::kinds(&json!({"spec": schema}));
        let _ = super::kinds(&schema);
    }
}
