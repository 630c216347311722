//! `landfall image`, as people type it, with a real registry.

use crate::registry::{DockerRegistry, Options};
use std::path::Path;
use std::process::Command;

const LANDFALL: &str = env!("CARGO_BIN_EXE_landfall");

#[track_caller]
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Each name that comes is told of, and each that goes: one of two goes alone.
#[test]
fn names_of_an_image_come_and_go_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let archive = root.join("target/tools/images/busybox.tar");
    assert!(archive.is_file(), "run `scripts/install all`");
    let two = dir.path().join("two.tar");
    let latest = "docker.io/library/busybox:latest";
    said(
        Command::new("skopeo")
            .args(["copy", "--additional-tag", latest])
            .arg(format!("oci-archive:{}:docker.io/library/busybox:1", archive.display()))
            .arg(format!("docker-archive:{}:docker.io/library/busybox:1", two.display())),
    );
    let landfall = |words: &[&str]| {
        let mut command = Command::new(LANDFALL);
        said(command.arg("image").args(words).arg("--data-dir").arg(dir.path().join("data")))
    };
    let imported = landfall(&["import", two.to_str().unwrap()]);
    let lines: Vec<&str> = imported.lines().collect();
    assert!(lines[0].starts_with("imported docker.io/library/busybox:1 ("), "{imported}");
    assert!(lines[1].starts_with(&format!("imported {latest} (")), "{imported}");
    let removed = landfall(&["rm", "busybox:1"]);
    assert!(removed.starts_with("removed the name busybox:1; "), "{removed}");
    assert!(removed.trim_end().ends_with(latest), "{removed}");
    let left = landfall(&["list"]);
    assert!(left.contains(latest) && !left.contains("busybox:1 "), "{left}");
    assert!(landfall(&["rm", "busybox"]).starts_with("removed busybox ("));
    assert!(!landfall(&["list"]).contains("busybox"));
}

/// N-172: what a registry has can be fetched before a pod wants it, and is then here.
#[test]
fn an_image_is_pulled_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(dir.path(), &Options::default());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let archive = root.join("target/tools/images/busybox.tar");
    assert!(archive.is_file(), "run `scripts/install all`");
    let name = format!("{}/tools/busybox:1", registry.host);
    said(
        Command::new("skopeo")
            .args(["copy", "--dest-tls-verify=false"])
            .arg(format!("oci-archive:{}:docker.io/library/busybox:1", archive.display()))
            .arg(format!("docker://{name}")),
    );
    let landfall = |words: &[&str]| {
        let mut command = Command::new(LANDFALL);
        command.arg("image").args(words).arg("--data-dir").arg(dir.path().join("data"));
        command
    };
    let pulled = said(&mut landfall(&["pull", &name]));
    assert!(pulled.starts_with(&format!("pulled {name} (")), "{pulled}");
    assert!(said(&mut landfall(&["list"])).contains(&name));
    said(&mut landfall(&["rm", &name]));
    assert!(!said(&mut landfall(&["list"])).contains(&name));
    let missing = landfall(&["pull", &format!("{}/tools/none:1", registry.host)]).output().unwrap();
    assert!(!missing.status.success());
    let why = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(why.contains("none:1 was not pulled"), "{why}");
}
