//! `metrics.k8s.io`: clients read the usage that agents report (C-138, N-171).

use crate::cluster::{Client, Cluster, PODS};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use server::authn::User;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const POD_METRICS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
const NODE_METRICS: &str = "/apis/metrics.k8s.io/v1beta1/nodes";

/// Two rounds of queries, with time to spare for a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A metrics page of an agent: the node uses one core, every container a quarter of one.
fn page(pods: &[&str]) -> String {
    let at = clock::now().as_millisecond();
    // Small enough that its fractions are exact.
    let core = (at % 1_000_000_000) as f64 / 1000.0;
    let mut page = format!(
        "# HELP node_cpu_usage_seconds_total CPU.
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total {core} {at}
# HELP node_memory_working_set_bytes Memory.
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1073741824 {at}
"
    );
    for (name, kind, value) in [
        ("container_cpu_usage_seconds_total", "counter", core / 4.0),
        ("container_memory_working_set_bytes", "gauge", 67_108_864.0),
        ("container_start_time_seconds", "gauge", 1000.0),
    ] {
        page += &format!("# HELP {name} It.\n# TYPE {name} {kind}\n");
        for pod in pods {
            let labels = format!("container=\"c\",namespace=\"default\",pod=\"{pod}\"");
            page += &format!("{name}{{{labels}}} {value} {at}\n");
        }
    }
    page
}

/// Serves the page as the agent of `n1` does: over HTTPS, and only to the server.
async fn agent(cluster: &Cluster, pods: &'static [&'static str]) -> SocketAddr {
    let credentials = cluster.running.node_credentials("n1", &["127.0.0.1".to_owned()]).unwrap();
    let serving = &credentials.serving;
    let shown = tls::RenewableCertificate::new(&serving.certificate, &serving.key).unwrap();
    let config = tls::server_config(shown, &credentials.ca_certificate, &["http/1.1"]).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            assert!(stream.get_ref().1.peer_certificates().is_some(), "the server says who it is");
            let answer = move |request: Request<hyper::body::Incoming>| async move {
                assert_eq!(request.uri().path(), "/metrics/resource");
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(page(pods)))))
            };
            let connection = hyper::server::conn::http1::Builder::new();
            let connection = connection.serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(async move { drop(connection.await) });
        }
    });
    address
}

async fn node(cluster: &Cluster, name: &str, port: u16) {
    let labels = json!({ "kubernetes.io/hostname": name });
    let node = json!({ "metadata": { "name": name, "labels": labels } });
    if cluster.get(&format!("/api/v1/nodes/{name}")).await.code == 404 {
        cluster.make("/api/v1/nodes", node).await;
    }
    let status = json!({ "status": {
        "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
    }});
    cluster.patch(&format!("/api/v1/nodes/{name}/status"), status).await.ok();
}

async fn pod(cluster: &Cluster, name: &str, node: &str, phase: &str) {
    let labels = json!({ "app": name });
    let spec = json!({ "nodeName": node, "containers": [{ "name": "c", "image": "i" }] });
    let made = json!({ "metadata": { "name": name, "labels": labels }, "spec": spec });
    cluster.make(PODS, made).await;
    let status = json!({ "status": { "phase": phase } });
    cluster.patch(&format!("{PODS}/{name}/status"), status).await.ok();
}

