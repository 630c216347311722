//! `landfall drill` with real containers and real requests: what it finds, what it recommends, and that it leaves the
//! workload as it was.

mod long;

use super::{on_a_node, on_a_node_with};
use crate::harness::{Background, Cluster, Kubectl, LANDFALL, signal};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// A server whose behaviour at SIGTERM is known.
const SERVER: &str = include_str!("drill/server.py");
/// A run takes seconds; on a busy machine it may be repeated.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a server that closes its port at SIGTERM loses requests. Connections that it had not accepted by then are reset.
const CLOSED_PORT: &[&str] =
    &["refused after-stop-signal", "refused after-exit", "cut after-stop-signal", "cut at-exit"];

/// The server's program, for all Deployments of a cluster.
fn program(kubectl: &Kubectl) {
    let server: String = SERVER.lines().map(|line| format!("    {line}\n")).collect();
    super::services::apply(
        kubectl,
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: server}}\ndata:\n  server.py: |\n{server}"
        ),
    );
}

/// Two pods of a server in this mode, whose slow requests take a second, and a Service. Waits until they are ready.
fn serve(kubectl: &Kubectl, name: &str, mode: &str, grace: u32) {
    super::services::apply(
        kubectl,
        &format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: {grace}
      containers:
      - name: server
        image: python:1
        command: [python3, /srv/server.py]
        env: [{{name: MODE, value: {mode}}}, {{name: SLOW, value: '1'}}]
        ports: [{{containerPort: 8080, name: http}}]
        readinessProbe: {{tcpSocket: {{port: http}}, periodSeconds: 1}}
        volumeMounts: [{{name: srv, mountPath: /srv}}]
      volumes: [{{name: srv, configMap: {{name: server}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  selector: {{app: {name}}}
  ports: [{{port: 80, targetPort: http}}]"
        ),
    );
    kubectl.ok(&format!("kubectl rollout status deployment/{name} --timeout=60s"));
}

fn drill(cluster: &Cluster, args: &[&str]) -> Command {
    let mut command = Command::new(LANDFALL);
    command.arg("drill").args(args).arg("--kubeconfig").arg(cluster.kubeconfig());
    command
}

/// Runs a drill to its end: its exit code, output and messages.
fn run(mut command: Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("landfall can be run");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The JSON report of a drill that could measure.
fn report(cluster: &Cluster, args: &[&str]) -> (Option<i32>, Value) {
    let mut command = drill(cluster, args);
    command.args(["--yes", "--output", "json"]);
    let (code, output, messages) = run(command);
    let report = serde_json::from_str(&output).unwrap_or_else(|_| panic!("{code:?}: {messages}"));
    (code, report)
}

/// What a drill must leave as it was: the pod template, and no annotation.
fn template(kubectl: &Kubectl, name: &str) -> String {
    kubectl.ok(&format!(
        "kubectl get deployment {name} -o jsonpath='{{.spec.template}}{{.metadata.annotations.landfall\\.dev/drill-restore}}'"
    ))
}

/// How often requests were lost in each way: `refused after-exit`.
fn losses(run: &Value) -> Vec<(String, u64)> {
    let all = run["losses"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    all.iter()
        .map(|loss| {
            let way = format!("{} {}", text(&loss["failure"]), text(&loss["step"]));
            (way, loss["count"].as_u64().unwrap_or(0))
        })
        .collect()
}

/// At least 95 % of the losses happened in these ways, and there were some.
fn assert_attributed(name: &str, run: &Value, expected: &[&str]) {
    let losses = losses(run);
    let total: u64 = losses.iter().map(|(_, count)| count).sum();
    let right: u64 = losses
        .iter()
        .filter(|(way, _)| expected.contains(&way.as_str()))
        .map(|(_, count)| count)
        .sum();
    assert!(total > 0, "{name}: nothing was lost");
    assert!(right * 100 >= total * 95, "{name}: {losses:?}");
}

/// However a drill ends, the workload is as before, or the next command says how to restore it.
#[test]
fn an_interrupted_or_failed_drill_leaves_the_workload_as_it_was() {
    on_a_node(&["python"], |cluster, kubectl| {
        program(kubectl);
        // Pods that are deleted while they start have no handler for SIGTERM yet, and use their whole grace period.
        serve(kubectl, "web", "graceful", 3);
        let before = template(kubectl, "web");
        let start = || {
            let mut command = drill(cluster, &["deploy/web", "--yes"]);
            let process = Background::spawn(&mut command);
            kubectl.ok("for i in $(seq 300); do kubectl get deployment web -o jsonpath='{.spec.template}' | grep -q restartedAt && exit 0; done; exit 1");
            process
        };

        let mut interrupted = start();
        signal(interrupted.id(), "INT");
        assert_eq!(interrupted.exit(PATIENCE), Some(2));
        assert!(interrupted.stderr().contains("has its own values again"));
        assert_eq!(template(kubectl, "web"), before);
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");

        let mut killed = start();
        signal(killed.id(), "KILL");
        assert_eq!(killed.exit(PATIENCE), None);
        assert_ne!(template(kubectl, "web"), before);
        let (code, _, messages) = run(drill(cluster, &["deploy/web"]));
        assert_eq!(code, Some(2), "{messages}");
        assert!(messages.contains("has not put back the values"), "{messages}");
        let (code, output, messages) = run(drill(cluster, &["deploy/web", "--restore"]));
        assert_eq!(code, Some(0), "{messages}");
        assert!(output.contains("as it was before the drill"), "{output}");
        assert_eq!(template(kubectl, "web"), before);
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");

        let mut deleted = start();
        kubectl.ok("kubectl delete deployment web");
        assert_eq!(deleted.exit(PATIENCE), Some(2));
        assert!(deleted.stderr().contains("was deleted during the drill"), "{}", deleted.stderr());
        kubectl.ok("kubectl wait --for=delete pod -l app=web --timeout=60s");

        cannot_measure(cluster, kubectl);
    });
}

/// Each message says what is wrong and what to do.
fn cannot_measure(cluster: &Cluster, kubectl: &Kubectl) {
    serve(kubectl, "web", "graceful", 30);
    let before = template(kubectl, "web");
    kubectl.ok("kubectl create service clusterip lone --tcp=80");
    for (args, words) in [
        (&["deploy/web", "--yes", "--service", "lone"][..], "has no ready endpoint"),
        (&["deploy/web"], "Pass --yes to agree"),
        (&["deploy/none", "--yes"], "there is no Deployment none"),
        (&["ds/web", "--yes"], "write KIND/NAME"),
        (&["deploy/web", "--yes", "--connections", "slow"], "--slow-path"),
        (&["deploy/web", "--yes", "--url", "http://127.0.0.1:1"], "connection refused"),
        (&["deploy/web", "--yes", "--from-pod"], "not supported yet"),
        (&["deploy/web", "--restore"], "is not being drilled"),
    ] {
        let (code, _, messages) = run(drill(cluster, args));
        assert_eq!(code, Some(2), "{args:?}: {messages}");
        assert!(messages.contains(words), "{args:?}: {messages}");
    }
    assert_eq!(template(kubectl, "web"), before, "nothing was changed");
    kubectl.ok("kubectl delete deployment,service web");
}
