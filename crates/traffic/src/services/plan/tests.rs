//! What a Service means, as tables: a Service and its slices, and what happens at its addresses.

use super::*;
use serde_json::{Value, json};

const IP: &str = "10.96.0.9";
const NODE: &str = "192.168.0.1";

fn node() -> NodeView {
    NodeView { name: "n1".into(), zone: Some("z1".into()), addresses: vec![NODE.parse().unwrap()] }
}

/// A Service with one port, and these fields in its spec.
fn service(extra: Value) -> Value {
    let mut spec = json!({ "type": "ClusterIP", "clusterIP": IP, "clusterIPs": [IP],
        "ports": [{ "port": 80, "protocol": "TCP" }], "internalTrafficPolicy": "Cluster" });
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({ "metadata": { "name": "s", "namespace": "d" }, "spec": spec })
}

/// An endpoint: its last number, conditions as letters (r ready, s serving, t terminating), and its node.
fn endpoint(number: u8, conditions: &str, node: &str) -> Value {
    let has = |letter| conditions.contains(letter);
    json!({ "addresses": [format!("10.0.0.{number}")], "nodeName": node,
        "conditions": { "ready": has('r'), "serving": has('s'), "terminating": has('t') } })
}

fn slice(endpoints: &[Value]) -> Value {
    json!({ "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }] })
}

fn planned(service: &Value, slices: &[Value]) -> ServicePlan {
    let service = typed::from_value(service.clone()).unwrap();
    let slices: Vec<Arc<EndpointSlice>> =
        slices.iter().map(|slice| Arc::new(typed::from_value(slice.clone()).unwrap())).collect();
    plan(&service, &slices, &node())
}

/// Last numbers of the endpoints.
fn numbers(endpoints: &[SocketAddr]) -> Vec<u8> {
    let octets = endpoints.iter().map(|endpoint| match endpoint.ip() {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(_) => 0,
    });
    octets.collect()
}

fn at<'a>(plan: &'a ServicePlan, address: &str, port: u16) -> &'a ServiceEntry {
    let address = address.parse().unwrap();
    &plan.rules.entries[&Frontend { address, protocol: Protocol::Tcp, port }]
}

/// T-NET-14, T-NET-16, T-NET-17: ready endpoints; if there is none anywhere, those that serve while they terminate; else
/// the connection is rejected.
#[test]
fn t_net_14_ready_endpoints_are_used_and_otherwise_terminating_ones_that_serve() {
    for (endpoints, used, unserved) in [
        (&["rs", "st"][..], &[1][..], Unserved::Served),
        (&["s", "st"], &[2], Unserved::Served),
        (&["", "t"], &[], Unserved::Reject),
        (&["s"], &[], Unserved::Reject),
        (&[], &[], Unserved::Reject),
        (&["rs", "rs", ""], &[1, 2], Unserved::Served),
        // publishNotReadyAddresses: ready although it terminates.
        (&["rt"], &[1], Unserved::Served),
    ] {
        let all: Vec<Value> =
            endpoints.iter().zip(1..).map(|(state, n)| endpoint(n, state, "n1")).collect();
        let plan = planned(&service(json!({})), &[slice(&all)]);
        let entry = at(&plan, IP, 80);
        assert_eq!(numbers(&entry.endpoints), used, "{endpoints:?}");
        assert_eq!(entry.unserved, unserved, "{endpoints:?}");
    }
}

/// T-NET-15, T-NET-17: a Local policy decides among the endpoints of this node alone.
#[test]
fn t_net_15_local_policies_use_endpoints_of_this_node() {
    let local = service(json!({ "internalTrafficPolicy": "Local" }));
    for (endpoints, used, unserved) in [
        ([("rs", "n1"), ("rs", "n2")], &[1][..], Unserved::Served),
        ([("st", "n1"), ("rs", "n2")], &[1], Unserved::Served),
        ([("", "n1"), ("rs", "n2")], &[], Unserved::Drop),
        ([("", "n1"), ("", "n2")], &[], Unserved::Reject),
    ] {
        let all: Vec<Value> =
            endpoints.iter().zip(1..).map(|((state, on), n)| endpoint(n, state, on)).collect();
        let plan = planned(&local, &[slice(&all)]);
        let entry = at(&plan, IP, 80);
        assert_eq!(numbers(&entry.endpoints), used, "{endpoints:?}");
        assert_eq!(entry.unserved, unserved, "{endpoints:?}");
    }
}

