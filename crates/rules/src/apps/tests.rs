//! The rules of workloads compared with answers of a real v1.36 server.

use api::field::{At, Errors};
use serde_json::{Value, json};

fn defaulted(kind: &str, mut object: Value) -> Value {
    (super::rules(kind).default)(&mut object);
    object
}

fn messages(kind: &str, object: Value) -> Vec<String> {
    let object = defaulted(kind, object);
    let mut errors = Errors::default();
    (super::rules(kind).validate)(&At::root(&object), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

fn update_messages(kind: &str, new: Value, old: Value) -> Vec<String> {
    let (new, old) = (defaulted(kind, new), defaulted(kind, old));
    let mut errors = Errors::default();
    (super::rules(kind).validate)(&At::root(&new), &mut errors);
    (super::rules(kind).validate_update)(&At::root(&new), &At::root(&old), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

/// A workload that selects its own pods, with more fields in its spec.
fn workload(more: Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "w"},
        "spec": {
            "selector": {"matchLabels": {"a": "d"}},
            "template": {
                "metadata": {"labels": {"a": "d"}},
                "spec": {"containers": [{"name": "app", "image": "nginx:1.27"}]},
            },
        },
    });
    api::patch::merge_into(&mut object["spec"], &more);
    object
}

#[test]
fn a_147_a_deployment_gets_its_defaults() {
    let spec = &defaulted("Deployment", workload(json!({})))["spec"];
    assert_eq!(spec["replicas"], 1);
    assert_eq!(spec["revisionHistoryLimit"], 10);
    assert_eq!(spec["progressDeadlineSeconds"], 600);
    let rolling = json!({"maxSurge": "25%", "maxUnavailable": "25%"});
    assert_eq!(spec["strategy"], json!({"type": "RollingUpdate", "rollingUpdate": rolling}));
}

/// A strategy that names its type but has no `rollingUpdate` is stored as it was sent.
#[test]
fn a_147_only_an_existing_rolling_update_gets_a_partition() {
    let zero = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
    for (given, expected) in [
        (json!({}), zero.clone()),
        (json!({"type": "RollingUpdate"}), json!({"type": "RollingUpdate"})),
        (json!({"type": "RollingUpdate", "rollingUpdate": {}}), zero),
        (
            json!({"rollingUpdate": {"partition": 2}}),
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}),
        ),
        (json!({"type": "OnDelete"}), json!({"type": "OnDelete"})),
    ] {
        let set = defaulted("StatefulSet", workload(json!({"updateStrategy": given})));
        assert_eq!(set["spec"]["updateStrategy"], expected, "{given}");
    }
}

#[test]
fn a_147_a_stateful_set_gets_its_defaults() {
    let claim = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    let set = defaulted("StatefulSet", workload(json!({"volumeClaimTemplates": [claim]})));
    let spec = &set["spec"];
    assert_eq!(spec["podManagementPolicy"], "OrderedReady");
    assert_eq!(spec["updateStrategy"]["rollingUpdate"]["partition"], 0);
    let retain = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
    assert_eq!(spec["persistentVolumeClaimRetentionPolicy"], retain);
    assert_eq!(spec["volumeClaimTemplates"][0]["kind"], "PersistentVolumeClaim");
    assert_eq!(spec["volumeClaimTemplates"][0]["status"], json!({"phase": "Pending"}));
    assert_eq!(set["status"], json!({"availableReplicas": 0, "replicas": 0}));
}

#[test]
fn a_92_invalid_workloads_are_rejected_with_upstreams_messages() {
    let mismatch = "spec.template.metadata.labels: Invalid value: {\"a\":\"d\"}: `selector` does not match template `labels`";
    let never = "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"";
    let cases: &[(&str, Value, &[&str])] = &[
        ("Deployment", json!({}), &[]),
        ("ReplicaSet", json!({}), &[]),
        ("StatefulSet", json!({}), &[]),
        ("DaemonSet", json!({}), &[]),
        ("Deployment", json!({"selector": null}), &["spec.selector: Required value", mismatch]),
        ("Deployment", json!({"selector": {"matchLabels": {"a": "x"}}}), &[mismatch]),
        (
            "Deployment",
            json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}),
            &[
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
            ],
        ),
        (
            "Deployment",
            json!({"strategy": {"type": "Recreate", "rollingUpdate": {}}}),
            &[
                "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
            ],
        ),
        ("Deployment", json!({"template": {"spec": {"restartPolicy": "Never"}}}), &[never]),
        ("DaemonSet", json!({"template": {"spec": {"restartPolicy": "Never"}}}), &[never]),
        (
            "Deployment",
            json!({"replicas": -1}),
            &["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
        ),
        (
            "Deployment",
            json!({"strategy": {"rollingUpdate": {"maxUnavailable": "101%"}}}),
            &[
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
            ],
        ),
        (
            "Deployment",
            json!({"minReadySeconds": 600}),
            &[
                "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds",
            ],
        ),
        (
            "StatefulSet",
            json!({"podManagementPolicy": "Any"}),
            &[
                "spec.podManagementPolicy: Invalid value: \"Any\": must be 'OrderedReady' or 'Parallel'",
            ],
        ),
        (
            "DaemonSet",
            json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}),
            &[
                "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
            ],
        ),
    ];
    for (kind, more, expected) in cases {
        assert_eq!(messages(kind, workload(more.clone())), *expected, "{kind} {more}");
    }
}

