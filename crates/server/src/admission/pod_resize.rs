//! PodResize: a pod may not ask for more than its node could ever give (N-117).

use super::refuse;
use crate::call::Call;
use crate::error::{ApiError, Result};
use crate::object::Stored;
use api::quantity::Quantity;
use api::quota::pods::{Side, amounts, total_with_overhead};
use api::status::Cause;
use api::value::ValueExt;
use serde_json::Value;

pub(super) fn check(call: &Call, pod: &Value) -> Result<()> {
    let name = pod.text(&["spec", "nodeName"]);
    let Some(node) = call.store().get("nodes", name).filter(|_| !name.is_empty()) else {
        return Ok(());
    };
    let node = node.value();
    let Some(why) = too_much(pod, &node) else { return Ok(()) };
    let mut refused = refuse(call, pod, &why);
    if let ApiError::Forbidden { causes, .. } = &mut refused {
        let cause = Cause { reason: "NodeCapacity".into(), message: why, field: String::new() };
        causes.push(cause);
    }
    Err(refused)
}

fn too_much(pod: &Value, node: &Value) -> Option<String> {
    let allocatable = amounts(node.at(&["status", "allocatable"]));
    let mut requests = total_with_overhead(pod, Side::Requests);
    requests.extend(amounts(pod.at(&["spec", "resources", "requests"])));
    let mut short = ["cpu", "memory"].into_iter().filter_map(|name| {
        let units = |amount: &Quantity| match name {
            "cpu" => amount.milli_value(),
            _ => amount.value(),
        };
        let (asked, given) = (units(requests.get(name)?), units(allocatable.get(name)?));
        (asked > given).then(|| {
            format!(
                "node didn't have enough allocatable resources: {name}, requested: {asked}, allocatable: {given}"
            )
        })
    });
    short.next()
}
