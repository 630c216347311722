//! What a client must not get by asking in an unusual way: a write by reading, somebody else's secrets,
//! room in our memory.

use crate::door::{self, Client, Cluster, DEPLOYMENTS, MAPS, MERGE, PODS, deployment, map, pod};
use serde_json::{Value, json};
use server::authn::User;
use server::{Config, StoreChoice};
use std::os::unix::fs::PermissionsExt as _;

/// The newest revision that the store has given.
async fn revision(cluster: &Cluster) -> u64 {
    let page = cluster.get("/metrics").await;
    let line = page.text().lines().find(|line| line.starts_with("landfall_store_revision "));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a revision")
}

/// `(collection's path, subresources)` of everything that is served.
async fn served(cluster: &Cluster) -> Vec<(String, String, Vec<String>)> {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let mut served = Vec::new();
    for root in ["/api", "/apis"] {
        let said = cluster.get_with(root, &[("accept", accept)]).await.ok();
        for group in said["items"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            for version in group["versions"].as_array().unwrap() {
                let at = match name {
                    "" => format!("/api/{}", version["version"].as_str().unwrap()),
                    name => format!("/apis/{name}/{}", version["version"].as_str().unwrap()),
                };
                for resource in version["resources"].as_array().unwrap() {
                    let plural = resource["resource"].as_str().unwrap().to_owned();
                    let subresources = resource["subresources"].as_array().into_iter().flatten();
                    let subresources =
                        subresources.map(|one| one["subresource"].as_str().unwrap().to_owned());
                    served.push((at.clone(), plural, subresources.collect()));
                }
            }
        }
    }
    served
}

/// Asks with a body that would change something, for every kind of body.
async fn head(client: &Client, path: &str) {
    let bodies = [
        (MERGE, json!({"spec": {"replicas": 0}, "metadata": {"labels": {"a": "b"}}})),
        ("application/json", json!({"spec": {"replicas": 0}})),
        ("application/apply-patch+yaml", json!({"spec": {"replicas": 0}})),
    ];
    for (media, body) in bodies {
        let path = format!("{path}?fieldManager=x");
        client.send("HEAD", &path, &[("content-type", media)], body.to_string()).await;
    }
}

/// HEAD is the verb `get`, so it takes the right to read and must not do more (A-4).
#[tokio::test]
async fn a_4_no_head_writes() {
    let cluster = Cluster::start().await;
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    cluster.make(PODS, pod("p")).await;
    cluster.make(MAPS, map("m")).await;
    let replicas =
        json!({"replicas": 2, "selector": {"app": "r"}, "template": door::template("r")});
    let controller = json!({"metadata": {"name": "r"}, "spec": replicas});
    cluster.make("/api/v1/namespaces/default/replicationcontrollers", controller).await;
    let before = revision(&cluster).await;
    let mut asked = 0;
    for (at, plural, subresources) in served(&cluster).await {
        let list = cluster.get(&format!("{at}/{plural}")).await;
        head(&cluster, &format!("{at}/{plural}")).await;
        for item in list.body["items"].as_array().into_iter().flatten() {
            let name = item["metadata"]["name"].as_str().unwrap();
            let at = match item["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("{at}/namespaces/{namespace}/{plural}/{name}"),
                None => format!("{at}/{plural}/{name}"),
            };
            head(&cluster, &at).await;
            for subresource in &subresources {
                head(&cluster, &format!("{at}/{subresource}")).await;
                asked += 1;
            }
        }
    }
    assert!(asked > 20, "only {asked} subresources were asked");
    assert_eq!(revision(&cluster).await, before);
    let head = cluster.send("HEAD", &format!("{DEPLOYMENTS}/d/scale"), &[], "").await;
    assert_eq!(head.code, 200);
    assert_eq!(cluster.read(&format!("{DEPLOYMENTS}/d")).await["spec"]["replicas"], 2);
}

#[tokio::test]
async fn nobody_else_enters_the_data_directory_or_reads_the_store() {
    let outer = tempfile::tempdir().unwrap();
    let data_dir = outer.path().join("cluster/data");
    let config = Config {
        data_dir: data_dir.clone(),
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StoreChoice::Embedded,
        audit_log: None,
        controllers: false,
    };
    let running = server::start(config).await.unwrap();
    let rights =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(rights(&data_dir), 0o700);
    assert_eq!(rights(&data_dir.join("store.redb")), 0o600);
    running.stop().await;
}

/// A name in a path is whatever somebody typed: it is not kept, and not shown.
#[tokio::test]
async fn a_57_only_resources_that_are_served_are_counted_by_name() {
    let cluster = Cluster::start().await;
    let nobody = cluster.user(User::authenticated("nobody", &[]));
    for path in ["/api/v1/zz%22%0Ahello1", "/apis/made.up/v1/things1", "/api/v1/pods"] {
        nobody.get(path).await.refused(403, "Forbidden");
    }
    assert_eq!(cluster.get("/api/v1/zz%22%0Ahello2").await.code, 404);
    let page = cluster.get("/metrics").await;
    let counted: Vec<&str> = page
        .text()
        .lines()
        .filter(|line| line.contains("hello") || line.contains("things"))
        .collect();
    assert_eq!(counted, Vec::<&str>::new());
    let unnamed = "apiserver_request_total{verb=\"list\",resource=\"\",code=\"403\"} 2";
    let pods = "apiserver_request_total{verb=\"list\",resource=\"pods\",code=\"403\"} 1";
    for line in [unnamed, pods] {
        assert!(page.text().contains(line), "{line} is not in\n{}", page.text());
    }
}

/// A-141, A-153: what a dry run would have had is still its owner's afterwards.
#[tokio::test]
async fn a_141_a_dry_run_gives_back_nobody_elses_address() {
    let cluster = Cluster::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, kind: &str, port: Value| {
        json!({"metadata": {"name": name}, "spec": {"type": kind, "clusterIP": "10.96.77.77",
               "ports": [{"port": 80, "nodePort": port}]}})
    };
    cluster.make(services, service("owner", "NodePort", json!(30777))).await;
    let claim = "/apis/networking.k8s.io/v1/ipaddresses/10.96.77.77";
    let before = cluster.read(claim).await;
    for kind in ["ClusterIP", "NodePort"] {
        let port = if kind == "NodePort" { json!(30777) } else { json!(null) };
        let asked = service("other", kind, port);
        cluster.post(&format!("{services}?dryRun=All"), asked).await;
    }
    cluster.make(MAPS, map("later")).await; // What is given back is written before this.
    tokio::task::yield_now().await;
    assert_eq!(cluster.read(claim).await, before);
    let refused = cluster.post(services, service("other", "ClusterIP", json!(null))).await;
    assert!(refused.refused(422, "Invalid").contains("already allocated"), "{}", refused.body);
}
