//! The spec of a container, built from a pod with real volumes.

use super::test_node::{TIMEOUT, TestNode, mode_and_owner};
use k8s_openapi::api::core::v1::{Pod, Service};
use podconfig::{ConfigError, ContainerAnnotations, Inputs, containers, mount_table, uid};
use runtime::{ContainerSpec, Image, PodNetwork};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

impl TestNode {
    async fn container(&self, pod: &Pod, attempt: u32) -> Result<ContainerSpec, ConfigError> {
        let volumes = self.set_up(pod).await.unwrap();
        podconfig::sandbox(pod, &self.facts, 0, PodNetwork::Runtime).unwrap();
        let listed = async {
            while self.objects.services("default").is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, listed).await.unwrap();
        let image = Image {
            id: "sha256:1".into(),
            tags: vec![],
            digests: vec![],
            size: 0,
            uid: None,
            username: String::new(),
            pinned: false,
        };
        podconfig::container(Inputs {
            pod,
            container: &containers(pod)[0],
            attempt,
            image: &image,
            pod_ips: &["10.1.2.3".parse().unwrap()],
            facts: &self.facts,
            objects: &self.objects,
            volumes: &volumes,
            target: None,
        })
        .await
    }
}

fn source<'a>(spec: &'a ContainerSpec, target: &str) -> &'a Path {
    &spec.mounts.iter().find(|mount| mount.target == Path::new(target)).unwrap().source
}

/// Hash (N-21), command (N-49, N-50), service variables (N-57), hosts (N-59), resolv.conf (N-60),
/// hostname (N-61) and the file of the termination message (N-62).
#[tokio::test]
async fn a_container_gets_command_environment_files_and_annotations() {
    let node = TestNode::new().await;
    node.config_map("cm", json!({ "who": "world" })).await;
    let service = json!({ "metadata": { "namespace": "default", "name": "db" },
        "spec": { "ports": [{ "port": 5432 }] } });
    let service: Service = node.create(service).await;
    let listed = async {
        let is_db = |it: &Service| it.metadata.name.as_deref() == Some("db");
        while !node.objects.services("default").iter().flatten().any(|it| is_db(it)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, listed).await.unwrap();
    let pod = node.pod("p", json!({ "containers": [{
        "name": "c",
        "command": ["say", "hello $(WHO)", "$(NOBODY)"],
        "env": [{ "name": "WHO", "valueFrom": { "configMapKeyRef": { "name": "cm", "key": "who" } } }],
        "terminationMessagePath": "/dev/termination-log",
    }] }));
    let pod = pod.await;
    let spec = node.container(&pod, 2).await.unwrap();
    assert_eq!(spec.command.as_deref().unwrap(), ["say", "hello world", "$(NOBODY)"]);
    assert_eq!(spec.args, None);
    let env =
        |name: &str| spec.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    assert_eq!(env("WHO").as_deref(), Some("world"));
    assert_eq!(env("HOSTNAME").as_deref(), Some("p"));
    let address = service.spec.unwrap().cluster_ip;
    assert!(address.is_some());
    assert_eq!(env("DB_SERVICE_HOST"), address);
    assert_eq!(spec.log_path, Path::new("c/2.log"));

    let hosts = fs::read_to_string(source(&spec, "/etc/hosts")).unwrap();
    assert!(hosts.ends_with("10.1.2.3\tp\n"), "{hosts}");
    assert_eq!(mode_and_owner(source(&spec, "/etc/hosts")).0, 0o644);
    let resolv = fs::read_to_string(source(&spec, "/etc/resolv.conf")).unwrap();
    assert!(resolv.contains("nameserver 10.96.0.10\n"), "{resolv}");
    assert_eq!(fs::read_to_string(source(&spec, "/etc/hostname")).unwrap(), "p\n");

    let kept = ContainerAnnotations::read(&spec.annotations).unwrap();
    assert_eq!((kept.restart_count, kept.message_policy.as_str()), (2, "File"));
    assert_eq!(kept.hash, podconfig::container_hash(&containers(&pod)[0]));
    let message = kept.message_file.clone().unwrap();
    assert_eq!(source(&spec, "/dev/termination-log"), message);
    assert_eq!(mode_and_owner(&message).0, 0o666);
    let next =
        ContainerAnnotations::read(&node.container(&pod, 3).await.unwrap().annotations).unwrap();
    assert_ne!(next.message_file, kept.message_file, "each instance has its own");
    kept.remove_files();
    assert!(!message.exists());
}

/// subPath (N-150, N-210) and subPathExpr (N-151).
#[tokio::test]
async fn a_sub_path_mount_does_not_follow_later_changes() {
    let node = TestNode::new().await;
    node.config_map("cm", json!({ "key": "one" })).await;
    let pod = node.pod("p", json!({
        "containers": [{ "name": "c",
            "env": [{ "name": "NAME", "value": "by-name" }],
            "volumeMounts": [
                { "name": "config", "mountPath": "/file", "subPath": "key" },
                { "name": "data", "mountPath": "/made", "subPath": "a/b" },
                { "name": "data", "mountPath": "/named", "subPathExpr": "$(NAME)/x" },
            ] }],
        "volumes": [{ "name": "config", "configMap": { "name": "cm" } }, { "name": "data", "emptyDir": {} }],
    }));
    let pod = pod.await;
    let spec = node.container(&pod, 0).await.unwrap();
    let parts = node.facts.pod_dir(uid(&pod)).join("volume-subpaths");
    assert_eq!(source(&spec, "/file"), parts.join("config/c/0"));
    let file = parts.join("config/c/0");
    assert_eq!(fs::read_to_string(&file).unwrap(), "one");
    let data = node.path(&pod, "data").await;
    assert_eq!(mode_and_owner(&data.join("a/b")).0, 0o777, "the mode of the volume's root");
    assert!(data.join("by-name/x").is_dir());

    node.set_data("cm", json!({ "key": "two" })).await;
    node.wait_for_change(&pod).await;
    fs::rename(data.join("a"), data.join("moved")).unwrap();
    node.set_up(&pod).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "one", "updates are not seen");
    fs::write(source(&spec, "/made").join("mark"), "").unwrap();
    assert!(data.join("moved/b/mark").exists());

    node.container(&pod, 1).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "two", "the next instance sees them");
    assert!(data.join("a/b").is_dir());
    let mounted = mount_table::below(&parts).unwrap();
    assert_eq!(mounted.len(), 3, "the binds of the first instance are gone: {mounted:?}");

    node.volumes.tear_down(uid(&pod)).await.unwrap();
    assert!(!parts.exists());
}

