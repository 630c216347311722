//! Autoscalers: version 2 is stored; version 1 keeps in annotations what it has no fields for.

use crate::autoscaling::{default_behavior, default_metrics};
use api::value::ValueExt;
use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";

pub(crate) fn is_version_1(scaler: &Value) -> bool {
    scaler.text(&["apiVersion"]) == "autoscaling/v1"
}

pub(crate) fn to_version_2(old: &Value) -> Value {
    let mut scaler = old.clone();
    scaler.map().insert("apiVersion".into(), json!("autoscaling/v2"));
    let mut metrics = list(taken(&mut scaler, METRICS), metric_to_2);
    let behavior = taken(&mut scaler, BEHAVIOR);
    let conditions = taken(&mut scaler, CONDITIONS);
    let current = list(taken(&mut scaler, CURRENT_METRICS), status_to_2);
    let spec = scaler.object("spec");
    if let Some(percent) = spec.remove("targetCPUUtilizationPercentage").filter(|v| !v.is_null()) {
        let target = json!({"type": "Utilization", "averageUtilization": percent});
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
    }
    if !metrics.is_empty() {
        spec.map().insert("metrics".into(), Value::Array(metrics));
    }
    default_metrics(spec);
    if let Some(behavior) = behavior.filter(Value::is_object) {
        spec.map().insert("behavior".into(), behavior);
        default_behavior(spec.object("behavior"));
    }
    let status = scaler.object("status");
    if let Some(conditions) = conditions.filter(Value::is_array) {
        status.map().insert("conditions".into(), conditions);
    }
    let mut all = Vec::new();
    if let Some(percent) = status.remove("currentCPUUtilizationPercentage").filter(|v| !v.is_null())
    {
        let current = json!({"averageUtilization": percent});
        all.push(json!({"type": "Resource", "resource": {"name": "cpu", "current": current}}));
    }
    all.extend(current);
    if all.is_empty() {
        status.set_default("currentMetrics", Value::Null);
    } else {
        status.map().insert("currentMetrics".into(), Value::Array(all));
    }
    status.set_default("desiredReplicas", 0);
    // Version 1 always has this counter, version 2 only if it is not zero.
    if status.at(&["currentReplicas"]) == Some(&json!(0)) {
        status.remove("currentReplicas");
    }
    scaler
}

pub(crate) fn to_version_1(stored: &Value) -> Value {
    let mut scaler = stored.clone();
    scaler.map().insert("apiVersion".into(), json!("autoscaling/v1"));
    let spec = scaler.object("spec");
    let mut metrics = elements(spec.remove("metrics"));
    let behavior = spec.remove("behavior").filter(|behavior| !behavior.is_null());
    let of_cpu = |place: &str, metric: &Value| {
        let value = metric.at(&["resource", place, "averageUtilization"])?.clone();
        (metric.text(&["type"]) == "Resource" && metric.text(&["resource", "name"]) == "cpu")
            .then_some(value)
    };
    if let Some(place) = metrics.iter().position(|metric| of_cpu("target", metric).is_some()) {
        let metric = metrics.remove(place);
        let percent = of_cpu("target", &metric).unwrap_or_default();
        spec.map().insert("targetCPUUtilizationPercentage".into(), percent);
    }
    let status = scaler.object("status");
    let conditions = elements(status.remove("conditions"));
    let current = elements(status.remove("currentMetrics"));
    if let Some(percent) = current.iter().find_map(|metric| of_cpu("current", metric)) {
        status.map().insert("currentCPUUtilizationPercentage".into(), percent);
    }
    status.set_default("currentReplicas", 0);
    status.set_default("desiredReplicas", 0);
    keep(&mut scaler, METRICS, &metrics.iter().map(metric_to_1).collect::<Vec<_>>());
    keep(&mut scaler, CONDITIONS, &conditions);
    keep(&mut scaler, CURRENT_METRICS, &current.iter().map(status_to_1).collect::<Vec<_>>());
    if let Some(behavior) = behavior {
        annotate(&mut scaler, BEHAVIOR, behavior.to_string());
    }
    scaler
}

