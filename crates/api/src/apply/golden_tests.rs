//! Answers of a real v1.36 server, with the built-in types.

use super::*;
use crate::schema::{Schema, TypeId};
use serde_json::{Value, json};

const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
const NOW: &str = "2026-01-01T00:00:00Z";

fn of_type(name: &str) -> (std::sync::Arc<Schema>, TypeId) {
    let schema = Schema::built_in();
    let ty = schema.named(name).unwrap();
    (schema, ty)
}

fn applied(name: &str, live: Option<&Value>, document: &Value, manager: &str) -> Value {
    let (schema, ty) = of_type(name);
    let api_version = document["apiVersion"].as_str().unwrap();
    let writer = Manager { name: manager, api_version, subresource: "", now: NOW };
    let reset = FieldSet::of_fields(&[&["status"]]);
    apply(&schema, ty, live, document, &writer, &reset, false).unwrap()
}

fn created(name: &str, mut object: Value) -> Value {
    let (schema, ty) = of_type(name);
    let api_version = object["apiVersion"].as_str().unwrap().to_owned();
    let writer = Manager { name: "m", api_version: &api_version, subresource: "", now: NOW };
    let reset = FieldSet::of_fields(&[&["status"]]);
    track_update(&schema, ty, None, &mut object, &writer, &reset);
    object["metadata"]["managedFields"][0]["fieldsV1"].take()
}

#[test]
fn a_135_two_managers_apply_a_deployment() {
    let document = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "ssad"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "app", "image": "x:1", "ports": [{"containerPort": 80}]}]},
            },
        },
    });
    let mut live = applied(DEPLOYMENT, None, &document, "one");
    let first = json!({"f:spec": {"f:replicas": {}, "f:selector": {}, "f:template": {
        "f:metadata": {"f:labels": {"f:a": {}}},
        "f:spec": {"f:containers": {"k:{\"name\":\"app\"}": {
            ".": {}, "f:image": {}, "f:name": {},
            "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
        }}},
    }}});
    assert_eq!(
        live["metadata"]["managedFields"],
        json!([{
            "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": first,
            "manager": "one", "operation": "Apply", "time": NOW,
        }])
    );

    live["metadata"]["uid"] = "u".into();
    live["spec"]["revisionHistoryLimit"] = 10.into();
    let container = &mut live["spec"]["template"]["spec"]["containers"][0];
    container["imagePullPolicy"] = "IfNotPresent".into();
    container["ports"][0]["protocol"] = "TCP".into();
    container["resources"] = json!({});
    let document = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "ssad"},
        "spec": {"template": {"spec": {"containers": [{"name": "app", "env": [{"name": "A", "value": "1"}]}]}}},
    });
    let both = applied(DEPLOYMENT, Some(&live), &document, "two");
    assert_eq!(both["metadata"]["managedFields"][0]["fieldsV1"], first);
    assert_eq!(
        both["metadata"]["managedFields"][1]["fieldsV1"],
        json!({"f:spec": {"f:template": {
            "f:spec": {"f:containers": {"k:{\"name\":\"app\"}": {
                ".": {}, "f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}}, "f:name": {},
            }}},
        }}})
    );
    assert_eq!(
        both["spec"]["template"]["spec"]["containers"],
        json!([{
            "env": [{"name": "A", "value": "1"}], "image": "x:1", "imagePullPolicy": "IfNotPresent",
            "name": "app", "ports": [{"containerPort": 80, "protocol": "TCP"}], "resources": {},
        }])
    );
}

/// The entries that `kubectl create` leaves on a real cluster.
#[test]
fn a_131_created_objects_have_the_managed_fields_of_a_real_cluster() {
    let labels = json!({".": {}, "f:app": {}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                "containers": [{"name": "web", "image": "nginx", "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
                "securityContext": {}, "restartPolicy": "Always",
            }},
        },
        "status": {},
    });
    assert_eq!(
        created(DEPLOYMENT, deployment),
        json!({
            "f:metadata": {"f:labels": labels},
            "f:spec": {
                "f:replicas": {}, "f:selector": {},
                "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {}},
                "f:template": {"f:metadata": {"f:labels": labels}, "f:spec": {
                    "f:containers": {"k:{\"name\":\"web\"}": {
                        ".": {}, "f:image": {}, "f:name": {}, "f:resources": {},
                        "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    }},
                    "f:restartPolicy": {}, "f:securityContext": {},
                }},
            },
        })
    );
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "type": "ClusterIP", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]},
        "status": {"loadBalancer": {}},
    });
    assert_eq!(
        created("io.k8s.api.core.v1.Service", service),
        json!({"f:spec": {
            "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}},
            "f:selector": {}, "f:type": {},
        }})
    );
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}});
    assert_eq!(
        created("io.k8s.api.core.v1.ConfigMap", config),
        json!({"f:data": {".": {}, "f:k": {}}})
    );
}

/// Thousands of items: a quadratic algorithm would run into the test timeout.
#[test]
fn apply_takes_linear_time_in_the_length_of_lists() {
    const POD: &str = "io.k8s.api.core.v1.Pod";
    const MANY: usize = 4_000;
    let (schema, ty) = of_type(POD);
    let names = |end: &str| (0..MANY).map(move |n| format!("n{n}{end}")).collect::<Vec<_>>();
    let pod = |names: &[String]| {
        let env: Vec<Value> =
            names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": names},
            "spec": {"containers": [{"name": "c", "env": env}]},
        })
    };
    let (mut before, after) = (pod(&names("")), pod(&names("x")));
    let writer = Manager { name: "m", api_version: "v1", subresource: "", now: NOW };
    let reset = FieldSet::default();
    track_update(&schema, ty, None, &mut before, &writer, &reset);
    let mut updated = after.clone();
    track_update(&schema, ty, Some(&before), &mut updated, &writer, &reset);
    let both = apply(
        &schema,
        ty,
        Some(&updated),
        &before_without_managers(&before),
        &writer,
        &reset,
        true,
    );
    assert_eq!(both.unwrap()["metadata"]["finalizers"].as_array().unwrap().len(), 2 * MANY);
    let patched = crate::patch::strategic(&schema, ty, &before, after).unwrap();
    assert_eq!(patched["metadata"]["finalizers"].as_array().unwrap().len(), 2 * MANY);

    let twins = vec!["same".to_owned(); MANY];
    let mut updated = pod(&twins);
    track_update(&schema, ty, Some(&before), &mut updated, &writer, &reset);
    assert!(updated["metadata"]["managedFields"].is_array());
}

fn before_without_managers(object: &Value) -> Value {
    let mut object = object.clone();
    managers::remove_from(&mut object);
    object
}
