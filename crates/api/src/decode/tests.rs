//! Decoding, against the built-in types.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn pod(text: &str) -> Result<Decoded, DecodeError> {
    of("io.k8s.api.core.v1.Pod", text)
}

fn of(ty: &str, text: &str) -> Result<Decoded, DecodeError> {
    let schema = Schema::built_in();
    json(&schema, schema.named(ty).unwrap(), text.as_bytes())
}

fn messages(decoded: &Decoded) -> Vec<String> {
    decoded.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_143_unknown_and_duplicate_fields_are_reported_in_document_order() {
    let decoded = pod(r#"{"spec": {"containers": [{"name": "a", "imagee": "x"}], "bogus": 1,
        "hostname": "a", "hostname": "b"}, "metadata": {"labels": {"a": "1", "a": "2"}}}"#)
    .unwrap();
    assert_eq!(
        messages(&decoded),
        [
            r#"unknown field "spec.containers[0].imagee""#,
            r#"unknown field "spec.bogus""#,
            r#"duplicate field "spec.hostname""#,
            r#"duplicate field "metadata.labels.a""#,
        ]
    );
    assert_eq!(
        decoded.value,
        json!({"spec": {"containers": [{"name": "a"}], "hostname": "b"},
               "metadata": {"labels": {"a": "2"}}})
    );
}

