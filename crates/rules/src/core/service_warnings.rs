//! Warnings about Services: fields that are deprecated, ignored, or written in an unusual form (NET-23).

use super::service::is_headless;
use crate::address_form;
use api::value::ValueExt;
use serde_json::Value;

const OLD_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";

/// What a client that writes this Service should know.
pub fn service_warnings(service: &Value) -> Vec<String> {
    let spec = |field: &str| service.text(&["spec", field]);
    let list = |field: &str| -> Vec<&str> {
        let items = service.at(&["spec", field]).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let addresses = |field: &str| -> Vec<String> {
        let each = list(field).into_iter().enumerate();
        each.filter_map(|(index, ip)| {
            address_form::ip_warning(&format!("spec.{field}[{index}]"), ip)
        })
        .collect()
    };
    let external_name = spec("type") == "ExternalName";
    let headless = spec("type") == "ClusterIP" && is_headless(service);
    let has_external_ips = !list("externalIPs").is_empty();
    let mut warnings = Vec::new();
    if service.at(&["metadata", "annotations", OLD_HINTS]).is_some() {
        let text =
            format!("annotation {OLD_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead");
        warnings.push(text);
    }
    if !matches!(spec("clusterIP"), "" | "None") {
        warnings.extend(addresses("clusterIPs"));
    }
    if headless {
        for (is_ignored, field) in [
            (!spec("loadBalancerIP").is_empty(), "loadBalancerIP"),
            (has_external_ips, "externalIPs"),
            (spec("sessionAffinity") != "None", "SessionAffinity"),
        ] {
            warnings.extend(
                is_ignored.then(|| format!("spec.{field} is ignored for headless services")),
            );
        }
    }
    warnings.extend(addresses("externalIPs"));
    if has_external_ips && !headless && !external_name {
        let text =
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        warnings.push(text.into());
    }
    warnings.extend(address_form::ip_warning("spec.loadBalancerIP", spec("loadBalancerIP")));
    for (index, range) in list("loadBalancerSourceRanges").into_iter().enumerate() {
        let field = format!("spec.loadBalancerSourceRanges[{index}]");
        warnings.extend(address_form::cidr_warnings(&field, range));
    }
    if external_name && has_external_ips {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if !external_name && !spec("externalName").is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
    }
    if spec("trafficDistribution") == "PreferClose" {
        let text =
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        warnings.push(text.into());
    }
    warnings
}
