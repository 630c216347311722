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

fn plain(name: &str, spec: Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    for (field, value) in spec.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    service
}

fn last_number(service: &Value) -> u32 {
    let ip: std::net::Ipv4Addr = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    u32::from(ip) & 0xffff
}

/// NET-147, NET-148: automatic addresses and ports are those of the upper band; any free one may be named.
#[tokio::test]
async fn net_147_net_148_automatic_allocation_leaves_the_lower_bands_to_users() {
    let cluster = Cluster::start().await;
    for number in 0..40 {
        let service = plain(&format!("s{number}"), json!({"type": "NodePort"}));
        let made = cluster.make(SERVICES, service).await;
        assert!(last_number(&made) > 256, "{}", made["spec"]["clusterIP"]);
        let port = made["spec"]["ports"][0]["nodePort"].as_i64().unwrap();
        assert!((30086..=32767).contains(&port), "{port}");
    }
    let named = json!({"type": "NodePort", "clusterIP": "10.96.0.77", "ports": [{"port": 80, "nodePort": 30077}]});
    let made = cluster.make(SERVICES, plain("named", named)).await;
    assert_eq!(made["spec"]["clusterIP"], "10.96.0.77");
    assert_eq!(made["spec"]["ports"][0]["nodePort"], 30077);
}

/// NET-147, NET-149: the lower band is used when the upper one is full; a full range is an internal error; a dry run
/// allocates nothing.
#[tokio::test]
async fn net_149_a_full_range_is_an_internal_error_and_a_dry_run_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let service_ranges = server::ServiceRanges::from_option("10.7.7.0/27").unwrap();
    let config = server::Config { service_ranges, ..crate::cluster::config(dir.path()) };
    let cluster = Cluster::with(dir, config).await;
    // 30 usable ones, of which .17 to .30 are the upper band; .1 and .10 have owners.
    let mut order = Vec::new();
    for number in 0..28 {
        let made = cluster.make(SERVICES, plain(&format!("s{number}"), json!({}))).await;
        order.push(last_number(&made) & 0xff);
    }
    let mut upper = order[..14].to_vec();
    upper.sort_unstable();
    assert_eq!(upper, (17..=30).collect::<Vec<_>>());
    assert_eq!(order[14..], [2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16]);
    let full = cluster.post(SERVICES, plain("more", json!({}))).await;
    assert!(full.refused(500, "InternalError").contains("range is full"));
    cluster.delete(&format!("{SERVICES}/s3")).await.ok();
    let dry = cluster.post(&format!("{SERVICES}?dryRun=All"), plain("dry", json!({}))).await.ok();
    assert_eq!(dry["spec"]["clusterIP"], "10.7.7.0", "a placeholder");
    let made = cluster.make(SERVICES, plain("more", json!({}))).await;
    assert_eq!(last_number(&made) & 0xff, order[3], "what a deleted one had");
    // Everything is given back when a create fails.
    let taken = json!({"type": "NodePort", "clusterIP": "10.7.7.2"});
    cluster.post(SERVICES, plain("late", taken)).await.refused(422, "Invalid");
    let outside = cluster.post(SERVICES, plain("late", json!({"clusterIP": "10.7.8.1"}))).await;
    assert!(outside.refused(422, "Invalid").contains("The range of valid IPs is 10.7.7.0/27"));
}

/// NET-29: node ports are carried over by the name of the port; ports with one number share a node port in a new Service
/// only.
#[tokio::test]
async fn net_29_node_ports_follow_the_names_of_ports() {
    let cluster = Cluster::start().await;
    let port = |name: &str, number: u16, protocol: &str| json!({"name": name, "port": number, "protocol": protocol});
    let both = json!({"type": "NodePort", "ports": [port("tcp", 53, "TCP"), port("udp", 53, "UDP"), port("web", 80, "TCP")]});
    let made = cluster.make(SERVICES, plain("dns", both)).await;
    let numbers = |service: &Value| -> Vec<i64> {
        let ports = service["spec"]["ports"].as_array().unwrap().iter();
        ports.map(|port| port["nodePort"].as_i64().unwrap()).collect()
    };
    let [tcp, udp, web] = numbers(&made)[..] else { panic!("three ports: {made}") };
    assert_eq!(tcp, udp, "one number, two protocols");
    assert_ne!(tcp, web);
    let place = format!("{SERVICES}/dns");
    // Reordered: each keeps its node port.
    let mut put = made.clone();
    put["metadata"] = json!({"name": "dns"});
    put["spec"]["ports"] = json!([port("web", 80, "TCP"), port("tcp", 53, "TCP")]);
    assert_eq!(numbers(&cluster.put(&place, &put).await.ok()), [web, tcp]);
    // Added later: its own.
    put["spec"]["ports"] =
        json!([port("web", 80, "TCP"), port("tcp", 53, "TCP"), port("udp", 53, "UDP")]);
    let added = numbers(&cluster.put(&place, &put).await.ok());
    assert_eq!(added[..2], [web, tcp]);
    assert!(added[2] != tcp && added[2] != web, "{added:?}");
    // Renamed: a new one, and the old one is free.
    put["spec"]["ports"] = json!([port("http", 80, "TCP"), port("tcp", 53, "TCP")]);
    let renamed = numbers(&cluster.put(&place, &put).await.ok());
    assert!(renamed[0] != web && renamed[1] == tcp, "{renamed:?}");
    let free = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": web}]});
    cluster.make(SERVICES, plain("other", free)).await;
}

