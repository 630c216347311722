//! Ownership and apply: each test is a sequence of writes with the expected owners after each.

use super::*;
use crate::schema::{Field, ListMerge, MapKey, Object, Schema, Shape, Type, TypeId};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Deployment-like types that cover every kind of merging.
pub(super) struct World {
    schema: Schema,
    ty: TypeId,
}

const T1: &str = "2026-01-01T00:00:01Z";
const T2: &str = "2026-01-01T00:00:02Z";
const T3: &str = "2026-01-01T00:00:03Z";

impl World {
    fn new(name: &str) -> World {
        let mut schema = Schema::default();
        let add = |schema: &mut Schema, shape| schema.add(Type { name: None, shape });
        let text = add(&mut schema, Shape::String);
        let int = add(&mut schema, Shape::Integer { bits: 32 });
        let any = add(&mut schema, Shape::Any);
        let map = add(&mut schema, Shape::Map { values: text, atomic: false });
        let selector = add(&mut schema, Shape::Map { values: text, atomic: true });
        let key = |field: &str| MapKey { field: field.into(), default: None };
        let by_name = || ListMerge::Map(vec![key("name")]);
        let tcp = MapKey { field: "protocol".into(), default: Some("TCP".into()) };
        let object = |schema: &mut Schema, fields: &[(&str, TypeId, bool)]| {
            let field = |ty, required| Field { required, ..Field::new(ty) };
            let fields =
                fields.iter().map(|(n, ty, r)| ((*n).to_owned(), field(*ty, *r))).collect();
            add(schema, Shape::Object(Object { fields, ..Object::default() }))
        };
        let list = |schema: &mut Schema, items, merge| add(schema, Shape::List { items, merge });

        let port = object(
            &mut schema,
            &[("containerPort", int, true), ("protocol", text, false), ("name", text, false)],
        );
        let ports = list(&mut schema, port, ListMerge::Map(vec![key("containerPort"), tcp]));
        let env = object(&mut schema, &[("name", text, true), ("value", text, false)]);
        let env = list(&mut schema, env, by_name());
        let texts = list(&mut schema, text, ListMerge::Atomic);
        let set = list(&mut schema, text, ListMerge::Set);
        let container = object(
            &mut schema,
            &[
                ("name", text, true),
                ("image", text, false),
                ("env", env, false),
                ("ports", ports, false),
                ("args", texts, false),
                ("resources", map, false),
            ],
        );
        let containers = list(&mut schema, container, by_name());
        let rolling = object(&mut schema, &[("maxSurge", int, false)]);
        let strategy =
            object(&mut schema, &[("type", text, false), ("rollingUpdate", rolling, false)]);
        let spec = object(
            &mut schema,
            &[
                ("replicas", int, false),
                ("selector", selector, true),
                ("containers", containers, true),
                ("strategy", strategy, false),
                ("open", any, false),
            ],
        );
        let status = object(&mut schema, &[("ready", int, false)]);
        let metadata = object(
            &mut schema,
            &[
                ("name", text, false),
                ("namespace", text, false),
                ("uid", text, false),
                ("labels", map, false),
                ("annotations", map, false),
                ("finalizers", set, false),
                ("resourceVersion", text, false),
                ("generation", int, false),
            ],
        );
        let root = object(
            &mut schema,
            &[
                ("apiVersion", text, false),
                ("kind", text, false),
                ("metadata", metadata, false),
                ("spec", spec, false),
                ("status", status, false),
                ("data", map, false),
            ],
        );
        let shape = schema.shape(root).clone();
        let ty = schema.add(Type { name: Some(name.into()), shape });
        World { schema, ty }
    }

    fn built_in() -> World {
        World::new("io.k8s.api.apps.v1.Deployment")
    }

    fn update(&self, old: Option<&Value>, mut new: Value, manager: &str, now: &str) -> Value {
        let reset = FieldSet::of_fields(&[&["status"]]);
        let writer = Manager { name: manager, api_version: "apps/v1", subresource: "", now };
        track_update(&self.schema, self.ty, old, &mut new, &writer, &reset);
        new
    }

    fn try_apply(
        &self,
        live: Option<&Value>,
        applied: &Value,
        manager: &str,
        now: &str,
        force: bool,
    ) -> Result<Value, ApplyError> {
        let writer = Manager { name: manager, api_version: "apps/v1", subresource: "", now };
        let reset = FieldSet::of_fields(&[&["status"]]);
        apply(&self.schema, self.ty, live, applied, &writer, &reset, force)
    }

