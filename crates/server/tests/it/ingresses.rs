//! Ingresses, IngressClasses and IPAddresses: all verbs, as the conformance tests use them. No controller acts on them.

use crate::cluster::{Client, Cluster, JSON_PATCH, MERGE, STRATEGIC};
use serde_json::{Value, json};

const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
const CLASSES: &str = "/apis/networking.k8s.io/v1/ingressclasses";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

fn ingress(metadata: Value) -> Value {
    json!({"metadata": metadata, "spec": {"defaultBackend": {"service": {"name": "none", "port": {"number": 80}}}}})
}

fn class(name: &str, annotations: Value) -> Value {
    json!({"metadata": {"name": name, "annotations": annotations, "labels": {"test": "yes"}},
           "spec": {"controller": "example.com/controller"}})
}

/// Lists, watches, patches, replaces and deletes objects of a kind that `make` creates.
async fn every_verb(cluster: &Client, place: &str, names: [&str; 3], make: impl Fn(&str) -> Value) {
    let mut watch = cluster.watch(&format!("{place}?labelSelector=test=yes")).await;
    for name in names {
        cluster.make(place, make(name)).await;
    }
    let one = format!("{place}/{}", names[0]);
    assert_eq!(cluster.names(&format!("{place}?labelSelector=test=yes")).await.len(), 3);
    let patches: [(&str, Value); 3] = [
        (MERGE, json!({"metadata": {"annotations": {"a": "merge"}}})),
        (STRATEGIC, json!({"metadata": {"annotations": {"b": "strategic"}}})),
        (JSON_PATCH, json!([{"op": "add", "path": "/metadata/annotations/c", "value": "json"}])),
    ];
    for (media, patch) in patches {
        cluster.patch_as(media, &one, patch.to_string()).await.ok();
    }
    let mut found = cluster.read(&one).await;
    assert_eq!(
        found["metadata"]["annotations"],
        json!({"a": "merge", "b": "strategic", "c": "json"})
    );
    found["metadata"]["annotations"] = json!({"d": "put"});
    let put = cluster.put(&one, &found).await.ok();
    assert_eq!(put["metadata"]["annotations"], json!({"d": "put"}));
    cluster.delete(&one).await.ok();
    cluster.get(&one).await.refused(404, "NotFound");
    cluster.delete(&format!("{place}?labelSelector=test=yes")).await.ok();
    assert!(cluster.names(&format!("{place}?labelSelector=test=yes")).await.is_empty());
    let mut events: Vec<String> = Vec::new();
    for event in watch.take(10).await {
        events.push(event["type"].as_str().unwrap().to_owned());
    }
    let count = |kind: &str| events.iter().filter(|event| *event == kind).count();
    assert_eq!([count("ADDED"), count("MODIFIED"), count("DELETED")], [3, 4, 3]);
}

/// NET-139: all verbs, in a namespace and in all of them; the status is a resource of its own; a delete takes effect at
/// once. The backend need not exist (NET-140).
#[tokio::test]
async fn net_139_ingresses_have_all_verbs_and_a_status() {
    let cluster = Cluster::start().await;
    let labelled = |name: &str| ingress(json!({"name": name, "labels": {"test": "yes"}}));
    every_verb(&cluster, INGRESSES, ["a", "b", "c"], labelled).await;

    let made = cluster.make(INGRESSES, ingress(json!({"generateName": "web-"}))).await;
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    assert_eq!(made["metadata"].get("finalizers"), None);
    assert_eq!(cluster.names("/apis/networking.k8s.io/v1/ingresses").await, [name]);
    let status = format!("{INGRESSES}/{name}/status");
    let patch = json!({"metadata": {"annotations": {"patched": "yes"}},
                       "status": {"loadBalancer": {"ingress": [{"ip": "169.1.1.1"}]}}});
    let mut patched = cluster.patch(&status, patch).await.ok();
    assert_eq!(patched["metadata"]["annotations"]["patched"], "yes");
    assert_eq!(patched["status"]["loadBalancer"]["ingress"][0]["ip"], "169.1.1.1");
    patched["status"]["loadBalancer"]["ingress"] = json!([{"ip": "169.1.1.2"}]);
    patched["spec"]["defaultBackend"]["service"]["name"] = "ignored".into();
    cluster.put(&status, &patched).await.ok();
    let found = cluster.read(&status).await;
    assert_eq!(found["status"]["loadBalancer"]["ingress"], json!([{"ip": "169.1.1.2"}]));
    assert_eq!(found["spec"]["defaultBackend"]["service"]["name"], "none");
    cluster.delete(&format!("{INGRESSES}/{name}")).await.ok();
    cluster.get(&format!("{INGRESSES}/{name}")).await.refused(404, "NotFound");
}

