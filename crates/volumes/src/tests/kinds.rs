//! Each kind of volume: how it is set up, and what its removal leaves.

use super::test_node::{TestNode, mode_and_owner};
use crate::VolumeError;
use k8s_openapi::api::core::v1::Secret;
use podconfig::{MountedVolumes, mount_table, uid};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;

/// Directories (N-34), media (N-136), layout (N-138) and modes of files (N-139).
#[tokio::test]
async fn each_kind_has_its_medium_and_mode() {
    let node = TestNode::new().await;
    node.config_map("cm", json!({ "key": "value" })).await;
    let secret =
        json!({ "metadata": { "namespace": "default", "name": "s" }, "data": { "k": "djE=" } });
    node.create::<Secret>(secret).await;
    let pod = node.pod_with("p", json!({}), json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "64Ki" } },
        { "name": "config", "configMap": { "name": "cm" } },
        { "name": "secret", "secret": { "secretName": "s", "defaultMode": 0o400 } },
        { "name": "down", "downwardAPI": { "items": [{ "path": "who", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        { "name": "all", "projected": { "sources": [
            { "configMap": { "name": "cm" } },
            { "secret": { "name": "s", "items": [{ "key": "k", "path": "key" }, { "key": "k", "path": "deep/k" }] } },
        ] } },
        { "name": "host", "hostPath": { "path": node.dir.path(), "type": "Directory" } },
    ]));
    let pod = pod.await;
    let MountedVolumes { volumes } = node.set_up(&pod).await.unwrap();
    let volumes_dir = node.facts.pod_dir(uid(&pod)).join("volumes");
    for (name, kind, mode, mounted, read_only) in [
        ("disk", "empty-dir", 0o777, false, false),
        ("memory", "empty-dir", 0o1777, true, false),
        ("config", "configmap", 0o777, false, true),
        ("secret", "secret", 0o1777, true, true),
        ("down", "downward-api", 0o1777, true, true),
        ("all", "projected", 0o1777, true, true),
    ] {
        let volume = &volumes[name];
        assert_eq!(volume.path, volumes_dir.join(format!("kubernetes.io~{kind}")).join(name));
        assert_eq!(mode_and_owner(&volume.path), (mode, 0, 0), "{name}");
        assert_eq!(mount_table::is_mount_point(&volume.path).unwrap(), mounted, "{name}");
        assert_eq!(volume.read_only, read_only, "{name}");
    }
    assert_eq!(volumes["host"].path, node.dir.path());
    let read =
        |volume: &str, file: &str| fs::read_to_string(volumes[volume].path.join(file)).unwrap();
    assert_eq!(read("config", "key"), "value");
    assert_eq!(read("secret", "k"), "v1");
    assert_eq!(read("down", "who"), "p");
    assert_eq!((read("all", "key"), read("all", "deep/k")), ("v1".into(), "v1".into()), "N-141");
    assert_eq!(mode_and_owner(&volumes["secret"].path.join("k")), (0o400, 0, 0));
    assert_eq!(mode_and_owner(&node.facts.pod_dir(uid(&pod))).0, 0o750, "N-34");

    let full = fs::write(volumes["memory"].path.join("big"), vec![0; 200_000]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC), "N-137");
    fs::write(volumes["disk"].path.join("mine"), "kept").unwrap();
    let again = node.set_up(&pod).await.unwrap();
    assert_eq!(again.volumes, volumes, "a second pass changes nothing");
    assert_eq!(read("disk", "mine"), "kept");
}

/// N-144: fsGroup, once; and not for hostPath.
#[tokio::test]
async fn fs_group_is_the_group_of_the_pods_volumes() {
    let node = TestNode::new().await;
    node.config_map("cm", json!({ "key": "value" })).await;
    let host = node.dir.path().join("host");
    fs::create_dir(&host).unwrap();
    let pod = node.pod_with(
        "p",
        json!({ "fsGroup": 4321 }),
        json!([
            { "name": "disk", "emptyDir": {} },
            { "name": "config", "configMap": { "name": "cm", "defaultMode": 0o400 } },
            { "name": "host", "hostPath": { "path": host } },
        ]),
    );
    let pod = pod.await;
    let MountedVolumes { volumes } = node.set_up(&pod).await.unwrap();
    assert_eq!(mode_and_owner(&volumes["disk"].path), (0o2777, 0, 4321));
    assert_eq!(mode_and_owner(&volumes["config"].path.join("key")), (0o440, 0, 4321));
    assert_eq!(mode_and_owner(&host).2, 0);
}