    fn apply(&self, live: Option<&Value>, applied: &Value, manager: &str, now: &str) -> Value {
        self.try_apply(live, applied, manager, now, false).unwrap()
    }
}

fn object(rest: Value) -> Value {
    let mut object =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}});
    for (name, value) in rest.as_object().unwrap() {
        if name == "metadata" {
            object["metadata"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        } else {
            object[name] = value.clone();
        }
    }
    object
}

/// manager/operation → fieldsV1
fn owners(object: &Value) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let name = |e: &Value| {
        format!("{}/{}", e["manager"].as_str().unwrap(), e["operation"].as_str().unwrap())
    };
    entries
        .iter()
        .map(|e| (name(e), e["fieldsV1"].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn times(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array();
    entries.into_iter().flatten().filter_map(|e| e["time"].as_str()).collect()
}

#[test]
fn a_129_fields_of_an_object_are_written_as_upstream_writes_them() {
    let world = World::built_in();
    let deployment = object(json!({
        "metadata": {"uid": "u", "finalizers": ["a", "b"]},
        "spec": {
            "replicas": 0,
            "selector": {"a": "b"},
            "containers": [{
                "name": "app", "image": "x:1", "args": ["a"],
                "ports": [{"containerPort": 80}],
            }],
            "open": {"list": [1], "deep": {"a": 1}},
        },
    }));
    let set = fields_of(&world.schema, world.ty, &deployment);
    assert_eq!(
        set.clone().into_json(),
        json!({
            "f:metadata": {"f:finalizers": {"v:\"a\"": {}, "v:\"b\"": {}}},
            "f:spec": {
                "f:replicas": {},
                "f:selector": {},
                "f:containers": {"k:{\"name\":\"app\"}": {
                    ".": {}, "f:name": {}, "f:image": {}, "f:args": {},
                    "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                }},
                "f:open": {"f:list": {}, "f:deep": {".": {}, "f:a": {}}},
            },
        })
    );
    assert!(set.contains(&["f:spec", "f:containers", "k:{\"name\":\"app\"}"]));
    assert!(!set.contains(&["f:spec", "f:containers"]));
    assert!(!set.leaves().contains(&["f:spec", "f:containers", "k:{\"name\":\"app\"}"]));
    assert!(set.paths().contains(&".spec.containers[name=\"app\"].ports[containerPort=80,protocol=\"TCP\"].containerPort".into()));
    assert!(set.paths().contains(&".metadata.finalizers[=\"a\"]".into()));
}

#[test]
fn a_129_sets_are_normalized_and_malformed_sets_are_rejected() {
    let parsed = FieldSet::parse(json!({"f:a": {".": {}}, "k:{\"b\": 1, \"a\":2}": {}})).unwrap();
    assert_eq!(parsed.into_json(), json!({"f:a": {}, "k:{\"a\":2,\"b\":1}": {}}));
    for nonsense in
        [json!([]), json!({"a": {}}), json!({"f:a": 1}), json!({"k:x": {}}), json!({"i:x": {}})]
    {
        assert_eq!(FieldSet::parse(nonsense), None);
    }
}

#[test]
fn a_131_a_create_owns_all_fields_except_those_that_are_never_owned() {
    let spec = json!({
        "selector": {"a": "b"},
        "strategy": {"type": "R", "rollingUpdate": {"maxSurge": 1}},
        "containers": [{"name": "app", "resources": {"cpu": "1"}, "env": [{"name": "A"}]}],
    });
    let new = object(
        json!({"metadata": {"labels": {"l": "1"}, "uid": "u"}, "spec": spec, "status": {"ready": 1}}),
    );
    let stored = World::built_in().update(None, new.clone(), "kubectl-create", T1);
    let item = json!({
        ".": {}, "f:name": {}, "f:resources": {".": {}, "f:cpu": {}},
        "f:env": {".": {}, "k:{\"name\":\"A\"}": {".": {}, "f:name": {}}},
    });
    assert_eq!(
        stored["metadata"]["managedFields"],
        json!([{
            "manager": "kubectl-create", "operation": "Update", "apiVersion": "apps/v1", "time": T1,
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:l": {}}},
                "f:spec": {
                    "f:selector": {},
                    "f:strategy": {"f:type": {}, "f:rollingUpdate": {".": {}, "f:maxSurge": {}}},
                    "f:containers": {"k:{\"name\":\"app\"}": item},
                },
            },
        }])
    );
    // A custom resource has no Go struct, so the field `spec` itself is added.
    let custom = World::new("com.example.v1.Widget").update(None, new, "m", T1);
    assert_eq!(owners(&custom)["m/Update"]["f:spec"]["."], json!({}));
}

#[test]
fn a_131_changed_fields_move_to_the_writer_and_removed_fields_lose_all_owners() {
    let world = World::built_in();
    let one =
        world.update(None, object(json!({"data": {"a": "1", "b": "1", "c": "1"}})), "one", T1);
    let two = world.update(
        Some(&one),
        object(json!({"data": {"a": "2", "b": "1", "d": "1"}})),
        "two",
        T2,
    );
    assert_eq!(
        owners(&two),
        json!({
            "one/Update": {"f:data": {".": {}, "f:b": {}}},
            "two/Update": {"f:data": {"f:a": {}, "f:d": {}}},
        })
    );
    assert_eq!(times(&two), [T1, T2]);
    let again = world.update(
        Some(&two),
        object(json!({"data": {"a": "2", "b": "1", "d": "1"}})),
        "three",
        T3,
    );
    assert_eq!(again["metadata"]["managedFields"], two["metadata"]["managedFields"]);
    let gone = world.update(Some(&two), object(json!({})), "three", T3);
    assert_eq!(owners(&gone), json!({}));
}

#[test]
fn a_133_a_write_may_reset_replace_or_ignore_the_managers() {
    let world = World::built_in();
    let old = world.update(
        None,
        object(json!({"metadata": {"uid": "u"}, "data": {"a": "1"}})),
        "one",
        T1,
    );
    let with = |fields: Value| {
        object(json!({"metadata": {"uid": "u", "managedFields": fields}, "data": {"a": "2"}}))
    };
    for reset in [json!([]), json!([{}])] {
        assert_eq!(owners(&world.update(Some(&old), with(reset), "two", T2)), json!({}));
    }
    let untracked = world.update(Some(&old), with(json!([])), "two", T2);
    let still = world.update(Some(&untracked), object(json!({"data": {"a": "3"}})), "two", T3);
    assert_eq!(owners(&still), json!({}));

    let moved = json!({"two/Update": {"f:data": {"f:a": {}}}, "one/Update": {"f:data": {".": {}}}});
    let kept = |fields| owners(&world.update(Some(&old), with(fields), "two", T2));
    assert_eq!(kept(Value::Null)["two/Update"], moved["two/Update"]);
    assert_eq!(
        kept(json!([{"manager": "x", "operation": "Nonsense"}]))["two/Update"],
        moved["two/Update"]
    );
    let mine = json!([{
        "manager": "mine", "operation": "Update", "apiVersion": "apps/v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}},
    }]);
    assert_eq!(
        kept(mine),
        json!({
            "mine/Update": {"f:spec": {"f:replicas": {}}},
            "two/Update": {"f:data": {"f:a": {}}},
        })
    );
}

#[test]
fn a_132_the_oldest_of_more_than_ten_updates_become_ancient_changes() {
    let world = World::built_in();
    let mut live = world.update(None, object(json!({"data": {"k00": "1"}})), "m00", T1);
    for n in 1..13 {
        let mut next = live.clone();
        next["data"][format!("k{n:02}")] = "1".into();
        live = world.update(
            Some(&live),
            next,
            &format!("m{n:02}"),
            &format!("2026-01-01T00:01:{n:02}Z"),
        );
    }
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 10);
    assert_eq!(entries[0]["manager"], "ancient-changes");
    assert_eq!(
        entries[0]["fieldsV1"],
        json!({"f:data": {".": {}, "f:k00": {}, "f:k01": {}, "f:k02": {}, "f:k03": {}}})
    );
    assert_eq!(entries[0]["time"], "2026-01-01T00:01:03Z");
}

#[test]
fn a_130_a_subresource_has_its_own_entry() {
    let world = World::built_in();
    let old = world.update(None, object(json!({"data": {"a": "1"}})), "one", T1);
    let mut new = old.clone();
    new["status"] = json!({"ready": 1});
    new["metadata"]["managedFields"] = json!([]); // cannot be reset from here
    let writer =
        Manager { name: "kubelet", api_version: "apps/v1", subresource: "status", now: T2 };
    let reset = FieldSet::of_fields(&[&["spec"], &["data"]]);
    track_update(&world.schema, world.ty, Some(&old), &mut new, &writer, &reset);
    let entries = new["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1]["subresource"], "status");
    assert_eq!(entries[1]["fieldsV1"], json!({"f:status": {"f:ready": {}}}));
}

#[test]
fn a_136_two_appliers_and_an_update_conflict_until_forced() {
    let world = World::built_in();
    let doc = |k: &str| object(json!({"metadata": {"labels": {"a": "1"}}, "data": {"k": k}}));
    let created = world.apply(None, &doc("v"), "one", T1);
    assert_eq!(
        owners(&created),
        json!({
            "one/Apply": {"f:data": {"f:k": {}}, "f:metadata": {"f:labels": {"f:a": {}}}},
        })
    );

    let refused = world.try_apply(Some(&created), &doc("w"), "two", T2, false).unwrap_err();
    assert_eq!(refused.to_string(), "Apply failed with 1 conflict: conflict with \"one\": .data.k");
    let status = refused.status();
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let cause = &status.details.unwrap().causes[0];
    assert_eq!(
        (cause.reason.as_str(), cause.field.as_str(), cause.message.as_str()),
        ("FieldManagerConflict", ".data.k", "conflict with \"one\"")
    );

    let forced = world.try_apply(Some(&created), &doc("w"), "two", T2, true).unwrap();
    assert_eq!(forced["data"], json!({"k": "w"}));
    assert_eq!(
        owners(&forced),
        json!({
            "one/Apply": {"f:metadata": {"f:labels": {"f:a": {}}}},
            "two/Apply": {"f:data": {"f:k": {}}, "f:metadata": {"f:labels": {"f:a": {}}}},
        })
    );

    let dropped = world.apply(Some(&forced), &object(json!({"data": {"other": "x"}})), "two", T3);
    assert_eq!(dropped["data"], json!({"other": "x"}));
    assert_eq!(dropped["metadata"]["labels"], json!({"a": "1"}));
    assert_eq!(
        owners(&dropped),
        json!({
            "one/Apply": {"f:metadata": {"f:labels": {"f:a": {}}}},
            "two/Apply": {"f:data": {"f:other": {}}},
        })
    );

    let put = world.update(Some(&dropped), object(json!({"data": {"other": "y"}})), "three", T3);
    assert_eq!(owners(&put), json!({"three/Update": {"f:data": {"f:other": {}}}}));
}

#[test]
fn a_136_several_conflicts_are_listed_by_manager() {
    let world = World::built_in();
    let one = world.apply(None, &object(json!({"data": {"a": "1", "b": "1"}})), "one", T1);
    let mut next = one.clone();
    next["spec"] = json!({"replicas": 3, "containers": [{"name": "app", "image": "x"}]});
    let live = world.update(Some(&one), next, "kubectl-edit", T2);
    let doc = object(json!({
        "data": {"a": "2", "b": "2"},
        "spec": {"replicas": 1, "containers": [{"name": "app", "image": "y"}]},
    }));
    let refused = world.try_apply(Some(&live), &doc, "two", T3, false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 4 conflicts: conflicts with \"kubectl-edit\" using apps/v1:\n\
         - .spec.replicas\n- .spec.containers[name=\"app\"].image\n\
         conflicts with \"one\":\n- .data.a\n- .data.b"
    );
    // The same value is shared without conflict.
    let shared = world.apply(Some(&live), &object(json!({"data": {"a": "1"}})), "two", T3);
    assert_eq!(owners(&shared)["two/Apply"], json!({"f:data": {"f:a": {}}}));
    assert_eq!(owners(&shared)["one/Apply"], json!({"f:data": {"f:a": {}, "f:b": {}}}));
}

#[test]
fn a_135_undeclared_fields_are_rejected() {
    let world = World::built_in();
    let cases = [
        (json!({"spec": {"x": 1}}), ".spec.x: field not declared in schema"),
        (
            json!({"spec": {"replicas": "a"}}),
            ".spec.replicas: expected numeric (int or float), got &value.valueUnstructured{Value:\"a\"}",
        ),
        (
            json!({"spec": {"containers": {"a": 1}}}),
            ".spec.containers: expected list, got &{map[a:1]}",
        ),
        (
            json!({"spec": {"containers": [{"image": "x"}]}}),
            ".spec.containers: element 0: associative list with keys has an element that omits key field \"name\" (and doesn't have default value)",
        ),
        (
            json!({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}),
            ".spec.containers: duplicate entries for key [name=\"a\"]",
        ),
        (
            json!({"spec": {"x": 1, "y": 1}}),
            "errors:\n  .spec.x: field not declared in schema\n  .spec.y: field not declared in schema",
        ),
    ];
    for (rest, why) in cases {
        let error = world.try_apply(None, &object(rest), "m", T1, false).unwrap_err();
        let expected =
            format!("failed to create typed patch object (/x; apps/v1, Kind=Deployment): {why}");
        assert_eq!(error, ApplyError::Schema(expected));
    }
}

#[test]
fn a_134_a_document_with_managed_fields_or_another_version_is_rejected() {
    let world = World::built_in();
    let mut doc = object(json!({"metadata": {"managedFields": []}}));
    let refused = |doc: &Value| world.try_apply(None, doc, "m", T1, false).unwrap_err().to_string();
    assert_eq!(refused(&doc), "metadata.managedFields must be nil");
    doc["apiVersion"] = "v1".into();
    assert_eq!(
        refused(&doc),
        "Incorrect version specified in apply patch. Specified patch version: v1, expected: apps/v1"
    );
}

#[test]
fn a_133_the_first_apply_records_existing_fields_as_before_first_apply() {
    let world = World::built_in();
    let live = object(json!({"metadata": {"uid": "u"}, "data": {"a": "1", "b": "1"}}));
    let applied = world.apply(Some(&live), &object(json!({"data": {"b": "1", "c": "1"}})), "m", T1);
    assert_eq!(
        owners(&applied),
        json!({
            "before-first-apply/Update": {"f:data": {".": {}, "f:a": {}, "f:b": {}}},
            "m/Apply": {"f:data": {"f:b": {}, "f:c": {}}},
        })
    );
}

#[test]
fn a_135_list_elements_merge_by_key_in_the_applied_order() {
    let world = World::built_in();
    let names = |object: &Value| -> Vec<String> {
        let list = object["spec"]["containers"].as_array().cloned().unwrap_or_default();
        list.iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    let doc = |names: &[&str]| {
        let list: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        object(json!({"spec": {"containers": list}}))
    };
    for (live, applied, expected) in [
        (vec!["a", "b"], vec!["c"], vec!["a", "b", "c"]),
        (vec!["a", "b", "c"], vec!["c", "a"], vec!["b", "c", "a"]),
        (vec!["a", "b", "c"], vec!["a", "x", "c"], vec!["a", "b", "x", "c"]),
        (vec!["a", "b"], vec!["b", "a"], vec!["b", "a"]),
        (vec!["a", "b", "c", "d"], vec!["d", "c", "b", "a"], vec!["d", "c", "b", "a"]),
        (vec![], vec!["a"], vec!["a"]),
    ] {
        let live = world.apply(None, &doc(&live), "one", T1);
        let merged = world.apply(Some(&live), &doc(&applied), "two", T2);
        assert_eq!(names(&merged), expected, "{applied:?}");
    }
}

#[test]
fn a_135_an_element_is_removed_with_its_last_applier() {
    let world = World::built_in();
    let doc = |containers: Value| object(json!({"spec": {"containers": containers}}));
    let one = world.apply(
        None,
        &doc(json!([{"name": "app", "image": "x"}, {"name": "side", "image": "y"}])),
        "one",
        T1,
    );
    let two = world.apply(
        Some(&one),
        &doc(json!([{"name": "app", "env": [{"name": "A", "value": "1"}]}])),
        "two",
        T2,
    );
    assert_eq!(two["spec"]["containers"][0]["env"], json!([{"name": "A", "value": "1"}]));
    assert_eq!(
        owners(&two)["two/Apply"],
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"app\"}": {
            ".": {}, "f:name": {}, "f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}},
        }}}})
    );
    let less = world.apply(Some(&two), &object(json!({"data": {"k": "v"}})), "one", T3);
    assert_eq!(
        less["spec"]["containers"],
        json!([{"name": "app", "env": [{"name": "A", "value": "1"}]}])
    );
    assert_eq!(owners(&less)["one/Apply"], json!({"f:data": {"f:k": {}}}));
}

