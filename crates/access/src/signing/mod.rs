//! Decides about certificate signing requests and signs those that are approved (C-148 to C-150).
//!
//!     request ──▶ approval: approve, wait or leave to a person ──▶ signer's rules ──▶ `pki` signs
//!
//! Upstream's controller manager does this; here the server does, because the CA's key never leaves it. Not here:
//! following the requests in the store and writing the results (`server`).

mod approval;
mod requested_certificate;
mod signer;

pub use approval::{ClusterView, NodesByAddress, addresses_of_node};

use crate::pki::{CertificateOrder, Pki};
use api::value::ValueExt;
use approval::Verdict;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use requested_certificate::RequestedCertificate;
use serde_json::{Value, json};
use signer::Signer;

/// What [`process`] did with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It added conditions or the certificate to the request. The caller stores them.
    Changed,
    /// Nothing is left to do: the request was answered before, or its signer is not one of ours.
    Settled,
    /// Only a person can approve it. Says why.
    LeftToPerson(String),
    /// A later attempt may approve it. Says why this one did not.
    Undecided(String),
}

/// Approves the request if no person has to, and signs it if it is approved.
pub fn process(request: &mut Value, pki: &Pki, cluster: &ClusterView) -> Outcome {
    let Some(signer) = Signer::of(request.text(&["spec", "signerName"])) else {
        return Outcome::Settled;
    };
    if !request.text(&["status", "certificate"]).is_empty()
        || has_condition(request, "Denied")
        || has_condition(request, "Failed")
    {
        return Outcome::Settled;
    }
    let requested = RequestedCertificate::read(request);
    if !has_condition(request, "Approved") {
        match approval::judge(request, signer, &requested, cluster) {
            Verdict::Approve(message) => {
                add_condition(request, "Approved", "AutoApproved", message);
            }
            Verdict::Wait(why) => return Outcome::Undecided(why),
            Verdict::LeaveToPerson(why) => return Outcome::LeftToPerson(why),
        }
    }
    let checked = requested.and_then(|requested| {
        signer.check(&requested, request)?;
        Ok(requested)
    });
    match checked {
        Ok(requested) => sign(pki, request, &requested),
        Err(why) => add_condition(request, "Failed", "SignerValidationFailure", &why),
    }
    Outcome::Changed
}

fn sign(pki: &Pki, request: &mut Value, requested: &RequestedCertificate) {
    let usages = requested_certificate::usages(request);
    let order = CertificateOrder {
        name: &requested.name,
        groups: &requested.groups,
        names: requested.names().collect(),
        usages: usages.iter().map(String::as_str).collect(),
        public_key: &requested.public_key,
        lifetime: signer::lifetime(request),
    };
    match pki.sign(&order) {
        Ok(pem) => {
            request.object("status")["certificate"] = BASE64_STANDARD.encode(pem).into();
        }
        Err(error) => add_condition(request, "Failed", "SigningError", &error.to_string()),
    }
}

fn has_condition(request: &Value, condition: &str) -> bool {
    let conditions = request.at(&["status", "conditions"]).and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| one.text(&["type"]) == condition)
}

fn add_condition(request: &mut Value, condition: &str, reason: &str, message: &str) {
    let now = clock::now_rfc3339();
    let condition = json!({
        "type": condition,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastUpdateTime": now,
        "lastTransitionTime": now,
    });
    let status = request.object("status");
    match status.get_mut("conditions").and_then(Value::as_array_mut) {
        Some(conditions) => conditions.push(condition),
        None => status["conditions"] = json!([condition]),
    }
}
