//! Host ports of pods, and when two of them conflict (N-191).

use k8s_openapi::api::core::v1::{Container, Pod};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// `0.0.0.0` if the pod has none.
    pub ip: String,
    pub protocol: String,
    pub port: i32,
}

const ANY: &str = "0.0.0.0";

impl HostPort {
    pub fn conflicts_with(&self, other: &HostPort) -> bool {
        let same_ip = self.ip == other.ip || self.ip == ANY || other.ip == ANY;
        same_ip && self.port == other.port && self.protocol == other.protocol
    }
}

/// Host ports of regular containers and sidecars. Those of init containers do not count.
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(sidecar);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let or = |field: &Option<String>, default: &str| {
                field.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned())
            };
            let number = port.host_port.filter(|number| *number > 0)?;
            let (ip, protocol) = (or(&port.host_ip, ANY), or(&port.protocol, "TCP"));
            Some(HostPort { ip, protocol, port: number })
        })
        .collect()
}

pub fn ports_conflict(wanted: &[HostPort], taken: &[HostPort]) -> bool {
    wanted.iter().any(|wanted| taken.iter().any(|taken| wanted.conflicts_with(taken)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn ports(spec: Value) -> Vec<HostPort> {
        host_ports(&typed::from_value(json!({ "spec": spec })).unwrap())
    }

    fn one(port: Value) -> Vec<HostPort> {
        ports(json!({ "containers": [{ "name": "c", "ports": [port] }] }))
    }

    #[test]
    fn n_191_ports_conflict_by_number_protocol_and_overlapping_address() {
        let any = json!({ "containerPort": 80, "hostPort": 8080 });
        let rows = [
            (json!({ "containerPort": 81, "hostPort": 8080 }), true),
            (json!({ "containerPort": 80, "hostPort": 8081 }), false),
            (json!({ "containerPort": 80, "hostPort": 8080, "protocol": "UDP" }), false),
            (json!({ "containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1" }), true),
            (json!({ "containerPort": 80 }), false),
        ];
        for (other, expected) in rows {
            assert_eq!(ports_conflict(&one(any.clone()), &one(other.clone())), expected, "{other}");
        }
        let at = |ip: &str| one(json!({ "containerPort": 80, "hostPort": 80, "hostIP": ip }));
        assert!(!ports_conflict(&at("127.0.0.1"), &at("127.0.0.2")));
        assert!(ports_conflict(&at("127.0.0.1"), &at("127.0.0.1")));
    }

    #[test]
    fn n_191_of_init_containers_only_sidecars_hold_ports() {
        let init = |policy: Value| {
            ports(json!({ "containers": [], "initContainers": [{
                "name": "i", "restartPolicy": policy,
                "ports": [{ "containerPort": 1, "hostPort": 1 }] }] }))
        };
        assert_eq!(init(json!(null)).len(), 0);
        assert_eq!(init(json!("Always")).len(), 1);
    }
}
