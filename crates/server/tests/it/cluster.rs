//! A server in this process and its clients, for all tests of this crate.
//!
//! Requests to a [`Cluster`] are made as its administrator; `user` and `node` are clients of other users.

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use server::authn::User;
use server::{Body, Config, InProcessService, Running, StoreChoice};
use std::time::Duration;
use tower::Service as _;

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// The timeout of everything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Cluster {
    pub(crate) running: Running,
    pub(crate) dir: tempfile::TempDir,
    admin: Client,
}

/// Requests are made as the administrator.
impl std::ops::Deref for Cluster {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.admin
    }
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        Self::at(tempfile::tempdir().unwrap()).await
    }

    pub(crate) async fn at(dir: tempfile::TempDir) -> Cluster {
        let config = config(dir.path());
        Self::with(dir, config).await
    }

    pub(crate) async fn with(dir: tempfile::TempDir, config: Config) -> Cluster {
        let running = server::start(config).await.unwrap();
        let admin = Client::of(&running, User::authenticated("admin", &["system:masters"]));
        Cluster { running, dir, admin }
    }

    /// With simulated time. Needs a paused runtime.
    pub(crate) async fn on_simulated_time() -> Cluster {
        clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 1);
        Self::start().await
    }

    pub(crate) async fn restart(self) -> Cluster {
        self.running.stop().await;
        Self::at(self.dir).await
    }

    /// Restarts the server, with these objects put into the store in a state that only a crash leaves.
    pub(crate) async fn with_stored(self, collection: &str, objects: &[Value]) -> Cluster {
        self.running.stop().await;
        let envelope = store::Envelope { created: b"", updated: b"", deleted: b"", end: b"" };
        let path = self.dir.path().join("store.redb");
        let options = store::Options::new(envelope);
        let store = store::Store::<()>::open(store::Backend::Embedded { path }, options).await;
        let store = store.unwrap();
        for object in objects {
            let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
            let write = store::Write {
                collection: collection.into(),
                name: format!("{}/{}", namespace.as_str().unwrap(), name.as_str().unwrap()),
                expect: store::Expect::Revision(version(object).parse().unwrap()),
                change: store::Change::Put(draft(object)),
            };
            assert!(store.write(write).await.is_ok());
        }
        store.close().await.unwrap();
        Self::at(self.dir).await
    }

    pub(crate) fn admin(&self) -> Client {
        self.admin.clone()
    }

    pub(crate) fn node(&self, name: &str) -> Client {
        self.user(User::authenticated(format!("system:node:{name}"), &["system:nodes"]))
    }

    pub(crate) fn user(&self, user: User) -> Client {
        Client::of(&self.running, user)
    }
}

pub(crate) fn config(dir: &std::path::Path) -> Config {
    Config {
        data_dir: dir.into(),
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StoreChoice::Embedded,
        service_ranges: Default::default(),
        audit_log: None,
        controllers: true,
    }
}

/// The object in the server's layout, with its type first and a gap for its version.
fn draft(object: &Value) -> store::Draft {
    let mut rest = object.clone();
    let fields = rest.as_object_mut().unwrap();
    let (kind, version) = (fields.remove("kind").unwrap(), fields.remove("apiVersion").unwrap());
    let mut metadata = fields.remove("metadata").unwrap();
    metadata.as_object_mut().unwrap().remove("resourceVersion");
    let head =
        format!("{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{{\"resourceVersion\":\"");
    let bytes = format!("{head}\",{},{}", &metadata.to_string()[1..], &rest.to_string()[1..]);
    store::Draft { revision_at: head.len(), bytes: bytes.into_bytes() }
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
    /// Null if the body is not JSON.
    pub(crate) body: Value,
}

impl Reply {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        let all = self.headers.get_all("warning").iter();
        all.map(|text| text.to_str().unwrap()).collect()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap()
    }

    /// The body of a successful response.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!((200..300).contains(&self.code), "{}: {}", self.code, self.body);
        self.body
    }

    /// Asserts an error with this code and reason, and returns the message.
    #[track_caller]
    pub(crate) fn refused(&self, code: u16, reason: &str) -> &str {
        assert_eq!((self.code, self.reason()), (code, reason), "{}", self.body);
        self.message()
    }
}

#[derive(Clone)]
pub(crate) struct Client {
    service: InProcessService,
}

impl Client {
    pub(crate) fn of(running: &Running, user: User) -> Client {
        Client { service: running.server.in_process(user) }
    }

    /// Sends a request and returns when the headers of the response are there.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(escaped(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        self.service.clone().call(request).await.unwrap()
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let (parts, body) = self.open(method, path, headers, body).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        Reply { code: parts.status.as_u16(), headers: parts.headers, bytes, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("GET", path, headers, "").await
    }

    /// GET that must succeed.
    pub(crate) async fn read(&self, path: &str) -> Value {
        let reply = self.get(path).await;
        assert_eq!(reply.code, 200, "{path}: {}", reply.body);
        reply.body
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send("PUT", path, &[("content-type", "application/json")], body.to_string()).await
    }

