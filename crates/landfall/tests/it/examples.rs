//! The manifests in `examples/` are what people apply first: a real server accepts each of them, without a
//! warning.

use crate::harness::Cluster;
use std::path::{Path, PathBuf};

fn examples() -> Vec<PathBuf> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two below the root");
    let entries = std::fs::read_dir(root.join("examples")).expect("there are examples");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    files
}

#[test]
fn a_server_accepts_every_example_without_a_warning() {
    let cluster = Cluster::start(&[]);
    let kubectl = cluster.kubectl();
    for file in examples() {
        let applied = kubectl.run(&format!("kubectl apply -f {}", file.display()));
        assert_eq!(applied.code, 0, "{applied}");
        assert_eq!(applied.stderr, "", "{applied}");
        let text = std::fs::read_to_string(&file).unwrap();
        let objects = text.lines().filter(|line| line.starts_with("kind: ")).count();
        let created = applied.stdout.lines().filter(|line| line.ends_with(" created")).count();
        assert_eq!(created, objects, "{applied}");
    }
    cluster.stop();
}

#[test]
fn every_example_says_how_to_apply_it_and_what_to_watch_and_is_listed() {
    for file in examples() {
        let name = file.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(&format!("#   kubectl apply -f examples/{name}\n")), "{name}");
        assert!(text.contains("\n# Watch: "), "{name}");
        let list = std::fs::read_to_string(file.with_file_name("README.md")).unwrap();
        assert!(list.contains(&format!("[{name}]({name})")), "{name} is not in examples/README.md");
        for line in text.lines().filter(|line| line.trim_start().starts_with("image: ")) {
            let image = line.trim_start().trim_start_matches("image: ");
            assert!(["busybox:1", "nginx:1"].contains(&image), "{name}: {image}");
        }
    }
}
