//! Watches: which events are sent, in which order, and how a watch ends.

use crate::cluster::{Cluster, MAPS, PODS, labelled, map, pod, version};
use serde_json::{Value, json};
use std::time::Duration;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

/// The collection without the ConfigMap that every namespace has.
fn ours(query: &str) -> String {
    format!("{MAPS}?fieldSelector=metadata.name!=kube-root-ca.crt&{query}")
}

fn number(object: &Value) -> u64 {
    version(object).parse().unwrap()
}

#[tokio::test]
async fn a_30_a_watch_responds_immediately_and_sends_one_line_per_event() {
    let cluster = Cluster::start().await;
    let from = cluster.version(MAPS).await;
    // The response starts before there is an event.
    let mut watch = cluster.watch(&format!("{MAPS}?resourceVersion={from}")).await;
    assert_eq!(watch.headers["content-type"], "application/json");
    let mut wanted = map("m");
    wanted["data"] = json!({"text": "two\nlines"});
    cluster.make(MAPS, wanted).await;
    let line = watch.line().await.unwrap();
    assert_eq!(line.matches('\n').count(), 1);
    assert!(
        line.starts_with("{\"type\":\"ADDED\",\"object\":{") && line.ends_with("}\n"),
        "{line}"
    );
    cluster.watch_as(MAPS, "application/json;stream=watch").await;
    // YAML cannot stream.
    let headers = [("accept", "application/yaml")];
    let reply = cluster.send("GET", &format!("{MAPS}?watch=1"), &headers, "").await;
    reply.refused(406, "NotAcceptable");
}

#[tokio::test]
async fn a_33_an_event_contains_exactly_the_object_that_the_write_returned() {
    let cluster = Cluster::start().await;
    let from = cluster.version(PODS).await;
    let mut watch = cluster.watch(&format!("{PODS}?resourceVersion={from}")).await;
    let made = cluster.make(PODS, pod("p")).await;
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let changed = cluster.patch(&format!("{PODS}/p"), labels).await.ok();
    let gone = cluster.delete(&format!("{PODS}/p")).await.ok();
    let events = watch.take(4).await;
    assert_eq!(events[0], json!({"type": "ADDED", "object": made}));
    assert_eq!(events[1], json!({"type": "MODIFIED", "object": changed}));
    assert_eq!(events[3]["type"], "DELETED");
    assert_eq!(events[3]["object"]["metadata"]["uid"], gone["metadata"]["uid"]);
    for event in &events {
        let object = &event["object"];
        assert_eq!((&object["kind"], &object["apiVersion"]), (&"Pod".into(), &"v1".into()));
    }
}

#[tokio::test]
async fn a_34_in_a_table_watch_the_first_event_names_the_columns() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        cluster.make(MAPS, map(name)).await;
    }
    let mut watch = cluster.watch_as(&ours(""), TABLE).await;
    cluster.delete(&format!("{MAPS}/a")).await.ok();
    let events = watch.take(3).await;
    for (place, event) in events.iter().enumerate() {
        let table = &event["object"];
        assert_eq!((&table["kind"], table["rows"].as_array().unwrap().len()), (&"Table".into(), 1));
        let columns = table["columnDefinitions"].as_array().map_or(0, Vec::len);
        assert_eq!(columns > 0, place == 0, "event {place}");
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    }
    assert_eq!(events[2]["type"], "DELETED");
    assert_eq!(events[2]["object"]["rows"][0]["cells"][0], "a");
}

#[tokio::test]
async fn a_21_a_watch_can_show_metadata_only() {
    let cluster = Cluster::start().await;
    let mut watch = cluster.watch_as(&ours(""), PARTIAL).await;
    let mut wanted = map("m");
    wanted["data"] = json!({"a": "b"});
    let made = cluster.make(MAPS, wanted).await;
    let shown = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                       "metadata": made["metadata"]});
    assert_eq!(watch.next().await, json!({"type": "ADDED", "object": shown}));
}

