//! Caches and failing watches: a fake server on a paused clock, and a real server that restarts.

use crate::cluster::{self, next_matching};
use crate::fake_server::{self, Answer, Then, bookmark, event, list, refusal, unreachable, watch};
use client::{Cache, Client, ObjectKey};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testbed::TestServer;
use tokio::time::{Instant, sleep};

type Reply = Box<dyn FnOnce() -> Answer + Send>;

/// The requests in order: `list`, or `watch` and the version it starts from.
type RequestLog = Arc<Mutex<Vec<(String, Duration)>>>;

/// Answers with one reply after the other, then with silent watches.
fn play(replies: Vec<Reply>) -> (Client, RequestLog) {
    let requests = RequestLog::default();
    let replies = Mutex::new(VecDeque::from(replies));
    let start = Instant::now();
    let client = fake_server::client({
        let requests = Arc::clone(&requests);
        move |_, path: &str, _: Value| {
            let version =
                path.split("resourceVersion=").nth(1).map(|v| v.split('&').next().unwrap());
            let what = match path.contains("watch=true") {
                true => format!("watch {}", version.unwrap_or("?")),
                false if path.contains("continue=") => "list on".to_owned(),
                false => "list".to_owned(),
            };
            requests.lock().unwrap().push((what, start.elapsed()));
            let reply = replies.lock().unwrap().pop_front();
            reply.map_or_else(|| watch(&[], Then::Silence), |reply| reply())
        }
    });
    (client, requests)
}

macro_rules! replies {
    ($($reply:expr),* $(,)?) => { vec![$(Box::new(move || $reply) as Reply),*] };
}

fn request_log(requests: &RequestLog) -> Vec<String> {
    requests.lock().unwrap().iter().map(|(what, _)| what.clone()).collect()
}

fn names(cache: &Cache<ConfigMap>) -> Vec<String> {
    cache.list().iter().filter_map(|map| map.metadata.name.clone()).collect()
}

