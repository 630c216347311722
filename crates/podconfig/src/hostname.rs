//! A pod's hostname and domain (N-61).

use crate::identity::{name, namespace};
use k8s_openapi::api::core::v1::Pod;

/// Longest hostname that the kernel accepts.
const KERNEL_MAX: usize = 64;
const LABEL_MAX: usize = 63;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hostname {
    pub(crate) host: String,
    /// Set if the pod has a subdomain.
    pub(crate) domain: Option<String>,
}

pub(crate) fn hostname(pod: &Pod, cluster_domain: &str) -> Result<Hostname, String> {
    let given = |field: Option<&String>| field.filter(|text| !text.is_empty()).cloned();
    let spec = pod.spec.as_ref();
    if let Some(host) = given(spec.and_then(|spec| spec.hostname_override.as_ref())) {
        if host.len() > KERNEL_MAX {
            return Err(format!(
                "hostnameOverride {host:?} is too long ({KERNEL_MAX} characters is the max, {} \
                 characters requested)",
                host.len()
            ));
        }
        return Ok(Hostname { host, domain: None });
    }
    let host = match given(spec.and_then(|spec| spec.hostname.as_ref())) {
        Some(host) => host,
        None => shortened(name(pod))?,
    };
    let subdomain = given(spec.and_then(|spec| spec.subdomain.as_ref()));
    let domain = subdomain.map(|sub| format!("{sub}.{}.svc.{cluster_domain}", namespace(pod)));
    Ok(Hostname { host, domain })
}

fn shortened(name: &str) -> Result<String, String> {
    let end =
        name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= LABEL_MAX);
    let short = name[..end.last().unwrap_or(0)].trim_end_matches(['-', '.']);
    match short.is_empty() {
        true => Err(format!("hostname for pod {name:?} was invalid: {name:?}")),
        false => Ok(short.to_owned()),
    }
}

/// The hostname that the kernel reports in the pod; None for host network pods, which keep the node's.
pub(crate) fn kernel_name(pod: &Pod, cluster_domain: &str) -> Result<Option<String>, String> {
    if crate::identity::host_network(pod) {
        return Ok(None);
    }
    let Hostname { host, domain } = hostname(pod, cluster_domain)?;
    let as_fqdn = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn) == Some(true);
    let Some(domain) = domain.filter(|_| as_fqdn) else { return Ok(Some(host)) };
    let fqdn = format!("{host}.{domain}");
    if fqdn.len() > KERNEL_MAX {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
             ({KERNEL_MAX} characters is the max, {} characters requested)",
            fqdn.len()
        ));
    }
    Ok(Some(fqdn))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let pod = json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": spec });
        typed::from_value(pod).unwrap()
    }

    /// NET-110; NET-12: a pod of the host network has the node's name.
    #[test]
    fn n_61_the_hostname_is_the_specs_or_the_pods_name() {
        let long = format!("{}-.x", "a".repeat(62));
        for (name, spec, kernel) in [
            ("web-0", json!({}), Some("web-0")),
            ("web-0", json!({ "hostname": "db" }), Some("db")),
            ("web-0", json!({ "subdomain": "s" }), Some("web-0")),
            (
                "web-0",
                json!({ "subdomain": "s", "setHostnameAsFQDN": true }),
                Some("web-0.s.ns.svc.c.l"),
            ),
            ("web-0", json!({ "setHostnameAsFQDN": true }), Some("web-0")),
            ("web-0", json!({ "hostnameOverride": "x.y.z", "hostname": "db" }), Some("x.y.z")),
            ("web-0", json!({ "hostNetwork": true, "hostname": "db" }), None),
            (&long, json!({}), Some(&"a".repeat(62))),
        ] {
            let pod = pod(name, spec);
            assert_eq!(kernel_name(&pod, "c.l").unwrap().as_deref(), kernel, "{pod:?}");
        }
        let with_domain = hostname(&pod("a", json!({ "subdomain": "s" })), "c.l").unwrap();
        assert_eq!(with_domain.domain.as_deref(), Some("s.ns.svc.c.l"));
    }

    #[test]
    fn n_61_an_fqdn_that_is_too_long_for_the_kernel_is_an_error() {
        let spec = json!({ "subdomain": "s".repeat(60), "setHostnameAsFQDN": true });
        let error = kernel_name(&pod("web", spec), "cluster.local").unwrap_err();
        assert!(
            error.contains("is too long (64 characters is the max, 85 characters requested)"),
            "{error}"
        );
    }
}