#[tokio::test]
async fn a_105_every_watcher_sees_every_event_after_its_version_once_and_in_order() {
    let cluster = Cluster::start().await;
    let from = cluster.version(MAPS).await;
    let mut first = cluster.watch(&format!("{MAPS}?resourceVersion={from}")).await;
    let mut versions = Vec::new();
    for name in ["a", "b", "c"] {
        versions.push(number(&cluster.make(MAPS, map(name)).await));
    }
    let patch = json!({"data": {"x": "y"}});
    versions.push(number(&cluster.patch(&format!("{MAPS}/b"), patch).await.ok()));
    cluster.delete(&format!("{MAPS}/a")).await.ok();
    cluster.make(MAPS, map("a")).await;
    // One that comes late, one that comes in the middle.
    let mut late = cluster.watch(&format!("{MAPS}?resourceVersion={from}")).await;
    let mut middle = cluster.watch(&format!("{MAPS}?resourceVersion={}", versions[1])).await;
    let seen = first.take(6).await;
    assert_eq!(late.take(6).await, seen);
    assert_eq!(middle.take(4).await, seen[2..]);
    let received: Vec<u64> = seen.iter().map(|event| number(&event["object"])).collect();
    assert_eq!(received[..4], versions);
    assert!(received.is_sorted_by(|a, b| a < b), "{received:?}");
    let types: Vec<_> = seen.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["ADDED", "ADDED", "ADDED", "MODIFIED", "DELETED", "ADDED"]);
}

#[tokio::test]
async fn a_106_without_a_resource_version_existing_objects_come_first() {
    let cluster = Cluster::start().await;
    let mut there = Vec::new();
    for name in ["a", "b"] {
        there.push(cluster.make(MAPS, map(name)).await);
    }
    for query in ["", "resourceVersion=0", "resourceVersion="] {
        let mut watch = cluster.watch(&ours(query)).await;
        let shown: Vec<_> =
            watch.take(2).await.into_iter().map(|mut e| e["object"].take()).collect();
        assert_eq!(shown, there, "{query}");
        cluster.make(MAPS, map("new")).await;
        assert_eq!(watch.reply(1).await, ["ADDED new"]);
        cluster.delete(&format!("{MAPS}/new")).await.ok();
        assert_eq!(watch.reply(1).await, ["DELETED new"]);
    }
}

#[tokio::test]
async fn a_107_an_object_that_starts_or_stops_matching_is_added_or_deleted() {
    let cluster = Cluster::start().await;
    let from = cluster.version(MAPS).await;
    let mut watch =
        cluster.watch(&format!("{MAPS}?labelSelector=on=yes&resourceVersion={from}")).await;
    let path = format!("{MAPS}/m");
    cluster.make(MAPS, labelled(map("m"), json!({"on": "no"}))).await;
    let label = |text: &str| json!({"metadata": {"labels": {"on": text}}});
    let inside = cluster.patch(&path, label("yes")).await.ok();
    let data = cluster.patch(&path, json!({"data": {"a": "b"}})).await.ok();
    let outside = cluster.patch(&path, label("no")).await.ok();
    cluster.patch(&path, json!({"data": {"a": "c"}})).await.ok();
    cluster.patch(&path, label("yes")).await.ok();
    cluster.delete(&path).await.ok();
    let events = watch.take(5).await;
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]);
    assert_eq!(events[0]["object"], inside);
    assert_eq!(events[1]["object"], data);
    // The last matching state, with the resource version of the write after which it no longer matched.
    let mut last = data.clone();
    last["metadata"]["resourceVersion"] = outside["metadata"]["resourceVersion"].clone();
    assert_eq!(events[2]["object"], last);
    assert!(number(&events[4]["object"]) > number(&events[3]["object"]));
    // The deletion of an object that does not match is no event.
    cluster.make(MAPS, labelled(map("other"), json!({"on": "no"}))).await;
    cluster.delete(&format!("{MAPS}/other")).await.ok();
    cluster.make(MAPS, labelled(map("next"), json!({"on": "yes"}))).await;
    assert_eq!(watch.reply(1).await, ["ADDED next"]);
}

