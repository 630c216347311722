//! The resources that a container status shows: what is applied, spelled as it was requested (N-83).

use crate::resources::amounts;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use std::collections::BTreeMap;

/// The kernel cannot distinguish cpu requests below the first value, nor limits below the second.
const CPU_REQUEST_FLOOR_MILLI: i64 = 2;
const CPU_LIMIT_FLOOR_MILLI: i64 = 10;

/// `actual`: read back from the kernel; none for a container that does not run. Only cpu and memory
/// are read back, the rest is as allocated.
pub(super) fn shown(
    allocated: core::ResourceRequirements,
    actual: Option<core::ResourceRequirements>,
) -> core::ResourceRequirements {
    let Some(actual) = actual else { return allocated };
    core::ResourceRequirements {
        requests: merged(allocated.requests, actual.requests, CPU_REQUEST_FLOOR_MILLI),
        limits: merged(allocated.limits, actual.limits, CPU_LIMIT_FLOOR_MILLI),
        claims: allocated.claims,
    }
}

type List = BTreeMap<String, Text>;

fn merged(allocated: Option<List>, actual: Option<List>, floor: i64) -> Option<List> {
    let mut all = allocated.unwrap_or_default();
    for (name, amount) in actual.unwrap_or_default() {
        let known = amounts(Some(&all)).get(&name).copied();
        let Ok(read) = Quantity::parse(&amount.0) else { continue };
        let below = |amount: &Quantity| amount.milli_value() <= floor;
        let same = known.is_some_and(|known| known == read);
        let indistinct = name == "cpu" && below(&read) && known.as_ref().is_some_and(below);
        if matches!(name.as_str(), "cpu" | "memory") && !same && !indistinct {
            all.insert(name, amount);
        }
    }
    Some(all)
}