#[test]
fn a_138_applying_the_same_again_changes_nothing_even_after_defaulting() {
    let world = World::built_in();
    let doc = object(
        json!({"spec": {"replicas": 1, "selector": {"a": "b"}, "containers": [{"name": "app", "ports": [{"containerPort": 80}]}]}}),
    );
    let mut live = world.apply(None, &doc, "one", T1);
    live["metadata"]["uid"] = "u".into();
    live["spec"]["strategy"] = json!({"type": "RollingUpdate"});
    live["spec"]["containers"][0]["ports"][0]["protocol"] = "TCP".into();
    let again = world.apply(Some(&live), &doc, "one", T2);
    assert_eq!(again, live);
}

#[test]
fn a_137_kubectl_takes_over_fields_with_the_value_of_its_annotation() {
    let world = World::built_in();
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let last = object(json!({"data": {"k": "v"}}));
    let first = object(json!({
        "metadata": {"annotations": {annotation: last.to_string()}},
        "data": {"k": "v", "foreign": "1"},
    }));
    let live = world.update(None, first, "kubectl-client-side-apply", T1);
    let document = object(json!({"data": {"k": "w"}}));
    let taken = world.apply(Some(&live), &document, "kubectl", T2);
    assert_eq!(taken["data"]["k"], "w");
    assert_eq!(taken["metadata"]["annotations"][annotation], format!("{document}\n"));
    // Another manager or another field is still a conflict.
    assert!(world.try_apply(Some(&live), &document, "argo", T2, false).is_err());
    let foreign = object(json!({"data": {"k": "w", "foreign": "2"}}));
    let refused = world.try_apply(Some(&live), &foreign, "kubectl", T2, false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .data.foreign"
    );
}