/// NET-27: what a change of the type releases, keeps and allocates.
#[tokio::test]
async fn net_27_a_change_of_the_type_releases_keeps_and_allocates() {
    let cluster = Cluster::start().await;
    let place = format!("{SERVICES}/s");
    let local =
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "selector": {"a": "b"}});
    let made = cluster.make(SERVICES, plain("s", local)).await;
    let ip = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let node_port = made["spec"]["ports"][0]["nodePort"].clone();
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    cluster.patch(&format!("{place}/status"), status).await.ok();
    let to = async |kind: &str, more: Value| {
        let mut change = json!({"spec": {"type": kind}});
        for (field, value) in more.as_object().unwrap() {
            change["spec"][field] = value.clone();
        }
        cluster.patch(&place, change).await.ok()
    };
    let claim = format!("/apis/networking.k8s.io/v1/ipaddresses/{ip}");
    let node = to("NodePort", json!({})).await;
    assert_eq!(
        (&node["spec"]["clusterIP"], &node["spec"]["ports"][0]["nodePort"]),
        (&json!(ip), &node_port)
    );
    assert_eq!(
        node["status"]["loadBalancer"],
        json!({}),
        "the status of the load balancer is cleared"
    );
    for gone in ["healthCheckNodePort", "allocateLoadBalancerNodePorts"] {
        assert_eq!(node["spec"].get(gone), None, "{gone}");
    }
    let inner = to("ClusterIP", json!({})).await;
    assert_eq!(inner["spec"]["clusterIP"], json!(ip));
    assert_eq!(inner["spec"]["ports"][0].get("nodePort"), None);
    assert_eq!(inner["spec"].get("externalTrafficPolicy"), None);
    let headless =
        cluster.patch(&place, json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}})).await;
    assert!(headless.refused(422, "Invalid").contains("may not change once set"));
    let name = to("ExternalName", json!({"externalName": "example.com"})).await;
    for gone in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert_eq!(name["spec"].get(gone), None, "{gone}");
    }
    assert_eq!(name["spec"]["selector"], json!({"a": "b"}));
    cluster.get(&claim).await.refused(404, "NotFound");
    let back = to("NodePort", json!({})).await;
    assert!(back["spec"]["clusterIP"].is_string() && back["spec"]["ports"][0]["nodePort"].is_i64());
    assert_eq!(back["spec"]["internalTrafficPolicy"], "Cluster");
}

/// NET-30: a delete releases address and ports, and deletes the Endpoints; slices of others stay.
#[tokio::test]
async fn net_30_the_endpoints_of_a_deleted_service_are_gone_with_it() {
    let cluster = Cluster::start().await;
    let made = cluster.make(SERVICES, plain("s", json!({"type": "NodePort"}))).await;
    let endpoints = "/api/v1/namespaces/default/endpoints";
    for name in ["s", "t"] {
        cluster.make(endpoints, json!({"metadata": {"name": name}})).await;
    }
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = json!({"metadata": {"name": "mine", "labels": {"kubernetes.io/service-name": "s"}},
                       "addressType": "IPv4", "endpoints": [], "ports": []});
    cluster.make(slices, slice).await;
    cluster.delete(&format!("{SERVICES}/s")).await.ok();
    cluster.get(&format!("{endpoints}/s")).await.refused(404, "NotFound");
    cluster.get(&format!("{endpoints}/t")).await.ok();
    cluster.get(&format!("{slices}/mine")).await.ok();
    let again = json!({"type": "NodePort", "clusterIP": made["spec"]["clusterIP"],
                       "ports": [{"port": 80, "nodePort": made["spec"]["ports"][0]["nodePort"]}]});
    cluster.make(SERVICES, plain("again", again)).await;
}

