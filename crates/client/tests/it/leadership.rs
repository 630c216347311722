//! Leader election with a fake server that stores one Lease, on a paused clock.

use crate::fake_server::{self, ok, refusal, unreachable};
use client::{Client, LEASE_DURATION, Leadership, ObjectKey, RENEW_DEADLINE, RETRY_PERIOD};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The state of the fake server.
#[derive(Default)]
struct ServerState {
    lease: Option<Value>,
    version: u64,
    /// Candidates that cannot reach the server.
    cut_off: Vec<&'static str>,
    /// Whether every write fails immediately.
    broken: bool,
    writes: u32,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<ServerState>>);

impl Server {
    fn client(&self, who: &'static str) -> Client {
        let state = Arc::clone(&self.0);
        fake_server::client(move |method, _, body| {
            let mut state = state.lock().unwrap();
            if state.cut_off.contains(&who) {
                return unreachable();
            }
            state.writes += u32::from(method != "GET");
            match (method, &state.lease) {
                ("POST" | "PUT", _) if state.broken => refusal(500, "InternalError"),
                ("GET", None) => refusal(404, "NotFound"),
                ("GET", Some(lease)) => ok(lease),
                ("POST", Some(_)) => refusal(409, "AlreadyExists"),
                ("PUT", Some(lease)) if version(lease) != version(&body) => {
                    refusal(409, "Conflict")
                }
                _ => {
                    state.version += 1;
                    let mut lease = body;
                    lease["metadata"]["resourceVersion"] = state.version.to_string().into();
                    state.lease = Some(lease.clone());
                    ok(&lease)
                }
            }
        })
    }

    fn cut_off(&self, who: &'static str) {
        self.0.lock().unwrap().cut_off.push(who);
    }

    fn spec(&self) -> Value {
        self.0.lock().unwrap().lease.as_ref().unwrap()["spec"].clone()
    }
}

fn version(lease: &Value) -> &str {
    lease["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

async fn lead(server: &Server, who: &'static str) -> Leadership {
    let lease = ObjectKey::new("kube-system", "controllers");
    Leadership::acquire(&server.client(who), &lease, who).await
}

/// Candidates retry at most this much later, and notice a lease at most this late.
const LATE: Duration = Duration::from_secs(9);

/// C-194: leader election by a Lease.
#[tokio::test(start_paused = true)]
async fn a_leader_keeps_the_lease() {
    let server = Server::default();
    let one = lead(&server, "one").await;
    assert!(timeout(Duration::from_secs(600), lead(&server, "two")).await.is_err());
    assert!(one.leads());
    let spec = server.spec();
    assert_eq!(spec["holderIdentity"], "one");
    assert_eq!(spec["leaseDurationSeconds"], LEASE_DURATION.as_secs());
    assert_eq!(spec["leaseTransitions"], 0);
    assert_ne!(spec["acquireTime"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_taken_over() {
    let server = Server::default();
    drop(lead(&server, "one").await);
    let start = Instant::now();
    let two = lead(&server, "two").await;
    let took = start.elapsed();
    assert!(two.leads() && took >= LEASE_DURATION && took <= LEASE_DURATION + LATE, "{took:?}");
    assert_eq!(server.spec()["leaseTransitions"], 1);
}

/// For example, a server with a full disk refuses every write at once.
#[tokio::test(start_paused = true)]
async fn failed_takeovers_are_retried_every_two_seconds() {
    let server = Server::default();
    drop(lead(&server, "one").await);
    {
        let mut state = server.0.lock().unwrap();
        (state.broken, state.writes) = (true, 0);
    }
    assert!(timeout(Duration::from_secs(75), lead(&server, "two")).await.is_err());
    let writes = server.0.lock().unwrap().writes;
    assert!((10..=31).contains(&writes), "{writes} tries in the minute after it expired");
    server.0.lock().unwrap().broken = false;
    timeout(LEASE_DURATION + LATE, lead(&server, "two")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_over_at_once() {
    let server = Server::default();
    let one = lead(&server, "one").await;
    sleep(Duration::from_secs(7)).await;
    one.release().await.unwrap();
    let start = Instant::now();
    lead(&server, "two").await;
    assert!(start.elapsed() <= RETRY_PERIOD, "{:?}", start.elapsed());
}

/// C-194: leader election by a Lease.
#[tokio::test(start_paused = true)]
async fn a_disconnected_leader_stops_before_another_starts() {
    let server = Server::default();
    let one = lead(&server, "one").await;
    sleep(Duration::from_secs(31)).await;
    server.cut_off("one");
    let start = Instant::now();
    let (stopped, started) = tokio::join!(
        async {
            one.lost().await;
            start.elapsed()
        },
        async {
            lead(&server, "two").await;
            start.elapsed()
        },
    );
    assert!(stopped <= RENEW_DEADLINE, "{stopped:?}");
    assert!(stopped + Duration::from_secs(2) < started, "{stopped:?} {started:?}");
    assert!(!one.leads());
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_when_another_holds_the_lease() {
    let server = Server::default();
    let one = lead(&server, "one").await;
    {
        let mut state = server.0.lock().unwrap();
        state.version += 1;
        let version = state.version.to_string();
        let lease = state.lease.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = "usurper".into();
        lease["metadata"]["resourceVersion"] = version.into();
    }
    timeout(RETRY_PERIOD * 2, one.lost()).await.unwrap();
    one.release().await.unwrap();
    assert_eq!(
        server.spec()["holderIdentity"],
        "usurper",
        "release does not touch the lease of another"
    );
}
