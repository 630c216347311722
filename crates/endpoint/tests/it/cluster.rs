//! What every test needs: an API server, and a node with an endpoint and pods.

use client::{Client, ObjectKey};
use endpoint::{Endpoint, Metrics, PodLookup, Serving};
use k8s_openapi::api::core::v1::{Node, Pod};
use runtime::Identity;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testbed::kubectl::InstalledKubectl;
use testbed::machine::Commands;
use testbed::{Kubectl, Machine, TestServer};

pub(crate) const NODE: &str = "n1";
/// Longer than anything takes here; makes a failing test end.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The pods of the node, by uid.
#[derive(Default)]
pub(crate) struct TestPods(Mutex<BTreeMap<String, Arc<Pod>>>);

impl TestPods {
    pub(crate) fn put(&self, pod: Arc<Pod>) {
        self.0.lock().unwrap().insert(pod.metadata.uid.clone().unwrap(), pod);
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.0.lock().unwrap().remove(uid);
    }
}

impl PodLookup for TestPods {
    fn by_uid(&self, uid: &str) -> Option<Arc<Pod>> {
        self.0.lock().unwrap().get(uid).cloned()
    }

    fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.list().into_iter().find(|pod| {
            let meta = &pod.metadata;
            meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name)
        })
    }

    fn list(&self) -> Vec<Arc<Pod>> {
        self.0.lock().unwrap().values().cloned().collect()
    }
}

pub(crate) struct Cluster {
    pub(crate) server: TestServer,
    pub(crate) admin: Client,
    pub(crate) endpoint: Serving,
    pub(crate) runtime: Arc<Machine>,
    pub(crate) pods: Arc<TestPods>,
    pub(crate) ca: String,
    pub(crate) dir: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::with_controllers().await;
        let (admin, agent) = (server.admin(), server.node(NODE));
        let credentials = server.running.node_credentials(NODE, &["127.0.0.1".to_owned()]).unwrap();
        let serving = &credentials.serving;
        let shown = tls::RenewableCertificate::new(&serving.certificate, &serving.key).unwrap();
        let tls = endpoint::server_config(shown, &credentials.ca_certificate);
        let (runtime, pods) = (Machine::new(), Arc::new(TestPods::default()));
        runtime.set_commands(Commands::OnHost);
        runtime.without_network();
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
        let cluster = Cluster { server, admin, endpoint, runtime, pods, ca, dir };
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

    /// Creates a pod that runs on the node, with `lines` as the log of each container.
    pub(crate) async fn pod(&self, name: &str, containers: &[&str], lines: &str) -> Pod {
        let list: Vec<Value> = containers
            .iter()
            .map(|name| json!({ "name": name, "image": "busybox", "stdin": true }))
            .collect();
        self.pod_of(name, json!({ "nodeName": NODE, "containers": list }), lines).await
    }

    pub(crate) async fn pod_of(&self, name: &str, spec: Value, lines: &str) -> Pod {
        let pod = json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": spec,
        });
        let pod: Pod = parse(pod);
        // The service account of the namespace exists shortly after the server has started.
        let created = tokio::time::timeout(TIMEOUT, async {
            loop {
                match self.admin.create(&pod).await {
                    Ok(created) => return created,
                    Err(error) if error.to_string().contains("serviceaccount") => {
                        tokio::task::yield_now().await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let mut pod: Pod = created.await.unwrap();
        let names: Vec<String> =
            pod.spec.iter().flat_map(|spec| &spec.containers).map(|one| one.name.clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let states: Vec<Value> = names
            .iter()
            .map(|name| {
                json!({ "name": name, "image": "busybox", "imageID": "", "ready": true,
                    "restartCount": 0, "containerID": format!("testbed://{name}-id"),
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
        self.runtime.run_pod(identity, &names, &self.pod_logs(&pod));
        self.pods.put(Arc::new(pod.clone()));
        pod
    }

    fn pod_logs(&self, pod: &Pod) -> PathBuf {
        let meta = &pod.metadata;
        endpoint::logs::pod_directory(
            &self.dir.path().join("log/pods"),
            "default",
            meta.name.as_deref().unwrap(),
            meta.uid.as_deref().unwrap(),
        )
    }

    pub(crate) fn log(&self, pod: &Pod, container: &str) -> PathBuf {
        self.pod_logs(pod).join(endpoint::logs::container_log(container, 0))
    }

    pub(crate) fn token(&self) -> String {
        let (_, token, _) = self.server.credentials();
        token
    }

    /// Every installed version of kubectl.
    pub(crate) fn kubectls(&self) -> Vec<Kubectl> {
        testbed::installed_kubectls().iter().map(|installed| self.kubectl(installed)).collect()
    }

    pub(crate) fn kubectl(&self, installed: &InstalledKubectl) -> Kubectl {
        let home = self.dir.path().join(format!("kubectl-{}", installed.version));
        Kubectl::new(home, &self.server.running.kubeconfig, installed, "default")
    }
}

fn endpoint_port(cluster: &Cluster) -> u16 {
    cluster.endpoint.address.port()
}

pub(crate) fn parse<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A port without a listener. The socket reserves it.
pub(crate) fn dead_port() -> (tokio::net::TcpSocket, u16) {
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = held.local_addr().unwrap().port();
    (held, port)
}
