//! Not requests at all, too many of them, and callers that never finish: others are still served.

use crate::process::{self, Landfall, Reach};
use bytes::Bytes;
use http::Method;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const HALF_OPEN: usize = 500;
const SLOW: usize = 100;
/// What the server allows at once (A-191).
const IN_FLIGHT_MAX: usize = 400;
const BODY: u64 = 100 * 1024 * 1024;
/// What a refused body of 100 MiB may cost at most, however many come at once.
const MEMORY_MAX_KIB: u64 = 160 * 1024;
/// An ordinary request under siege, on a machine that runs other tests too.
const PATIENCE: Duration = Duration::from_secs(10);

async fn start() -> (Landfall, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let landfall = Landfall::start(&home.path().join("data")).await;
    (landfall, home)
}

async fn works(reach: &Reach) {
    let ask = async { reach.connect().await.unwrap().get(MAPS).await.unwrap().code() };
    assert_eq!(timeout(PATIENCE, ask).await.expect("an ordinary request is answered in time"), 200);
}

async fn end(mut landfall: Landfall) {
    assert!(landfall.is_alive());
    let dir = landfall.dir.clone();
    landfall.stop().await;
    process::assert_no_panic(&dir);
}

/// Writes, then reads what comes until the other side has no more to say.
async fn exchange(reach: &Reach, bytes: &[u8]) -> Vec<u8> {
    let mut stream = reach.tls().await.unwrap();
    let mut read = Vec::new();
    let talk = async {
        // It may hang up before it has heard everything.
        let _ = stream.write_all(bytes).await;
        let _ = stream.flush().await;
        let _ = stream.read_to_end(&mut read).await;
    };
    let _ = timeout(Duration::from_secs(3), talk).await;
    read
}

fn code_of(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).into_owned()
}

