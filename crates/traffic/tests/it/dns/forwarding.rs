//! Questions about names outside the zone.

use super::bed::{Bed, data, receive, request};
use super::upstream::{Upstream, answer, failure};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType::{A, AAAA, PTR, TXT};
use serde_json::json;
use std::sync::Arc;
use tokio::net::UdpSocket;

const ADDRESS: [u8; 4] = [192, 0, 2, 1];

async fn bed_with(upstream: &Upstream) -> Bed {
    Bed::with_upstream(upstream.address.port(), "nameserver 127.0.0.1\n").await
}

/// NET-101: names outside the zone and unknown addresses are forwarded.
#[tokio::test]
async fn net_101_names_outside_the_zone_are_forwarded() {
    let upstream = Upstream::start(|request, _| {
        let reply = match request.queries[0].query_type {
            A => answer(request, &[ADDRESS]),
            _ => failure(request, ResponseCode::NXDomain),
        };
        vec![reply.to_vec().unwrap()]
    })
    .await;
    let bed = bed_with(&upstream).await;
    for reply in [bed.udp("WWW.example.com", A).await, bed.tcp("WWW.example.com", A).await] {
        assert_eq!(data(&reply), ["192.0.2.1"]);
        assert_eq!(reply.answers[0].name.to_string(), "WWW.example.com.");
        assert!(reply.recursion_available && !reply.authoritative);
    }
    let (_, with_edns) = bed.udp_with("www.example.com", A, Some(1232)).await;
    assert!(with_edns.edns.is_some());
    let unknown = bed.udp("9.9.9.9.in-addr.arpa", PTR).await;
    assert_eq!(unknown.response_code, ResponseCode::NXDomain);
    let asked = upstream.asked();
    // NET-104: names in the zone are answered from memory.
    let in_zone = bed.udp("www.example.com.default.svc.cluster.local", A).await;
    assert_eq!(in_zone.response_code, ResponseCode::NXDomain);
    assert_eq!(upstream.asked(), asked);
}

