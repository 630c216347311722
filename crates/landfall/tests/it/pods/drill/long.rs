//! Drills that take minutes together: `make test-drill-long`.

use super::{
    Command, LANDFALL, assert_attributed, drill, on_a_node, on_a_node_with, program, report, run,
    serve, template,
};
use crate::harness::Kubectl;

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