#[test]
fn a_142_field_names_are_case_sensitive() {
    let decoded = pod(r#"{"Spec": {}, "metadata": {"Name": "x"}}"#).unwrap();
    assert_eq!(messages(&decoded), [r#"unknown field "Spec""#, r#"unknown field "metadata.Name""#]);
}

#[test]
fn wrong_types_are_rejected_with_the_messages_of_go() {
    let cases = [
        (
            r#"{"metadata": {"name": true}}"#,
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.name of type string",
        ),
        (
            r#"{"spec": {"containers": "x"}}"#,
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            r#"{"spec": {"containers": [{"ports": [{"containerPort": 1.5}]}]}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            r#"{"spec": {"priority": 3000000000}}"#,
            "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32",
        ),
        ("[]", "json: cannot unmarshal array into Go value of type v1.Pod"),
        (
            r#"{"spec": {"containers": [{"resources": {"requests": {"cpu": "lots"}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            r#"{"metadata": {"creationTimestamp": 5}}"#,
            "json: cannot unmarshal number into Go value of type string",
        ),
    ];
    for (text, error) in cases {
        assert_eq!(pod(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn malformed_text_is_rejected_with_the_messages_of_go() {
    let cases = [
        ("", "unexpected end of JSON input"),
        (r#"{"spec": "#, "unexpected end of JSON input"),
        ("abc", "invalid character 'a' looking for beginning of value"),
        (r#"{"a" 1}"#, "invalid character '1' after object key"),
        ("{} x", "invalid character 'x' after top-level value"),
    ];
    for (text, error) in cases {
        let found = pod(text).unwrap_err();
        assert_eq!(found.to_string(), error, "{text}");
        assert!(found.is_syntax());
    }
    let schema = Schema::built_in();
    let ty = schema.named("io.k8s.api.core.v1.Pod").unwrap();
    assert!(json(&schema, ty, b"{\"kind\": \"\xff\"}").is_err());
}

#[test]
fn a_28_quantities_and_times_become_canonical() {
    let decoded = pod(r#"{"metadata": {"creationTimestamp": "2026-01-02T03:04:05.5+01:00"},
            "spec": {"containers": [{"resources": {"limits":
                {"cpu": "1000m", "memory": "1024Mi", "a": 2, "b": 0.5}}}]}}"#)
    .unwrap();
    assert_eq!(decoded.value["metadata"]["creationTimestamp"], "2026-01-02T02:04:05Z");
    assert_eq!(
        decoded.value["spec"]["containers"][0]["resources"]["limits"],
        json!({"cpu": "1", "memory": "1Gi", "a": "2", "b": "500m"})
    );
}

#[test]
fn values_that_mean_not_set_are_removed() {
    let decoded = pod(r#"{"metadata": {"creationTimestamp": null, "labels": {}, "name": ""},
        "spec": {"containers": [{"name": "", "command": [], "tty": false, "resources": {}}],
                 "hostNetwork": false, "priority": 0, "volumes": [null],
                 "securityContext": {"runAsUser": 0, "runAsNonRoot": false}},
        "status": {}}"#)
    .unwrap();
    assert_eq!(
        decoded.value,
        json!({"metadata": {},
            "spec": {"containers": [{"name": "", "resources": {}}], "priority": 0, "volumes": [{}],
                     "securityContext": {"runAsUser": 0, "runAsNonRoot": false}},
            "status": {}})
    );
}

#[test]
fn raw_values_keep_everything() {
    let text = r#"{"data": {"a": null, "b": [1, 1.5, {}]}, "revision": 1}"#;
    let decoded = of("io.k8s.api.apps.v1.ControllerRevision", text).unwrap();
    let expected: Value = serde_json::from_str(text).unwrap();
    assert_eq!(decoded.value, expected);
}

#[test]
fn a_parsed_object_is_checked_like_a_body() {
    let schema = Schema::built_in();
    let ty = schema.named("io.k8s.api.core.v1.Pod").unwrap();
    let text = r#"{"spec": {"bogus": 1, "hostNetwork": false, "hostname": "a"}}"#;
    let parsed = serde_json::from_str(text).unwrap();
    assert_eq!(value(&schema, ty, parsed).unwrap(), json(&schema, ty, text.as_bytes()).unwrap());
    assert!(value(&schema, ty, json!({"spec": []})).is_err());
}

#[test]
fn depth_is_bounded() {
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(json_any(deep(100).as_bytes()).is_ok());
    let error = json_any(deep(100_000).as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "exceeded max depth");
    let schema = Schema::built_in();
    let ty = schema.named("io.k8s.api.apps.v1.ControllerRevision").unwrap();
    let nested = (0..1000).fold(Value::Null, |inner, _| json!([inner]));
    assert!(value(&schema, ty, json!({"data": nested})).is_err());
    // The same bound holds for the result of a patch.
    for (levels, fits) in [(126, true), (127, false)] {
        let nested = (1..levels).fold(json!([]), |inner, _| json!([inner]));
        let object = json!({"data": nested});
        let text = serde_json::from_str::<Value>(&object.to_string());
        assert_eq!(value(&schema, ty, object).is_ok(), fits, "{levels}");
        assert_eq!(text.is_ok(), fits, "{levels}");
    }
}

#[test]
fn a_28_the_zero_time_means_not_set() {
    let schema = Schema::built_in();
    let ty = schema.named("io.k8s.api.core.v1.Service").unwrap();
    let sent = json!({"metadata": {"deletionTimestamp": "0001-01-01T01:00:00+01:00"}, "status": {
        "conditions": [{"type": "X", "lastTransitionTime": "0001-01-01T00:00:00Z"}]}});
    let stored = json!({"metadata": {}, "status": {"conditions": [{"type": "X"}]}});
    assert_eq!(value(&schema, ty, sent).unwrap().value, stored);
}

#[test]
fn a_145_custom_resources_are_pruned_but_their_types_are_not_checked() {
    let mut schema = (*Schema::built_in()).clone();
    let meta = schema.named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap();
    let add = |schema: &mut Schema, shape| schema.add(crate::schema::Type { name: None, shape });
    let int = add(&mut schema, crate::schema::Shape::Integer { bits: 64 });
    let mut spec = crate::schema::Object::default();
    spec.fields.insert("n".into(), crate::schema::Field::new(int));
    let spec = add(&mut schema, crate::schema::Shape::Object(spec));
    let mut widget = crate::schema::Object::default();
    widget.fields.insert("spec".into(), crate::schema::Field::new(spec));
    widget.fields.insert("metadata".into(), crate::schema::Field::new(meta));
    let widget = add(&mut schema, crate::schema::Shape::Object(widget));

    let text = br#"{"metadata": {"name": "w", "bogus": 1, "labels": null},
                    "spec": {"n": "three", "pruned": true, "n": null}}"#;
    let decoded = custom_json(&schema, widget, text).unwrap();
    assert_eq!(decoded.value, json!({"metadata": {"name": "w"}, "spec": {"n": null}}));
    assert_eq!(
        messages(&decoded),
        [
            r#"unknown field "metadata.bogus""#,
            r#"unknown field "spec.pruned""#,
            r#"duplicate field "spec.n""#
        ]
    );
    assert!(custom_json(&schema, widget, br#"{"metadata": {"name": 1}}"#).is_err());
}

proptest! {
    #[test]
    fn random_text_does_not_panic(text in "[\\[\\]{}:,\"a-z0-9 .eE+-]{0,60}") {
        let _ = pod(&text);
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = json_any(&bytes);
    }

    #[test]
    fn random_times_do_not_panic(text in "[0-9TZ:.+é-]{0,32}") {
        let _ = scalar::time(&text);
        let _ = scalar::micro_time(&text);
    }
}
