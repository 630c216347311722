//! Strategic merge as a table: name, object, patch, result.

use super::*;
use crate::schema::{Field, ListMerge, Object, Type};
use proptest::prelude::*;
use serde_json::json;

/// A small pod-like type: `containers` by name (with `env` by name and `ports` by containerPort),
/// `finalizers` as a set, `tolerations` replaced, `selector` replaced as a whole.
fn schema() -> (Schema, TypeId) {
    let mut schema = Schema::default();
    let mut add = |shape| schema.add(Type { name: None, shape });
    let text = add(Shape::String);
    let any = add(Shape::Any);
    let map = add(Shape::Map { values: text, atomic: false });
    let field = |ty, merge, key: Option<&str>| {
        let patch = PatchRule { merge, merge_key: key.map(str::to_owned), ..PatchRule::default() };
        Field { patch, ..Field::new(ty) }
    };
    let object = |fields: Vec<(&str, Field)>| {
        let fields = fields.into_iter().map(|(name, field)| (name.to_owned(), field)).collect();
        Shape::Object(Object { fields, ..Object::default() })
    };
    let list = |items| Shape::List { items, merge: ListMerge::Atomic };
    let env =
        add(object(vec![("name", field(text, false, None)), ("value", field(text, false, None))]));
    let env = add(list(env));
    let ports = add(list(any));
    let container = add(object(vec![
        ("name", field(text, false, None)),
        ("image", field(text, false, None)),
        ("env", field(env, true, Some("name"))),
        ("ports", field(ports, true, Some("containerPort"))),
    ]));
    let containers = add(list(container));
    let anys = add(list(any));
    let texts = add(list(text));
    let mut selector = field(map, false, None);
    selector.patch.replace = true;
    let spec = add(object(vec![
        ("containers", field(containers, true, Some("name"))),
        ("finalizers", field(texts, true, None)),
        ("tolerations", field(anys, false, None)),
        ("labels", field(map, false, None)),
        ("selector", selector),
    ]));
    (schema, spec)
}

fn merged(target: Value, patch: Value) -> Result<Value, PatchError> {
    let (schema, ty) = schema();
    strategic(&schema, ty, &target, patch)
}

#[test]
fn a_123_lists_and_maps_merge_as_in_upstream() {
    let app = json!({"name": "app", "image": "nginx"});
    check([
        (
            "a new element comes first",
            json!({"containers": [app]}),
            json!({"containers": [{"name": "side", "image": "busybox"}]}),
            json!({"containers": [{"name": "side", "image": "busybox"}, app]}),
        ),
        (
            "elements merge by key and a directive deletes one",
            json!({"containers": [{"name": "side"}, app]}),
            json!({"containers": [
                {"name": "app", "env": [{"name": "A", "value": "1"}]},
                {"name": "side", "$patch": "delete"},
            ]}),
            json!({"containers": [{"name": "app", "image": "nginx", "env": [{"name": "A", "value": "1"}]}]}),
        ),
        (
            "a lone replace among the elements replaces the list",
            json!({"containers": [app]}),
            json!({"containers": [{"$patch": "replace"}, {"name": "only", "image": "x:1"}]}),
            json!({"containers": [{"name": "only", "image": "x:1"}]}),
        ),
        (
            "scalars become a union with the patch's first",
            json!({"finalizers": ["a"]}),
            json!({"finalizers": ["b"]}),
            json!({"finalizers": ["b", "a"]}),
        ),
        ("null deletes", json!({"finalizers": ["a"]}), json!({"finalizers": null}), json!({})),
        (
            "scalars are deleted by value",
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a", "c"]}),
            json!({"finalizers": ["b"]}),
        ),
        (
            "a list without a strategy is replaced",
            json!({"tolerations": [{"key": "a"}]}),
            json!({"tolerations": [{"key": "b"}]}),
            json!({"tolerations": [{"key": "b"}]}),
        ),
        (
            "maps merge",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"a": null, "c": "3"}}),
            json!({"labels": {"b": "2", "c": "3"}}),
        ),
    ]);
}

#[test]
fn a_124_directives_work_as_in_upstream() {
    check([
        (
            "replace in a map",
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "replace", "c": "3"}}),
            json!({"labels": {"c": "3"}}),
        ),
        (
            "delete in a map",
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "delete"}}),
            json!({"labels": {}}),
        ),
        (
            "merge is the default",
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "merge", "b": "2"}}),
            json!({"labels": {"a": "1", "b": "2"}}),
        ),
        (
            "a struct that is replaced as a whole",
            json!({"selector": {"a": "1"}}),
            json!({"selector": {"b": "2"}}),
            json!({"selector": {"b": "2"}}),
        ),
        (
            "retainKeys drops what it does not name",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"$retainKeys": ["b", "c"], "c": "3"}}),
            json!({"labels": {"b": "2", "c": "3"}}),
        ),
        (
            "setElementOrder orders what it names; the rest keeps its place before them",
            json!({"containers": [{"name": "a"}, {"name": "server"}, {"name": "b"}]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
            json!({"containers": [{"name": "server"}, {"name": "b"}, {"name": "a"}]}),
        ),
        (
            "setElementOrder with a patch of the same list",
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({
                "$setElementOrder/containers": [{"name": "a"}, {"name": "c"}, {"name": "b"}],
                "containers": [{"name": "c", "image": "x"}],
            }),
            json!({"containers": [{"name": "a"}, {"name": "c", "image": "x"}, {"name": "b"}]}),
        ),
        (
            "setElementOrder of scalars",
            json!({"finalizers": ["a", "b"]}),
            json!({"$setElementOrder/finalizers": ["b", "c", "a"], "finalizers": ["c"]}),
            json!({"finalizers": ["b", "c", "a"]}),
        ),
        (
            "directives do not end up in what is new",
            json!({}),
            json!({"containers": [
                {"name": "a", "env": [{"name": "A", "$patch": "delete"}, {"name": "B"}], "$setElementOrder/env": [{"name": "B"}]},
                {"name": "gone", "$patch": "delete"},
            ]}),
            json!({"containers": [{"name": "a", "env": [{"name": "B"}]}]}),
        ),
        (
            "unknown fields go through",
            json!({"unknown": {"a": 1}}),
            json!({"unknown": {"b": [{"c": 1}]}, "other": null}),
            json!({"unknown": {"a": 1, "b": [{"c": 1}]}}),
        ),
    ]);
}

