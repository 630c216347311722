//! `landfall image` with a real registry.

use std::process::Command;
use testbed::registry::{DockerRegistry, Options};
use testbed::tools::image_archive;

const LANDFALL: &str = env!("CARGO_BIN_EXE_landfall");

#[track_caller]
fn stdout_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Every imported and every removed name is printed; one of two names can be removed.
#[test]
fn names_of_an_image_are_imported_and_removed_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let archive = image_archive("busybox");
    let two = dir.path().join("two.tar");
    let latest = "docker.io/library/busybox:latest";
    stdout_of(
        Command::new("skopeo")
            .args(["copy", "--additional-tag", latest])
            .arg(format!("oci-archive:{}:docker.io/library/busybox:1", archive.display()))
            .arg(format!("docker-archive:{}:docker.io/library/busybox:1", two.display())),
    );
    let landfall = |words: &[&str]| {
        let mut command = Command::new(LANDFALL);
        stdout_of(command.arg("image").args(words).arg("--data-dir").arg(dir.path().join("data")))
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

#[track_caller]
fn push(name: &str) {
    stdout_of(
        Command::new("skopeo")
            .args(["copy", "--dest-tls-verify=false"])
            .arg(format!(
                "oci-archive:{}:docker.io/library/busybox:1",
                image_archive("busybox").display()
            ))
            .arg(format!("docker://{name}")),
    );
}

/// Both names are those of one image, which was stored under the first.
#[test]
fn a_pull_prints_the_name_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(dir.path(), &Options::default());
    for tag in ["1", "1.36.0"] {
        let name = format!("{}/tools/busybox:{tag}", registry.host);
        push(&name);
        let mut command = Command::new(LANDFALL);
        command.args(["image", "pull", &name, "--data-dir"]).arg(dir.path().join("data"));
        let pulled = stdout_of(&mut command);
        assert!(pulled.starts_with(&format!("pulled {name} (")), "{pulled}");
    }
}

/// N-172: an image can be pulled before a pod uses it.
#[test]
fn an_image_is_pulled_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(dir.path(), &Options::default());
    let name = format!("{}/tools/busybox:1", registry.host);
    push(&name);
    let landfall = |words: &[&str]| {
        let mut command = Command::new(LANDFALL);
        command.arg("image").args(words).arg("--data-dir").arg(dir.path().join("data"));
        command
    };
    let pulled = stdout_of(&mut landfall(&["pull", &name]));
    assert!(pulled.starts_with(&format!("pulled {name} (")), "{pulled}");
    assert!(stdout_of(&mut landfall(&["list"])).contains(&name));
    stdout_of(&mut landfall(&["rm", &name]));
    assert!(!stdout_of(&mut landfall(&["list"])).contains(&name));
    let missing = landfall(&["pull", &format!("{}/tools/none:1", registry.host)]).output().unwrap();
    assert!(!missing.status.success());
    let why = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(why.contains("none:1 was not pulled"), "{why}");
}
