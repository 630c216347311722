//! LimitRanger: limits and defaults for the resources of containers and claims in a namespace.

use super::refuse;
use crate::object::Stored;
use crate::request::call::Call;
use crate::response::error::Result;
use api::pod::json::{amounts, containers, total};
use api::pod::resources::{Amounts, Side};
use api::quantity::Quantity;
use api::value::ValueExt;
use serde_json::Value;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The LimitRanges of the call's namespace. Usually there are none.
fn ranges(call: &Call) -> Vec<Value> {
    let (_, ranges) =
        call.store().list("limitranges", &format!("{}/", call.target.namespace), None);
    ranges.iter().map(|range| range.value()).collect()
}

pub(super) fn default_pod(call: &Call, pod: &mut Value) {
    for range in ranges(call) {
        add_defaults(&range, pod);
    }
}

pub(super) fn check_pod(call: &Call, pod: &Value) -> Result<()> {
    check(call, pod, pod_problems)
}

pub(super) fn check_claim(call: &Call, claim: &Value) -> Result<()> {
    check(call, claim, claim_problems)
}

fn check(call: &Call, object: &Value, problems: fn(&Value, &Value) -> Vec<String>) -> Result<()> {
    if object.at(&["metadata", "deletionTimestamp"]).is_some() {
        return Ok(());
    }
    for range in ranges(call) {
        let problems = problems(&range, object);
        match problems.as_slice() {
            [] => {}
            [one] => return Err(refuse(call, object, one)),
            many => return Err(refuse(call, object, format!("[{}]", many.join(", ")))),
        }
    }
    Ok(())
}

fn limits_of<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let limits = range.at(&["spec", "limits"]).and_then(Value::as_array);
    limits.into_iter().flatten().filter(move |limit| limit.text(&["type"]) == kind)
}

