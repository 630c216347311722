//! A cluster as a table of objects, and what the zone answers about it.

use super::*;
use crate::dns::message::{Reply, Request, Transport};
use bytes::Bytes;
use client::Client;
use hickory_proto::op::Message;
use http::{Request as HttpRequest, Response};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Runtime;

/// The caches of a cluster that has exactly these objects, and does not change.
fn watched(lists: impl Fn(&str) -> Option<Vec<Value>> + Send + Sync + 'static) -> Watched {
    let lists = Arc::new(lists);
    let service = tower::service_fn(move |request: HttpRequest<kube::client::Body>| {
        let lists = lists.clone();
        async move {
            let uri = request.uri();
            let (path, query) = (uri.path(), uri.query().unwrap_or_default());
            let plural = path.rsplit('/').next().unwrap_or_default();
            let list = lists(plural);
            let body: UnsyncBoxBody<Bytes, Infallible> = match list {
                Some(items) if !query.contains("watch=") => {
                    let list = json!({ "metadata": { "resourceVersion": "1" }, "items": items });
                    let frame = http_body::Frame::data(Bytes::from(list.to_string()));
                    StreamBody::new(futures::stream::iter([Ok(frame)])).boxed_unsync()
                }
                // A watch without events, and a list that never arrives.
                Some(_) => StreamBody::new(futures::stream::pending()).boxed_unsync(),
                None => futures::future::pending().await,
            };
            Ok::<_, Infallible>(Response::new(body))
        }
    });
    Watched::start(&Client::in_process(service))
}

/// A zone whose caches never become complete.
pub(in crate::dns) fn incomplete_zone() -> Zone {
    Zone::new(watched(|_| None), name("cluster.local"), || 0)
}

fn metadata(namespace: &str, name: &str) -> Value {
    json!({ "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"),
            "resourceVersion": "1" })
}

fn service(name: &str, spec: Value) -> Value {
    json!({ "metadata": metadata("shop", name), "spec": spec })
}

fn slice(service: &str, number: u8, family: &str, ports: Value, endpoints: Value) -> Value {
    let mut metadata = metadata("shop", &format!("{service}-{number}"));
    metadata["labels"] = json!({ "kubernetes.io/service-name": service });
    json!({ "metadata": metadata, "addressType": family, "ports": ports, "endpoints": endpoints })
}

fn services() -> Vec<Value> {
    let external = |name: &str, target: &str| {
        service(name, json!({ "type": "ExternalName", "externalName": target }))
    };
    let ports = json!([
        { "name": "http", "port": 80, "protocol": "TCP" },
        { "name": "voice", "port": 99, "protocol": "UDP" },
    ]);
    let headless = json!({ "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"] });
    let mut all = vec![
        service(
            "web",
            json!({ "type": "ClusterIP", "clusterIP": "10.96.0.7",
                    "clusterIPs": ["10.96.0.7", "fd00:96::7"], "ports": ports }),
        ),
        service(
            "plain",
            json!({ "type": "NodePort", "clusterIP": "10.96.0.8", "ports": [{ "port": 80 }] }),
        ),
        service("db", headless.clone()),
        service("empty", headless),
        external("ext", "foo.example.com"),
        external("ext-dot", "foo.example.com."),
        external("alias", "WEB.shop.svc.cluster.local"),
        external("alias-of-db", "db.shop.svc.cluster.local"),
        external("dangling", "gone.shop.svc.cluster.local"),
        external("loop-a", "loop-b.shop.svc.cluster.local"),
        external("loop-b", "loop-a.shop.svc.cluster.local"),
        service(
            "was-external",
            json!({ "type": "ClusterIP", "clusterIP": "10.96.0.9", "externalName": "foo.example.com" }),
        ),
        service(
            "was-cluster-ip",
            json!({ "type": "ExternalName", "clusterIP": "10.96.0.66",
                    "clusterIPs": ["10.96.0.66"], "externalName": "bar.example.com" }),
        ),
    ];
    all.extend((0..15).map(|number| {
        external(&format!("c{number}"), &format!("c{}.shop.svc.cluster.local", number + 1))
    }));
    all
}

