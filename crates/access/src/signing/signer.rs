//! What each signer requires of an approved request (C-149), and the lifetime of its certificates (C-150).

use super::requested_certificate::{self, RequestedCertificate};
use crate::authn::NODES;
use serde_json::Value;
use std::time::Duration;

/// The signers whose key is the cluster's authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signer {
    /// `kubernetes.io/kube-apiserver-client`
    Client,
    /// `kubernetes.io/kube-apiserver-client-kubelet`
    NodeClient,
    /// `kubernetes.io/kubelet-serving`
    NodeServing,
}

const SIGNATURE: &str = "digital signature";
const ENCIPHERMENT: &str = "key encipherment";
const CLIENT: &str = "client auth";
const SERVER: &str = "server auth";

const LIFETIME_MAX: i64 = 365 * 24 * 3600;
const LIFETIME_MIN: i64 = 600;

impl Signer {
    pub(super) fn of(name: &str) -> Option<Signer> {
        match name {
            "kubernetes.io/kube-apiserver-client" => Some(Signer::Client),
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Signer::NodeClient),
            "kubernetes.io/kubelet-serving" => Some(Signer::NodeServing),
            _ => None,
        }
    }

    /// The error says why this signer refuses.
    pub(super) fn check(
        self,
        requested: &RequestedCertificate,
        request: &Value,
    ) -> Result<(), String> {
        let usages = requested_certificate::usages(request);
        match self {
            Signer::Client => {
                if !usages.iter().any(|usage| usage == CLIENT) {
                    return Err(format!("usages did not contain {CLIENT:?}"));
                }
                allow_only(&usages, CLIENT)
            }
            Signer::NodeClient => {
                check_node(requested)?;
                match () {
                    () if !requested.dns.is_empty() => not_allowed("DNS"),
                    () if !requested.ips.is_empty() => not_allowed("IP"),
                    () if requested.other_names => not_allowed("other"),
                    () => check_usages(&usages, CLIENT),
                }
            }
            Signer::NodeServing => {
                check_node(requested)?;
                match () {
                    () if requested.dns.is_empty() && requested.ips.is_empty() => {
                        Err("DNS or IP subjectAltName is required".into())
                    }
                    () if requested.other_names => not_allowed("other"),
                    () => check_usages(&usages, SERVER),
                }
            }
        }
    }
}

fn not_allowed(what: &str) -> Result<(), String> {
    Err(format!("{what} subjectAltNames are not allowed"))
}

fn check_node(requested: &RequestedCertificate) -> Result<(), String> {
    if requested.groups != [NODES] {
        return Err("subject organization is not system:nodes".into());
    }
    let Some(name) = requested.node() else {
        return Err("subject common name does not begin with system:node:".into());
    };
    // A Node cannot have any other name.
    match api::names::dns1123_subdomain(name).is_empty() {
        true => Ok(()),
        false => Err(format!("subject common name does not name a node: {name:?}")),
    }
}

/// Requires `digital signature` and `own`. `key encipherment` is allowed too, because RSA clients ask for it.
fn check_usages(usages: &[String], own: &str) -> Result<(), String> {
    let has = |wanted: &str| usages.iter().any(|usage| usage == wanted);
    if !has(SIGNATURE) || !has(own) {
        return Err(format!("usages did not match [{SIGNATURE:?} {own:?}]"));
    }
    allow_only(usages, own)
}

fn allow_only(usages: &[String], own: &str) -> Result<(), String> {
    let allowed = [SIGNATURE, ENCIPHERMENT, own];
    let other = usages.iter().find(|usage| !allowed.contains(&usage.as_str()));
    other.map_or(Ok(()), |other| Err(format!("usages did not match: {other:?} is not allowed")))
}

/// The requested lifetime in seconds, between ten minutes and a year.
pub(super) fn lifetime(request: &Value) -> Duration {
    let requested = request.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
    Duration::from_secs(
        requested.unwrap_or(LIFETIME_MAX).clamp(LIFETIME_MIN, LIFETIME_MAX).unsigned_abs(),
    )
}
