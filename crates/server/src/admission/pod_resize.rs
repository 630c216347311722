//! PodResize: a pod must not request more than its node's allocatable resources (N-117).

use super::refuse;
use crate::object::Stored;
use crate::request::call::Call;
use crate::response::error::{ApiError, Result};
use api::pod::json::{amounts, total_with_overhead};
use api::pod::resources::Side;
use api::quantity::Quantity;
use api::status::Cause;
use api::value::ValueExt;
use serde_json::Value;

pub(super) fn check(call: &Call, pod: &Value) -> Result<()> {
    let name = pod.text(&["spec", "nodeName"]);
    let Some(node) = call.store().get("nodes", name).filter(|_| !name.is_empty()) else {
        return Ok(());
    };
    let node = node.value();
    let Some(why) = exceeded(pod, &node) else { return Ok(()) };
    let mut refused = refuse(call, pod, &why);
    if let ApiError::Forbidden { causes, .. } = &mut refused {
        let cause = Cause { reason: "NodeCapacity".into(), message: why, field: String::new() };
        causes.push(cause);
    }
    Err(refused)
}

fn exceeded(pod: &Value, node: &Value) -> Option<String> {
    let allocatable = amounts(node.at(&["status", "allocatable"]));
    let mut requests = total_with_overhead(pod, Side::Requests);
    requests.extend(amounts(pod.at(&["spec", "resources", "requests"])));
    let mut short = ["cpu", "memory"].into_iter().filter_map(|name| {
        let units = |amount: &Quantity| match name {
            "cpu" => amount.milli_value(),
            _ => amount.value(),
        };
        let (requested, available) = (units(requests.get(name)?), units(allocatable.get(name)?));
        (requested > available).then(|| {
            format!(
                "node didn't have enough allocatable resources: {name}, requested: {requested}, allocatable: {available}"
            )
        })
    });
    short.next()
}
