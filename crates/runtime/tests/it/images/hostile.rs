//! Archives that want more than to be an image are refused in words, and leave nothing.

use super::Place;
use super::fixture::{Layer, Layout, digest, gzip, zstd};
use serde_json::json;
use tar::EntryType;

/// The layer is refused with these words; no layer, no half of one, no image is left.
fn refused(name: &str, layer: Vec<u8>, words: &str) {
    let place = Place::new();
    let error = place.layers(&[layer]).expect_err(name).to_string();
    assert!(error.contains(words), "{name}: {error}");
    assert_eq!(place.leftovers(), (0, 0), "{name}");
    assert!(place.store.config("a/b:1").is_err(), "{name}");
}

#[test]
fn names_that_lead_out_are_refused() {
    let out = "leads out of the layer";
    refused("parent", Layer::new().file("../evil", "x").build(), out);
    refused("deep parent", Layer::new().file("a/../../evil", "x").build(), out);
    refused("whiteout", Layer::new().file("../.wh.evil", "").build(), out);
    refused("absolute", Layer::new().file("/etc/evil", "x").build(), "absolute");
    refused("hard link", Layer::new().hard_link("a", "../../etc/passwd").build(), out);
    refused("absolute hard link", Layer::new().hard_link("a", "/etc/passwd").build(), "absolute");
    refused("hides dots", Layer::new().file(".wh...", "").build(), "hides nothing");
    refused("root is a file", Layer::new().file("./", "x").file(".", "x").build(), "root");
    let nul = Layer::new().pax(&[("path", b"a\0b")]).file("x", "");
    refused("nul", nul.build(), "not a file name");
    let long = format!("a/{}", "b".repeat(256));
    refused(
        "long part",
        Layer::new().pax(&[("path", long.as_bytes())]).file("x", "").build(),
        "too long",
    );
    let long = "b/".repeat(2100);
    refused(
        "long name",
        Layer::new().pax(&[("path", long.as_bytes())]).file("x", "").build(),
        "longer than",
    );
}

#[test]
fn a_file_through_a_symlink_stays_inside() {
    let place = Place::new();
    let outside = place.path().join("outside");
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
        .dir("link", 0o755) // Replaces the symlink, does not follow it.
        .file("link/there", "inside")
        .build();
    let root = place.layers(&[layer]).unwrap().remove(0);
    assert!(root.join(deep).exists(), "absolute means: from the layer's root");
    assert!(root.join("top").exists(), "the parent of the root is the root");
    assert_eq!(std::fs::read_to_string(root.join("link/there")).unwrap(), "inside");
    assert_eq!(std::fs::read_to_string(outside.join("there")).unwrap(), "untouched");
    assert_eq!(outside.read_dir().unwrap().count(), 1);
}

#[test]
fn symlinks_are_not_written_through() {
    let place = Place::new();
    let victim = place.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    let layer = Layer::new()
        .symlink("a", victim.to_str().unwrap())
        .file("a", "replaced")
        .symlink("b", victim.to_str().unwrap())
        .hard_link("c", "b")
        .file("c", "also")
        .build();
    let root = place.layers(&[layer]).unwrap().remove(0);
    assert_eq!(std::fs::read_to_string(root.join("a")).unwrap(), "replaced");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
}

#[test]
fn links_to_nothing_and_circles_are_refused() {
    refused("missing", Layer::new().hard_link("a", "b").build(), "not there");
    refused("itself", Layer::new().file("a", "").hard_link("a", "./a").build(), "itself");
    refused("directory", Layer::new().dir("d", 0o755).hard_link("a", "d").build(), "directory");
    refused("whiteout", Layer::new().file(".wh.a", "").hard_link("b", "a").build(), "not there");
    refused("circle", Layer::new().symlink("a", "a").file("a/b", "").build(), "circles");
    refused("nowhere", Layer::new().symlink("a", "gone").file("a/b", "").build(), "nowhere");
    refused(
        "through a file",
        Layer::new().file("a", "").file("a/b", "").build(),
        "not a directory",
    );
    refused(
        "magic",
        Layer::new().symlink("a", "/proc/self/root").file("a/b", "").build(),
        "nowhere",
    );
    refused("empty", Layer::new().symlink("a", "").build(), "leads to nothing");
}

#[test]
fn devices_of_the_node_are_refused() {
    refused("disk", Layer::new().device(EntryType::Block, "sda", 8, 0).build(), "block device 8:0");
    refused(
        "memory",
        Layer::new().device(EntryType::Char, "mem", 1, 1).build(),
        "character device 1:1",
    );
    refused("whiteout", Layer::new().device(EntryType::Char, "x", 0, 0).build(), "device 0:0");
    let place = Place::new();
    let layer = Layer::new().device(EntryType::Block, "dev/sda", 8, 0).file("a", "").build();
    let root = place.layers(&[layer]).unwrap().remove(0);
    assert!(!root.join("dev/sda").exists(), "containers have a /dev of their own");
}

