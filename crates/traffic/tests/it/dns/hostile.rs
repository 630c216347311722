//! Clients that send what no client should send. Afterwards the server answers as before.

use super::bed::{Bed, ask_over, data, framed, read_reply, receive, request};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType::{A, AXFR, IXFR, TXT};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const NAME: &str = "dns-version.cluster.local";

async fn assert_alive(bed: &Bed) {
    assert_eq!(data(&bed.udp(NAME, TXT).await), ["1.1.0"]);
    assert_eq!(data(&bed.tcp(NAME, TXT).await), ["1.1.0"]);
}

fn code(reply: &[u8]) -> ResponseCode {
    Message::from_vec(reply).unwrap().response_code
}

#[tokio::test]
async fn random_and_truncated_packets_do_no_harm() {
    let bed = Bed::start().await;
    let socket = bed.socket().await;
    let valid = request("kubernetes.default.svc.cluster.local", A, Some(1232));
    for length in 0..valid.len() {
        let _ = socket.send(&valid[..length]).await;
    }
    for _ in 0..2000 {
        let bytes: [u8; 64] = clock::random_bytes();
        let _ = socket.send(&bytes[..usize::from(bytes[0]) % 64]).await;
        // Accepted headers with random bodies.
        let mut likely = bytes;
        likely[2..12].copy_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
        let _ = socket.send(&likely).await;
    }
    let _ = socket.send(&[0xC0; 4096]).await;
    let _ = socket.send(&vec![0xFF; 60_000]).await;
    assert_alive(&bed).await;
}

/// The replies are those of CoreDNS.
#[tokio::test]
async fn unsupported_requests_get_an_error_code() {
    let bed = Bed::start().await;
    let valid = request(NAME, TXT, None);
    let changed = |at: usize, to: u8| {
        let mut bytes = valid.clone();
        bytes[at] = to;
        bytes
    };
    let mut two = valid.clone();
    two[5] = 2;
    two.extend_from_slice(&valid[12..]);
    let mut old_edns = request(NAME, TXT, Some(1232));
    let version = old_edns.len() - 5;
    old_edns[version] = 1;
    // The class is the last number of the question: 3 is CHAOS.
    let last = valid.len() - 1;
    for (what, bytes, expected) in [
        ("notify", changed(2, 0x21), ResponseCode::NotImp),
        ("update", changed(2, 0x29), ResponseCode::NotImp),
        ("two questions", two, ResponseCode::FormErr),
        ("no question", changed(5, 0), ResponseCode::FormErr),
        (
            "pointer to itself",
            [&valid[..12], &[0xC0, 12, 0, 1, 0, 1]].concat(),
            ResponseCode::FormErr,
        ),
        ("class CHAOS", changed(last, 3), ResponseCode::Refused),
        ("AXFR", request("cluster.local", AXFR, None), ResponseCode::Refused),
        ("IXFR", request("cluster.local", IXFR, None), ResponseCode::Refused),
    ] {
        let over_udp = bed.udp_raw(&bytes).await.expect(what);
        assert_eq!(code(&over_udp), expected, "{what}");
        let mut stream = TcpStream::connect(bed.address).await.unwrap();
        assert_eq!(ask_over(&mut stream, &bytes).await.response_code, expected, "{what}");
    }
    let badvers = bed.udp_raw(&old_edns).await.unwrap();
    assert_eq!(u16::from(code(&badvers)), 16);
    assert_alive(&bed).await;
}

/// Several requests at once over one connection, whole and in single bytes.
#[tokio::test]
async fn requests_over_one_connection_can_be_pipelined() {
    let bed = Bed::start().await;
    let mut stream = TcpStream::connect(bed.address).await.unwrap();
    let one = framed(&request(NAME, TXT, None));
    stream.write_all(&one.repeat(1000)).await.unwrap();
    for _ in 0..1000 {
        let reply = read_reply(&mut stream).await.unwrap();
        assert_eq!(data(&Message::from_vec(&reply).unwrap()), ["1.1.0"]);
    }
    stream.set_nodelay(true).unwrap();
    for byte in &one {
        stream.write_all(&[*byte]).await.unwrap();
    }
    assert!(read_reply(&mut stream).await.is_some());
    // The client may end its side first.
    stream.write_all(&one).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(read_reply(&mut stream).await.is_some());
    assert!(read_reply(&mut stream).await.is_none());
}

#[tokio::test]
async fn largest_messages_over_tcp_do_no_harm() {
    let bed = Bed::start().await;
    let mut pointers = request(NAME, TXT, None);
    pointers[11] = 2;
    pointers.extend([0, 0, 99, 0, 1, 0, 0, 0, 0, 0xF0, 0]);
    pointers.extend((0..0xF000u32 / 2).flat_map(|number| (0xC000 | number as u16).to_be_bytes()));
    pointers.extend([0xFF, 0xFE, 0, 99, 0, 1, 0, 0, 0, 0, 0, 0]);
    for body in [vec![0; 65535], vec![0xC0; 65535], vec![0xFF; 65535], vec![1; 65535], pointers] {
        let mut stream = TcpStream::connect(bed.address).await.unwrap();
        let sent = stream.write_all(&framed(&body)).await;
        assert!(sent.is_ok());
        // An error code, or the end of the connection.
        let _ = read_reply(&mut stream).await;
    }
    // A length without a message, and an empty message.
    let mut stream = TcpStream::connect(bed.address).await.unwrap();
    stream.write_all(&[0xFF, 0xFF, 1]).await.unwrap();
    drop(stream);
    let mut stream = TcpStream::connect(bed.address).await.unwrap();
    stream.write_all(&[0, 0]).await.unwrap();
    assert!(read_reply(&mut stream).await.is_none());
    assert_alive(&bed).await;
}

#[tokio::test]
async fn one_client_cannot_take_all_connections() {
    let bed = Bed::start().await;
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..50 {
        let mut stream = TcpStream::connect(bed.address).await.unwrap();
        // A refused connection is reset or at its end.
        let _ = stream.write_all(&framed(&request(NAME, TXT, None))).await;
        match read_reply(&mut stream).await {
            Some(_) => open.push(stream),
            None => refused += 1,
        }
    }
    assert_eq!((open.len(), refused), (32, 18));
    assert_eq!(data(&bed.udp(NAME, TXT).await), ["1.1.0"]);
    drop(open);
    bed.until(NAME, TXT, |_| true).await;
}

/// Thousands of requests from many sockets at once; each gets its own reply.
#[tokio::test]
async fn thousands_of_requests_are_answered() {
    let bed = Bed::start().await;
    let mut sockets = Vec::new();
    for _ in 0..50 {
        sockets.push(bed.socket().await);
    }
    for round in 0..100 {
        for socket in &sockets {
            socket
                .send(&request(&format!("n{round}.default.svc.cluster.local"), A, None))
                .await
                .unwrap();
        }
        for socket in &sockets {
            let reply = Message::from_vec(&receive(socket).await.unwrap()).unwrap();
            assert_eq!(reply.response_code, ResponseCode::NXDomain);
            let asked = reply.queries[0].name.to_string();
            assert_eq!(asked, format!("n{round}.default.svc.cluster.local."));
        }
    }
}
