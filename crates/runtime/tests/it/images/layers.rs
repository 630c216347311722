//! Unpacking of layers, and the supported formats of images.

use super::TestStore;
use super::fixture::{Layer, Layout, digest, go_arch, gzip, zstd};
use runtime::{ImageReference, Images};
use serde_json::json;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use tar::{EntryType, Header};

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn xattr(path: &Path, key: &str) -> Option<Vec<u8>> {
    let mut value = [0; 256];
    let length = rustix::fs::lgetxattr(path, key, &mut value[..]).ok()?;
    Some(value[..length].to_vec())
}

#[test]
fn files_keep_their_owner_mode_time_and_attributes() {
    let test = TestStore::new();
    let mut owned = Header::new_gnu();
    owned.set_path("bin/su").unwrap();
    owned.set_mode(0o4755);
    owned.set_uid(7);
    owned.set_gid(3_000_000);
    owned.set_mtime(1_600_000_000);
    owned.set_size(2);
    owned.set_cksum();
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let layer = Layer::new()
        .dir("./", 0o755)
        .dir("bin/", 0o755)
        .header(&owned, b"su")
        .hard_link("bin/su2", "bin/su")
        .symlink("sbin", "bin")
        .symlink("absolute", "/bin/su")
        .dir("tmp", 0o1777)
        .pax(&[
            ("SCHILY.xattr.security.capability", capability),
            ("SCHILY.xattr.user.note", b"a\nb"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("mtime", b"1500000000.5"),
            ("uid", b"12"),
        ])
        .file("bin/ping", "ping")
        .raw(EntryType::Fifo, "pipe", "", 0o600, b"")
        .device(EntryType::Char, "null", 1, 3)
        .build();
    let root = test.layers(&[layer]).unwrap().remove(0);

    let su = root.join("bin/su").metadata().unwrap();
    assert_eq!((su.uid(), su.gid(), su.mode() & 0o7777), (7, 3_000_000, 0o4755));
    assert_eq!((su.mtime(), su.nlink()), (1_600_000_000, 2));
    assert_eq!(root.join("bin/su2").metadata().unwrap().ino(), su.ino());
    assert_eq!(root.join("sbin").read_link().unwrap(), Path::new("bin"));
    assert_eq!(root.join("absolute").read_link().unwrap(), Path::new("/bin/su"));
    assert_eq!(mode(&root.join("tmp")), 0o1777);
    assert_eq!(root.join("tmp").metadata().unwrap().mtime(), 1_700_000_000);
    let ping = root.join("bin/ping");
    assert_eq!(xattr(&ping, "security.capability").unwrap(), capability);
    assert_eq!(xattr(&ping, "user.note").unwrap(), b"a\nb");
    assert_eq!(
        xattr(&ping, "trusted.overlay.opaque"),
        None,
        "images must not set attributes of overlayfs"
    );
    let ping = ping.metadata().unwrap();
    assert_eq!((ping.uid(), ping.mtime(), ping.mtime_nsec()), (12, 1_500_000_000, 500_000_000));
    assert!(root.join("pipe").metadata().unwrap().file_type().is_fifo());
    assert!(root.join("null").metadata().unwrap().file_type().is_char_device());
    assert_eq!(mode(&root), 0o755);
}

#[test]
fn long_names_in_pax_and_gnu_format_are_complete() {
    let test = TestStore::new();
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let longer = format!("{long}2");
    let layer = Layer::new()
        .pax(&[("path", long.as_bytes())])
        .file("short", "pax")
        .raw(EntryType::GNULongName, "././@LongLink", "", 0, format!("{longer}\0").as_bytes())
        .file("short", "gnu")
        .build();
    let root = test.layers(&[layer]).unwrap().remove(0);
    assert_eq!(std::fs::read_to_string(root.join(&long)).unwrap(), "pax");
    assert_eq!(std::fs::read_to_string(root.join(&longer)).unwrap(), "gnu");
    assert!(!root.join("short").exists());
}

#[test]
fn whiteouts_are_converted_for_overlayfs_n_173() {
    let test = TestStore::new();
    let below = Layer::new()
        .dir("etc", 0o755)
        .file("etc/gone", "")
        .file("etc/kept", "old")
        .dir("all", 0o755)
        .file("all/old", "")
        .dir("again", 0o755)
        .file("again/old", "")
        .build();
    let above = Layer::new()
        .file("etc/.wh.gone", "")
        .file("etc/kept", "new")
        .file("etc/.wh.kept", "") // Hides the file of the lower layer only.
        .file("all/.wh..wh..opq", "")
        .file("all/new", "")
        .file(".wh.again", "")
        .dir("again", 0o700)
        .file("again/new", "")
        .file(".wh..wh.plnk", "")
        .build();
    let roots = test.layers(&[below, above]).unwrap();
    let gone = roots[1].join("etc/gone").symlink_metadata().unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert_eq!(std::fs::read_to_string(roots[1].join("etc/kept")).unwrap(), "new");
    for opaque in ["all", "again"] {
        let value = xattr(&roots[1].join(opaque), "trusted.overlay.opaque");
        assert_eq!(value.as_deref(), Some(&b"y"[..]), "{opaque}");
    }
    assert!(!roots[1].join(".wh..wh.plnk").exists());
}

#[tokio::test]
async fn overlayfs_merges_the_layers() {
    let test = TestStore::new();
    let below = Layer::new()
        .dir("tmp", 0o1777)
        .file("gone", "")
        .file("kept", "")
        .dir("all", 0o755)
        .file("all/old", "")
        .build();
    let above =
        Layer::new().file(".wh.gone", "").file("tmp/x", "").file("all/.wh..wh..opq", "").build();
    test.layers(&[below, above]).unwrap();
    let target = test.path().join("merged");
    std::fs::create_dir(&target).unwrap();
    test.store.mount("a/b:1", &target).await.unwrap();
    let mut seen = Vec::new();
    for directory in ["", "all", "tmp"] {
        for entry in target.join(directory).read_dir().unwrap() {
            seen.push(format!("{directory}/{}", entry.unwrap().file_name().to_string_lossy()));
        }
    }
    let tmp = mode(&target.join("tmp"));
    let writable = std::fs::write(target.join("new"), "").is_ok();
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).unwrap();
    seen.sort();
    assert_eq!(seen, ["/all", "/kept", "/tmp", "tmp/x"]);
    assert_eq!(tmp, 0o1777, "an implied directory has the mode of the lower layer");
    assert!(!writable);
}

