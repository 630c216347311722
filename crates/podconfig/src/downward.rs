//! The downward API: fields and resources of a pod as text (N-55, N-56).

use crate::identity::{name, namespace, uid};
use crate::{NodeFacts, containers};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Pod, ResourceFieldSelector, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as QuantityText;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A field of the pod's object. Volumes may use only these.
pub fn field(pod: &Pod, path: &str) -> Result<String, String> {
    let labels = pod.metadata.labels.as_ref();
    let annotations = pod.metadata.annotations.as_ref();
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => labels,
            "metadata.annotations" => annotations,
            _ => return Err(format!("fieldPath {path:?} does not support subscript")),
        };
        return Ok(map.and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    match path {
        "metadata.name" => Ok(name(pod).into()),
        "metadata.namespace" => Ok(namespace(pod).into()),
        "metadata.uid" => Ok(uid(pod).into()),
        "metadata.labels" => Ok(lines(labels)),
        "metadata.annotations" => Ok(lines(annotations)),
        _ => Err(format!("unsupported fieldPath: {path}")),
    }
}

/// A field as an environment variable may use it: also those known only once the pod is on its node.
pub(crate) fn runtime_field(
    pod: &Pod,
    path: &str,
    facts: &NodeFacts,
    pod_ips: &[IpAddr],
) -> Result<String, String> {
    let spec = pod.spec.as_ref();
    let host_ips = || match facts.host_ips.is_empty() {
        true => Err("unable to get host IPs".to_owned()),
        false => Ok(facts.host_ips.as_slice()),
    };
    let first = |ips: &[IpAddr]| ips.first().map(IpAddr::to_string).unwrap_or_default();
    match path {
        "spec.nodeName" => Ok(spec.and_then(|s| s.node_name.clone()).unwrap_or_default()),
        "spec.serviceAccountName" => {
            Ok(spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default())
        }
        "status.hostIP" => Ok(first(host_ips()?)),
        "status.hostIPs" => Ok(joined(host_ips()?)),
        "status.podIP" => Ok(first(pod_ips)),
        "status.podIPs" => Ok(joined(pod_ips)),
        _ => field(pod, path),
    }
}

fn joined(ips: &[IpAddr]) -> String {
    ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")
}

/// Splits `metadata.labels['k']` into the map `metadata.labels` and the key `k`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    Some((map, key))
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Quotes a string as Go's `%q` does.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x80 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x10000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

/// `escape_debug` also escapes combining marks, but only at the start of a text.
fn is_printable(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_escaped(c))
}

fn is_escaped(c: char) -> bool {
    format!("a{c}").escape_debug().nth(1) == Some('\\')
}

/// A limit or request, divided and rounded up (N-56). `own` is the container to use if the selector
/// names none.
pub fn resource(
    pod: &Pod,
    own: Option<&str>,
    selector: &ResourceFieldSelector,
    facts: &NodeFacts,
) -> Result<String, String> {
    let name = selector.container_name.as_deref().filter(|name| !name.is_empty()).or(own);
    let name = name.unwrap_or_default();
    let containers = containers(pod);
    let container = containers.iter().find(|container| container.name == name);
    let container = container.ok_or_else(|| format!("container {name} not found"))?;
    let empty = ResourceRequirements::default();
    let resources = container.resources.as_ref().unwrap_or(&empty);
    let Some((list, name)) = selector.resource.split_once('.') else {
        return Err(format!("unsupported container resource : {}", selector.resource));
    };
    let known = ["cpu", "memory", "ephemeral-storage"].contains(&name);
    if !known && !name.starts_with("hugepages-") {
        return Err(format!("unsupported container resource : {}", selector.resource));
    }
    let amount = match list {
        "limits" => limit(pod, resources, name, facts),
        "requests" => amount(&resources.requests, name),
        _ => return Err(format!("unsupported container resource : {}", selector.resource)),
    };
    Ok(divided(amount.unwrap_or(Quantity::ZERO), divisor(selector), name == "cpu").to_string())
}

/// The container's limit, else the pod's, else what the node can allocate.
fn limit(
    pod: &Pod,
    resources: &ResourceRequirements,
    name: &str,
    facts: &NodeFacts,
) -> Option<Quantity> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let set = |found: Option<Quantity>| found.filter(|quantity| !quantity.is_zero());
    set(amount(&resources.limits, name))
        .or_else(|| set(of_pod.and_then(|resources| amount(&resources.limits, name))))
        .or_else(|| facts.allocatable.get(name).and_then(parsed))
}

pub fn amount(list: &Option<BTreeMap<String, QuantityText>>, name: &str) -> Option<Quantity> {
    list.as_ref()?.get(name).and_then(parsed)
}

pub(crate) fn parsed(written: &QuantityText) -> Option<Quantity> {
    Quantity::parse(&written.0).ok()
}