#[test]
fn bombs_do_not_go_off() {
    let mut layout = Layout::default();
    // A little more than may come out of so little, all zeros: the first block would end the
    // archive, but what follows it is read for the digest.
    let plain = vec![0; (1 << 30) + 1];
    let packed = zstd(&plain);
    let mut manifest = layout.manifest(&[(plain, packed)], json!({}));
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "a/b:1"});
    layout.index.push(manifest);
    let place = Place::new();
    let error = place.import(&layout).unwrap_err().to_string();
    assert!(error.contains("far more than it should"), "{error}");
    assert_eq!(place.leftovers(), (0, 0));
}

#[test]
fn names_and_attributes_that_fill_the_memory_are_refused() {
    let much = vec![b'a'; (1 << 20) + 1];
    let layer = Layer::new().raw(EntryType::GNULongName, "././@LongLink", "", 0, &much);
    refused("long name", layer.file("x", "").build(), "more than 1 MiB");
    let layer = Layer::new().pax(&[("SCHILY.xattr.user.a", &much)]);
    refused("long attribute", layer.file("x", "").build(), "more than 1 MiB");
}

#[test]
fn damaged_archives_are_refused() {
    let good = Layer::new().file("a", &"x".repeat(2000)).build();
    let mut bad = good.clone();
    bad[3] ^= 1;
    refused("checksum", bad, "checksum");
    refused("short header", good[..700].to_vec(), "cannot be read");
    refused("short", good[..300].to_vec(), "ends within");
    refused("pax", Layer::new().raw(EntryType::XHeader, "p", "", 0, b"99 a=b\n").build(), "pax");
    refused(
        "kind",
        Layer::new().raw(EntryType::new(b'Z'), "z", "", 0, b"").build(),
        "unknown kind",
    );
    refused("no tar at all", b"hello".repeat(200), "no tar");
}

#[test]
fn content_that_is_not_what_its_digest_says_is_refused_n_173() {
    let plain = Layer::new().file("a", "right").build();
    let other = Layer::new().file("a", "wrong").build();
    let cases = [
        ("unpacked", plain.clone(), gzip(&other), "something else"),
        ("trailing", plain.clone(), [plain.clone(), vec![0; 512]].concat(), "something else"),
    ];
    for (name, plain, packed, words) in cases {
        let place = Place::new();
        let mut layout = Layout::default();
        let manifest = layout.manifest(&[(plain, packed)], json!({}));
        layout.index.push(manifest);
        let error = place.import(&layout).expect_err(name).to_string();
        assert!(error.contains(words), "{name}: {error}");
        assert_eq!(place.leftovers(), (0, 0));
    }
    for (n, what) in ["config", "layer", "manifest"].iter().enumerate() {
        let place = Place::new();
        let mut layout = Layout::default().image("a/b:1", std::slice::from_ref(&plain), json!({}));
        let last = layout.blobs[n].1.len() - 1;
        layout.blobs[n].1[last] ^= 1;
        let error = place.import(&layout).expect_err(what).to_string();
        assert!(error.contains("something else"), "{what}: {error}");
        assert_eq!(place.leftovers(), (0, 0));
    }
}

#[test]
fn descriptors_do_not_lead_out_of_a_layout() {
    let place = Place::new();
    let secret = place.path().join("secret.json");
    std::fs::write(&secret, "{}").unwrap();
    let directory = place.path().join("layout");
    std::fs::create_dir(&directory).unwrap();
    let manifest = json!([{"Config": "../secret.json", "Layers": []}]);
    std::fs::write(directory.join("manifest.json"), manifest.to_string()).unwrap();
    let error = place.store.import(&directory, &|_| {}).unwrap_err().to_string();
    assert!(error.contains("leads out"), "{error}");
    std::os::unix::fs::symlink(&secret, directory.join("link.json")).unwrap();
    let manifest = json!([{"Config": "link.json", "Layers": []}]);
    std::fs::write(directory.join("manifest.json"), manifest.to_string()).unwrap();
    let error = place.store.import(&directory, &|_| {}).unwrap_err().to_string();
    assert!(error.contains("leads out"), "{error}");
}

#[test]
fn indexes_without_end_and_too_many_layers_are_refused() {
    let place = Place::new();
    let mut layout = Layout::default();
    let layer = Layer::new().file("a", "").build();
    let mut entry = layout.manifest(&[(layer.clone(), layer.clone())], json!({}));
    for _ in 0..6 {
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        entry = layout.blob("application/vnd.oci.image.index.v1+json", index.to_string().into());
    }
    layout.index.push(entry);
    let error = place.import(&layout).unwrap_err().to_string();
    assert!(error.contains("no end"), "{error}");

    let many = vec![layer; 501];
    let error = place.layers(&many).unwrap_err().to_string();
    assert!(error.contains("more than 500 layers"), "{error}");
}

#[test]
fn what_is_no_archive_of_images_is_refused() {
    let place = Place::new();
    for (name, bytes) in [("empty", Vec::new()), ("tar", Layer::new().file("a", "").build())] {
        let file = place.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let error = place.store.import(&file, &|_| {}).expect_err(name).to_string();
        assert!(error.contains("neither an OCI layout nor a docker archive"), "{name}: {error}");
    }
    let missing = digest(b"not there");
    let layout = Layout { blobs: Vec::new(), index: vec![json!({"digest": missing, "size": 9})] };
    let error = place.import(&layout).unwrap_err().to_string();
    assert!(error.contains("lacks"), "{error}");
}
