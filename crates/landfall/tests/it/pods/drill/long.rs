//! Drills that take minutes together: `make test-drill-long`.

use super::{
    CLOSED_PORT, Command, LANDFALL, assert_attributed, drill, on_a_node, on_a_node_with, program,
    report, run, serve, template,
};
use crate::harness::{Background, Cluster, Kubectl};
use serde_json::Value;
use std::time::Duration;

/// Hides landfall's own API group.
const PLAIN_PROXY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/pods/drill/plain_proxy.py");

/// With packet rules that change 400 ms late, a server that closes its port at SIGTERM loses connections; a sleep of a
/// second cures that, and nothing of the drill is left.
#[test]
fn a_drill_finds_the_sleep_that_slow_proxies_need() {
    on_a_node_with(&["python"], &["--proxy-delay", "400ms"], |cluster, kubectl| {
        program(kubectl);
        serve(kubectl, "web", "graceful", 30);
        let before = template(kubectl, "web");
        let page = cluster.dir().join("drill.html");
        let page_arg = page.display().to_string();
        let args = ["deploy/web", "--connections", "new,keepalive,slow", "--slow-path", "/slow"];
        let args: Vec<&str> = args.into_iter().chain(["--html", &page_arg]).collect();
        let (code, report) = report(cluster, &args);
        assert_eq!(code, Some(1), "as configured it misses the target");
        let runs = report["runs"].as_array().expect("a list");
        assert_attributed("as configured", &runs[0], CLOSED_PORT);
        let found = &report["recommended"];
        let seconds = found["values"]["preStopSeconds"].as_u64();
        assert!(matches!(seconds, Some(1 | 2)), "{report:#}");
        assert_eq!(found["lost"], 0, "{found:#}");
        for run in runs {
            assert_forecast(run);
        }
        assert_eq!(template(kubectl, "web"), before);
        let page = std::fs::read_to_string(page).expect("the page was written");
        assert!(page.contains("<svg") && page.ends_with("</html>\n"));

        through_a_plain_api(cluster);
        assert_eq!(template(kubectl, "web"), before);
        kubectl.ok("kubectl delete deployment,service web");
    });
}

/// The forecast from the manifest and the measured start of pods agrees with the measured rollout.
fn assert_forecast(run: &Value) {
    let forecast = run["forecastRolloutSeconds"].as_f64().expect("a forecast");
    let measured = run["restarts"][0]["rolloutSeconds"].as_f64().expect("a duration");
    let difference = (forecast - measured).abs() / measured;
    // Controllers react later on a machine that runs other tests too.
    assert!(difference < 0.25, "forecast {forecast}, measured {measured}");
}

/// The same workload, seen through an API server without the group landfall.dev.
fn through_a_plain_api(cluster: &Cluster) {
    let pki = cluster.data_dir().join("pki");
    let mut command = Command::new("python3");
    command.arg(PLAIN_PROXY).arg(&cluster.url).arg(pki.join("ca.crt"));
    let proxy = Background::spawn(command.arg(cluster.data_dir().join("admin.token")));
    let port = proxy.next(Duration::from_secs(20)).expect("it prints its port");
    let kubeconfig = cluster.dir().join("plain.yaml");
    let text = format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: p, cluster: {{server: 'http://127.0.0.1:{}'}}}}]
users: [{{name: p, user: {{}}}}]
contexts: [{{name: p, context: {{cluster: p, user: p}}}}]
current-context: p
",
        port.trim()
    );
    std::fs::write(&kubeconfig, text).expect("the directory can be written");
    let mut command = Command::new(LANDFALL);
    command.args(["drill", "deploy/web", "--no-search", "--yes", "--output", "json"]);
    let (code, output, messages) = run({
        command.arg("--kubeconfig").arg(&kubeconfig);
        command
    });
    assert_eq!(code, Some(1), "{messages}");
    let report: Value = serde_json::from_str(&output).expect("JSON");
    let run = &report["runs"][0];
    assert_eq!(run["pods"][0]["precise"], false, "there are no records");
    assert_attributed("plain API", run, CLOSED_PORT);
}

