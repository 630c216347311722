//! Pods that mean harm: the node stays Ready and says what it refused.

use super::{on_a_node, on_a_node_with};

#[test]
fn a_log_flood_a_full_volume_and_a_link_out_of_a_volume_do_no_harm() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let host = cluster.dir().join("host");
        std::fs::create_dir_all(&host).unwrap();
        std::os::unix::fs::symlink("/etc", host.join("out")).unwrap();
        let host = host.display();
        kubectl.ok(&format!("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: flood}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: c, image: 'busybox:1', command: ['yes', 'a line that says nothing'], resources: {{limits: {{cpu: 200m}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: full}}
spec:
  restartPolicy: Never
  volumes: [{{name: m, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}]
  containers:
  - {{name: c, image: 'busybox:1', command: [sh, -c, 'cat /dev/zero > /m/x; echo survived'], volumeMounts: [{{name: m, mountPath: /m}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: link}}
spec:
  volumes: [{{name: h, hostPath: {{path: {host}}}}}]
  containers:
  - {{name: c, image: 'busybox:1', command: [sleep, '1000'], volumeMounts: [{{name: h, mountPath: /h, subPath: out/passwd}}]}}
EOF
kubectl wait --for=jsonpath='{{.status.phase}}'=Succeeded pod/full --timeout=60s
kubectl wait --for=jsonpath='{{.status.containerStatuses[0].state.waiting.reason}}'=CreateContainerConfigError pod/link --timeout=60s
kubectl wait --for=condition=Ready pod/flood --timeout=60s"));
        kubectl.prints("kubectl logs full --tail=1", "survived");
        kubectl.shows("kubectl describe pod link", &["failed to prepare subPath for volumeMount"]);
        kubectl.ok("kubectl wait --for=condition=Ready node/n1 --timeout=10s
                    kubectl logs flood --tail=3
                    kubectl run after --image=busybox:1 -- sleep 1000
                    kubectl wait --for=condition=Ready pod/after --timeout=60s");
    });
}

/// N-113: with a limit on its processes a fork bomb only hurts itself.
#[test]
fn a_fork_bomb_is_held_by_its_pids_limit() {
    on_a_node_with(&["busybox"], &["--pod-pids-limit", "64"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: bomb}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: 'busybox:1', command: [sh, -c, 'b() { b | b & }; b; sleep 1000'], resources: {limits: {cpu: 200m, memory: 64Mi}}}
EOF
kubectl wait --for=jsonpath='{.status.phase}'=Running pod/bomb --timeout=60s
kubectl run after --image=busybox:1 -- sleep 1000
kubectl wait --for=condition=Ready pod/after node/n1 --timeout=60s
kubectl delete pod bomb --timeout=30s");
    });
}