/// Waits for that response.
async fn until(client: &Client, path: &str, code: u16) -> Value {
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let asking = async {
        loop {
            ticks.tick().await;
            let reply = client.get(path).await;
            if reply.code == code {
                return reply.body;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("no {code} at {path}"))
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn c_138_clients_read_the_usage_that_an_agent_reports() {
    let cluster = Cluster::start().await;
    // The page also names `far`, which runs on another node.
    let agent = agent(&cluster, &["p", "q", "waits", "far"]).await;
    pod(&cluster, "p", "n1", "Running").await;
    pod(&cluster, "q", "n1", "Running").await;
    pod(&cluster, "waits", "n1", "Pending").await;
    pod(&cluster, "far", "n2", "Running").await;

    let not_yet = cluster.get(&format!("{POD_METRICS}/p")).await;
    let message = "podmetrics.metrics.k8s.io \"default/p\" not found";
    assert_eq!(not_yet.refused(404, "NotFound"), message);
    let nobody = cluster.get(&format!("{POD_METRICS}/nosuch")).await;
    assert_eq!(nobody.refused(404, "NotFound"), "pods \"nosuch\" not found");
    assert!(names(&cluster.read(POD_METRICS).await).is_empty());

    node(&cluster, "n1", agent.port()).await;
    let found = until(&cluster, &format!("{NODE_METRICS}/n1"), 200).await;
    assert_eq!(
        (&found["kind"], &found["apiVersion"]),
        (&json!("NodeMetrics"), &json!("metrics.k8s.io/v1beta1"))
    );
    assert_eq!(found["usage"], json!({ "cpu": "1", "memory": "1Gi" }));
    assert_eq!(found["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    let no_node = cluster.get(&format!("{NODE_METRICS}/n9")).await;
    assert_eq!(no_node.refused(404, "NotFound"), "nodes \"n9\" not found");

    let found = cluster.read(&format!("{POD_METRICS}/p")).await;
    let usage = json!({ "cpu": "250m", "memory": "64Mi" });
    assert_eq!(found["containers"], json!([{ "name": "c", "usage": usage }]));
    assert_eq!(found["metadata"]["labels"], json!({ "app": "p" }));
    assert!(found["window"].as_str().unwrap().ends_with('s'), "{found}");
    assert!(found["timestamp"].as_str().unwrap().ends_with('Z'), "{found}");

    for (path, expected) in [
        (POD_METRICS.to_owned(), vec!["p", "q"]),
        ("/apis/metrics.k8s.io/v1beta1/pods".to_owned(), vec!["p", "q"]),
        ("/apis/metrics.k8s.io/v1beta1/namespaces/other/pods".to_owned(), vec![]),
        (format!("{POD_METRICS}?labelSelector=app%3Dq"), vec!["q"]),
        (format!("{POD_METRICS}?fieldSelector=metadata.name%3Dp"), vec!["p"]),
        (NODE_METRICS.to_owned(), vec!["n1"]),
    ] {
        assert_eq!(names(&cluster.read(&path).await), expected, "{path}");
    }
    as_others_see_it(&cluster).await;

    // A node that no longer responds has no usage instead of an old one.
    node(&cluster, "n1", 1).await;
    until(&cluster, &format!("{POD_METRICS}/p"), 404).await;
    assert!(names(&cluster.read(NODE_METRICS).await).is_empty());
}

/// Tables, verbs, rights and discovery.
async fn as_others_see_it(cluster: &Cluster) {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = cluster.get_with(POD_METRICS, &[("accept", table)]).await.ok();
    let columns: Vec<&Value> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(columns, ["Name", "cpu", "memory", "Window"]);
    assert_eq!(table["rows"][0]["cells"][1], "250m");
    cluster.post(POD_METRICS, json!({})).await.refused(405, "MethodNotAllowed");
    cluster.get(&format!("{POD_METRICS}?watch=true")).await.refused(405, "MethodNotAllowed");
    cluster.delete(&format!("{POD_METRICS}/p")).await.refused(405, "MethodNotAllowed");

    let resources = cluster.read("/apis/metrics.k8s.io/v1beta1").await;
    let verbs: Vec<&Value> =
        resources["resources"].as_array().unwrap().iter().map(|one| &one["verbs"]).collect();
    assert_eq!(verbs, [&json!(["get", "list"]), &json!(["get", "list"])]);

    let viewer = cluster.user(User::authenticated("viewer", &[]));
    viewer.get(POD_METRICS).await.refused(403, "Forbidden");
    let role =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" });
    let subject =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer" });
    let binding = json!({ "metadata": { "name": "v" }, "roleRef": role, "subjects": [subject] });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    cluster.make(bindings, binding).await;
    assert_eq!(names(&viewer.read(POD_METRICS).await), ["p", "q"]);
}
