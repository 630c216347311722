//! exec and attach with kubectl: 1.32 speaks WebSocket v5, 1.20 SPDY.

use crate::cluster::{Cluster, dead_port};
use serde_json::json;

/// Both protocols, the output streams and the status.
#[tokio::test(flavor = "multi_thread")]
async fn a_232_exec_returns_both_outputs_and_the_exit_code() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for kubectl in cluster.kubectls() {
        let output = kubectl.run("kubectl exec p -- sh -c 'echo out; echo err >&2; exit 7'");
        assert_eq!(output.code, 7, "{output}");
        assert_eq!(output.stdout, "out\n", "{output}");
        assert!(output.stderr.contains("err\n"), "{output}");
        assert!(output.stderr.contains("command terminated with exit code 7"), "{output}");
        assert_eq!(kubectl.ok("kubectl exec p -- true"), "");
    }
}

/// the process sees the end of the client's input.
#[tokio::test(flavor = "multi_thread")]
async fn a_235_the_process_gets_the_input_and_its_end() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for kubectl in cluster.kubectls() {
        assert_eq!(kubectl.ok("echo hello | kubectl exec -i p -- cat"), "hello\n");
    }
}

/// more data than any flow control window, in both directions.
#[tokio::test(flavor = "multi_thread")]
async fn a_237_large_data_is_carried_in_both_directions() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for kubectl in cluster.kubectls() {
        let out = kubectl.ok("kubectl exec p -- head -c 3000000 /dev/zero | wc -c");
        assert_eq!(out.trim(), "3000000", "{kubectl:?}");
        let through = "head -c 2000000 /dev/zero | kubectl exec -i p -- cat | wc -c";
        assert_eq!(kubectl.ok(through).trim(), "2000000", "{kubectl:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_232_a_227_the_error_tells_why_a_command_cannot_be_run() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    cluster.pod("two", &["a", "b"], "").await;
    let unbound = json!({ "containers": [{ "name": "c", "image": "busybox" }] });
    cluster.pod_of("unbound", unbound, "").await;
    for kubectl in cluster.kubectls() {
        kubectl.fails("kubectl exec p -- /no/such", "exec: \"/no/such\"");
        kubectl.fails("kubectl exec p -c x -- true", "container x is not valid for pod p");
        kubectl.fails("kubectl exec none -- true", "pods \"none\" not found");
        let host = "pod unbound does not have a host assigned";
        kubectl.fails("kubectl exec unbound -- true", host);
        let path = "/api/v1/namespaces/default/pods/two";
        let choose = "a container name must be specified for pod two, choose one of: [a b]";
        kubectl.fails(&format!("kubectl get --raw {path}/exec?stdout=1"), choose);
        let required = "Upgrade request required";
        kubectl.fails(&format!("kubectl get --raw '{path}/exec?stdout=1&container=a'"), required);
    }
    cluster.runtime.exit("a", 0);
    for kubectl in cluster.kubectls() {
        kubectl.fails("kubectl exec two -c a -- true", "container not found (\"a\")");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_237_a_231_a_terminal_gets_its_size() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for kubectl in cluster.kubectls() {
        let typed = "{ sleep 1; printf 'exit\\n'; } | \
             script -qec \"stty cols 81 rows 25; kubectl exec -it p -- sh\" /dev/null";
        let output = kubectl.ok(typed);
        assert!(output.contains("size 81x25") && output.contains("bye"), "{output}");
    }
}

/// N-165, A-235: attach reports no exit code.
#[tokio::test(flavor = "multi_thread")]
async fn n_165_attach_carries_input_and_ends_with_the_container() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for kubectl in cluster.kubectls() {
        let output = kubectl.run("echo typed | kubectl attach -i p");
        assert_eq!(output.code, 0, "{output}");
        assert_eq!(output.stdout, "attached\ntyped\n", "{output}");
        assert!(output.stderr.contains("over\n"), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n_13_the_error_names_a_node_that_does_not_answer() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let (_held, port) = dead_port();
    cluster.point_node_at(port).await;
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    for kubectl in cluster.kubectls() {
        kubectl.fails("kubectl exec p -- true", &format!("error dialing backend: {refused}"));
        let get = format!("Get \"https://127.0.0.1:{port}/containerLogs/default/p/c");
        kubectl.fails("kubectl logs p", &get);
        kubectl.fails("kubectl logs p", &refused);
    }
}