    /// A merge patch.
    pub(crate) async fn patch(&self, path: &str, body: Value) -> Reply {
        self.patch_as(MERGE, path, body.to_string()).await
    }

    pub(crate) async fn patch_as(&self, media: &str, path: &str, body: impl Into<Bytes>) -> Reply {
        self.send("PATCH", path, &[("content-type", media)], body).await
    }

    /// A server-side apply.
    pub(crate) async fn apply(&self, path: &str, manager: &str, body: Value) -> Reply {
        self.patch_as(APPLY, &format!("{path}?fieldManager={manager}"), body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, &[], "").await
    }

    pub(crate) async fn delete_with(&self, path: &str, options: Value) -> Reply {
        self.send("DELETE", path, &[("content-type", "application/json")], options.to_string())
            .await
    }

    /// A create that must succeed.
    pub(crate) async fn make(&self, path: &str, body: Value) -> Value {
        let reply = self.post(path, body).await;
        assert_eq!(reply.code, 201, "{}", reply.body);
        reply.body
    }

    /// The names in a list, in its order.
    pub(crate) async fn names(&self, path: &str) -> Vec<String> {
        names(&self.read(path).await)
    }

    /// The collection's version now.
    pub(crate) async fn version(&self, path: &str) -> String {
        version(&self.read(&format!("{path}?limit=1")).await)
    }

    pub(crate) async fn watch(&self, path: &str) -> Watch {
        self.watch_as(path, "application/json").await
    }

    pub(crate) async fn watch_as(&self, path: &str, accept: &str) -> Watch {
        let mark = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{mark}watch=1");
        let answer = self.open("GET", &path, &[("accept", accept)], "").await;
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        let (parts, body) = answer.into_parts();
        Watch { headers: parts.headers, body, read: Vec::new(), patience: PATIENCE }
    }

    /// With a timeout of minutes, for simulated time.
    pub(crate) async fn patient_watch(&self, path: &str) -> Watch {
        Watch { patience: 60 * PATIENCE, ..self.watch(path).await }
    }

    /// A pod that is bound to a node, so that it terminates gracefully.
    pub(crate) async fn bound(&self, pod: Value) -> Value {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.make(PODS, pod).await;
        self.bind(&name).await.ok();
        self.read(&format!("{PODS}/{name}")).await
    }

    pub(crate) async fn bind(&self, name: &str) -> Reply {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                             "target": {"kind": "Node", "name": "n1"}});
        self.post(&format!("{PODS}/{name}/binding"), binding).await
    }

    /// Waits until the path returns this code, for at most a second.
    pub(crate) async fn until(&self, path: &str, code: u16) -> bool {
        let waited = tokio::time::timeout(Duration::from_secs(1), async {
            while self.get(path).await.code != code {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.is_ok()
    }
}

/// Escapes selectors.
fn escaped(path: &str) -> String {
    path.replace(' ', "%20").replace('<', "%3C").replace('>', "%3E")
}

/// The stream of a watch, line by line.
pub(crate) struct Watch {
    pub(crate) headers: HeaderMap,
    body: Body,
    read: Vec<u8>,
    patience: Duration,
}

impl Watch {
    /// The next line, or none at the end of the stream.
    pub(crate) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap());
            }
            let frame = tokio::time::timeout(self.patience, self.body.frame()).await;
            let frame = frame.expect("an event or the end of the watch")?;
            self.read.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
    }

    pub(crate) async fn next(&mut self) -> Value {
        let line = self.line().await.expect("another event");
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<Value> {
        let mut events = Vec::new();
        for _ in 0..count {
            events.push(self.next().await);
        }
        events
    }

    /// The next events as `TYPE name`.
    pub(crate) async fn reply(&mut self, count: usize) -> Vec<String> {
        let events = self.take(count).await;
        let summary = |event: &Value| {
            let kind = event["type"].as_str().unwrap();
            format!("{kind} {}", event["object"]["metadata"]["name"].as_str().unwrap_or("-"))
        };
        events.iter().map(summary).collect()
    }
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "app", "image": "nginx:1.27"}]},
    })
}

pub(crate) fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

pub(crate) fn labelled(mut object: Value, labels: Value) -> Value {
    object["metadata"]["labels"] = labels;
    object
}

pub(crate) fn held(mut object: Value, finalizer: &str) -> Value {
    object["metadata"]["finalizers"] = json!([finalizer]);
    object
}

pub(crate) fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}},
                 "template": template(name)},
    })
}

pub(crate) fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}},
           "spec": {"containers": [{"name": "app", "image": "nginx:1.27"}]}})
}

pub(crate) fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// Seconds since 1970.
pub(crate) fn seconds(time: &Value) -> i64 {
    let time: jiff::Timestamp = time.as_str().expect("a time").parse().unwrap();
    time.as_second()
}

pub(crate) fn now() -> i64 {
    clock::now().as_second()
}
