//! Finds where a pod sets a forbidden value (in the pod's or in containers' security contexts), and describes it in
//! upstream's words.

use api::value::ValueExt;
use serde_json::Value;
use std::collections::BTreeSet;

pub(super) const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// All containers of a pod, in the order of messages.
pub(super) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    LISTS.iter().flat_map(move |list| {
        pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten()
    })
}

/// The names of the containers that match.
pub(super) fn which<'a>(pod: &'a Value, is: impl Fn(&'a Value) -> bool) -> Vec<&'a str> {
    containers(pod).filter(|container| is(container)).map(|c| c.text(&["name"])).collect()
}

pub(super) fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `"a", "b"`
pub(super) fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> =
        items.into_iter().map(|item| format!("\"{}\"", item.as_ref())).collect();
    items.join(", ")
}

/// `container "a"` or `containers "a", "b"`
pub(super) fn named(containers: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", containers.len()), quoted(containers))
}

/// Where a field of the security context has a forbidden value, and the values.
pub(super) struct Setters<'a> {
    pod: bool,
    containers: Vec<&'a str>,
    pub(super) values: BTreeSet<String>,
}

impl<'a> Setters<'a> {
    /// `bad` returns the forbidden values in a security context.
    pub(super) fn of(pod: &'a Value, bad: impl Fn(&Value) -> Vec<String>) -> Setters<'a> {
        let mut setters = Setters { pod: false, containers: Vec::new(), values: BTreeSet::new() };
        if let Some(context) = pod.at(&["spec", "securityContext"]) {
            let found = bad(context);
            setters.pod = !found.is_empty();
            setters.values.extend(found);
        }
        for container in containers(pod) {
            let Some(context) = container.at(&["securityContext"]) else { continue };
            let found = bad(context);
            if !found.is_empty() {
                setters.containers.push(container.text(&["name"]));
                setters.values.extend(found);
            }
        }
        setters
    }

    /// `pod and containers "a", "b"`; None if there are none.
    pub(super) fn described(&self) -> Option<String> {
        self.described_with(None)
    }

    pub(super) fn described_with(&self, also: Option<&str>) -> Option<String> {
        let mut names = Vec::new();
        if self.pod {
            names.push("pod".to_owned());
        }
        if !self.containers.is_empty() {
            names.push(named(&self.containers));
        }
        names.extend(also.map(str::to_owned));
        (!names.is_empty()).then(|| names.join(" and "))
    }
}
