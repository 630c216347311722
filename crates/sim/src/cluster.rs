//! A simulated cluster: a control plane, hosts, an operator who uses them, and an observer of all pods.

use crate::connection::Connection;
use crate::control_plane::ControlPlane;
use crate::event_log::{Event, EventLog};
use crate::host::{Host, HostOptions};
use crate::proxy::ProxyConfig;
use crate::random::Random;
use bytes::{Bytes, BytesMut};
use client::{Client, DeleteOptions, ObjectKey};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use runtime::Runtime;
use server::ServerTemplate;
use server::authn::User;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tower::Service as _;

/// Wraps the runtime of every agent: for tests that plant a fault.
pub type WrapRuntime = Arc<dyn Fn(Arc<dyn Runtime>) -> Arc<dyn Runtime> + Send + Sync>;

/// A task with the rights of a controller that does something wrong: for tests that plant a fault.
pub type Interference =
    Arc<dyn Fn(Client) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// How long an operator waits before a request is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Nodes become ready within this time.
const READY_MAX: Duration = Duration::from_secs(120);

pub(crate) struct Cluster {
    pub(crate) log: EventLog,
    pub(crate) control_plane: ControlPlane,
    pub(crate) hosts: Vec<Host>,
    pub(crate) operator: Operator,
    connection: Connection,
    observers: Vec<JoinHandle<()>>,
    interference: Option<JoinHandle<()>>,
    seed: u64,
}

pub(crate) struct ClusterConfig<'a> {
    pub(crate) foundation: &'a ServerTemplate,
    pub(crate) seed: u64,
    pub(crate) nodes: u16,
    pub(crate) controllers: controllers::ControllerSet,
    /// Where agents store their files.
    pub(crate) directory: &'a Path,
    pub(crate) wrap_runtime: Option<WrapRuntime>,
    /// One per node. Empty: nodes have no Service proxy.
    pub(crate) proxies: Vec<ProxyConfig>,
    /// False: nothing is recorded and no rule is checked.
    pub(crate) checked: bool,
}

impl Cluster {
    /// Returns when every node is ready.
    pub(crate) async fn start(config: ClusterConfig<'_>) -> Result<Cluster, String> {
        let log = if config.checked { EventLog::new() } else { EventLog::disabled() };
        let seed = config.seed;
        let mut control_plane =
            ControlPlane::new(config.foundation, log.clone(), config.controllers, seed);
        control_plane.start().await.map_err(|error| error.to_string())?;
        let admin = User::authenticated("admin", &["system:masters"]);
        let connection = Connection::new(control_plane.handle(), admin, Random::new(seed, 1));
        let operator =
            Operator { client: Client::in_process(connection.clone()), log: log.clone() };
        let observed = if config.proxies.is_empty() { &OBSERVED[..1] } else { &OBSERVED[..] };
        let observe = |(path, event): &Observed| {
            tokio::spawn(observe(connection.clone(), log.clone(), path, *event))
        };
        let observers = observed.iter().map(observe).collect();
        let start = |number: u16| {
            let directory = config.directory.join(format!("n{number}"));
            let options = HostOptions {
                wrap_runtime: config.wrap_runtime.clone(),
                proxy: config.proxies.get(usize::from(number) - 1).cloned(),
            };
            Host::start(number, seed, control_plane.handle(), &log, directory, options)
        };
        let hosts: Vec<Host> = (1..=config.nodes).map(start).collect();
        let cluster = Cluster {
            log,
            control_plane,
            hosts,
            operator,
            connection,
            observers,
            interference: None,
            seed,
        };
        let ready = tokio::time::timeout(READY_MAX, cluster.ready()).await;
        ready.map_err(|_| "the nodes do not become ready".to_owned())?;
        Ok(cluster)
    }

    pub(crate) fn start_interference(&mut self, interference: &Interference) {
        let user = User::authenticated("system:kube-controller-manager", &["system:masters"]);
        let connection =
            Connection::new(self.control_plane.handle(), user, Random::new(self.seed, 4));
        self.interference = Some(tokio::spawn(interference(Client::in_process(connection))));
    }

    /// The store's revision, which grows by one with every write.
    pub(crate) async fn revision(&self) -> Option<u64> {
        let request =
            Request::get("/api/v1/nodes?limit=1").body(kube::client::Body::empty()).ok()?;
        let answer = self.connection.clone().call(request).await.ok()?;
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        let list: serde_json::Value = serde_json::from_slice(&body).ok()?;
        list["metadata"]["resourceVersion"].as_str()?.parse().ok()
    }

    async fn ready(&self) {
        let nodes = client::Cache::<Node>::start(&self.operator.client);
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

/// A user who creates and deletes objects, and repeats every request until the server responds.
#[derive(Clone)]
pub(crate) struct Operator {
    pub(crate) client: Client,
    pub(crate) log: EventLog,
}

impl Operator {
    pub(crate) async fn create(self, pod: Pod) {
        loop {
            match self.client.create(&pod).await {
                Ok(_) => return,
                Err(error) if error.is_already_exists() => return,
                Err(error) if error.status().is_some_and(|status| status.code < 500) => {
                    return self.log.note(format!("the server rejected a pod: {error}"));
                }
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Repeats a request until there is a response other than a conflict.
    pub(crate) async fn retry<T, F>(
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
                    self.log.note(format!("the server rejected {what}: {error}"));
                    return None;
                }
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Deletes the pod that has this name now, if there is one.
    pub(crate) async fn delete(self, name: String, grace: Option<u32>) {
        let key = ObjectKey::new("default", &name);
        let title = key.to_string();
        let Some(uid) = self.log.with_checker(|checker| checker.uid_of(&title)) else { return };
        let asked =
            Event::DeleteRequested { pod: title.as_str().into(), grace: grace.map(i64::from) };
        self.log.record(asked);
        let mut options = DeleteOptions::of_uid(&uid);
        if let Some(grace) = grace {
            options = options.grace(grace);
        }
        loop {
            match self.client.delete::<Pod>(&key, &options).await {
                Ok(_) => return,
                Err(error) if error.status().is_some_and(|status| status.code < 500) => return,
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.observers.iter().for_each(JoinHandle::abort);
        if let Some(interference) = &self.interference {
            interference.abort();
        }
    }
}

/// A path of the API, and the event as which a line of its watch is recorded.
type Observed = (&'static str, fn(Bytes) -> Event);

/// Services, slices and the readiness of nodes matter only to proxies.
const OBSERVED: [Observed; 4] = [
    ("/api/v1/pods", Event::ApiChange),
    ("/api/v1/services", Event::TrafficChange),
    ("/apis/discovery.k8s.io/v1/endpointslices", Event::TrafficChange),
    ("/api/v1/nodes", Event::TrafficChange),
];

/// Records every change of every object of one kind, across crashes of the server.
async fn observe(
    connection: Connection,
    log: EventLog,
    path: &'static str,
    event: fn(Bytes) -> Event,
) {
    if log.disabled {
        return;
    }
    let mut version = 0;
    loop {
        let watch = format!("{path}?watch=1&resourceVersion={version}");
        let request = Request::get(watch).body(kube::client::Body::empty());
        let Ok(request) = request else { return };
        if let Ok(answer) = connection.clone().call(request).await
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
                        // The initial list is ordered by name, so the last object need not be the newest.
                        version = version.max(seen);
                        log.record(event(line));
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn version_of(line: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct WatchLine {
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
    let line: WatchLine = serde_json::from_slice(line).ok()?;
    line.object.metadata.resource_version.parse().ok()
}
