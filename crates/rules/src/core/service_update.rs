//! Updates of Services: fields that are kept, dropped or immutable.

use super::service;
use api::field::{At, Errors};
use api::metadata::same;
use api::value::ValueExt;
use serde_json::{Value, json};

const SET_ONCE: &str = "may not change once set";

/// Restores allocated fields that the client omits, and drops fields that the new type does not use.
pub(super) fn prepare(new: &mut Value, old: &Value) {
    normalize_cluster_ips(new, old);
    keep_allocated(new, old);
    drop_unused(new, old);
}

/// If the client changes only one of `clusterIP` and `clusterIPs`, the other follows.
fn normalize_cluster_ips(new: &mut Value, old: &Value) {
    let same_one = new.text(&["spec", "clusterIP"]) == old.text(&["spec", "clusterIP"]);
    let same_list = same(new.at(&["spec", "clusterIPs"]), old.at(&["spec", "clusterIPs"]));
    let spec = new.object("spec");
    if !same_one && same_list {
        let one = spec.text(&["clusterIP"]).to_owned();
        if one.is_empty() {
            spec.remove("clusterIPs");
        } else {
            spec.map().insert("clusterIPs".into(), json!([one]));
        }
    }
    if same_one && !same_list && service::first_cluster_ip(spec).is_empty() {
        spec.remove("clusterIP");
    }
}

fn keep_allocated(new: &mut Value, old: &Value) {
    if service::needs_cluster_ip(new) && service::needs_cluster_ip(old) {
        let before = old.text(&["spec", "clusterIP"]);
        let spec = new.object("spec");
        if spec.text(&["clusterIP"]).is_empty() && !before.is_empty() {
            spec.map().insert("clusterIP".into(), before.into());
        }
        let empty = service::first_cluster_ip(spec).is_empty();
        if let (true, Some(ips)) = (empty, old.at(&["spec", "clusterIPs"]))
            && spec.text(&["clusterIP"]) == before
        {
            spec.map().insert("clusterIPs".into(), ips.clone());
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if let Some(before) = old.at(&["spec", field]) {
                spec.set_default(field, before.clone());
            }
        }
    }
    if service::needs_node_ports(new) && service::needs_node_ports(old) {
        keep_node_ports(new, old);
    }
    if service::needs_health_check_port(new)
        && service::needs_health_check_port(old)
        && health_port(new) == 0
        && let Some(port) = old.at(&["spec", "healthCheckNodePort"])
    {
        new.object("spec").map().insert("healthCheckNodePort".into(), port.clone());
    }
}

fn health_port(object: &Value) -> i64 {
    object.at(&["spec", "healthCheckNodePort"]).and_then(Value::as_i64).unwrap_or_default()
}

