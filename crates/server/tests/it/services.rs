//! Allocation and release of addresses and ports of Services.

use crate::cluster::Cluster;
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn balanced(name: &str, more: Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]}});
    for (field, value) in more.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    service
}

/// A-151, NET-149: healthCheckNodePort with externalTrafficPolicy Local.
#[tokio::test]
async fn a_151_a_load_balancer_with_local_endpoints_has_a_port_for_health_checks() {
    let cluster = Cluster::start().await;
    let made = cluster.make(SERVICES, balanced("a", json!({}))).await;
    let port = made["spec"]["healthCheckNodePort"].as_i64().unwrap();
    assert!((30000..=32767).contains(&port), "{port}");
    assert_ne!(made["spec"]["ports"][0]["nodePort"], port, "one pool for both");
    let place = format!("{SERVICES}/a");
    // No other Service can get it, for any purpose.
    let taken = cluster.post(SERVICES, balanced("b", json!({"healthCheckNodePort": port}))).await;
    let why = format!(
        "Internal error occurred: failed to allocate requested HealthCheck NodePort {port}: provided port is already allocated"
    );
    assert_eq!(taken.refused(500, "InternalError"), why);
    let node_port = json!({"ports": [{"port": 80, "nodePort": port}]});
    cluster.post(SERVICES, balanced("b", node_port.clone())).await.refused(422, "Invalid");
    let low = cluster.post(SERVICES, balanced("b", json!({"healthCheckNodePort": 80}))).await;
    assert!(low.refused(500, "InternalError").contains("is not in the valid range"));
    // An update without the field keeps it, and it cannot be changed.
    let mut put = made.clone();
    put["spec"].as_object_mut().unwrap().remove("healthCheckNodePort");
    put["metadata"]["labels"] = json!({"a": "b"});
    let kept = cluster.put(&place, &put).await.ok();
    assert_eq!(kept["spec"]["healthCheckNodePort"], port);
    let other = cluster.patch(&place, json!({"spec": {"healthCheckNodePort": 32000}})).await;
    assert!(other.refused(422, "Invalid").contains("spec.healthCheckNodePort: Forbidden"));
    // It is released when the policy changes.
    let open = json!({"spec": {"externalTrafficPolicy": "Cluster"}});
    let without = cluster.patch(&place, open).await.ok();
    assert_eq!(without["spec"].get("healthCheckNodePort"), None);
    let second = cluster.post(SERVICES, balanced("b", json!({"healthCheckNodePort": port}))).await;
    assert_eq!(second.ok()["spec"]["healthCheckNodePort"], port);
    // When the type changes.
    cluster.patch(&format!("{SERVICES}/b"), json!({"spec": {"type": "ClusterIP"}})).await.ok();
    let third = cluster.post(SERVICES, balanced("c", json!({"healthCheckNodePort": port}))).await;
    assert_eq!(third.ok()["spec"]["healthCheckNodePort"], port);
    // And when the Service is deleted.
    cluster.delete(&format!("{SERVICES}/c")).await.ok();
    cluster.post(SERVICES, balanced("d", node_port)).await.ok();
    // A policy that is set later allocates one too.
    let again = cluster.patch(&place, json!({"spec": {"externalTrafficPolicy": "Local"}})).await;
    assert!(again.ok()["spec"]["healthCheckNodePort"].as_i64().is_some_and(|new| new != port));
}

/// without automatic node ports, a load balancer still gets the ports that it names.
#[tokio::test]
async fn a_151_a_load_balancer_without_node_ports_claims_those_it_names() {
    let cluster = Cluster::start().await;
    let named = json!({"allocateLoadBalancerNodePorts": false, "externalTrafficPolicy": "Cluster",
        "ports": [{"name": "a", "port": 80, "nodePort": 31234}, {"name": "b", "port": 81}]});
    let made = cluster.make(SERVICES, balanced("a", named.clone())).await;
    assert_eq!(made["spec"]["ports"][0]["nodePort"], 31234);
    assert_eq!(made["spec"]["ports"][1].get("nodePort"), None);
    let reply = cluster.post(SERVICES, balanced("b", named)).await;
    assert!(reply.refused(422, "Invalid").contains("provided port is already allocated"));
}

#[tokio::test]
async fn a_150_only_fields_that_the_client_wrote_are_refused() {
    let cluster = Cluster::start().await;
    let service = |spec: Value| {
        let mut service = json!({"metadata": {"name": "a"}, "spec": spec});
        service["spec"]["ports"] = json!([{"port": 80}]);
        service
    };
    for (spec, reply) in [
        (
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4"]}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({"ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
    ] {
        let refused = cluster.post(SERVICES, service(spec)).await;
        let whole = format!("Service \"a\" is invalid: {reply}");
        assert_eq!(refused.refused(422, "Invalid"), whole);
    }
    let made = cluster.make(SERVICES, service(json!({"ipFamilyPolicy": "PreferDualStack"}))).await;
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4"]));
    let place = format!("{SERVICES}/a");
    let both = json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}});
    cluster.patch(&place, both).await.refused(422, "Invalid");
}
