//! Unusual requests that must not bypass checks: writes through reads, secrets of others, unbounded memory.

use crate::cluster::{self, Client, Cluster, DEPLOYMENTS, MAPS, MERGE, PODS, deployment, map, pod};
use serde_json::{Value, json};
use server::authn::User;
use server::{Config, StoreChoice};
use std::os::unix::fs::PermissionsExt as _;

/// The newest revision of the store.
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
        let reply = cluster.get_with(root, &[("accept", accept)]).await.ok();
        for group in reply["items"].as_array().unwrap() {
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

/// Sends every kind of body that would change something.
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
async fn a_4_a_head_request_never_writes() {
    let cluster = Cluster::start().await;
    cluster.make(DEPLOYMENTS, deployment("d")).await;
    cluster.make(PODS, pod("p")).await;
    cluster.make(MAPS, map("m")).await;
    let replicas =
        json!({"replicas": 2, "selector": {"app": "r"}, "template": cluster::template("r")});
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
    assert!(asked > 20, "only {asked} subresources were tried");
    assert_eq!(revision(&cluster).await, before);
    let head = cluster.send("HEAD", &format!("{DEPLOYMENTS}/d/scale"), &[], "").await;
    assert_eq!(head.code, 200);
    assert_eq!(cluster.read(&format!("{DEPLOYMENTS}/d")).await["spec"]["replicas"], 2);
}

#[tokio::test]
async fn other_users_cannot_read_the_data_directory_or_the_store() {
    let outer = tempfile::tempdir().unwrap();
    let data_dir = outer.path().join("cluster/data");
    let config = Config {
        data_dir: data_dir.clone(),
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StoreChoice::Embedded,
        service_ranges: Default::default(),
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

/// An unknown resource name in a path is arbitrary text, so metrics do not contain it.
#[tokio::test]
async fn a_57_metrics_contain_only_names_of_existing_resources() {
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

/// A-141, A-153: after a dry run, the address still belongs to its owner.
#[tokio::test]
async fn a_141_a_dry_run_does_not_release_the_address_of_another_service() {
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

/// A-89: a node may be on the server's own machine, but only its agent is reached there.
#[tokio::test]
async fn the_proxy_of_a_node_cannot_reach_local_services_of_the_servers_machine() {
    let cluster = Cluster::start().await;
    let own = cluster.running.address.port();
    // A listener that must not be reached.
    let secret = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = secret.local_addr().unwrap().port();
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let agent = closed.local_addr().unwrap().port();
    drop(closed);
    for (name, address, agent) in [
        ("here", "127.0.0.1", agent),
        ("named", "localhost", agent),
        ("metadata", "169.254.169.254", 80),
        ("anywhere", "0.0.0.0", port),
        ("itself", "127.0.0.1", own),
    ] {
        cluster
            .make(
                "/api/v1/nodes",
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}),
            )
            .await;
        let kind = if name == "named" { "Hostname" } else { "InternalIP" };
        let status = json!({"status": {
            "addresses": [{"type": kind, "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": agent}}}});
        cluster.patch(&format!("/api/v1/nodes/{name}/status"), status).await.ok();
    }
    for target in [
        format!("here:{port}"),
        format!("http:here:{port}"),
        format!("https:here:{port}"),
        format!("named:{port}"),
        "metadata".into(),
        "anywhere".into(),
        "itself".into(),
        format!("https:here:{own}"),
    ] {
        let path = format!("/api/v1/nodes/{target}/proxy/api/v1/secrets");
        let reply = tokio::select! {
            reply = cluster.get(&path) => reply,
            _ = secret.accept() => panic!("{target} was reached"),
        };
        assert_eq!(reply.refused(400, "BadRequest"), "address not allowed", "{target}");
    }
    // The agent's own port is tried, although nothing listens there.
    let reply = cluster.get("/api/v1/nodes/here/proxy/pods").await;
    assert!(reply.refused(503, "ServiceUnavailable").contains("refused"), "{}", reply.body);
}

#[tokio::test]
async fn a_154_a_node_can_read_and_create_only_its_own_resource_slices() {
    let cluster = Cluster::start().await;
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let slice = |name: &str, node: &str| {
        json!({"metadata": {"name": name}, "spec": {"driver": "d.example.com", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
    };
    cluster.make(slices, slice("theirs", "n2")).await;
    let node = cluster.node("n1");
    let reply = node.post(slices, slice("mine", "n2")).await;
    assert!(
        reply.refused(403, "Forbidden").ends_with(
            "can only create ResourceSlice with the same NodeName as the requesting node"
        )
    );
    node.make(slices, slice("mine", "n1")).await;
    node.get(slices).await.refused(403, "Forbidden");
    node.get(&format!("{slices}?fieldSelector=spec.nodeName%3Dn2")).await.refused(403, "Forbidden");
    assert_eq!(node.names(&format!("{slices}?fieldSelector=spec.nodeName%3Dn1")).await, ["mine"]);
    node.get(&format!("{slices}/theirs")).await.refused(403, "Forbidden");
    node.delete(&format!("{slices}/theirs")).await.refused(403, "Forbidden");
    node.delete(slices).await.refused(403, "Forbidden");
    node.delete(&format!("{slices}/mine")).await.ok();
    assert_eq!(cluster.names(slices).await, ["theirs"]);
}

/// A-154: references of mirror pods give the node no access.
#[tokio::test]
async fn a_154_a_node_cannot_read_secrets_through_a_mirror_pod() {
    let cluster = Cluster::start().await;
    let node = cluster.node("n1");
    let uid =
        node.make("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await["metadata"]["uid"]
            .clone();
    let mirror = |change: fn(&mut Value)| {
        let mut pod = crate::cluster::pod("m");
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node",
            "name": "n1", "uid": uid, "controller": true}]);
        pod["spec"]["nodeName"] = "n1".into();
        pod["spec"]["automountServiceAccountToken"] = false.into();
        change(&mut pod);
        pod
    };
    for (change, reply) in [
        (
            (|pod| pod["metadata"]["ownerReferences"] = json!([])) as fn(&mut Value),
            "can only create pods with an owner reference set to itself",
        ),
        (|pod| pod["metadata"]["ownerReferences"][0]["uid"] = "x".into(), "UID mismatch"),
        (
            |pod| pod["spec"]["imagePullSecrets"] = json!([{"name": "s"}]),
            "can not create pods that reference secrets",
        ),
        (
            |pod| {
                let sources = json!([{"configMap": {"name": "s"}}]);
                pod["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": sources}}]);
            },
            "can not create pods that reference configmaps",
        ),
        (
            |pod| {
                let template = json!({"spec": {"accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}}}});
                pod["spec"]["volumes"] =
                    json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]);
            },
            "can not create pods that reference persistentvolumeclaims (via ephemeral volumes)",
        ),
    ] {
        let refused = node.post(crate::cluster::PODS, mirror(change)).await;
        assert!(refused.refused(403, "Forbidden").contains(reply), "{}", refused.body);
    }
    node.make(crate::cluster::PODS, mirror(|_| ())).await;
}
