//! A whole server, a node's directory of its own, and volumes between them. Mounts are taken away
//! also when a test fails.

use crate::config::{NodeFacts, Objects, uid};
use crate::volumes::{Mounted, VolumeError, Volumes, mount_table};
use async_trait::async_trait;
use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use runtime::{
    Change, Container, ContainerSpec, ContainerUsage, Credentials, Error, Exec, Image,
    ImageReference, Images, PullProgress, Resources, Result, Runtime, Sandbox, SandboxSpec,
    Session, Version,
};
use serde_json::{Value, json};
use server::authn::User;
use server::{Running, StoreChoice};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::broadcast;

/// Nothing here takes that long; it is there so that a failing test ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) facts: Arc<NodeFacts>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) volumes: Volumes,
    pub(crate) place: TempDir,
    _server: Running,
    _data: TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        for point in mount_table::below(self.place.path()).into_iter().flatten().rev() {
            let _ = mount_table::unmount(&point);
        }
    }
}

impl World {
    pub(crate) async fn new() -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data = tempfile::tempdir().unwrap();
        let server = server::start(server::Config {
            data_dir: data.path().into(),
            listen: ([127, 0, 0, 1], 0).into(),
            store: StoreChoice::Embedded,
            audit_log: None,
            controllers: false,
        });
        let server = server.await.unwrap();
        let admin = User::authenticated("tester", &["system:masters"]);
        let client = Client::in_process(server.server.door(admin));
        let account = json!({ "metadata": { "namespace": "default", "name": "default" } });
        let account: ServiceAccount = typed::from_value(account).unwrap();
        client.create(&account).await.unwrap();

        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("image")).unwrap();
        std::fs::write(place.path().join("image/hello"), "from the image").unwrap();
        let mut facts = NodeFacts::new("n1", place.path().join("kubelet"));
        facts.host_ips = vec!["192.0.2.1".parse().unwrap()];
        facts.cluster_dns = vec!["10.96.0.10".parse().unwrap()];
        let facts = Arc::new(facts);
        let objects = Objects::new(&client);
        let runtime = Arc::new(OnlyImages { content: place.path().join("image") });
        let volumes = Volumes::new(facts.clone(), objects.clone(), &client, runtime);
        World { client, facts, objects, volumes, place, _server: server, _data: data }
    }

    /// Creates the pod in the API, as it would be found there.
    pub(crate) async fn pod(&self, name: &str, spec: Value) -> Pod {
        let mut spec = spec;
        spec["automountServiceAccountToken"] = false.into();
        let containers = spec["containers"].as_array_mut().unwrap();
        containers.iter_mut().for_each(|container| container["image"] = "i".into());
        let pod = json!({ "metadata": { "namespace": "default", "name": name }, "spec": spec });
        self.create(pod).await
    }

    /// With one container that mounts every volume at `/<name>`.
    pub(crate) async fn pod_with(&self, name: &str, context: Value, volumes: Value) -> Pod {
        let mounts = volumes.as_array().unwrap().iter().map(|volume| {
            let name = volume["name"].as_str().unwrap();
            json!({ "name": name, "mountPath": format!("/{name}") })
        });
        let container = json!({ "name": "c", "volumeMounts": mounts.collect::<Vec<_>>() });
        let spec =
            json!({ "containers": [container], "volumes": volumes, "securityContext": context });
        self.pod(name, spec).await
    }

    pub(crate) async fn create<K: client::Object<DynamicType = ()>>(&self, object: Value) -> K {
        let object: K = typed::from_value(object).unwrap();
        self.client.create(&object).await.unwrap()
    }

    pub(crate) async fn config_map(&self, name: &str, data: Value) {
        let map = json!({ "metadata": { "namespace": "default", "name": name }, "data": data });
        self.create::<k8s_openapi::api::core::v1::ConfigMap>(map).await;
    }

    pub(crate) async fn set_data(&self, name: &str, data: Value) {
        let key = ObjectKey::new("default", name);
        let patch = json!({ "data": data });
        let patched =
            self.client.patch_merge::<k8s_openapi::api::core::v1::ConfigMap>(&key, &patch);
        patched.await.unwrap();
    }

    /// As a worker's pass does.
    pub(crate) async fn pass(&self, pod: &Pod) -> Result<Mounted, Vec<VolumeError>> {
        self.objects.register(pod);
        self.volumes.set_up(pod).await
    }

    pub(crate) async fn path(&self, pod: &Pod, volume: &str) -> PathBuf {
        self.pass(pod).await.unwrap().volumes[volume].path.clone()
    }

    /// Waits until the pod is told that something it uses changed.
    pub(crate) async fn told(&self, pod: &Pod) {
        let told = async { while self.objects.changed().await != uid(pod) {} };
        tokio::time::timeout(PATIENCE, told).await.expect("nobody told the pod");
    }
}

