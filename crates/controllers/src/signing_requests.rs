//! Deletes old certificate signing requests (C-151).
//!
//! The requestor reads the certificate within seconds, and nodes create new requests again and again. Not here:
//! approving and signing, which the server does because it has the key.

use crate::start::Cluster;
use client::{Cache, DeleteOptions, Next, ObjectKey, Queue, run_controller};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use std::time::Duration;

/// How long to keep requests that are issued, denied or failed. Upstream: `approvedExpiration` and others.
const FINISHED_TTL: SignedDuration = SignedDuration::from_hours(1);
/// How long to keep requests that may still be approved or signed. Upstream: `pendingExpiration`.
const PENDING_TTL: SignedDuration = SignedDuration::from_hours(24);

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    let requests = Cache::<CertificateSigningRequest>::start(&cluster.client);
    requests.feed_keys(&queue);
    requests.synced().await;
    run_controller("signing-requests", &queue, 1, |key| reconcile(cluster, &requests, key)).await;
}

async fn reconcile(
    cluster: &Cluster,
    requests: &Cache<CertificateSigningRequest>,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(request) = requests.get(&key) else { return Ok(Next::Change) };
    let Some(expiry) = expires_at(&request) else { return Ok(Next::Change) };
    let left = expiry.duration_since(clock::now());
    if let Ok(left) = Duration::try_from(left)
        && !left.is_zero()
    {
        return Ok(Next::After(left));
    }
    let only = DeleteOptions::only(&*request);
    match cluster.client.delete::<CertificateSigningRequest>(&key, &only).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
        deleted => deleted.map(|_| Next::Change),
    }
}

/// When to delete a request in its current state.
fn expires_at(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let status = request.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let certificate = status.and_then(|status| status.certificate.as_ref());
    let issued = certificate.filter(|pem| !pem.0.is_empty());
    let settled = conditions.iter().filter_map(|condition| {
        let since = condition.last_update_time.as_ref()?.0;
        let kept = match (condition.type_.as_str(), issued) {
            ("Denied" | "Failed", _) | ("Approved", Some(_)) => FINISHED_TTL,
            ("Approved", None) => PENDING_TTL,
            _ => return None,
        };
        Some(since.saturating_add(kept).unwrap_or(Timestamp::MAX))
    });
    let created = request.metadata.creation_timestamp.as_ref().map(|created| created.0);
    let pending = created.filter(|_| conditions.is_empty());
    let pending = pending.map(|at| at.saturating_add(PENDING_TTL).unwrap_or(Timestamp::MAX));
    let approved = conditions.iter().any(|condition| condition.type_ == "Approved");
    let ended = issued.filter(|_| approved).and_then(|pem| {
        let text = std::str::from_utf8(&pem.0).ok()?;
        Some(tls::Validity::of_pem(text).ok()?.until)
    });
    settled.chain(pending).chain(ended).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use serde_json::{Value, json};

    const CREATED: &str = "2026-01-01T00:00:00Z";

    /// A certificate that expires this many seconds after the creation of the request.
    fn certificate(ends_after: i64) -> Value {
        let created: Timestamp = CREATED.parse().unwrap();
        let end = created.as_second() + ends_after;
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        let day =
            |seconds: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds as u64);
        params.not_before = day(created.as_second());
        params.not_after = day(end);
        let pem = params.self_signed(&key).unwrap().pem();
        json!(base64::prelude::BASE64_STANDARD.encode(pem))
    }

    fn request(conditions: &[(&str, &str)], certificate: Value) -> CertificateSigningRequest {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, at)| json!({"type": kind, "status": "True", "lastUpdateTime": at}))
            .collect();
        typed::from_value(json!({
            "metadata": {"name": "csr-1", "creationTimestamp": CREATED},
            "spec": {"request": "", "signerName": "s"},
            "status": {"conditions": conditions, "certificate": certificate},
        }))
        .unwrap()
    }

    /// C-151: old signing requests are deleted.
    #[test]
    fn c_151_requests_are_deleted_after_their_time_to_live() {
        let year = 365 * 24 * 3600;
        let ten = "2026-01-01T10:00:00Z";
        for (what, conditions, certificate, expected) in [
            ("pending", &[][..], Value::Null, Some("2026-01-02T00:00:00Z")),
            ("denied", &[("Denied", ten)], Value::Null, Some("2026-01-01T11:00:00Z")),
            (
                "failed",
                &[("Approved", CREATED), ("Failed", ten)],
                Value::Null,
                Some("2026-01-01T11:00:00Z"),
            ),
            (
                "approved, not signed",
                &[("Approved", ten)],
                Value::Null,
                Some("2026-01-02T10:00:00Z"),
            ),
            ("issued", &[("Approved", ten)], certificate(year), Some("2026-01-01T11:00:00Z")),
            (
                "issued, and expired",
                &[("Approved", ten)],
                certificate(600),
                Some("2026-01-01T00:10:00Z"),
            ),
            (
                "issued, unreadable",
                &[("Approved", ten)],
                json!("eA=="),
                Some("2026-01-01T11:00:00Z"),
            ),
            ("something else", &[("Odd", ten)], Value::Null, None),
        ] {
            let at = expires_at(&request(conditions, certificate));
            assert_eq!(at, expected.map(|expected| expected.parse().unwrap()), "{what}");
        }
    }
}
