//! A cache when things break: a played server on a paused clock, and a real one that restarts.

use crate::cluster::{self, Cluster, next_matching};
use crate::played::{self, Answer, Then, bookmark, event, list, refusal, unreachable, watch};
use client::{Cache, Client, ObjectKey};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

type Reply = Box<dyn FnOnce() -> Answer + Send>;

/// What was asked, in order: `list`, or `watch` and the version it goes on from.
type Asked = Arc<Mutex<Vec<(String, Duration)>>>;

/// Answers one reply after the other; the last thing it says is silence.
fn play(replies: Vec<Reply>) -> (Client, Asked) {
    let asked = Asked::default();
    let replies = Mutex::new(VecDeque::from(replies));
    let start = Instant::now();
    let client = played::client({
        let asked = Arc::clone(&asked);
        move |_, path: &str, _: Value| {
            let version =
                path.split("resourceVersion=").nth(1).map(|v| v.split('&').next().unwrap());
            let what = match path.contains("watch=true") {
                true => format!("watch {}", version.unwrap_or("?")),
                false if path.contains("continue=") => "list on".to_owned(),
                false => "list".to_owned(),
            };
            asked.lock().unwrap().push((what, start.elapsed()));
            let reply = replies.lock().unwrap().pop_front();
            reply.map_or_else(|| watch(&[], Then::Silence), |reply| reply())
        }
    });
    (client, asked)
}

macro_rules! replies {
    ($($reply:expr),* $(,)?) => { vec![$(Box::new(move || $reply) as Reply),*] };
}

fn what(asked: &Asked) -> Vec<String> {
    asked.lock().unwrap().iter().map(|(what, _)| what.clone()).collect()
}

fn names(cache: &Cache<ConfigMap>) -> Vec<String> {
    cache.list().iter().filter_map(|map| map.metadata.name.clone()).collect()
}

/// Follows the played server for two seconds, long enough for some back-off.
async fn follow(replies: Vec<Reply>) -> (Cache<ConfigMap>, Asked) {
    let (client, asked) = play(replies);
    let cache = Cache::start(&client);
    sleep(Duration::from_secs(2)).await;
    (cache, asked)
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_is_taken_up_where_it_ended() {
    for then in [Then::Close, Then::Break] {
        let (cache, asked) = follow(replies![
            list(&[("a", 3)], 5),
            watch(&[event("ADDED", "b", 6), event("DELETED", "a", 7)], then),
            watch(&[event("ADDED", "c", 9)], Then::Silence),
        ])
        .await;
        assert_eq!(what(&asked), ["list", "watch 5", "watch 7"], "{then:?}");
        assert_eq!(names(&cache), ["b", "c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn bookmarks_move_the_place_to_go_on_from() {
    let (cache, asked) = follow(replies![list(&[], 5), watch(&[bookmark(50)], Then::Close)]).await;
    assert_eq!(what(&asked), ["list", "watch 5", "watch 50"]);
    assert!(cache.caught_up_with("50").await && !cache.caught_up_with("51").await);
}

#[tokio::test(start_paused = true)]
async fn what_is_too_old_is_listed_again_and_the_difference_is_told() {
    let expired = json!({ "type": "ERROR", "object": played::status(410, "Expired") });
    for answer_410 in [true, false] {
        let expired = expired.clone();
        let (client, asked) = play(vec![
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
        assert_eq!(what(&asked), ["list", "watch 5", "list", "watch 12"]);
        assert_eq!(names(&cache), ["new", "old", "same"]);
        let mut changed: Vec<_> = std::iter::from_fn(|| changes.try_next()).collect();
        changed.sort();
        assert_eq!(changed, ["gone", "new", "old"].map(|name| ObjectKey::new("default", name)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_comes_in_pages_and_counts_when_it_is_whole() {
    let page = |name: &str, more: &str| {
        played::ok(&json!({
            "kind": "ConfigMapList", "apiVersion": "v1",
            "metadata": { "resourceVersion": "5", "continue": more },
            "items": [played::config_map(name, 1)],
        }))
    };
    let (cache, asked) = follow(vec![
        Box::new(move || page("a", "token")),
        Box::new(|| refusal(410, "Expired")),
        Box::new(move || page("b", "token")),
        Box::new(move || page("c", "")),
    ])
    .await;
    assert_eq!(what(&asked), ["list", "list on", "list", "list on", "watch 5"]);
    assert_eq!(names(&cache), ["b", "c"], "the page of the list that was given up does not count");
}

#[tokio::test(start_paused = true)]
async fn nobody_at_the_other_end_is_noticed() {
    let (client, asked) = play(replies![list(&[], 5), watch(&[bookmark(8)], Then::Silence)]);
    let _cache = Cache::<ConfigMap>::start(&client);
    sleep(Duration::from_secs(200)).await;
    assert_eq!(what(&asked), ["list", "watch 5", "watch 8"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_asked_ever_more_rarely_but_not_given_up() {
    let down = (0..30).map(|_| Box::new(unreachable) as Reply);
    let up: Vec<Reply> = replies![list(&[("a", 1)], 5)];
    let (client, asked) = play(down.chain(up).collect());
    let cache = Cache::<ConfigMap>::start(&client);
    tokio::time::timeout(Duration::from_secs(300), cache.synced()).await.unwrap();
    assert_eq!(names(&cache), ["a"]);
    let times: Vec<Duration> = asked.lock().unwrap().iter().map(|(_, at)| *at).collect();
    let waits: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] <= Duration::from_millis(101), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(10_001)), "{waits:?}");
    assert!(waits[20] >= Duration::from_secs(5), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_nobody_holds_stops_asking() {
    let (client, asked) = play(replies![list(&[], 5), watch(&[bookmark(6)], Then::Silence)]);
    let cache = Cache::<ConfigMap>::start(&client);
    let other = cache.clone();
    drop(cache);
    other.synced().await;
    drop(other);
    sleep(Duration::from_secs(600)).await;
    assert!(what(&asked).len() <= 2, "{asked:?}");
}

#[tokio::test]
async fn a_cache_survives_a_restart_of_the_server() {
    let cluster = Cluster::start().await;
    let client = cluster.over_https().await;
    let cache = Cache::<ConfigMap>::start(&client);
    cache.synced().await;
    let mut changes = cache.subscribe();
    let first = ObjectKey::new("default", "first");
    client.create(&cluster::config_map("first", "a")).await.unwrap();
    next_matching(&mut changes, &first).await;
    let kept = cache.get(&first).unwrap();

    let cluster = cluster
        .restart(async || {
            let unanswered = client.create(&cluster::config_map("lost", "a")).await.unwrap_err();
            assert!(unanswered.status().is_none(), "{unanswered}");
            assert!(cache.get(&first).is_some(), "what was known stays readable");
        })
        .await;
    let second = ObjectKey::new("default", "second");
    client.create(&cluster::config_map("second", "a")).await.unwrap();
    next_matching(&mut changes, &second).await;
    assert!(Arc::ptr_eq(&kept, &cache.get(&first).unwrap()), "what did not change is as it was");
    cluster.stop().await;
}