/// Mode, user and group.
pub(crate) fn about(path: &Path) -> (u32, u32, u32) {
    let about = std::fs::metadata(path).unwrap();
    (about.mode() & 0o7777, about.uid(), about.gid())
}

/// A runtime that can do nothing but show one image.
struct OnlyImages {
    content: PathBuf,
}

fn no<T>() -> Result<T> {
    Err(Error::Refused("there are no containers here".into()))
}

#[async_trait]
impl Images for OnlyImages {
    async fn find(&self, _: &ImageReference) -> Result<Option<Image>> {
        no()
    }
    async fn list(&self) -> Result<Vec<Image>> {
        no()
    }
    async fn pull(
        &self,
        _: &ImageReference,
        _: &[Credentials],
        _: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        no()
    }
    async fn remove(&self, _: &str) -> Result<()> {
        no()
    }
    fn directory(&self) -> PathBuf {
        self.content.clone()
    }
    async fn mount(&self, _: &str, target: &Path) -> Result<()> {
        mount_table::bind(&self.content, target).map_err(Error::io("mount", target))
    }
}

#[async_trait]
impl Runtime for OnlyImages {
    async fn version(&self) -> Result<Version> {
        no()
    }
    async fn ready(&self) -> Result<()> {
        no()
    }
    fn brings_network(&self) -> bool {
        false
    }
    async fn run_sandbox(&self, _: &SandboxSpec) -> Result<Sandbox> {
        no()
    }
    async fn stop_sandbox(&self, _: &str) -> Result<()> {
        no()
    }
    async fn remove_sandbox(&self, _: &str) -> Result<()> {
        no()
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        no()
    }
    async fn sandboxes_of(&self, _: &str) -> Result<Vec<Sandbox>> {
        no()
    }
    fn changes(&self) -> broadcast::Receiver<Change> {
        broadcast::Sender::new(1).subscribe()
    }
    async fn create_container(&self, _: &str, _: &ContainerSpec) -> Result<Container> {
        no()
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        no()
    }
    async fn stop_container(&self, _: &str, _: Duration) -> Result<()> {
        no()
    }
    async fn stop_signal(&self, _: &str) -> Option<i32> {
        None
    }
    async fn kill_container(&self, _: &str) -> Result<()> {
        no()
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        no()
    }
    async fn update_container(&self, _: &str, _: &Resources) -> Result<()> {
        no()
    }
    async fn limit_group(&self, _: &str, _: &Resources) -> Result<()> {
        no()
    }
    async fn exec(&self, _: &str, _: &Exec) -> Result<Session> {
        no()
    }
    async fn attach(&self, _: &str, _: &Exec) -> Result<Session> {
        no()
    }
    async fn reopen_log(&self, _: &str) -> Result<()> {
        no()
    }
    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        no()
    }
    async fn connect(&self, _: &str, _: u16) -> Result<tokio::net::TcpStream> {
        no()
    }
    fn images(&self) -> &dyn Images {
        self
    }
}
