//! Registries for tests: Debian's `docker-registry`, and a scripted one.

use super::fixture::Layout;
use std::path::Path;
use std::sync::{Arc, Mutex};
use testbed::DockerRegistry;
pub(crate) use testbed::registry::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A `docker-registry` and a client for it.
pub(crate) struct Registry {
    process: DockerRegistry,
    scheme: &'static str,
    client: reqwest::Client,
}

impl std::ops::Deref for Registry {
    type Target = DockerRegistry;

    fn deref(&self) -> &DockerRegistry {
        &self.process
    }
}

impl Registry {
    pub(crate) fn start(directory: &Path, options: &Options) -> Registry {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let process = DockerRegistry::start(directory, options);
        let mut client = reqwest::Client::builder().no_proxy();
        if let Some((certificate, _)) = &options.tls {
            let trusted = reqwest::Certificate::from_pem(certificate.as_bytes()).unwrap();
            client = client.tls_certs_only([trusted]);
        }
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        Registry { process, scheme, client: client.build().unwrap() }
    }

    fn request(&self, method: reqwest::Method, url: &str) -> reqwest::RequestBuilder {
        let url = match url.strip_prefix('/') {
            Some(path) => format!("{}://{}/{path}", self.scheme, self.host),
            None => url.to_owned(),
        };
        self.client.request(method, url).basic_auth("user", Some("secret"))
    }

    /// Pushes all blobs and manifests, those of the index with the tag.
    pub(crate) async fn push(&self, repository: &str, tag: &str, layout: &Layout) {
        use reqwest::Method;
        for (digest, bytes) in &layout.blobs {
            let start = self.request(Method::POST, &format!("/v2/{repository}/blobs/uploads/"));
            let answer = start.send().await.unwrap().error_for_status().unwrap();
            let location = answer.headers()["location"].to_str().unwrap();
            let mut location = answer.url().join(location).unwrap();
            location.query_pairs_mut().append_pair("digest", digest);
            let put = self.request(Method::PUT, location.as_str());
            put.body(bytes.clone()).send().await.unwrap().error_for_status().unwrap();
        }
        // In the layout's blobs, a manifest comes after the blobs that it refers to.
        for (digest, bytes) in &layout.blobs {
            let Ok(document) = serde_json::from_slice::<serde_json::Value>(bytes) else { continue };
            let kind = match (document.get("layers"), document.get("manifests")) {
                (Some(_), _) => "application/vnd.oci.image.manifest.v1+json",
                (_, Some(_)) => "application/vnd.oci.image.index.v1+json",
                _ => continue,
            };
            let tagged = layout.index.iter().any(|entry| entry["digest"] == **digest);
            let reference = if tagged { tag } else { digest };
            let url = format!("/v2/{repository}/manifests/{reference}");
            let put = self.request(Method::PUT, &url).header("content-type", kind);
            let answer = put.body(bytes.clone()).send().await.unwrap();
            assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        }
    }
}

/// A request to the scripted registry: path, and headers with lower-case names.
#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl RecordedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Closes the connection after this many bytes of the body.
    pub(crate) cut: Option<usize>,
}

impl Answer {
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Answer {
        Answer { status: 200, headers: Vec::new(), body: body.into(), cut: None }
    }

    pub(crate) fn status(status: u16) -> Answer {
        Answer { status, ..Answer::ok("") }
    }
}

/// A registry that answers with a function and records the requests.
pub(crate) struct Scripted {
    pub(crate) host: String,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl Scripted {
    pub(crate) async fn start(
        answer: impl Fn(&RecordedRequest) -> Answer + Send + Sync + 'static,
    ) -> Scripted {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, recorded) = (Arc::new(answer), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (answer, recorded) = (Arc::clone(&answer), Arc::clone(&recorded));
                tokio::spawn(async move {
                    let Some(request) = read(&mut socket).await else { return };
                    recorded.lock().unwrap().push(request.clone());
                    write(&mut socket, answer(&request)).await;
                });
            }
        });
        Scripted { host, requests }
    }

    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().clone()
    }
}

async fn read(socket: &mut tokio::net::TcpStream) -> Option<RecordedRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(key, value)| (key.to_lowercase(), value.to_owned())).collect();
    Some(RecordedRequest { path, headers })
}

async fn write(socket: &mut tokio::net::TcpStream, answer: Answer) {
    let mut head = format!("HTTP/1.1 {} x\r\nconnection: close\r\n", answer.status);
    head += &format!("content-length: {}\r\n", answer.body.len());
    for (key, value) in &answer.headers {
        head += &format!("{key}: {value}\r\n");
    }
    let body = &answer.body[..answer.cut.unwrap_or(answer.body.len())];
    let _ = socket.write_all(head.as_bytes()).await;
    let _ = socket.write_all(b"\r\n").await;
    let _ = socket.write_all(body).await;
    let _ = socket.shutdown().await;
}
