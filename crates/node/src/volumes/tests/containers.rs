//! From a pod and its volumes to the spec of a container, with all files in place.

use super::world::{PATIENCE, World, about};
use crate::config::{self, ConfigError, Inputs, Notes, containers, uid};
use crate::volumes::mount_table;
use k8s_openapi::api::core::v1::{Pod, Service};
use runtime::{ContainerSpec, Image, PodNetwork};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

impl World {
    async fn container(&self, pod: &Pod, attempt: u32) -> Result<ContainerSpec, ConfigError> {
        let volumes = self.pass(pod).await.unwrap();
        config::sandbox(pod, &self.facts, 0, PodNetwork::Runtime).unwrap();
        let listed = async {
            while self.objects.services("default").is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, listed).await.unwrap();
        let image = Image {
            id: "sha256:1".into(),
            tags: vec![],
            digests: vec![],
            size: 0,
            uid: None,
            username: String::new(),
            pinned: false,
        };
        config::container(Inputs {
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

/// N-21, N-49, N-50, N-57, N-59, N-60, N-61, N-62
#[tokio::test]
async fn a_container_gets_its_words_its_files_and_its_notes() {
    let world = World::new().await;
    world.config_map("cm", json!({ "who": "world" })).await;
    let service = json!({ "metadata": { "namespace": "default", "name": "db" },
        "spec": { "ports": [{ "port": 5432 }] } });
    let service: Service = world.create(service).await;
    let listed = async {
        let is_db = |it: &Service| it.metadata.name.as_deref() == Some("db");
        while !world.objects.services("default").iter().flatten().any(|it| is_db(it)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, listed).await.unwrap();
    let pod = world.pod("p", json!({ "containers": [{
        "name": "c",
        "command": ["say", "hello $(WHO)", "$(NOBODY)"],
        "env": [{ "name": "WHO", "valueFrom": { "configMapKeyRef": { "name": "cm", "key": "who" } } }],
        "terminationMessagePath": "/dev/termination-log",
    }] }));
    let pod = pod.await;
    let spec = world.container(&pod, 2).await.unwrap();
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
    assert_eq!(about(source(&spec, "/etc/hosts")).0, 0o644);
    let resolv = fs::read_to_string(source(&spec, "/etc/resolv.conf")).unwrap();
    assert!(resolv.contains("nameserver 10.96.0.10\n"), "{resolv}");
    assert_eq!(fs::read_to_string(source(&spec, "/etc/hostname")).unwrap(), "p\n");

    let notes = Notes::read(&spec.annotations).unwrap();
    assert_eq!((notes.restart_count, notes.message_policy.as_str()), (2, "File"));
    assert_eq!(notes.hash, config::container_hash(&containers(&pod)[0]));
    let message = notes.message_file.clone().unwrap();
    assert_eq!(source(&spec, "/dev/termination-log"), message);
    assert_eq!(about(&message).0, 0o666);
    let next = Notes::read(&world.container(&pod, 3).await.unwrap().annotations).unwrap();
    assert_ne!(next.message_file, notes.message_file, "fresh for each instance");
    notes.remove_files();
    assert!(!message.exists());
}

/// N-150, N-151, N-210
#[tokio::test]
async fn a_sub_path_is_what_it_was_when_the_container_started() {
    let world = World::new().await;
    world.config_map("cm", json!({ "key": "one" })).await;
    let pod = world.pod("p", json!({
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
    let spec = world.container(&pod, 0).await.unwrap();
    let parts = world.facts.pod_dir(uid(&pod)).join("volume-subpaths");
    assert_eq!(source(&spec, "/file"), parts.join("config/c/0"));
    let file = parts.join("config/c/0");
    assert_eq!(fs::read_to_string(&file).unwrap(), "one");
    let data = world.path(&pod, "data").await;
    assert_eq!(about(&data.join("a/b")).0, 0o777, "the mode of the volume's root");
    assert!(data.join("by-name/x").is_dir());

    world.set_data("cm", json!({ "key": "two" })).await;
    world.told(&pod).await;
    fs::rename(data.join("a"), data.join("moved")).unwrap();
    world.pass(&pod).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "one", "updates are not seen");
    fs::write(source(&spec, "/made").join("mark"), "").unwrap();
    assert!(data.join("moved/b/mark").exists());

    world.container(&pod, 1).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "two", "the next instance sees them");
    assert!(data.join("a/b").is_dir());
    let mounted = mount_table::below(&parts).unwrap();
    assert_eq!(mounted.len(), 3, "the binds of the first instance are gone: {mounted:?}");

    world.volumes.tear_down(uid(&pod)).await.unwrap();
    assert!(!parts.exists());
}

/// N-150: the texts name neither paths of the node nor what was found there.
#[tokio::test]
async fn a_hostile_link_in_a_volume_leads_nowhere() {
    let world = World::new().await;
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
        let pod = world.pod(
            &name,
            json!({
                "containers": [{ "name": "c", "volumeMounts": [
                    { "name": "data", "mountPath": "/m", "subPath": sub_path },
                ] }],
                "volumes": [{ "name": "data", "emptyDir": {} }],
            }),
        );
        let pod = pod.await;
        let data = world.path(&pod, "data").await;
        symlink("/etc", data.join("absolute")).unwrap();
        symlink("../../../../..", data.join("up")).unwrap();
        symlink("/proc/self/root", data.join("magic")).unwrap();
        symlink("loop", data.join("loop")).unwrap();
        symlink("nowhere", data.join("dangling")).unwrap();
        fs::write(data.join("file"), "").unwrap();
        let error = world.container(&pod, 0).await.unwrap_err();
        let wanted = format!("failed to {doing} for volumeMount \"data\" of container \"c\"");
        assert_eq!(error.message, wanted, "{sub_path}");
        let left = fs::read_dir(world.facts.pod_dir(uid(&pod)).join("containers/c"));
        assert_eq!(left.unwrap().count(), 0, "nothing is left of the attempt");
    }
    assert!(mount_table::below(&world.facts.pods_dir()).unwrap().is_empty());
}