#[test]
fn a_138_a_write_that_changed_only_times_keeps_the_old_times() {
    let world = World::built_in();
    let old = world.update(None, object(json!({"data": {"a": "1"}})), "one", T1);
    let mut new = old.clone();
    new["metadata"]["managedFields"][0]["time"] = T2.into();
    settle(&old, &mut new);
    assert_eq!(new, old);
    let mut other = new.clone();
    other["data"]["a"] = "2".into();
    other["metadata"]["managedFields"][0]["time"] = T2.into();
    let before = other.clone();
    settle(&old, &mut other);
    assert_eq!(other, before);
}

#[test]
fn lists_with_duplicate_keys_are_owned_as_one_value() {
    let world = World::built_in();
    let doubles = json!([{"name": "a", "image": "1"}, {"name": "a", "image": "2"}]);
    let live = world.update(None, object(json!({"spec": {"containers": doubles}})), "one", T1);
    assert_eq!(
        owners(&live)["one/Update"],
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {}}}})
    );
    let nameless = object(json!({"spec": {"containers": [{"image": "1"}]}}));
    let live = world.update(None, nameless, "one", T1);
    assert_eq!(owners(&live)["one/Update"], json!({"f:spec": {"f:containers": {}}}));
}

fn any_set() -> impl Strategy<Value = FieldSet> {
    let leaf = Just(json!({}));
    let node = leaf.prop_recursive(4, 24, 4, |inner| {
        proptest::collection::btree_map("(f:[a-c]|k:\\{\"n\":[0-2]\\}|v:[0-2]|\\.)", inner, 0..4)
            .prop_map(|map| {
                let dot = |key: &str, value| if key == "." { json!({}) } else { value };
                Value::Object(
                    map.into_iter()
                        .map(|(k, v)| {
                            let v = dot(&k, v);
                            (k, v)
                        })
                        .collect(),
                )
            })
    });
    node.prop_map(|node| FieldSet::parse(node).unwrap())
}

