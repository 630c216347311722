//! A server, its controllers, and a hand that plays the node.

use client::{Client, DeleteOptions, ObjectKey, Selection};
use controllers::{Handle, Options};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use serde_json::{Value, json};
use server::authn::User;
use server::{Config, Door, Running, StoreChoice};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Nothing here takes that long; it is there so that a failing test ends.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often a test looks. The clock is paused, so this costs nothing.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) const NAMESPACE: &str = "default";

pub(crate) struct Cluster {
    pub(crate) client: Client,
    running: Running,
    controllers: Handle,
    heartbeats: JoinHandle<()>,
    data_dir: TempDir,
}

/// The node that pods run on if they are not meant for another. No DaemonSet wants it.
pub(crate) const WORKER: &str = "worker";

/// Who controllers are: told apart from the tests.
const CONTROLLERS: &str = "system:kube-controller-manager";

fn controllers_door(running: &Running) -> Door {
    running.server.door(User::authenticated(CONTROLLERS, &["system:masters"]))
}

/// Every node is heard of, so that nobody takes their pods away.
async fn heartbeats(client: Client) {
    loop {
        for node in client.list::<Node>(&Selection::default()).await.unwrap_or_default() {
            let lease = json!({
                "metadata": { "namespace": "kube-node-lease", "name": node.metadata.name },
                "spec": { "renewTime": clock::rfc3339_micros(clock::now()) },
            });
            let _ = client.apply::<Lease>(lease).await;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        // The wall follows the paused clock. One process runs one test, or else the first decides.
        clock::simulate("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data_dir = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: data_dir.path().into(),
            listen: ([127, 0, 0, 1], 0).into(),
            store: StoreChoice::Embedded,
            audit_log: Some(data_dir.path().join("audit")),
            controllers: true,
        };
        let running = server::start(config).await.unwrap();
        let admin = User::authenticated("tester", &["system:masters"]);
        let client = Client::in_process(running.server.door(admin));
        let client_of_theirs = Client::in_process(controllers_door(&running));
        let controllers = controllers::start(&client_of_theirs, Options::default());
        let heartbeats = tokio::spawn(heartbeats(client.clone()));
        let cluster = Cluster { client, running, controllers, heartbeats, data_dir };
        let taint = json!({ "taints": [{ "key": "tests", "effect": "NoSchedule" }] });
        cluster.ready_node(json!({ "metadata": { "name": WORKER }, "spec": taint })).await;
        cluster
    }

    pub(crate) async fn ready_node(&self, node: Value) {
        let node = self.create::<Node>(node).await;
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        self.client.patch_status::<Node>(&ObjectKey::of(&node), &ready).await.unwrap();
    }

    pub(crate) async fn stop(self) {
        self.heartbeats.abort();
        self.controllers.stop().await;
        self.running.stop().await;
    }

    /// Stops the controllers and starts others, as after a crash.
    pub(crate) async fn restart_controllers(&mut self) {
        self.restart_controllers_through(Client::in_process).await;
    }

    /// As [`Cluster::restart_controllers`], for controllers whose way to the server is another.
    pub(crate) async fn restart_controllers_through(&mut self, way: impl FnOnce(Door) -> Client) {
        let client = way(controllers_door(&self.running));
        let fresh = controllers::start(&client, Options::default());
        std::mem::replace(&mut self.controllers, fresh).stop().await;
    }

    /// What controllers have asked of the server so far: verb and resource, one by one.
    pub(crate) fn requests(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.data_dir.path().join("audit")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_controllers = lines.filter(|line| line["user"]["username"] == CONTROLLERS);
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        of_controllers
            .map(|line| word(&line["verb"]) + " " + &word(&line["objectRef"]["resource"]))
            .collect()
    }

    pub(crate) async fn create<K: client::Object<DynamicType = ()>>(&self, object: Value) -> K {
        self.client.create::<K>(&read(object)).await.unwrap()
    }

    pub(crate) async fn patch<K: client::Object<DynamicType = ()>>(
        &self,
        name: &str,
        patch: Value,
    ) -> K {
        self.client.patch_merge::<K>(&key(name), &patch).await.unwrap()
    }

    pub(crate) async fn delete<K: client::Object<DynamicType = ()>>(&self, name: &str) {
        self.client.delete::<K>(&key(name), &DeleteOptions::default()).await.unwrap();
    }

    pub(crate) async fn get<K: client::Object<DynamicType = ()>>(&self, name: &str) -> K {
        self.client.get::<K>(&key(name)).await.unwrap()
    }

    pub(crate) async fn all<K: client::Object<DynamicType = ()>>(&self) -> Vec<K> {
        self.client.list::<K>(&Selection::namespace(NAMESPACE)).await.unwrap()
    }

    /// The object, once it is as wanted.
    pub(crate) async fn when<K: client::Object<DynamicType = ()>>(
        &self,
        name: &str,
        wanted: impl Fn(&K) -> bool,
    ) -> K {
        let start = Instant::now();
        loop {
            let found = self.client.find::<K>(&key(name)).await.unwrap();
            match found {
                Some(object) if wanted(&object) => return object,
                found if start.elapsed() > PATIENCE => panic!("not as wanted: {found:#?}"),
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// All objects of the kind, once they are as wanted.
    pub(crate) async fn when_all<K: client::Object<DynamicType = ()>>(
        &self,
        wanted: impl Fn(&[K]) -> bool,
    ) -> Vec<K> {
        let start = Instant::now();
        loop {
            let found = self.all::<K>().await;
            if wanted(&found) {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "not as wanted: {found:#?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// As many living pods as wanted, and not another moment later.
    pub(crate) async fn living(&self, wanted: usize) -> Vec<Pod> {
        let is_it = |pods: &[Pod]| pods.iter().filter(|pod| lives(pod)).count() == wanted;
        self.when_all::<Pod>(is_it).await;
        self.quiet().await;
        let pods = self.all::<Pod>().await;
        let living: Vec<Pod> = pods.into_iter().filter(lives).collect();
        assert_eq!(living.len(), wanted, "it did not stay so");
        living
    }

    /// Gives controllers time to do what they should not.
    pub(crate) async fn quiet(&self) {
        for _ in 0..20 {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The node says that the pod's containers run, and are ready or not.
    pub(crate) async fn runs(&self, pod: &Pod, ready: bool) {
        let now = clock::now_rfc3339();
        let status = if ready { "True" } else { "False" };
        let condition =
            |type_: &str| json!({ "type": type_, "status": status, "lastTransitionTime": now });
        let patch = json!({ "status": { "phase": "Running", "conditions": [
            condition("Ready"), condition("ContainersReady")] } });
        let key = ObjectKey::of(pod);
        self.client.patch_status::<Pod>(&key, &patch).await.unwrap();
    }

    /// Binds and readies all pods that live, until there are `wanted` of them.
    pub(crate) async fn all_run(&self, wanted: usize) -> Vec<Pod> {
        let pods = self.living(wanted).await;
        for pod in &pods {
            self.bind(pod).await;
            self.runs(pod, true).await;
        }
        pods
    }

    /// To the node that it is meant for.
    pub(crate) async fn bind(&self, pod: &Pod) {
        let bound = pod.spec.as_ref().unwrap().node_name.is_some();
        if !bound {
            let node = meant_for(pod).unwrap_or_else(|| WORKER.to_owned());
            self.client.bind(&ObjectKey::of(pod), None, &node).await.unwrap();
        }
    }

    /// The node says that the pod has ended.
    pub(crate) async fn ended(&self, pod: &Pod, phase: &str) {
        let patch = json!({ "status": { "phase": phase } });
        self.client.patch_status::<Pod>(&ObjectKey::of(pod), &patch).await.unwrap();
    }

    /// The node has cleared up after a pod that was told to go.
    pub(crate) async fn gone(&self, pod: &Pod) {
        let options = DeleteOptions::only(pod).grace(0);
        self.client.delete::<Pod>(&ObjectKey::of(pod), &options).await.unwrap();
    }

    /// Takes away every pod that was told to go.
    pub(crate) async fn clear(&self) {
        for pod in self.all::<Pod>().await {
            if pod.metadata.deletion_timestamp.is_some() {
                self.gone(&pod).await;
            }
        }
    }

    /// The message of the first event with this reason.
    pub(crate) async fn event(&self, reason: &str) -> String {
        self.event_on("", reason).await
    }

    /// As [`Cluster::event`], about an object of this kind.
    pub(crate) async fn event_on(&self, kind: &str, reason: &str) -> String {
        let has = |event: &Event| {
            let on = event.involved_object.kind.as_deref();
            event.reason.as_deref() == Some(reason) && (kind.is_empty() || on == Some(kind))
        };
        let events = self.when_all::<Event>(|events| events.iter().any(has)).await;
        let event = events.into_iter().find(has).unwrap();
        event.message.unwrap_or_default()
    }
}

/// The one node that a daemon's pod may be on.
pub(crate) fn meant_for(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let field = required.node_selector_terms.first()?.match_fields.as_ref()?.first()?;
    field.values.as_ref()?.first().cloned()
}

pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, name)
}

pub(crate) fn read<T: client::Object>(value: Value) -> T {
    typed::from_value(value).unwrap()
}

pub(crate) fn lives(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Failed" | "Succeeded"))
}

pub(crate) fn names<K: client::Object<DynamicType = ()>>(objects: &[K]) -> Vec<String> {
    objects.iter().map(|object| object.meta().name.clone().unwrap_or_default()).collect()
}

/// A template of pods with one container.
pub(crate) fn template(app: &str, image: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "containers": [{ "name": "c", "image": image }] },
    })
}
