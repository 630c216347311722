//! Autoscalers in both versions: v1 has only CPU utilization.

use super::column::{AGE, NAME, Printed, text};
use super::subject::{NONE, Subject, UNKNOWN, UNSET, join_first, plain};
use crate::value::ValueExt as _;
use serde_json::Value;

/// A cell lists this many metrics, then the number of further ones.
const SHOWN: usize = 2;

pub(super) const HORIZONTAL_POD_AUTOSCALER: &[Printed] = &[
    NAME,
    text("Reference", "What it scales.", |o| {
        let target = |field| o.text(field);
        format!("{}/{}", target("spec.scaleTargetRef.kind"), target("spec.scaleTargetRef.name"))
            .into()
    }),
    text("Targets", "Each metric's value and the value aimed at.", |o| targets(o).into()),
    text("MinPods", "The fewest pods it goes down to.", |o| {
        o.get("spec.minReplicas").map_or_else(|| UNSET.to_owned(), plain).into()
    }),
    text("MaxPods", "The most pods it goes up to.", |o| o.int("spec.maxReplicas").into()),
    text("Replicas", "How many pods there are.", |o| o.int("status.currentReplicas").into()),
    AGE,
];

fn targets(o: &Subject) -> String {
    if let Some(target) = o.get("spec.targetCPUUtilizationPercentage") {
        let current = o.get("status.currentCPUUtilizationPercentage");
        return format!("cpu: {}/{}%", percent(current), plain(target));
    }
    let specs = o.list("spec.metrics");
    if specs.is_empty() {
        return NONE.to_owned();
    }
    let statuses = o.list("status.currentMetrics");
    let shown: Vec<String> =
        specs.iter().enumerate().map(|(i, spec)| metric(spec, statuses.get(i))).collect();
    join_first(&shown, SHOWN, ", ")
}

/// `cpu: 10%/80%`, `5/10 (avg)`
fn metric(spec: &Value, status: Option<&Value>) -> String {
    let (field, named) = match spec.text(&["type"]) {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let target = |kind| spec.at(&[field, "target", kind]);
    let current = |kind| status.and_then(|status| status.at(&[field, "current", kind]));
    let shown = |kind| current(kind).map_or_else(|| UNKNOWN.to_owned(), plain);
    let name = spec.text(&[field, "name"]);
    match target("averageValue") {
        Some(average) if named => {
            format!("{name}: {}/{}", shown("averageValue"), plain(average))
        }
        Some(average) => {
            let mark = if field == "pods" { "" } else { " (avg)" };
            format!("{}/{}{mark}", shown("averageValue"), plain(average))
        }
        None if named => {
            let aim = target("averageUtilization");
            let aim = aim.map_or_else(|| "<auto>".to_owned(), |aim| format!("{}%", plain(aim)));
            format!("{name}: {}/{aim}", percent(current("averageUtilization")))
        }
        None => {
            let value = target("value").map_or_else(|| "0".to_owned(), plain);
            format!("{}/{value}", shown("value"))
        }
    }
}

fn percent(value: Option<&Value>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{}%", plain(value)))
}
