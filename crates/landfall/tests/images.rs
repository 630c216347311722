//! `landfall image`, as people type it, with a real registry.

#[path = "../../runtime/tests/registry/mod.rs"]
mod registry;

use registry::{DockerRegistry, Options};
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