fn slices() -> Vec<Value> {
    let port = json!([{ "name": "pg", "port": 5432, "protocol": "TCP" }]);
    vec![
        slice(
            "db",
            1,
            "IPv4",
            port.clone(),
            json!([
                { "addresses": ["10.0.0.1"], "hostname": "db-0", "conditions": { "ready": true } },
                { "addresses": ["10.0.0.2"], "hostname": "Pair", "conditions": {} },
                { "addresses": ["10.0.0.3"], "conditions": { "ready": true } },
                { "addresses": ["10.0.0.4"], "hostname": "down", "conditions": { "ready": false } },
            ]),
        ),
        slice(
            "db",
            2,
            "IPv4",
            port.clone(),
            json!([
                { "addresses": ["10.0.0.1"], "hostname": "db-0" },
                { "addresses": ["10.0.0.5"], "hostname": "pair" },
            ]),
        ),
        slice(
            "db",
            3,
            "IPv6",
            port.clone(),
            json!([{ "addresses": ["FD00::1"], "hostname": "db-0" }, { "addresses": ["fd00::3"] }]),
        ),
        slice(
            "empty",
            1,
            "IPv4",
            port.clone(),
            json!([{ "addresses": ["10.0.0.9"], "conditions": { "ready": false } }]),
        ),
        slice("web", 1, "IPv4", port.clone(), json!([{ "addresses": ["10.0.0.20"] }])),
        slice("gone", 1, "IPv4", port.clone(), json!([{ "addresses": ["10.0.0.30"] }])),
        slice("web", 2, "FQDN", port, json!([{ "addresses": ["host.example.com"] }])),
    ]
}

/// One zone for all tests. Its runtime keeps the caches alive.
fn zone() -> &'static Zone {
    static ZONE: OnceLock<(Runtime, Zone)> = OnceLock::new();
    let (_, zone) = ZONE.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let watched = runtime.block_on(async {
            let watched = watched(|plural| {
                Some(match plural {
                    "services" => services(),
                    "endpointslices" => slices(),
                    "namespaces" => ["shop", "default"]
                        .map(|name| json!({ "metadata": metadata("", name) }))
                        .into(),
                    _ => Vec::new(),
                })
            });
            watched.synced().await;
            watched
        });
        let zone = Zone::new(watched, name("cluster.local"), || 0);
        (runtime, zone)
    });
    zone
}

fn name(text: &str) -> Name {
    Name::from_labels(text.split('.').filter(|label| !label.is_empty()).map(str::as_bytes)).unwrap()
}

/// An answer in one line: sorted data of the answers, a bar, sorted additional records.
fn shown(answer: &Answer) -> String {
    let data = |records: &[Record], named: bool| {
        let mut lines: Vec<String> = records
            .iter()
            .map(|record| match named {
                true => format!("{}={}", record.name, record.data),
                false => record.data.to_string(),
            })
            .collect();
        lines.sort();
        lines.join(", ")
    };
    match answer {
        Answer::Forward => "forward".into(),
        Answer::NotReady => "not ready".into(),
        Answer::Continue { aliases, target } => format!("{}, then {target}", data(aliases, false)),
        Answer::Complete(found) => {
            let mut text = data(&found.answers, false);
            if found.no_such_name {
                text += " NXDOMAIN";
            } else if !found.authorities.is_empty() {
                text += " NODATA";
            }
            if !found.additionals.is_empty() {
                text += " | ";
                text += &data(&found.additionals, true);
            }
            text.trim().into()
        }
    }
}

fn check(rows: &[(&str, RecordType, &str)]) {
    for (question, kind, expected) in rows {
        let answer = zone().answer(&name(question), *kind);
        assert_eq!(shown(&answer), *expected, "{question} {kind}");
        if let Answer::Complete(found) = answer {
            let negative = expected.contains("NXDOMAIN") || expected.contains("NODATA");
            let soa = found.authorities.first().map(|record| record.record_type());
            assert_eq!(soa, negative.then_some(RecordType::SOA), "{question} {kind}");
            let all = found.answers.iter().chain(&found.authorities).chain(&found.additionals);
            assert!(all.clone().all(|record| record.ttl <= 5), "NET-102: {question}");
        }
    }
}

use RecordType::{A, AAAA, ANY, CNAME, NS, PTR, SOA as SOA_TYPE, SRV, TXT};

const WEB: &str = "web.shop.svc.cluster.local";