#[test]
fn layers_may_be_uncompressed_gzip_or_zstd_n_173() {
    for pack in [|b: &[u8]| b.to_vec(), gzip, zstd] {
        let test = TestStore::new();
        let plain = Layer::new().file("a", "content").build();
        let mut layout = Layout::default();
        let mut manifest = layout.manifest(&[(plain.clone(), pack(&plain))], json!({"Cmd": ["a"]}));
        manifest["annotations"] = json!({"io.containerd.image.name": "docker.io/library/x:1"});
        layout.index.push(manifest);
        let directory = layout.write_directory(test.path());
        let packed = test.path().join("packed.tar");
        std::fs::write(&packed, pack(&layout.tar())).unwrap();
        for file in [directory, packed] {
            let images = test.store.import(&file, &|_| {}).unwrap();
            assert_eq!(images.len(), 1);
            assert_eq!(images[0].tags, ["docker.io/library/x:1"]);
            let root = test.store.layers("x:1").unwrap().remove(0);
            assert_eq!(std::fs::read_to_string(root.join("a")).unwrap(), "content");
        }
        assert_eq!(test.leftovers(), (1, 0));
    }
}

#[tokio::test]
async fn the_image_id_is_the_digest_of_the_configuration_n_178() {
    let test = TestStore::new();
    let config = json!({"User": "1000:2000", "Entrypoint": ["/a"], "StopSignal": "SIGQUIT"});
    let layout =
        Layout::default().image("busybox:1", &[Layer::new().file("a", "x").build()], config);
    let image = test.import(&layout).unwrap().remove(0);
    let manifest = layout.index[0]["digest"].as_str().unwrap();
    assert_eq!(image.digests, [format!("docker.io/library/busybox@{manifest}")]);
    let config = &layout.blobs[0];
    assert_eq!(image.id, config.0);
    assert_eq!((image.uid, image.username.as_str()), (Some(1000), ""));
    let by_digest = ImageReference(format!("busybox:9@{manifest}"));
    assert_eq!(test.store.find(&by_digest).await.unwrap(), Some(image.clone()));
    let config = test.store.config("busybox:1").unwrap();
    assert_eq!(config.entrypoint, ["/a"]);
    assert_eq!(config.stop_signal.as_deref(), Some("SIGQUIT"));
    assert_eq!(test.store.list().await.unwrap(), [image]);
}

#[test]
fn the_image_for_this_platform_is_imported_from_an_index_n_173() {
    let test = TestStore::new();
    let mut layout = Layout::default();
    let mut entries = Vec::new();
    for (os, arch, text) in
        [("windows", go_arch(), "w"), ("linux", "s390x", "s"), ("linux", go_arch(), "us")]
    {
        let layer = Layer::new().file("which", text).build();
        let mut manifest = layout.manifest(&[(layer.clone(), layer)], json!({}));
        manifest["platform"] = json!({"os": os, "architecture": arch});
        entries.push(manifest);
    }
    let index = serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": entries})).unwrap();
    let mut index = layout.blob("application/vnd.oci.image.index.v1+json", index);
    index["annotations"] = json!({"org.opencontainers.image.ref.name": "docker.io/a/b:1"});
    layout.index.push(index.clone());
    let images = test.import(&layout).unwrap();
    assert_eq!(images.len(), 1);
    let root = test.store.layers("a/b:1").unwrap().remove(0);
    assert_eq!(std::fs::read_to_string(root.join("which")).unwrap(), "us");
    let named = format!("docker.io/a/b@{}", index["digest"].as_str().unwrap());
    assert_eq!(images[0].digests, [named], "the digest is that of the index");
    let ours = format!("a/b@{}", entries[2]["digest"].as_str().unwrap());
    assert!(test.store.config(&ours).is_ok());
}