/// Runs a cache for two seconds, long enough for some backoff.
async fn follow(replies: Vec<Reply>) -> (Cache<ConfigMap>, RequestLog) {
    let (client, requests) = play(replies);
    let cache = Cache::start(&client);
    sleep(Duration::from_secs(2)).await;
    (cache, requests)
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_where_it_ended() {
    for then in [Then::Close, Then::Break] {
        let (cache, requests) = follow(replies![
            list(&[("a", 3)], 5),
            watch(&[event("ADDED", "b", 6), event("DELETED", "a", 7)], then),
            watch(&[event("ADDED", "c", 9)], Then::Silence),
        ])
        .await;
        assert_eq!(request_log(&requests), ["list", "watch 5", "watch 7"], "{then:?}");
        assert_eq!(names(&cache), ["b", "c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn bookmarks_advance_the_resource_version() {
    let (cache, requests) =
        follow(replies![list(&[], 5), watch(&[bookmark(50)], Then::Close)]).await;
    assert_eq!(request_log(&requests), ["list", "watch 5", "watch 50"]);
    assert!(cache.caught_up_with("50").await && !cache.caught_up_with("51").await);
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_is_listed_again_and_differences_are_reported() {
    let expired = json!({ "type": "ERROR", "object": fake_server::status(410, "Expired") });
    for answer_410 in [true, false] {
        let expired = expired.clone();
        let (client, requests) = play(vec![
            Box::new(|| list(&[("gone", 1), ("same", 2), ("old", 3)], 5)),
            Box::new(move || match answer_410 {
                true => refusal(410, "Expired"),
                false => watch(&[expired], Then::Close),
            }),
            Box::new(|| list(&[("new", 11), ("old", 9), ("same", 2)], 12)),
        ]);
        let cache = Cache::<ConfigMap>::start(&client);
        cache.synced().await;
        let mut changes = cache.subscribe();
        while changes.try_next().is_some() {}
        sleep(Duration::from_secs(2)).await;
        assert_eq!(request_log(&requests), ["list", "watch 5", "list", "watch 12"]);
        assert_eq!(names(&cache), ["new", "old", "same"]);
        let mut changed: Vec<_> = std::iter::from_fn(|| changes.try_next()).collect();
        changed.sort();
        assert_eq!(changed, ["gone", "new", "old"].map(|name| ObjectKey::new("default", name)));
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_an_incomplete_list_are_discarded() {
    let page = |name: &str, more: &str| {
        fake_server::ok(&json!({
            "kind": "ConfigMapList", "apiVersion": "v1",
            "metadata": { "resourceVersion": "5", "continue": more },
            "items": [fake_server::config_map(name, 1)],
        }))
    };
    let (cache, requests) = follow(vec![
        Box::new(move || page("a", "token")),
        Box::new(|| refusal(410, "Expired")),
        Box::new(move || page("b", "token")),
        Box::new(move || page("c", "")),
    ])
    .await;
    assert_eq!(request_log(&requests), ["list", "list on", "list", "list on", "watch 5"]);
    assert_eq!(names(&cache), ["b", "c"], "the page of the aborted list is discarded");
}

/// A config map whose data no decoder can read.
fn odd(name: &str, version: u64) -> Value {
    let mut map = fake_server::config_map(name, version);
    map["data"] = json!(7);
    map
}

#[tokio::test(start_paused = true)]
async fn undecodable_objects_are_skipped() {
    let listed = json!({ "kind": "ConfigMapList", "apiVersion": "v1",
        "metadata": { "resourceVersion": "5" },
        "items": [odd("first", 1), fake_server::config_map("a", 2), fake_server::config_map("b", 3)] });
    let again = json!({ "kind": "ConfigMapList", "apiVersion": "v1",
        "metadata": { "resourceVersion": "20" },
        "items": [odd("a", 6), fake_server::config_map("c", 9), fake_server::config_map("d", 15)] });
    let event_of =
        |event_type: &str, object: Value| json!({ "type": event_type, "object": object });
    let events = [
        event_of("MODIFIED", odd("a", 6)),
        event_of("MODIFIED", odd("first", 7)),
        event_of("DELETED", odd("b", 8)),
        event("ADDED", "c", 9),
    ];
    let (client, requests) = play(replies![
        fake_server::ok(&listed),
        watch(&events, Then::Close),
        refusal(410, "Expired"),
        fake_server::ok(&again),
    ]);
    let cache = Cache::<ConfigMap>::start(&client);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(request_log(&requests), ["list", "watch 5", "watch 9", "list", "watch 20"]);
    assert_eq!(names(&cache), ["a", "c", "d"], "the last readable version of a is kept");
    let a = cache.get(&ObjectKey::new("default", "a")).unwrap();
    assert_eq!(a.metadata.resource_version.as_deref(), Some("2"));
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_replacement_removes_the_old_object() {
    let mut replaced = odd("a", 7);
    replaced["metadata"]["uid"] = json!("another");
    let (cache, _) = follow(replies![
        list(&[("a", 3)], 5),
        watch(&[json!({ "type": "ADDED", "object": replaced })], Then::Silence),
    ])
    .await;
    assert_eq!(names(&cache), [] as [&str; 0]);
    assert!(cache.caught_up_with("7").await);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_event_leads_to_a_new_list() {
    let (cache, requests) = follow(replies![
        list(&[("a", 3)], 5),
        watch(&[json!({ "type": "ADDED", "object": { "metadata": 1 } })], Then::Silence),
        list(&[("b", 6)], 7),
    ])
    .await;
    assert_eq!(request_log(&requests), ["list", "watch 5", "list", "watch 7"]);
    assert_eq!(names(&cache), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_connection_is_noticed() {
    let (client, requests) = play(replies![list(&[], 5), watch(&[bookmark(8)], Then::Silence)]);
    let _cache = Cache::<ConfigMap>::start(&client);
    sleep(Duration::from_secs(200)).await;
    assert_eq!(request_log(&requests), ["list", "watch 5", "watch 8"]);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_is_retried_about_twice_a_second() {
    let down = (0..30).map(|_| Box::new(unreachable) as Reply);
    let up: Vec<Reply> = replies![list(&[("a", 1)], 5)];
    let (client, requests) = play(down.chain(up).collect());
    let cache = Cache::<ConfigMap>::start(&client);
    tokio::time::timeout(Duration::from_secs(300), cache.synced()).await.unwrap();
    assert_eq!(names(&cache), ["a"]);
    let times: Vec<Duration> = requests.lock().unwrap().iter().map(|(_, at)| *at).collect();
    let waits: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] <= Duration::from_millis(101), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(501)), "{waits:?}");
    assert!(waits[20] >= Duration::from_millis(250), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_cache_stops_its_requests() {
    let (client, requests) = play(replies![list(&[], 5), watch(&[bookmark(6)], Then::Silence)]);
    let cache = Cache::<ConfigMap>::start(&client);
    let other = cache.clone();
    drop(cache);
    other.synced().await;
    drop(other);
    sleep(Duration::from_secs(600)).await;
    assert!(request_log(&requests).len() <= 2, "{requests:?}");
}

#[tokio::test]
async fn a_cache_survives_a_restart_of_the_server() {
    let server = TestServer::with_service_account().await;
    let client = server.over_https().await;
    let cache = Cache::<ConfigMap>::start(&client);
    cache.synced().await;
    let mut changes = cache.subscribe();
    let first = ObjectKey::new("default", "first");
    client.create(&cluster::config_map("first", "a")).await.unwrap();
    next_matching(&mut changes, &first).await;
    let state = cache.get(&first).unwrap();

    let server = server
        .restart(async || {
            let unanswered = client.create(&cluster::config_map("lost", "a")).await.unwrap_err();
            assert!(unanswered.status().is_none(), "{unanswered}");
            assert!(cache.get(&first).is_some(), "cached objects stay readable");
        })
        .await;
    let second = ObjectKey::new("default", "second");
    client.create(&cluster::config_map("second", "a")).await.unwrap();
    next_matching(&mut changes, &second).await;
    assert!(Arc::ptr_eq(&state, &cache.get(&first).unwrap()), "unchanged objects are not replaced");
    server.stop().await;
}
