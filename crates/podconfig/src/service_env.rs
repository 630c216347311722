//! Environment variables with the addresses of Services (N-57).

use k8s_openapi::api::core::v1::{Pod, Service};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The Service that every container gets variables of.
const API: (&str, &str) = ("default", "kubernetes");

/// `services` are those of the pod's namespace and `default/kubernetes`.
pub(crate) fn variables(pod: &Pod, services: &[Arc<Service>]) -> BTreeMap<String, String> {
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links) != Some(false);
    let namespace = crate::identity::namespace(pod);
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services.iter().filter(|service| address(service).is_some()) {
        let of = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        if of == namespace && links {
            chosen.insert(name, service);
        } else if (of, name) == API {
            chosen.entry(name).or_insert(service);
        }
    }
    let mut variables = BTreeMap::new();
    chosen.into_iter().for_each(|(name, service)| add(&mut variables, name, service));
    variables
}

/// None for headless Services and those of type ExternalName.
fn address(service: &Service) -> Option<&str> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None")
}

fn add(variables: &mut BTreeMap<String, String>, name: &str, service: &Service) {
    let Some(ip) = address(service) else { return };
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let Some(first) = ports.first() else { return };
    let name = as_variable(name);
    let mut set = |key: String, value: String| variables.insert(format!("{name}_{key}"), value);
    let url = |port: i32, protocol: &str| {
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        format!("{}://{host}:{port}", protocol.to_lowercase())
    };

    set("SERVICE_HOST".into(), ip.into());
    set("SERVICE_PORT".into(), first.port.to_string());
    for port in ports {
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            set(format!("SERVICE_PORT_{}", as_variable(port_name)), port.port.to_string());
        }
    }
    let protocol = |given: &Option<String>| given.clone().unwrap_or_else(|| "TCP".into());
    set("PORT".into(), url(first.port, &protocol(&first.protocol)));
    for port in ports {
        let protocol = protocol(&port.protocol);
        let prefix = format!("PORT_{}_{}", port.port, protocol.to_uppercase());
        set(prefix.clone(), url(port.port, &protocol));
        set(format!("{prefix}_PROTO"), protocol.to_lowercase());
        set(format!("{prefix}_PORT"), port.port.to_string());
        set(format!("{prefix}_ADDR"), ip.into());
    }
}

fn as_variable(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(namespace: &str, name: &str, ip: &str) -> Arc<Service> {
        let service = typed::from_value(json!({
            "metadata": { "namespace": namespace, "name": name },
            "spec": { "clusterIP": ip, "ports": [
                { "name": "https-web", "port": 443, "protocol": "TCP" },
                { "port": 53, "protocol": "UDP" },
            ] },
        }));
        Arc::new(service.unwrap())
    }

    fn pod(links: Option<bool>) -> Pod {
        typed::from_value(json!({
            "metadata": { "namespace": "shop", "name": "p" },
            "spec": { "enableServiceLinks": links, "containers": [] },
        }))
        .unwrap()
    }

    /// NET-17: all variables of a Service.
    #[test]
    fn n_57_a_service_has_the_variables_of_both_conventions() {
        let variables = variables(&pod(None), &[service("shop", "my-db", "10.0.0.9")]);
        let expected = [
            ("MY_DB_PORT", "tcp://10.0.0.9:443"),
            ("MY_DB_PORT_443_TCP", "tcp://10.0.0.9:443"),
            ("MY_DB_PORT_443_TCP_ADDR", "10.0.0.9"),
            ("MY_DB_PORT_443_TCP_PORT", "443"),
            ("MY_DB_PORT_443_TCP_PROTO", "tcp"),
            ("MY_DB_PORT_53_UDP", "udp://10.0.0.9:53"),
            ("MY_DB_PORT_53_UDP_ADDR", "10.0.0.9"),
            ("MY_DB_PORT_53_UDP_PORT", "53"),
            ("MY_DB_PORT_53_UDP_PROTO", "udp"),
            ("MY_DB_SERVICE_HOST", "10.0.0.9"),
            ("MY_DB_SERVICE_PORT", "443"),
            ("MY_DB_SERVICE_PORT_HTTPS_WEB", "443"),
        ];
        let variables: Vec<_> = variables.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(variables, expected);
    }

    /// NET-17: of which Services a pod gets variables.
    #[test]
    fn n_57_default_kubernetes_needs_no_service_links_and_headless_services_have_no_variables() {
        let services = [
            service("default", "kubernetes", "fd00::1"),
            service("default", "other", "10.0.0.2"),
            service("shop", "db", "10.0.0.3"),
            service("shop", "headless", "None"),
        ];
        let hosts = |links| {
            let variables = variables(&pod(links), &services);
            let hosts = variables.into_iter().filter(|(name, _)| name.ends_with("SERVICE_HOST"));
            hosts.map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(hosts(Some(false)), ["fd00::1"]);
        assert_eq!(hosts(Some(true)), ["10.0.0.3", "fd00::1"]);
        let variables = variables(&pod(None), &services);
        assert_eq!(variables["KUBERNETES_PORT"], "tcp://[fd00::1]:443");
        assert_eq!(variables["KUBERNETES_PORT_443_TCP_ADDR"], "fd00::1");
    }
}
