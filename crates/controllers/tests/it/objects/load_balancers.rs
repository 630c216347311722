//! The built-in load balancer, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{Event, Node, Service};
use serde_json::{Value, json};
use std::time::Duration;

const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

async fn node(cluster: &Cluster, name: &str, address: &str) {
    cluster.create::<Node>(json!({ "metadata": { "name": name } })).await;
    ready(cluster, name, address, "True").await;
}

async fn ready(cluster: &Cluster, name: &str, address: &str, status: &str) {
    let status = json!({
        "conditions": [{ "type": "Ready", "status": status, "reason": "r", "message": "",
                         "lastHeartbeatTime": clock::now_rfc3339(), "lastTransitionTime": clock::now_rfc3339() }],
        "addresses": [{ "type": "InternalIP", "address": address }],
    });
    cluster.status::<Node>(&ObjectKey::cluster(name), status).await;
}

fn service(name: &str, port: u16) -> Value {
    json!({ "metadata": { "namespace": "default", "name": name },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": port }] } })
}

/// The addresses of its load balancer, and whether it has the finalizer.
fn shown(service: Option<&Service>) -> (Vec<String>, bool) {
    let Some(service) = service else { return (Vec::new(), false) };
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.clone()).unwrap_or_default();
    let ips = ingress.into_iter().map(|one| {
        assert_eq!(one.ip_mode.as_deref(), Some("VIP"));
        one.ip.unwrap()
    });
    let held = service.metadata.finalizers.iter().flatten().any(|one| one == FINALIZER);
    (ips.collect(), held)
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_has_the_addresses_of_ready_nodes_until_it_goes() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1", "192.0.2.1").await;
    let services = cluster.watch::<Service>();
    cluster.create::<Service>(service("web", 80)).await;
    let web = key("default", "web");
    let has = |ips: &[&str], held: bool| {
        let ips: Vec<String> = ips.iter().map(|&ip| ip.to_owned()).collect();
        move |service: Option<&Service>| shown(service) == (ips.clone(), held)
    };
    services.when(&web, has(&["192.0.2.1"], true)).await;
    cluster.event("EnsuringLoadBalancer").await;
    cluster.event("EnsuredLoadBalancer").await;
    node(&cluster, "n2", "192.0.2.2").await;
    services.when(&web, has(&["192.0.2.1", "192.0.2.2"], true)).await;
    cluster.event("UpdatedLoadBalancer").await;
    ready(&cluster, "n1", "192.0.2.1", "False").await;
    services.when(&web, has(&["192.0.2.2"], true)).await;
    let label = json!({ "metadata": { "labels": {
        "node.kubernetes.io/exclude-from-external-load-balancers": "" } } });
    cluster.client.patch_merge::<Node>(&ObjectKey::cluster("n2"), &label).await.unwrap();
    services.when(&web, has(&[], true)).await;
    cluster.event("UnAvailableLoadBalancer").await;
    ready(&cluster, "n1", "192.0.2.1", "True").await;
    services.when(&web, has(&["192.0.2.1"], true)).await;

    let plain = json!({ "spec": { "type": "ClusterIP" } });
    cluster.client.patch_merge::<Service>(&web, &plain).await.unwrap();
    services.when(&web, has(&[], false)).await;
    cluster.event("DeletedLoadBalancer").await;
    let balanced = json!({ "spec": { "type": "LoadBalancer" } });
    cluster.client.patch_merge::<Service>(&web, &balanced).await.unwrap();
    services.when(&web, has(&["192.0.2.1"], true)).await;
    cluster.delete::<Service>(&web).await;
    services.gone(&web).await;
    cluster.stop().await;
}

/// NET-24: a Service with a loadBalancerClass belongs to another load balancer.
#[tokio::test(start_paused = true)]
async fn net_24_a_service_of_another_load_balancer_is_not_touched() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1", "192.0.2.1").await;
    let mut other = service("other", 80);
    other["spec"]["loadBalancerClass"] = "example.com/internal-vip".into();
    cluster.create::<Service>(other).await;
    let status = json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.1" }] } });
    let before: Service = cluster.status(&key("default", "other"), status).await;
    let services = cluster.watch::<Service>();
    cluster.create::<Service>(service("own", 80)).await;
    let own = |service: Option<&Service>| shown(service) == (vec!["192.0.2.1".to_owned()], true);
    services.when(&key("default", "own"), own).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let after: Service = cluster.client.get(&key("default", "other")).await.unwrap();
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_later_of_two_services_with_one_port_waits_for_the_earlier_one() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1", "192.0.2.1").await;
    let services = cluster.watch::<Service>();
    let balanced =
        |service: Option<&Service>| shown(service) == (vec!["192.0.2.1".to_owned()], true);
    cluster.create::<Service>(service("a-late", 81)).await;
    services.when(&key("default", "a-late"), balanced).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.create::<Service>(service("b-early", 80)).await;
    services.when(&key("default", "b-early"), balanced).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.delete::<Service>(&key("default", "a-late")).await;
    services.gone(&key("default", "a-late")).await;
    cluster.create::<Service>(service("a-late", 80)).await;
    let event = cluster.event("SyncLoadBalancerFailed").await;
    let message = event.message.as_deref().unwrap();
    assert!(message.contains("80/TCP") && message.contains("default/b-early"), "{message}");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(shown(services.cache.get(&key("default", "a-late")).as_deref()), (Vec::new(), true));
    let events = cluster.watch::<Event>();
    let failed = |event: &Event| event.reason.as_deref() == Some("SyncLoadBalancerFailed");
    let event = events.find(failed).await;
    assert!(event.count.unwrap_or(1) == 1, "it is recorded once: {event:?}");
    cluster.delete::<Service>(&key("default", "b-early")).await;
    services.when(&key("default", "a-late"), balanced).await;
    cluster.stop().await;
}