/// NET-31, NET-35, T-NET-18: external addresses. With the policy Local, clients outside reach this node's endpoints only,
/// and keep their source.
#[test]
fn net_31_external_addresses_follow_their_policy() {
    let spec = |policy: &str| {
        let mut service = service(json!({ "type": "LoadBalancer", "externalTrafficPolicy": policy,
            "externalIPs": ["198.51.100.7"],
            "ports": [{ "port": 80, "protocol": "TCP", "nodePort": 30080 }] }));
        service["status"] = json!({ "loadBalancer": { "ingress": [
            { "ip": "198.51.100.8", "ipMode": "VIP" }, { "ip": "198.51.100.9", "ipMode": "Proxy" } ] } });
        service
    };
    let slices = [slice(&[endpoint(1, "rs", "n1"), endpoint(2, "rs", "n2")])];
    for (policy, masquerade, outside) in [("Cluster", true, None), ("Local", false, Some(vec![1]))]
    {
        let plan = planned(&spec(policy), &slices);
        for (address, port) in [("198.51.100.7", 80), ("198.51.100.8", 80), (NODE, 30080)] {
            let entry = at(&plan, address, port);
            assert_eq!(numbers(&entry.endpoints), [1, 2], "{policy} {address}");
            assert_eq!(entry.outside.as_deref().map(numbers), outside, "{policy} {address}");
            assert_eq!(entry.masquerade, masquerade, "{policy} {address}");
        }
        assert!(!at(&plan, IP, 80).masquerade, "the ClusterIP is rewritten by source only");
        assert_eq!(plan.rules.entries.len(), 4, "ipMode Proxy is not captured");
    }
    let elsewhere = [slice(&[endpoint(2, "rs", "n2")])];
    let plan = planned(&spec("Local"), &elsewhere);
    assert_eq!(at(&plan, NODE, 30080).unserved, Unserved::Drop, "none on this node");
    let counts = PolicyCounts { internal: 0, external: 1 };
    assert_eq!(plan.without_local, WithoutLocal { ipv4: counts, ..WithoutLocal::default() });
    let nowhere = planned(&spec("Local"), &[]);
    assert_eq!(at(&nowhere, NODE, 30080).unserved, Unserved::Reject);
}

/// T-NET-13, T-NET-21, NET-21, NET-24, NET-51: how slices are read.
#[test]
fn net_24_slices_are_joined_by_port_name_and_protocol() {
    let named = service(json!({ "ports": [{ "name": "web", "port": 80, "protocol": "TCP" }] }));
    let one = |ports: Value, extra: Value| {
        let mut slice = json!({ "addressType": "IPv4", "ports": ports,
            "endpoints": [{ "addresses": ["10.0.0.1", "10.0.0.99"] }] });
        for (key, value) in extra.as_object().unwrap() {
            slice[key] = value.clone();
        }
        slice
    };
    let port = |name: Value, protocol: &str, port: Value| json!([{ "name": name, "protocol": protocol, "port": port }]);
    let headless = json!({ "metadata": { "labels": { "service.kubernetes.io/headless": "" } } });
    for (slice, used, why) in [
        (one(port(json!("web"), "TCP", json!(8080)), json!({})), 1, "no conditions means ready"),
        (one(port(json!("other"), "TCP", json!(8080)), json!({})), 0, "another name"),
        (one(port(json!("web"), "UDP", json!(8080)), json!({})), 0, "another protocol"),
        (one(port(json!("web"), "TCP", Value::Null), json!({})), 0, "no number"),
        (one(port(Value::Null, "TCP", json!(8080)), json!({})), 0, "no name"),
        (one(port(json!("web"), "TCP", json!(8080)), headless), 0, "for clients that resolve it"),
        (one(port(json!("web"), "TCP", json!(8080)), json!({ "addressType": "FQDN" })), 0, "FQDN"),
    ] {
        let plan = planned(&named, &[slice]);
        assert_eq!(at(&plan, IP, 80).endpoints.len(), used, "{why}");
    }
    let (old, new) = (endpoint(1, "st", "n2"), endpoint(1, "rs", "n1"));
    let (old, new) = (slice(&[old]), slice(&[new]));
    for slices in [[old.clone(), new.clone()], [new, old]] {
        let plan = planned(&service(json!({})), &slices);
        assert_eq!(numbers(&at(&plan, IP, 80).endpoints), [1]);
        assert!(!plan.rules.local_endpoints.is_empty(), "the new pod is on this node");
    }
}

/// NET-25: hints limit the endpoints only if every ready one has some and one of them names this node or its zone.
#[test]
fn net_25_hints_prefer_this_node_then_its_zone() {
    let hinted = |number: u8, state: &str, nodes: &[&str], zones: &[&str]| {
        let names =
            |all: &[&str]| all.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
        let mut endpoint = endpoint(number, state, "n2");
        endpoint["hints"] = json!({ "forNodes": names(nodes), "forZones": names(zones) });
        endpoint
    };
    for (endpoints, used) in [
        (vec![hinted(1, "rs", &["n1"], &["z1"]), hinted(2, "rs", &["n2"], &["z1"])], &[1][..]),
        (vec![hinted(1, "rs", &["n3"], &["z1"]), hinted(2, "rs", &["n2"], &["z2"])], &[1]),
        (vec![hinted(1, "rs", &[], &["z1"]), hinted(2, "rs", &[], &["z2"])], &[1]),
        (vec![hinted(1, "rs", &[], &["z3"]), hinted(2, "rs", &[], &["z2"])], &[1, 2]),
        (vec![hinted(1, "rs", &[], &["z1"]), endpoint(2, "rs", "n2")], &[1, 2]),
        (vec![hinted(1, "rs", &[], &["z1"]), endpoint(2, "", "n2")], &[1]),
        (vec![hinted(1, "st", &["n1"], &["z1"]), hinted(2, "st", &["n2"], &["z2"])], &[1, 2]),
    ] {
        let plan = planned(&service(json!({})), &[slice(&endpoints)]);
        assert_eq!(numbers(&at(&plan, IP, 80).endpoints), used, "{endpoints:?}");
    }
}

