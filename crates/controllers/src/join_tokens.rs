//! Deletes join tokens at the moment they end (C-152). Until then the server takes them; after that it
//! would not, but what is gone cannot be misread.

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
    match judge(&token, clock::now()) {
        Verdict::Stays => Ok(Next::Change),
        Verdict::Lives(left) => Ok(Next::After(left)),
        Verdict::HasEnded => {
            let only = DeleteOptions::of_uid(token.metadata.uid.as_deref().unwrap_or_default());
            match cluster.client.delete::<Secret>(&key, &only).await {
                Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
                deleted => deleted.map(|_| Next::Change),
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum Verdict {
    /// It has no end.
    Stays,
    Lives(Duration),
    HasEnded,
}

/// An end that cannot be read has come: nobody can have meant that the token never ends.
fn judge(token: &Secret, now: Timestamp) -> Verdict {
    let data = token.data.as_ref();
    let Some(end) = data.and_then(|data| data.get("expiration")).filter(|end| !end.0.is_empty())
    else {
        return Verdict::Stays;
    };
    let end = std::str::from_utf8(&end.0).ok().and_then(|end| end.parse::<Timestamp>().ok());
    let left = end.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    match left {
        Some(left) if !left.is_zero() => Verdict::Lives(left),
        _ => Verdict::HasEnded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    /// C-152
    #[test]
    fn c_152_a_token_goes_at_its_end() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (end, verdict) in [
            (None, Verdict::Stays),
            (Some(""), Verdict::Stays),
            (Some("2026-01-01T00:01:00Z"), Verdict::Lives(Duration::from_secs(60))),
            (Some("2026-01-01T02:00:00+02:00"), Verdict::HasEnded),
            (Some("2025-12-31T23:59:59Z"), Verdict::HasEnded),
            (Some("tomorrow"), Verdict::HasEnded),
        ] {
            let mut token = Secret::default();
            if let Some(end) = end {
                let data = [("expiration".to_owned(), ByteString(end.as_bytes().to_vec()))];
                token.data = Some(data.into());
            }
            assert_eq!(judge(&token, now), verdict, "{end:?}");
        }
    }
}
