//! ServiceCIDRs and IPAddresses, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use super::faulty_connection::FaultyConnection;
use client::ObjectKey;
use controllers::Options;
use http::Method;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

fn service(name: &str, address: Value) -> Value {
    json!({ "metadata": { "namespace": "default", "name": name },
            "spec": { "ports": [{ "port": 80 }], "clusterIP": address } })
}

fn ready(range: Option<&ServiceCIDR>) -> Option<(String, String)> {
    let mut conditions = range?.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    Some((ready.status.clone(), ready.reason.clone()))
}

fn held(range: Option<&ServiceCIDR>) -> bool {
    let finalizers = range.into_iter().flat_map(|range| range.metadata.finalizers.iter().flatten());
    finalizers.into_iter().any(|one| one == "networking.k8s.io/service-cidr-finalizer")
}

/// NET-144: a further range is ready, is used, and goes when no address needs it, after ten seconds at the earliest.
#[tokio::test(start_paused = true)]
async fn c_181_a_range_is_usable_when_ready_and_kept_while_used() {
    let cluster = Cluster::start().await;
    let (ranges, more) = (cluster.watch::<ServiceCIDR>(), ObjectKey::cluster("more"));
    let is_ready = |range: Option<&ServiceCIDR>| {
        held(range) && ready(range).is_some_and(|(status, _)| status == "True")
    };
    ranges.when(&ObjectKey::cluster("kubernetes"), is_ready).await;
    let outside = service("web", json!("10.200.0.7"));
    let refused = cluster.client.create::<Service>(&super::cluster::read(outside.clone())).await;
    assert!(refused.unwrap_err().is_invalid(), "of no range");
    let range = json!({ "metadata": { "name": "more" }, "spec": { "cidrs": ["10.200.0.0/24"] } });
    cluster.create::<ServiceCIDR>(range).await;
    ranges.when(&more, is_ready).await;
    cluster.create::<Service>(outside).await;
    cluster.delete::<ServiceCIDR>(&more).await;
    let deleted = Instant::now();
    ranges
        .when(&more, |range| ready(range) == Some(("False".to_owned(), "Terminating".to_owned())))
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(held(ranges.cache.get(&more).as_deref()), "it is used");
    let refused = service("late", json!("10.200.0.8"));
    let refused = cluster.client.create::<Service>(&super::cluster::read(refused)).await;
    assert!(refused.unwrap_err().is_invalid(), "a range that goes gives no more");
    cluster.delete::<Service>(&key("default", "web")).await;
    ranges.gone(&more).await;
    assert!(deleted.elapsed() < Duration::from_secs(65), "{:?}", deleted.elapsed());

    let range = json!({ "metadata": { "name": "more" }, "spec": { "cidrs": ["10.201.0.0/24"] } });
    cluster.create::<ServiceCIDR>(range).await;
    ranges.when(&more, is_ready).await;
    cluster.delete::<ServiceCIDR>(&more).await;
    let deleted = Instant::now();
    ranges.gone(&more).await;
    assert!((9..=12).contains(&deleted.elapsed().as_secs()), "{:?}", deleted.elapsed());
    cluster.stop().await;
}