/// Documents of the test type with few values, so that documents often overlap.
fn any_document() -> impl Strategy<Value = Value> {
    let container = (0..3u8, proptest::option::of(0..2u8), proptest::option::of(0..2u8)).prop_map(
        |(name, image, port)| {
            let mut container = json!({"name": name.to_string()});
            if let Some(image) = image {
                container["image"] = image.to_string().into();
            }
            if let Some(port) = port {
                container["ports"] = json!([{"containerPort": port}]);
            }
            container
        },
    );
    let containers = proptest::collection::vec(container, 0..4).prop_map(|mut list| {
        let mut seen = std::collections::BTreeSet::new();
        list.retain(|container| seen.insert(container["name"].to_string()));
        list
    });
    let data = proptest::collection::btree_map("[a-c]", "[x-y]", 0..3);
    let finalizers = proptest::collection::btree_set("[a-c]", 0..3);
    let replicas = proptest::option::of(0..2i32);
    (containers, data, finalizers, replicas).prop_map(|(containers, data, finalizers, replicas)| {
        // Decoding drops empty lists and maps, so documents have none.
        let mut doc = object(json!({}));
        if !containers.is_empty() {
            doc["spec"]["containers"] = containers.into();
        }
        if !data.is_empty() {
            doc["data"] = json!(data);
        }
        if !finalizers.is_empty() {
            doc["metadata"]["finalizers"] = json!(finalizers);
        }
        if let Some(replicas) = replicas {
            doc["spec"]["replicas"] = replicas.into();
        }
        doc
    })
}

