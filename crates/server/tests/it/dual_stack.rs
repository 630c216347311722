//! Services with IPv6 addresses, and with addresses of both families (A-150, NET-26).

use crate::cluster::{Cluster, config};
use serde_json::{Value, json};
use server::{Config, ServiceRanges};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const RANGE: &str = "/apis/networking.k8s.io/v1/servicecidrs/kubernetes";
const BOTH: &str = "10.96.0.0/16,fd00:96::/112";

async fn started(dir: tempfile::TempDir, ranges: &str) -> Cluster {
    let service_ranges = ServiceRanges::from_option(ranges).unwrap();
    let config = Config { service_ranges, ..config(dir.path()) };
    Cluster::with(dir, config).await
}

async fn start(ranges: &str) -> Cluster {
    started(tempfile::tempdir().unwrap(), ranges).await
}

fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    for (field, value) in spec.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    service
}

fn ips(service: &Value) -> Vec<String> {
    let ips = service["spec"]["clusterIPs"].as_array().unwrap().iter();
    let ips: Vec<String> = ips.map(|ip| ip.as_str().unwrap().to_owned()).collect();
    assert_eq!(service["spec"]["clusterIP"], ips[0].as_str(), "clusterIP is the first");
    ips
}

/// Whether the address is claimed for this Service.
async fn is_claimed(cluster: &Cluster, address: &str, name: &str) -> bool {
    let claim = cluster.get(&format!("{ADDRESSES}/{address}")).await;
    let family = if address.contains(':') { "IPv6" } else { "IPv4" };
    claim.code == 200
        && claim.body["spec"]["parentRef"]["name"] == name
        && claim.body["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"] == family
}

/// NET-26, A-153: each policy and order of families gets its addresses, and each address its IPAddress.
#[tokio::test]
async fn net_26_a_cluster_with_two_ranges_gives_addresses_of_the_families_that_a_service_asks_for()
{
    let cluster = start(BOTH).await;
    assert_eq!(
        cluster.read(RANGE).await["spec"]["cidrs"],
        json!(["10.96.0.0/16", "fd00:96::/112"])
    );
    let kubernetes = cluster.read(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(ips(&kubernetes), ["10.96.0.1"], "the default family only");
    let (four, six) = ("10.96.", "fd00:96::");
    for (number, (spec, families, starts)) in [
        (json!({}), json!(["IPv4"]), vec![four]),
        (json!({"ipFamilies": ["IPv6"]}), json!(["IPv6"]), vec![six]),
        (
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            json!(["IPv4", "IPv6"]),
            vec![four, six],
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]}),
            json!(["IPv6", "IPv4"]),
            vec![six, four],
        ),
        (json!({"clusterIP": "fd00:96::77"}), json!(["IPv6"]), vec!["fd00:96::77"]),
        (
            json!({"ipFamilyPolicy": "PreferDualStack", "clusterIP": "fd00:96::78"}),
            json!(["IPv6", "IPv4"]),
            vec!["fd00:96::78", four],
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": ["10.96.0.79", "fd00:96::79"]}),
            json!(["IPv4", "IPv6"]),
            vec!["10.96.0.79", "fd00:96::79"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("s{number}");
        let made = cluster.make(SERVICES, service(&name, spec.clone())).await;
        assert_eq!(made["spec"]["ipFamilies"], families, "{spec}");
        let ips = ips(&made);
        assert_eq!(ips.len(), starts.len(), "{spec}: {ips:?}");
        for (ip, start) in ips.iter().zip(starts) {
            assert!(ip.starts_with(start), "{spec}: {ips:?}");
            assert!(is_claimed(&cluster, ip, &name).await, "{ip}");
        }
        cluster.delete(&format!("{SERVICES}/{name}")).await.ok();
        for ip in &ips {
            cluster.get(&format!("{ADDRESSES}/{ip}")).await.refused(404, "NotFound");
        }
    }
    // A headless Service has families, but no addresses.
    let headless =
        json!({"clusterIP": "None", "ipFamilyPolicy": "RequireDualStack", "selector": {"a": "b"}});
    let made = cluster.make(SERVICES, service("headless", headless)).await;
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(made["spec"]["clusterIPs"], json!(["None"]));
}

