//! Access control: role bindings, webhooks, admission policies, certificate requests.

use super::column::{AGE, NAME, Printed, integer, text};
use super::duration;
use super::subject::{NONE, Subject, UNSET, join};
use crate::value::ValueExt as _;
use jiff::SignedDuration;

pub(super) const ROLE_BINDING: &[Printed] = &[
    NAME,
    text("Role", "What is granted.", |o| {
        format!("{}/{}", o.text("roleRef.kind"), o.text("roleRef.name")).into()
    }),
    AGE,
    text("Users", "The users it is granted to.", |o| subjects(o, "User").into()).wide(),
    text("Groups", "The groups it is granted to.", |o| subjects(o, "Group").into()).wide(),
    text("ServiceAccounts", "The service accounts it is granted to.", |o| {
        subjects(o, "ServiceAccount").into()
    })
    .wide(),
];

fn subjects(o: &Subject, kind: &str) -> String {
    let subjects = o.list("subjects").iter().filter(|subject| subject["kind"] == kind);
    join(
        subjects.map(|subject| match kind {
            "ServiceAccount" => {
                format!("{}/{}", subject.text(&["namespace"]), subject.text(&["name"]))
            }
            _ => subject.text(&["name"]).to_owned(),
        }),
        ", ",
    )
}

pub(super) const WEBHOOKS: &[Printed] =
    &[NAME, integer("Webhooks", "How many webhooks it has.", |o| o.count("webhooks").into()), AGE];

const PARAM_KIND: Printed =
    text("ParamKind", "What its parameters are.", |o| match o.get("spec.paramKind") {
        Some(kind) => format!("{}/{}", kind.text(&["apiVersion"]), kind.text(&["kind"])).into(),
        None => UNSET.into(),
    });

pub(super) const VALIDATING_POLICY: &[Printed] = &[
    NAME,
    integer("Validations", "How many validations it has.", |o| o.count("spec.validations").into()),
    PARAM_KIND,
    AGE,
];

pub(super) const MUTATING_POLICY: &[Printed] = &[
    NAME,
    integer("Mutations", "How many mutations it has.", |o| o.count("spec.mutations").into()),
    PARAM_KIND,
    AGE,
];

pub(super) const POLICY_BINDING: &[Printed] = &[
    NAME,
    text("PolicyName", "Which policy it puts to use.", |o| o.text("spec.policyName").into()),
    text("ParamRef", "With which parameters.", |o| param_ref(o).into()),
    AGE,
];

fn param_ref(o: &Subject) -> String {
    let Some(param) = o.get("spec.paramRef") else {
        return UNSET.to_owned();
    };
    match (param.text(&["namespace"]), param.text(&["name"])) {
        ("", "") => o.selector("spec.paramRef.selector"),
        ("", name) => name.to_owned(),
        (namespace, "") => format!("{namespace}/*"),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

pub(super) const SIGNING_REQUEST: &[Printed] = &[
    NAME,
    AGE,
    text("SignerName", "Who is asked to sign.", |o| o.text_or("spec.signerName", NONE).into()),
    text("Requestor", "Who asked.", |o| o.text("spec.username").into()),
    text("RequestedDuration", "For how long.", |o| match o.get("spec.expirationSeconds") {
        Some(_) => {
            duration::human(SignedDuration::from_secs(o.int("spec.expirationSeconds"))).into()
        }
        None => NONE.into(),
    }),
    text("Condition", "What became of it.", |o| signing_status(o).into()),
];

fn signing_status(o: &Subject) -> String {
    // A condition counts whatever its status is, as in upstream.
    let mut status = match () {
        () if o.condition("Denied").is_some() => "Denied",
        () if o.condition("Approved").is_some() => "Approved",
        () => "Pending",
    }
    .to_owned();
    if o.condition("Failed").is_some() {
        status.push_str(",Failed");
    }
    if !o.text("status.certificate").is_empty() {
        status.push_str(",Issued");
    }
    status
}
