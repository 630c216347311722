//! httpGet probes with a server that sends prepared responses (N-97 to N-99).

use super::{attempt, closed_port, failure, outcome_of};
use crate::probes::handler::Outcome;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use testbed::machine::Commands;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Responds to requests and keeps a list of them.
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// `respond` returns the whole response for a request line.
    pub(super) async fn start(respond: impl Fn(&str) -> String + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                let mut more = [0; 1024];
                // 22 starts a TLS handshake, which has no end of headers to wait for.
                while !request.windows(4).any(|end| end == b"\r\n\r\n")
                    && request.first() != Some(&22)
                {
                    match stream.read(&mut more).await {
                        Ok(n) if n > 0 => request.extend_from_slice(&more[..n]),
                        _ => break,
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let line = request.lines().next().unwrap_or_default().to_owned();
                kept.lock().unwrap().push(request);
                let _ = stream.write_all(respond(&line).as_bytes()).await;
            }
        });
        Server { port, requests }
    }

    pub(super) fn last(&self) -> String {
        self.requests.lock().unwrap().last().cloned().unwrap_or_default()
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    async fn get(&self, change: Value) -> Outcome {
        let mut action = json!({ "port": self.port, "path": "/" });
        for (key, value) in change.as_object().unwrap() {
            action[key] = value.clone();
        }
        outcome_of(json!({ "httpGet": action })).await
    }
}

pub(super) fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

#[tokio::test]
async fn n_99_the_status_decides() {
    for (status, expected) in [
        ("200 OK", Outcome::Success),
        ("204 No Content", Outcome::Success),
        ("299 Fine", Outcome::Success),
        (
            "304 Not Modified",
            Outcome::Warning("Probe terminated redirects, Response body: ".into()),
        ),
        ("400 Bad", failure("HTTP probe failed with statuscode: 400")),
        ("503 No", failure("HTTP probe failed with statuscode: 503")),
    ] {
        let server = Server::start(move |_| response(status, "", "")).await;
        assert_eq!(server.get(json!({})).await, expected, "{status}");
    }
}

#[tokio::test]
async fn n_98_requests_have_the_headers_of_a_kubelet() {
    let server = Server::start(|_| response("200 OK", "", "")).await;
    server.get(json!({ "path": "health?deep=1" })).await;
    let port = server.port;
    let expected = format!(
        "GET /health?deep=1 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\
         User-Agent: kube-probe/1.36\r\nAccept: */*\r\n\r\n"
    );
    assert_eq!(server.last(), expected);
    let header = |name: &str, value: &str| json!({ "name": name, "value": value });
    let headers = json!([
        header("Host", "example.com"),
        header("user-agent", "mine"),
        header("Accept", ""),
        header("X-Twice", "1"),
        header("X-Twice", "2")
    ]);
    server.get(json!({ "httpHeaders": headers })).await;
    let request = server.last();
    for line in ["Host: example.com", "User-Agent: mine", "X-Twice: 1", "X-Twice: 2"] {
        assert!(request.contains(&format!("\r\n{line}\r\n")), "{line} in {request}");
    }
    assert!(!request.contains("Accept"), "{request}");
}

#[tokio::test]
async fn n_99_redirects_are_followed_on_the_same_host_and_at_most_ten_times() {
    let other = Server::start(|_| response("200 OK", "", "")).await;
    let port = other.port;
    let to = move |line: &str| {
        let location = match line.split(' ').nth(1).unwrap_or_default() {
            "/relative" => "good".to_owned(),
            "/other-port" => format!("http://127.0.0.1:{port}/"),
            "/other-host" => format!("http://localhost:{port}/"),
            "/round" => "/round".to_owned(),
            _ => return response("200 OK", "", ""),
        };
        response("302 Found", &format!("Location: {location}\r\n"), "moved")
    };
    let server = Server::start(to).await;
    assert_eq!(server.get(json!({ "path": "/relative" })).await, Outcome::Success);
    assert!(server.last().starts_with("GET /good "), "{}", server.last());
    assert_eq!(server.get(json!({ "path": "/other-port" })).await, Outcome::Success);
    assert_eq!(other.count(), 1);
    let warning = Outcome::Warning("Probe terminated redirects, Response body: moved".to_owned());
    assert_eq!(server.get(json!({ "path": "/other-host" })).await, warning);
    assert_eq!(other.count(), 1);
    let port = server.port;
    let message = format!("Get \"http://127.0.0.1:{port}/round\": stopped after 10 redirects");
    assert_eq!(server.get(json!({ "path": "/round" })).await, failure(&message));
}

#[tokio::test]
async fn n_99_and_n_103_refused_connections_and_timeouts_fail_with_gos_messages() {
    let port = closed_port().await;
    let message = format!(
        "Get \"http://127.0.0.1:{port}/\": dial tcp 127.0.0.1:{port}: connect: connection refused"
    );
    assert_eq!(
        outcome_of(json!({ "httpGet": { "port": port, "path": "/" } })).await,
        failure(&message)
    );
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let message = format!(
        "Get \"http://127.0.0.1:{port}/x\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    );
    assert_eq!(
        outcome_of(json!({ "httpGet": { "port": port, "path": "/x" } })).await,
        failure(&message)
    );
}

#[tokio::test]
async fn a_closed_connection_is_a_failure() {
    let server = Server::start(|_| String::new()).await;
    let port = server.port;
    let message = format!("Get \"http://127.0.0.1:{port}/\": EOF");
    assert_eq!(server.get(json!({})).await, failure(&message));
}

#[tokio::test]
async fn n_99_only_the_start_of_a_body_is_read() {
    let server = Server::start(|_| {
        // The length is larger than the body: waiting for the rest would never end.
        let body = "x".repeat(20_000);
        format!("HTTP/1.1 302 Found\r\nContent-Length: 1000000\r\n\r\n{body}")
    })
    .await;
    let Outcome::Warning(text) = server.get(json!({})).await else { panic!("it is a redirect") };
    assert_eq!(text.matches('x').count(), 10 * 1024);
}

#[tokio::test]
async fn n_98_certificates_are_not_verified() {
    let server = tls_server().await;
    let get = json!({ "httpGet": { "port": server, "path": "/", "scheme": "HTTPS" } });
    assert_eq!(attempt(get, json!({}), Commands::Hang).await.0, Outcome::Success);
}

#[tokio::test]
async fn plain_http_instead_of_https_fails_with_gos_message() {
    let server = Server::start(|_| response("400 Bad Request", "", "")).await;
    let port = server.port;
    let message = format!(
        "Get \"https://127.0.0.1:{port}/\": http: server gave HTTP response to HTTPS client"
    );
    assert_eq!(server.get(json!({ "scheme": "HTTPS" })).await, failure(&message));
}

/// Starts a server with a self-signed certificate for another name. Returns its port.
async fn tls_server() -> u16 {
    let generated = rcgen::generate_simple_self_signed(["elsewhere.example".to_owned()]).unwrap();
    let key =
        rustls::pki_types::PrivateKeyDer::try_from(generated.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![generated.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(response("200 OK", "", "").as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    port
}
