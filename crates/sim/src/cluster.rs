//! A simulated cluster: a control plane, hosts, somebody who uses them and somebody who watches.

use crate::book::{Book, What};
use crate::chance::Chance;
use crate::host::Host;
use crate::line::Line;
use crate::plane::Plane;
use bytes::{Bytes, BytesMut};
use client::{Client, DeleteOptions, ObjectKey};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use runtime::Runtime;
use server::Foundation;
use server::authn::User;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tower::Service as _;

/// Put around the runtime of every agent: for tests that plant a fault.
pub type Wrap = Arc<dyn Fn(Arc<dyn Runtime>) -> Arc<dyn Runtime> + Send + Sync>;

/// Somebody who meddles with the right of a controller: for tests that plant a fault.
pub type Besides = Arc<dyn Fn(Client) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A user asks again after this when there was no answer.
const AGAIN: Duration = Duration::from_millis(200);
/// Nodes are ready within this, in simulated time.
const READY_MAX: Duration = Duration::from_secs(120);

pub(crate) struct Cluster {
    pub(crate) book: Book,
    pub(crate) plane: Plane,
    pub(crate) hosts: Vec<Host>,
    pub(crate) person: Person,
    line: Line,
    observer: JoinHandle<()>,
    meddler: Option<JoinHandle<()>>,
    seed: u64,
}

/// How a cluster is made.
pub(crate) struct Shape<'a> {
    pub(crate) foundation: &'a Foundation,
    pub(crate) seed: u64,
    pub(crate) nodes: u16,
    pub(crate) who: controllers::Who,
    /// Where agents keep what they keep on disk.
    pub(crate) directory: &'a Path,
    pub(crate) wrap: Option<Wrap>,
    /// Not: what happens is neither written down nor looked at.
    pub(crate) judged: bool,
}

impl Cluster {
    /// On return every node is ready.
    pub(crate) async fn start(shape: Shape<'_>) -> Result<Cluster, String> {
        let book = if shape.judged { Book::new() } else { Book::closed() };
        let seed = shape.seed;
        let mut plane = Plane::new(shape.foundation, book.clone(), shape.who, seed);
        plane.start().await.map_err(|error| error.to_string())?;
        let admin = User::authenticated("admin", &["system:masters"]);
        let line = Line::new(plane.port(), admin, Chance::new(seed, 1));
        let person = Person { client: Client::in_process(line.clone()), book: book.clone() };
        let observer = tokio::spawn(observe(line.clone(), book.clone()));
        let start = |number| {
            let directory = shape.directory.join(format!("n{number}"));
            Host::start(number, seed, plane.port(), &book, directory, shape.wrap.clone())
        };
        let hosts: Vec<Host> = (1..=shape.nodes).map(start).collect();
        let cluster = Cluster { book, plane, hosts, person, line, observer, meddler: None, seed };
        let ready = tokio::time::timeout(READY_MAX, cluster.ready()).await;
        ready.map_err(|_| "the nodes do not become ready".to_owned())?;
        Ok(cluster)
    }

    pub(crate) fn let_in(&mut self, besides: &Besides) {
        let user = User::authenticated("system:kube-controller-manager", &["system:masters"]);
        let line = Line::new(self.plane.port(), user, Chance::new(self.seed, 4));
        self.meddler = Some(tokio::spawn(besides(Client::in_process(line))));
    }

    /// How much has ever been stored: everything that changes is one more.
    pub(crate) async fn revision(&self) -> Option<u64> {
        let request =
            Request::get("/api/v1/nodes?limit=1").body(kube::client::Body::empty()).ok()?;
        let answer = self.line.clone().call(request).await.ok()?;
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        let list: serde_json::Value = serde_json::from_slice(&body).ok()?;
        list["metadata"]["resourceVersion"].as_str()?.parse().ok()
    }

    async fn ready(&self) {
        let nodes = client::Cache::<Node>::start(&self.person.client);
        let mut changes = nodes.subscribe();
        let able = |node: &Node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
                && taints.is_none_or(Vec::is_empty)
        };
        while nodes.list().iter().filter(|node| able(node)).count() < self.hosts.len() {
            changes.next().await;
        }
    }
}

/// Somebody who wants pods and wants them gone. Does not give up before there is an answer.
#[derive(Clone)]
pub(crate) struct Person {
    pub(crate) client: Client,
    pub(crate) book: Book,
}

impl Person {
    pub(crate) async fn create(self, pod: Pod) {
        loop {
            match self.client.create(&pod).await {
                Ok(_) => return,
                Err(error) if error.is_already_exists() => return,
                Err(error) if error.status().is_some_and(|status| status.code < 500) => {
                    return self.book.say(format!("a pod was refused: {error}"));
                }
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Asks until there is an answer, and again if somebody else was faster.
    pub(crate) async fn insist<T, F>(
        &self,
        what: &str,
        mut ask: impl FnMut(Client) -> F,
    ) -> Option<T>
    where
        F: Future<Output = client::Result<T>>,
    {
        loop {
            match ask(self.client.clone()).await {
                Ok(answer) => return Some(answer),
                Err(error) if error.is_not_found() || error.is_already_exists() => return None,
                Err(error)
                    if !error.is_conflict()
                        && error.status().is_some_and(|status| status.code < 500) =>
                {
                    self.book.say(format!("{what} was refused: {error}"));
                    return None;
                }
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Deletes the pod that has the name now, if there is one.
    pub(crate) async fn delete(self, name: String, grace: Option<u32>) {
        let key = ObjectKey::new("default", &name);
        let title = key.to_string();
        let Some(uid) = self.book.ask(|judge| judge.uid_of(&title)) else { return };
        let asked = What::Asked { pod: title.as_str().into(), grace: grace.map(i64::from) };
        self.book.write(asked);
        let mut options = DeleteOptions::of_uid(&uid);
        if let Some(grace) = grace {
            options = options.grace(grace);
        }
        loop {
            match self.client.delete::<Pod>(&key, &options).await {
                Ok(_) => return,
                Err(error) if error.status().is_some_and(|status| status.code < 500) => return,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.observer.abort();
        if let Some(meddler) = &self.meddler {
            meddler.abort();
        }
    }
}

/// Writes every change of every pod into the book, across crashes of the server.
async fn observe(line: Line, book: Book) {
    if book.closed {
        return;
    }
    let mut version = 0;
    loop {
        let path = format!("/api/v1/pods?watch=1&resourceVersion={version}");
        let request = Request::get(path).body(kube::client::Body::empty());
        let Ok(request) = request else { return };
        if let Ok(answer) = line.clone().call(request).await
            && answer.status().is_success()
        {
            let mut body = answer.into_body();
            let mut unread = BytesMut::new();
            while let Some(Ok(frame)) = body.frame().await {
                let Ok(data) = frame.into_data() else { continue };
                unread.extend_from_slice(&data);
                while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                    let line: Bytes = unread.split_to(end + 1).freeze();
                    if let Some(seen) = version_of(&line) {
                        // What was there before comes by name, so that the last need not be the newest.
                        version = version.max(seen);
                        book.write(What::Api(line));
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn version_of(line: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Line {
        object: Object,
    }
    #[derive(serde::Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    let line: Line = serde_json::from_slice(line).ok()?;
    line.object.metadata.resource_version.parse().ok()
}
