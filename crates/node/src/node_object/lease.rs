//! The node's Lease: the cheap sign of life (N-18).

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
/// It is renewed this many times before it runs out. Upstream: `nodeLeaseRenewIntervalFraction`.
const RENEWALS: u32 = 4;
const TRIES: usize = 5;
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(7);

/// Keeps it for as long as it is polled. Begins when the Node is known, which is to own it.
pub(super) async fn keep(
    client: Client,
    name: String,
    lasts: Duration,
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
        match renew(&client, &name, lasts, &owner, held.take()).await {
            Ok(lease) => {
                held = Some(lease);
                wait = RETRY_FIRST;
                sleep(with_jitter(lasts / RENEWALS)).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the node's lease cannot be renewed");
                sleep(wait).await;
                wait = (wait * 2).min(RETRY_MAX);
            }
        }
    }
}

/// Plus up to 4 %, so that nodes that started together do not stay together.
pub(super) fn with_jitter(duration: Duration) -> Duration {
    duration.mul_f64(1.0 + 0.04 * clock::fraction())
}

/// First what we hold, without asking; then what is there.
async fn renew(
    client: &Client,
    name: &str,
    lasts: Duration,
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
        let wanted = renewed(name, lasts, node, known.as_ref(), clock::now());
        let answer = match known {
            Some(_) => client.update(&wanted).await,
            None => client.create(&wanted).await,
        };
        match answer {
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
    lasts: Duration,
    node: &Node,
    known: Option<&Lease>,
    now: Timestamp,
) -> Lease {
    let mut lease = known.cloned().unwrap_or_default();
    lease.metadata.namespace = Some(NAMESPACE.to_owned());
    lease.metadata.name = Some(name.to_owned());
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(name.to_owned());
    spec.lease_duration_seconds = Some(i32::try_from(lasts.as_secs()).unwrap_or(i32::MAX));
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
