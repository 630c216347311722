//! Certificate signing requests: the server records the requester, approving and signing need rights for the
//! signer, and no user can request a certificate that bypasses RBAC.

use super::refuse;
use crate::request::call::Call;
use crate::response::error::Result;
use access::authn::{MASTERS, User};
use access::authz::Attributes;
use api::value::ValueExt;
use base64::Engine as _;
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

const GROUP: &str = "certificates.k8s.io";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Replaces what the client wrote by the caller's identity.
pub(super) fn record_requester(user: &User, request: &mut Value) {
    let spec = request.object("spec");
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    for (field, text) in [("username", &user.name), ("uid", &user.uid)] {
        if !text.is_empty() {
            spec[field] = text.as_str().into();
        }
    }
    if !user.groups.is_empty() {
        spec["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        spec["extra"] = json!(user.extra);
    }
}

/// CertificateSubjectRestriction: a certificate for `system:masters` could not be revoked.
pub(super) fn check_subject(call: &Call, request: &Value) -> Result<()> {
    if request.text(&["spec", "signerName"]) != CLIENT_SIGNER {
        return Ok(());
    }
    match organizations(request.text(&["spec", "request"])) {
        Some(groups) if groups.iter().any(|group| group == MASTERS) => {
            let why = format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed");
            Err(refuse(call, request, why))
        }
        Some(_) => Ok(()),
        None => Err(refuse(call, request, "failed to parse CSR: not a certificate request")),
    }
}

/// The user that the certificate would name; none if this is not a certificate request.
pub(super) fn common_name(request: &str) -> Option<String> {
    let pem = base64::engine::general_purpose::STANDARD.decode(request).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    let subject = &request.certification_request_info.subject;
    let name = subject.iter_common_name().next();
    Some(name.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned())
}

/// The groups that the certificate would name.
fn organizations(request: &str) -> Option<Vec<String>> {
    let pem = base64::engine::general_purpose::STANDARD.decode(request).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    let subject = &request.certification_request_info.subject;
    let texts = subject.iter_organization().map(|group| group.as_str().map(str::to_owned));
    texts.collect::<std::result::Result<_, _>>().ok()
}

/// CertificateApproval: the right to approve is granted per signer.
pub(super) fn check_approval(call: &Call, request: &Value) -> Result<()> {
    let signer = request.text(&["spec", "signerName"]);
    if may(call, "approve", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to approve requests with signerName {signer:?}");
    Err(refuse(call, request, why))
}

/// CertificateSigning: only the signer may issue the certificate, or report why it does not.
pub(super) fn check_signing(call: &Call, new: &Value, old: &Value) -> Result<()> {
    let same = |field: &str| new.at(&["status", field]) == old.at(&["status", field]);
    let signer = old.text(&["spec", "signerName"]);
    if (same("certificate") && same("conditions")) || may(call, "sign", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to sign requests with signerName {signer:?}");
    Err(refuse(call, new, why))
}

/// The verb on this signer, or on all of its domain (`example.com/*`).
fn may(call: &Call, verb: &str, signer: &str) -> bool {
    let policy = call.server.policy();
    let domain = signer.split('/').next().unwrap_or_default();
    [signer.to_owned(), format!("{domain}/*")].iter().any(|name| {
        let request = Attributes {
            version: "*",
            name,
            ..Attributes::resource(&call.user, verb, GROUP, "signers")
        };
        policy.allows(&request).allowed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_90_the_requester_is_the_caller() {
        let mut user = User::authenticated("ana", &["team"]);
        user.extra.insert("k".into(), vec!["v".into()]);
        let mut request = json!({"spec": {"username": "root", "uid": "0", "groups": [MASTERS], "signerName": "a/b"}});
        record_requester(&user, &mut request);
        assert_eq!(
            request["spec"],
            json!({
                "username": "ana",
                "groups": ["team", "system:authenticated"],
                "extra": {"k": ["v"]},
                "signerName": "a/b",
            })
        );
    }

    #[test]
    fn the_groups_of_a_request_are_its_organizations() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, MASTERS);
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let request = base64::engine::general_purpose::STANDARD.encode(pem);
        assert_eq!(organizations(&request).unwrap(), [MASTERS]);
        assert_eq!(organizations("no"), None);
    }
}
