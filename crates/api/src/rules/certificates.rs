//! Rules of the `certificates.k8s.io` kinds: requests for certificates.
//!
//! Who asks (username, groups) is written by the server from the caller's identity, not from here.

use super::{NameRule, Rules, check};
use crate::field::{At, Errors, Wrong};
use crate::names;
use crate::value::ValueExt;
use base64::Engine as _;
use serde_json::json;

const EXPIRATION_MIN: i64 = 600;
const SIGNER_MAX: usize = 571;

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "CertificateSigningRequest" => Rules {
            default: |request| {
                request.object("status");
            },
            prepare_create: |request| {
                request.map().insert("status".into(), json!({}));
            },
            // What was asked for cannot change afterwards; upstream restores it silently.
            prepare_update: |request, old| {
                let spec = old.get("spec").cloned().unwrap_or_default();
                request.map().insert("spec".into(), spec);
            },
            validate,
            validate_status_update: |new, old, errors| {
                keep_decisions(new, old, errors);
                validate_conditions(new, errors);
            },
            fields: &[("spec.signerName", |request| request.text(&["spec", "signerName"]).into())],
            name: NameRule::PathSegment,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

fn validate(request: &At, errors: &mut Errors) {
    let spec = request.field("spec");
    validate_request(&spec.field("request"), errors);
    let usages = spec.field("usages");
    if usages.is_empty() {
        errors.required(&usages, "");
    }
    let mut seen = check::Unique::new();
    for usage in usages.items() {
        if !USAGES.contains(&usage.text()) {
            errors.not_supported(&usage, &USAGES);
        } else if !seen.add(usage.text()) {
            errors.duplicate(&usage);
        }
    }
    validate_signer(&spec.field("signerName"), errors);
    let expiration = spec.field("expirationSeconds");
    if expiration.int().is_some_and(|seconds| seconds < EXPIRATION_MIN) {
        let detail = format!("may not specify a duration less than {EXPIRATION_MIN} seconds");
        errors.invalid(&expiration, &detail);
    }
    validate_conditions(request, errors);
}

/// The request is PEM; what is inside is the signer's business.
fn validate_request(at: &At, errors: &mut Errors) {
    let decoded = base64::engine::general_purpose::STANDARD.decode(at.text()).unwrap_or_default();
    let text = String::from_utf8_lossy(&decoded);
    let block = |edge: &str| text.contains(&format!("-----{edge} CERTIFICATE REQUEST-----"));
    if !block("BEGIN") || !block("END") {
        errors.invalid(at, "PEM block type must be CERTIFICATE REQUEST");
    }
}

fn validate_signer(signer: &At, errors: &mut Errors) {
    if signer.text().is_empty() {
        errors.required(signer, "");
        return;
    }
    if signer.text() == "kubernetes.io/legacy-unknown" {
        errors.invalid(signer, "the legacy signerName is not allowed via this API version");
        return;
    }
    if signer.text().len() > SIGNER_MAX {
        errors.too_long(signer, SIGNER_MAX);
    }
    let parts: Vec<&str> = signer.text().split('/').collect();
    let [domain, path] = parts[..] else {
        let detail =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.invalid(signer, detail);
        return;
    };
    for complaint in names::dns1123_subdomain(domain) {
        errors.invalid_value(signer, domain, &format!("validating label {domain:?}: {complaint}"));
    }
    if !domain.contains('.') {
        errors.invalid_value(
            signer,
            domain,
            "should be a domain with at least two segments separated by dots",
        );
    }
    for part in path.split('.') {
        for complaint in names::dns1123_label(part) {
            errors.invalid_value(signer, path, &format!("validating label {part:?}: {complaint}"));
        }
    }
}

/// A decision is made through `/approval` and never taken back.
fn keep_decisions(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("status"), old.field("status"));
    let conditions = new.field("conditions");
    for kind in ["Approved", "Denied"] {
        let has = |status: &At| {
            status.field("conditions").items().any(|c| c.field("type").text() == kind)
        };
        let what = match (has(&old), has(&new)) {
            (true, false) => "remove",
            (false, true) => "add",
            _ => continue,
        };
        let detail = format!("updates may not {what} a condition of type {kind:?}");
        errors.forbidden(&conditions, &detail);
    }
}

fn validate_conditions(request: &At, errors: &mut Errors) {
    let status = request.field("status");
    let conditions = status.field("conditions");
    let has = |kind: &str| conditions.items().any(|c| c.field("type").text() == kind);
    if has("Approved") && has("Denied") {
        let detail = "Approved and Denied conditions are mutually exclusive";
        errors.push(Wrong::Invalid, conditions.path(), Some(&"Denied".into()), detail);
    }
    for condition in conditions.items() {
        let kind = condition.field("type");
        check::required_text(&kind, "", errors);
        let state = condition.field("status");
        match kind.text() {
            "Approved" | "Denied" | "Failed" => check::one_of(&state, &["True"], errors),
            _ => check::one_of(&state, &["False", "True", "Unknown"], errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn said(more: Value) -> Vec<String> {
        let pem = "-----BEGIN CERTIFICATE REQUEST-----\nAA==\n-----END CERTIFICATE REQUEST-----\n";
        let pem = base64::engine::general_purpose::STANDARD.encode(pem);
        let mut request = json!({"spec": {"request": pem, "usages": ["client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client"}});
        json_patch::merge(&mut request["spec"], &more);
        let mut errors = Errors::default();
        validate(&At::root(&request), &mut errors);
        errors.iter().map(|error| format!("{} {}", error.field, error.wrong.reason())).collect()
    }

    ///
    #[test]
    fn a_92_wrong_requests_are_refused() {
        assert!(said(json!({})).is_empty());
        for (more, expected) in [
            (json!({"request": "AAAA"}), "spec.request FieldValueInvalid"),
            (json!({"usages": []}), "spec.usages FieldValueRequired"),
            (json!({"usages": ["fun"]}), "spec.usages[0] FieldValueNotSupported"),
            (json!({"signerName": "x"}), "spec.signerName FieldValueInvalid"),
            (json!({"expirationSeconds": 5}), "spec.expirationSeconds FieldValueInvalid"),
        ] {
            assert_eq!(said(more.clone()), [expected], "{more}");
        }
    }

    ///
    #[test]
    fn a_77_what_was_asked_for_stays() {
        let old = json!({"spec": {"signerName": "a"}});
        let mut new = json!({"spec": {"signerName": "b"}});
        (rules("CertificateSigningRequest").prepare_update)(&mut new, &old);
        assert_eq!(new, old);
    }
}
