//! Services with addresses of both IP families, from the API to packets.

use super::*;
use testbed::server::Options;

/// NET-26, NET-35, NET-64: a Service is served at its addresses of both families and at its node port of both, by slices
/// of both types. The rules of a family go and come with the Service's policy.
#[test]
fn net_26_the_addresses_of_both_families_follow_the_policy_of_a_service() {
    isolated(|directory| async move {
        let options = Options::with_service_ranges("10.96.0.0/16,fd77:96::/112");
        let server = TestServer::with_service_account_and(options).await;
        let mut pods = config(&directory);
        pods.cidrs.push(cidr("fd77:3::/64"));
        let cluster = Cluster::with(server, pods).await;
        let (client, a) = (cluster.pod("client").await, cluster.pod("a").await);
        let spec = json!({ "type": "NodePort", "ipFamilyPolicy": "RequireDualStack",
            "clusterIPs": ["10.96.0.77", "fd77:96::77"],
            "ports": [{ "name": "tcp", "port": 80, "nodePort": 30080 }] });
        cluster.service(spec).await;
        for (name, family, address) in
            [("s-4", "IPv4", a.addresses[0]), ("s-6", "IPv6", a.addresses[1])]
        {
            let slice = json!({ "metadata": { "name": name, "namespace": "default",
                    "labels": { "kubernetes.io/service-name": "s" } },
                "addressType": family, "ports": [{ "name": "tcp", "port": 8080 }],
                "endpoints": [{ "addresses": [address.to_string()], "nodeName": NODE }] });
            let slice: EndpointSlice = typed::from_value(slice).unwrap();
            cluster.server.admin().create(&slice).await.unwrap();
        }
        let call = |to: &str| {
            let (netns, to) = (client.netns.clone(), to.to_owned());
            move || answer(&netns, &to)
        };
        let from_a = || Some("a".to_owned());
        let (four, six) = ("10.96.0.77:80", "[fd77:96::77]:80");
        until(from_a(), call(four)).await;
        until(from_a(), call(six)).await;
        until(from_a(), call("192.0.2.1:30080")).await;
        until(from_a(), call("[2001:db8::1]:30080")).await;
        let counted = "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"}";
        assert!(spawn_blocking(move || metric(counted)).await.unwrap() >= Some(1.0));

        let (key, admin) = (ObjectKey::new("default", "s"), cluster.server.admin());
        let single = json!({ "spec": { "ipFamilyPolicy": "SingleStack" } });
        admin.patch_merge::<Service>(&key, &single).await.unwrap();
        until(None, call(six)).await;
        until(None, call("[2001:db8::1]:30080")).await;
        assert_eq!(spawn_blocking(call(four)).await.unwrap(), from_a());
        let both = json!({ "spec": { "ipFamilyPolicy": "PreferDualStack" } });
        let both = admin.patch_merge::<Service>(&key, &both).await.unwrap();
        let ips = both.spec.and_then(|spec| spec.cluster_ips).unwrap();
        assert_eq!((ips.len(), ips[0].as_str()), (2, "10.96.0.77"));
        until(from_a(), call(&format!("[{}]:80", ips[1]))).await;
    });
}
