//! Workloads with real pods: kubectl creates, rolls out, scales and deletes them.

use super::on_a_node;
use crate::harness::Kubectl;

/// Exits at once on SIGTERM.
const APP: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

fn deployment(kubectl: &Kubectl, replicas: u32) {
    kubectl.ok(&format!(
        "kubectl apply -f - <<'EOF'
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: c
        image: busybox:1
        command: [sh, -c, \"{APP}\"]
        env: [{{name: VERSION, value: one}}]
EOF
kubectl rollout status deployment/web --timeout=60s"
    ));
}

/// W-70, C-54, C-60, C-31, C-33, C-53: all commands of `kubectl rollout`, and scaling.
#[test]
fn a_deployment_is_rolled_out_and_back_paused_and_scaled() {
    on_a_node(&["busybox"], |_, kubectl| {
        deployment(kubectl, 2);
        kubectl.shows("kubectl get deployment web", &["web", "2/2", "2", "2"]);
        kubectl.ok("kubectl set env deployment/web VERSION=two
                    kubectl rollout status deployment/web --timeout=60s");
        kubectl.shows("kubectl rollout history deployment/web", &["REVISION", "1", "2"]);
        let version = "kubectl get deployment web -o jsonpath='{.spec.template.spec.containers[0].env[0].value}'";
        kubectl.shows("kubectl rollout undo deployment/web", &["deployment.apps/web rolled back"]);
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
        kubectl.prints(version, "one");
        kubectl.shows("kubectl rollout history deployment/web", &["REVISION", "2", "3"]);
        kubectl.ok("kubectl rollout restart deployment/web
                    kubectl rollout status deployment/web --timeout=60s
                    kubectl rollout pause deployment/web
                    kubectl set env deployment/web VERSION=three
                    kubectl scale deployment/web --replicas=3
                    kubectl wait --for=jsonpath='{.status.availableReplicas}'=3 deployment/web --timeout=60s");
        let images = "kubectl get rs -l app=web -o jsonpath='{range .items[?(@.spec.replicas>0)]}{.spec.template.spec.containers[0].env[0].value}{\"\\n\"}{end}'";
        kubectl.prints(images, "one");
        kubectl.ok("kubectl rollout resume deployment/web
                    kubectl rollout status deployment/web --timeout=60s");
        kubectl.prints(images, "three");
        kubectl.shows(
            "kubectl describe deployment web",
            &[
                "3 desired",
                "NewReplicaSetAvailable",
                "ScalingReplicaSet",
                "Scaled up replica set web-",
            ],
        );
        kubectl.ok("kubectl delete deployment web --wait
                    kubectl wait --for=delete pod -l app=web --timeout=60s");
    });
}

/// W-14, T-CTRL-1: a deleted pod is replaced at once, while it still terminates.
#[test]
fn w_14_a_deleted_pod_is_replaced_before_it_is_gone() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: slow}
spec:
  replicas: 1
  selector: {matchLabels: {app: slow}}
  template:
    metadata: {labels: {app: slow}}
    spec:
      terminationGracePeriodSeconds: 20
      containers: [{name: c, image: 'busybox:1', command: [sh, -c, \"trap 'sleep 10; exit 0' TERM; while :; do sleep 0.05; done\"]}]
EOF
kubectl wait --for=jsonpath='{.status.readyReplicas}'=1 rs/slow --timeout=60s");
        kubectl.ok("kubectl delete pod -l app=slow --wait=false
                    kubectl wait --for=jsonpath='{.status.terminatingReplicas}'=1 rs/slow --timeout=10s
                    kubectl wait --for=jsonpath='{.status.readyReplicas}'=1 rs/slow --timeout=10s");
        let count = kubectl.ok("kubectl get pods -l app=slow --no-headers | wc -l");
        assert_eq!(count.trim(), "2", "the old one is in its grace, the new one runs");
        kubectl.ok("kubectl delete rs slow");
    });
}

/// C-114, C-61, C-81, C-125: Jobs complete, StatefulSet pods have their names, DaemonSets run on the node.
#[test]
fn jobs_stateful_sets_and_daemon_sets_run() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl create job sum --image=busybox:1 -- sh -c 'exit 0'
                    kubectl wait --for=condition=Complete job/sum --timeout=60s");
        kubectl.shows("kubectl get job sum", &["sum", "Complete", "1/1"]);
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  replicas: 2
  serviceName: db
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers: [{{name: c, image: 'busybox:1', command: [sh, -c, \"{APP}\"]}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: log}}
spec:
  selector: {{matchLabels: {{app: log}}}}
  template:
    metadata: {{labels: {{app: log}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers: [{{name: c, image: 'busybox:1', command: [sh, -c, \"{APP}\"]}}]
EOF
kubectl rollout status statefulset/db --timeout=60s
kubectl rollout status daemonset/log --timeout=60s"
        ));
        kubectl.prints("kubectl exec db-1 -- hostname", "db-1");
        kubectl.ok("kubectl rollout restart statefulset/db daemonset/log
                    kubectl rollout status statefulset/db --timeout=60s
                    kubectl rollout status daemonset/log --timeout=60s");
        kubectl.shows("kubectl rollout history daemonset/log", &["REVISION", "1", "2"]);
        kubectl.ok("kubectl rollout undo daemonset/log
                    kubectl rollout status daemonset/log --timeout=60s
                    kubectl delete job/sum statefulset/db daemonset/log");
    });
}