#[test]
fn a_77_selectors_are_immutable_and_reported_after_the_mismatch() {
    let other = json!({"selector": {"matchLabels": {"a": "z"}}});
    for kind in ["Deployment", "ReplicaSet", "DaemonSet"] {
        let messages = update_messages(kind, workload(other.clone()), workload(json!({})));
        assert_eq!(messages.len(), 2, "{kind} {messages:?}");
        assert!(messages[0].starts_with("spec.template.metadata.labels: "));
        let fixed =
            "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"z\"}}: field is immutable";
        assert_eq!(messages[1], fixed);
    }
}

#[test]
fn a_77_a_stateful_set_may_scale_but_not_change_its_service() {
    let old = workload(json!({}));
    assert!(
        update_messages("StatefulSet", workload(json!({"replicas": 5})), old.clone()).is_empty()
    );
    let messages = update_messages("StatefulSet", workload(json!({"serviceName": "x"})), old);
    assert_eq!(messages.len(), 1);
    assert!(
        messages[0].starts_with("spec: Forbidden: updates to statefulset spec for fields other")
    );
}

#[test]
fn a_147_a_daemon_set_counts_changes_of_its_template() {
    let rules = super::rules("DaemonSet");
    let generation = |set: &Value| {
        set["metadata"]["annotations"]["deprecated.daemonset.template.generation"].clone()
    };
    let mut first = defaulted("DaemonSet", workload(json!({})));
    (rules.prepare_create)(&mut first);
    assert_eq!(generation(&first), "1");
    let mut same = defaulted("DaemonSet", workload(json!({"minReadySeconds": 3})));
    (rules.prepare_update)(&mut same, &first);
    assert_eq!(generation(&same), "1");
    let node = json!({"template": {"spec": {"nodeName": "n"}}});
    let mut changed = defaulted("DaemonSet", workload(node));
    (rules.prepare_update)(&mut changed, &first);
    assert_eq!(generation(&changed), "2");
}

#[test]
fn c_76_max_unavailable_of_a_stateful_set_is_dropped() {
    let strategy = |max: Value| {
        json!({"updateStrategy": {"type": "RollingUpdate",
               "rollingUpdate": {"partition": 1, "maxUnavailable": max}}})
    };
    let rules = super::rules("StatefulSet");
    let at = "/spec/updateStrategy/rollingUpdate";
    let original = defaulted("StatefulSet", workload(strategy(json!(2))));
    let mut made = original.clone();
    (rules.prepare_create)(&mut made);
    assert_eq!(made.pointer(at), Some(&json!({"partition": 1})));
    let mut updated = original.clone();
    (rules.prepare_update)(&mut updated, &made);
    assert_eq!(updated.pointer(at), Some(&json!({"partition": 1})));
    // A stored value from a time when the feature was on is kept.
    let mut kept = original.clone();
    (rules.prepare_update)(&mut kept, &original);
    assert_eq!(kept, original);
}

#[test]
fn c_207_the_data_of_a_revision_is_an_immutable_object() {
    let revision = |data: Value| json!({"metadata": {"name": "r"}, "data": data, "revision": 1});
    let object = json!({"spec": {"template": {}}});
    assert_eq!(messages("ControllerRevision", revision(object.clone())), [""; 0]);
    for (data, message) in [
        (json!(null), "data: Required value: data is mandatory"),
        (json!("text"), "data: Invalid value: \"text\": must be a valid JSON object"),
        (json!([1]), "data: Invalid value: [1]: must be a valid JSON object"),
    ] {
        assert_eq!(messages("ControllerRevision", revision(data)), [message]);
    }
    let other =
        update_messages("ControllerRevision", revision(json!({})), revision(object.clone()));
    assert_eq!(other, ["data: Invalid value: {}: field is immutable"]);
    let mut later = revision(object.clone());
    later["revision"] = json!(2);
    later["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(update_messages("ControllerRevision", later, revision(object)), [""; 0]);
}

/// C-64: containers may mount claims of the set, but nothing undeclared.
#[test]
fn containers_of_a_stateful_set_mount_its_claims() {
    let mounting = |name: &str| {
        json!({
            "serviceName": "w",
            "volumeClaimTemplates": [{ "metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}} } }],
            "template": { "spec": { "containers": [{ "name": "app", "image": "nginx:1.27",
                "volumeMounts": [{"name": name, "mountPath": "/data"}] }] } },
        })
    };
    assert_eq!(messages("StatefulSet", workload(mounting("data"))), Vec::<String>::new());
    assert_eq!(
        messages("StatefulSet", workload(mounting("other"))),
        [r#"spec.template.spec.containers[0].volumeMounts[0].name: Not found: "other""#]
    );
    // Other workloads have no claims.
    assert_eq!(messages("ReplicaSet", workload(mounting("data"))).len(), 1);
}
