//! Terminations of pods: stop signal, grace period, and nothing left.

use super::on_a_node;
use crate::harness::{Cluster, down, other_runtime};
use crate::kernel_state::{KernelState, mounts, processes};

/// T-NODE-16, T-NODE-27, T-NODE-47: hook, signal, exit code; the last output is in the log.
#[test]
fn a_deleted_pod_gets_its_stop_signal_and_grace_period() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let out = cluster.dir().join("out");
        std::fs::create_dir_all(&out).unwrap();
        let path = out.display();
        kubectl.ok(&format!("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: polite}}
spec:
  terminationGracePeriodSeconds: 20
  volumes: [{{name: out, hostPath: {{path: {path}}}}}]
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, 'trap \"echo asked >> /out/order; exit 0\" TERM; while :; do sleep 0.05; done']
    volumeMounts: [{{name: out, mountPath: /out}}]
    lifecycle: {{preStop: {{exec: {{command: [sh, -c, 'echo hook >> /out/order']}}}}}}
EOF
kubectl wait --for=condition=Ready pod/polite --timeout=30s
kubectl delete pod polite"));
        assert_eq!(std::fs::read_to_string(out.join("order")).unwrap(), "hook\nasked\n");
        assert_eq!(mounts(&cluster.data_dir().join("kubelet")), Vec::<String>::new());
        kubectl.shows("kubectl get events", &["Killing", "Stopping container c"]);
    });
}

/// `landfall down` terminates pods; a SIGTERM to landfall does not.
#[test]
fn stop_leaves_pods_running_and_down_terminates_them() {
    let kernel = KernelState::capture();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl run p --image=busybox:1 -- sh -c 'trap \"exit 0\" TERM; while :; do sleep 0.1; done'
                kubectl wait --for=condition=Ready pod/p --timeout=30s");
    let id = "kubectl get pod p -o jsonpath='{.status.containerStatuses[0].containerID}'";
    let before = kubectl.ok(id);
    let dir = cluster.stop();
    if other_runtime().is_none() {
        assert!(!processes(&dir.path().join("data")).is_empty(), "the shim goes on");
    }
    let cluster = Cluster::with_node_in(dir, &[]);
    let kubectl = cluster.kubectl();
    assert_eq!(kubectl.ok(id), before);
    let stdout = down(&cluster.data_dir());
    assert!(
        stdout.contains("terminating 1 pod") && stdout.contains("default/p has terminated"),
        "{stdout}"
    );
    kernel.assert_unchanged(&cluster.data_dir());
}

/// `landfall down` cleans up after a killed landfall.
#[test]
fn down_cleans_up_after_a_killed_landfall() {
    if other_runtime().is_some() {
        return; // What another runtime runs is for its own tools to end.
    }
    let kernel = KernelState::capture();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl run p --image=busybox:1 -- sleep 1000
                kubectl wait --for=condition=Ready pod/p --timeout=30s");
    let dir = cluster.kill();
    let data = dir.path().join("data");
    assert!(!processes(&data).is_empty(), "the shim goes on");
    let stdout = down(&data);
    assert!(
        stdout.contains("no landfall is running") && stdout.contains("terminating default/p"),
        "{stdout}"
    );
    kernel.assert_unchanged(&data);
}