/// Adds default requests and limits, and an annotation that lists them.
fn add_defaults(range: &Value, pod: &mut Value) {
    let (mut requests, mut limits) = (serde_json::Map::new(), serde_json::Map::new());
    for limit in limits_of(range, "Container") {
        for (field, into) in [("defaultRequest", &mut requests), ("default", &mut limits)] {
            if let Some(Value::Object(given)) = limit.get(field) {
                into.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        return;
    }
    let mut notes = Vec::new();
    for (list, called) in [("containers", "container"), ("initContainers", "init container")] {
        for container in pod.object("spec").list_mut(list) {
            let name = container.text(&["name"]).to_owned();
            for (field, word, given) in
                [("requests", "request", &requests), ("limits", "limit", &limits)]
            {
                let set = fill(container, field, given);
                if !set.is_empty() {
                    notes.push(format!("{} {word} for {called} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod.object("metadata").object("annotations")[ANNOTATION] = note.into();
    }
}

/// Adds missing values and returns their names.
fn fill<'a>(
    container: &mut Value,
    field: &str,
    given: &'a serde_json::Map<String, Value>,
) -> Vec<&'a str> {
    if given.is_empty() {
        return Vec::new();
    }
    let list = container.object("resources").object(field).map();
    let missing: Vec<_> = given.iter().filter(|(name, _)| !list.contains_key(*name)).collect();
    for (name, value) in &missing {
        list.insert((*name).clone(), (*value).clone());
    }
    missing.into_iter().map(|(name, _)| name.as_str()).collect()
}

fn pod_problems(range: &Value, pod: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for limit in limits_of(range, "Container") {
        for container in ["containers", "initContainers"]
            .into_iter()
            .flat_map(|list| pod.get("spec").into_iter().flat_map(move |s| containers(s, list)))
        {
            let requests = amounts(container.at(&["resources", "requests"]));
            let limits = amounts(container.at(&["resources", "limits"]));
            Bounds { kind: "Container", limit }.check(&requests, &limits, &mut problems);
        }
    }
    for limit in limits_of(range, "Pod") {
        let (requests, limits) = (total(pod, Side::Requests), total(pod, Side::Limits));
        Bounds { kind: "Pod", limit }.check(&requests, &limits, &mut problems);
    }
    once_each(problems)
}

fn claim_problems(range: &Value, claim: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let requests = amounts(claim.at(&["spec", "resources", "requests"]));
    for limit in limits_of(range, "PersistentVolumeClaim") {
        let bounds = Bounds { kind: "PersistentVolumeClaim", limit };
        for (name, least) in amounts(limit.get("min")) {
            problems.extend(bounds.minimum(&name, least, &requests, &Amounts::new()));
        }
        // A claim has no limit, so the request is compared.
        for (name, most) in amounts(limit.get("max")) {
            let message = format!("maximum {name} usage per {} is {most}", bounds.kind);
            match requests.get(&name) {
                None => problems.push(format!("{message}. No request is specified")),
                Some(request) if *request > most => {
                    problems.push(format!("{message}, but request is {request}"));
                }
                Some(_) => {}
            }
        }
    }
    once_each(problems)
}

fn once_each(mut problems: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    problems.retain(|problem| seen.insert(problem.clone()));
    problems
}

/// One entry of a LimitRange.
struct Bounds<'a> {
    kind: &'static str,
    limit: &'a Value,
}

impl Bounds<'_> {
    fn check(&self, requests: &Amounts, limits: &Amounts, problems: &mut Vec<String>) {
        for (name, least) in amounts(self.limit.get("min")) {
            problems.extend(self.minimum(&name, least, requests, limits));
        }
        for (name, most) in amounts(self.limit.get("max")) {
            problems.extend(self.maximum(&name, most, requests, limits));
        }
        for (name, most) in amounts(self.limit.get("maxLimitRequestRatio")) {
            problems.extend(self.ratio(&name, most, requests, limits));
        }
    }

    fn minimum(
        &self,
        name: &str,
        least: Quantity,
        requests: &Amounts,
        limits: &Amounts,
    ) -> Option<String> {
        let message = format!("minimum {name} usage per {} is {least}", self.kind);
        match (requests.get(name), limits.get(name)) {
            (None, _) => Some(format!("{message}. No request is specified")),
            (Some(request), _) if *request < least => {
                Some(format!("{message}, but request is {request}"))
            }
            (_, Some(limit)) if *limit < least => Some(format!("{message}, but limit is {limit}")),
            _ => None,
        }
    }

    fn maximum(
        &self,
        name: &str,
        most: Quantity,
        requests: &Amounts,
        limits: &Amounts,
    ) -> Option<String> {
        let message = format!("maximum {name} usage per {} is {most}", self.kind);
        match (limits.get(name), requests.get(name)) {
            (None, _) => Some(format!("{message}. No limit is specified")),
            (Some(limit), _) if *limit > most => Some(format!("{message}, but limit is {limit}")),
            (_, Some(request)) if *request > most => {
                Some(format!("{message}, but request is {request}"))
            }
            _ => None,
        }
    }

    fn ratio(
        &self,
        name: &str,
        most: Quantity,
        requests: &Amounts,
        limits: &Amounts,
    ) -> Option<String> {
        let message = format!("{name} max limit to request ratio per {} is {most}", self.kind);
        let set = |list: &Amounts| list.get(name).copied().filter(|amount| !amount.is_zero());
        let Some(request) = set(requests) else {
            return Some(format!("{message}, but no request is specified or request is 0"));
        };
        let Some(limit) = set(limits) else {
            return Some(format!("{message}, but no limit is specified or limit is 0"));
        };
        let ratio = thousandths(limit) / thousandths(request);
        (ratio * 1000.0 > thousandths(most))
            .then(|| format!("{message}, but provided ratio is {ratio:.6}"))
    }
}

/// As upstream, ratios are compared in floating point.
fn thousandths(amount: Quantity) -> f64 {
    amount.milli_value() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn range(limit: Value) -> Value {
        json!({"spec": {"limits": [limit]}})
    }

    fn pod(resources: Value) -> Value {
        json!({"spec": {"containers": [{"name": "app", "resources": resources}]}})
    }

    #[test]
    fn a_154_limit_ranger_adds_missing_requests_and_limits() {
        let range = range(json!({
            "type": "Container",
            "default": {"cpu": "500m", "memory": "1Gi"},
            "defaultRequest": {"cpu": "100m", "memory": "256Mi"},
        }));
        let mut pod = pod(json!({"requests": {"cpu": "200m"}}));
        add_defaults(&range, &mut pod);
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({
                "requests": {"cpu": "200m", "memory": "256Mi"},
                "limits": {"cpu": "500m", "memory": "1Gi"},
            })
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: memory request for container app; cpu, memory limit for container app"
        );
    }

    #[test]
    fn a_154_limit_ranger_reports_which_bound_is_violated() {
        let max = json!({"type": "Container", "max": {"cpu": "1"}});
        let min = json!({"type": "Container", "min": {"cpu": "100m"}});
        let ratio = json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}});
        let whole = json!({"type": "Pod", "max": {"cpu": "1"}});
        for (limit, resources, message) in [
            (&max, json!({"limits": {"cpu": "1"}}), None),
            (&max, json!({}), Some("maximum cpu usage per Container is 1. No limit is specified")),
            (
                &max,
                json!({"limits": {"cpu": "2"}}),
                Some("maximum cpu usage per Container is 1, but limit is 2"),
            ),
            (
                &min,
                json!({"requests": {"cpu": "50m"}}),
                Some("minimum cpu usage per Container is 100m, but request is 50m"),
            ),
            (
                &min,
                json!({}),
                Some("minimum cpu usage per Container is 100m. No request is specified"),
            ),
            (
                &ratio,
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}),
                Some(
                    "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
                ),
            ),
            (
                &whole,
                json!({"limits": {"cpu": "1500m"}}),
                Some("maximum cpu usage per Pod is 1, but limit is 1500m"),
            ),
        ] {
            let problems = pod_problems(&range(limit.clone()), &pod(resources.clone()));
            assert_eq!(problems.first().map(String::as_str), message, "{limit} {resources}");
        }
    }

    #[test]
    fn a_154_the_request_of_a_claim_is_compared() {
        let range = range(
            json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "10Gi"}}),
        );
        let claim = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        assert_eq!(claim_problems(&range, &claim("2Gi")), Vec::<String>::new());
        assert_eq!(
            claim_problems(&range, &claim("11Gi")),
            ["maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 11Gi"]
        );
        assert_eq!(
            claim_problems(&range, &claim("1Mi")),
            ["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"]
        );
    }
}
