//! Deletes join tokens when they expire (C-152). The server also rejects expired tokens itself.

use crate::start::Cluster;
use client::{Cache, DeleteOptions, Next, ObjectKey, Queue, run_controller};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use std::time::Duration;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    let tokens = Cache::<Secret>::builder(&cluster.client)
        .namespace(NAMESPACE)
        .fields(&format!("type={TYPE}"))
        .start();
    tokens.feed_keys(&queue);
    tokens.synced().await;
    run_controller("join-tokens", &queue, 1, |key| reconcile(cluster, &tokens, key)).await;
}

async fn reconcile(
    cluster: &Cluster,
    tokens: &Cache<Secret>,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(token) = tokens.get(&key) else { return Ok(Next::Change) };
    match expiry(&token, clock::now()) {
        Expiry::Never => Ok(Next::Change),
        Expiry::In(left) => Ok(Next::After(left)),
        Expiry::Passed => {
            let only = DeleteOptions::of_uid(token.metadata.uid.as_deref().unwrap_or_default());
            match cluster.client.delete::<Secret>(&key, &only).await {
                Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
                deleted => deleted.map(|_| Next::Change),
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum Expiry {
    Never,
    In(Duration),
    Passed,
}

/// An expiration that cannot be parsed counts as passed: the token must not be valid forever by mistake.
fn expiry(token: &Secret, now: Timestamp) -> Expiry {
    let data = token.data.as_ref();
    let Some(end) = data.and_then(|data| data.get("expiration")).filter(|end| !end.0.is_empty())
    else {
        return Expiry::Never;
    };
    let end = std::str::from_utf8(&end.0).ok().and_then(|end| end.parse::<Timestamp>().ok());
    let left = end.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    match left {
        Some(left) if !left.is_zero() => Expiry::In(left),
        _ => Expiry::Passed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    /// C-152: expired bootstrap tokens are deleted.
    #[test]
    fn c_152_a_token_is_deleted_when_it_expires() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (end, verdict) in [
            (None, Expiry::Never),
            (Some(""), Expiry::Never),
            (Some("2026-01-01T00:01:00Z"), Expiry::In(Duration::from_secs(60))),
            (Some("2026-01-01T02:00:00+02:00"), Expiry::Passed),
            (Some("2025-12-31T23:59:59Z"), Expiry::Passed),
            (Some("tomorrow"), Expiry::Passed),
        ] {
            let mut token = Secret::default();
            if let Some(end) = end {
                let data = [("expiration".to_owned(), ByteString(end.as_bytes().to_vec()))];
                token.data = Some(data.into());
            }
            assert_eq!(expiry(&token, now), verdict, "{end:?}");
        }
    }
}
