//! `kubectl top`, and workloads that are scaled by its metrics (C-131 to C-138, N-171).

use super::{happens, on_a_node};
use crate::harness::Kubectl;

/// Uses CPU until a file tells it to stop. Requests and limits are small, so that it is far above its target even on a
/// busy machine.
const WEB: &str = r#"kubectl apply -f - <<'END'
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 1
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: busy
          image: busybox:1
          command:
            - sh
            - -c
            - |
              while true; do
                if [ -e /tmp/calm ]; then sleep 1; else i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; fi
              done
          resources: { requests: { cpu: 40m, memory: 16Mi }, limits: { cpu: 200m } }
END
kubectl wait --for=condition=Available deployment/web --timeout=60s"#;

/// C-131, C-132, C-135, C-137, C-138, N-171: `kubectl top` shows a busy pod, its Deployment grows, and shrinks again when
/// the pods are idle.
#[test]
fn a_busy_deployment_grows_and_a_calm_one_shrinks() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(WEB);
        kubectl.fails("kubectl top pod nosuch", "pods \"nosuch\" not found");
        until(kubectl, "kubectl top pod -l app=web --no-headers 2>/dev/null | grep ^web-");
        top(kubectl);
        kubectl.ok("kubectl autoscale deployment web --min=1 --max=3 --cpu-percent=50
kubectl patch hpa web --type=merge -p '{\"spec\": {\"behavior\": {\"scaleDown\": {\"stabilizationWindowSeconds\": 0}}}}'
kubectl wait --for=jsonpath='{.spec.replicas}'=3 deployment/web --timeout=180s");
        happens(kubectl, "reason: cpu resource utilization (percentage of request) above target");
        kubectl.ok(
            "kubectl wait --for=jsonpath='{.status.readyReplicas}'=3 deployment/web --timeout=60s",
        );
        kubectl.shows(
            "kubectl describe hpa web",
            &["AbleToScale", "ScalingActive", "ValidMetricFound", "SuccessfulRescale"],
        );
        kubectl.shows("kubectl get hpa web", &["Deployment/web", "cpu: ", "%/50%"]);
        kubectl.shows(
            "kubectl get --raw /apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/web",
            &["\"targetCPUUtilizationPercentage\":50", "\"currentCPUUtilizationPercentage\":"],
        );

        kubectl.ok("for pod in $(kubectl get pods -l app=web -o name); do kubectl exec $pod -- touch /tmp/calm || exit 1; done
kubectl wait --for=jsonpath='{.spec.replicas}'=1 deployment/web --timeout=180s");
        happens(kubectl, "New size: 1; reason: All metrics below target");
        kubectl.ok("kubectl delete hpa/web deployment/web");
    });
}

/// All forms of `kubectl top`.
fn top(kubectl: &Kubectl) {
    let pods = kubectl.ok("kubectl top pods");
    assert!(pods.starts_with("NAME"), "{pods}");
    let line = pods.lines().find(|line| line.starts_with("web-")).unwrap();
    let figures: Vec<&str> = line.split_whitespace().collect();
    let cpu: u32 = figures[1].strip_suffix('m').unwrap().parse().unwrap();
    assert!((1..=300).contains(&cpu), "{pods}");
    assert!(figures[2].ends_with("Mi"), "{pods}");
    kubectl.shows("kubectl top pods --containers -l app=web", &["POD", "NAME", "busy"]);
    kubectl.shows("kubectl top pods -A --sort-by=cpu", &["NAMESPACE", "default", "web-"]);
    kubectl.shows("kubectl top pods --sort-by=memory", &["web-"]);
    let none = kubectl.ok("kubectl top pods -l app=other 2>&1");
    assert!(!none.contains("web-"), "{none}");
    let nodes = kubectl.ok("kubectl top nodes");
    let line = nodes.lines().find(|line| line.starts_with("n1")).unwrap();
    assert!(!line.contains("unknown"), "{nodes}");
    kubectl.shows("kubectl top node n1 --no-headers", &["n1", "Mi"]);
    kubectl.shows("kubectl get podmetrics", &["NAME", "CPU", "MEMORY", "WINDOW", "web-"]);
    kubectl.shows("kubectl get nodemetrics n1", &["NAME", "CPU", "n1"]);
    kubectl.shows(
        "kubectl get --raw /apis/metrics.k8s.io/v1beta1/namespaces/default/pods",
        &["\"name\":\"busy\"", "\"window\":", "PodMetricsList"],
    );
    kubectl.shows("kubectl explain podmetrics.containers.usage", &["usage"]);
}

/// Runs a script until it succeeds.
fn until(kubectl: &Kubectl, script: &str) {
    kubectl.ok(&format!("for i in $(seq 400); do {script} && exit 0; done; exit 1"));
}
