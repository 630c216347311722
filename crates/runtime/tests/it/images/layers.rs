//! What becomes of the entries of a layer, and of the formats images come in.

use super::Place;
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
fn files_keep_what_the_archive_says_of_them() {
    let place = Place::new();
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
    let root = place.layers(&[layer]).unwrap().remove(0);

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
    assert_eq!(xattr(&ping, "trusted.overlay.opaque"), None, "overlayfs' words are not an image's");
    let ping = ping.metadata().unwrap();
    assert_eq!((ping.uid(), ping.mtime(), ping.mtime_nsec()), (12, 1_500_000_000, 500_000_000));
    assert!(root.join("pipe").metadata().unwrap().file_type().is_fifo());
    assert!(root.join("null").metadata().unwrap().file_type().is_char_device());
    assert_eq!(mode(&root), 0o755);
}

#[test]
fn long_names_are_whole_in_pax_and_gnu() {
    let place = Place::new();
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let longer = format!("{long}2");
    let layer = Layer::new()
        .pax(&[("path", long.as_bytes())])
        .file("short", "pax")
        .raw(EntryType::GNULongName, "././@LongLink", "", 0, format!("{longer}\0").as_bytes())
        .file("short", "gnu")
        .build();
    let root = place.layers(&[layer]).unwrap().remove(0);
    assert_eq!(std::fs::read_to_string(root.join(&long)).unwrap(), "pax");
    assert_eq!(std::fs::read_to_string(root.join(&longer)).unwrap(), "gnu");
    assert!(!root.join("short").exists());
}

#[test]
fn whiteouts_are_said_as_overlayfs_wants_them_n_173() {
    let place = Place::new();
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
        .file("etc/.wh.kept", "") // Speaks of the layer below; this layer's own file stays.
        .file("all/.wh..wh..opq", "")
        .file("all/new", "")
        .file(".wh.again", "")
        .dir("again", 0o700)
        .file("again/new", "")
        .file(".wh..wh.plnk", "")
        .build();
    let roots = place.layers(&[below, above]).unwrap();
    let gone = roots[1].join("etc/gone").symlink_metadata().unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert_eq!(std::fs::read_to_string(roots[1].join("etc/kept")).unwrap(), "new");
    for opaque in ["all", "again"] {
        let said = xattr(&roots[1].join(opaque), "trusted.overlay.opaque");
        assert_eq!(said.as_deref(), Some(&b"y"[..]), "{opaque}");
    }
    assert!(!roots[1].join(".wh..wh.plnk").exists());
}

#[tokio::test]
async fn overlayfs_shows_the_image_the_layers_mean() {
    let place = Place::new();
    let below = Layer::new()
        .dir("tmp", 0o1777)
        .file("gone", "")
        .file("kept", "")
        .dir("all", 0o755)
        .file("all/old", "")
        .build();
    let above =
        Layer::new().file(".wh.gone", "").file("tmp/x", "").file("all/.wh..wh..opq", "").build();
    place.layers(&[below, above]).unwrap();
    let target = place.path().join("merged");
    std::fs::create_dir(&target).unwrap();
    place.store.mount("a/b:1", &target).await.unwrap();
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
    assert_eq!(tmp, 0o1777, "a directory the upper layer only implied is as the lower one says");
    assert!(!writable);
}

#[test]
fn layers_may_be_plain_gzip_or_zstd_in_a_tar_or_a_directory_n_173() {
    for pack in [|b: &[u8]| b.to_vec(), gzip, zstd] {
        let place = Place::new();
        let plain = Layer::new().file("a", "content").build();
        let mut layout = Layout::default();
        let mut manifest = layout.manifest(&[(plain.clone(), pack(&plain))], json!({"Cmd": ["a"]}));
        manifest["annotations"] = json!({"io.containerd.image.name": "docker.io/library/x:1"});
        layout.index.push(manifest);
        let directory = layout.write_directory(place.path());
        let packed = place.path().join("packed.tar");
        std::fs::write(&packed, pack(&layout.tar())).unwrap();
        for file in [directory, packed] {
            let images = place.store.import(&file, &|_| {}).unwrap();
            assert_eq!(images.len(), 1);
            assert_eq!(images[0].tags, ["docker.io/library/x:1"]);
            let root = place.store.layers("x:1").unwrap().remove(0);
            assert_eq!(std::fs::read_to_string(root.join("a")).unwrap(), "content");
        }
        assert_eq!(place.leftovers(), (1, 0));
    }
}

