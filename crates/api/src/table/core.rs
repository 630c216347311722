//! Kinds with few columns: namespaces, configuration, leases and others.

use super::column::{AGE, NAME, Printed, text};
use super::subject::Subject;
use crate::value::ValueExt as _;

pub(super) const NAMESPACE: &[Printed] = &[
    NAME,
    text("Status", "Whether it is in use or going away.", |o| o.text("status.phase").into()),
    AGE,
];

pub(super) const CONFIG_MAP: &[Printed] = &[
    NAME,
    text("Data", "How many entries it has.", |o| (o.count("data") + o.count("binaryData")).into()),
    AGE,
];

pub(super) const SECRET: &[Printed] = &[
    NAME,
    text("Type", "What the secret is for.", |o| o.text("type").into()),
    text("Data", "How many entries it has.", |o| o.count("data").into()),
    AGE,
];

pub(super) const LEASE: &[Printed] =
    &[NAME, text("Holder", "Who holds it.", |o| o.text("spec.holderIdentity").into()), AGE];

pub(super) const RUNTIME_CLASS: &[Printed] = &[
    NAME,
    text("Handler", "What runs the pods of this class.", |o| o.text("handler").into()),
    AGE,
];

pub(super) const COMPONENT_STATUS: &[Printed] = &[
    NAME,
    text("Status", "Whether the component is healthy.", |o| match healthy(o, "status") {
        "True" => "Healthy".into(),
        "False" => "Unhealthy".into(),
        _ => "Unknown".into(),
    }),
    text("Message", "What it detail.", |o| healthy(o, "message").into()),
    text("Error", "What went wrong when it was asked.", |o| healthy(o, "error").into()),
];

fn healthy<'v>(o: &Subject<'v>, field: &str) -> &'v str {
    let conditions = o.list("conditions");
    let healthy = conditions.iter().find(|condition| condition["type"] == "Healthy");
    healthy.map_or("", |condition| condition.text(&[field]))
}

pub(super) const API_SERVICE: &[Printed] = &[
    NAME,
    text("Service", "Who serves it.", |o| match o.get("spec.service") {
        Some(service) => {
            format!("{}/{}", service.text(&["namespace"]), service.text(&["name"])).into()
        }
        None => "Local".into(),
    }),
    text("Available", "Whether it can be reached.", |o| available(o).into()),
    AGE,
];

fn available(o: &Subject) -> String {
    match o.condition("Available") {
        None => "Unknown".to_owned(),
        Some(condition) => match condition.text(&["status"]) {
            "True" => "True".to_owned(),
            other => format!("{other} ({})", condition.text(&["reason"])),
        },
    }
}