/// A port keeps its node port by name, unless the client assigned it to another port.
fn keep_node_ports(new: &mut Value, old: &Value) {
    let named = service::node_ports(new);
    let mut used: Vec<i64> =
        service::node_ports(old).into_iter().filter(|port| named.contains(port)).collect();
    let before: Vec<(String, i64)> = old
        .at(&["spec", "ports"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|port| (port.text(&["name"]).to_owned(), service::node_port(port)))
        .collect();
    for port in new.object("spec").list_mut("ports") {
        if service::node_port(port) != 0 {
            continue;
        }
        let name = port.text(&["name"]);
        let kept = before.iter().find(|(other, _)| other == name).map(|(_, number)| *number);
        if let Some(number) = kept.filter(|number| *number != 0 && !used.contains(number)) {
            port.map().insert("nodePort".into(), number.into());
            used.push(number);
        }
    }
}

fn drop_unused(new: &mut Value, old: &Value) {
    let unchanged =
        |new: &Value, field: &str| same(new.at(&["spec", field]), old.at(&["spec", field]));
    let drop_unchanged = |new: &mut Value, field: &str| {
        if unchanged(new, field) {
            new.object("spec").remove(field);
        }
    };
    if service::needs_cluster_ip(old) && !service::needs_cluster_ip(new) {
        if unchanged(new, "clusterIPs") {
            new.object("spec").remove("clusterIP");
            new.object("spec").remove("clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            drop_unchanged(new, field);
        }
    }
    let sorted = |object: &Value| {
        let mut ports = service::node_ports(object);
        ports.sort_unstable();
        ports
    };
    if service::needs_node_ports(old)
        && !service::needs_node_ports(new)
        && sorted(new) == sorted(old)
    {
        for port in new.object("spec").list_mut("ports") {
            port.remove("nodePort");
        }
    }
    if service::needs_health_check_port(old) && !service::needs_health_check_port(new) {
        drop_unchanged(new, "healthCheckNodePort");
    }
    let balanced = |object: &Value| object.text(&["spec", "type"]) == "LoadBalancer";
    if balanced(old) && !balanced(new) {
        drop_unchanged(new, "allocateLoadBalancerNodePorts");
        drop_unchanged(new, "loadBalancerClass");
        // NET-27: the addresses of the load balancer are not those of the new type.
        if new.at(&["status", "loadBalancer"]).is_some() {
            new.object("status").map().insert("loadBalancer".into(), json!({}));
        }
    }
    if service::externally_accessible(old) && !service::externally_accessible(new) {
        drop_unchanged(new, "externalTrafficPolicy");
    }
}

pub(super) fn validate(new: &At, old: &At, errors: &mut Errors) {
    let (spec, before) = (new.field("spec"), old.field("spec"));
    cluster_ips(&spec, &before, errors);
    ip_families(&spec, &before, errors);
    let balanced = |spec: &At| spec.field("type").text() == "LoadBalancer";
    let class = spec.field("loadBalancerClass");
    if balanced(&spec)
        && balanced(&before)
        && class.str() != before.field("loadBalancerClass").str()
    {
        errors.invalid(&class, SET_ONCE);
    }
    service::load_balancer_class(&spec, errors);
    service::unambiguous_addresses(&spec, Some(&before), errors);
    let empty = Value::Null;
    let (now, then) = (new.value().unwrap_or(&empty), old.value().unwrap_or(&empty));
    if service::needs_health_check_port(now)
        && service::needs_health_check_port(then)
        && health_port(now) != health_port(then)
    {
        errors.forbidden(&spec.field("healthCheckNodePort"), api::metadata::IMMUTABLE);
    }
}

fn is_external(spec: &At) -> bool {
    spec.field("type").text() == "ExternalName"
}

fn is_headless(spec: &At) -> bool {
    let ips = spec.field("clusterIPs");
    ips.len() == 1 && ips.items().any(|ip| ip.text() == "None")
}

/// Reports an error at an element of a list, with the whole list as value.
pub(super) fn at_element(list: &At, index: usize, detail: &str, errors: &mut Errors) {
    let path = format!("{}[{index}]", list.path());
    let shown = list.value().cloned().unwrap_or(Value::Null);
    errors.push(api::field::Wrong::Invalid, path, Some(&shown), detail);
}

fn cluster_ips(new: &At, old: &At, errors: &mut Errors) {
    if is_external(new) || is_external(old) || (is_headless(new) && is_headless(old)) {
        return;
    }
    let (now, before) = (new.field("clusterIPs"), old.field("clusterIPs"));
    if now.is_empty() && !before.is_empty() {
        at_element(&now, 0, "primary clusterIP can not be unset", errors);
    }
    let compared = if now.len() == before.len() { now.len() } else { 1 };
    for (index, (ip, then)) in now.items().zip(before.items()).take(compared).enumerate() {
        if ip.text() != then.text() {
            at_element(&now, index, SET_ONCE, errors);
        }
    }
    released(new, &now, &before, "clusterIP", errors);
}

fn ip_families(new: &At, old: &At, errors: &mut Errors) {
    let headless = is_headless(new);
    if is_external(new) || is_external(old) || headless || is_headless(old) {
        return;
    }
    let (now, before) = (new.field("ipFamilies"), old.field("ipFamilies"));
    if now.is_empty() && !before.is_empty() {
        at_element(&now, 0, "primary ipFamily can not be unset", errors);
    }
    let compared = if now.len() == before.len() { now.len() } else { 1 };
    for (family, then) in now.items().zip(before.items()).take(compared) {
        if family.text() != then.text() {
            at_element(&now, 0, SET_ONCE, errors);
        }
    }
    released(new, &now, &before, "ipFamily", errors);
}

fn released(spec: &At, now: &At, before: &At, what: &str, errors: &mut Errors) {
    let policy = spec.field("ipFamilyPolicy");
    if before.len() > 1 && now.len() == 1 && policy.text() != "SingleStack" {
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errors.invalid(&policy, &detail);
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, created, update, updated};
    use super::*;

    fn stored(spec: Value) -> Value {
        let mut service = created("Service", json!({ "spec": spec }));
        super::super::service_ip::settle_ip_families(&mut service, None, &["IPv4"]);
        service
    }

    fn node_port() -> Value {
        stored(json!({
            "type": "NodePort", "clusterIP": "10.0.0.1",
            "ports": [{"name": "a", "port": 80, "nodePort": 30001}],
        }))
    }

    #[test]
    fn a_152_allocated_fields_that_a_client_omits_are_kept() {
        let change = json!({"spec": {
            "clusterIP": null, "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null,
            "ports": [{"name": "a", "port": 8080}, {"name": "b", "port": 81, "nodePort": 30002}],
        }});
        let (new, wrong) = updated("Service", &node_port(), change);
        assert_eq!(wrong, NOTHING);
        assert_eq!(new["spec"]["clusterIPs"], json!(["10.0.0.1"]));
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30001);
    }

    #[test]
    fn a_152_fields_that_the_new_type_does_not_use_are_dropped() {
        let (new, wrong) = updated("Service", &node_port(), json!({"spec": {"type": "ClusterIP"}}));
        assert_eq!(wrong, NOTHING);
        assert_eq!(new["spec"]["ports"][0].get("nodePort"), None);
        assert_eq!(new["spec"].get("externalTrafficPolicy"), None);
        let change = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
        let (new, wrong) = updated("Service", &node_port(), change);
        assert_eq!(wrong, NOTHING);
        for gone in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            assert_eq!(new["spec"].get(gone), None, "{gone}");
        }
    }

    #[test]
    fn net_27_the_status_of_a_load_balancer_is_cleared_with_the_type() {
        let mut balanced = stored(
            json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]}),
        );
        balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        for (kind, kept) in [("ClusterIP", false), ("NodePort", false), ("LoadBalancer", true)] {
            let mut new = balanced.clone();
            new["spec"]["type"] = kind.into();
            prepare(&mut new, &balanced);
            assert_eq!(new["status"] == balanced["status"], kept, "{kind}");
        }
    }

    #[test]
    fn a_77_the_cluster_ip_is_immutable() {
        assert_eq!(
            update("Service", &node_port(), json!({"spec": {"clusterIP": "10.0.0.2"}})),
            ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
        );
        let balanced = stored(
            json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1", "loadBalancerClass": "a/b", "ports": [{"port": 80}]}),
        );
        assert_eq!(
            update("Service", &balanced, json!({"spec": {"loadBalancerClass": "a/c"}})),
            ["spec.loadBalancerClass: Invalid value: \"a/c\": may not change once set"]
        );
    }
}
