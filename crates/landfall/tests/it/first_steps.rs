//! What a new user meets: the kubeconfig under sudo, mistyped directories, missing programs.

use crate::harness::{Background, LANDFALL, up};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const START_MAX: Duration = Duration::from_secs(60);
/// The user who calls sudo; it needs no entry in /etc/passwd, because sudo says where its home is.
const USER: u32 = 12345;

fn landfall(args: &[&str]) -> Output {
    Command::new(LANDFALL).args(args).output().expect("landfall can be run")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A home directory that its user can reach, which a temporary directory is not by itself.
fn home(dir: &Path) -> PathBuf {
    assert!(nix::unistd::geteuid().is_root(), "this test needs root");
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let home = dir.join("home");
    std::fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), Some(USER)).unwrap();
    home
}

fn as_sudo<'a>(command: &'a mut Command, home: &Path) -> &'a mut Command {
    command.env("SUDO_UID", USER.to_string()).env("SUDO_GID", USER.to_string());
    command.env("SUDO_HOME", home).env("HOME", "/root")
}

#[track_caller]
fn belongs_to_the_user(file: &Path) {
    let found = std::fs::metadata(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (USER, USER, 0o600), "{file:?}");
}

#[test]
fn the_user_who_called_sudo_gets_a_copy_of_the_kubeconfig_and_a_context() {
    let dir = tempfile::tempdir().unwrap();
    let (home, data) = (home(dir.path()), dir.path().join("data"));
    let mut command = up(&data);
    command.args(["--no-node", "--no-scheduler", "--merge-kubeconfig"]).env("PATH", "/nowhere");
    let running = Background::spawn(as_sudo(&mut command, &home));

    let ready = running.line("ready: ", START_MAX);
    let copy = home.join(".kube/landfall.yaml");
    assert!(ready.ends_with(&format!("KUBECONFIG={}", copy.display())), "{ready}");
    running.line("kubectl --context landfall", START_MAX);
    running.line("no kubectl found in PATH", START_MAX);
    belongs_to_the_user(&copy);
    let config = home.join(".kube/config");
    belongs_to_the_user(&config);

    // The user's kubectl uses both, with the user's rights.
    for (file, context) in [(&copy, "kubernetes-admin@landfall"), (&config, "landfall")] {
        let output = Command::new("setpriv")
            .args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".into()])
            .args(["kubectl", "--context", context, "get", "namespace", "default"])
            .env("KUBECONFIG", file)
            .env("HOME", &home)
            .output()
            .expect("setpriv and kubectl can be run");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn kubeconfig_prints_and_merges_and_leaves_what_it_cannot_parse() {
    let dir = tempfile::tempdir().unwrap();
    let (home, data) = (home(dir.path()), dir.path().join("data"));
    let mut command = up(&data);
    command.args(["--no-node", "--no-scheduler"]);
    let running = Background::spawn(as_sudo(&mut command, &home));
    running.line("ready: ", START_MAX);
    running.line("sudo landfall kubeconfig --merge", START_MAX);
    let data = data.to_str().unwrap();

    let printed = landfall(&["kubeconfig", "--data-dir", data]);
    assert_eq!(printed.stdout, std::fs::read(format!("{data}/kubeconfig")).unwrap());

    let merge = || {
        let mut command = Command::new(LANDFALL);
        command.args(["kubeconfig", "--merge", "--data-dir", data]);
        as_sudo(&mut command, &home).output().unwrap()
    };
    let merged = merge();
    assert!(merged.status.success(), "{}", text(&merged.stderr));
    let config = home.join(".kube/config");
    belongs_to_the_user(&config);
    assert!(text(&merged.stdout).contains("added the context landfall"), "{merged:?}");

    std::fs::write(&config, "a: b: c").unwrap();
    let refused = merge();
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("was left as it is"), "{}", text(&refused.stderr));
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "a: b: c");
}

#[test]
fn a_mistyped_data_directory_is_an_error_and_is_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let file = dir.path().join("file");
    let (path, file) = (missing.to_str().unwrap(), file.to_str().unwrap());
    for args in [
        &["image", "list"][..],
        &["image", "rm", "busybox:1"],
        &["image", "import", file],
        &["stop"],
        &["down"],
        &["kubeconfig"],
        &["backup", file],
        &["token", "create"],
        &["token", "rotate"],
        &["timeline", "p"],
    ] {
        let output = landfall(&[args, &["--data-dir", path]].concat());
        assert!(!output.status.success(), "{args:?}");
        assert!(!missing.exists(), "{args:?} created {path}");
        let error = text(&output.stderr);
        assert!(error.contains(path) || error.contains(file), "{args:?}: {error}");
    }
    let error = text(&landfall(&["image", "list", "--data-dir", path]).stderr);
    assert!(error.contains("does not exist") && error.contains("--data-dir"), "{error}");
}
