//! Reading collections: versions, pages and selectors.

use crate::cluster::{Cluster, MAPS, PODS, labelled, map, names, pod, version};
use serde_json::{Value, json};
use std::time::Duration;

async fn maps(cluster: &Cluster, names: &[&str]) {
    cluster.make("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
    for name in names {
        cluster.make("/api/v1/namespaces/shop/configmaps", map(name)).await;
    }
}

const SHOP: &str = "/api/v1/namespaces/shop/configmaps";
/// Every namespace has one of its own.
const OWN: &str = "kube-root-ca.crt";

#[tokio::test]
async fn a_95_a_get_is_at_least_as_new_as_requested() {
    let cluster = Cluster::start().await;
    let made = cluster.make(MAPS, map("m")).await;
    for query in ["", "?resourceVersion=0", &format!("?resourceVersion={}", version(&made))] {
        assert_eq!(cluster.read(&format!("{MAPS}/m{query}")).await, made, "{query}");
    }
}

#[tokio::test]
async fn a_96_lists_are_read_at_the_requested_version() {
    let cluster = Cluster::start().await;
    maps(&cluster, &["a", "b"]).await;
    let then = cluster.version(SHOP).await;
    cluster.make(SHOP, map("c")).await;
    cluster.delete(&format!("{SHOP}/a")).await.ok();
    let now = cluster.version(SHOP).await;
    let old: &[&str] = &["a", "b", OWN];
    let new: &[&str] = &["b", "c", OWN];
    let rows = [
        (String::new(), new),
        ("resourceVersion=0".into(), new),
        ("resourceVersion=0&resourceVersionMatch=NotOlderThan".into(), new),
        (format!("resourceVersion={then}"), new),
        (format!("resourceVersion={then}&limit=10"), old),
        (format!("resourceVersion={then}&resourceVersionMatch=NotOlderThan&limit=10"), new),
        (format!("resourceVersion={then}&resourceVersionMatch=Exact"), old),
        (format!("resourceVersion={now}&resourceVersionMatch=Exact"), new),
    ];
    for (query, wanted) in rows {
        let list = cluster.read(&format!("{SHOP}?{query}")).await;
        assert_eq!(names(&list), wanted, "{query}");
        let shown = if wanted == old { &then } else { &now };
        assert_eq!(version(&list), *shown, "{query}");
    }
    for query in [
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=1&resourceVersionMatch=Newest",
    ] {
        let reply = cluster.get(&format!("{SHOP}?{query}")).await;
        reply.refused(422, "Invalid");
        let details = &reply.body["details"];
        assert_eq!(
            (&details["kind"], &details["group"]),
            (&"ListOptions".into(), &"meta.k8s.io".into())
        );
        assert_eq!(details["causes"][0]["field"], "resourceVersionMatch", "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_96_an_old_version_has_expired() {
    let cluster = Cluster::on_simulated_time().await;
    maps(&cluster, &["a"]).await;
    let then = cluster.version(SHOP).await;
    tokio::time::advance(Duration::from_secs(20 * 60)).await;
    cluster.make(SHOP, map("b")).await;
    tokio::time::sleep(Duration::from_secs(10 * 60)).await;
    cluster.make(SHOP, map("c")).await;
    let reply =
        cluster.get(&format!("{SHOP}?resourceVersion={then}&resourceVersionMatch=Exact")).await;
    let wanted = "The resourceVersion for the provided list is too old.";
    assert_eq!(reply.refused(410, "Expired"), wanted);
}

/// a request ends with its timeout; a watch has its own.
#[tokio::test(start_paused = true)]
async fn a_10_a_request_takes_no_longer_than_its_timeout() {
    let cluster = Cluster::on_simulated_time().await;
    let start = tokio::time::Instant::now();
    let reply = cluster.get(&format!("{MAPS}?resourceVersion=999999&timeout=1500ms")).await;
    let message = reply.refused(504, "Timeout");
    assert_eq!(message, "Timeout: request did not complete within the allotted timeout");
    assert_eq!(start.elapsed(), Duration::from_millis(1500));
    let reply = cluster.get(&format!("{MAPS}?timeout=soon")).await;
    let wanted = "invalid timeout specified in the request URL - time: invalid duration \"soon\"";
    assert_eq!(reply.refused(400, "BadRequest"), wanted);
    cluster.get(&format!("{MAPS}?timeout=32s")).await.ok();
}

#[tokio::test(start_paused = true)]
async fn a_97_waiting_for_a_future_version_times_out() {
    let cluster = Cluster::on_simulated_time().await;
    let current = cluster.version(MAPS).await;
    let start = tokio::time::Instant::now();
    let reply = cluster.get(&format!("{MAPS}?resourceVersion=999999")).await;
    let wanted = format!("Too large resource version: 999999, current: {current}");
    assert_eq!(reply.refused(504, "Timeout"), format!("Timeout: {wanted}"));
    assert_eq!(start.elapsed().as_secs(), 3);
    let details = &reply.body["details"];
    assert_eq!(details["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!((&details["retryAfterSeconds"], reply.header("retry-after")), (&1.into(), "1"));
    let reply = cluster.get(&format!("{MAPS}?resourceVersion=soon")).await;
    let message = reply.refused(400, "BadRequest");
    assert!(message.starts_with("invalid resource version"), "{message}");
    // One that comes in time is served.
    let next = current.parse::<u64>().unwrap() + 1;
    let (admin, path) = (cluster.admin(), format!("{MAPS}?resourceVersion={next}"));
    let waiting = tokio::spawn(async move { admin.get(&path).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.make(MAPS, map("m")).await;
    assert!(names(&waiting.await.unwrap().ok()).contains(&"m".to_owned()));
}

#[tokio::test]
async fn a_98_lists_are_in_order_of_namespace_and_name() {
    let cluster = Cluster::start().await;
    maps(&cluster, &["b", "a.b", "a-b", "a", "a0"]).await;
    for name in ["z", "c"] {
        cluster.make(MAPS, map(name)).await;
    }
    assert_eq!(cluster.names(SHOP).await, ["a", "a-b", "a.b", "a0", "b", OWN]);
    let list =
        cluster.read("/api/v1/configmaps?fieldSelector=metadata.name!=kube-root-ca.crt").await;
    let places: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            (
                item["metadata"]["namespace"].as_str().unwrap(),
                item["metadata"]["name"].as_str().unwrap(),
            )
        })
        .filter(|(namespace, _)| !namespace.starts_with("kube-"))
        .collect();
    let mut sorted = places.clone();
    sorted.sort_unstable();
    assert_eq!(places.len(), 7);
    assert_eq!(places, sorted);
}

#[tokio::test]
async fn a_99_a_page_has_up_to_limit_matches_and_the_remaining_count() {
    let cluster = Cluster::start().await;
    maps(&cluster, &[]).await;
    for n in 0..6 {
        let kind = if n % 2 == 0 { "even" } else { "odd" };
        cluster.make(SHOP, labelled(map(&format!("m{n}")), json!({"kind": kind}))).await;
    }
    let page = cluster.read(&format!("{SHOP}?limit=3")).await;
    assert_eq!((names(&page).len(), &page["metadata"]["remainingItemCount"]), (3, &4.into()));
    let token = page["metadata"]["continue"].as_str().unwrap();
    let last = cluster.read(&format!("{SHOP}?limit=10&continue={token}")).await;
    assert_eq!(names(&last).len(), 4);
    assert_eq!(last["metadata"].get("continue"), None);
    assert_eq!(last["metadata"].get("remainingItemCount"), None);
    // With a selector, a page is filled with matches, and there is no remaining count.
    let page = cluster.read(&format!("{SHOP}?limit=2&labelSelector=kind=odd")).await;
    assert_eq!(names(&page), ["m1", "m3"]);
    assert_eq!(page["metadata"].get("remainingItemCount"), None);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let last =
        cluster.read(&format!("{SHOP}?limit=2&labelSelector=kind=odd&continue={token}")).await;
    assert_eq!((names(&last), last["metadata"].get("continue")), (vec!["m5".into()], None));
    let exact = cluster.read(&format!("{SHOP}?limit=7")).await;
    assert_eq!(exact["metadata"].get("continue"), None);
    cluster.get(&format!("{SHOP}?limit=few")).await.refused(400, "BadRequest");
}

#[tokio::test]
async fn a_100_all_pages_show_the_snapshot_of_the_first() {
    let cluster = Cluster::start().await;
    maps(&cluster, &["a", "b", "c", "d", "e"]).await;
    let first = cluster.read(&format!("{SHOP}?limit=2")).await;
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    cluster.delete(&format!("{SHOP}/d")).await.ok();
    cluster.make(SHOP, map("cc")).await;
    cluster.patch(&format!("{SHOP}/c"), json!({"data": {"new": "value"}})).await.ok();
    let second = cluster.read(&format!("{SHOP}?limit=2&continue={token}")).await;
    assert_eq!((names(&second), version(&second)), (vec!["c".into(), "d".into()], version(&first)));
    assert_eq!(second["items"][0].get("data"), None);
    assert_eq!(second["metadata"]["remainingItemCount"], 2);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = cluster.read(&format!("{SHOP}?limit=2&continue={token}")).await;
    assert_eq!((names(&third), version(&third)), (vec!["e".into(), OWN.into()], version(&first)));
    assert_eq!(cluster.names(SHOP).await, ["a", "b", "c", "cc", "e", OWN]);

    let reply = cluster.get(&format!("{SHOP}?continue={token}&resourceVersion=5")).await;
    reply.refused(400, "BadRequest");
    let both =
        format!("{SHOP}?continue={token}&resourceVersion=0&resourceVersionMatch=NotOlderThan");
    cluster.get(&both).await.refused(422, "Invalid");
    let reply = cluster.get(&format!("{SHOP}?continue=garbage")).await;
    let message = reply.refused(400, "BadRequest");
    assert!(
        message.starts_with("invalid continue token")
            || message.contains("continue key is not valid"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_101_an_expired_token_comes_with_a_new_one() {
    let cluster = Cluster::on_simulated_time().await;
    maps(&cluster, &["a", "b", "c", "d"]).await;
    let first = cluster.read(&format!("{SHOP}?limit=2")).await;
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    tokio::time::advance(Duration::from_secs(11 * 60)).await;
    cluster.make(SHOP, map("bb")).await;
    tokio::time::sleep(Duration::from_secs(6 * 60)).await;
    cluster.make(SHOP, map("cc")).await;
    let reply = cluster.get(&format!("{SHOP}?limit=2&continue={token}")).await;
    reply.refused(410, "Expired");
    let token = reply.body["metadata"]["continue"].as_str().expect("a new token").to_owned();
    let second = cluster.read(&format!("{SHOP}?limit=2&continue={token}")).await;
    assert_eq!(names(&second), ["bb", "c"]);
    assert_ne!(version(&second), version(&first));
    cluster.make(SHOP, map("ccc")).await;
    let token = second["metadata"]["continue"].as_str().unwrap().to_owned();
    let third = cluster.read(&format!("{SHOP}?limit=9&continue={token}")).await;
    assert_eq!(
        (names(&third), version(&third)),
        (vec!["cc".into(), "d".into(), OWN.into()], version(&second))
    );
}

/// a snapshot expires by age, even without writes to the same resource.
#[tokio::test(start_paused = true)]
async fn a_101_a_token_of_a_resource_without_changes_expires_too() {
    let cluster = Cluster::on_simulated_time().await;
    maps(&cluster, &["a", "b", "c", "d"]).await;
    let first = cluster.read(&format!("{SHOP}?limit=2")).await;
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    cluster
        .make("/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "other"}}))
        .await;
    tokio::time::sleep(Duration::from_secs(4 * 60)).await;
    let page = format!("{SHOP}?limit=2&continue={token}");
    assert_eq!(cluster.names(&page).await, ["c", "d"]);
    tokio::time::sleep(Duration::from_secs(70)).await;
    let reply = cluster.get(&page).await;
    reply.refused(410, "Expired");
    let token = reply.body["metadata"]["continue"].as_str().expect("a new token").to_owned();
    let second = cluster.read(&format!("{SHOP}?limit=2&continue={token}")).await;
    assert_eq!(names(&second), ["c", "d"]);
    assert_ne!(version(&second), version(&first));
}

#[tokio::test]
async fn a_102_label_selectors() {
    let cluster = Cluster::start().await;
    maps(&cluster, &["bare"]).await;
    for (name, labels) in [
        ("a", json!({"app": "web", "tier": "front", "n": "7"})),
        ("b", json!({"app": "web", "n": "3"})),
        ("c", json!({"app": "db", "x.io/y": ""})),
    ] {
        cluster.make(SHOP, labelled(map(name), labels)).await;
    }
    let rows: [(&str, &[&str]); 19] = [
        ("app", &["a", "b", "c"]),
        ("!app", &["bare", OWN]),
        ("app=web", &["a", "b"]),
        ("app==web", &["a", "b"]),
        ("app = web", &["a", "b"]),
        ("app!=web", &["bare", "c", OWN]),
        ("app in (web, db),tier", &["a"]),
        ("app in (web,db)", &["a", "b", "c"]),
        ("app notin (web)", &["bare", "c", OWN]),
        ("app notin (web,db)", &["bare", OWN]),
        ("app=web,tier!=front", &["b"]),
        ("n>5", &["a"]),
        ("n<5", &["b"]),
        ("n > 2", &["a", "b"]),
        ("x.io/y=", &["c"]),
        ("x.io/y", &["c"]),
        ("app=web,app=db", &[]),
        ("", &["a", "b", "bare", "c", OWN]),
        ("tier in (front,)", &["a"]),
    ];
    for (selector, wanted) in rows {
        let found = cluster.names(&format!("{SHOP}?labelSelector={selector}")).await;
        assert_eq!(found, wanted, "{selector}");
    }
    for bad in ["app=web,", "app in", "app in (", "=x", "app=a b", "-a=b", "n>x", "app=a%3D%3Db"] {
        let reply = cluster.get(&format!("{SHOP}?labelSelector={bad}")).await;
        assert_eq!((reply.code, reply.reason()), (400, "BadRequest"), "{bad}");
    }
}

#[tokio::test]
async fn a_103_field_selectors() {
    let cluster = Cluster::start().await;
    let mut wanted = pod("b");
    wanted["spec"]["restartPolicy"] = "Never".into();
    wanted["spec"]["hostNetwork"] = true.into();
    cluster.bound(wanted).await;
    cluster.make(PODS, pod("a")).await;
    let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}});
    cluster.patch(&format!("{PODS}/b/status"), status).await.ok();
    let rows: [(&str, &[&str]); 14] = [
        ("metadata.name=a", &["a"]),
        ("metadata.name==a", &["a"]),
        ("metadata.name!=a", &["b"]),
        ("metadata.namespace=default", &["a", "b"]),
        ("metadata.namespace=shop", &[]),
        ("spec.nodeName=n1", &["b"]),
        ("spec.nodeName=", &["a"]),
        ("spec.restartPolicy=Never", &["b"]),
        ("spec.schedulerName=default-scheduler", &["a", "b"]),
        ("spec.serviceAccountName=default,spec.nodeName!=", &["b"]),
        ("spec.hostNetwork=true", &["b"]),
        ("status.phase=Pending", &["a"]),
        ("status.podIP=10.0.0.7", &["b"]),
        ("status.nominatedNodeName=", &["a", "b"]),
    ];
    for (selector, wanted) in rows {
        let found = cluster.names(&format!("{PODS}?fieldSelector={selector}")).await;
        assert_eq!(found, wanted, "{selector}");
    }
    let reply = cluster.get(&format!("{PODS}?fieldSelector=spec.color=red")).await;
    assert!(reply.refused(400, "BadRequest").contains("field label not supported: spec.color"));
    let reply = cluster.get(&format!("{MAPS}?fieldSelector=data=x")).await;
    assert!(reply.refused(400, "BadRequest").contains(
        "\"data\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    ));
    let reply = cluster.get(&format!("{PODS}?fieldSelector=metadata.name")).await;
    reply.refused(400, "BadRequest");
}

/// Each row: collection, an object, a matching selector, a selector that does not match.
#[tokio::test]
async fn a_103_each_kind_has_its_own_selectable_fields() {
    let cluster = Cluster::start().await;
    let core = "/api/v1/namespaces/default";
    let rows: [(String, Value, &str, &str); 6] = [
        (
            format!("{core}/secrets"),
            json!({"type": "example.com/x"}),
            "type=example.com/x",
            "type=Opaque",
        ),
        (
            format!("{core}/services"),
            json!({"spec": {"ports": [{"port": 80}], "clusterIP": "None"}}),
            "spec.clusterIP=None,spec.type=ClusterIP",
            "spec.type=NodePort",
        ),
        (
            format!("{core}/events"),
            json!({"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            "reason": "Why", "type": "Normal", "reportingComponent": "me"}),
            "involvedObject.kind=Pod,involvedObject.name=p,reason=Why,type=Normal,source=me",
            "involvedObject.uid=u",
        ),
        (
            "/api/v1/nodes".into(),
            json!({"spec": {"unschedulable": true}}),
            "spec.unschedulable=true",
            "spec.unschedulable=false",
        ),
        ("/api/v1/namespaces".into(), json!({}), "status.phase=Active", "status.phase=Terminating"),
        (
            "/apis/batch/v1/namespaces/default/jobs".into(),
            json!({"spec": {"template": {"spec":
            {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a:1"}]}}}}),
            "status.successful=0",
            "status.successful=1",
        ),
    ];
    for (collection, mut object, finds, misses) in rows {
        object["metadata"] = json!({"name": "x"});
        cluster.make(&collection, object).await;
        let found = cluster.names(&format!("{collection}?fieldSelector={finds}")).await;
        assert!(found.contains(&"x".to_owned()), "{collection} {finds}");
        let found = cluster.names(&format!("{collection}?fieldSelector={misses}")).await;
        assert!(!found.contains(&"x".to_owned()), "{collection} {misses}");
    }
}
