//! What each signer signs at all, whoever approved it (C-149), and for how long (C-150).

use super::request::{self, Asked};
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

const YEAR: i64 = 365 * 24 * 3600;
const LEAST: i64 = 600;

impl Signer {
    pub(super) fn of(name: &str) -> Option<Signer> {
        match name {
            "kubernetes.io/kube-apiserver-client" => Some(Signer::Client),
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Signer::NodeClient),
            "kubernetes.io/kubelet-serving" => Some(Signer::NodeServing),
            _ => None,
        }
    }

    /// The error says why this signer does not sign it.
    pub(super) fn check(self, asked: &Asked, request: &Value) -> Result<(), String> {
        let usages = request::usages(request);
        match self {
            Signer::Client => {
                if !usages.iter().any(|usage| usage == CLIENT) {
                    return Err(format!("usages did not contain {CLIENT:?}"));
                }
                only(&usages, CLIENT)
            }
            Signer::NodeClient => {
                check_node(asked)?;
                match () {
                    () if !asked.dns.is_empty() => not_allowed("DNS"),
                    () if !asked.ips.is_empty() => not_allowed("IP"),
                    () if asked.other_names => not_allowed("other"),
                    () => check_usages(&usages, CLIENT),
                }
            }
            Signer::NodeServing => {
                check_node(asked)?;
                match () {
                    () if asked.dns.is_empty() && asked.ips.is_empty() => {
                        Err("DNS or IP subjectAltName is required".into())
                    }
                    () if asked.other_names => not_allowed("other"),
                    () => check_usages(&usages, SERVER),
                }
            }
        }
    }
}

fn not_allowed(what: &str) -> Result<(), String> {
    Err(format!("{what} subjectAltNames are not allowed"))
}

fn check_node(asked: &Asked) -> Result<(), String> {
    if asked.groups != [NODES] {
        return Err("subject organization is not system:nodes".into());
    }
    let Some(name) = asked.node() else {
        return Err("subject common name does not begin with system:node:".into());
    };
    // No Node can have another name, so nobody can be meant.
    match api::names::dns1123_subdomain(name).is_empty() {
        true => Ok(()),
        false => Err(format!("subject common name does not name a node: {name:?}")),
    }
}

/// Signing and this one, nothing else; enciphering keys goes along for the sake of RSA.
fn check_usages(usages: &[String], own: &str) -> Result<(), String> {
    let has = |wanted: &str| usages.iter().any(|usage| usage == wanted);
    if !has(SIGNATURE) || !has(own) {
        return Err(format!("usages did not match [{SIGNATURE:?} {own:?}]"));
    }
    only(usages, own)
}

fn only(usages: &[String], own: &str) -> Result<(), String> {
    let allowed = [SIGNATURE, ENCIPHERMENT, own];
    let other = usages.iter().find(|usage| !allowed.contains(&usage.as_str()));
    other.map_or(Ok(()), |other| Err(format!("usages did not match: {other:?} is not allowed")))
}

/// As asked for, between ten minutes and a year.
pub(super) fn lifetime(request: &Value) -> Duration {
    let asked = request.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
    Duration::from_secs(asked.unwrap_or(YEAR).clamp(LEAST, YEAR).unsigned_abs())
}