/// The recommended preStop sleep grows with the delay of the packet rules, and with it nothing is lost.
#[test]
fn the_recommended_sleep_grows_with_the_delay_of_the_proxies() {
    let mut recommended = Vec::new();
    for delay in ["0ms", "400ms", "1500ms"] {
        on_a_node_with(&["python"], &["--proxy-delay", delay], |cluster, kubectl| {
            program(kubectl);
            serve(kubectl, "web", "exit", 30);
            kubectl.ok("kubectl set env deployment/web SLOW=3
                        kubectl rollout status deployment/web --timeout=60s");
            let before = template(kubectl, "web");
            let kinds = "new,keepalive,slow";
            let (_, report) =
                report(cluster, &["deploy/web", "--connections", kinds, "--slow-path", "/slow"]);
            assert!(report["runs"][0]["lost"].as_u64() > Some(0), "{delay}: {report:#}");
            let found = &report["recommended"];
            assert_eq!(found["lost"], 0, "{delay}: {found}");
            recommended.push(found["values"]["preStopSeconds"].as_u64().expect("a number"));
            assert_eq!(template(kubectl, "web"), before);
            kubectl.ok("kubectl delete deployment,service web");
        });
    }
    assert!(recommended.is_sorted(), "{recommended:?}");
    assert!(recommended[0] >= 3, "slow requests take three seconds: {recommended:?}");
    assert!(recommended[0] < recommended[2], "{recommended:?}");
}

/// At least 95 % of the losses are attributed to what the server does at SIGTERM.
#[test]
fn losses_are_attributed_to_what_the_server_does() {
    on_a_node_with(&["python"], &["--proxy-delay", "400ms"], |cluster, kubectl| {
        program(kubectl);
        for (mode, grace, expected) in [
            ("close", 30, &["refused after-stop-signal"][..]),
            (
                "reset",
                30,
                &[
                    "refused after-stop-signal",
                    "cut after-stop-signal",
                    "reset-on-reuse after-stop-signal",
                ],
            ),
            ("ignore", 3, &["cut-by-sigkill at-kill"]),
            ("exit", 30, &["cut at-exit", "reset-on-reuse at-exit", "refused after-exit"]),
        ] {
            serve(kubectl, mode, mode, grace);
            let target = format!("deploy/{mode}");
            let args = [&target, "--no-search", "--restarts", "3", "--rate", "200", "--slow-path"];
            let kinds = ["/slow", "--connections", "new,keepalive,slow"];
            let args: Vec<&str> = args.into_iter().chain(kinds).collect();
            let (_, report) = report(cluster, &args);
            assert_attributed(mode, &report["runs"][0], expected);
            kubectl.ok(&format!("kubectl delete deployment,service {mode}"));
        }
    });
}

/// New pods cannot start: the drill says why, and the old pods go on.
#[test]
fn an_image_that_cannot_be_pulled_ends_the_drill() {
    on_a_node(&["python"], |cluster, kubectl| {
        program(kubectl);
        serve(kubectl, "web", "graceful", 30);
        let before = template(kubectl, "web");
        for name in ["python:1", "python:latest"] {
            let mut command = Command::new(LANDFALL);
            command.args(["image", "rm", name, "--data-dir"]).arg(cluster.data_dir());
            assert!(command.status().expect("landfall can be run").success());
        }
        let (code, _, messages) = run(drill(cluster, &["deploy/web", "--yes"]));
        assert_eq!(code, Some(2), "{messages}");
        assert!(messages.contains("ImagePull"), "{messages}");
        assert_eq!(template(kubectl, "web"), before);
        ready(kubectl);
        kubectl.ok("kubectl delete deployment,service web");
    });
}

fn ready(kubectl: &Kubectl) {
    kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
}

/// With packet rules that change 400 ms late, a server that closes its port at SIGTERM loses connections. The drill delays
/// them, attributes the losses, and puts everything back.
#[test]
fn a_drill_with_a_slow_proxy_says_how_requests_are_lost() {
    on_a_node(&["python"], |cluster, kubectl| {
        program(kubectl);
        serve(kubectl, "web", "graceful", 30);
        let before = template(kubectl, "web");
        let page = cluster.dir().join("drill.html");
        let page_arg = page.display().to_string();
        let args = ["deploy/web", "--no-search", "--rate", "50", "--proxy-delay", "400ms"];
        let args: Vec<&str> = args.into_iter().chain(["--html", &page_arg]).collect();
        let (code, report) = report(cluster, &args);
        assert_eq!(code, Some(1), "it misses the target: {report:#}");
        assert_attributed("a slow proxy", &report["runs"][0], CLOSED_PORT);
        assert_eq!(template(kubectl, "web"), before);
        kubectl.prints(
            "kubectl get node n1 -o jsonpath='{.metadata.annotations.landfall\\.dev/proxy-delay}'",
            "",
        );
        let page = std::fs::read_to_string(page).expect("the page was written");
        assert!(page.contains("<svg") && page.ends_with("</html>\n"));
        kubectl.ok("kubectl delete deployment,service web");
    });
}
