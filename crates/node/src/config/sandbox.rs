//! What the pod's sandbox should be: namespaces, cgroup, names, ports (N-51, N-123, N-131).

use super::identity::{host_network, name, namespace, uid};
use super::{NodeFacts, dns, files, hostname, notes, resources};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use lifecycle::containers::lasting_containers;
use runtime::{Identity, Namespace, PodNetwork, PortMapping, SandboxSpec};
use std::collections::BTreeMap;

pub(crate) fn spec(
    pod: &Pod,
    facts: &NodeFacts,
    attempt: u32,
    network: PodNetwork,
) -> Result<SandboxSpec, String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    if spec.host_users == Some(false) {
        return Err(
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces".into()
        );
    }
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(notes::labels(pod, None));
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

/// Ports of the node that lead to the pod; sidecars' too.
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
    given.into_iter().flatten().map(|it| (dotted(&it.name), it.value.clone())).collect()
}

/// `net/ipv4/conf/eth0.1/x` is `net.ipv4.conf.eth0/1.x`: the first separator says which it is.
fn dotted(name: &str) -> String {
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

    fn made(spec_wanted: Value) -> Result<SandboxSpec, String> {
        let mut wanted = spec_wanted;
        if wanted["containers"].is_null() {
            wanted["containers"] = json!([{ "name": "c" }]);
        }
        let pod = json!({ "metadata": { "name": "p", "namespace": "ns", "uid": "u", "labels": { "app": "x" } },
            "spec": wanted });
        let pod = typed::from_value(pod).unwrap();
        spec(&pod, &NodeFacts::new("n", "/tmp"), 3, PodNetwork::Runtime)
    }

    /// N-105, N-123, N-157
    #[test]
    fn a_plain_pod_has_namespaces_of_its_own() {
        let made = made(json!({})).unwrap();
        assert_eq!((made.ipc, made.pid), (Namespace::Pod, Namespace::Container));
        assert_eq!((made.attempt, made.hostname.as_deref()), (3, Some("p")));
        assert_eq!(made.cgroup, "/kubepods/besteffort/podu");
        assert_eq!(made.log_directory, std::path::Path::new("/var/log/pods/ns_p_u"));
        assert_eq!(made.labels["app"], "x");
        assert_eq!(made.labels["io.kubernetes.pod.uid"], "u");
    }

    /// N-123, N-124
    #[test]
    fn a_pod_may_share_the_nodes_namespaces() {
        let host = made(json!({ "hostPID": true, "hostIPC": true, "hostNetwork": true })).unwrap();
        assert_eq!((host.ipc, host.pid, host.hostname), (Namespace::Host, Namespace::Host, None));
        let shared = made(json!({ "shareProcessNamespace": true })).unwrap();
        assert_eq!(shared.pid, Namespace::Pod);
        let refused = made(json!({ "hostUsers": false })).unwrap_err();
        assert_eq!(
            refused,
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
    }

    /// N-51
    #[test]
    fn host_ports_of_regular_containers_and_sidecars_are_mapped() {
        let port = |host: i32| json!([{ "containerPort": 80, "hostPort": host, "protocol": "UDP", "hostIP": "127.0.0.1" }]);
        let spec = json!({
            "containers": [{ "name": "c", "ports": port(8080) }, { "name": "d", "ports": [{ "containerPort": 1 }] }],
            "initContainers": [
                { "name": "i", "ports": port(1111) },
                { "name": "s", "restartPolicy": "Always", "ports": port(9090) },
            ],
        });
        let made = made(spec).unwrap();
        let mut ports: Vec<u16> = made.ports.iter().map(|port| port.host_port).collect();
        ports.sort_unstable();
        assert_eq!(ports, [8080, 9090]);
        assert_eq!(made.ports[0].protocol, "UDP");
        assert_eq!(made.ports[0].host_ip, Some("127.0.0.1".parse().unwrap()));
    }

    /// N-131
    #[test]
    fn both_spellings_of_a_sysctl_are_one() {
        let made = made(json!({ "securityContext": { "sysctls": [
            { "name": "net/ipv4/conf/eth0.1/x", "value": "1" }, { "name": "kernel.sem", "value": "2" },
        ] } }))
        .unwrap();
        let names: Vec<_> = made.sysctls.keys().collect();
        assert_eq!(names, ["kernel.sem", "net.ipv4.conf.eth0/1.x"]);
    }
}
