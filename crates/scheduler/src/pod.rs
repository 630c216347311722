//! The properties of a pod that matter for scheduling, computed once.

use crate::affinity_terms::AffinityTerms;
use crate::amounts::{Amounts, CPU, MEMORY};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lifecycle::resources;
use std::sync::Arc;

/// The requests that containers without requests count with in scores (N-195).
const DEFAULT_REQUESTS: [(&str, &str); 2] = [(CPU, "100m"), (MEMORY, "200Mi")];

const ANY_IP: &str = "0.0.0.0";

#[derive(Debug, Clone)]
pub(crate) struct PodInfo {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    pub(crate) pod: Arc<Pod>,
    /// Its node, from the API or as decided.
    pub(crate) node: Option<Arc<str>>,
    pub(crate) priority: i32,
    /// Its resource requests (N-110).
    pub(crate) requests: Amounts,
    /// CPU and memory with default requests.
    pub(crate) estimated: [i64; 2],
    pub(crate) ports: Vec<HostPort>,
    /// Names of its claims, including those of ephemeral volumes.
    pub(crate) claims: Vec<String>,
    pub(crate) terms: Arc<AffinityTerms>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) ip: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
}

impl PodInfo {
    pub(crate) fn read(pod: Arc<Pod>) -> PodInfo {
        let none = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&none);
        let node = spec.node_name.as_deref().filter(|name| !name.is_empty()).map(Arc::from);
        let requests = Amounts::counted(&resources::counted_requests(&pod));
        let estimated = estimated(spec);
        PodInfo {
            key: ObjectKey::of(&*pod),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            node,
            priority: spec.priority.unwrap_or_default(),
            requests,
            estimated,
            ports: ports(spec),
            claims: claims(&pod, spec),
            terms: Arc::new(AffinityTerms::read(&pod)),
            pod,
        }
    }

    /// The same pod, on this node.
    pub(crate) fn on(&self, node: &Arc<str>) -> PodInfo {
        PodInfo { node: Some(node.clone()), ..self.clone() }
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.namespace()
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    pub(crate) fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    pub(crate) fn is_same_as(&self, other: &PodInfo) -> bool {
        self.key == other.key && self.uid == other.uid
    }

    /// Whether nothing that matters for scheduling has changed.
    pub(crate) fn is_equivalent_to(&self, other: &PodInfo) -> bool {
        self.is_same_as(other)
            && self.node == other.node
            && self.priority == other.priority
            && self.requests == other.requests
            && self.estimated == other.estimated
            && self.ports == other.ports
            && self.claims == other.claims
            && self.is_terminating() == other.is_terminating()
            && self.pod.metadata.labels == other.pod.metadata.labels
            && self.terms.all == other.terms.all
    }

    pub(crate) fn nominated_node(&self) -> Option<&str> {
        let node = self.pod.status.as_ref()?.nominated_node_name.as_deref()?;
        (!node.is_empty()).then_some(node)
    }

    /// When it started, if it has.
    pub(crate) fn started(&self) -> Option<&Time> {
        self.pod.status.as_ref()?.start_time.as_ref()
    }
}

pub(crate) fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// CPU and memory for scores, with default requests (N-195).
fn estimated(spec: &PodSpec) -> [i64; 2] {
    let wanted = |container: &Container| {
        let resources = container.resources.as_ref();
        let mut requests = resources.and_then(|r| r.requests.clone()).unwrap_or_default();
        for (name, amount) in DEFAULT_REQUESTS {
            requests.entry(name.into()).or_insert_with(|| Quantity(amount.into()));
        }
        Container {
            restart_policy: container.restart_policy.clone(),
            resources: Some(ResourceRequirements {
                requests: Some(requests),
                ..Default::default()
            }),
            ..Container::default()
        }
    };
    let inits = spec.init_containers.as_ref();
    let with_defaults = PodSpec {
        containers: spec.containers.iter().map(wanted).collect(),
        init_containers: inits.map(|inits| inits.iter().map(wanted).collect()),
        resources: spec.resources.clone(),
        overhead: spec.overhead.clone(),
        ..PodSpec::default()
    };
    let amounts = Amounts::counted(&resources::pod_requests(&with_defaults));
    [amounts.cpu, amounts.memory]
}

/// Host ports of containers and sidecars. Ports of other init containers do not count (N-191).
fn ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(|init| is_sidecar(init));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let ip = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or(ANY_IP);
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            Some(HostPort { ip: ip.into(), protocol: protocol.into(), port: number })
        })
        .collect()
}

impl HostPort {
    pub(crate) fn conflicts_with(&self, other: &HostPort) -> bool {
        let same_ip = self.ip == other.ip || self.ip == ANY_IP || other.ip == ANY_IP;
        self.port == other.port && self.protocol == other.protocol && same_ip
    }
}