/// NET-150: the metrics of the allocators have upstream's names.
#[tokio::test]
async fn net_150_allocations_are_counted() {
    let cluster = Cluster::start().await;
    let named = json!({"type": "NodePort", "clusterIP": "10.96.0.77", "ports": [{"port": 80, "nodePort": 30001}]});
    cluster.make(SERVICES, plain("a", named.clone())).await;
    cluster.make(SERVICES, plain("b", json!({"type": "NodePort"}))).await;
    cluster.post(SERVICES, plain("c", named)).await.refused(422, "Invalid");
    let page = cluster.get("/metrics").await;
    let value = |line: &str| {
        let found = page.text().lines().find_map(|shown| shown.strip_prefix(line));
        found.unwrap_or_else(|| panic!("{line} is not in {}", page.text())).trim().to_owned()
    };
    let ips = "kube_apiserver_clusterip_allocator_";
    let ports = "kube_apiserver_nodeport_allocator_";
    let range = "cidr=\"10.96.0.0/16\"";
    // Those of the Services kubernetes and kube-dns count too.
    assert_eq!(value(&format!("{ips}allocated_ips{{{range}}}")), "4");
    assert_eq!(value(&format!("{ips}available_ips{{{range}}}")), "65530");
    assert_eq!(value(&format!("{ips}allocation_total{{{range},scope=\"static\"}}")), "1");
    assert_eq!(value(&format!("{ips}allocation_total{{{range},scope=\"dynamic\"}}")), "1");
    assert_eq!(value(&format!("{ips}allocation_errors_total{{{range},scope=\"static\"}}")), "1");
    assert_eq!(value(&format!("{ips}allocation_duration_seconds_count{{{range}}}")), "3");
    assert_eq!(value(&format!("{ports}allocated_ports")), "2");
    assert_eq!(value(&format!("{ports}available_ports")), "2766");
    assert_eq!(value(&format!("{ports}allocation_total{{scope=\"static\"}}")), "1");
    assert_eq!(value(&format!("{ports}allocation_total{{scope=\"dynamic\"}}")), "1");
}

/// NET-23: deprecated and ignored fields get a warning, at every write of the Service but not of its status.
#[tokio::test]
async fn net_23_deprecated_and_ignored_fields_get_a_warning() {
    let cluster = Cluster::start().await;
    let text = |warning: &str| format!("299 - \"{}\"", warning.replace('"', "\\\""));
    let external =
        "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
    let ignored = |field: &str| format!("spec.{field} is ignored for headless services");
    let rows = [
        (json!({}), vec![]),
        (json!({"externalIPs": ["192.0.2.7"]}), vec![external.to_owned()]),
        (
            json!({"clusterIP": "None", "externalIPs": ["192.0.2.7"], "loadBalancerIP": "192.0.2.8",
                   "sessionAffinity": "ClientIP"}),
            vec![ignored("loadBalancerIP"), ignored("externalIPs"), ignored("SessionAffinity")],
        ),
        (
            json!({"externalName": "example.com"}),
            vec!["spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned()],
        ),
        (
            json!({"trafficDistribution": "PreferClose"}),
            vec!["spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned()],
        ),
        (
            json!({"type": "ExternalName", "externalName": "example.com", "externalIPs": ["FD00::7"]}),
            vec![
                "spec.externalIPs[0]: IPv6 address \"FD00::7\" should be in RFC 5952 canonical format (\"fd00::7\")".to_owned(),
                "spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned(),
            ],
        ),
        (
            json!({"type": "LoadBalancer", "loadBalancerIP": "192.0.2.08", "loadBalancerSourceRanges": ["FD00::/8"]}),
            vec![
                "spec.loadBalancerIP: non-standard IP address \"192.0.2.08\" is invalid: use \"192.0.2.8\"".to_owned(),
                "spec.loadBalancerSourceRanges[0]: IPv6 CIDR value \"FD00::/8\" should be in RFC 5952 canonical format (\"fd00::/8\")".to_owned(),
            ],
        ),
    ];
    for (number, (spec, warnings)) in rows.into_iter().enumerate() {
        let expected: Vec<String> = warnings.iter().map(|warning| text(warning)).collect();
        let made = cluster.post(SERVICES, plain(&format!("s{number}"), spec.clone())).await;
        assert_eq!(
            (made.code, made.warnings()),
            (201, expected.iter().map(String::as_str).collect()),
            "{spec}"
        );
        let place = format!("{SERVICES}/s{number}");
        let changed = cluster.patch(&place, json!({"metadata": {"labels": {"a": "b"}}})).await;
        assert_eq!(changed.warnings(), expected, "{spec}");
        let status = cluster
            .patch(&format!("{place}/status"), json!({"metadata": {"labels": {"a": "c"}}}))
            .await;
        assert!(status.warnings().is_empty(), "{spec}");
    }
}
