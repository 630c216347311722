//! Malicious and damaged archives are rejected and leave nothing behind.

use super::TestStore;
use super::fixture::{Layer, Layout, digest, gzip, zstd};
use serde_json::json;
use tar::EntryType;

/// The layer is rejected with this error text. No layer, temporary file or image is left.
fn rejected(name: &str, layer: Vec<u8>, words: &str) {
    let test = TestStore::new();
    let error = test.layers(&[layer]).expect_err(name).to_string();
    assert!(error.contains(words), "{name}: {error}");
    assert_eq!(test.leftovers(), (0, 0), "{name}");
    assert!(test.store.config("a/b:1").is_err(), "{name}");
}

#[test]
fn names_that_lead_outside_are_rejected() {
    let out = "leads out of the layer";
    rejected("parent", Layer::new().file("../evil", "x").build(), out);
    rejected("deep parent", Layer::new().file("a/../../evil", "x").build(), out);
    rejected("whiteout", Layer::new().file("../.wh.evil", "").build(), out);
    rejected("absolute", Layer::new().file("/etc/evil", "x").build(), "absolute");
    rejected("hard link", Layer::new().hard_link("a", "../../etc/passwd").build(), out);
    rejected("absolute hard link", Layer::new().hard_link("a", "/etc/passwd").build(), "absolute");
    rejected(
        "hides dots",
        Layer::new().file(".wh...", "").build(),
        "whiteout without a valid name",
    );
    rejected("root is a file", Layer::new().file("./", "x").file(".", "x").build(), "root");
    let nul = Layer::new().pax(&[("path", b"a\0b")]).file("x", "");
    rejected("nul", nul.build(), "not a valid file name");
    let long = format!("a/{}", "b".repeat(256));
    rejected(
        "long part",
        Layer::new().pax(&[("path", long.as_bytes())]).file("x", "").build(),
        "too long",
    );
    let long = "b/".repeat(2100);
    rejected(
        "long name",
        Layer::new().pax(&[("path", long.as_bytes())]).file("x", "").build(),
        "longer than",
    );
}

#[test]
fn a_file_through_a_symlink_stays_inside() {
    let test = TestStore::new();
    let outside = test.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("there"), "untouched").unwrap();
    let away = outside.to_str().unwrap();
    let deep = outside.strip_prefix("/").unwrap().join("evil");
    let layer = Layer::new()
        .dir(away.trim_start_matches('/'), 0o755)
        .symlink("link", away)
        .file("link/evil", "x")
        .symlink("up", "../../../../../../../..")
        .file("up/top", "x")
        .dir("link", 0o755) // Replaces the symlink and does not follow it.
        .file("link/there", "inside")
        .build();
    let root = test.layers(&[layer]).unwrap().remove(0);
    assert!(root.join(deep).exists(), "absolute paths start at the layer's root");
    assert!(root.join("top").exists(), "the parent of the root is the root");
    assert_eq!(std::fs::read_to_string(root.join("link/there")).unwrap(), "inside");
    assert_eq!(std::fs::read_to_string(outside.join("there")).unwrap(), "untouched");
    assert_eq!(outside.read_dir().unwrap().count(), 1);
}

#[test]
fn files_are_not_written_through_symlinks() {
    let test = TestStore::new();
    let victim = test.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    let layer = Layer::new()
        .symlink("a", victim.to_str().unwrap())
        .file("a", "replaced")
        .symlink("b", victim.to_str().unwrap())
        .hard_link("c", "b")
        .file("c", "also")
        .build();
    let root = test.layers(&[layer]).unwrap().remove(0);
    assert_eq!(std::fs::read_to_string(root.join("a")).unwrap(), "replaced");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
}

#[test]
fn invalid_links_are_rejected() {
    rejected("missing", Layer::new().hard_link("a", "b").build(), "does not exist");
    rejected("itself", Layer::new().file("a", "").hard_link("a", "./a").build(), "itself");
    rejected("directory", Layer::new().dir("d", 0o755).hard_link("a", "d").build(), "directory");
    rejected(
        "whiteout",
        Layer::new().file(".wh.a", "").hard_link("b", "a").build(),
        "does not exist",
    );
    rejected("circle", Layer::new().symlink("a", "a").file("a/b", "").build(), "symlink loop");
    rejected(
        "nowhere",
        Layer::new().symlink("a", "gone").file("a/b", "").build(),
        "dangling symlink",
    );
    rejected(
        "through a file",
        Layer::new().file("a", "").file("a/b", "").build(),
        "not a directory",
    );
    rejected(
        "magic",
        Layer::new().symlink("a", "/proc/self/root").file("a/b", "").build(),
        "dangling symlink",
    );
    rejected("empty", Layer::new().symlink("a", "").build(), "without a target");
}

#[test]
fn devices_of_the_node_are_rejected() {
    rejected(
        "disk",
        Layer::new().device(EntryType::Block, "sda", 8, 0).build(),
        "block device 8:0",
    );
    rejected(
        "memory",
        Layer::new().device(EntryType::Char, "mem", 1, 1).build(),
        "character device 1:1",
    );
    rejected("whiteout", Layer::new().device(EntryType::Char, "x", 0, 0).build(), "device 0:0");
    let test = TestStore::new();
    let layer = Layer::new().device(EntryType::Block, "dev/sda", 8, 0).file("a", "").build();
    let root = test.layers(&[layer]).unwrap().remove(0);
    assert!(!root.join("dev/sda").exists(), "containers have their own /dev");
}

