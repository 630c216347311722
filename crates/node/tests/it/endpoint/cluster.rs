//! An API server, a node whose endpoint it calls, and a pod there: what every test here needs.

use super::double::Double;
use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::{Node, Pod};
use node::Pods;
use node::endpoint::{self, Endpoint, Metrics, Serving};
use runtime::Identity;
use serde_json::{Value, json};
use server::authn::User;
use server::{Config, Running, StoreChoice};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const NODE: &str = "n1";
/// Nothing that a test waits for takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Cluster {
    pub(crate) running: Running,
    pub(crate) admin: Client,
    pub(crate) endpoint: Serving,
    pub(crate) runtime: Arc<Double>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) ca: String,
    pub(crate) dir: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: dir.path().join("data"),
            listen: "127.0.0.1:0".parse().unwrap(),
            store: StoreChoice::Embedded,
            audit_log: None,
            controllers: true,
        };
        let running = server::start(config).await.unwrap();
        let door = |user| Client::in_process(running.server.door(user));
        let admin = door(User::authenticated("admin", &["system:masters"]));
        let agent = door(User::authenticated(format!("system:node:{NODE}"), &["system:nodes"]));
        let credentials = running.node_credentials(NODE, &["127.0.0.1".to_owned()]).unwrap();
        let serving = &credentials.serving;
        let shown = tls::Shown::new(&serving.certificate, &serving.key).unwrap();
        let tls = endpoint::server_config(shown, &credentials.ca_certificate);
        let (runtime, pods) = (Arc::new(Double::default()), Arc::new(Pods::default()));
        let endpoint = endpoint::serve(Endpoint {
            node: NODE.to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            tls: Arc::new(tls.unwrap()),
            client: agent,
            pods: pods.clone(),
            runtime: runtime.clone(),
            log_root: dir.path().join("log/pods"),
            host_logs: dir.path().join("log"),
            metrics: Arc::new(Metrics::default()),
            config: json!({ "maxPods": 110 }),
        });
        let endpoint = endpoint.await.unwrap();
        let ca = credentials.ca_certificate;
        let cluster = Cluster { running, admin, endpoint, runtime, pods, ca, dir };
        cluster.register(endpoint_port(&cluster)).await;
        cluster
    }

    async fn register(&self, port: u16) {
        let node = json!({ "metadata": { "name": NODE } });
        let _: Node = self.admin.create(&parse::<Node>(node)).await.unwrap();
        self.point_node_at(port).await;
    }

    pub(crate) async fn point_node_at(&self, port: u16) {
        let status = json!({ "status": {
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
        }});
        let key = ObjectKey::cluster(NODE);
        self.admin.patch_status::<Node>(&key, &status).await.unwrap();
    }

    /// A pod that runs on the node, and whose containers have said `lines`.
    pub(crate) async fn pod(&self, name: &str, containers: &[&str], lines: &str) -> Pod {
        let list: Vec<Value> = containers
            .iter()
            .map(|name| json!({ "name": name, "image": "busybox", "stdin": true }))
            .collect();
        self.pod_of(name, json!({ "nodeName": NODE, "containers": list }), lines).await
    }

    pub(crate) async fn pod_of(&self, name: &str, spec: Value, lines: &str) -> Pod {
        let wanted = json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": spec,
        });
        let wanted: Pod = parse(wanted);
        // The namespace's service account is made a moment after the server is up.
        let made = tokio::time::timeout(PATIENCE, async {
            loop {
                match self.admin.create(&wanted).await {
                    Ok(made) => return made,
                    Err(error) if error.to_string().contains("serviceaccount") => {
                        tokio::task::yield_now().await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let mut pod: Pod = made.await.unwrap();
        let names: Vec<String> =
            pod.spec.iter().flat_map(|spec| &spec.containers).map(|one| one.name.clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let states: Vec<Value> = names
            .iter()
            .map(|name| {
                json!({ "name": name, "image": "busybox", "imageID": "", "ready": true,
                    "restartCount": 0, "containerID": format!("double://{name}-id"),
                    "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } })
            })
            .collect();
        let status = json!({ "status": { "phase": "Running", "containerStatuses": states } });
        let key = ObjectKey::of(&pod);
        pod = Arc::unwrap_or_clone(self.admin.patch_status(&key, &status).await.unwrap());
        for container in &names {
            let log = self.log(&pod, container);
            std::fs::create_dir_all(log.parent().unwrap()).unwrap();
            std::fs::write(log, lines).unwrap();
        }
        let uid = pod.metadata.uid.clone().unwrap();
        let identity = Identity { uid, namespace: "default".into(), name: name.to_owned() };
        self.runtime.run(identity, &names, &self.pod_logs(&pod));
        self.pods.put(Arc::new(pod.clone()));
        pod
    }

    fn pod_logs(&self, pod: &Pod) -> PathBuf {
        let meta = &pod.metadata;
        node::logs::pod_directory(
            &self.dir.path().join("log/pods"),
            "default",
            meta.name.as_deref().unwrap(),
            meta.uid.as_deref().unwrap(),
        )
    }

    pub(crate) fn log(&self, pod: &Pod, container: &str) -> PathBuf {
        self.pod_logs(pod).join(node::logs::container_log(container, 0))
    }

    pub(crate) fn token(&self) -> String {
        let path = self.dir.path().join("data/admin.token");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }
}

fn endpoint_port(cluster: &Cluster) -> u16 {
    cluster.endpoint.address.port()
}

pub(crate) fn parse<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A port that nobody listens on, and nobody will as long as the socket is kept.
pub(crate) fn dead_port() -> (tokio::net::TcpSocket, u16) {
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = held.local_addr().unwrap().port();
    (held, port)
}
