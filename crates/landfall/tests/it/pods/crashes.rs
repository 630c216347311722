//! Pods survive a SIGKILL of landfall and recover from a SIGKILL of a shim.

use crate::harness::{Cluster, Kubectl, down, image_archive, import, other_runtime, signal};
use crate::kernel_state::KernelState;
use std::collections::BTreeSet;

const PODS: usize = 20;

/// N-20: nothing is cleaned up before the pods are listed from the API. The containers are the same, no restart is
/// counted, and no log line and no exit code is lost.
#[test]
fn twenty_pods_survive_a_kill_of_landfall() {
    let kernel = KernelState::capture();
    let dir = tempfile::tempdir().unwrap();
    import(&dir.path().join("data"), &image_archive("busybox"));
    let cluster = Cluster::with_node_in(dir, &[]);
    let kubectl = cluster.kubectl();
    let counting = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done";
    for pod in 0..PODS {
        kubectl.ok(&format!("kubectl run p{pod} --image=busybox:1 -- sh -c '{counting}'"));
    }
    // These exit while landfall is down: one with 0, one with an error.
    kubectl.ok("kubectl run ends-well --image=busybox:1 --restart=Never -- sh -c 'until [ -f /tmp/go ]; do sleep 0.1; done; echo last words; exit 0'
kubectl run ends-badly --image=busybox:1 --restart=Never -- sh -c 'until [ -f /tmp/go ]; do sleep 0.1; done; exit 42'
kubectl wait --for=condition=Ready pod --all --timeout=120s
kubectl exec ends-well -- sh -c '(sleep 1; touch /tmp/go) & sleep 0'
kubectl exec ends-badly -- sh -c '(sleep 1; touch /tmp/go) & sleep 0'");
    let before = containers(&kubectl);
    let dir = cluster.kill();
    if other_runtime().is_none() {
        wait_until_gone(&dir.path().join("data"), 2);
    }
    let cluster = Cluster::with_node_in(dir, &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok(
        "kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/ends-well --timeout=30s
kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/ends-badly --timeout=30s
kubectl wait --for=condition=Ready pod/p0 --timeout=30s",
    );
    assert_eq!(containers(&kubectl), before, "the same containers, no restart");
    kubectl.prints("kubectl logs ends-well", "last words");
    kubectl.prints(
        "kubectl get pod ends-badly -o jsonpath='{.status.containerStatuses[0].state.terminated.exitCode}'",
        "42",
    );
    for pod in [0, PODS - 1] {
        let log = kubectl.ok(&format!("kubectl logs p{pod}"));
        for (at, line) in log.lines().enumerate() {
            assert_eq!(line, (at + 1).to_string(), "a line of p{pod} is missing");
        }
    }
    kubectl.ok("kubectl delete pods --all --grace-period=1");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// The status shows what happened, and the container is restarted.
#[test]
fn a_pod_recovers_from_the_death_of_its_shim() {
    if other_runtime().is_some() {
        return; // It has other shims, and other ways to tell.
    }
    let kernel = KernelState::capture();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl run p --image=busybox:1 -- sleep 1000
kubectl run once --image=busybox:1 --restart=Never -- sleep 1000
kubectl wait --for=condition=Ready pod --all --timeout=60s");
    for shim in shims(&cluster.data_dir()) {
        signal(shim, "KILL");
    }
    kubectl.ok("kubectl wait --for=jsonpath='{.status.containerStatuses[0].restartCount}'=1 pod/p --timeout=30s
kubectl wait --for=condition=Ready pod/p --timeout=30s
kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/once --timeout=30s");
    let last = kubectl.ok("kubectl get pod p -o jsonpath='{.status.containerStatuses[0].lastState.terminated.message}'");
    assert!(last.contains("shim"), "it says what happened: {last}");
    kubectl.shows("kubectl describe pod p", &["Pod sandbox changed"]);
    kubectl.ok("kubectl delete pods --all --grace-period=1");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// T-NODE-76: without the records of the runtime, containers are found by the cgroup of their pod. The next agent
/// kills them before it starts the pod again; `landfall down` leaves none.
#[test]
fn containers_whose_records_are_lost_do_not_survive() {
    if other_runtime().is_some() {
        return; // It has its own records.
    }
    let kernel = KernelState::capture();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let seconds = (1_000_000 + std::process::id()).to_string();
    let run = format!("kubectl run p --image=busybox:1 -- sleep {seconds}");
    cluster.kubectl().ok(&format!("{run}\nkubectl wait --for=condition=Ready pod/p --timeout=60s"));
    let first = sleeping(&seconds);
    assert_eq!(first.len(), 1);

    let cluster = Cluster::with_node_in(without_records(cluster), &[]);
    let ready = "kubectl wait --for=condition=Ready pod/p --timeout=30s";
    let restarted = "{.status.containerStatuses[0].restartCount}";
    let restarted = format!("kubectl wait --for=jsonpath='{restarted}'=1 pod/p --timeout=60s");
    cluster.kubectl().ok(&format!("{restarted}\n{ready}"));
    let second = sleeping(&seconds);
    assert_eq!(second.len(), 1, "only the new container runs");
    assert_ne!(second, first);

    let dir = without_records(cluster);
    down(&dir.path().join("data"));
    assert_eq!(sleeping(&seconds), Vec::<u32>::new(), "containers are left");
    kernel.assert_unchanged(&dir.path().join("data"));
}

/// Kills landfall and deletes what its runtime has on disk.
fn without_records(cluster: Cluster) -> tempfile::TempDir {
    let dir = cluster.kill();
    // It cannot delete what is mounted.
    let run = dir.path().join("data/run");
    let _ = std::process::Command::new("rm").arg("-rf").arg(&run).output().unwrap();
    dir
}

/// The processes `sleep <seconds>`.
fn sleeping(seconds: &str) -> Vec<u32> {
    let wanted = format!("sleep\0{seconds}\0");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let line = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    pids.filter(|pid| line(pid) == wanted.as_bytes()).collect()
}

fn containers(kubectl: &Kubectl) -> BTreeSet<String> {
    let path = "{range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    kubectl
        .ok(&format!("kubectl get pods -o jsonpath='{path}'"))
        .lines()
        .map(str::to_owned)
        .collect()
}

pub(crate) fn shims(data_dir: &std::path::Path) -> Vec<u32> {
    let run = data_dir.join("run").display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(" shim ") && line.contains(&run)
    })
    .collect()
}

/// Waits until that many containers have an exit on disk while landfall is down.
fn wait_until_gone(data_dir: &std::path::Path, exits: usize) {
    let started = std::process::Command::new("sh")
        .args(["-c", &format!(
            "for i in $(seq 300); do [ $(find '{}' -name 'exit*' | wc -l) -ge {exits} ] && exit 0; sleep 0.1; done; exit 1",
            data_dir.join("run").display()
        )])
        .status();
    assert!(started.unwrap().success(), "they did not end");
}
