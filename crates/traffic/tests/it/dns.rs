//! The DNS server, asked over UDP and TCP.

mod bed;
mod forwarding;
mod hostile;
mod registration;
mod upstream;

use bed::{Bed, addresses, data, slice};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType::{A, AAAA, CNAME, PTR, SRV, TXT};
use serde_json::json;
use std::collections::BTreeSet;
use testbed::TestServer;
use testbed::server::Options;

/// NET-112: the names of the conformance tests, over both transports, as they appear and change.
#[tokio::test]
async fn net_112_names_of_the_conformance_tests_are_answered_over_udp_and_tcp() {
    let bed = Bed::start().await;
    bed.until("kubernetes.default.svc.cluster.local", A, |answer| data(answer) == ["10.96.0.1"])
        .await;

    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP" }]);
    bed.service("dns-test-service", json!({ "clusterIP": "None", "ports": ports })).await;
    let regular = json!({ "clusterIP": "10.96.7.7", "ports": ports });
    bed.service("test-service-2", regular).await;
    let endpoints = json!([
        { "addresses": ["10.0.0.1"], "hostname": "dns-querier-2", "conditions": { "ready": true } },
    ]);
    bed.create(slice("dns-test-service", 1, endpoints)).await;

    let headless = "dns-test-service.default.svc.cluster.local";
    bed.until(headless, A, |answer| data(answer) == ["10.0.0.1"]).await;
    let host = "dns-querier-2.dns-test-service.default.svc.cluster.local";
    for (name, kind, expected) in [
        (host, A, "10.0.0.1"),
        (headless, A, "10.0.0.1"),
        ("test-service-2.default.svc.cluster.local", A, "10.96.7.7"),
        (
            "_http._tcp.dns-test-service.default.svc.cluster.local",
            SRV,
            "0 100 80 dns-querier-2.dns-test-service.default.svc.cluster.local.",
        ),
        (
            "_http._tcp.test-service-2.default.svc.cluster.local",
            SRV,
            "0 100 80 test-service-2.default.svc.cluster.local.",
        ),
        ("7.7.96.10.in-addr.arpa", PTR, "test-service-2.default.svc.cluster.local."),
        ("dns-version.cluster.local", TXT, "1.1.0"),
    ] {
        for answer in [bed.udp(name, kind).await, bed.tcp(name, kind).await] {
            assert_eq!(data(&answer), [expected], "{name} {kind}");
            assert!(answer.authoritative && answer.recursion_available, "{name} {kind}");
            let expected_additionals = usize::from(kind == SRV);
            assert_eq!(answer.additionals.len(), expected_additionals, "{name} {kind}");
        }
    }
    let none = bed.udp("kubernetes.default.default.svc.cluster.local", A).await;
    assert_eq!(none.response_code, ResponseCode::NXDomain, "NET-104");
    let empty = bed.udp(headless, AAAA).await;
    assert_eq!((empty.response_code, empty.answers.len()), (ResponseCode::NoError, 0));

    // The endpoint is no longer ready: the change shows at once, without a cache in between.
    let endpoints = json!([{ "addresses": ["10.0.0.1"], "conditions": { "ready": false } }]);
    bed.replace_endpoints("dns-test-service-1", endpoints).await;
    bed.until(headless, A, |answer| answer.response_code == ResponseCode::NXDomain).await;
}

/// NET-26, NET-96, NET-112: the addresses of both families of a Service, and their reverse names.
#[tokio::test]
async fn net_112_services_with_both_families_have_addresses_of_both() {
    let options = Options::with_service_ranges("fd77:96::/112,10.96.0.0/16");
    let bed = Bed::of(TestServer::with(options).await, 53, "").await;
    bed.until("kubernetes.default.svc.cluster.local", AAAA, |answer| {
        data(answer) == ["fd77:96::1"]
    })
    .await;
    let spec = json!({ "ipFamilyPolicy": "RequireDualStack", "ports": [{ "port": 80 }],
                       "clusterIPs": ["fd77:96::77", "10.96.7.7"] });
    bed.service("web", spec).await;
    let name = "web.default.svc.cluster.local";
    bed.until(name, AAAA, |answer| data(answer) == ["fd77:96::77"]).await;
    assert_eq!(data(&bed.udp(name, A).await), ["10.96.7.7"]);
    let nibbles = "7.7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.7.7.d.f.ip6.arpa";
    for reverse in [nibbles, "7.7.96.10.in-addr.arpa"] {
        assert_eq!(data(&bed.udp(reverse, PTR).await), [format!("{name}.")]);
    }
    bed.patch_service("web", json!({ "spec": { "ipFamilyPolicy": "SingleStack" } })).await;
    bed.until(name, A, |answer| answer.answers.is_empty()).await;
    assert_eq!(data(&bed.udp(name, AAAA).await), ["fd77:96::77"]);
}

