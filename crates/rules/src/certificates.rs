//! Rules of the `certificates.k8s.io` kinds: requests for certificates.
//!
//! Not here: the server sets the requester's username and groups.

use super::{Rules, check};
use api::field::{At, Errors, Wrong};
use api::names;
use api::names::NameRule;
use api::value::ValueExt;
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
            // The spec is immutable; upstream restores it without an error.
            prepare_update: |request, old| {
                let spec = old.get("spec").cloned().unwrap_or_default();
                request.map().insert("spec".into(), spec);
            },
            validate,
            validate_status_update: |new, old, errors| {
                validate_conditions(new, Some(old), errors);
                no_conditions_removed(new, old, errors);
                no_decisions(new, old, errors);
                certificate_is_immutable(new, old, errors);
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
    validate_conditions(request, None, errors);
}

/// Validates an update through `/approval`, the only endpoint that approves or denies.
pub fn validate_approval_update(new: &At, old: &At, errors: &mut Errors) {
    validate_conditions(new, Some(old), errors);
    no_conditions_removed(new, old, errors);
}

/// The request must be PEM; the signer checks its content.
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

fn count(request: &At, kind: &str) -> usize {
    let status = request.field("status");
    let conditions = status.field("conditions");
    conditions.items().filter(|condition| condition.field("type").text() == kind).count()
}

/// The conditions Approved, Denied and Failed cannot be removed.
fn no_conditions_removed(new: &At, old: &At, errors: &mut Errors) {
    let status = new.field("status");
    for kind in ["Approved", "Denied", "Failed"] {
        if count(new, kind) < count(old, kind) {
            let detail = format!("updates may not remove a condition of type {kind:?}");
            errors.forbidden(&status.field("conditions"), &detail);
        }
    }
}

/// Only `/approval` may add Approved or Denied.
fn no_decisions(new: &At, old: &At, errors: &mut Errors) {
    let status = new.field("status");
    for kind in ["Approved", "Denied"] {
        if count(new, kind) > count(old, kind) {
            let detail = format!("updates may not add a condition of type {kind:?}");
            errors.forbidden(&status.field("conditions"), &detail);
        }
    }
}

fn certificate_is_immutable(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("status"), old.field("status"));
    let (certificate, before) = (new.field("certificate"), old.field("certificate"));
    if !before.text().is_empty() && certificate.text() != before.text() {
        let detail = "updates may not modify existing certificate content";
        errors.forbidden(&certificate, detail);
    }
}

/// Errors that the old request already has are allowed.
fn validate_conditions(request: &At, old: Option<&At>, errors: &mut Errors) {
    let status = request.field("status");
    let conditions = status.field("conditions");
    let both = |request: &At| count(request, "Approved") > 0 && count(request, "Denied") > 0;
    if both(request) && !old.is_some_and(both) {
        let detail = "Approved and Denied conditions are mutually exclusive";
        errors.push(Wrong::Invalid, conditions.path(), Some(&"Denied".into()), detail);
    }
    let old = old.map(|old| old.field("status"));
    let repeats = old.is_some_and(|old| {
        let mut seen = check::Unique::new();
        old.field("conditions").items().any(|condition| !seen.add(condition.field("type").text()))
    });
    let mut seen = check::Unique::new();
    for condition in conditions.items() {
        let kind = condition.field("type");
        check::required_text(&kind, "", errors);
        let state = condition.field("status");
        match kind.text() {
            "Approved" | "Denied" | "Failed" => check::one_of(&state, &["True"], errors),
            _ => check::one_of(&state, &["False", "True", "Unknown"], errors),
        }
        if !seen.add(kind.text()) && !repeats {
            errors.duplicate(&kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn messages(more: Value) -> Vec<String> {
        let pem = "-----BEGIN CERTIFICATE REQUEST-----\nAA==\n-----END CERTIFICATE REQUEST-----\n";
        let pem = base64::engine::general_purpose::STANDARD.encode(pem);
        let mut request = json!({"spec": {"request": pem, "usages": ["client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client"}});
        api::patch::merge_into(&mut request["spec"], &more);
        let mut errors = Errors::default();
        validate(&At::root(&request), &mut errors);
        errors.iter().map(|error| format!("{} {}", error.field, error.wrong.reason())).collect()
    }

    #[test]
    fn a_92_invalid_requests_are_rejected() {
        assert!(messages(json!({})).is_empty());
        for (more, expected) in [
            (json!({"request": "AAAA"}), "spec.request FieldValueInvalid"),
            (json!({"usages": []}), "spec.usages FieldValueRequired"),
            (json!({"usages": ["fun"]}), "spec.usages[0] FieldValueNotSupported"),
            (json!({"signerName": "x"}), "spec.signerName FieldValueInvalid"),
            (json!({"expirationSeconds": 5}), "spec.expirationSeconds FieldValueInvalid"),
        ] {
            assert_eq!(messages(more.clone()), [expected], "{more}");
        }
    }

    #[test]
    fn a_77_the_spec_of_a_request_is_immutable() {
        let old = json!({"spec": {"signerName": "a"}});
        let mut new = json!({"spec": {"signerName": "b"}});
        (rules("CertificateSigningRequest").prepare_update)(&mut new, &old);
        assert_eq!(new, old);
    }
    /// How conditions may change through `/status` and through `/approval`.
    #[test]
    fn a_90_only_approval_decides_and_decisions_are_final() {
        let request = |conditions: &[&str], certificate: &str| {
            let all = conditions.iter().map(|kind| json!({"type": kind, "status": "True"}));
            json!({"status": {"conditions": all.collect::<Vec<_>>(), "certificate": certificate}})
        };
        let check = |old: &Value, new: &Value| {
            let (old, new) = (At::root(old), At::root(new));
            let (mut status, mut approval) = (Errors::default(), Errors::default());
            (rules("CertificateSigningRequest").validate_status_update)(&new, &old, &mut status);
            validate_approval_update(&new, &old, &mut approval);
            [status, approval].map(|errors| {
                errors.iter().map(|error| error.message.clone()).collect::<Vec<_>>().join("; ")
            })
        };
        let remove =
            |kind: &str| format!("Forbidden: updates may not remove a condition of type {kind:?}");
        let add =
            |kind: &str| format!("Forbidden: updates may not add a condition of type {kind:?}");
        let none = String::new;
        let cases = [
            (request(&[], ""), request(&["Approved"], ""), [add("Approved"), none()]),
            (request(&["Approved"], ""), request(&["Approved", "Failed"], ""), [none(), none()]),
            (
                request(&["Approved"], ""),
                request(&[], ""),
                [remove("Approved"), remove("Approved")],
            ),
            (request(&["Denied"], ""), request(&[], ""), [remove("Denied"), remove("Denied")]),
            (request(&["Failed"], ""), request(&[], ""), [remove("Failed"), remove("Failed")]),
            (request(&[], ""), request(&[], "new"), [none(), none()]),
            (
                request(&[], "old"),
                request(&[], "new"),
                ["Forbidden: updates may not modify existing certificate content".into(), none()],
            ),
        ];
        for (old, new, expected) in cases {
            assert_eq!(check(&old, &new), expected, "{old} {new}");
        }
    }
}