/// N-150: the messages contain neither paths of the node nor what was found there.
#[tokio::test]
async fn a_hostile_link_in_a_volume_is_an_error() {
    let node = TestNode::new().await;
    for (index, (sub_path, doing)) in [
        ("absolute", "prepare subPath"),
        ("absolute/passwd", "prepare subPath"),
        ("up", "prepare subPath"),
        ("magic/etc", "prepare subPath"),
        ("file/below", "prepare subPath"),
        ("loop", "prepare subPath"),
        ("dangling/new", "create subPath directory"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("p{index}");
        let pod = node.pod(
            &name,
            json!({
                "containers": [{ "name": "c", "volumeMounts": [
                    { "name": "data", "mountPath": "/m", "subPath": sub_path },
                ] }],
                "volumes": [{ "name": "data", "emptyDir": {} }],
            }),
        );
        let pod = pod.await;
        let data = node.path(&pod, "data").await;
        symlink("/etc", data.join("absolute")).unwrap();
        symlink("../../../../..", data.join("up")).unwrap();
        symlink("/proc/self/root", data.join("magic")).unwrap();
        symlink("loop", data.join("loop")).unwrap();
        symlink("nowhere", data.join("dangling")).unwrap();
        fs::write(data.join("file"), "").unwrap();
        let error = node.container(&pod, 0).await.unwrap_err();
        let expected = format!("failed to {doing} for volumeMount \"data\" of container \"c\"");
        assert_eq!(error.message, expected, "{sub_path}");
        let left = fs::read_dir(node.facts.pod_dir(uid(&pod)).join("containers/c"));
        assert_eq!(left.unwrap().count(), 0, "a failed attempt leaves no files");
    }
    assert!(mount_table::below(&node.facts.pods_dir()).unwrap().is_empty());
}