#[tokio::test(start_paused = true)]
async fn a_108_a_watch_from_an_expired_version_ends_with_one_error() {
    let cluster = Cluster::on_simulated_time().await;
    let made = cluster.make(MAPS, map("m")).await;
    tokio::time::advance(Duration::from_secs(11 * 60)).await;
    cluster.make(MAPS, map("n")).await;
    tokio::time::sleep(Duration::from_secs(6 * 60)).await;
    cluster.make(MAPS, map("o")).await;
    let mut watch =
        cluster.watch_as(&format!("{MAPS}?resourceVersion={}", version(&made)), TABLE).await;
    let event = watch.next().await;
    assert_eq!(event["type"], "ERROR");
    let reply = &event["object"];
    // a Status is never converted to a table.
    assert_eq!(reply["kind"], "Status");
    assert_eq!((&reply["code"], &reply["reason"]), (&410.into(), &"Expired".into()));
    let message = reply["message"].as_str().unwrap();
    let wanted = format!("too old resource version: {} (", version(&made));
    assert!(message.starts_with(&wanted), "{message}");
    assert_eq!(watch.line().await, None);
}

#[tokio::test]
async fn a_108_contradictory_options_are_refused() {
    let cluster = Cluster::start().await;
    for (query, code) in [
        ("labelSelector=a in", 400),
        ("fieldSelector=nothing=x", 400),
        ("timeoutSeconds=long", 400),
        ("resourceVersionMatch=Exact&resourceVersion=5", 422),
        ("sendInitialEvents=true", 422),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", 422),
    ] {
        let reply = cluster.get(&format!("{MAPS}?watch=1&{query}")).await;
        assert_eq!(reply.code, code, "{query}: {}", reply.body);
    }
    let reply = cluster
        .get(&format!("{MAPS}?sendInitialEvents=true&resourceVersionMatch=NotOlderThan"))
        .await;
    reply.refused(422, "Invalid");
    // A future resource version is valid: the watch waits for it.
    let next = cluster.version(MAPS).await.parse::<u64>().unwrap() + 2;
    let mut watch = cluster.watch(&format!("{MAPS}?resourceVersion={next}")).await;
    for name in ["a", "b", "c"] {
        cluster.make(MAPS, map(name)).await;
    }
    assert_eq!(watch.reply(1).await, ["ADDED c"]);
}

#[tokio::test(start_paused = true)]
async fn a_109_five_minutes_of_history_are_kept() {
    let cluster = Cluster::on_simulated_time().await;
    let made = cluster.make(MAPS, map("m")).await;
    cluster.make(MAPS, map("n")).await;
    tokio::time::sleep(Duration::from_secs(4 * 60)).await;
    let mut watch = cluster.watch(&format!("{MAPS}?resourceVersion={}", version(&made))).await;
    assert_eq!(watch.reply(1).await, ["ADDED n"]);
}