/// NET-97: priority and weight, and ports without a name.
#[test]
fn net_96_services_with_a_cluster_ip() {
    check(&[
        (WEB, A, "10.96.0.7"),
        (WEB, AAAA, "fd00:96::7"),
        ("plain.shop.svc.cluster.local", A, "10.96.0.8"),
        (
            "_http._tcp.web.shop.svc.cluster.local",
            SRV,
            "0 100 80 web.shop.svc.cluster.local. | web.shop.svc.cluster.local.=10.96.0.7, \
             web.shop.svc.cluster.local.=fd00:96::7",
        ),
        (
            "_VOICE._udp.web.shop.svc.cluster.local",
            SRV,
            "0 100 99 web.shop.svc.cluster.local. | web.shop.svc.cluster.local.=10.96.0.7, \
             web.shop.svc.cluster.local.=fd00:96::7",
        ),
        ("7.0.96.10.in-addr.arpa", PTR, "web.shop.svc.cluster.local."),
        (
            "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa",
            PTR,
            "web.shop.svc.cluster.local.",
        ),
        ("10-0-0-20.web.shop.svc.cluster.local", A, "10.0.0.20"),
        ("_http._tcp.plain.shop.svc.cluster.local", SRV, "NXDOMAIN"),
        ("_tcp.plain.shop.svc.cluster.local", SRV, "NXDOMAIN"),
    ]);
}

