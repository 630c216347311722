//! Builds the `SandboxSpec` of a pod: namespaces, cgroup, names, ports (N-51, N-123, N-131).

use crate::identity::{host_network, name, namespace, uid};
use crate::{NodeFacts, annotations, dns, files, hostname, resources};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use lifecycle::containers::lasting_containers;
use runtime::{Identity, Namespace, PodNetwork, PortMapping, SandboxSpec};
use std::collections::BTreeMap;

/// Builds the spec of the pod's sandbox. Also writes the files that all its containers share.
/// The caller sets `handler`: [`crate::Objects::handler`] looks it up.
pub fn sandbox(
    pod: &Pod,
    facts: &NodeFacts,
    attempt: u32,
    network: PodNetwork,
) -> Result<SandboxSpec, String> {
    let spec = spec(pod, facts, attempt, network)?;
    files::write_sandbox_files(pod, facts)?;
    Ok(spec)
}

fn spec(
    pod: &Pod,
    facts: &NodeFacts,
    attempt: u32,
    network: PodNetwork,
) -> Result<SandboxSpec, String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(annotations::labels(pod, None));
    Ok(SandboxSpec {
        pod: Identity {
            uid: uid(pod).into(),
            namespace: namespace(pod).into(),
            name: name(pod).into(),
        },
        attempt,
        hostname: hostname::kernel_name(pod, &facts.cluster_domain)?,
        network,
        ipc: if spec.host_ipc == Some(true) { Namespace::Host } else { Namespace::Pod },
        pid: match (spec.host_pid, spec.share_process_namespace) {
            (Some(true), _) => Namespace::Host,
            (_, Some(true)) => Namespace::Pod,
            _ => Namespace::Container,
        },
        sysctls: sysctls(spec),
        users: None,
        cgroup: resources::cgroup(pod, facts),
        resources: resources::of_pod(pod, facts),
        log_directory: facts.log_dir(namespace(pod), name(pod), uid(pod)),
        dns: Some(dns::dns(pod, facts, &files::nodes_resolv_conf(facts)).0),
        ports: if host_network(pod) { Vec::new() } else { ports(spec) },
        labels,
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        handler: String::new(),
    })
}

/// Host ports of the pod's regular containers and sidecars.
fn ports(spec: &PodSpec) -> Vec<PortMapping> {
    let ports =
        lasting_containers(spec).flat_map(|(_, container)| container.ports.iter().flatten());
    let mapped = ports.filter_map(|port| {
        let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
        Some(PortMapping {
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            host_ip: port.host_ip.as_deref().and_then(|ip| ip.parse().ok()),
            host_port: number(port.host_port?)?,
            container_port: number(port.container_port)?,
        })
    });
    mapped.collect()
}

fn sysctls(spec: &PodSpec) -> BTreeMap<String, String> {
    let given = spec.security_context.as_ref().and_then(|context| context.sysctls.as_ref());
    given.into_iter().flatten().map(|it| (dotted_sysctl(&it.name), it.value.clone())).collect()
}

/// Turns `net/ipv4/conf/eth0.1/x` into `net.ipv4.conf.eth0/1.x`. The first separator tells which
/// form it is.
pub fn dotted_sysctl(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name[at..].starts_with('.')) {
        return name.to_owned();
    }
    let swapped = |c: char| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swapped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn build(mut pod_spec: Value) -> Result<SandboxSpec, String> {
        if pod_spec["containers"].is_null() {
            pod_spec["containers"] = json!([{ "name": "c" }]);
        }
        let pod = json!({ "metadata": { "name": "p", "namespace": "ns", "uid": "u", "labels": { "app": "x" } },
            "spec": pod_spec });
        let pod = typed::from_value(pod).unwrap();
        spec(&pod, &NodeFacts::new("n", "/tmp"), 3, PodNetwork::Runtime)
    }

    /// The cgroup (N-105), namespaces (N-123) and log directory (N-157) of a pod that asks for
    /// nothing special.
    #[test]
    fn a_plain_pod_gets_its_own_namespaces() {
        let sandbox = build(json!({})).unwrap();
        assert_eq!((sandbox.ipc, sandbox.pid), (Namespace::Pod, Namespace::Container));
        assert_eq!((sandbox.attempt, sandbox.hostname.as_deref()), (3, Some("p")));
        assert_eq!(sandbox.cgroup, "/kubepods/besteffort/podu");
        assert_eq!(sandbox.log_directory, std::path::Path::new("/var/log/pods/ns_p_u"));
        assert_eq!(sandbox.labels["app"], "x");
        assert_eq!(sandbox.labels["io.kubernetes.pod.uid"], "u");
    }

    #[test]
    fn n_123_a_pod_may_share_the_nodes_namespaces() {
        let host = build(json!({ "hostPID": true, "hostIPC": true, "hostNetwork": true })).unwrap();
        assert_eq!((host.ipc, host.pid, host.hostname), (Namespace::Host, Namespace::Host, None));
        let shared = build(json!({ "shareProcessNamespace": true })).unwrap();
        assert_eq!(shared.pid, Namespace::Pod);
    }

    #[test]
    fn n_51_host_ports_of_regular_containers_and_sidecars_are_mapped() {
        let port = |host: i32| json!([{ "containerPort": 80, "hostPort": host, "protocol": "UDP", "hostIP": "127.0.0.1" }]);
        let spec = json!({
            "containers": [{ "name": "c", "ports": port(8080) }, { "name": "d", "ports": [{ "containerPort": 1 }] }],
            "initContainers": [
                { "name": "i", "ports": port(1111) },
                { "name": "s", "restartPolicy": "Always", "ports": port(9090) },
            ],
        });
        let sandbox = build(spec).unwrap();
        let mut ports: Vec<u16> = sandbox.ports.iter().map(|port| port.host_port).collect();
        ports.sort_unstable();
        assert_eq!(ports, [8080, 9090]);
        assert_eq!(sandbox.ports[0].protocol, "UDP");
        assert_eq!(sandbox.ports[0].host_ip, Some("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn n_131_both_forms_of_a_sysctl_name_become_the_dotted_one() {
        let sandbox = build(json!({ "securityContext": { "sysctls": [
            { "name": "net/ipv4/conf/eth0.1/x", "value": "1" }, { "name": "kernel.sem", "value": "2" },
        ] } }))
        .unwrap();
        let names: Vec<_> = sandbox.sysctls.keys().collect();
        assert_eq!(names, ["kernel.sem", "net.ipv4.conf.eth0/1.x"]);
    }
}
