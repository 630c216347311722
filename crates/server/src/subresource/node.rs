//! The address and port of a node's agent, and the container that a request means (N-13).

use super::backend::{Backend, Reach};
use crate::object::Stored as _;
use crate::request::call::Call;
use crate::response::error::{ApiError, Result};
use crate::server::Server;
use api::value::ValueExt as _;
use serde_json::Value;

/// The default port of an agent.
const PORT: u16 = 10250;

/// Upstream's default order (`--kubelet-preferred-address-types`).
const ADDRESS_TYPES: &[&str] =
    &["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];

/// The agent of a node as a backend.
pub(crate) fn backend(call: &Call, name: &str) -> Result<Backend> {
    let node = call.store().get("nodes", name).ok_or_else(|| ApiError::NotFound {
        resource: "nodes".into(),
        group: String::new(),
        name: name.into(),
    })?;
    let node = node.value();
    agent(&call.server, &node).ok_or_else(|| {
        let message = format!("no preferred addresses found; known addresses: {}", known(&node));
        ApiError::Status(Box::new(api::Status::failure(500, "", message)))
    })
}

/// None if the node reports no address.
pub(crate) fn agent(server: &Server, node: &Value) -> Option<Backend> {
    let hosts = hosts(node);
    let tls = Some(server.nodes().clone());
    let reach = Reach::Agent { own_port: server.port() };
    (!hosts.is_empty()).then(|| Backend { tls, hosts, port: port(node), reach })
}

pub(crate) fn port(node: &Value) -> u16 {
    let port = node.at(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]);
    port.and_then(Value::as_u64)
        .and_then(|port| port.try_into().ok())
        .filter(|port| *port > 0)
        .unwrap_or(PORT)
}

fn hosts(node: &Value) -> Vec<String> {
    let addresses = node.at(&["status", "addresses"]).and_then(Value::as_array);
    let addresses: Vec<&Value> = addresses.into_iter().flatten().collect();
    let of = |kind: &&str| {
        let wanted = *kind;
        addresses
            .iter()
            .filter(move |address| address["type"] == wanted)
            .filter_map(|address| address["address"].as_str())
            .filter(|address| !address.is_empty())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    ADDRESS_TYPES.iter().flat_map(of).collect()
}

fn known(node: &Value) -> String {
    node.at(&["status", "addresses"]).map_or_else(|| "[]".to_owned(), Value::to_string)
}

/// The container a request means: the one it names, or the only one.
pub(crate) fn container<'a>(call: &'a Call, pod: &'a Value) -> Result<&'a str> {
    let name = &call.target.name;
    let names = |field: &str| {
        let list = pod.at(&["spec", field]).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(|one| one["name"].as_str())
    };
    let all =
        || names("initContainers").chain(names("containers")).chain(names("ephemeralContainers"));
    if let Some(wanted) = call.query.text("container") {
        return match all().any(|known| known == wanted) {
            true => Ok(wanted),
            false => Err(ApiError::bad_request(format!(
                "container {wanted} is not valid for pod {name}"
            ))),
        };
    }
    let mut regular = names("containers");
    match (regular.next(), regular.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => {
            Err(ApiError::bad_request(format!("a container name must be specified for pod {name}")))
        }
        (Some(_), Some(_)) => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all().collect::<Vec<_>>().join(" ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn n_13_addresses_are_tried_in_upstreams_order_at_the_reported_port() {
        let node = json!({ "status": {
            "addresses": [
                { "type": "ExternalIP", "address": "203.0.113.1" },
                { "type": "InternalIP", "address": "10.0.0.7" },
                { "type": "InternalIP", "address": "fd00::7" },
                { "type": "Hostname", "address": "n1" },
            ],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10251 } },
        }});
        assert_eq!(hosts(&node), ["n1", "10.0.0.7", "fd00::7", "203.0.113.1"]);
        assert_eq!(port(&node), 10251);
        assert_eq!(port(&json!({})), 10250);
    }
}
