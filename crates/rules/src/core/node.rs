//! Nodes.

use super::checks::{self, Duplicates};
use super::{resources, scheduling};
use crate::{Rules, address_form};
use api::field::{At, Errors, Wrong};
use api::names;
use api::quantity;
use api::value::ValueExt;
use serde_json::{Value, json};

pub(super) const RULES: Rules = Rules {
    default,
    validate,
    validate_update,
    validate_status_update: |new, old, errors| {
        validate(new, errors);
        validate_update(new, old, errors);
    },
    fields: &[("spec.unschedulable", |node| {
        (node.at(&["spec", "unschedulable"]) == Some(&Value::Bool(true))).to_string()
    })],
    ..Rules::NONE
};

fn default(node: &mut Value) {
    if let Some(status) = node.get_mut("status").filter(|status| status.is_object()) {
        if let Some(capacity) = status.at(&["capacity"]).cloned() {
            status.set_default("allocatable", capacity);
        }
        quantity::canonicalize_list(status.get_mut("capacity"));
        quantity::canonicalize_list(status.get_mut("allocatable"));
    }
    mirror_pod_cidr(node.object("spec"));
}

/// `podCIDR` is the first of `podCIDRs`; if a client sets only one of them, the other follows.
fn mirror_pod_cidr(spec: &mut Value) {
    let one = spec.text(&["podCIDR"]).to_owned();
    let first = spec.get("podCIDRs").and_then(|list| list.get(0)).and_then(Value::as_str);
    let first = first.unwrap_or_default().to_owned();
    if !one.is_empty() && first.is_empty() {
        spec.map().insert("podCIDRs".into(), json!([one]));
    } else if !first.is_empty() && one != first {
        spec.map().insert("podCIDR".into(), first.into());
    }
}

fn validate(node: &At, errors: &mut Errors) {
    let (spec, status) = (node.field("spec"), node.field("status"));
    taints(node, &spec.field("taints"), errors);
    for list in ["capacity", "allocatable"] {
        let list = status.field(list);
        for (resource, amount) in list.entries() {
            if let Some(amount) = checks::quantity(&amount) {
                resources::amount_as(&list.field(resource), amount, resource, errors);
            }
        }
    }
    pod_cidrs(&spec.field("podCIDRs"), errors);
}

/// Errors have a path below `metadata`, as in upstream.
fn taints(node: &At, taints: &At, errors: &mut Errors) {
    let metadata = node.field("metadata");
    let shown = metadata.field("taints").path();
    let mut seen = Duplicates::default();
    for (index, taint) in taints.items().enumerate() {
        let (key, value, effect) =
            (taint.field("key"), taint.field("value"), taint.field("effect"));
        let path = |field: &str| format!("{shown}[{index}].{field}");
        for wrong in names::qualified_name(key.text()) {
            errors.push(Wrong::Invalid, path("key"), Some(&key.text().into()), &wrong);
        }
        let wrong = names::label_value(value.text());
        if !wrong.is_empty() {
            errors.push(Wrong::Invalid, path("value"), value.value(), &wrong.join(";"));
        }
        let mut found = Errors::default();
        scheduling::taint_effect(&effect, &mut found);
        if effect.text().is_empty() {
            errors.push(Wrong::Required, path("effect"), None, "");
        } else if !found.is_empty() {
            let detail = "supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"";
            errors.push(Wrong::NotSupported, path("effect"), effect.value(), detail);
        }
        if seen.repeats((key.text(), effect.text())) {
            let detail = "taints must be unique by key and effect pair";
            errors.push(Wrong::Duplicate, format!("{shown}[{index}]"), taint.value(), detail);
        }
    }
}

fn pod_cidrs(cidrs: &At, errors: &mut Errors) {
    let mut seen = Duplicates::default();
    for cidr in cidrs.items() {
        if let Some(detail) = address_form::unreadable_cidr(cidr.text()) {
            errors.invalid(&cidr, detail);
        }
    }
    let sixes = cidrs.items().filter(|cidr| cidr.text().contains(':')).count();
    if cidrs.len() > 2 || (cidrs.len() == 2 && sixes != 1) {
        errors.invalid(cidrs, "may specify no more than one CIDR for each IP family");
    }
    for cidr in cidrs.items() {
        if seen.repeats(cidr.text()) {
            errors.duplicate(&cidr);
        }
    }
}

fn validate_update(new: &At, old: &At, errors: &mut Errors) {
    let status = new.field("status");
    let mut seen = Duplicates::default();
    for address in status.field("addresses").items() {
        if seen.repeats((address.field("type").text(), address.field("address").text())) {
            errors.duplicate(&address);
        }
    }
    let (spec, before) = (new.field("spec"), old.field("spec"));
    let texts = |spec: &At| -> Vec<String> {
        spec.field("podCIDRs").items().map(|cidr| cidr.text().to_owned()).collect()
    };
    let (now, then) = (texts(&spec), texts(&before));
    if !then.is_empty() && now != then {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        errors.forbidden(&spec.field("podCIDRs"), detail);
    }
    let provider = before.field("providerID").text();
    if !provider.is_empty() && spec.field("providerID").text() != provider {
        let detail = "node updates may not change providerID except from \"\" to valid";
        errors.forbidden(&spec.field("providerID"), detail);
    }
    if spec.field("externalID").text() != before.field("externalID").text() {
        errors.forbidden(&spec.field("externalID"), "may not be updated");
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, defaulted, update};
    use serde_json::json;

    #[test]
    fn a_147_allocatable_defaults_to_capacity() {
        let node = defaulted(
            "Node",
            json!({"spec": {"podCIDR": "10.1.0.0/24"}, "status": {"capacity": {"cpu": 4, "memory": "1024Mi"}}}),
        );
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "4", "memory": "1Gi"}));
        assert_eq!(node["spec"]["podCIDRs"], json!(["10.1.0.0/24"]));
    }

    #[test]
    fn a_92_invalid_nodes_are_rejected_with_upstreams_messages() {
        assert_eq!(
            create("Node", json!({"spec": {"taints": [{"key": "a"}]}})),
            ["metadata.taints[0].effect: Required value"]
        );
        assert_eq!(
            create("Node", json!({"status": {"capacity": {"cpu": "-1"}, "allocatable": {}}})),
            ["status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0"]
        );
        assert_eq!(
            create("Node", json!({"spec": {"podCIDRs": ["x"]}})),
            [
                "spec.podCIDRs[0]: Invalid value: \"x\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            ]
        );
    }

    #[test]
    fn a_77_pod_cidrs_and_provider_id_can_be_set_once() {
        let node = defaulted("Node", json!({"metadata": {}, "spec": {}}));
        assert_eq!(
            update("Node", &node, json!({"spec": {"providerID": "x", "podCIDR": "10.1.0.0/24"}})),
            NOTHING
        );
        let node = defaulted(
            "Node",
            json!({"metadata": {}, "spec": {"providerID": "x", "podCIDR": "10.1.0.0/24"}}),
        );
        assert_eq!(
            update(
                "Node",
                &node,
                json!({"spec": {"providerID": "y", "podCIDRs": ["10.2.0.0/24"]}})
            ),
            [
                "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
                "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
            ]
        );
    }
}