/// NET-97: weights add up to 100. NET-100: names of endpoints with a hostname.
#[test]
fn net_96_headless_services_and_their_endpoints() {
    let hosts = "10-0-0-3.db.shop.svc.cluster.local.=10.0.0.3, db-0.db.shop.svc.cluster.local.=10.0.0.1, \
                 db-0.db.shop.svc.cluster.local.=fd00::1, fd00--3.db.shop.svc.cluster.local.=fd00::3, \
                 pair.db.shop.svc.cluster.local.=10.0.0.2, pair.db.shop.svc.cluster.local.=10.0.0.5";
    let srv = format!(
        "0 25 5432 10-0-0-3.db.shop.svc.cluster.local., 0 25 5432 db-0.db.shop.svc.cluster.local., \
         0 25 5432 fd00--3.db.shop.svc.cluster.local., 0 25 5432 pair.db.shop.svc.cluster.local. | {hosts}"
    );
    check(&[
        ("db.shop.svc.cluster.local", A, "10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.5"),
        ("db.shop.svc.cluster.local", AAAA, "fd00::1, fd00::3"),
        ("db-0.db.shop.svc.cluster.local", A, "10.0.0.1"),
        ("DB-0.db.shop.svc.cluster.local", AAAA, "fd00::1"),
        ("pair.db.shop.svc.cluster.local", A, "10.0.0.2, 10.0.0.5"),
        ("pair.db.shop.svc.cluster.local", AAAA, "NODATA"),
        ("10-0-0-3.db.shop.svc.cluster.local", A, "10.0.0.3"),
        ("fd00--3.db.shop.svc.cluster.local", AAAA, "fd00::3"),
        // An endpoint with a host name has no other name; one that is not ready has none.
        ("10-0-0-1.db.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("down.db.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("_pg._tcp.db.shop.svc.cluster.local", SRV, &srv),
        ("_pg._udp.db.shop.svc.cluster.local", SRV, "NXDOMAIN"),
        ("1.0.0.10.in-addr.arpa", PTR, "db-0.db.shop.svc.cluster.local."),
        ("3.0.0.10.in-addr.arpa", PTR, "10-0-0-3.db.shop.svc.cluster.local."),
        ("empty.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("_pg._tcp.empty.shop.svc.cluster.local", SRV, "NXDOMAIN"),
    ]);
}

#[test]
fn net_99_external_names_and_their_chains() {
    let chain: Vec<String> =
        (1..=10).map(|number| format!("c{number}.shop.svc.cluster.local.")).collect();
    let mut chain = chain;
    chain.sort();
    check(&[
        ("ext.shop.svc.cluster.local", CNAME, "foo.example.com."),
        ("ext.shop.svc.cluster.local", A, "foo.example.com., then foo.example.com."),
        ("ext-dot.shop.svc.cluster.local", AAAA, "foo.example.com., then foo.example.com."),
        ("ext.shop.svc.cluster.local", ANY, "foo.example.com."),
        ("alias.shop.svc.cluster.local", A, "10.96.0.7, WEB.shop.svc.cluster.local."),
        ("alias.shop.svc.cluster.local", CNAME, "WEB.shop.svc.cluster.local."),
        ("alias.shop.svc.cluster.local", TXT, "WEB.shop.svc.cluster.local. NODATA"),
        (
            "alias-of-db.shop.svc.cluster.local",
            AAAA,
            "db.shop.svc.cluster.local., fd00::1, fd00::3",
        ),
        ("dangling.shop.svc.cluster.local", A, "gone.shop.svc.cluster.local. NXDOMAIN"),
        (
            "loop-a.shop.svc.cluster.local",
            A,
            "loop-a.shop.svc.cluster.local., loop-b.shop.svc.cluster.local.",
        ),
        ("c0.shop.svc.cluster.local", A, &chain.join(", ")),
        ("x.ext.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("_http._tcp.ext.shop.svc.cluster.local", SRV, "NXDOMAIN"),
        // NET-98: the type decides, not what an earlier type left behind.
        ("was-external.shop.svc.cluster.local", A, "10.96.0.9"),
        ("was-external.shop.svc.cluster.local", CNAME, "NODATA"),
        ("was-cluster-ip.shop.svc.cluster.local", CNAME, "bar.example.com."),
        ("66.0.96.10.in-addr.arpa", PTR, "forward"),
    ]);
}

#[test]
fn net_101_negative_answers() {
    check(&[
        (WEB, TXT, "NODATA"),
        (WEB, SRV, "NODATA"),
        (WEB, ANY, "NODATA"),
        ("plain.shop.svc.cluster.local", AAAA, "NODATA"),
        ("cluster.local", A, "NODATA"),
        ("cluster.local", NS, "NODATA"),
        ("svc.cluster.local", A, "NODATA"),
        ("pod.cluster.local", AAAA, "NODATA"),
        ("shop.svc.cluster.local", A, "NODATA"),
        ("shop.pod.cluster.local", A, "NODATA"),
        ("gone.svc.cluster.local", A, "NXDOMAIN"),
        ("gone.pod.cluster.local", A, "NXDOMAIN"),
        ("gone.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("web.gone.svc.cluster.local", A, "NXDOMAIN"),
        ("x.web.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("_x._tcp.web.shop.svc.cluster.local", SRV, "NXDOMAIN"),
        ("_http._udp.web.shop.svc.cluster.local", SRV, "NXDOMAIN"),
        ("_._tcp.plain.shop.svc.cluster.local", SRV, "NXDOMAIN"),
        ("_http._tcp.web.shop.svc.cluster.local", A, "NODATA"),
        ("a.b.c.d.e.f.cluster.local", A, "NXDOMAIN"),
        ("node.cluster.local", A, "NXDOMAIN"),
        ("example.com", A, "forward"),
        ("local", A, "forward"),
        ("", NS, "forward"),
        ("99.0.96.10.in-addr.arpa", PTR, "forward"),
        ("0.96.10.in-addr.arpa", PTR, "forward"),
        ("7.0.96.10.in-addr.arpa", A, "NODATA"),
        // An address of a Service that is not headless, and of one that does not exist.
        ("20.0.0.10.in-addr.arpa", PTR, "forward"),
        ("30.0.0.10.in-addr.arpa", PTR, "forward"),
        ("4.0.0.10.in-addr.arpa", PTR, "forward"),
    ]);
}

/// NET-104: with ndots:5 each name walks the search list first.
#[test]
fn net_104_search_paths_end_in_nxdomain_without_upstream() {
    check(&[
        ("kubernetes.default.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("web.shop.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("web.shop.svc.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("web.shop.svc.svc.cluster.local", A, "NXDOMAIN"),
        ("_http._tcp.web.shop.svc.shop.svc.cluster.local", SRV, "NXDOMAIN"),
        ("_http._tcp.web.shop.svc.svc.cluster.local", SRV, "NXDOMAIN"),
        ("www.example.com.shop.svc.cluster.local", A, "NXDOMAIN"),
        ("www.example.com.svc.cluster.local", A, "NXDOMAIN"),
        ("www.example.com.cluster.local", A, "NXDOMAIN"),
    ]);
}

#[test]
fn net_96_pods_by_address_the_schema_and_the_zone() {
    check(&[
        ("10-1-2-3.shop.pod.cluster.local", A, "10.1.2.3"),
        ("10-1-2-3.shop.pod.cluster.local", AAAA, "NODATA"),
        ("fd00--5.shop.pod.cluster.local", AAAA, "fd00::5"),
        ("10-1-2-3.gone.pod.cluster.local", A, "NXDOMAIN"),
        ("10-1-2.shop.pod.cluster.local", A, "NXDOMAIN"),
        ("dns-version.cluster.local", TXT, "1.1.0"),
        ("dns-version.cluster.local", A, "NODATA"),
        (
            "cluster.local",
            SOA_TYPE,
            "ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5",
        ),
    ]);
}

#[test]
fn answers_repeat_the_case_of_the_question() {
    let asked = "WeB.shOP.svc.CLUSTER.local.";
    let Answer::Complete(found) = zone().answer(&name(asked), A) else {
        panic!("no answer");
    };
    assert_eq!(found.answers[0].name.to_string(), asked);
}

#[test]
fn net_103_order_of_addresses_depends_on_the_random_number() {
    let first = |random: fn() -> u64| {
        let zone = Zone::new(zone().watched.clone(), name("cluster.local"), random);
        match zone.answer(&name("db.shop.svc.cluster.local"), A) {
            Answer::Complete(found) => found.answers[0].data.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([first(|| 0), first(|| 1), first(|| 6)], ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
}

/// NET-101: as long as a cache is not complete, nothing in the zone is NXDOMAIN.
#[tokio::test]
async fn net_101_names_are_servfail_until_the_first_lists_are_complete() {
    let watched = watched(|plural| match plural {
        "endpointslices" => None,
        _ => Some(Vec::new()),
    });
    watched.services.synced().await;
    watched.namespaces.synced().await;
    let zone = Zone::new(watched, name("cluster.local"), || 0);
    for (question, kind, expected) in [
        (WEB, A, "not ready"),
        ("gone.svc.cluster.local", A, "not ready"),
        ("7.0.96.10.in-addr.arpa", PTR, "not ready"),
        ("example.com", A, "forward"),
        ("dns-version.cluster.local", TXT, "1.1.0"),
    ] {
        assert_eq!(shown(&zone.answer(&name(question), kind)), expected, "{question}");
    }
}

/// Labels that often hit something, and arbitrary bytes.
fn label() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "web", "db", "shop", "svc", "pod", "cluster", "local", "ext", "alias", "loop-a", "_http",
        "_pg", "_tcp", "db-0", "10-0-0-3", "in-addr", "arpa", "ip6", "10", "96", "0", "7", "c0",
    ];
    prop_oneof![
        8 => prop::sample::select(known.map(|label| label.as_bytes().to_vec()).to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..64),
    ]
}

proptest! {
    /// Whatever is asked, there is an answer, it can be sent, and clients can read it.
    #[test]
    fn answers_to_any_question_are_valid_messages(
        labels in prop::collection::vec(label(), 0..9),
        in_zone: bool,
        kind: u16,
        common in 0usize..8,
        edns in prop::option::of(0u16..5000),
        tcp: bool,
    ) {
        let suffix = [&b"cluster"[..], b"local"];
        let suffix = suffix.iter().filter(|_| in_zone).map(|label| label.to_vec());
        let Ok(name) = Name::from_labels(labels.into_iter().chain(suffix)) else {
            return Ok(());
        };
        let kinds = [A, AAAA, SRV, PTR, CNAME, TXT, ANY];
        let kind = kinds.get(common).copied().unwrap_or(RecordType::from(kind));
        let request = request_of(&name, kind, edns);
        let Ok(request) = Request::read(&request) else {
            // The library refuses names of 254 bytes.
            return Ok(());
        };
        let Answer::Complete(found) = zone().answer(&request.question.name, kind) else {
            return Ok(());
        };
        let (transport, limit) = match tcp {
            true => (Transport::Tcp, usize::from(u16::MAX)),
            false => (Transport::Udp, edns.map_or(512, |size| size.clamp(512, 4096).into())),
        };
        let reply = Reply {
            answers: found.answers.clone(),
            authorities: found.authorities,
            additionals: found.additionals,
            ..Reply::default()
        };
        let mut bytes = Vec::new();
        request.write(&reply, transport, &mut bytes);
        prop_assert!(bytes.len() <= limit);
        let message = Message::from_vec(&bytes).unwrap();
        prop_assert_eq!(message.edns.is_some(), edns.is_some());
        prop_assert!(message.queries[0].name.eq_case(&name));
        if !message.truncation {
            prop_assert_eq!(message.answers, found.answers);
        }
    }
}

fn request_of(name: &Name, kind: RecordType, edns: Option<u16>) -> Vec<u8> {
    use hickory_proto::op::{Edns, MessageType, OpCode, Query};
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(name.clone(), kind));
    if let Some(size) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message.to_vec().unwrap_or_default()
}