#[tokio::test]
async fn what_is_not_http_hurts_nobody() {
    let (landfall, _home) = start().await;
    let reach = landfall.reach();
    let before = landfall.client().await.get(MAPS).await.unwrap().json()["items"].clone();
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n",
        reach.token.as_ref().unwrap()
    );
    let object = r#"{"metadata":{"name":"smuggled"}}"#;
    let long = "x".repeat(1 << 20);
    let many: String = (0..5000).map(|i| format!("X-{i}: y\r\n")).collect();
    let talks: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("noise", (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
        ("zeros", vec![0; 4096]),
        ("no version", b"GET /\r\n\r\n".to_vec()),
        ("a wrong version", b"GET / HTTP/7.5\r\n\r\n".to_vec()),
        ("a header without a name", b"GET / HTTP/1.1\r\n: x\r\n\r\n".to_vec()),
        ("a long path", format!("GET /{long} HTTP/1.1\r\n\r\n").into()),
        ("a long header", format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n").into()),
        ("many headers", format!("GET / HTTP/1.1\r\n{many}\r\n").into()),
        ("two lengths", format!("{head}Content-Length: 5\r\nContent-Length: 32\r\n\r\n{object}").into()),
        ("a length that is none", format!("{head}Content-Length: -1\r\n\r\n{object}").into()),
        ("a huge length", format!("{head}Content-Length: 99999999999999999999\r\n\r\n{object}").into()),
        ("a bad chunk", format!("{head}Transfer-Encoding: chunked\r\n\r\nZZ\r\n{object}\r\n0\r\n\r\n").into()),
        ("a huge chunk", format!("{head}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{object}").into()),
        ("an unknown encoding", format!("{head}Transfer-Encoding: nonsense\r\n\r\n{object}").into()),
        ("an upgrade to nothing", b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n\r\n".to_vec()),
        ("HTTP/2 without consent", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()),
    ];
    for (what, bytes) in &talks {
        let answer = exchange(&reach, bytes).await;
        let code = code_of(&answer);
        assert!(!code.starts_with('2'), "{what}: {}", String::from_utf8_lossy(&answer));
        works(&reach).await;
    }
    // On a connection that agreed on HTTP/2: preface, then frames that are none.
    let h2 = reach.with_h2();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let settings = [0u8, 0, 0, 4, 0, 0, 0, 0, 0];
    for frames in [
        vec![0xff; 4096],
        vec![0; 4096],
        // Headers that do not decompress; a window of zero; a stream of an even number.
        [&settings[..], &[0, 0, 4, 1, 5, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]].concat(),
        [&settings[..], &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat(),
        [&settings[..], &[0, 0, 1, 1, 5, 0, 0, 0, 2, 0x82]].concat(),
        // Continuations that never end.
        [
            &settings[..],
            &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82],
            &[0, 0, 0, 9, 0, 0, 0, 0, 1].repeat(20_000),
        ]
        .concat(),
    ] {
        exchange(&h2, &[preface, &frames].concat()).await;
        works(&reach).await;
    }
    // Not even TLS.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 1], &[0; 10_000]] {
        let mut stream = TcpStream::connect(landfall.address).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let mut read = Vec::new();
        let _ = timeout(Duration::from_millis(500), stream.read_to_end(&mut read)).await;
        assert!(!read.starts_with(b"HTTP/1.1 2"));
    }
    works(&reach).await;
    assert_eq!(landfall.client().await.get(MAPS).await.unwrap().json()["items"], before);
    end(landfall).await;
}

/// HTTP/2 clients that open streams and cancel them at once, thousands of times.
#[tokio::test]
async fn streams_that_are_cancelled_at_once_hurt_nobody() {
    let (landfall, _home) = start().await;
    let reach = landfall.reach().with_h2();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let mut bytes = preface;
    for stream in (1..20_000u32).step_by(2) {
        let id = stream.to_be_bytes();
        // HEADERS of `GET https /`, then RST_STREAM.
        bytes.extend_from_slice(&[0, 0, 3, 1, 5]);
        bytes.extend_from_slice(&id);
        bytes.extend_from_slice(&[0x82, 0x87, 0x84]);
        bytes.extend_from_slice(&[0, 0, 4, 3, 0]);
        bytes.extend_from_slice(&id);
        bytes.extend_from_slice(&[0, 0, 0, 8]);
    }
    let before = landfall.memory("VmHWM");
    exchange(&reach, &bytes).await;
    works(&landfall.reach()).await;
    let grown = landfall.memory("VmHWM").saturating_sub(before);
    assert!(grown < MEMORY_MAX_KIB, "memory grew by {grown} KiB");
    end(landfall).await;
}

/// A-17
#[tokio::test]
async fn a_17_a_body_of_a_hundred_mebibytes_is_refused_early() {
    let (landfall, _home) = start().await;
    let reach = landfall.reach();
    let before = landfall.memory("VmHWM");
    let mut tasks = Vec::new();
    for i in 0..20 {
        let (reach, chunked) = (reach.clone(), i % 2 == 0);
        tasks.push(tokio::spawn(async move { push_body(&reach, chunked).await }));
    }
    for task in tasks {
        let (answer, sent) = timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(code_of(&answer), "413", "{text}");
        assert!(text.contains("RequestEntityTooLarge"), "{text}");
        assert!(sent < BODY, "all of it was taken");
    }
    let grown = landfall.memory("VmHWM").saturating_sub(before);
    println!("20 bodies of 100 MiB: memory grew by {} MiB", grown / 1024);
    assert!(grown < MEMORY_MAX_KIB, "memory grew by {grown} KiB");
    // The same over HTTP/2, where the length is known before the first byte.
    let mut client = reach.with_h2().connect().await.unwrap();
    let body = Bytes::from(vec![b' '; 8 << 20]);
    let reply = client.call(Method::POST, MAPS, "application/json", body).await.unwrap();
    assert_eq!((reply.code(), reply.reason().as_str()), (413, "RequestEntityTooLarge"));
    works(&reach).await;
    end(landfall).await;
}

/// Sends a body until there is an answer; gives that and how much was sent.
async fn push_body(reach: &Reach, chunked: bool) -> (Vec<u8>, u64) {
    let stream = reach.tls().await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let length = match chunked {
        true => "Transfer-Encoding: chunked".to_owned(),
        false => format!("Content-Length: {BODY}"),
    };
    let token = reach.token.as_ref().unwrap();
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{length}\r\n\r\n"
    );
    let mut answer = vec![0; 4096];
    let mut piece = vec![b' '; 64 * 1024];
    if chunked {
        piece.splice(..0, *b"10000\r\n");
        piece.extend_from_slice(b"\r\n");
    }
    let mut sent = 0;
    let sending = async {
        let mut going = write.write_all(head.as_bytes()).await.is_ok();
        while going && sent < BODY {
            going = write.write_all(&piece).await.is_ok();
            sent += 64 * 1024;
        }
        // Hold the connection until the answer was read.
        std::future::pending::<()>().await;
    };
    let len = tokio::select! {
        len = read.read(&mut answer) => len.unwrap_or(0),
        () = sending => 0,
    };
    answer.truncate(len);
    // The Status may come in a second piece.
    let mut rest = vec![0; 4096];
    if let Ok(Ok(more)) = timeout(Duration::from_secs(1), read.read(&mut rest)).await {
        answer.extend_from_slice(&rest[..more]);
    }
    (answer, sent)
}