/// One if it is unset or zero.
fn divisor(selector: &ResourceFieldSelector) -> Quantity {
    let given = selector.divisor.as_ref().and_then(parsed);
    given.filter(|divisor| !divisor.is_zero()).unwrap_or(Quantity::whole(1))
}

fn divided(amount: Quantity, divisor: Quantity, milli: bool) -> i64 {
    let value = |quantity: Quantity| match milli {
        true => quantity.milli_value(),
        false => quantity.value(),
    };
    let (amount, divisor) = (value(amount), value(divisor).max(1));
    amount / divisor + i64::from(amount % divisor > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        typed::from_value(json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u-1",
                "labels": { "b": "2", "a": "1" },
                "annotations": { "note": "two\nlines \"quoted\" \\ é\u{1}\u{200b}" },
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "robot",
                "containers": [
                    { "name": "c", "resources": {
                        "limits": { "cpu": "1250m", "memory": "64Mi" },
                        "requests": { "cpu": "100m", "hugepages-2Mi": "4Mi" },
                    } },
                    { "name": "bare" },
                ],
            },
        }))
        .unwrap()
    }

    fn facts() -> NodeFacts {
        let mut facts = NodeFacts::new("n1", "/tmp");
        facts.host_ips = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        facts.allocatable = [("cpu", "4"), ("memory", "8Gi"), ("ephemeral-storage", "10G")]
            .map(|(name, amount)| (name.to_owned(), QuantityText(amount.to_owned())))
            .into();
        facts
    }

    #[test]
    fn n_55_fields_of_a_pod_are_rendered_as_text() {
        let ips = ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        for (path, expected) in [
            ("metadata.name", "web-0"),
            ("metadata.namespace", "shop"),
            ("metadata.uid", "u-1"),
            ("metadata.labels['a']", "1"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['none']", ""),
            ("metadata.labels", "a=\"1\"\nb=\"2\""),
            ("metadata.annotations", "note=\"two\\nlines \\\"quoted\\\" \\\\ é\\x01\\u200b\""),
            ("spec.nodeName", "n1"),
            ("spec.serviceAccountName", "robot"),
            ("status.hostIP", "192.0.2.1"),
            ("status.hostIPs", "192.0.2.1,2001:db8::1"),
            ("status.podIP", "10.0.0.5"),
            ("status.podIPs", "10.0.0.5,fd00::5"),
        ] {
            assert_eq!(
                runtime_field(&pod(), path, &facts(), &ips).as_deref(),
                Ok(expected),
                "{path}"
            );
        }
        assert!(
            field(&pod(), "status.podIP").is_err(),
            "volumes can use only fields of the object"
        );
        assert!(runtime_field(&pod(), "spec.nothing", &facts(), &ips).is_err());
    }

    #[test]
    fn n_56_n_208_resources_are_rounded_up_and_limits_default_to_the_nodes() {
        for (container, resource_name, divisor, expected) in [
            ("c", "limits.cpu", "1", "2"),
            ("c", "limits.cpu", "1m", "1250"),
            ("c", "limits.cpu", "0", "2"),
            ("c", "requests.cpu", "1", "1"),
            ("c", "requests.cpu", "1m", "100"),
            ("c", "limits.memory", "1Mi", "64"),
            ("c", "limits.memory", "1M", "68"),
            ("c", "limits.memory", "1", "67108864"),
            ("c", "requests.memory", "1", "0"),
            ("c", "requests.hugepages-2Mi", "1Mi", "4"),
            ("bare", "limits.cpu", "1", "4"),
            ("bare", "limits.memory", "1Gi", "8"),
            ("bare", "limits.ephemeral-storage", "1G", "10"),
            ("bare", "requests.cpu", "1m", "0"),
        ] {
            let selector = ResourceFieldSelector {
                resource: resource_name.into(),
                divisor: Some(QuantityText(divisor.into())),
                container_name: None,
            };
            let value = resource(&pod(), Some(container), &selector, &facts());
            assert_eq!(value.as_deref(), Ok(expected), "{container} {resource_name} / {divisor}");
        }
    }

    /// N-56: pod-level limits take precedence over the node's.
    #[test]
    fn a_missing_limit_is_the_pod_level_limit() {
        let mut pod = pod();
        let limits = json!({ "limits": { "memory": "1Gi" } });
        pod.spec.as_mut().unwrap().resources = Some(serde_json::from_value(limits).unwrap());
        let selector = |resource: &str| ResourceFieldSelector {
            resource: resource.into(),
            divisor: None,
            container_name: Some("bare".into()),
        };
        let value = |name| resource(&pod, None, &selector(name), &facts());
        assert_eq!(value("limits.memory").as_deref(), Ok("1073741824"));
        assert_eq!(value("limits.cpu").as_deref(), Ok("4"));
        assert!(value("limits.gpu").is_err());
    }
}
