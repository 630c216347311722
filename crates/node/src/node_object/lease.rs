//! Renews the node's Lease, its heartbeat (N-18).

use client::{Client, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

const NAMESPACE: &str = "kube-node-lease";
/// Renewals per lease duration. Upstream: `nodeLeaseRenewIntervalFraction`.
const RENEWALS: u32 = 4;
const TRIES: usize = 5;
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(7);

/// Renews the lease until the future is dropped. Starts when the Node exists, which is its owner.
pub(super) async fn run(
    client: Client,
    name: String,
    duration: Duration,
    node: watch::Receiver<Option<Arc<Node>>>,
) {
    let mut node = node;
    let mut held: Option<Lease> = None;
    let mut wait = RETRY_FIRST;
    loop {
        let Ok(owner) = node.wait_for(Option::is_some).await.map(|node| node.clone()) else {
            return;
        };
        let Some(owner) = owner else { continue };
        match renew(&client, &name, duration, &owner, held.take()).await {
            Ok(lease) => {
                held = Some(lease);
                wait = RETRY_FIRST;
                sleep(with_jitter(duration / RENEWALS)).await;
            }
            Err(error) => {
                tracing::warn!(%error, "renewing the node's lease failed");
                sleep(wait).await;
                wait = (wait * 2).min(RETRY_MAX);
            }
        }
    }
}

/// Adds up to 4 %, so that nodes that started at the same time spread out.
pub(super) fn with_jitter(duration: Duration) -> Duration {
    duration.mul_f64(1.0 + 0.04 * clock::random_fraction())
}

/// Updates the lease that we know; if that fails, reads it first.
async fn renew(
    client: &Client,
    name: &str,
    duration: Duration,
    node: &Node,
    held: Option<Lease>,
) -> client::Result<Lease> {
    let key = ObjectKey::new(NAMESPACE, name);
    let mut base = held;
    let mut failed = None;
    for _ in 0..TRIES {
        let known = match base.take() {
            Some(lease) => Some(lease),
            None => client.find::<Lease>(&key).await?,
        };
        let new = renewed(name, duration, node, known.as_ref(), clock::now());
        let written = match known {
            Some(_) => client.update(&new).await,
            None => client.create(&new).await,
        };
        match written {
            Ok(lease) => return Ok(lease),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => client.get(&key).await,
    }
}

fn renewed(
    name: &str,
    duration: Duration,
    node: &Node,
    known: Option<&Lease>,
    now: Timestamp,
) -> Lease {
    let mut lease = known.cloned().unwrap_or_default();
    lease.metadata.namespace = Some(NAMESPACE.to_owned());
    lease.metadata.name = Some(name.to_owned());
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(name.to_owned());
    spec.lease_duration_seconds = Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX));
    spec.renew_time = Some(MicroTime(now));
    lease.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }]);
    lease
}