/// NET-98, NET-99: an ExternalName that changes its target, then its type.
#[tokio::test]
async fn net_99_changes_of_an_external_name_show_at_once() {
    let bed = Bed::start().await;
    let name = "ext.default.svc.cluster.local";
    bed.service("ext", json!({ "type": "ExternalName", "externalName": "foo.example.com" })).await;
    bed.until(name, CNAME, |answer| data(answer) == ["foo.example.com."]).await;
    bed.patch_service("ext", json!({ "spec": { "externalName": "bar.example.com" } })).await;
    bed.until(name, CNAME, |answer| data(answer) == ["bar.example.com."]).await;
    let spec = json!({ "type": "ClusterIP", "clusterIP": "10.96.3.3", "ports": [{ "port": 80 }] });
    bed.patch_service("ext", json!({ "spec": spec })).await;
    bed.until(name, A, |answer| data(answer) == ["10.96.3.3"]).await;

    // An alias inside the zone is answered with the addresses of its target.
    let target = json!({ "type": "ExternalName", "externalName": name });
    bed.service("alias", target).await;
    let alias = "alias.default.svc.cluster.local";
    let expected = ["ext.default.svc.cluster.local.", "10.96.3.3"];
    bed.until(alias, A, |answer| data(answer) == expected).await;
}

/// NET-103: what does not fit is cut at whole records over UDP, and complete over TCP, in changing order.
#[tokio::test]
async fn net_103_large_answers_are_cut_over_udp_and_complete_over_tcp() {
    let bed = Bed::start().await;
    bed.service("big", json!({ "clusterIP": "None", "ports": [{ "name": "p", "port": 1 }] })).await;
    for number in 0..5 {
        let endpoints: Vec<_> = (0..100)
            .map(|host| json!({ "addresses": [format!("10.1.{number}.{host}")] }))
            .collect();
        bed.create(slice("big", number, json!(endpoints))).await;
    }
    let name = "big.default.svc.cluster.local";
    bed.until_tcp(name, A, |answer| answer.answers.len() == 500).await;
    let all: BTreeSet<String> = addresses(&bed.tcp(name, A).await).collect();
    assert_eq!(all.len(), 500);

    for (edns, limit) in [(None, 512), (Some(1232), 1232), (Some(4096), 4096)] {
        let (size, answer) = bed.udp_with(name, A, edns).await;
        assert!(answer.truncation && size <= limit && size > limit - 80, "{size} of {limit}");
        assert!(addresses(&answer).all(|address| all.contains(&address)));
    }
    let srv = bed.tcp("_p._tcp.big.default.svc.cluster.local", SRV).await;
    assert_eq!((srv.answers.len(), srv.truncation), (500, false));

    let mut first = BTreeSet::new();
    for _ in 0..20 {
        first.extend(addresses(&bed.udp(name, A).await).next());
    }
    assert!(first.len() > 5, "{first:?}");
}

/// NET-106, with a tenth of the Services; the example `dns_load` has more.
#[tokio::test]
async fn net_106_each_of_many_services_answers_exactly_its_cluster_ip() {
    let bed = Bed::start().await;
    let services = bed.services(1000).await;
    let (last, ip) = services.last().unwrap();
    bed.until(&format!("{last}.default.svc.cluster.local"), A, |answer| {
        data(answer) == [ip.as_str()]
    })
    .await;
    for (name, ip) in services.iter().step_by(7) {
        let answer = bed.udp(&format!("{name}.default.svc.cluster.local"), A).await;
        assert_eq!(data(&answer), [ip.as_str()], "{name}");
    }
}

/// A restarted server answers at once, although clients still have connections of the old one.
#[tokio::test]
async fn restarted_server_answers_within_a_second() {
    let mut bed = Bed::start().await;
    let name = "dns-version.cluster.local";
    let mut open = tokio::net::TcpStream::connect(bed.address).await.unwrap();
    bed::ask_over(&mut open, &bed::request(name, TXT, None)).await;
    bed.stop().await;
    let started = clock::monotonic();
    bed.restart();
    assert_eq!(data(&bed.udp(name, TXT).await), ["1.1.0"]);
    assert_eq!(data(&bed.tcp(name, TXT).await), ["1.1.0"]);
    assert!(clock::monotonic() - started < 1_000_000_000);
}

#[tokio::test]
async fn metrics_have_the_names_of_coredns() {
    let bed = Bed::start().await;
    bed.udp("gone.default.svc.cluster.local", A).await;
    bed.tcp("dns-version.cluster.local", TXT).await;
    let text = bed.metrics();
    for line in [
        "coredns_dns_requests_total{family=\"1\",proto=\"udp\",server=\"dns://:53\",type=\"A\"} 1",
        "coredns_dns_requests_total{family=\"1\",proto=\"tcp\",server=\"dns://:53\",type=\"TXT\"} 1",
        "coredns_dns_responses_total{plugin=\"kubernetes\",rcode=\"NXDOMAIN\",server=\"dns://:53\"} 1",
        "coredns_dns_request_duration_seconds_count{server=\"dns://:53\"} 2",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
    }
}
