//! Chooses the endpoint of a Service that a proxied request goes to (NET-115). Pure, except for the lookup of pods.
//!
//! As upstream, the Endpoints object decides, and only addresses of pods are used: users who may write Endpoints must not
//! be able to make the server connect to other addresses.

use api::value::ValueExt as _;
use serde_json::Value;

/// The name of the port that the request means; `text` is a number, a name or empty. An empty name is the unnamed port.
pub(super) fn port_name(service: &Value, name: &str, text: &str) -> Result<String, String> {
    let Ok(number) = text.parse::<i64>() else { return Ok(text.to_owned()) };
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array);
    let port = ports.into_iter().flatten().find(|port| port["port"] == number);
    let missing = || format!("no service port {number} found for service {name:?}");
    Ok(port.ok_or_else(missing)?.text(&["name"]).to_owned())
}

/// A ready address with that port. `is_valid` says whether an address of the Endpoints is one of its pod.
pub(super) fn choose(
    endpoints: &Value,
    port: &str,
    random: u64,
    is_valid: impl Fn(&Value) -> bool,
) -> Option<(String, u16)> {
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let subsets = array(&endpoints["subsets"]);
    for subset in rotated(&subsets, random) {
        let ports = array(&subset["ports"]);
        let found = ports.iter().find(|one| one.text(&["name"]) == port);
        let Some(number) = found.and_then(|one| one["port"].as_u64()?.try_into().ok()) else {
            continue;
        };
        let addresses = array(&subset["addresses"]);
        let valid = rotated(&addresses, random).find(|address| is_valid(address));
        if let Some(address) = valid {
            return Some((address.text(&["ip"]).to_owned(), number));
        }
    }
    None
}

/// All elements, beginning at a random one.
fn rotated(all: &[Value], random: u64) -> impl Iterator<Item = &Value> {
    let first = random.checked_rem(all.len() as u64).unwrap_or_default() as usize;
    all[first..].iter().chain(&all[..first])
}

/// Whether the address belongs to a pod of this namespace that has it. Upstream: `isValidAddress`.
pub(super) fn is_of_pod(
    address: &Value,
    namespace: &str,
    pod: impl Fn(&str) -> Option<Value>,
) -> bool {
    let target = &address["targetRef"];
    if target.text(&["kind"]) != "Pod" || target.text(&["namespace"]) != namespace {
        return false;
    }
    let Some(pod) = pod(target.text(&["name"])) else { return false };
    let ips = pod.at(&["status", "podIPs"]).and_then(Value::as_array);
    ips.into_iter().flatten().any(|ip| ip["ip"] == address["ip"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn net_115_a_number_means_the_service_port_and_a_text_its_name() {
        let service = json!({"spec": {"ports": [{"name": "web", "port": 80}, {"name": "admin", "port": 81}]}});
        let unnamed = json!({"spec": {"ports": [{"port": 80}]}});
        let missing = |port: &str| Err(format!("no service port {port} found for service \"s\""));
        for (service, text, expected) in [
            (&service, "80", Ok("web".to_owned())),
            (&service, "81", Ok("admin".to_owned())),
            (&service, "web", Ok("web".to_owned())),
            (&service, "", Ok(String::new())),
            (&service, "8080", missing("8080")),
            (&service, "-1", missing("-1")),
            (&unnamed, "80", Ok(String::new())),
            (&unnamed, "", Ok(String::new())),
        ] {
            assert_eq!(port_name(service, "s", text), expected, "{text:?}");
        }
    }

    #[test]
    fn net_115_a_ready_address_with_the_port_is_chosen() {
        let endpoints = json!({"subsets": [
            {"notReadyAddresses": [{"ip": "10.0.0.1"}], "ports": [{"name": "web", "port": 8080}]},
            {"addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.3"}], "ports": [{"name": "web", "port": 8081}]},
            {"addresses": [{"ip": "10.0.0.4"}], "ports": [{"name": "other", "port": 1}, {"port": 2}]},
        ]});
        let chosen = |port: &str, random, valid: &[&str]| {
            choose(&endpoints, port, random, |one| valid.contains(&one.text(&["ip"])))
        };
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
        for random in 0..12 {
            let (ip, port) = chosen("web", random, &all).unwrap();
            assert!(port == 8081 && (ip == "10.0.0.2" || ip == "10.0.0.3"), "{ip}:{port}");
            assert_eq!(chosen("web", random, &["10.0.0.3"]), Some(("10.0.0.3".into(), 8081)));
            assert_eq!(chosen("other", random, &all), Some(("10.0.0.4".into(), 1)));
            assert_eq!(chosen("", random, &all), Some(("10.0.0.4".into(), 2)));
            assert_eq!(chosen("web", random, &["10.0.0.1"]), None, "it is not ready");
            assert_eq!(chosen("none", random, &all), None);
        }
        let both: std::collections::BTreeSet<_> =
            (0..12).filter_map(|random| chosen("web", random, &all)).collect();
        assert_eq!(both.len(), 2, "each address is used");
        assert_eq!(choose(&json!({}), "", 7, |_| true), None);
    }

    #[test]
    fn net_115_an_address_must_be_one_of_its_pod() {
        let pod = |name: &str| {
            (name == "p")
                .then(|| json!({"status": {"podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]}}))
        };
        let address = |ip: &str, kind: &str, namespace: &str, name: &str| json!({"ip": ip, "targetRef": {"kind": kind, "namespace": namespace, "name": name}});
        for (address, expected) in [
            (address("10.0.0.2", "Pod", "ns", "p"), true),
            (address("fd00::2", "Pod", "ns", "p"), true),
            (address("10.0.0.3", "Pod", "ns", "p"), false),
            (address("10.0.0.2", "Pod", "other", "p"), false),
            (address("10.0.0.2", "Pod", "ns", "gone"), false),
            (address("10.0.0.2", "Node", "ns", "p"), false),
            (json!({"ip": "10.0.0.2"}), false),
        ] {
            assert_eq!(is_of_pod(&address, "ns", pod), expected, "{address}");
        }
    }
}
