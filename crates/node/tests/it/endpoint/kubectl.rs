//! exec and attach with kubectl: 1.32 speaks WebSocket v5, 1.20 SPDY.

use super::cluster::{Cluster, dead_port};
use super::shell::shells;
use serde_json::json;

///
#[tokio::test(flavor = "multi_thread")]
async fn a_232_exec_shows_both_outputs_and_the_exit_code() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for shell in shells(&cluster) {
        let said = shell.run("kubectl exec p -- sh -c 'echo out; echo err >&2; exit 7'").await;
        assert_eq!(said.code, Some(7), "{said:?}");
        assert_eq!(said.stdout, "out\n", "{said:?}");
        assert!(said.stderr.contains("err\n"), "{said:?}");
        assert!(said.stderr.contains("command terminated with exit code 7"), "{said:?}");
        assert_eq!(shell.ok("kubectl exec p -- true").await, "");
    }
}

/// the end of the client's input is the end of the process's.
#[tokio::test(flavor = "multi_thread")]
async fn a_235_input_reaches_the_process_and_so_does_its_end() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for shell in shells(&cluster) {
        assert_eq!(shell.ok("echo hello | kubectl exec -i p -- cat").await, "hello\n");
    }
}

/// more than any window, both ways.
#[tokio::test(flavor = "multi_thread")]
async fn a_237_much_data_passes_both_ways() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for shell in shells(&cluster) {
        let out = shell.ok("kubectl exec p -- head -c 3000000 /dev/zero | wc -c").await;
        assert_eq!(out.trim(), "3000000", "{shell:?}");
        let through = "head -c 2000000 /dev/zero | kubectl exec -i p -- cat | wc -c";
        assert_eq!(shell.ok(through).await.trim(), "2000000", "{shell:?}");
    }
}

///
#[tokio::test(flavor = "multi_thread")]
async fn a_227_what_cannot_be_run_is_refused_with_the_reason() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    cluster.pod("two", &["a", "b"], "").await;
    let unbound = json!({ "containers": [{ "name": "c", "image": "busybox" }] });
    cluster.pod_of("unbound", unbound, "").await;
    for shell in shells(&cluster) {
        shell.fails("kubectl exec p -- /no/such", "exec: \"/no/such\"").await;
        shell.fails("kubectl exec p -c x -- true", "container x is not valid for pod p").await;
        shell.fails("kubectl exec none -- true", "pods \"none\" not found").await;
        let host = "pod unbound does not have a host assigned";
        shell.fails("kubectl exec unbound -- true", host).await;
        let path = "/api/v1/namespaces/default/pods/two";
        let choose = "a container name must be specified for pod two, choose one of: [a b]";
        shell.fails(&format!("kubectl get --raw {path}/exec?stdout=1"), choose).await;
        let required = "Upgrade request required";
        shell
            .fails(&format!("kubectl get --raw '{path}/exec?stdout=1&container=a'"), required)
            .await;
    }
    cluster.runtime.end("a");
    for shell in shells(&cluster) {
        shell.fails("kubectl exec two -c a -- true", "container not found (\"a\")").await;
    }
}

///
#[tokio::test(flavor = "multi_thread")]
async fn a_231_a_terminal_knows_its_size() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for shell in shells(&cluster) {
        let typed = "{ sleep 1; printf 'exit\\n'; } | \
             script -qec \"stty cols 81 rows 25; $KUBECTL exec -it p -- sh\" /dev/null";
        let said = shell.ok(typed).await;
        assert!(said.contains("size 81x25") && said.contains("bye"), "{said:?} ({shell:?})");
    }
}

/// N-165, A-235: no exit code is reported.
#[tokio::test(flavor = "multi_thread")]
async fn n_165_attach_ends_with_the_container_and_carries_input_if_it_has_some() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    for shell in shells(&cluster) {
        let said = shell.run("echo typed | kubectl attach -i p").await;
        assert_eq!(said.code, Some(0), "{said:?} ({shell:?})");
        assert_eq!(said.stdout, "attached\ntyped\n", "{said:?} ({shell:?})");
        assert!(said.stderr.contains("over\n"), "{said:?} ({shell:?})");
    }
}

/// N-13
#[tokio::test(flavor = "multi_thread")]
async fn n_13_a_node_that_does_not_answer_is_named() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let (_held, port) = dead_port();
    cluster.point_node_at(port).await;
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    for shell in shells(&cluster) {
        shell.fails("kubectl exec p -- true", &format!("error dialing backend: {refused}")).await;
        let get = format!("Get \"https://127.0.0.1:{port}/containerLogs/default/p/c");
        shell.fails("kubectl logs p", &get).await;
        shell.fails("kubectl logs p", &refused).await;
    }
}
