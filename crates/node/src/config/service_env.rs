//! Variables that tell a container where services are (N-57).

use k8s_openapi::api::core::v1::{Pod, Service};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The one service everybody is told of.
const API: (&str, &str) = ("default", "kubernetes");

/// `services` are those of the pod's namespace, and the API's own.
pub(crate) fn variables(pod: &Pod, services: &[Arc<Service>]) -> BTreeMap<String, String> {
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links) != Some(false);
    let namespace = super::identity::namespace(pod);
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services.iter().filter(|service| address(service).is_some()) {
        let place = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        if place == namespace && links {
            chosen.insert(name, service);
        } else if (place, name) == API {
            chosen.entry(name).or_insert(service);
        }
    }
    let mut variables = BTreeMap::new();
    chosen.into_iter().for_each(|(name, service)| add(&mut variables, name, service));
    variables
}

/// Headless services and those of type ExternalName have none.
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

    /// N-57
    #[test]
    fn a_service_is_told_in_all_the_old_ways() {
        let told = variables(&pod(None), &[service("shop", "my-db", "10.0.0.9")]);
        let wanted = [
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
        let told: Vec<_> = told.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(told, wanted);
    }

    /// N-57
    #[test]
    fn the_api_is_told_even_without_links_and_headless_services_never() {
        let services = [
            service("default", "kubernetes", "fd00::1"),
            service("default", "other", "10.0.0.2"),
            service("shop", "db", "10.0.0.3"),
            service("shop", "headless", "None"),
        ];
        let hosts = |links| {
            let told = variables(&pod(links), &services);
            let hosts = told.into_iter().filter(|(name, _)| name.ends_with("SERVICE_HOST"));
            hosts.map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(hosts(Some(false)), ["fd00::1"]);
        assert_eq!(hosts(Some(true)), ["10.0.0.3", "fd00::1"]);
        let told = variables(&pod(None), &services);
        assert_eq!(told["KUBERNETES_PORT"], "tcp://[fd00::1]:443");
        assert_eq!(told["KUBERNETES_PORT_443_TCP_ADDR"], "fd00::1");
    }
}
