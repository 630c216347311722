//! Leader election with a real server: candidates watch the lease, so they take over as soon as it is released or
//! expires. Not here: who may take it when (`leadership.rs`).

use client::{LEASE_DURATION, Leadership, ObjectKey, RENEW_DEADLINE, RETRY_PERIOD};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use std::time::Duration;
use testbed::TestServer;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// The time of a request and its response, on a paused clock.
const MOMENT: Duration = Duration::from_millis(50);

fn lease() -> ObjectKey {
    ObjectKey::new("kube-system", "tests")
}

#[tokio::test(start_paused = true)]
async fn c_194_candidates_take_over_as_soon_as_the_lease_ends() {
    let server = TestServer::with_service_account().await;
    let client = server.admin();
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

    // The leader is killed. Its last renewal was at most one retry period ago.
    sleep(Duration::from_millis(31_700)).await;
    drop(two);
    let killed = Instant::now();
    Leadership::acquire(&client, &lease(), "three").await;
    assert!(killed.elapsed() <= LEASE_DURATION + RETRY_PERIOD + MOMENT, "{:?}", killed.elapsed());
    server.stop().await;
}

/// A candidate that watched all the time takes the lease 15 s after the last renewal.
#[tokio::test(start_paused = true)]
async fn c_194_a_killed_leader_is_replaced_when_its_lease_expires() {
    let server = TestServer::with_service_account().await;
    let client = server.admin();
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
            "not before it has expired: {took:?}"
        );
        two.release().await.unwrap();
    }
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_194_a_leader_records_events_and_releases_its_lease() {
    let server = TestServer::with_service_account().await;
    let client = server.admin();
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
    let messages: Vec<_> = events.iter().filter_map(|event| event.message.as_deref()).collect();
    assert_eq!(messages, ["one became leader", "one stopped leading"]);
    server.stop().await;
}
