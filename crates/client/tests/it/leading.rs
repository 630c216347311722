//! Several want to lead: a played server that keeps one Lease, on a paused clock.

use crate::played::{self, ok, refusal, unreachable};
use client::{Client, LEASE_DURATION, Leadership, ObjectKey, RENEW_DEADLINE, RETRY_PERIOD};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// What the played server keeps.
#[derive(Default)]
struct Kept {
    lease: Option<Value>,
    version: u64,
    /// Who cannot reach it.
    cut_off: Vec<&'static str>,
    /// Whether every write fails, quickly.
    broken: bool,
    writes: u32,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Kept>>);

impl Server {
    fn client(&self, who: &'static str) -> Client {
        let kept = Arc::clone(&self.0);
        played::client(move |method, _, body| {
            let mut kept = kept.lock().unwrap();
            if kept.cut_off.contains(&who) {
                return unreachable();
            }
            kept.writes += u32::from(method != "GET");
            match (method, &kept.lease) {
                ("POST" | "PUT", _) if kept.broken => refusal(500, "InternalError"),
                ("GET", None) => refusal(404, "NotFound"),
                ("GET", Some(lease)) => ok(lease),
                ("POST", Some(_)) => refusal(409, "AlreadyExists"),
                ("PUT", Some(lease)) if version(lease) != version(&body) => {
                    refusal(409, "Conflict")
                }
                _ => {
                    kept.version += 1;
                    let mut lease = body;
                    lease["metadata"]["resourceVersion"] = kept.version.to_string().into();
                    kept.lease = Some(lease.clone());
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

/// One after the other tries at most this much later, and a lease is seen at most that late.
const LATE: Duration = Duration::from_secs(9);

/// C-194
#[tokio::test(start_paused = true)]
async fn one_leads_for_as_long_as_it_is_there() {
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
async fn a_leader_that_is_gone_is_followed_when_its_lease_has_run_out() {
    let server = Server::default();
    drop(lead(&server, "one").await);
    let start = Instant::now();
    let two = lead(&server, "two").await;
    let took = start.elapsed();
    assert!(two.leads() && took >= LEASE_DURATION && took <= LEASE_DURATION + LATE, "{took:?}");
    assert_eq!(server.spec()["leaseTransitions"], 1);
}

/// A server that refuses at once, as one does whose disk is full, is not asked without a pause.
#[tokio::test(start_paused = true)]
async fn a_lease_that_has_run_out_and_cannot_be_taken_is_tried_for_every_two_seconds() {
    let server = Server::default();
    drop(lead(&server, "one").await);
    {
        let mut kept = server.0.lock().unwrap();
        (kept.broken, kept.writes) = (true, 0);
    }
    assert!(timeout(Duration::from_secs(75), lead(&server, "two")).await.is_err());
    let writes = server.0.lock().unwrap().writes;
    assert!((10..=31).contains(&writes), "{writes} tries in the minute after it had run out");
    server.0.lock().unwrap().broken = false;
    timeout(LEASE_DURATION + LATE, lead(&server, "two")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_lets_go_is_followed_at_once() {
    let server = Server::default();
    let one = lead(&server, "one").await;
    sleep(Duration::from_secs(7)).await;
    one.release().await.unwrap();
    let start = Instant::now();
    lead(&server, "two").await;
    assert!(start.elapsed() <= RETRY_PERIOD, "{:?}", start.elapsed());
}

/// C-194
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_another_starts() {
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
async fn whoever_finds_another_holding_the_lease_stops_at_once() {
    let server = Server::default();
    let one = lead(&server, "one").await;
    {
        let mut kept = server.0.lock().unwrap();
        kept.version += 1;
        let version = kept.version.to_string();
        let lease = kept.lease.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = "usurper".into();
        lease["metadata"]["resourceVersion"] = version.into();
    }
    timeout(RETRY_PERIOD * 2, one.lost()).await.unwrap();
    one.release().await.unwrap();
    assert_eq!(server.spec()["holderIdentity"], "usurper", "it is not ours to let go");
}