#[test]
fn decompression_bombs_are_rejected() {
    let mut layout = Layout::default();
    // Slightly more than the limit, all zeros. The first block ends the archive, but the rest is read for the digest.
    let plain = vec![0; (1 << 30) + 1];
    let packed = zstd(&plain);
    let mut manifest = layout.manifest(&[(plain, packed)], json!({}));
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "a/b:1"});
    layout.index.push(manifest);
    let test = TestStore::new();
    let error = test.import(&layout).unwrap_err().to_string();
    assert!(error.contains("more data than allowed"), "{error}");
    assert_eq!(test.leftovers(), (0, 0));
}

#[test]
fn huge_names_and_attributes_are_rejected() {
    let much = vec![b'a'; (1 << 20) + 1];
    let layer = Layer::new().raw(EntryType::GNULongName, "././@LongLink", "", 0, &much);
    rejected("long name", layer.file("x", "").build(), "more than 1 MiB");
    let layer = Layer::new().pax(&[("SCHILY.xattr.user.a", &much)]);
    rejected("long attribute", layer.file("x", "").build(), "more than 1 MiB");
}

#[test]
fn damaged_archives_are_rejected() {
    let good = Layer::new().file("a", &"x".repeat(2000)).build();
    let mut bad = good.clone();
    bad[3] ^= 1;
    rejected("checksum", bad, "checksum");
    rejected("short header", good[..700].to_vec(), "cannot read the archive");
    rejected("short", good[..300].to_vec(), "truncated in a header");
    rejected("pax", Layer::new().raw(EntryType::XHeader, "p", "", 0, b"99 a=b\n").build(), "pax");
    rejected(
        "kind",
        Layer::new().raw(EntryType::new(b'Z'), "z", "", 0, b"").build(),
        "unknown kind",
    );
    rejected("no tar at all", b"hello".repeat(200), "not a tar archive");
}

#[test]
fn content_that_does_not_match_its_digest_is_rejected_n_173() {
    let plain = Layer::new().file("a", "right").build();
    let other = Layer::new().file("a", "wrong").build();
    let cases = [
        ("unpacked", plain.clone(), gzip(&other), "does not match its digest"),
        (
            "trailing",
            plain.clone(),
            [plain.clone(), vec![0; 512]].concat(),
            "does not match its digest",
        ),
    ];
    for (name, plain, packed, words) in cases {
        let test = TestStore::new();
        let mut layout = Layout::default();
        let manifest = layout.manifest(&[(plain, packed)], json!({}));
        layout.index.push(manifest);
        let error = test.import(&layout).expect_err(name).to_string();
        assert!(error.contains(words), "{name}: {error}");
        assert_eq!(test.leftovers(), (0, 0));
    }
    for (n, what) in ["config", "layer", "manifest"].iter().enumerate() {
        let test = TestStore::new();
        let mut layout = Layout::default().image("a/b:1", std::slice::from_ref(&plain), json!({}));
        let last = layout.blobs[n].1.len() - 1;
        layout.blobs[n].1[last] ^= 1;
        let error = test.import(&layout).expect_err(what).to_string();
        assert!(error.contains("does not match its digest"), "{what}: {error}");
        assert_eq!(test.leftovers(), (0, 0));
    }
}

#[test]
fn file_names_cannot_lead_outside_a_layout() {
    let test = TestStore::new();
    let secret = test.path().join("secret.json");
    std::fs::write(&secret, "{}").unwrap();
    let directory = test.path().join("layout");
    std::fs::create_dir(&directory).unwrap();
    let manifest = json!([{"Config": "../secret.json", "Layers": []}]);
    std::fs::write(directory.join("manifest.json"), manifest.to_string()).unwrap();
    let error = test.store.import(&directory, &|_| {}).unwrap_err().to_string();
    assert!(error.contains("leads out"), "{error}");
    std::os::unix::fs::symlink(&secret, directory.join("link.json")).unwrap();
    let manifest = json!([{"Config": "link.json", "Layers": []}]);
    std::fs::write(directory.join("manifest.json"), manifest.to_string()).unwrap();
    let error = test.store.import(&directory, &|_| {}).unwrap_err().to_string();
    assert!(error.contains("leads out"), "{error}");
}

#[test]
fn deeply_nested_indexes_and_too_many_layers_are_rejected() {
    let test = TestStore::new();
    let mut layout = Layout::default();
    let layer = Layer::new().file("a", "").build();
    let mut entry = layout.manifest(&[(layer.clone(), layer.clone())], json!({}));
    for _ in 0..6 {
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        entry = layout.blob("application/vnd.oci.image.index.v1+json", index.to_string().into());
    }
    layout.index.push(entry);
    let error = test.import(&layout).unwrap_err().to_string();
    assert!(error.contains("nested too deeply"), "{error}");

    let many = vec![layer; 501];
    let error = test.layers(&many).unwrap_err().to_string();
    assert!(error.contains("more than 500 layers"), "{error}");
}

#[test]
fn files_that_are_not_image_archives_are_rejected() {
    let test = TestStore::new();
    for (name, bytes) in [("empty", Vec::new()), ("tar", Layer::new().file("a", "").build())] {
        let file = test.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let error = test.store.import(&file, &|_| {}).expect_err(name).to_string();
        assert!(error.contains("neither an OCI layout nor a docker archive"), "{name}: {error}");
    }
    let missing = digest(b"does not exist");
    let layout = Layout { blobs: Vec::new(), index: vec![json!({"digest": missing, "size": 9})] };
    let error = test.import(&layout).unwrap_err().to_string();
    assert!(error.contains("does not contain"), "{error}");
}