/// NET-145: addresses that are not managed stay.
#[tokio::test(start_paused = true)]
async fn c_182_deleted_claims_are_recreated_and_orphaned_ones_deleted() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<IPAddress>();
    let web: Service = cluster.create(service("web", Value::Null)).await;
    let address = web.spec.unwrap().cluster_ip.unwrap();
    let claim = ObjectKey::cluster(&address);
    let before: IPAddress = cluster.client.get(&claim).await.unwrap();
    cluster.delete::<IPAddress>(&claim).await;
    claims.when(&claim, |now| now.is_some_and(|now| now.metadata.uid != before.metadata.uid)).await;
    let after: IPAddress = cluster.client.get(&claim).await.unwrap();
    let of = |claim: IPAddress| {
        let parent = claim.spec.parent_ref;
        (parent.resource, parent.namespace, parent.name, claim.metadata.labels)
    };
    assert_eq!(of(after), of(before));
    let event = cluster.event("ClusterIPNotAllocated").await;
    let message = format!("Cluster IP [IPv4]: {address} is not allocated; repairing");
    assert_eq!(event.message, Some(message));

    let parent = |resource: &str| json!({ "group": "", "resource": resource, "namespace": "default", "name": "none" });
    let ours = json!({ "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
                       "ipaddress.kubernetes.io/ip-family": "IPv4" });
    let leaked = json!({ "metadata": { "name": "10.96.7.7", "labels": ours },
                         "spec": { "parentRef": parent("services") } });
    let own = json!({ "metadata": { "name": "255.255.255.255" },
                      "spec": { "parentRef": parent("things") } });
    cluster.create::<IPAddress>(leaked).await;
    cluster.create::<IPAddress>(own).await;
    let made = Instant::now();
    claims.gone(&ObjectKey::cluster("10.96.7.7")).await;
    assert!((59..=62).contains(&made.elapsed().as_secs()), "{:?}", made.elapsed());
    let event = cluster.event("IPAddressNotAllocated").await;
    assert!(event.message.as_deref().unwrap().contains("10.96.7.7"));
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(claims.cache.get(&ObjectKey::cluster("255.255.255.255")).is_some(), "people's own");
    // The claim is deleted with its Service and not created again.
    cluster.delete::<Service>(&key("default", "web")).await;
    claims.gone(&claim).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(claims.cache.get(&claim).is_none());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_182_a_claim_with_a_wrong_parent_is_recreated() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let web: Service = cluster.create(service("web", Value::Null)).await;
    let address = web.spec.unwrap().cluster_ip.unwrap();
    let claim = ObjectKey::cluster(&address);
    let right: IPAddress = cluster.client.get(&claim).await.unwrap();
    // The controller receives both events at once and cannot create the claim in between.
    connection.hold("ipaddresses");
    cluster.delete::<IPAddress>(&claim).await;
    let mut wrong = right.spec.clone();
    wrong.parent_ref.resource = "gateways".to_owned();
    let meta = json!({ "name": address, "labels": right.metadata.labels });
    cluster.create::<IPAddress>(json!({ "metadata": meta, "spec": wrong })).await;
    connection.release();
    // Claims younger than a minute may belong to a Service that is just being created.
    tokio::time::sleep(Duration::from_secs(62)).await;
    let anew: IPAddress = cluster.client.get(&claim).await.unwrap();
    assert_eq!(anew.spec.parent_ref.resource, "services");
    assert_ne!(anew.metadata.uid, right.metadata.uid);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_182_an_address_is_claimed_when_a_range_is_added() {
    let cluster = Cluster::start().await;
    let (claims, ranges) = (cluster.watch::<IPAddress>(), cluster.watch::<ServiceCIDR>());
    let (goes, grows) = (ObjectKey::cluster("goes"), ObjectKey::cluster("grows"));
    let range = |name: &str, cidrs: Value| json!({ "metadata": { "name": name }, "spec": { "cidrs": cidrs } });
    cluster.create::<ServiceCIDR>(range("goes", json!(["10.200.0.0/24"]))).await;
    cluster.create::<ServiceCIDR>(range("grows", json!(["fd00:77::/112"]))).await;
    let is_ready =
        |range: Option<&ServiceCIDR>| ready(range).is_some_and(|(text, _)| text == "True");
    ranges.when(&goes, is_ready).await;
    ranges.when(&grows, is_ready).await;
    cluster.create::<Service>(service("web", json!("10.200.0.7"))).await;
    let claim = ObjectKey::cluster("10.200.0.7");
    claims.when(&claim, |claim| claim.is_some()).await;

    cluster.delete::<ServiceCIDR>(&goes).await;
    let let_go = json!({ "metadata": { "finalizers": null } });
    cluster.client.patch_merge::<ServiceCIDR>(&goes, &let_go).await.unwrap();
    cluster.event("ClusterIPOutOfRange").await;
    cluster.delete::<IPAddress>(&claim).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(claims.cache.get(&claim).is_none(), "of no range");
    let grown = json!({ "spec": { "cidrs": ["fd00:77::/112", "10.200.0.0/24"] } });
    cluster.client.patch_merge::<ServiceCIDR>(&grows, &grown).await.unwrap();
    claims.when(&claim, |claim| claim.is_some()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_182_a_stale_cache_does_not_remove_the_claim_of_a_service() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let claims = cluster.watch::<IPAddress>();
    let web: Service = cluster.create(service("web", Value::Null)).await;
    let address = web.spec.unwrap().cluster_ip.unwrap();
    let claim = ObjectKey::cluster(&address);
    claims.when(&claim, |claim| claim.is_some()).await;
    // The controller's cache still has `web` although another Service has its address.
    connection.hold("services");
    cluster.delete::<Service>(&key("default", "web")).await;
    cluster.create::<Service>(service("db", json!(address))).await;
    let before: IPAddress = cluster.client.get(&claim).await.unwrap();
    assert_eq!(before.spec.parent_ref.name, "db");
    tokio::time::sleep(Duration::from_secs(120)).await;
    let after: IPAddress = cluster.client.get(&claim).await.unwrap();
    assert_eq!(after.metadata.uid, before.metadata.uid);
    connection.release();
    cluster.stop().await;
}

/// Events report problems with addresses of Services and pod address blocks.
#[tokio::test(start_paused = true)]
async fn c_218_address_and_range_problems_are_reported() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let (ranges, more) = (cluster.watch::<ServiceCIDR>(), ObjectKey::cluster("more"));
    let path = "/apis/networking.k8s.io/v1/servicecidrs/more/status";
    connection.fail(1, Method::PATCH, path, (500, "InternalError"));
    let range = json!({ "metadata": { "name": "more" }, "spec": { "cidrs": ["10.200.0.0/24"] } });
    cluster.create::<ServiceCIDR>(range).await;
    let event = cluster.event("KubernetesServiceCIDRError").await;
    let message = "The ServiceCIDR Status can not be set to Ready=True";
    assert_eq!(event.message.as_deref(), Some(message));
    let is_ready =
        |range: Option<&ServiceCIDR>| ready(range).is_some_and(|(text, _)| text == "True");
    ranges.when(&more, is_ready).await;

    let web: Service = cluster.create(service("web", json!("10.200.0.7"))).await;
    cluster.delete::<ServiceCIDR>(&more).await;
    let text = Some(("False".to_owned(), "Terminating".to_owned()));
    ranges.when(&more, |range| ready(range) == text).await;
    let let_go = json!({ "metadata": { "finalizers": null } });
    cluster.client.patch_merge::<ServiceCIDR>(&more, &let_go).await.unwrap();
    let event = cluster.event("ClusterIPOutOfRange").await;
    let message = "Cluster IP [IPv4]: 10.200.0.7 is not within any configured Service CIDR; please recreate service";
    assert_eq!(event.message.as_deref(), Some(message));
    assert_eq!(event.involved_object.name.as_deref(), Some("web"));
    let after: Service = cluster.client.get(&key("default", "web")).await.unwrap();
    assert_eq!(
        after.spec.unwrap().cluster_ip,
        web.spec.unwrap().cluster_ip,
        "NET-146: it is left alone"
    );

    let path = "/api/v1/nodes/n";
    connection.fail(1, Method::PATCH, path, (500, "InternalError"));
    cluster.create::<Node>(json!({ "metadata": { "name": "n" } })).await;
    let event = cluster.event("CIDRAssignmentFailed").await;
    assert_eq!(event.message.as_deref(), Some("Node n status is now: CIDRAssignmentFailed"));
    let component = event.source.as_ref().and_then(|source| source.component.as_deref());
    assert_eq!((event.type_.as_deref(), component), (Some("Normal"), Some("cidrAllocator")));
    let nodes = cluster.watch::<Node>();
    let has_one = |node: Option<&Node>| {
        node.is_some_and(|node| node.spec.as_ref().is_some_and(|spec| spec.pod_cidr.is_some()))
    };
    nodes.when(&ObjectKey::cluster("n"), has_one).await;
    cluster.stop().await;
}