#[tokio::test(start_paused = true)]
async fn a_110_a_watch_ends_at_its_timeout() {
    let cluster = Cluster::on_simulated_time().await;
    let start = tokio::time::Instant::now();
    let mut watch = cluster.watch(&format!("{}&timeoutSeconds=7", ours(""))).await;
    assert_eq!(watch.line().await, None);
    assert_eq!(start.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_111_requested_bookmarks_come_every_minute_and_before_the_end() {
    let cluster = Cluster::on_simulated_time().await;
    let from = cluster.version(MAPS).await;
    let start = tokio::time::Instant::now();
    let query = format!("resourceVersion={from}&timeoutSeconds=100&allowWatchBookmarks=true");
    let mut watch = cluster.patient_watch(&format!("{MAPS}?{query}")).await;
    // A write to another collection advances the bookmark.
    let elsewhere = cluster.make(PODS, pod("p")).await;
    let first = watch.next().await;
    assert_eq!((&first["type"], start.elapsed().as_secs()), (&"BOOKMARK".into(), 60));
    let object = &first["object"];
    assert_eq!((&object["kind"], &object["apiVersion"]), (&"ConfigMap".into(), &"v1".into()));
    assert!(number(object) >= number(&elsewhere), "{object}");
    let keys: Vec<_> = object["metadata"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["resourceVersion"]);
    assert_eq!(watch.next().await["type"], "BOOKMARK");
    assert_eq!(start.elapsed().as_secs(), 98);
    assert_eq!(watch.line().await, None);
    assert_eq!(start.elapsed().as_secs(), 100);
    // Without the option there are none.
    let mut plain =
        cluster.patient_watch(&format!("{MAPS}?resourceVersion={from}&timeoutSeconds=100")).await;
    assert_eq!(plain.line().await, None);
}

#[tokio::test]
async fn a_112_one_object_is_watched_by_its_name() {
    let cluster = Cluster::start().await;
    for path in [
        format!("{MAPS}?fieldSelector=metadata.name=m"),
        "/api/v1/watch/namespaces/default/configmaps/m".to_owned(),
    ] {
        let mut watch = cluster.watch(&path).await;
        cluster.make(MAPS, map("other")).await;
        cluster.make(MAPS, map("m")).await;
        for name in ["other", "m"] {
            cluster.delete(&format!("{MAPS}/{name}")).await.ok();
        }
        assert_eq!(watch.reply(2).await, ["ADDED m", "DELETED m"], "{path}");
    }
    // the old prefix for a collection.
    let mut watch = cluster.watch("/api/v1/watch/namespaces/default/pods").await;
    cluster.make(PODS, pod("p")).await;
    assert_eq!(watch.reply(1).await, ["ADDED p"]);
}

#[tokio::test]
async fn a_113_a_streaming_list_marks_the_end_of_the_initial_events() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        cluster.make(MAPS, map(name)).await;
    }
    let options =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let current = cluster.version(MAPS).await;
    for query in [options.to_owned(), format!("{options}&resourceVersion={current}")] {
        let mut watch = cluster.watch(&ours(&query)).await;
        assert_eq!(watch.reply(2).await, ["ADDED a", "ADDED b"]);
        let mark = watch.next().await;
        assert_eq!(
            mark,
            json!({"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1",
                "metadata": {"resourceVersion": cluster.version(MAPS).await,
                             "annotations": {"k8s.io/initial-events-end": "true"}}}})
        );
        cluster.make(MAPS, map("c")).await;
        assert_eq!(watch.reply(1).await, ["ADDED c"]);
        cluster.delete(&format!("{MAPS}/c")).await.ok();
    }
    let none = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut watch = cluster.watch(&ours(none)).await;
    cluster.make(MAPS, map("d")).await;
    assert_eq!(watch.reply(1).await, ["ADDED d"]);
}

#[tokio::test]
async fn a_193_the_end_of_a_streaming_list_is_marked_in_a_table_too() {
    let cluster = Cluster::start().await;
    let options =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = cluster.watch_as(&format!("{}&includeObject=None", ours(options)), TABLE).await;
    let mark = watch.next().await;
    assert_eq!((&mark["type"], &mark["object"]["kind"]), (&"BOOKMARK".into(), &"Table".into()));
    let row = &mark["object"]["rows"][0]["object"]["metadata"];
    assert_eq!(row["annotations"], json!({"k8s.io/initial-events-end": "true"}), "{mark}");
}

/// A node's agent watches its own pods, which the store keeps by node.
#[tokio::test]
async fn a_104_a_watch_of_one_node_sees_only_the_pods_of_that_node() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("there")).await;
    let mut watch = cluster.watch(&format!("{PODS}?fieldSelector=spec.nodeName=n1")).await;
    let mut elsewhere = cluster.watch(&format!("{PODS}?fieldSelector=spec.nodeName=n2")).await;
    cluster.make(PODS, pod("waits")).await;
    cluster.bound(pod("comes")).await;
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    cluster.patch(&format!("{PODS}/waits"), labels.clone()).await.ok();
    cluster.patch(&format!("{PODS}/comes"), labels).await.ok();
    // It gets a deletion timestamp first, so that its node learns of it, and is then removed.
    cluster.delete(&format!("{PODS}/comes?gracePeriodSeconds=0")).await.ok();
    assert_eq!(
        watch.reply(5).await,
        ["ADDED there", "ADDED comes", "MODIFIED comes", "MODIFIED comes", "DELETED comes"]
    );
    // The same from a resource version, and with further selectors.
    let from = cluster.version(PODS).await;
    let narrow = "fieldSelector=spec.nodeName=n1,metadata.name!=other";
    let mut later = cluster.watch(&format!("{PODS}?{narrow}&resourceVersion={from}")).await;
    cluster.bound(pod("other")).await;
    cluster.bound(pod("last")).await;
    assert_eq!(later.reply(1).await, ["ADDED last"]);
    assert_eq!(watch.reply(2).await, ["ADDED other", "ADDED last"]);
    let mut far = pod("far");
    far["spec"]["nodeName"] = "n2".into();
    cluster.make(PODS, far).await;
    assert_eq!(elsewhere.reply(1).await, ["ADDED far"], "and nothing before");
}