/// What is checked, the object, the patch and the result.
fn check<const N: usize>(cases: [(&str, Value, Value, Value); N]) {
    for (name, target, patch, expected) in cases {
        assert_eq!(merged(target, patch), Ok(expected), "{name}");
    }
}

#[test]
fn a_124_unmergeable_patches_are_rejected_with_upstreams_messages() {
    let target = json!({
        "containers": [{"name": "a"}], "finalizers": ["a"], "labels": {"a": "1"},
    });
    let cases = [
        (json!([]), 400, "invalid JSON document"),
        (json!({"labels": {"$retainKeys": "a"}}), 400, "invalid patch format of retainKeys"),
        (
            json!({"labels": {"$retainKeys": ["a"], "b": "1"}}),
            422,
            "patch content doesn't match retainKeys list",
        ),
        (json!({"$deleteFromPrimitiveList": ["a"]}), 400, "invalid patch format of primitive list"),
        (
            json!({"$deleteFromPrimitiveList/finalizers": "a"}),
            400,
            "invalid patch format of primitive list",
        ),
        (json!({"$setElementOrder": []}), 400, "invalid patch format of setElementOrder list"),
        (
            json!({"$setElementOrder/finalizers": {}}),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (json!({"finalizers": [["a"]]}), 422, "lists of lists are not supported"),
        (
            json!({"containers": [{"image": "x"}]}),
            500,
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!({"labels": {"$patch": "what", "a": "2"}}),
            500,
            "unknown patch type: what in map: map[a:2]",
        ),
    ];
    for (patch, code, message) in cases {
        let error = merged(target.clone(), patch.clone()).unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), (code, message), "{patch}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3i64).prop_map(Value::from),
        "(a|b|replace|delete)".prop_map(Value::from),
    ];
    let key = "(containers|finalizers|labels|env|name|ports|containerPort|\\$patch|\\$retainKeys|\\$setElementOrder/containers|\\$setElementOrder/finalizers|\\$deleteFromPrimitiveList/finalizers|a)";
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_json_never_panics(target in any_json(), patch in any_json()) {
        let _ = merged(target.clone(), patch.clone());
        let _ = crate::patch::merge(&target, &patch);
    }

    /// A patch without directives has the same effect the second time.
    #[test]
    fn merging_twice_is_merging_once(a in "[a-c]{1,2}", b in "[a-c]{1,2}", image in "[x-z]") {
        let target = json!({"containers": [{"name": "a"}, {"name": "b"}], "finalizers": ["a"]});
        let patch = json!({"containers": [{"name": a, "image": image}], "finalizers": [b]});
        let once = merged(target, patch.clone()).unwrap();
        prop_assert_eq!(merged(once.clone(), patch).unwrap(), once);
    }
}

/// The answer of a real v1.36 server to a patch of a Deployment's pod template.
#[test]
fn a_126_a_deployment_is_merged_by_the_built_in_keys() {
    let schema = Schema::built_in();
    let ty = schema.named("io.k8s.api.apps.v1.Deployment").unwrap();
    let template = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
    let mut object = template(json!({"containers": [{"name": "app", "image": "nginx:1.27"}]}));
    for (patch, expected) in [
        (
            json!({"containers": [{"image": "busybox", "name": "side"}], "tolerations": [{"key": "k"}]}),
            json!({"containers": [{"image": "busybox", "name": "side"}, {"name": "app", "image": "nginx:1.27"}],
                "tolerations": [{"key": "k"}]}),
        ),
        (
            json!({"containers": [{"env": [{"name": "A", "value": "1"}], "name": "app"}, {"$patch": "delete", "name": "side"}],
                "tolerations": [{"key": "l"}]}),
            json!({"containers": [{"env": [{"name": "A", "value": "1"}], "image": "nginx:1.27", "name": "app"}],
                "tolerations": [{"key": "l"}]}),
        ),
        (
            json!({"containers": [{"$patch": "replace"}, {"image": "x:1", "name": "only"}], "tolerations": null}),
            json!({"containers": [{"image": "x:1", "name": "only"}]}),
        ),
    ] {
        object = strategic(&schema, ty, &object, template(patch)).unwrap();
        assert_eq!(object, template(expected));
    }
}
