//! What nodes may read and write to forward traffic and to answer DNS queries.

use crate::cluster::Cluster;
use serde_json::{Value, json};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
const DNS: &str = "/api/v1/namespaces/kube-system/services/kube-dns";

fn slice(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
        "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": node,
                       "conditions": {"ready": true}, "hints": {"forNodes": [{"name": node}]}}],
    })
}

#[tokio::test]
async fn a_node_reads_what_its_proxy_needs() {
    let cluster = Cluster::start().await;
    let node = cluster.node("n1");
    for path in [
        "/api/v1/services",
        "/api/v1/nodes",
        "/api/v1/namespaces",
        "/api/v1/pods",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/networking.k8s.io/v1/networkpolicies",
        "/apis/networking.k8s.io/v1/servicecidrs",
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes",
        DNS,
    ] {
        node.get(path).await.ok();
    }
    drop(node.watch("/apis/discovery.k8s.io/v1/endpointslices").await);
    for path in ["/api/v1/secrets", "/api/v1/configmaps", "/apis/apps/v1/deployments"] {
        node.get(path).await.refused(403, "Forbidden");
    }
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Service", "namespace": "default"},
                       "reason": "R", "type": "Normal"});
    node.make("/api/v1/namespaces/default/events", event).await;
}

#[tokio::test]
async fn a_node_writes_its_own_slice_of_the_dns_service_and_no_other() {
    let cluster = Cluster::start().await;
    let (n1, n2) = (cluster.node("n1"), cluster.node("n2"));
    n1.make(SLICES, slice("kube-dns-n1", "n1")).await;
    n2.make(SLICES, slice("kube-dns-n2", "n2")).await;
    let own = format!("{SLICES}/kube-dns-n1");
    n1.patch(&own, json!({"endpoints": []})).await.ok();
    n1.put(&own, &slice("kube-dns-n1", "n1")).await.ok();

    let other = format!("{SLICES}/kube-dns-n2");
    n1.put(&other, &slice("kube-dns-n2", "n2")).await.refused(403, "Forbidden");
    n1.patch(&other, json!({"endpoints": []})).await.refused(403, "Forbidden");
    n1.delete(&other).await.refused(403, "Forbidden");
    n1.post(SLICES, slice("web", "n1")).await.refused(403, "Forbidden");
    n1.post(SLICES, slice("kube-dns-n3", "n1")).await.refused(403, "Forbidden");
    // Its name decides, even if the server would generate it.
    let mut generated = slice("", "n1");
    generated["metadata"] = json!({"generateName": "kube-dns-",
                                   "labels": {"kubernetes.io/service-name": "kube-dns"}});
    n1.post(SLICES, generated).await.refused(403, "Forbidden");
    // It must not attract the queries of other nodes' pods, or become an endpoint of another Service.
    let own_name = |change: Value| (own.clone(), change);
    for (path, change) in [
        own_name(json!({"endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "n1"}]})),
        own_name(json!({"endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "n2",
                                       "hints": {"forNodes": [{"name": "n2"}]}}]})),
        own_name(json!({"metadata": {"labels": {"kubernetes.io/service-name": "metrics"}}})),
    ] {
        let refused = n1.patch(&path, change).await;
        assert!(refused.refused(403, "Forbidden").contains("node \"n1\" can only write"));
    }
    let elsewhere = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    n1.post(elsewhere, slice("kube-dns-n1", "n1")).await.refused(403, "Forbidden");
    n1.delete(&format!("{elsewhere}/kubernetes")).await.refused(403, "Forbidden");
    n1.patch(DNS, json!({"spec": {"selector": {"a": "b"}}})).await.refused(403, "Forbidden");
    n1.send("DELETE", SLICES, &[], "").await.refused(403, "Forbidden");
    n1.delete(&own).await.ok();
}

#[tokio::test]
async fn the_dns_service_has_the_tenth_address_and_comes_back() {
    let cluster = Cluster::start().await;
    let service = cluster.read(DNS).await;
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.10");
    assert_eq!(service["metadata"]["labels"]["k8s-app"], "kube-dns");
    assert_eq!(service["metadata"]["labels"]["kubernetes.io/name"], "CoreDNS");
    assert_eq!(service["spec"]["trafficDistribution"], "PreferSameNode");
    assert_eq!(service["spec"].get("selector"), None);
    let ports = service["spec"]["ports"].as_array().unwrap().iter();
    let ports: Vec<_> =
        ports.map(|port| (&port["name"], &port["port"], &port["protocol"])).collect();
    let expected = json!(["dns", 53, "UDP", "dns-tcp", 53, "TCP"]);
    assert_eq!(ports[0], (&expected[0], &expected[1], &expected[2]));
    assert_eq!(ports[1], (&expected[3], &expected[4], &expected[5]));
    let claim = "/apis/networking.k8s.io/v1/ipaddresses/10.96.0.10";
    assert_eq!(cluster.read(claim).await["spec"]["parentRef"]["name"], "kube-dns");

    let uid = &service["metadata"]["uid"];
    cluster.delete(DNS).await.ok();
    assert!(cluster.until(DNS, 200).await && cluster.until(claim, 200).await);
    assert_ne!(&cluster.read(DNS).await["metadata"]["uid"], uid);
    // Changes of an administrator stay, across restarts too.
    cluster.patch(DNS, json!({"metadata": {"labels": {"mine": "yes"}}})).await.ok();
    let cluster = cluster.restart().await;
    assert_eq!(cluster.read(DNS).await["metadata"]["labels"]["mine"], "yes");
}

/// A cluster of an earlier version may have given the address to another Service.
#[tokio::test]
async fn an_address_that_another_service_has_is_not_taken_from_it() {
    let cluster = Cluster::start().await;
    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    cluster
        .make(ranges, json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.7.16.0/20"]}}))
        .await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r",
                       "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    cluster.patch(&format!("{ranges}/more/status"), ready).await.ok();
    let first = json!({"metadata": {"name": "first"},
                       "spec": {"clusterIP": "10.7.16.10", "ports": [{"port": 80}]}});
    cluster.make("/api/v1/namespaces/default/services", first).await;
    cluster
        .patch(&format!("{ranges}/kubernetes"), json!({"metadata": {"finalizers": null}}))
        .await
        .ok();
    cluster.delete(&format!("{ranges}/kubernetes")).await.ok();
    cluster.running.stop().await;
    let service_ranges = server::ServiceRanges::from_option("10.7.16.0/20").unwrap();
    let config = server::Config { service_ranges, ..crate::cluster::config(cluster.dir.path()) };
    let cluster = Cluster::with(cluster.dir, config).await;
    assert_eq!(cluster.read(DNS).await["spec"]["clusterIP"], "10.96.0.10", "it keeps its address");
    let service = "/api/v1/namespaces/kube-system/services";
    cluster.delete(DNS).await.ok();
    // The claim of its old address is released after the reaction to the deletion could have begun.
    assert!(cluster.until("/apis/networking.k8s.io/v1/ipaddresses/10.96.0.10", 404).await);
    assert_eq!(cluster.names(service).await, [""; 0]);
    let owner = cluster.read("/apis/networking.k8s.io/v1/ipaddresses/10.7.16.10").await;
    assert_eq!(owner["spec"]["parentRef"]["name"], "first");
}
