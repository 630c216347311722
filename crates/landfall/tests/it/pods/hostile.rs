//! Malicious pods: the node stays Ready and reports what it rejected.

use super::{on_a_node, on_a_node_with};
use crate::harness::node_link;
use crate::kernel_state::groups_of_pods;
use std::collections::BTreeSet;

/// How many processes the kernel lets the pods of this test's node have.
fn process_limits() -> BTreeSet<String> {
    let groups = groups_of_pods(&node_link()).into_iter();
    let limits = groups.filter_map(|group| std::fs::read_to_string(group + "/pids.max").ok());
    limits.map(|limit| limit.trim().to_owned()).collect()
}

#[test]
fn a_log_flood_a_full_volume_and_a_symlink_out_of_a_volume_do_no_harm() {
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
        assert_eq!(process_limits(), BTreeSet::from(["4096".to_owned()]), "N-113");
        kubectl.shows("kubectl describe pod link", &["failed to prepare subPath for volumeMount"]);
        kubectl.ok("kubectl wait --for=condition=Ready node/n1 --timeout=10s
                    kubectl logs flood --tail=3
                    kubectl run after --image=busybox:1 -- sleep 1000
                    kubectl wait --for=condition=Ready pod/after --timeout=60s");
    });
}

/// N-113: the process limit stops a fork bomb. N-127: `--seccomp-default` applies to containers without a profile.
#[test]
fn a_fork_bomb_is_stopped_by_its_pids_limit() {
    let args = ["--pod-pids-limit", "64", "--seccomp-default"];
    on_a_node_with(&["busybox"], &args, |_, kubectl| {
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
kubectl wait --for=condition=Ready pod/after node/n1 --timeout=60s");
        assert_eq!(process_limits(), BTreeSet::from(["64".to_owned()]));
        kubectl
            .prints("kubectl exec after -- sh -c 'grep ^Seccomp: /proc/1/status | cut -f2'", "2");
        kubectl.ok("kubectl delete pod bomb --timeout=30s");
    });
}
