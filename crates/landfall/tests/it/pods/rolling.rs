//! `kubectl rollout`, `scale`, `wait`, `cordon` and `drain`, on every kind that has them.

use super::on_a_node;

const APP: &str = r#"trap "exit 0" TERM; while :; do sleep 0.05; done"#;

fn set(kind: &str, name: &str, more: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: {kind}
metadata: {{name: {name}}}
spec:
  {more}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers: [{{name: c, image: 'busybox:1', command: [sh, -c, '{APP}'], env: [{{name: V, value: one}}]}}]
---
"
    )
}

/// W-70, C-54, C-70, C-93: rollout, status, history and undo work for each kind.
#[test]
fn w_70_stateful_sets_and_daemon_sets_are_rolled_out_and_back() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
{}{}EOF
kubectl rollout status sts/db --timeout=50s
kubectl rollout status ds/log --timeout=50s",
            set("StatefulSet", "db", "serviceName: db\n  replicas: 2"),
            set("DaemonSet", "log", "minReadySeconds: 0"),
        ));
        for (kind, name, long) in
            [("sts", "db", "statefulset.apps/db"), ("ds", "log", "daemonset.apps/log")]
        {
            let (on, value) =
                (format!("{kind}/{name}"), "{.spec.template.spec.containers[0].env[0].value}");
            kubectl.ok(&format!(
                "kubectl set env {on} V=two; kubectl rollout status {on} --timeout=50s"
            ));
            kubectl.prints(&format!("kubectl exec {on} -- sh -c 'echo $V'"), "two");
            kubectl.shows(
                &format!("kubectl rollout history {on}"),
                &[long, "REVISION", "CHANGE-CAUSE", "1", "2"],
            );
            kubectl.shows(
                &format!("kubectl rollout history {on} --revision=1"),
                &["with revision #1", "Pod Template:", "busybox:1", "one"],
            );
            kubectl.prints(&format!("kubectl rollout undo {on}"), &format!("{long} rolled back"));
            kubectl.ok(&format!("kubectl rollout status {on} --timeout=50s"));
            kubectl.prints(&format!("kubectl get {on} -o jsonpath='{value}'"), "one");
            kubectl.prints(&format!("kubectl exec {on} -- sh -c 'echo $V'"), "one");
            kubectl.prints(&format!("kubectl rollout restart {on}"), &format!("{long} restarted"));
            kubectl.ok(&format!("kubectl rollout status {on} --timeout=50s"));
            kubectl.shows(&format!("kubectl rollout history {on}"), &["2", "3", "4"]);
            kubectl.fails(&format!("kubectl rollout pause {on}"), "pausing is not supported");
        }
        kubectl.ok("kubectl delete sts/db ds/log
                    kubectl wait --for=delete pod --all --timeout=40s");
    });
}

/// W-70: every kind with replicas can be scaled, also with preconditions; `kubectl wait` and `drain` work.
#[test]
fn w_70_all_kinds_with_replicas_are_scaled_and_a_node_is_drained() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
{}{}{}apiVersion: v1
kind: ReplicationController
metadata: {{name: old}}
spec:
  replicas: 1
  template:
    metadata: {{labels: {{app: old}}}}
    spec: {{terminationGracePeriodSeconds: 5, containers: [{{name: c, image: 'busybox:1', command: [sh, -c, '{APP}']}}]}}
EOF
kubectl wait --for=condition=Available deployment/web --timeout=50s",
            set("Deployment", "web", "replicas: 1"),
            set("ReplicaSet", "set", "replicas: 1"),
            set("StatefulSet", "db", "serviceName: db"),
        ));
        for (on, long) in [
            ("deployment/web", "deployment.apps/web"),
            ("rs/set", "replicaset.apps/set"),
            ("rc/old", "replicationcontroller/old"),
            ("sts/db", "statefulset.apps/db"),
        ] {
            kubectl.prints(&format!("kubectl scale {on} --replicas=2"), &format!("{long} scaled"));
            kubectl.ok(&format!(
                "kubectl wait --for=jsonpath='{{.status.readyReplicas}}'=2 {on} --timeout=50s"
            ));
            kubectl.fails(
                &format!("kubectl scale {on} --current-replicas=5 --replicas=3"),
                "Expected replicas to be 5, was 2",
            );
            kubectl.ok(&format!(
                "kubectl scale {on} --current-replicas=2 --replicas=1
                 kubectl wait --for=jsonpath='{{.status.replicas}}'=1 {on} --timeout=50s"
            ));
        }
        kubectl.fails("kubectl scale deployment/web --replicas=-1", "must be");
        kubectl.fails(
            "kubectl wait --for=condition=Available=false deployment/web --timeout=1s",
            "timed out",
        );
        kubectl.fails(
            "kubectl wait --for=condition=Ready pod -l app=none --timeout=1s",
            "no matching resources",
        );

        kubectl.prints("kubectl cordon n1", "node/n1 cordoned");
        kubectl.shows("kubectl get node n1", &["Ready,SchedulingDisabled"]);
        kubectl.ok("kubectl create job late --image=busybox:1 -- true
             kubectl wait --for=jsonpath='{.status.conditions[?(@.type==\"PodScheduled\")].reason}'=Unschedulable pod -l job-name=late --timeout=20s");
        kubectl.shows(
            "kubectl drain n1 --force --timeout=50s",
            &["evicting pod default/", "node/n1 drained"],
        );
        // The replacements cannot be scheduled.
        kubectl.prints("kubectl get pods --field-selector=spec.nodeName=n1 -o name", "");
        kubectl.shows("kubectl get events", &["FailedScheduling", "1 node(s) were unschedulable"]);
        kubectl.prints("kubectl uncordon n1", "node/n1 uncordoned");
        kubectl.ok("kubectl wait --for=condition=Available deployment/web --timeout=50s
                    kubectl wait --for=condition=Complete job/late --timeout=50s
                    kubectl delete deployment/web rs/set rc/old sts/db job/late
                    kubectl wait --for=delete pod --all --timeout=40s");
    });
}