/// NET-141: all verbs, no status.
#[tokio::test]
async fn net_141_ingress_classes_have_all_verbs() {
    let cluster = Cluster::start().await;
    every_verb(&cluster, CLASSES, ["a", "b", "c"], |name| class(name, json!({}))).await;
    cluster.make(CLASSES, class("a", json!({}))).await;
    assert_eq!(cluster.get(&format!("{CLASSES}/a/status")).await.code, 404);
    let other = json!({"spec": {"controller": "example.com/other"}});
    let refused = cluster.patch(&format!("{CLASSES}/a"), other).await;
    assert!(refused.refused(422, "Invalid").contains("field is immutable"));
}

/// NET-142: the default class, of several the newest, and of equally old ones the first by name.
#[tokio::test(start_paused = true)]
async fn net_142_an_ingress_without_a_class_gets_the_default_one() {
    let cluster = Cluster::on_simulated_time().await;
    let default = || json!({"ingressclass.kubernetes.io/is-default-class": "true"});
    let class_of = async |name: &str| {
        let made = cluster.make(INGRESSES, ingress(json!({ "name": name }))).await;
        made["spec"].get("ingressClassName").cloned()
    };
    cluster
        .make(
            CLASSES,
            class("other", json!({"ingressclass.kubernetes.io/is-default-class": "false"})),
        )
        .await;
    assert_eq!(class_of("a").await, None);
    for name in ["old-b", "old-a"] {
        cluster.make(CLASSES, class(name, default())).await;
    }
    assert_eq!(class_of("b").await, Some(json!("old-a")), "both were created in the same second");
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    cluster.make(CLASSES, class("young", default())).await;
    assert_eq!(class_of("c").await, Some(json!("young")));
    let mut named = ingress(json!({"name": "d"}));
    named["spec"]["ingressClassName"] = "other".into();
    assert_eq!(cluster.make(INGRESSES, named).await["spec"]["ingressClassName"], "other");
    let annotated = json!({"name": "e", "annotations": {"kubernetes.io/ingress.class": "other"}});
    let made = cluster.make(INGRESSES, ingress(annotated)).await;
    assert_eq!(made["spec"].get("ingressClassName"), None);
}

/// NET-145: addresses that do not belong to Services are anyone's: no range has to contain them.
#[tokio::test]
async fn net_145_ip_addresses_have_all_verbs_and_any_owner() {
    let cluster = Cluster::start().await;
    let address = |name: &str| {
        let parent = json!({"group": "example.com", "resource": "routers", "name": "r"});
        json!({"metadata": {"name": name, "labels": {"test": "yes"}}, "spec": {"parentRef": parent}})
    };
    let names = ["255.255.255.255", "fe80::42:1dff:fe84:f9e2", "192.0.2.9"];
    every_verb(&cluster, ADDRESSES, names, address).await;
    cluster.make(ADDRESSES, address("192.0.2.9")).await;
    let other = json!({"spec": {"parentRef": {"name": "other"}}});
    let refused = cluster.patch(&format!("{ADDRESSES}/192.0.2.9"), other).await;
    assert!(refused.refused(422, "Invalid").contains("field is immutable"));
    let wrong = cluster.post(ADDRESSES, address("192.0.2.09")).await;
    assert!(wrong.refused(422, "Invalid").contains("must not have leading 0s"));
}