fn elements(list: Option<Value>) -> Vec<Value> {
    match list {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

fn list(value: Option<Value>, convert: fn(&Value) -> Value) -> Vec<Value> {
    elements(value).iter().map(convert).collect()
}

fn keep(scaler: &mut Value, key: &str, list: &[Value]) {
    if !list.is_empty() {
        annotate(scaler, key, json!(list).to_string());
    }
}

fn annotate(scaler: &mut Value, key: &str, value: String) {
    scaler.object("metadata").object("annotations").map().insert(key.into(), value.into());
}

/// Removes an annotation and parses it; malformed JSON is dropped, as in upstream.
fn taken(scaler: &mut Value, key: &str) -> Option<Value> {
    let annotations = scaler.get_mut("metadata")?.get_mut("annotations")?;
    let text = annotations.remove(key)?;
    if annotations.as_object().is_some_and(Map::is_empty) {
        scaler.object("metadata").remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok()
}

/// The path of a field in version 2, and its name in version 1. `@` is `target` in the spec, and `current` in the
/// status.
type Move = (&'static str, &'static str);

/// The fields of a metric, by its source.
fn moves(source: &str) -> &'static [Move] {
    match source {
        "Resource" | "ContainerResource" => &[
            ("name", "name"),
            ("container", "container"),
            ("@.averageUtilization", "@AverageUtilization"),
            ("@.averageValue", "@AverageValue"),
        ],
        "Pods" => &[
            ("metric.name", "metricName"),
            ("metric.selector", "selector"),
            ("@.averageValue", "@AverageValue"),
        ],
        "Object" => &[
            ("describedObject", "target"),
            ("metric.name", "metricName"),
            ("metric.selector", "selector"),
            ("@.value", "@Value"),
            ("@.averageValue", "averageValue"),
        ],
        _ => &[
            ("metric.name", "metricName"),
            ("metric.selector", "metricSelector"),
            ("@.value", "@Value"),
            ("@.averageValue", "@AverageValue"),
        ],
    }
}

fn metric_to_1(metric: &Value) -> Value {
    moved(metric, "target", |(new, old)| (new, old))
}

fn status_to_1(metric: &Value) -> Value {
    moved(metric, "current", |(new, old)| (new, old))
}

fn status_to_2(metric: &Value) -> Value {
    moved(metric, "current", |(new, old)| (old, new))
}

fn metric_to_2(metric: &Value) -> Value {
    let mut converted = moved(metric, "target", |(new, old)| (old, new));
    let field = source_field(metric.text(&["type"]));
    let target = converted.object(&field).object("target");
    let kind = if target.get("averageUtilization").is_some() {
        "Utilization"
    } else if target.get("averageValue").is_some() {
        "AverageValue"
    } else {
        "Value"
    };
    target.set_default("type", kind);
    converted
}

/// Moves the fields of a metric of the spec (`target`) or the status (`current`).
fn moved(metric: &Value, values: &str, direction: fn(Move) -> Move) -> Value {
    let source = metric.text(&["type"]);
    let field = source_field(source);
    let mut parts = json!({});
    for step in moves(source) {
        let (from, to) = direction(*step);
        let (from, to) = (from.replace('@', values), to.replace('@', values));
        let whole: Vec<&str> = [field.as_str()].into_iter().chain(from.split('.')).collect();
        if let Some(value) = metric.at(&whole) {
            let to: Vec<&str> = to.split('.').collect();
            put(&mut parts, &to, value.clone());
        }
    }
    json!({"type": source, field: parts})
}

fn put(object: &mut Value, path: &[&str], value: Value) {
    if let [parents @ .., last] = path {
        let parent = parents.iter().fold(object, |object, name| object.object(name));
        parent.map().insert((*last).into(), value);
    }
}

/// `ContainerResource` is in `containerResource`.
fn source_field(source: &str) -> String {
    let mut letters = source.chars();
    letters
        .next()
        .map_or(String::new(), |first| first.to_ascii_lowercase().to_string() + letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_201_version_1_keeps_other_metrics_in_annotations() {
        let stored = json!({
            "apiVersion": "autoscaling/v2", "metadata": {"name": "h"},
            "spec": {"minReplicas": 1, "maxReplicas": 3,
                "scaleTargetRef": {"kind": "Deployment", "name": "d"},
                "metrics": [
                    {"type": "Pods", "pods": {"metric": {"name": "hits"},
                        "target": {"type": "AverageValue", "averageValue": "10"}}},
                    {"type": "Resource", "resource": {"name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 70}}},
                ]},
            "status": {"desiredReplicas": 2, "currentMetrics": [
                {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 30}}}]},
        });
        let old = to_version_1(&stored);
        assert_eq!(old["spec"]["targetCPUUtilizationPercentage"], 70);
        assert_eq!(old["status"]["currentCPUUtilizationPercentage"], 30);
        assert_eq!(old["spec"].get("metrics"), None);
        let kept = old["metadata"]["annotations"][METRICS].as_str().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(kept).unwrap(),
            json!([{"type": "Pods", "pods": {"metricName": "hits", "targetAverageValue": "10"}}])
        );
        let again = to_version_2(&old);
        assert_eq!(again["spec"], stored["spec"]);
        assert_eq!(again["metadata"], stored["metadata"]);
    }

    #[test]
    fn a_201_a_plain_version_1_gets_version_2s_metric() {
        let old = json!({"apiVersion": "autoscaling/v1", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}});
        let new = to_version_2(&old);
        assert_eq!(
            new["spec"]["metrics"][0]["resource"]["target"],
            json!({"type": "Utilization", "averageUtilization": 50})
        );
        assert_eq!(to_version_1(&new)["spec"], old["spec"]);
    }
}