/// NET-26: an update adds the second family, and SingleStack releases it. The first address never changes, and a node
/// port is one number for both.
#[tokio::test]
async fn net_26_an_update_adds_and_releases_the_second_address() {
    let cluster = start(BOTH).await;
    let made = cluster.make(SERVICES, service("s", json!({"type": "NodePort"}))).await;
    let (first, port) = (ips(&made)[0].clone(), made["spec"]["ports"][0]["nodePort"].clone());
    let place = format!("{SERVICES}/s");
    let policy = async |policy: &str| {
        cluster.patch(&place, json!({"spec": {"ipFamilyPolicy": policy}})).await.ok()
    };
    let both = policy("PreferDualStack").await;
    let second = ips(&both)[1].clone();
    assert_eq!(both["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!((&ips(&both)[0], &both["spec"]["ports"][0]["nodePort"]), (&first, &port));
    assert!(is_claimed(&cluster, &second, "s").await);
    assert_eq!(ips(&policy("RequireDualStack").await), [first.clone(), second.clone()], "kept");
    // A PUT that omits what was allocated keeps it.
    let mut put = both.clone();
    put["metadata"] = json!({"name": "s", "labels": {"a": "b"}});
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        put["spec"].as_object_mut().unwrap().remove(field);
    }
    let kept = cluster.put(&place, &put).await.ok();
    assert_eq!(ips(&kept), [first.clone(), second.clone()]);
    // The second address cannot be removed without the policy, and neither can be changed.
    for (change, why) in [
        (
            json!({"clusterIPs": [first]}),
            "must be 'SingleStack' to release the secondary cluster IP",
        ),
        (
            json!({"ipFamilies": ["IPv4"]}),
            "must be 'SingleStack' to release the secondary IP family",
        ),
        (json!({"clusterIPs": [first, "fd00:96::77"]}), "may not change once set"),
        (
            json!({"clusterIPs": [second, first], "ipFamilies": ["IPv6", "IPv4"], "clusterIP": second}),
            "may not change once set",
        ),
    ] {
        let refused = cluster.patch(&place, json!({"spec": change})).await;
        let message = refused.refused(422, "Invalid");
        assert!(message.contains(why), "{change}: {message}");
    }
    let single = policy("SingleStack").await;
    assert_eq!(ips(&single), [first.as_str()]);
    assert_eq!(single["spec"]["ipFamilies"], json!(["IPv4"]));
    cluster.get(&format!("{ADDRESSES}/{second}")).await.refused(404, "NotFound");
    assert!(is_claimed(&cluster, &first, "s").await);
    // A client may name the second address.
    let named = json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": [first, "fd00:96::aa"]});
    let named = cluster.patch(&place, json!({ "spec": named })).await.ok();
    assert_eq!(ips(&named), [first.as_str(), "fd00:96::aa"]);
    assert!(is_claimed(&cluster, "fd00:96::aa", "s").await);
    // ExternalName releases both.
    let name = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
    let name = cluster.patch(&place, name).await.ok();
    assert_eq!((name["spec"].get("clusterIPs"), name["spec"].get("ipFamilies")), (None, None));
    for ip in [first.as_str(), "fd00:96::aa"] {
        cluster.get(&format!("{ADDRESSES}/{ip}")).await.refused(404, "NotFound");
    }
}

/// NET-149, A-150: what is refused, with upstream's messages, and that nothing stays claimed then.
#[tokio::test]
async fn net_149_addresses_that_are_taken_or_of_no_range_are_refused_and_nothing_stays_claimed() {
    let cluster = start(BOTH).await;
    cluster.make(SERVICES, service("owner", json!({"clusterIP": "fd00:96::77"}))).await;
    let whole = |why: &str| format!("Service \"s\" is invalid: {why}");
    let both = |second: &str| json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": ["10.96.7.7", second]});
    for (spec, why) in [
        (
            both("fd00:96::77"),
            "spec.clusterIPs: Invalid value: [\"10.96.7.7\",\"fd00:96::77\"]: failed to allocate IP fd00:96::77: provided IP is already allocated",
        ),
        (
            both("fd00:97::1"),
            "spec.clusterIPs: Invalid value: [\"10.96.7.7\",\"fd00:97::1\"]: failed to allocate IP fd00:97::1: the provided IP (fd00:97::1) is not in the valid range. The range of valid IPs is fd00:96::/112",
        ),
        (
            both("10.96.7.8"),
            "spec.clusterIPs: Invalid value: [\"10.96.7.7\",\"10.96.7.8\"]: may specify no more than one IP for each IP family",
        ),
        (
            json!({"clusterIPs": ["10.96.7.7", "fd00:96::78"]}),
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified",
        ),
        (
            json!({"ipFamilies": ["IPv6"], "clusterIP": "10.96.7.7"}),
            "spec.clusterIPs[0]: Invalid value: \"10.96.7.7\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        ),
    ] {
        let refused = cluster.post(SERVICES, service("s", spec)).await;
        assert_eq!(refused.refused(422, "Invalid"), whole(why));
    }
    // The first address was claimed before the second was refused.
    cluster.make(SERVICES, service("s", json!({"clusterIP": "10.96.7.7"}))).await;
    let dry = service("dry", json!({"ipFamilyPolicy": "RequireDualStack"}));
    let dry = cluster.post(&format!("{SERVICES}?dryRun=All"), dry).await.ok();
    assert_eq!(ips(&dry), ["10.96.0.0", "fd00:96::"], "placeholders");
}

/// NET-26: a cluster of IPv6 only. Its Service `kubernetes` and its DNS server have IPv6 addresses.
#[tokio::test]
async fn net_26_a_cluster_can_have_ipv6_only() {
    let cluster = start("fd00:96::/108").await;
    let kubernetes = cluster.read(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(ips(&kubernetes), ["fd00:96::1"]);
    assert_eq!(kubernetes["spec"]["ipFamilies"], json!(["IPv6"]));
    let dns = cluster.read("/api/v1/namespaces/kube-system/services/kube-dns").await;
    assert_eq!(ips(&dns), ["fd00:96::a"]);
    for ip in ["fd00:96::1", "fd00:96::a"] {
        assert_eq!(cluster.read(&format!("{ADDRESSES}/{ip}")).await["kind"], "IPAddress");
    }
    let made = cluster.make(SERVICES, service("s", json!({}))).await;
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv6"]));
    assert!(ips(&made)[0].starts_with("fd00:96::"), "{made}");
    for (spec, why) in [
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({"ipFamilies": ["IPv4"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv4\": not configured on this cluster",
        ),
        (
            json!({"clusterIP": "10.96.0.9"}),
            "spec.clusterIPs[0]: Invalid value: [\"10.96.0.9\"]: IPv4 is not configured on this cluster",
        ),
    ] {
        let refused = cluster.post(SERVICES, service("four", spec)).await;
        let whole = format!("Service \"four\" is invalid: {why}");
        assert_eq!(refused.refused(422, "Invalid"), whole);
    }
}

/// NET-143, NET-144: an existing cluster gets the second family with the next start. Its Services stay as they are until
/// somebody changes their policy (NET-26).
#[tokio::test]
async fn net_144_a_second_family_can_be_added_to_an_existing_cluster() {
    let cluster = start("10.96.0.0/16").await;
    let spec = json!({"ipFamilyPolicy": "PreferDualStack"});
    let before = ips(&cluster.make(SERVICES, service("s", spec)).await);
    assert_eq!(before.len(), 1);
    let uid = cluster.read(RANGE).await["metadata"]["uid"].clone();
    cluster.running.stop().await;

    let cluster = started(cluster.dir, BOTH).await;
    let range = cluster.read(RANGE).await;
    assert_eq!(range["spec"]["cidrs"], json!(["10.96.0.0/16", "fd00:96::/112"]));
    assert_eq!(range["metadata"]["uid"], uid, "the same object");
    assert_eq!(range["status"]["conditions"][0]["status"], "True");
    let place = format!("{SERVICES}/s");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(ips(&cluster.patch(&place, label).await.ok()), before, "not upgraded");
    let both = json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}});
    let both = ips(&cluster.patch(&place, both).await.ok());
    assert_eq!((both.len(), &both[0]), (2, &before[0]));
    // The claims of both survive a start, which releases claims without a Service.
    cluster.running.stop().await;
    let cluster = started(cluster.dir, BOTH).await;
    for ip in &both {
        assert!(is_claimed(&cluster, ip, "s").await, "{ip}");
    }
    // The ranges stay when only one is configured: Services have addresses of both.
    cluster.running.stop().await;
    let cluster = started(cluster.dir, "10.96.0.0/16").await;
    assert_eq!(cluster.running.service_ranges().to_string(), BOTH);
}
