//! A real server, the controllers, and functions that act as the node.

use crate::accounts::{answered, assert_rights_suffice, manager, with_accounts};
use client::{Client, DeleteOptions, ObjectKey, Selection};
use controllers::{Handle, Options};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use serde_json::{Value, json};
use server::InProcessService;
use server::authn::User;
use std::time::Duration;
use testbed::TestServer;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// No test takes this long; the limit lets a failing test end.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How often tests poll. The clock is paused, so this costs nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) const NAMESPACE: &str = "default";

pub(crate) struct Cluster {
    pub(crate) client: Client,
    server: TestServer,
    controllers: Handle,
    heartbeats: JoinHandle<()>,
}

/// The node for pods without a node affinity. No DaemonSet matches it.
pub(crate) const WORKER: &str = "worker";

/// The user of the controllers, different from that of the tests.
const CONTROLLERS: &str = "system:kube-controller-manager";

fn controllers_service(server: &TestServer) -> InProcessService {
    server.running.server.in_process(User::authenticated(CONTROLLERS, &["system:masters"]))
}

/// Renews the leases of all nodes, so that their pods are not evicted.
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
        // The time of day follows the paused clock. Each test must run in its own process.
        clock::simulate("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let server = TestServer::with(testbed::server::Options {
            controllers: true,
            audit: true,
            ..Default::default()
        })
        .await;
        let client = server.admin();
        let options = with_accounts(&server, Options::default());
        let controllers = controllers::start(&manager(&server), options);
        let heartbeats = tokio::spawn(heartbeats(client.clone()));
        let cluster = Cluster { client, server, controllers, heartbeats };
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
        let data_dir = self.server.stop().await;
        assert_rights_suffice(&testbed::server::audit_log(data_dir.path()));
    }

    /// User and user agent of the first request such as `create pods`.
    pub(crate) fn sender_of(&self, verb: &str, resource: &str) -> Option<(String, String)> {
        let lines = answered(&self.server.audit_log());
        let line = lines
            .iter()
            .find(|line| line["verb"] == verb && line["objectRef"]["resource"] == resource)?;
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some((word(&line["user"]["username"]), word(&line["userAgent"])))
    }

    /// Restarts the controllers, as after a crash.
    pub(crate) async fn restart_controllers(&mut self) {
        let options = with_accounts(&self.server, Options::default());
        let fresh = controllers::start(&manager(&self.server), options);
        std::mem::replace(&mut self.controllers, fresh).stop().await;
    }

    /// As [`Cluster::restart_controllers`], for controllers with another connection to the server.
    pub(crate) async fn restart_controllers_through(
        &mut self,
        connect: impl FnOnce(InProcessService) -> Client,
    ) {
        let client = connect(controllers_service(&self.server));
        let fresh = controllers::start(&client, Options::default());
        std::mem::replace(&mut self.controllers, fresh).stop().await;
    }

    /// The requests of controllers so far: verb and resource.
    pub(crate) fn requests(&self) -> Vec<String> {
        let lines = answered(&self.server.audit_log());
        let of_controllers = lines.into_iter().filter(|line| {
            let user = line["user"]["username"].as_str().unwrap_or_default();
            user == CONTROLLERS || user.starts_with("system:serviceaccount:kube-system:")
        });
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

    /// Waits until the condition holds for an object.
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
                found if start.elapsed() > TIMEOUT => panic!("condition not met: {found:#?}"),
                _ => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Waits until the condition holds for all objects of the kind.
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
            assert!(start.elapsed() < TIMEOUT, "condition not met: {found:#?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until there are `wanted` active pods, and checks that this does not change.
    pub(crate) async fn living(&self, wanted: usize) -> Vec<Pod> {
        let is_it = |pods: &[Pod]| pods.iter().filter(|pod| lives(pod)).count() == wanted;
        self.when_all::<Pod>(is_it).await;
        self.quiet().await;
        let pods = self.all::<Pod>().await;
        let living: Vec<Pod> = pods.into_iter().filter(lives).collect();
        assert_eq!(living.len(), wanted, "the number changed again");
        living
    }

    /// Gives controllers time for writes that they should not do.
    pub(crate) async fn quiet(&self) {
        for _ in 0..20 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Reports, as the node, that the pod's containers run, and whether they are ready.
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

    /// Waits for `wanted` active pods, binds them and reports them as ready.
    pub(crate) async fn all_run(&self, wanted: usize) -> Vec<Pod> {
        let pods = self.living(wanted).await;
        for pod in &pods {
            self.bind(pod).await;
            self.runs(pod, true).await;
        }
        pods
    }

    /// Binds the pod to the node in its affinity, or to [`WORKER`].
    pub(crate) async fn bind(&self, pod: &Pod) {
        let bound = pod.spec.as_ref().unwrap().node_name.is_some();
        if !bound {
            let node = meant_for(pod).unwrap_or_else(|| WORKER.to_owned());
            self.client.bind(&ObjectKey::of(pod), None, &node).await.unwrap();
        }
    }

    /// Reports, as the node, that the pod is terminal.
    pub(crate) async fn ended(&self, pod: &Pod, phase: &str) {
        let patch = json!({ "status": { "phase": phase } });
        self.client.patch_status::<Pod>(&ObjectKey::of(pod), &patch).await.unwrap();
    }

    /// Deletes a terminated pod, as the node does.
    pub(crate) async fn gone(&self, pod: &Pod) {
        let options = DeleteOptions::only(pod).grace(0);
        self.client.delete::<Pod>(&ObjectKey::of(pod), &options).await.unwrap();
    }

    /// Deletes all terminating pods, as their nodes would.
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

/// The node in the affinity of a daemon pod.
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