#[tokio::test]
async fn a_104_selectors_apply_to_watches_across_namespaces() {
    let cluster = Cluster::start().await;
    cluster.make("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
    let from = cluster.version(MAPS).await;
    let query = format!("labelSelector=a=b&resourceVersion={from}");
    let mut all = cluster.watch(&format!("/api/v1/configmaps?{query}")).await;
    let mut one = cluster.watch(&format!("{MAPS}?{query}")).await;
    cluster.make("/api/v1/namespaces/shop/configmaps", labelled(map("x"), json!({"a": "b"}))).await;
    cluster.make(MAPS, map("y")).await;
    cluster.make(MAPS, labelled(map("z"), json!({"a": "b"}))).await;
    assert_eq!(all.reply(2).await, ["ADDED x", "ADDED z"]);
    assert_eq!(one.reply(1).await, ["ADDED z"]);
}

/// The chunks of a response as they arrive.
async fn frames(body: &mut server::Body, count: usize) -> Vec<bytes::Bytes> {
    use http_body_util::BodyExt as _;
    let mut frames = Vec::new();
    for _ in 0..count {
        frames.push(body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    frames
}

#[tokio::test]
async fn watches_share_the_bytes_of_large_objects() {
    let cluster = Cluster::start().await;
    let large = json!({"metadata": {"name": "a"}, "data": {"large": "x".repeat(500_000)}});
    cluster.make(MAPS, large).await;
    // An update, because its stored event differs from an initial event.
    cluster.patch(&format!("{MAPS}/a"), json!({"data": {"more": "y"}})).await.ok();
    let mut bytes = Vec::new();
    for _ in 0..2 {
        let mut watch = cluster.open("GET", &format!("{MAPS}?watch=1"), &[], "").await.into_body();
        let pieces = frames(&mut watch, 3).await;
        assert_eq!(pieces[0], "{\"type\":\"ADDED\",\"object\":");
        assert!(pieces[1].len() > 500_000 && pieces[2].starts_with(b"}\n"));
        bytes.push(pieces[1].clone());
    }
    assert_eq!(bytes[0].as_ptr(), bytes[1].as_ptr());
}

/// a client that stops reading does not keep all first objects in memory.
#[tokio::test(start_paused = true)]
async fn a_watch_whose_first_objects_are_not_read_ends() {
    let cluster = Cluster::on_simulated_time().await;
    for number in 0..5 {
        let large = json!({"metadata": {"name": format!("m{number}")},
                           "data": {"large": "x".repeat(100_000)}});
        cluster.make(MAPS, large).await;
    }
    let mut slow = cluster.patient_watch(MAPS).await;
    let mut fast = cluster.patient_watch(MAPS).await;
    fast.take(6).await;
    slow.next().await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    slow.next().await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    cluster.make(MAPS, map("new")).await;
    let mut kinds = Vec::new();
    while let Some(line) = slow.line().await {
        let event: Value = serde_json::from_str(&line).unwrap();
        kinds.push((event["type"].clone(), event["object"]["reason"].clone()));
    }
    assert_eq!(kinds.last().unwrap(), &(json!("ERROR"), json!("Expired")));
    assert!(kinds.len() < 5, "{kinds:?}");
    assert_eq!(fast.reply(1).await, ["ADDED new"]);
}
