//! Nodes.

use super::column::{AGE, NAME, Printed, text};
use super::subject::{NONE, Subject, UNKNOWN, join, or};
use crate::value::ValueExt as _;
use serde_json::Value;
use std::collections::BTreeSet;

pub(super) const NODE: &[Printed] = &[
    NAME,
    text("Status", "Whether pods can run on it.", |o| status(o).into()),
    text("Roles", "What it is labelled to be for.", |o| roles(o).into()),
    AGE,
    text("Version", "Its agent's version.", |o| o.text("status.nodeInfo.kubeletVersion").into()),
    text("Internal-IP", "Its address inside the cluster.", |o| address(o, "InternalIP").into())
        .wide(),
    text("External-IP", "Its address for the outside.", |o| address(o, "ExternalIP").into()).wide(),
    text("OS-Image", "Its operating system.", |o| {
        o.text_or("status.nodeInfo.osImage", UNKNOWN).into()
    })
    .wide(),
    text("Kernel-Version", "Its kernel, and for which processor.", |o| kernel(o).into()).wide(),
    text("Container-Runtime", "What runs its containers.", |o| {
        o.text_or("status.nodeInfo.containerRuntimeVersion", UNKNOWN).into()
    })
    .wide(),
];

fn status(o: &Subject) -> String {
    let ready = match o.condition("Ready") {
        None => "Unknown",
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
    };
    let disabled = if o.flag("spec.unschedulable") { ",SchedulingDisabled" } else { "" };
    format!("{ready}{disabled}")
}

fn roles(o: &Subject) -> String {
    let labels = o.get("metadata.labels").and_then(Value::as_object).into_iter().flatten();
    let roles: BTreeSet<&str> = labels
        .filter_map(|(key, value)| match key.as_str() {
            "kubernetes.io/role" => value.as_str(),
            key => key.strip_prefix("node-role.kubernetes.io/"),
        })
        .filter(|role| !role.is_empty())
        .collect();
    or(&join(roles, ","), NONE).to_owned()
}

fn address<'v>(o: &Subject<'v>, r#type: &str) -> &'v str {
    let addresses = o.list("status.addresses");
    let address = addresses.iter().find(|address| address["type"] == r#type);
    address.map_or(NONE, |address| address.text(&["address"]))
}

fn kernel(o: &Subject) -> String {
    let version = o.text_or("status.nodeInfo.kernelVersion", UNKNOWN);
    match o.text("status.nodeInfo.architecture") {
        "" => version.to_owned(),
        architecture => format!("{version} ({architecture})"),
    }
}
