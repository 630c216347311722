//! What happens to a Service when it changes: what is kept, what is dropped, what is fixed.

use super::service;
use crate::field::{At, Errors};
use crate::metadata::same;
use crate::value::ValueExt;
use serde_json::{Value, json};

const FIXED: &str = "may not change once set";

/// Puts back what the client left out, and drops what the new type has no use for.
pub(super) fn prepare(new: &mut Value, old: &Value) {
    normalize_cluster_ips(new, old);
    keep_allocated(new, old);
    drop_useless(new, old);
}

/// Whoever changes one of `clusterIP` and `clusterIPs` means both.
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

/// Node ports stay with the port's name, unless the client gave them to another port.
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

fn drop_useless(new: &mut Value, old: &Value) {
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
        errors.invalid(&class, FIXED);
    }
    service::load_balancer_class(&spec, errors);
    let empty = Value::Null;
    let (now, then) = (new.value().unwrap_or(&empty), old.value().unwrap_or(&empty));
    if service::needs_health_check_port(now)
        && service::needs_health_check_port(then)
        && health_port(now) != health_port(then)
    {
        errors.forbidden(&spec.field("healthCheckNodePort"), crate::metadata::IMMUTABLE);
    }
}

fn is_external(spec: &At) -> bool {
    spec.field("type").text() == "ExternalName"
}

fn is_headless(spec: &At) -> bool {
    let ips = spec.field("clusterIPs");
    ips.len() == 1 && ips.items().any(|ip| ip.text() == "None")
}

/// Reports at an element of a list, showing the whole list.
fn at_element(list: &At, index: usize, said: &str, errors: &mut Errors) {
    let path = format!("{}[{index}]", list.path());
    let shown = list.value().cloned().unwrap_or(Value::Null);
    errors.push(crate::field::Wrong::Invalid, path, Some(&shown), said);
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
            at_element(&now, index, FIXED, errors);
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
            at_element(&now, 0, FIXED, errors);
        }
    }
    released(new, &now, &before, "ipFamily", errors);
}

fn released(spec: &At, now: &At, before: &At, what: &str, errors: &mut Errors) {
    let policy = spec.field("ipFamilyPolicy");
    if before.len() > 1 && now.len() == 1 && policy.text() != "SingleStack" {
        let said = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errors.invalid(&policy, &said);
    }
}
