//! `/etc/hosts` of a pod (N-59). Conformance tests compare its first lines exactly.

use crate::hostname::Hostname;
use k8s_openapi::api::core::v1::Pod;
use std::net::IpAddr;

const FOR_POD: &str = "# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";
const FOR_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";

/// For a pod with its own network.
pub(crate) fn for_pod(pod: &Pod, ips: &[IpAddr], hostname: &Hostname) -> String {
    let mut text = FOR_POD.to_owned();
    let host = &hostname.host;
    for ip in ips {
        match &hostname.domain {
            Some(domain) => text.push_str(&format!("{ip}\t{host}.{domain}\t{host}\n")),
            None => text.push_str(&format!("{ip}\t{host}\n")),
        }
    }
    text + &aliases(pod)
}

/// For a host network pod; `nodes` is the content of the node's file.
pub(crate) fn for_host_network(pod: &Pod, nodes: &str) -> String {
    format!("{FOR_HOST_NETWORK}{nodes}{}", aliases(pod))
}

fn aliases(pod: &Pod) -> String {
    let aliases = pod.spec.as_ref().and_then(|spec| spec.host_aliases.as_deref());
    let aliases = aliases.unwrap_or_default();
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = "\n# Entries added by HostAliases.\n".to_owned();
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default();
        text.push_str(&format!("{}\t{}\n", alias.ip, names.join("\t")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        typed::from_value(json!({ "spec": { "containers": [], "hostAliases": [
            { "ip": "1.2.3.4", "hostnames": ["a", "b"] }, { "ip": "::5", "hostnames": ["c"] },
        ] } }))
        .unwrap()
    }

    /// NET-111: header, names of this host, the pod's addresses and its aliases.
    #[test]
    fn n_59_the_hosts_file_of_a_pod_is_identical_to_upstreams() {
        let hostname =
            Hostname { host: "web".into(), domain: Some("s.ns.svc.cluster.local".into()) };
        let ips = ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        let expected = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
            ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
            fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
            10.0.0.5\tweb.s.ns.svc.cluster.local\tweb\nfd00::5\tweb.s.ns.svc.cluster.local\tweb\n\
            \n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n::5\tc\n";
        assert_eq!(for_pod(&pod(), &ips, &hostname), expected);

        let plain = Hostname { host: "web".into(), domain: None };
        let text = for_pod(&Pod::default(), &ips[..1], &plain);
        assert!(text.ends_with("fe00::2\tip6-allrouters\n10.0.0.5\tweb\n"), "{text}");
    }

    /// NET-12, NET-111: another header, and the node's file.
    #[test]
    fn n_59_a_host_network_pod_keeps_the_nodes_entries() {
        let text = for_host_network(&pod(), "127.0.0.1 localhost\n");
        let expected = "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n\
            \n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n::5\tc\n";
        assert_eq!(text, expected);
    }
}
