//! The binary itself: its output, its files, how it starts and stops.

use crate::harness::etcd::{Etcd, beside};
use crate::harness::{Background, Cluster, LANDFALL, signal, up};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

fn landfall(args: &[&str]) -> Output {
    Command::new(LANDFALL).args(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn version_and_help_are_printed() {
    let version = landfall(&["version"]);
    assert!(version.status.success());
    assert!(text(&version.stdout).starts_with("landfall 0."), "{version:?}");
    assert!(text(&version.stdout).contains("Kubernetes v1.36"), "{version:?}");
    for args in [&["--help"][..], &["up", "--help"], &["server", "--help"]] {
        let help = landfall(args);
        assert!(help.status.success() && text(&help.stdout).contains("Usage:"), "{help:?}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = landfall(&["completions", shell]);
        assert!(script.status.success() && text(&script.stdout).contains("data-dir"), "{shell}");
    }
    let wrong = landfall(&["nonsense"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("unrecognized subcommand"), "{wrong:?}");
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let store = landfall(&["up", "--store", "floppy", "--data-dir", data.to_str().unwrap()]);
    assert!(!store.status.success() && !data.exists(), "nothing was made");
    assert!(text(&store.stderr).contains("neither `embedded` nor `etcd://HOST:PORT`"), "{store:?}");
}

#[test]
fn secrets_on_disk_are_for_their_owner_only() {
    let cluster = Cluster::start(&[]);
    for name in ["kubeconfig", "admin.token"] {
        let file = cluster.data_dir().join(name);
        let mode = fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    let first = fs::read_to_string(cluster.data_dir().join("admin.token")).expect("it is there");
    let rotated =
        landfall(&["token", "rotate", "--data-dir", cluster.data_dir().to_str().unwrap()]);
    assert!(text(&rotated.stdout).contains("accepts only the new one"), "{rotated:?}");
    // A token has the same rights as the certificate, even one that is created while the server runs.
    let kubectl = cluster.kubectl();
    let token = fs::read_to_string(cluster.data_dir().join("admin.token")).expect("it is there");
    assert_ne!(first, token);
    kubectl.prints(
        &format!(
            "kubectl config view --raw --minify > token.kubeconfig
             kubectl --kubeconfig token.kubeconfig config set-credentials t --token={} > /dev/null
             kubectl --kubeconfig token.kubeconfig config set-context --current --user=t > /dev/null
             kubectl --kubeconfig token.kubeconfig auth can-i '*' '*'",
            token.trim()
        ),
        "yes",
    );
    cluster.stop();
}

#[test]
fn acknowledged_writes_survive_a_restart_and_a_kill() {
    let cluster = Cluster::start(&[]);
    cluster.kubectl().ok("kubectl create cm kept --from-literal=a=b");
    let cluster = Cluster::start_in(cluster.stop(), &[]);
    let kubectl = cluster.kubectl();
    kubectl.prints("kubectl get cm kept -o jsonpath='{.data.a}'", "b");
    kubectl.ok("kubectl create cm killed --from-literal=a=b");
    let cluster = Cluster::start_in(cluster.kill(), &[]);
    cluster
        .kubectl()
        .prints("kubectl get cm kept killed -o name", "configmap/kept\nconfigmap/killed");
    cluster.stop();
}

#[test]
fn a_second_instance_on_the_same_directory_is_refused() {
    let cluster = Cluster::start(&[]);
    let mut second = Background::spawn(&mut up(&cluster.data_dir()));
    assert_eq!(second.exit(SOON), Some(1));
    let stderr = second.stderr();
    assert!(stderr.contains("another landfall is running on"), "it says why: {stderr}");
    cluster.kubectl().ok("kubectl get ns default");
    cluster.stop();
}

#[test]
fn a_port_that_is_taken_is_named() {
    let cluster = Cluster::start(&[]);
    let address = cluster.url.trim_start_matches("https://");
    let other = cluster.dir().join("other");
    let mut command = Command::new(LANDFALL);
    command.arg("up").arg("--no-node").arg("--data-dir").arg(other).args(["--listen", address]);
    let mut second = Background::spawn(&mut command);
    assert_eq!(second.exit(SOON), Some(1));
    assert!(second.stderr().contains(address), "it says which: {}", second.stderr());
    cluster.stop();
}

#[test]
fn it_stops_on_sigterm_although_a_watch_is_open() {
    let cluster = Cluster::start(&[]);
    let kubectl = cluster.kubectl();
    let mut watch = kubectl.spawn("exec kubectl get cm -w -o name");
    watch.line("kube-root-ca.crt", SOON);
    cluster.stop();
    watch.exit(SOON);
}

#[test]
fn ctrl_c_stops_up_and_server_with_a_message() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Command::new(LANDFALL);
    server.arg("server").arg("--data-dir").arg(dir.path().join("server"));
    server.args(["--listen", "127.0.0.1:0"]);
    for command in [up(&dir.path().join("up")).arg("--no-node"), &mut server] {
        let mut process = Background::spawn(command);
        process.line("ready", SOON);
        signal(process.id(), "INT");
        process.line("landfall has stopped", SOON);
        assert_eq!(process.exit(SOON), Some(0));
    }
}

#[test]
fn every_request_is_written_to_the_audit_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("audit.log");
    let cluster = Cluster::start(&["--audit-log", log.to_str().expect("a plain path")]);
    cluster.kubectl().ok("kubectl create secret generic s --from-literal=password=hunter2
        kubectl create deployment d --image=nginx
        until kubectl get pods -o name | grep -q d-; do :; done");
    cluster.stop();
    let log = fs::read_to_string(log).expect("there is a log");
    // C-197: controllers act under accounts of their own.
    for (account, resource) in
        [("deployment-controller", "replicasets"), ("replicaset-controller", "pods")]
    {
        let user = format!("\"username\":\"system:serviceaccount:kube-system:{account}\"");
        let object = format!("\"resource\":\"{resource}\"");
        let is_create =
            |line: &&str| line.contains("\"verb\":\"create\"") && line.contains(&object);
        let creates: Vec<&str> = log.lines().filter(is_create).collect();
        assert!(creates.iter().any(|line| line.contains(&user)), "{account}: {creates:#?}");
    }
    assert!(
        log.lines().any(|line| line.contains("secrets") && line.contains("kubernetes-admin")),
        "{log}"
    );
    assert!(
        log.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
        "{log}"
    );
    assert!(!log.contains("hunter2") && !log.contains("aHVudGVyMg"), "secrets stay secret");
}

#[test]
fn objects_can_be_kept_in_etcd() {
    let etcd = Etcd::start();
    let cluster = Cluster::start(&["--store", &format!("etcd://{}", etcd.address)]);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl create deployment d --image=nginx; kubectl create cm c --from-literal=a=b");
    let watch = kubectl.spawn("exec kubectl get cm c -w -o jsonpath='{.data.a}{\"\\n\"}'");
    watch.line("b", SOON);
    kubectl.ok(r#"kubectl patch cm c -p '{"data":{"a":"changed"}}'"#);
    watch.line("changed", SOON);
    kubectl.ok("kubectl delete deployment d; kubectl apply --server-side -f - <<END
apiVersion: v1
kind: ConfigMap
metadata: {name: applied}
END");
    drop(watch);
    // A server with another authority belongs to another cluster.
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let store = format!("etcd://{}", etcd.address);
    let foreign = landfall(&[
        "up",
        "--no-node",
        "--listen=127.0.0.1:0",
        "--store",
        &store,
        "--data-dir",
        data,
    ]);
    assert_eq!(foreign.status.code(), Some(1));
    assert!(text(&foreign.stderr).contains("copy the pki directory"), "{foreign:?}");
    // A second server on the same store sees the same cluster.
    let dir = tempfile::tempdir().unwrap();
    beside(&cluster, dir.path());
    let second = Cluster::start_in(dir, &["--store", &store]);
    second.kubectl().prints("kubectl get cm applied c -o name", "configmap/applied\nconfigmap/c");
    let watch = second.kubectl().spawn("exec kubectl get cm -w -o name");
    watch.line("configmap/c", SOON);
    kubectl.ok("kubectl create cm from-the-first");
    watch.line("from-the-first", SOON);
    drop(watch);
    second.stop();
    let dir = cluster.stop();
    let cluster = Cluster::start_in(dir, &["--store", &format!("etcd://{}", etcd.address)]);
    cluster.kubectl().prints("kubectl get cm c -o jsonpath='{.data.a}'", "changed");
    cluster.stop();
}