#[test]
fn archives_of_docker_save_are_imported() {
    let test = TestStore::new();
    let layer = Layer::new().file("a", "docker").build();
    let config = json!({"os": "linux", "config": {"Cmd": ["a"], "Env": null},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer), digest(&layer)]}});
    let config = serde_json::to_vec(&config).unwrap();
    let manifest = json!([{"Config": "c.json", "RepoTags": ["me/app:2", "me/app:latest"],
        "Layers": ["one/layer.tar", "two/layer.tar"]}]);
    let archive = Layer::new()
        .raw(EntryType::Regular, "c.json", "", 0o644, &config)
        .raw(EntryType::Regular, "one/layer.tar", "", 0o644, &layer)
        .symlink("two/layer.tar", "../one/layer.tar")
        .file("manifest.json", &manifest.to_string())
        .build();
    let file = test.path().join("saved.tar");
    std::fs::write(&file, archive).unwrap();
    let image = test.store.import(&file, &|_| {}).unwrap().remove(0);
    assert_eq!(image.tags, ["docker.io/me/app:2", "docker.io/me/app:latest"]);
    assert_eq!(image.id, digest(&config));
    assert_eq!(test.store.layers("me/app").unwrap().len(), 2);
}

#[test]
fn an_image_with_two_names_can_lose_one() {
    let test = TestStore::new();
    let mut layout = Layout::default();
    let layer = Layer::new().file("a", "b").build();
    let manifest = layout.manifest(&[(layer.clone(), layer)], json!({}));
    for name in ["docker.io/a/b:1", "docker.io/a/b:latest"] {
        let mut entry = manifest.clone();
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        layout.index.push(entry);
    }
    let images = test.import(&layout).unwrap();
    let names: Vec<_> = images.iter().map(|image| image.tags.clone()).collect();
    assert_eq!(
        names,
        [["docker.io/a/b:1"], ["docker.io/a/b:latest"]],
        "each name is reported once"
    );
    assert_eq!(images[0].id, images[1].id);
    let left = test.store.untag("a/b:1").unwrap();
    assert_eq!(left, Some(vec!["docker.io/a/b:latest".to_owned()]));
    assert!(test.store.layers("a/b:1").is_err() && test.store.layers("a/b").is_ok());
    assert_eq!(test.store.untag("a/b").unwrap(), None, "the last name cannot be removed");
    assert_eq!(test.store.untag(&images[0].id).unwrap(), None, "an id is not a name");
    assert!(test.store.layers("a/b").is_ok());
}

#[test]
fn sparse_files_are_unpacked() {
    let test = TestStore::new();
    let mut header = Header::new_gnu();
    header.set_path("sparse").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(3);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_real_size(10_000);
    gnu.sparse[0].set_offset(0);
    gnu.sparse[0].set_length(1);
    gnu.sparse[1].set_offset(9_998);
    gnu.sparse[1].set_length(2);
    header.set_cksum();
    let layer = Layer::new().header(&header, b"abc").file("after", "it").build();
    let root = test.layers(&[layer]).unwrap().remove(0);
    let bytes = std::fs::read(root.join("sparse")).unwrap();
    assert_eq!((bytes.len(), bytes[0], &bytes[9_998..]), (10_000, b'a', &b"bc"[..]));
    assert_eq!(std::fs::read_to_string(root.join("after")).unwrap(), "it");
}

#[test]
fn progress_ends_at_the_total() {
    let test = TestStore::new();
    let layout =
        Layout::default().image("a/b:1", &[Layer::new().file("a", "x").build()], json!({}));
    let reported = std::sync::Mutex::new(Vec::new());
    test.store.import(layout.write(test.path()), &|p| reported.lock().unwrap().push(p)).unwrap();
    let reported = reported.into_inner().unwrap();
    assert_eq!(reported[0].done, 0);
    assert!(reported.windows(2).all(|pair| pair[0].done <= pair[1].done));
    assert_eq!(Some(reported.last().unwrap().done), reported[0].total);
}

#[test]
fn images_built_by_the_script_can_be_imported() {
    let test = TestStore::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/images");
    let built = std::process::Command::new(script).arg(test.path()).arg("busybox").output();
    let built = built.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let images = test.store.import(test.path().join("busybox.tar"), &|_| {}).unwrap();
    assert_eq!(images[0].id, images[1].id, "two names, one image");
    let tags = ["docker.io/library/busybox:1", "docker.io/library/busybox:latest"];
    assert_eq!(
        [&images[0].tags[..], &images[1].tags[..]].concat(),
        tags,
        "in the order of the archive"
    );
    let root = test.store.layers("busybox").unwrap().remove(0);
    assert_eq!(root.join("bin/sh").read_link().unwrap(), Path::new("/bin/busybox"));
    assert_eq!(mode(&root.join("tmp")), 0o1777);
    assert_eq!(test.store.config("busybox:1").unwrap().cmd, ["sh"]);
}
