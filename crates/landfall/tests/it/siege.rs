//! Input that is not HTTP, too many requests, and clients that never finish: other clients are still served.

use crate::process::{self, Landfall, Reach};
use bytes::Bytes;
use futures::future::select_all;
use http::Method;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const HALF_OPEN: usize = 500;
const SLOW: usize = 100;
/// How many requests of one account may wait for their bodies (A-191).
const STALLED_MAX: usize = 200;
const BODY: u64 = 100 * 1024 * 1024;
/// The memory that rejected bodies of 100 MiB may cost, however many are sent at once.
const MEMORY_MAX_KIB: u64 = 160 * 1024;
/// 20 MB of objects.
const LARGE: usize = 100;
const LARGE_BYTES: usize = 200_000;
const UNREAD_WATCHES: usize = 500;
/// The memory that they may cost: far less than an object for each of them.
const UNREAD_MAX_KIB: u64 = 80 * 1024;
/// The longest time of an ordinary request during an attack.
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

/// Sends bytes and reads the response until the connection is closed.
async fn exchange(reach: &Reach, bytes: &[u8]) -> Vec<u8> {
    let mut stream = reach.tls().await.unwrap();
    let mut read = Vec::new();
    let talk = async {
        // The server may close the connection before it has read everything.
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
async fn input_that_is_not_http_does_no_harm() {
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
    // On an HTTP/2 connection: the preface, then invalid frames.
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

/// An HTTP/2 client opens streams and cancels them at once, thousands of times.
#[tokio::test]
async fn streams_that_are_cancelled_at_once_do_no_harm() {
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

/// A-17: a body over 3 MiB is rejected with 413.
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

/// Sends a body until there is a response; returns it and the number of bytes sent.
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
        // Keep the connection open until the response is read.
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
async fn clients_that_never_finish_are_disconnected_and_others_are_served() {
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
    // Sending a byte now and then does not prevent the timeout.
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

/// A-191: requests whose bodies never arrive are limited per account, and only that account is rejected.
#[tokio::test]
async fn a_191_one_account_with_too_many_requests_gets_429() {
    let (landfall, _home) = start().await;
    let reach = landfall.reach();
    let mut admin = landfall.client().await;
    let token = token_of_an_editor(&mut admin).await;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\n"
    );
    let stalled = format!("{head}Content-Length: 100\r\n\r\n{{");
    // Connected first, because the server waits only ten seconds for the rest of a body.
    let mut held = Vec::new();
    for _ in 0..=STALLED_MAX {
        held.push(reach.tls().await.unwrap());
    }
    for stream in &mut held {
        stream.write_all(stalled.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
    // One of them is refused, not necessarily the last: the server reads connections in any order.
    let answers = held.iter_mut().map(|stream| {
        Box::pin(async move {
            let mut answer = vec![0; 1024];
            let length = stream.read(&mut answer).await.unwrap();
            answer.truncate(length);
            answer
        })
    });
    let refused = timeout(PATIENCE, select_all(answers)).await.expect("there is a limit").0;
    let refused = String::from_utf8(refused).unwrap().to_lowercase();
    assert!(refused.starts_with("http/1.1 429"), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert!(refused.ends_with("too many requests, please try again later.\n"), "{refused}");
    // Other accounts are served as usual.
    assert_eq!(admin.get("/readyz").await.unwrap().code(), 200);
    let watch = admin.get(&format!("{MAPS}?watch=1&timeoutSeconds=1")).await.unwrap();
    assert_eq!(watch.code(), 200);
    let made = admin.post(MAPS, &json!({ "metadata": { "name": "meanwhile" } })).await.unwrap();
    assert_eq!(made.code(), 201, "{}", made.text());
    drop(held);
    let body = r#"{"metadata":{"name":"after"}}"#;
    let whole = format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let code = code_of(&exchange(&reach, whole.as_bytes()).await);
        if code == "201" {
            break;
        }
        assert_eq!(code, "429");
        assert!(Instant::now() < deadline, "the account's places are not given back");
    }
    end(landfall).await;
}

/// Clients open watches that begin with many large objects, and never read them.
#[tokio::test]
async fn unread_watches_share_the_objects_that_they_begin_with() {
    let (landfall, _home) = start().await;
    let mut client = landfall.client().await;
    for i in 0..LARGE {
        let data = json!({ "x": "x".repeat(LARGE_BYTES) });
        let object = json!({ "metadata": { "name": format!("large-{i}") }, "data": data });
        assert_eq!(client.post(MAPS, &object).await.unwrap().code(), 201);
    }
    let reach = landfall.reach();
    let request = format!(
        "GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        reach.token.as_ref().unwrap()
    );
    let before = landfall.memory("VmHWM");
    let mut unread = Vec::new();
    for _ in 0..UNREAD_WATCHES {
        let mut stream = reach.tls().await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = [0; 12];
        timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("it is answered").unwrap();
        assert_eq!(code_of(&answer), "200");
        unread.push(stream);
    }
    works(&reach).await;
    let grown = landfall.memory("VmHWM").saturating_sub(before);
    println!("{UNREAD_WATCHES} unread watches: memory grew by {} MiB", grown / 1024);
    assert!(grown < UNREAD_MAX_KIB, "memory grew by {grown} KiB");
    drop(unread);
    end(landfall).await;
}

/// Creates a service account that may write in the namespace `default`, and returns a token for it.
async fn token_of_an_editor(admin: &mut process::Client) -> String {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let made = admin.post(accounts, &json!({ "metadata": { "name": "editor" } })).await.unwrap();
    assert_eq!(made.code(), 201, "{}", made.text());
    let binding = json!({
        "metadata": { "name": "editor" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
        "subjects": [{ "kind": "ServiceAccount", "name": "editor", "namespace": "default" }],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let made = admin.post(bindings, &binding).await.unwrap();
    assert_eq!(made.code(), 201, "{}", made.text());
    let made = admin.post(&format!("{accounts}/editor/token"), &json!({})).await.unwrap();
    assert_eq!(made.code(), 201, "{}", made.text());
    made.json()["status"]["token"].as_str().expect("a token was made").to_owned()
}
