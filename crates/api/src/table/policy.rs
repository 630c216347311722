//! Limits and priorities: budgets, quotas, classes and flow control.

use super::column::{AGE, NAME, Printed, boolean, integer, text};
use super::subject::{NONE, Subject, join, plain};
use crate::value::ValueExt as _;
use serde_json::Value;

pub(super) const POD_DISRUPTION_BUDGET: &[Printed] = &[
    NAME,
    text("Min Available", "How many pods must stay.", |o| {
        o.get("spec.minAvailable").map_or_else(|| "N/A".to_owned(), plain).into()
    }),
    text("Max Unavailable", "How many pods may be missing.", |o| {
        o.get("spec.maxUnavailable").map_or_else(|| "N/A".to_owned(), plain).into()
    }),
    integer("Allowed Disruptions", "How many pods may be evicted now.", |o| {
        o.int("status.disruptionsAllowed").into()
    }),
    AGE,
];

pub(super) const RESOURCE_QUOTA: &[Printed] = &[
    NAME,
    text("Request", "What is used of what may be requested.", |o| quota(o, false).into()),
    text("Limit", "What is used of what may be set as a limit.", |o| quota(o, true).into()),
    AGE,
];

/// `pods: 1/10, requests.cpu: 500m/2`; limits have their own column.
fn quota(o: &Subject, limits: bool) -> String {
    let hard = o.get("status.hard").and_then(Value::as_object).into_iter().flatten();
    let mine = hard.filter(|(resource, _)| resource.starts_with("limits.") == limits);
    let used = |resource: &str| {
        o.object.at(&["status", "used", resource]).map_or_else(|| "0".to_owned(), plain)
    };
    join(mine.map(|(name, hard)| format!("{name}: {}/{}", used(name), plain(hard))), ", ")
}

pub(super) const PRIORITY_CLASS: &[Printed] = &[
    NAME,
    integer("Value", "The priority of its pods.", |o| o.int("value").into()),
    boolean("Global-Default", "Whether pods without a class get it.", |o| {
        o.flag("globalDefault").into()
    }),
    AGE,
    text("PreemptionPolicy", "Whether its pods may displace others.", |o| {
        o.text_or("preemptionPolicy", "PreemptLowerPriority").into()
    }),
];

pub(super) const FLOW_SCHEMA: &[Printed] = &[
    NAME,
    text("PriorityLevel", "The level its requests go to.", |o| {
        o.text_or("spec.priorityLevelConfiguration.name", NONE).into()
    }),
    text("MatchingPrecedence", "The lower one is asked first.", |o| {
        o.int("spec.matchingPrecedence").into()
    }),
    text("DistinguisherMethod", "What makes two flows different.", |o| {
        o.text_or("spec.distinguisherMethod.type", NONE).into()
    }),
    AGE,
    text("MissingPL", "Whether that level does not exist.", |o| {
        o.condition("Dangling").map_or("?", |condition| condition.text(&["status"])).into()
    }),
];

const QUEUING: &str = "spec.limited.limitResponse.queuing";

pub(super) const PRIORITY_LEVEL: &[Printed] = &[
    NAME,
    text("Type", "Whether it is limited.", |o| o.text("spec.type").into()),
    text("NominalConcurrencyShares", "Its share of the server.", |o| {
        let exempt = o.text("spec.type") == "Exempt";
        let part = if exempt { "spec.exempt" } else { "spec.limited" };
        number(o, &format!("{part}.nominalConcurrencyShares"))
    }),
    text("Queues", "How many queues it has.", |o| number(o, &format!("{QUEUING}.queues"))),
    text("HandSize", "How many queues a flow chooses from.", |o| {
        number(o, &format!("{QUEUING}.handSize"))
    }),
    text("QueueLengthLimit", "How long a queue may grow.", |o| {
        number(o, &format!("{QUEUING}.queueLengthLimit"))
    }),
    AGE,
];

fn number(o: &Subject, path: &str) -> Value {
    o.get(path).cloned().unwrap_or_else(|| NONE.into())
}
