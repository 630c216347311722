//! The Service kube-dns and the EndpointSlice of this node.

use super::bed::{Bed, data};
use client::{DeleteOptions, ObjectKey};
use hickory_proto::rr::RecordType::A;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use testbed::Observed;
use traffic::Watched;
use traffic::dns::{RegistrationConfig, register};

/// NET-105: tools find the Service, and pods reach the server of their own node.
#[tokio::test]
async fn net_105_node_adds_and_repairs_its_slice_of_kube_dns() {
    let bed = Bed::start().await;
    let config =
        RegistrationConfig { node: "n1".into(), server: "192.168.7.1:1053".parse().unwrap() };
    let node_client = bed.server.node("n1");
    let watched = Watched::start(&node_client);
    let registration = register(&node_client, &watched, config.clone());
    let (services, slices) =
        (Observed::<Service>::start(&bed.client), Observed::start(&bed.client));
    let (service_key, slice_key) =
        (ObjectKey::new("kube-system", "kube-dns"), ObjectKey::new("kube-system", "kube-dns-n1"));

    let service = services.when_found(&service_key, |_| true).await;
    let spec = service.spec.as_ref().unwrap();
    assert_eq!(spec.cluster_ip.as_deref(), Some("10.96.0.10"));
    assert_eq!(spec.traffic_distribution.as_deref(), Some("PreferSameNode"));
    assert_eq!(spec.selector, None);
    assert_eq!(service.metadata.labels.as_ref().unwrap()["k8s-app"], "kube-dns");
    let name = "kube-dns.kube-system.svc.cluster.local";
    bed.until(name, A, |answer| data(answer) == ["10.96.0.10"]).await;
    assert!(slices.cache.get(&slice_key).is_none(), "there is no Node object yet");

    let labels = json!({ "topology.kubernetes.io/zone": "z1" });
    let node =
        typed::from_value(json!({ "metadata": { "name": "n1", "labels": labels } })).unwrap();
    let node: Node = bed.client.create(&node).await.unwrap();
    let slice = slices.when_found(&slice_key, |_: &EndpointSlice| true).await;
    let owner = &slice.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(Some(&owner.uid), node.metadata.uid.as_ref(), "deleted with the node");
    let endpoint = &slice.endpoints.as_ref().unwrap()[0];
    assert_eq!(endpoint.addresses, ["192.168.7.1"]);
    assert_eq!(endpoint.zone.as_deref(), Some("z1"));

    // Repaired after changes and deletions.
    let patch = json!({ "endpoints": [{ "addresses": ["6.6.6.6"] }] });
    bed.client.patch_merge::<EndpointSlice>(&slice_key, &patch).await.unwrap();
    let is_repaired = |repaired: &EndpointSlice| {
        repaired.endpoints == slice.endpoints
            && repaired.metadata.resource_version != slice.metadata.resource_version
    };
    slices.when_found(&slice_key, is_repaired).await;
    bed.client.delete::<EndpointSlice>(&slice_key, &DeleteOptions::default()).await.unwrap();
    let is_new = |new: &EndpointSlice| new.metadata.uid != slice.metadata.uid;
    slices.when_found(&slice_key, is_new).await;
    registration.stop().await;

    // A second start writes nothing.
    let slice = slices.cache.get(&slice_key).unwrap();
    let again = register(&node_client, &watched, config);
    let marker = json!({ "metadata": { "namespace": "kube-system", "name": "marker" },
                         "spec": { "ports": [{ "port": 1 }] } });
    let marker: Service = typed::from_value(marker).unwrap();
    bed.client.create(&marker).await.unwrap();
    services.when_found(&ObjectKey::new("kube-system", "marker"), |_| true).await;
    again.stop().await;
    let current = bed.client.get::<EndpointSlice>(&slice_key).await.unwrap();
    assert_eq!(current.metadata.resource_version, slice.metadata.resource_version);
}
