//! Registries to pull from: Debian's `docker-registry`, and one that does what it is told.

use crate::fixture::Layout;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// bcrypt of "secret", for the user "user".
const HTPASSWD: &str = "user:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

/// `docker-registry` on a port of its own; ended with the test.
pub(crate) struct Registry {
    child: Child,
    pub(crate) host: String,
    scheme: &'static str,
    client: reqwest::Client,
}

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) password: bool,
    /// Certificate and key, PEM.
    pub(crate) tls: Option<(String, String)>,
}

impl Registry {
    pub(crate) fn start(directory: &Path, options: &Options) -> Registry {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = directory.join("registry");
        std::fs::create_dir_all(&directory).unwrap();
        let at = |name: &str| directory.join(name).display().to_string();
        let mut config =
            format!("version: 0.1\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\n", at("data"));
        if options.password {
            std::fs::write(at("htpasswd"), HTPASSWD).unwrap();
            config += &format!("auth: {{htpasswd: {{realm: r, path: {:?}}}}}\n", at("htpasswd"));
        }
        let mut http = "http: {addr: \"127.0.0.1:0\"".to_owned();
        let mut client = reqwest::Client::builder().no_proxy();
        if let Some((certificate, key)) = &options.tls {
            std::fs::write(at("cert"), certificate).unwrap();
            std::fs::write(at("key"), key).unwrap();
            http += &format!(", tls: {{certificate: {:?}, key: {:?}}}", at("cert"), at("key"));
            let trusted = reqwest::Certificate::from_pem(certificate.as_bytes()).unwrap();
            client = client.tls_certs_only([trusted]);
        }
        std::fs::write(at("config.yml"), format!("{config}{http}}}\n")).unwrap();
        let mut child = Command::new("docker-registry")
            .args(["serve", &at("config.yml")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry is installed");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, after) = line.split_once("listening on 127.0.0.1:")?;
            Some(after.split(['"', ',']).next().unwrap().to_owned())
        });
        // Somebody has to read what it says, or it stops saying and serving.
        std::thread::spawn(move || lines.for_each(drop));
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let host = format!("localhost:{}", port.expect("it listens"));
        Registry { child, host, scheme, client: client.build().unwrap() }
    }

    fn request(&self, method: reqwest::Method, url: &str) -> reqwest::RequestBuilder {
        let url = match url.strip_prefix('/') {
            Some(path) => format!("{}://{}/{path}", self.scheme, self.host),
            None => url.to_owned(),
        };
        self.client.request(method, url).basic_auth("user", Some("secret"))
    }

    /// All blobs, and each entry of the index under its tag.
    pub(crate) async fn push(&self, repository: &str, tag: &str, layout: &Layout) {
        use reqwest::Method;
        for (digest, bytes) in &layout.blobs {
            let start = self.request(Method::POST, &format!("/v2/{repository}/blobs/uploads/"));
            let answer = start.send().await.unwrap().error_for_status().unwrap();
            let location = answer.headers()["location"].to_str().unwrap().to_owned();
            let put = self.request(Method::PUT, &location).query(&[("digest", digest)]);
            put.body(bytes.clone()).send().await.unwrap().error_for_status().unwrap();
        }
        // Manifests are in the layout's blobs after what they need.
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

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the made-up registry was asked: path, and headers by lower-case name.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Breaks off after so many bytes of the body.
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

/// Answers as `answer` says, and remembers what it was asked.
pub(crate) struct Scripted {
    pub(crate) host: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    pub(crate) async fn start(
        answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Scripted {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, seen) = (Arc::new(answer), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                tokio::spawn(async move {
                    let Some(asked) = read(&mut socket).await else { return };
                    seen.lock().unwrap().push(asked.clone());
                    write(&mut socket, answer(&asked)).await;
                });
            }
        });
        Scripted { host, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn read(socket: &mut tokio::net::TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(key, value)| (key.to_lowercase(), value.to_owned())).collect();
    Some(Asked { path, headers })
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
