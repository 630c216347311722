//! Warnings about running pods when a namespace becomes stricter; the pods stay.

use super::{Level, Policy};
use crate::object::Stored;
use crate::request::call::{Call, name_of};
use serde_json::Value;
use std::collections::BTreeMap;

/// At most this many pods are checked.
const PODS_MAX: usize = 3000;

pub(super) fn warn(call: &Call, namespace: &Value, old: Policy, new: Policy) {
    let relaxed = new.level < old.level && new.version == old.version;
    if new == old || new.level == Level::Privileged || relaxed {
        return;
    }
    let name = name_of(namespace);
    let (_, pods) = call.store().list("pods", &format!("{name}/"), None);
    let violations = pods.iter().take(PODS_MAX).filter_map(|pod| {
        let value = pod.value();
        let reasons: Vec<String> =
            new.found(&value).into_iter().map(|found| found.reason).collect();
        (!reasons.is_empty()).then(|| (name_of(&value).to_owned(), reasons.join(", ")))
    });
    let lines = lines(violations);
    if pods.len() > PODS_MAX {
        call.warn(format!(
            "new PodSecurity enforce level only checked against the first {PODS_MAX} of {} existing pods",
            pods.len()
        ));
    }
    if !lines.is_empty() {
        call.warn(format!(
            "existing pods in namespace \"{name}\" violate the new PodSecurity enforce level \"{new}\""
        ));
    }
    lines.into_iter().for_each(|line| call.warn(line));
}

/// One line for all pods with the same violations, with the first one's name.
fn lines(violations: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut by_reason: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for (pod, reasons) in violations {
        let (first, others) = by_reason.entry(reasons).or_insert_with(|| (pod.clone(), 0));
        if *first > pod {
            *first = pod;
        }
        *others += 1;
    }
    let mut lines: Vec<String> = by_reason
        .into_iter()
        .map(|(reasons, (first, pods))| match pods {
            1 => format!("{first}: {reasons}"),
            2 => format!("{first} (and 1 other pod): {reasons}"),
            _ => format!("{first} (and {} other pods): {reasons}", pods - 1),
        })
        .collect();
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_158_pods_with_the_same_violations_share_a_line() {
        let found =
            [("b", "privileged"), ("a", "privileged"), ("c", "hostPort"), ("d", "privileged")];
        let found = found.map(|(pod, reason)| (pod.to_owned(), reason.to_owned()));
        assert_eq!(lines(found.into_iter()), ["a (and 2 other pods): privileged", "c: hostPort"]);
    }
}
