//! Validation of grace periods and hooks in manifests.

use crate::harness::Cluster;

/// A pod with these fields in its only container, and these in its spec.
fn pod(name: &str, container: &str, spec: &str) -> String {
    format!(
        "kubectl create -f - <<'EOF'
{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {{{spec}
  \"containers\": [{{\"name\": \"c\", \"image\": \"i\"{container}}}]}}}}
EOF"
    )
}

fn hook(handler: &str) -> String {
    format!(", \"lifecycle\": {{\"preStop\": {{{handler}}}}}")
}

/// W-39, W-55, T-API-1, T-NODE-23, T-NODE-32 to 34, T-NODE-63, T-EDGE-10: the grace period belongs to the pod and is
/// 30 s by default; a hook has one handler; a sleep must fit into the grace period; a hook that can never work is
/// accepted with a warning.
#[test]
fn grace_periods_and_hooks_are_validated() {
    let cluster = Cluster::start(&[]);
    let kubectl = cluster.kubectl();
    kubectl.ok(&pod("plain", "", ""));
    kubectl
        .prints("kubectl get pod plain -o jsonpath='{.spec.terminationGracePeriodSeconds}'", "30");
    kubectl.ok(&pod("own", "", "\"terminationGracePeriodSeconds\": 15,"));
    kubectl.prints("kubectl get pod own -o jsonpath='{.spec.terminationGracePeriodSeconds}'", "15");
    let sleep = |seconds: i64| hook(&format!("\"sleep\": {{\"seconds\": {seconds}}}"));
    let most = "must be non-negative and less than terminationGracePeriodSeconds (30)";
    for (container, told) in [
        (", \"terminationGracePeriodSeconds\": 15".to_owned(), "unknown field \"spec.containers[0].terminationGracePeriodSeconds\""),
        (sleep(31), most),
        (sleep(-1), most),
        (hook(""), "must specify a handler type"),
        (hook("\"sleep\": {\"seconds\": 1}, \"exec\": {\"command\": [\"a\"]}"), "may not specify more than 1 handler type"),
        (", \"livenessProbe\": {\"tcpSocket\": {\"port\": 1}, \"terminationGracePeriodSeconds\": 0}".to_owned(), "must be greater than 0"),
        (", \"readinessProbe\": {\"tcpSocket\": {\"port\": 1}, \"terminationGracePeriodSeconds\": 5}".to_owned(), "must not be set for readinessProbes"),
    ] {
        kubectl.fails(&pod("refused", &container, ""), told);
    }
    kubectl.ok(&pod("sleeps", &sleep(30), ""));
    kubectl.ok(&pod("does-not-sleep", &sleep(0), ""));
    let output = kubectl.run(&pod("tcp", &hook("\"tcpSocket\": {\"port\": 80}"), ""));
    assert_eq!(output.code, 0, "T-NODE-32: {output}");
    let warning =
        "Warning: spec.containers[0].lifecycle.preStop.tcpSocket: not supported for hooks";
    assert!(output.stderr.contains(warning), "T-EDGE-10: {output}");
    cluster.stop();
}