#[tokio::test]
async fn an_image_is_known_by_its_configuration_and_named_by_its_manifest_n_178() {
    let place = Place::new();
    let config = json!({"User": "1000:2000", "Entrypoint": ["/a"], "StopSignal": "SIGQUIT"});
    let layout =
        Layout::default().image("busybox:1", &[Layer::new().file("a", "x").build()], config);
    let image = place.import(&layout).unwrap().remove(0);
    let manifest = layout.index[0]["digest"].as_str().unwrap();
    assert_eq!(image.digests, [format!("docker.io/library/busybox@{manifest}")]);
    let config = &layout.blobs[0];
    assert_eq!(image.id, config.0);
    assert_eq!((image.uid, image.username.as_str()), (Some(1000), ""));
    let by_digest = ImageReference(format!("busybox:9@{manifest}"));
    assert_eq!(place.store.find(&by_digest).await.unwrap(), Some(image.clone()));
    let config = place.store.config("busybox:1").unwrap();
    assert_eq!(config.entrypoint, ["/a"]);
    assert_eq!(config.stop_signal.as_deref(), Some("SIGQUIT"));
    assert_eq!(place.store.list().await.unwrap(), [image]);
}

#[test]
fn of_an_index_the_image_for_this_machine_is_taken_n_173() {
    let place = Place::new();
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
    let images = place.import(&layout).unwrap();
    assert_eq!(images.len(), 1);
    let root = place.store.layers("a/b:1").unwrap().remove(0);
    assert_eq!(std::fs::read_to_string(root.join("which")).unwrap(), "us");
    let named = format!("docker.io/a/b@{}", index["digest"].as_str().unwrap());
    assert_eq!(images[0].digests, [named], "a digest names what was asked for: the index");
    let ours = format!("a/b@{}", entries[2]["digest"].as_str().unwrap());
    assert!(place.store.config(&ours).is_ok());
}

#[test]
fn what_docker_saves_is_taken_too() {
    let place = Place::new();
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
    let file = place.path().join("saved.tar");
    std::fs::write(&file, archive).unwrap();
    let image = place.store.import(&file, &|_| {}).unwrap().remove(0);
    assert_eq!(image.tags, ["docker.io/me/app:2", "docker.io/me/app:latest"]);
    assert_eq!(image.id, digest(&config));
    assert_eq!(place.store.layers("me/app").unwrap().len(), 2);
}

#[test]
fn two_names_in_an_archive_are_two_names_and_one_can_go() {
    let place = Place::new();
    let mut layout = Layout::default();
    let layer = Layer::new().file("a", "b").build();
    let manifest = layout.manifest(&[(layer.clone(), layer)], json!({}));
    for name in ["docker.io/a/b:1", "docker.io/a/b:latest"] {
        let mut entry = manifest.clone();
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        layout.index.push(entry);
    }
    let images = place.import(&layout).unwrap();
    let names: Vec<_> = images.iter().map(|image| image.tags.clone()).collect();
    assert_eq!(names, [["docker.io/a/b:1"], ["docker.io/a/b:latest"]], "each is told of once");
    assert_eq!(images[0].id, images[1].id);
    let left = place.store.untag("a/b:1").unwrap();
    assert_eq!(left, Some(vec!["docker.io/a/b:latest".to_owned()]));
    assert!(place.store.layers("a/b:1").is_err() && place.store.layers("a/b").is_ok());
    assert_eq!(place.store.untag("a/b").unwrap(), None, "the last name goes with its image");
    assert_eq!(place.store.untag(&images[0].id).unwrap(), None, "an id is no name");
    assert!(place.store.layers("a/b").is_ok());
}

#[test]
fn sparse_files_have_their_holes() {
    let place = Place::new();
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
    let root = place.layers(&[layer]).unwrap().remove(0);
    let bytes = std::fs::read(root.join("sparse")).unwrap();
    assert_eq!((bytes.len(), bytes[0], &bytes[9_998..]), (10_000, b'a', &b"bc"[..]));
    assert_eq!(std::fs::read_to_string(root.join("after")).unwrap(), "it");
}

#[test]
fn progress_ends_where_it_said_it_would() {
    let place = Place::new();
    let layout =
        Layout::default().image("a/b:1", &[Layer::new().file("a", "x").build()], json!({}));
    let told = std::sync::Mutex::new(Vec::new());
    place.store.import(layout.write(place.path()), &|p| told.lock().unwrap().push(p)).unwrap();
    let told = told.into_inner().unwrap();
    assert_eq!(told[0].done, 0);
    assert!(told.windows(2).all(|pair| pair[0].done <= pair[1].done));
    assert_eq!(Some(told.last().unwrap().done), told[0].total);
}

#[test]
fn the_images_that_the_script_builds_can_be_imported() {
    let place = Place::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/images");
    let built = std::process::Command::new(script).arg(place.path()).arg("busybox").output();
    let built = built.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let images = place.store.import(place.path().join("busybox.tar"), &|_| {}).unwrap();
    assert_eq!(images[0].id, images[1].id, "two names, one image");
    let tags = ["docker.io/library/busybox:1", "docker.io/library/busybox:latest"];
    assert_eq!([&images[0].tags[..], &images[1].tags[..]].concat(), tags, "each as it came");
    let root = place.store.layers("busybox").unwrap().remove(0);
    assert_eq!(root.join("bin/sh").read_link().unwrap(), Path::new("/bin/busybox"));
    assert_eq!(mode(&root.join("tmp")), 0o1777);
    assert_eq!(place.store.config("busybox:1").unwrap().cmd, ["sh"]);
}