fn claims(pod: &Pod, spec: &PodSpec) -> Vec<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = spec.volumes.iter().flatten();
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{name}-{}", volume.name)),
            (None, None) => None,
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A pod with this in its spec.
    pub(crate) fn pod(name: &str, spec: Value) -> PodInfo {
        pod_with(name, json!({}), spec)
    }

    pub(crate) fn pod_with(name: &str, labels: Value, mut spec: Value) -> PodInfo {
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{ "name": "c" }]);
        }
        read(json!({
            "metadata": { "namespace": "default", "name": name, "uid": name, "labels": labels },
            "spec": spec,
        }))
    }

    pub(crate) fn read(pod: Value) -> PodInfo {
        PodInfo::read(Arc::new(typed::from_value(pod).unwrap()))
    }

    pub(crate) fn asking(name: &str, cpu: &str, memory: &str) -> PodInfo {
        let requests = json!({ "cpu": cpu, "memory": memory });
        pod(name, json!({ "containers": [{ "name": "c", "resources": { "requests": requests } }] }))
    }

    fn container(name: &str, cpu: &str) -> Value {
        json!({ "name": name, "resources": { "requests": { "cpu": cpu } } })
    }

    fn sidecar(name: &str, cpu: &str) -> Value {
        let mut sidecar = container(name, cpu);
        sidecar["restartPolicy"] = "Always".into();
        sidecar
    }

    #[test]
    fn n_110_requests_of_a_pod_are_the_maximum_at_any_time() {
        let cases = [
            ("sum", json!({ "containers": [container("a", "1"), container("b", "2")] }), 3000),
            (
                "largest init",
                json!({ "containers": [container("a", "1")],
                        "initContainers": [container("i", "4"), container("j", "2")] }),
                4000,
            ),
            (
                "sidecars keep running beside later init containers",
                json!({ "containers": [container("a", "1")],
                        "initContainers": [sidecar("s", "500m"), container("i", "4")] }),
                4500,
            ),
            (
                "an init container before the sidecar does not run beside it",
                json!({ "containers": [container("a", "1")],
                        "initContainers": [container("i", "4"), sidecar("s", "500m")] }),
                4000,
            ),
            (
                "overhead on top",
                json!({ "containers": [container("a", "1")], "overhead": { "cpu": "250m" } }),
                1250,
            ),
            (
                "requests of the whole pod",
                json!({ "containers": [container("a", "1")], "overhead": { "cpu": "250m" },
                        "resources": { "requests": { "cpu": "3" } } }),
                3250,
            ),
        ];
        for (what, spec, cpu) in cases {
            assert_eq!(pod("p", spec).requests.cpu, cpu, "{what}");
        }
    }

    #[test]
    fn n_110_during_a_resize_the_largest_amount_counts() {
        let resized = |conditions: Value| {
            read(json!({
                "metadata": { "name": "p" },
                "spec": { "containers": [container("a", "4")] },
                "status": {
                    "conditions": conditions,
                    "containerStatuses": [{
                        "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "allocatedResources": { "cpu": "2" },
                        "resources": { "requests": { "cpu": "3" } },
                    }],
                },
            }))
        };
        assert_eq!(resized(json!([])).requests.cpu, 4000);
        let infeasible =
            json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
        assert_eq!(resized(infeasible).requests.cpu, 3000);
    }

    #[test]
    fn n_195_pods_without_requests_count_with_defaults() {
        let spec = json!({ "containers": [container("a", "1"), { "name": "b" }] });
        assert_eq!(pod("p", spec).estimated, [1100, 2 * 200 * 1024 * 1024]);
    }

    /// NET-10: which ports of two pods conflict.
    #[test]
    fn n_191_ports_conflict_on_the_same_address_or_on_any() {
        let port = |ip: &str, protocol: &str, port| HostPort {
            ip: ip.into(),
            protocol: protocol.into(),
            port,
        };
        let cases = [
            (port("0.0.0.0", "TCP", 80), port("10.0.0.1", "TCP", 80), true),
            (port("10.0.0.2", "TCP", 80), port("10.0.0.1", "TCP", 80), false),
            (port("10.0.0.1", "UDP", 80), port("10.0.0.1", "TCP", 80), false),
            (port("10.0.0.1", "TCP", 81), port("10.0.0.1", "TCP", 80), false),
            (port("10.0.0.1", "TCP", 80), port("10.0.0.1", "TCP", 80), true),
        ];
        for (a, b, conflict) in cases {
            assert_eq!(a.conflicts_with(&b), conflict, "{a:?} {b:?}");
            assert_eq!(b.conflicts_with(&a), conflict, "{b:?} {a:?}");
        }
    }

    #[test]
    fn n_191_the_ports_of_init_containers_count_only_for_sidecars() {
        let listening = |name: &str, port: i32| json!({ "name": name, "ports": [{ "containerPort": 1, "hostPort": port }] });
        let mut sidecar = listening("s", 3);
        sidecar["restartPolicy"] = "Always".into();
        let info = pod(
            "p",
            json!({ "containers": [listening("c", 1), listening("none", 0)],
                    "initContainers": [listening("i", 2), sidecar] }),
        );
        assert_eq!(info.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((&*info.ports[0].ip, &*info.ports[0].protocol), ("0.0.0.0", "TCP"));
    }
}