/// NET-19, NET-24: Services that have nothing to serve, and those of other proxies.
#[test]
fn net_19_headless_and_external_names_are_not_proxied() {
    let slices = [slice(&[endpoint(1, "rs", "n1")])];
    let mut other = service(json!({}));
    other["metadata"]["labels"] = json!({ "service.kubernetes.io/service-proxy-name": "mine" });
    for skipped in [
        service(json!({ "clusterIP": "None", "clusterIPs": ["None"] })),
        service(json!({ "type": "ExternalName", "externalName": "example.org" })),
        service(json!({ "clusterIP": "", "clusterIPs": [] })),
        other,
        json!({ "metadata": { "name": "s", "namespace": "d" } }),
    ] {
        assert_eq!(planned(&skipped, &slices), ServicePlan::default(), "{skipped}");
    }
}

/// NET-24: which sources may reach a load balancer.
#[test]
fn net_24_source_ranges_are_those_of_the_family() {
    let ranges = |ranges: &[&str]| {
        let mut service =
            service(json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Cluster",
            "loadBalancerSourceRanges": ranges }));
        service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "198.51.100.8" }] } });
        let plan = planned(&service, &[slice(&[endpoint(1, "rs", "n1")])]);
        let sources = at(&plan, "198.51.100.8", 80).sources.clone();
        sources.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let some =
        |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    assert_eq!(ranges(&[]), None);
    assert_eq!(ranges(&["203.0.113.0/24"]), some(&["203.0.113.0/24"]));
    assert_eq!(ranges(&["fd00::/8"]), None, "no range of this family: open");
    assert_eq!(ranges(&["203.0.113.0/24", "0.0.0.0/0"]), None, "everything is allowed");
    let with_node = ranges(&["192.168.0.0/24"]);
    assert_eq!(with_node, some(&["192.168.0.0/24", "198.51.100.8/32"]), "contains the node");
}

/// NET-42, NET-60, T-NET-19, T-NET-23: what else follows from a Service.
#[test]
fn net_42_health_checks_count_ready_endpoints_of_this_node_and_udp_ports_those_that_serve() {
    let service = service(json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31000, "ports": [{ "port": 53, "protocol": "UDP" }] }));
    let slices = json!({ "addressType": "IPv4", "ports": [{ "name": "", "port": 53, "protocol": "UDP" }],
        "endpoints": [endpoint(1, "rs", "n1"), endpoint(2, "st", "n1"), endpoint(3, "rs", "n2"),
                      endpoint(4, "t", "n1")] });
    let plan = planned(&service, &[slices]);
    assert_eq!(plan.health_check, Some(HealthCheck { port: 31000, local_endpoints: 1 }));
    let serving: Vec<SocketAddr> = plan.udp[0].serving.iter().copied().collect();
    assert_eq!(numbers(&serving), [1, 2, 3]);
    assert_eq!(plan.udp[0].frontends.len(), 1);
}

/// NET-38: the default is three hours.
#[test]
fn net_38_session_affinity_has_a_timeout() {
    let of = |extra: Value| {
        let plan = planned(&service(extra), &[slice(&[endpoint(1, "rs", "n1")])]);
        at(&plan, IP, 80).affinity_seconds
    };
    assert_eq!(of(json!({ "sessionAffinity": "None" })), None);
    assert_eq!(of(json!({ "sessionAffinity": "ClientIP" })), Some(10_800));
    let config = json!({ "clientIP": { "timeoutSeconds": 125 } });
    let given = of(json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": config }));
    assert_eq!(given, Some(125));
}

/// Bad input: nothing panics, and what can be served is served.
#[test]
fn nonsense_in_slices_is_ignored() {
    let slices = [
        json!({ "addressType": "IPv4", "ports": [{ "name": "", "port": 70000 }, { "name": "", "port": -1 },
        { "name": "", "port": 8080 }], "endpoints": [{ "addresses": [] }, { "addresses": ["x"] },
        { "addresses": ["10.0.0.5"] }] }),
    ];
    let plan = planned(&service(json!({ "ports": [{ "port": 80 }, { "port": 99999 }] })), &slices);
    assert_eq!(numbers(&at(&plan, IP, 80).endpoints), [5]);
    assert_eq!(plan.rules.entries.len(), 1);
}
