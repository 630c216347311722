//! A node joins a cluster with a token: two processes, as on two machines.
//!
//! Needs root, like every test that runs pods. `landfall down` ends both processes, and nothing of the node may be left.

use crate::harness::{
    Background, Cluster, LANDFALL, down, image_archive, import, service_range, signal,
};
use crate::kernel_state;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long joining may take on a busy machine.
const JOIN_MAX: Duration = Duration::from_secs(90);

fn token(cluster: &Cluster) -> String {
    let mut command = Command::new(LANDFALL);
    let made = command.args(["token", "create", "--data-dir"]).arg(cluster.data_dir()).output();
    let made = made.expect("landfall can be run");
    let output = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(
        output.contains(&format!("landfall node --server {} --token", cluster.url)),
        "{output}"
    );
    output.split_whitespace().last().expect("the token").to_owned()
}

fn node(data_dir: &Path, server: &str, token: &str) -> Background {
    let mut command = Command::new(LANDFALL);
    command.arg("node").arg("--data-dir").arg(data_dir).args(["--server", server]);
    command.args(["--token", token, "--name", "n2", "--node-listen", "0.0.0.0:0"]);
    // A test machine may have little free disk space; that must not evict pods.
    command.args(["--eviction-hard", ""]);
    // Contains the id of this process, as `kernel_state` expects.
    command.arg("--pod-link").arg(format!("t{:x}", std::process::id() % 0x10_0000));
    command.args(["--proxy-health-listen", "none", "--proxy-metrics-listen", "none"]);
    Background::spawn(command.stdin(Stdio::null()))
}

/// The token with another character at this position.
fn mistyped(token: &str, at: usize) -> String {
    let other = if token.as_bytes()[at] == b'0' { "1" } else { "0" };
    format!("{}{other}{}", &token[..at], &token[at + 1..])
}

#[track_caller]
fn is_refused(server: &str, token: &str, why: &str) {
    let dir = tempfile::tempdir().expect("a directory for the node");
    let mut refused = node(&dir.path().join("data"), server, token);
    assert_eq!(refused.exit(JOIN_MAX), Some(1));
    assert!(refused.stderr().contains(why), "{}", refused.stderr());
}

#[test]
fn a_node_joins_with_a_token_runs_pods_and_has_only_its_own_rights() {
    let kernel = kernel_state::KernelState::capture();
    let pods = format!("10.{}.0.0/16", 201 + std::process::id() % 50);
    let services = service_range();
    let cluster = Cluster::without_node(&["--pod-cidr", &pods, "--service-cidr", &services]);
    let kubectl = cluster.kubectl();
    let token = token(&cluster);

    is_refused(&cluster.url, &mistyped(&token, 10), "does not accept the token");
    let last = token.len() - 1;
    is_refused(
        &cluster.url,
        &mistyped(&token, last),
        "does not belong to the cluster of this token",
    );
    kubectl.prints("kubectl get nodes -o name", "");

    let dir = tempfile::tempdir().expect("a directory for the node");
    let data_dir = dir.path().join("data");
    import(&data_dir, &image_archive("busybox"));
    let mut running = node(&data_dir, &cluster.url, &token);
    running.line("ready: node n2", JOIN_MAX);
    kubectl.ok("kubectl wait --for=condition=Ready node/n2 --timeout=50s");
    kubectl.ok("kubectl run talker --image=busybox:1 -- sh -c 'echo hello; exec sleep 1000'
         kubectl wait --for=condition=Ready pod/talker --timeout=50s");
    kubectl.prints("kubectl get pod talker -o jsonpath='{.spec.nodeName}'", "n2");
    kubectl.prints("kubectl logs talker", "hello");
    kubectl.prints("kubectl exec talker -- echo inside", "inside");
    kubectl.shows(
        "kubectl get csr",
        &["kube-apiserver-client-kubelet", "system:bootstrap:", "Approved,Issued"],
    );

    // a node cannot change another node or read secrets that its pods do not use.
    kubectl.ok("echo '{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"other\"}}' | kubectl create -f -");
    let as_node = format!("kubectl --kubeconfig={}", data_dir.join("node/kubeconfig").display());
    kubectl.ok(&format!("{as_node} label node n2 mine=yes"));
    kubectl.fails(
        &format!("{as_node} label node other mine=yes"),
        "node \"n2\" is not allowed to modify node \"other\"",
    );
    kubectl.fails(&format!("{as_node} delete node other"), "forbidden");
    kubectl.ok("kubectl create secret generic theirs --from-literal=a=b");
    kubectl.fails(
        &format!("{as_node} get secret theirs"),
        "no relationship found between node 'n2' and this object",
    );
    kubectl.fails(&format!("{as_node} get secrets --all-namespaces"), "forbidden");

    // The node has its own certificates now: it does not need the token again, and the pod keeps running.
    let uid = kubectl
        .ok("kubectl get pod talker -o jsonpath='{.status.containerStatuses[0].containerID}'");
    kubectl.ok(
        "kubectl delete secrets -n kube-system --field-selector type=bootstrap.kubernetes.io/token",
    );
    signal(running.id(), "TERM");
    assert_eq!(running.exit(JOIN_MAX), Some(0), "{}", running.stderr());
    // The address of the machine has changed: the one in the Node object is wrong.
    kubectl.ok("kubectl patch node n2 --subresource=status -p '{\"status\":{\"addresses\":[{\"type\":\"InternalIP\",\"address\":\"203.0.113.7\"}]}}'");
    let again = node(&data_dir, &cluster.url, &token);
    again.line("ready: node n2", JOIN_MAX);
    kubectl.prints("kubectl exec talker -- echo still", "still");
    kubectl.prints(
        "kubectl get pod talker -o jsonpath='{.status.containerStatuses[0].containerID}'",
        &uid,
    );

    kubectl.ok("kubectl delete pod talker --grace-period=1");
    down(&data_dir);
    down(&cluster.data_dir());
    kernel.assert_unchanged(&data_dir);
}
