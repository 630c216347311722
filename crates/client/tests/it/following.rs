//! Several want to lead, against a real server: who waits watches, so a lease is followed in the moment it
//! is let go or has run out. Not here: who may take it when (`leading.rs`).

use crate::cluster::Cluster;
use client::{LEASE_DURATION, Leadership, ObjectKey, RENEW_DEADLINE, RETRY_PERIOD};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// A request and its answer, on a paused clock.
const MOMENT: Duration = Duration::from_millis(50);

fn lease() -> ObjectKey {
    ObjectKey::new("kube-system", "tests")
}

#[tokio::test(start_paused = true)]
async fn c_194_a_lease_is_followed_in_the_moment_it_ends() {
    let cluster = Cluster::start().await;
    let client = cluster.in_process();
    let one = Leadership::acquire(&client, &lease(), "one").await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { (Leadership::acquire(&client, &lease(), "two").await, Instant::now()) }
    });
    sleep(Duration::from_secs(33)).await;
    let released = Instant::now();
    one.release().await.unwrap();
    let (two, at) = waiting.await.unwrap();
    assert!(at - released <= MOMENT, "{:?}", at - released);

    // Killed, whenever: what counts is the last sign of life, which was at most a period ago.
    sleep(Duration::from_millis(31_700)).await;
    drop(two);
    let killed = Instant::now();
    Leadership::acquire(&client, &lease(), "three").await;
    assert!(killed.elapsed() <= LEASE_DURATION + RETRY_PERIOD + MOMENT, "{:?}", killed.elapsed());
    cluster.stop().await;
}

/// Who waited all the while has seen every sign of life: the lease is taken 15 s after the last of them.
#[tokio::test(start_paused = true)]
async fn c_194_a_killed_leader_is_followed_within_its_lease() {
    let cluster = Cluster::start().await;
    let client = cluster.in_process();
    for after in [0, 700, 1999, 5100] {
        let one = Leadership::acquire(&client, &lease(), &format!("one {after}")).await;
        let waiting = tokio::spawn({
            let client = client.clone();
            let name = format!("two {after}");
            async move { Leadership::acquire(&client, &lease(), &name).await }
        });
        sleep(RENEW_DEADLINE + Duration::from_millis(after)).await;
        drop(one);
        let killed = Instant::now();
        let two = waiting.await.unwrap();
        let took = killed.elapsed();
        assert!(took <= LEASE_DURATION + MOMENT, "{took:?}");
        assert!(
            took + RETRY_PERIOD + MOMENT >= LEASE_DURATION,
            "not before it has run out: {took:?}"
        );
        two.release().await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_194_who_leads_says_so_runs_and_lets_go() {
    let cluster = Cluster::start().await;
    let client = cluster.in_process();
    let (stop, stopped) = oneshot::channel::<()>();
    let (running, runs) = oneshot::channel::<()>();
    let leading = tokio::spawn({
        let client = client.clone();
        let mut running = Some(running);
        async move {
            let stopped = async move { drop(stopped.await) };
            let run = |until| {
                let running = running.take();
                async move {
                    running.map(|running| running.send(()));
                    until.await;
                }
            };
            client::lead(&client, &lease(), "one", stopped, run).await;
        }
    });
    runs.await.unwrap();
    stop.send(()).unwrap();
    timeout(RETRY_PERIOD, leading).await.unwrap().unwrap();
    let lease: Lease = client.get(&lease()).await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
    let events = client.list::<Event>(&client::Selection::namespace("kube-system")).await.unwrap();
    let said: Vec<_> = events.iter().filter_map(|event| event.message.as_deref()).collect();
    assert_eq!(said, ["one became leader", "one stopped leading"]);
    cluster.stop().await;
}
