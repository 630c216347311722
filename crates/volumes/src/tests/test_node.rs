//! What the tests need: an API server, a directory for the node, and `Volumes`. Dropping it removes
//! all mounts.

use crate::{VolumeError, Volumes};
use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use podconfig::{MountedVolumes, NodeFacts, Objects, mount_table, uid};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use testbed::{Machine, TestServer};

/// Longer than anything takes here; makes a failing test end.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct TestNode {
    pub(crate) client: Client,
    pub(crate) facts: Arc<NodeFacts>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) volumes: Volumes,
    pub(crate) dir: TempDir,
    _server: TestServer,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        for point in mount_table::below(self.dir.path()).into_iter().flatten().rev() {
            let _ = mount_table::unmount(&point);
        }
    }
}

impl TestNode {
    pub(crate) async fn new() -> TestNode {
        let server = TestServer::with_service_account().await;
        let client = server.admin();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("image")).unwrap();
        std::fs::write(dir.path().join("image/hello"), "from the image").unwrap();
        let mut facts = NodeFacts::new("n1", dir.path().join("kubelet"));
        facts.host_ips = vec!["192.0.2.1".parse().unwrap()];
        facts.cluster_dns = vec!["10.96.0.10".parse().unwrap()];
        let facts = Arc::new(facts);
        let objects = Objects::new(&client);
        let runtime = Machine::new();
        let content = dir.path().join("image");
        runtime.set_image_content(&content.clone(), move |to| mount_table::bind(&content, to));
        let volumes = Volumes::new(facts.clone(), objects.clone(), &client, runtime);
        TestNode { client, facts, objects, volumes, dir, _server: server }
    }

    /// Creates the pod in the API.
    pub(crate) async fn pod(&self, name: &str, spec: Value) -> Pod {
        let mut spec = spec;
        spec["automountServiceAccountToken"] = false.into();
        let containers = spec["containers"].as_array_mut().unwrap();
        containers.iter_mut().for_each(|container| container["image"] = "i".into());
        let pod = json!({ "metadata": { "namespace": "default", "name": name }, "spec": spec });
        self.create(pod).await
    }

    /// Creates a pod with one container that mounts every volume at `/<name>`.
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

    /// Does what a pass of the pod's worker does.
    pub(crate) async fn set_up(&self, pod: &Pod) -> Result<MountedVolumes, Vec<VolumeError>> {
        self.objects.register(pod);
        self.volumes.set_up(pod).await
    }

    pub(crate) async fn path(&self, pod: &Pod, volume: &str) -> PathBuf {
        self.set_up(pod).await.unwrap().volumes[volume].path.clone()
    }

    /// Waits until an object that the pod uses has changed.
    pub(crate) async fn wait_for_change(&self, pod: &Pod) {
        let changed = async { while self.objects.changed().await != uid(pod) {} };
        tokio::time::timeout(TIMEOUT, changed).await.expect("the pod's object changed");
    }
}

/// Mode, user and group.
pub(crate) fn mode_and_owner(path: &Path) -> (u32, u32, u32) {
    let metadata = std::fs::metadata(path).unwrap();
    (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
}