#[tokio::test]
async fn callers_that_never_finish_are_hung_up_on_and_others_are_served_meanwhile() {
    let (landfall, _home) = start().await;
    let reach = landfall.reach();
    let started = Instant::now();
    let mut half_open = Vec::new();
    for _ in 0..HALF_OPEN {
        half_open.push(TcpStream::connect(landfall.address).await.unwrap());
    }
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let mut stream = reach.tls().await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
        stream.flush().await.unwrap();
        slow.push(stream);
    }
    for _ in 0..20 {
        works(&reach).await;
    }
    println!("{HALF_OPEN} half open and {SLOW} slow: others served after {:?}", started.elapsed());
    // One more letter now and then does not help them.
    let mut closed = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while closed < SLOW && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_secs(2)).await;
        closed = 0;
        for stream in &mut slow {
            let mut read = [0; 512];
            let ended = match stream.write_all(b"x").await {
                Err(_) => true,
                Ok(()) => matches!(
                    timeout(Duration::from_millis(1), stream.read(&mut read)).await,
                    Ok(Ok(0) | Err(_))
                ),
            };
            closed += usize::from(ended);
        }
    }
    println!("slow ones hung up on after {:?}", started.elapsed());
    assert_eq!(closed, SLOW, "slow callers still hold their connections");
    for stream in &mut half_open {
        let mut read = [0; 16];
        let ended = timeout(Duration::from_secs(5), stream.read(&mut read)).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "a half open connection is still held");
    }
    works(&reach).await;
    end(landfall).await;
}

#[tokio::test]
async fn a_191_too_many_requests_at_once_are_asked_to_come_back() {
    let (landfall, _home) = start().await;
    let reach = landfall.reach();
    // Requests whose body never comes, each holding its place.
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 100\r\n\r\n{{",
        reach.token.as_ref().unwrap()
    );
    let mut held = Vec::new();
    let mut client = landfall.client().await;
    let mut refused = None;
    while held.len() < IN_FLIGHT_MAX + 50 && refused.is_none() {
        for _ in 0..50 {
            let mut stream = reach.tls().await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            held.push(stream);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let reply = client.get(MAPS).await.unwrap();
        if reply.code() != 200 {
            refused = Some(reply);
        }
    }
    let refused = refused.expect("there is a limit");
    assert_eq!(refused.code(), 429);
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.text(), "Too many requests, please try again later.\n");
    assert!(held.len() >= IN_FLIGHT_MAX, "{}", held.len());
    // Who watches over the server still gets through, and so does a watch.
    assert_eq!(client.get("/readyz").await.unwrap().code(), 200);
    assert_eq!(client.get("/version").await.unwrap().code(), 200);
    let watch = client.get(&format!("{MAPS}?watch=1&timeoutSeconds=1")).await.unwrap();
    assert_eq!(watch.code(), 200);
    drop(held);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = client.post(MAPS, &json!({ "metadata": { "name": "after" } })).await.unwrap();
        if reply.code() == 201 {
            break;
        }
        assert_eq!(reply.code(), 429, "{}", reply.text());
        assert!(Instant::now() < deadline, "places are not given back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    end(landfall).await;
}