/// NET-99: stub resolvers do not follow aliases, so the answer has the target's addresses too.
#[tokio::test]
async fn net_99_external_name_outside_the_zone_is_followed_upstream() {
    let upstream = Upstream::start(|request, _| {
        let known = request.queries[0].name.to_string() == "foo.example.com.";
        let reply = match known {
            true => answer(request, &[ADDRESS]),
            false => failure(request, ResponseCode::NXDomain),
        };
        vec![reply.to_vec().unwrap()]
    })
    .await;
    let bed = bed_with(&upstream).await;
    for (name, target) in [("good", "foo.example.com"), ("bad", "bar.example.com")] {
        bed.service(name, json!({ "type": "ExternalName", "externalName": target })).await;
    }
    let good = ["foo.example.com.", "192.0.2.1"];
    bed.until("good.default.svc.cluster.local", A, |reply| data(reply) == good).await;
    bed.until("bad.default.svc.cluster.local", A, |reply| data(reply) == ["bar.example.com."])
        .await;
    let bad = bed.udp("bad.default.svc.cluster.local", A).await;
    assert_eq!(bad.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn answers_that_do_not_fit_are_fetched_over_tcp() {
    let many: Vec<[u8; 4]> = (0..100).map(|number| [192, 0, 2, number]).collect();
    let upstream = Upstream::start(move |request, tcp| {
        let reply = match tcp {
            true => answer(request, &many),
            false => {
                let mut reply = request.into_response();
                reply.metadata.truncation = true;
                reply
            }
        };
        vec![reply.to_vec().unwrap()]
    })
    .await;
    let bed = bed_with(&upstream).await;
    let complete = bed.tcp("big.example.com", A).await;
    assert_eq!((complete.answers.len(), complete.truncation), (100, false));
    let (size, cut) = bed.udp_with("big.example.com", A, None).await;
    assert!(cut.truncation && size <= 512 && !cut.answers.is_empty(), "{size} {cut}");
}

/// Somebody else who guesses must hit the id, the question and the port.
#[tokio::test]
async fn replies_that_do_not_match_the_question_are_ignored() {
    let upstream = Upstream::start(|request, _| {
        let good = answer(request.clone(), &[ADDRESS]);
        let mut other_id = answer(request.clone(), &[[6, 6, 6, 6]]);
        other_id.metadata.id = request.id.wrapping_add(1);
        let mut other_question = answer(request.clone(), &[[6, 6, 6, 6]]);
        other_question.queries[0].query_type = AAAA;
        let mut replies = vec![vec![], vec![0; 4], request.to_vec().unwrap()];
        replies.extend([other_id, other_question, good].map(|reply| reply.to_vec().unwrap()));
        replies
    })
    .await;
    let bed = bed_with(&upstream).await;
    assert_eq!(data(&bed.udp("www.example.com", A).await), ["192.0.2.1"]);
    assert_eq!(upstream.asked(), 1);
}

#[tokio::test]
async fn next_server_is_asked_if_one_fails() {
    let upstream =
        Upstream::start(|request, _| vec![answer(request, &[ADDRESS]).to_vec().unwrap()]).await;
    // Nothing listens at 127.0.0.2, and the server itself is never asked.
    let servers = "nameserver 127.0.0.2\nnameserver 127.0.0.1\n";
    let bed = Bed::with_upstream(upstream.address.port(), servers).await;
    assert_eq!(data(&bed.udp("www.example.com", A).await), ["192.0.2.1"]);
}

#[tokio::test]
async fn without_an_answer_from_upstream_clients_get_servfail() {
    let broken = Upstream::start(|request, _| {
        vec![failure(request, ResponseCode::Refused).to_vec().unwrap()]
    })
    .await;
    let bed = bed_with(&broken).await;
    assert_eq!(bed.udp("a.example.com", A).await.response_code, ResponseCode::Refused);
    drop(broken);
    assert_eq!(bed.udp("b.example.com", A).await.response_code, ResponseCode::ServFail);

    let alone = Bed::start().await;
    assert_eq!(alone.udp("www.example.com", A).await.response_code, ResponseCode::ServFail);
    let unknown = alone.udp("9.9.9.9.in-addr.arpa", PTR).await;
    assert_eq!(unknown.response_code, ResponseCode::NXDomain, "NET-101: no upstream");
}

#[tokio::test]
async fn resolv_conf_is_read_again_after_a_change() {
    let upstream =
        Upstream::start(|request, _| vec![answer(request, &[ADDRESS]).to_vec().unwrap()]).await;
    let bed = Bed::with_upstream(upstream.address.port(), "").await;
    assert_eq!(bed.udp("www.example.com", A).await.response_code, ResponseCode::ServFail);
    std::fs::write(bed.resolv_conf(), "nameserver 127.0.0.1\n").unwrap();
    bed.until("www.example.com", A, |reply| data(reply) == ["192.0.2.1"]).await;
}

/// One client with many slow questions gets some refused. Other names are answered meanwhile.
#[tokio::test]
async fn slow_upstream_blocks_neither_the_zone_nor_all_questions() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let bed = Bed::with_upstream(port, "nameserver 127.0.0.1\n").await;
    let socket = bed.socket().await;
    for number in 0..200 {
        socket.send(&request(&format!("n{number}.example.com"), A, None)).await.unwrap();
    }
    let refused = Message::from_vec(&receive(&socket).await.unwrap()).unwrap();
    assert_eq!(refused.response_code, ResponseCode::Refused);
    let zone = bed.udp("dns-version.cluster.local", TXT).await;
    assert_eq!(data(&zone), ["1.1.0"]);
}

/// A resolver that sends questions back to this server: its question joins the first one, and nothing multiplies.
#[tokio::test]
async fn forwarding_loop_ends_without_multiplying_questions() {
    let loop_back = Arc::new(std::sync::OnceLock::<std::net::SocketAddr>::new());
    let target = loop_back.clone();
    let upstream = Upstream::start(move |request, _| {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let request = request.to_vec().unwrap();
        // The reply to this goes nowhere, like that of a resolver that waits for itself.
        socket.send_to(&request, target.get().unwrap()).unwrap();
        Vec::new()
    })
    .await;
    let bed = bed_with(&upstream).await;
    loop_back.set(bed.address).unwrap();
    let reply = bed.udp("www.example.com", A).await;
    assert_eq!(reply.response_code, ResponseCode::ServFail);
    assert!(upstream.asked() <= 3, "{} questions", upstream.asked());
}