#[tokio::test]
async fn n_132_n_133_unused_volumes_are_ignored_and_errors_name_the_volume() {
    let node = TestNode::new().await;
    let pod = node.pod(
        "p",
        json!({
            "containers": [{ "name": "c", "volumeMounts": [
                { "name": "missing", "mountPath": "/a" }, { "name": "wrong", "mountPath": "/b" },
                { "name": "huge", "mountPath": "/c" }, { "name": "foreign", "mountPath": "/d" },
            ] }],
            "volumes": [
                { "name": "missing", "configMap": { "name": "nowhere" } },
                { "name": "wrong", "hostPath": { "path": "/dev/null", "type": "Directory" } },
                { "name": "huge", "emptyDir": { "medium": "HugePages-2Mi" } },
                { "name": "foreign", "nfs": { "server": "s", "path": "/p" } },
                { "name": "unused", "secret": { "secretName": "nowhere" } },
            ],
        }),
    );
    let errors: Vec<String> =
        node.set_up(&pod.await).await.unwrap_err().iter().map(VolumeError::event_message).collect();
    assert_eq!(
        errors,
        [
            "MountVolume.SetUp failed for volume \"missing\" : configmap \"nowhere\" not found",
            "MountVolume.SetUp failed for volume \"wrong\" : hostPath type check failed: /dev/null is not a directory",
            "MountVolume.SetUp failed for volume \"huge\" : medium \"HugePages-2Mi\" is not supported: this node has no huge pages of 2097152 bytes",
            "MountVolume.SetUp failed for volume \"foreign\" : no volume plugin matched",
        ]
    );
}

#[tokio::test]
async fn n_146_an_image_volume_is_mounted_once_its_image_is_there() {
    let node = TestNode::new().await;
    let volumes = json!([{ "name": "img", "image": { "reference": "r", "pullPolicy": "Never" } }]);
    let pod = node.pod_with("p", json!({}), volumes).await;
    let mut mounted = node.set_up(&pod).await.unwrap();
    assert!(mounted.volumes.is_empty());
    let image = runtime::Image {
        id: "sha256:1".into(),
        tags: vec![],
        digests: vec![],
        size: 0,
        uid: None,
        username: String::new(),
        pinned: false,
    };
    for _ in 0..2 {
        node.volumes.mount_image(&pod, "img", &image, &mut mounted).await.unwrap();
    }
    let volume = mounted.volumes["img"].clone();
    assert!(volume.read_only && volume.no_exec);
    assert_eq!(fs::read_to_string(volume.path.join("hello")).unwrap(), "from the image");
    let again = node.set_up(&pod).await.unwrap();
    assert_eq!(again.volumes["img"], volume, "a later pass finds it");
    node.volumes.tear_down(uid(&pod)).await.unwrap();
    assert!(node.dir.path().join("image/hello").exists());
}

/// N-34: removal needs only the uid and removes only what belongs to the pod.
#[tokio::test]
async fn removal_keeps_the_content_of_host_paths() {
    let node = TestNode::new().await;
    node.config_map("cm", json!({ "key": "value" })).await;
    let host = node.dir.path().join("host");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("precious"), "").unwrap();
    let pod = node.pod_with(
        "p",
        json!({}),
        json!([
            { "name": "disk", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
            { "name": "config", "configMap": { "name": "cm" } },
            { "name": "host", "hostPath": { "path": host } },
        ]),
    );
    let pod = pod.await;
    let MountedVolumes { volumes } = node.set_up(&pod).await.unwrap();
    symlink(&host, volumes["disk"].path.join("way-out")).unwrap();
    fs::create_dir(volumes["disk"].path.join("mnt")).unwrap();
    // Something in the pod mounted the host's directory into its own volume.
    mount_table::bind(&host, &volumes["disk"].path.join("mnt")).unwrap();
    mount_table::tmpfs(&volumes["memory"].path, None).unwrap();
    assert_eq!(node.volumes.pods_on_disk().unwrap(), [uid(&pod)]);

    node.volumes.tear_down(uid(&pod)).await.unwrap();
    assert!(node.volumes.pods_on_disk().unwrap().is_empty());
    assert!(host.join("precious").exists());
    assert!(mount_table::below(node.dir.path()).unwrap().is_empty());
    node.volumes.tear_down(uid(&pod)).await.unwrap();
}

#[tokio::test]
async fn n_137_usage_measures_what_a_pod_wrote() {
    let node = TestNode::new().await;
    let pod = node.pod_with("p", json!({}), json!([
        { "name": "disk", "emptyDir": {} }, { "name": "memory", "emptyDir": { "medium": "Memory" } },
    ]));
    let pod = pod.await;
    let MountedVolumes { volumes } = node.set_up(&pod).await.unwrap();
    for volume in volumes.values() {
        fs::write(volume.path.join("file"), vec![1u8; 100_000]).unwrap();
    }
    let usage = node.volumes.usage(uid(&pod)).await.unwrap();
    let mut found: Vec<_> =
        usage.iter().map(|it| (it.volume.as_str(), it.on_disk, it.bytes >= 100_000)).collect();
    found.sort();
    assert_eq!(found, [("disk", true, true), ("memory", false, true)]);
}