fn minus(a: &FieldSet, b: &FieldSet) -> FieldSet {
    let mut left = a.clone();
    left.subtract(b);
    left
}

fn plus(a: &FieldSet, b: &FieldSet) -> FieldSet {
    let mut both = a.clone();
    both.unite(b.clone());
    both
}

proptest! {
    #[test]
    fn sets_keep_the_laws_of_sets(a in any_set(), b in any_set()) {
        prop_assert_eq!(FieldSet::parse(a.clone().into_json()), Some(a.clone()));
        prop_assert_eq!(plus(&a, &b), plus(&b, &a));
        prop_assert_eq!(plus(&a, &a), a.clone());
        prop_assert!(minus(&a, &a).is_empty());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(plus(&minus(&a, &b), &a.intersection(&b)), a.clone());
        prop_assert!(minus(&a, &b).intersection(&b).is_empty());
        prop_assert_eq!(minus(&plus(&a, &b), &b), minus(&a, &b));
        prop_assert_eq!(a.paths().len(), minus(&a, &b).paths().len() + a.intersection(&b).paths().len());
    }

    #[test]
    fn a_138_apply_is_idempotent(first in any_document(), second in any_document(), third in any_document()) {
        let world = World::built_in();
        let live = world.apply(None, &first, "one", T1);
        let live = world.try_apply(Some(&live), &second, "two", T2, true).unwrap();
        let live = world.try_apply(Some(&live), &third, "one", T3, true).unwrap();
        let again = world.try_apply(Some(&live), &third, "one", "2026-02-02T00:00:00Z", false).unwrap();
        prop_assert_eq!(again, live);
    }

    /// Fields that only one manager applies are removed when it applies an empty document.
    #[test]
    fn a_135_applying_an_empty_document_removes_the_managers_fields(first in any_document(), second in any_document()) {
        let world = World::built_in();
        let base = world.apply(None, &first, "one", T1);
        let both = world.try_apply(Some(&base), &second, "two", T2, false);
        if let Ok(both) = both {
            let back = world.apply(Some(&both), &object(json!({})), "two", T3);
            let fields = |object: &Value| fields_of(&world.schema, world.ty, object);
            let mut was = base.clone();
            let mut is = back.clone();
            managers::remove_from(&mut was);
            managers::remove_from(&mut is);
            prop_assert_eq!(fields(&was).leaves(), fields(&is).leaves());
        }
    }

    /// Every changed field has exactly one Update owner, whatever is written.
    #[test]
    fn a_131_updates_never_leave_two_owners(documents in proptest::collection::vec(any_document(), 1..5)) {
        let world = World::built_in();
        let mut live: Option<Value> = None;
        for (n, document) in documents.into_iter().enumerate() {
            live = Some(world.update(live.as_ref(), document, &format!("m{n}"), T1));
        }
        let live = live.unwrap();
        let managers = Managers::stored(&live);
        let entries: Vec<_> = managers.iter().collect();
        for (n, a) in entries.iter().enumerate() {
            for b in &entries[n + 1..] {
                prop_assert!(a.fields.intersection(&b.fields).is_empty());
            }
        }
    }

    #[test]
    fn arbitrary_managed_fields_never_panic(entries in proptest::collection::vec(any_set(), 0..4), text in "\\PC{0,8}") {
        let world = World::built_in();
        let fields: Vec<Value> = entries.into_iter().map(|set| json!({
            "manager": text, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": set.into_json(),
        })).collect();
        let new = object(json!({"metadata": {"managedFields": fields}, "data": {"a": "1"}}));
        let live = world.update(None, new, "m", T1);
        let _ = world.try_apply(Some(&live), &object(json!({"data": {"a": "2"}})), "n", T2, true);
    }
}
