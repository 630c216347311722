//! Where requests are sent: the Service in front of the workload, its port, and the addresses to try.
//!
//! Pure. Not here: trying them (`target`).

use crate::error::{Error, Result};
use crate::workload::Workload;
use k8s_openapi::api::core::v1::{Container, Node, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// An address that may lead to the Service, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) what: String,
}

/// Addresses that are tried at most.
const CANDIDATES_MAX: usize = 8;

/// The Service that selects the workload's pods: the named one, else the first by name that has an address.
pub(crate) fn choose(
    workload: &Workload,
    services: Vec<Service>,
    wanted: Option<&str>,
) -> Result<Service> {
    let labels = workload.pod_labels();
    let selects = |service: &Service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| {
            !selector.is_empty()
                && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        })
    };
    let name = |service: &Service| service.metadata.name.clone().unwrap_or_default();
    let mut found: Vec<Service> = services
        .into_iter()
        .filter(|service| wanted.is_none_or(|wanted| name(service) == wanted))
        .filter(|service| wanted.is_some() || selects(service))
        .collect();
    found.sort_by_key(|service| (is_headless(service), name(service)));
    found.into_iter().next().ok_or_else(|| Error::NoService {
        namespace: workload.id.key.namespace().to_owned(),
        workload: workload.id.to_string(),
    })
}

fn is_headless(service: &Service) -> bool {
    cluster_ip(service).is_none()
}

fn cluster_ip(service: &Service) -> Option<&str> {
    let address = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!address.is_empty() && address != "None").then_some(address)
}

/// The wanted port, by number or name; else the one called `http`, number 80, or the first.
pub(crate) fn choose_port(service: &Service, wanted: Option<&str>) -> Result<ServicePort> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.clone()).unwrap_or_default();
    let tcp: Vec<ServicePort> = ports
        .into_iter()
        .filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP")
        .collect();
    let is = |port: &ServicePort, text: &str| {
        port.name.as_deref() == Some(text) || port.port.to_string() == text
    };
    let found = match wanted {
        Some(wanted) => tcp.iter().find(|port| is(port, wanted)),
        None => ["http", "80"]
            .iter()
            .find_map(|usual| tcp.iter().find(|port| is(port, usual)))
            .or(tcp.first()),
    };
    found.cloned().ok_or_else(|| Error::NoPort {
        service: service.metadata.name.clone().unwrap_or_default(),
        wanted: wanted.map(|wanted| format!(" {wanted}")).unwrap_or_default(),
        ports: match tcp.is_empty() {
            true => "none".to_owned(),
            false => tcp.iter().map(|port| port.port.to_string()).collect::<Vec<_>>().join(", "),
        },
    })
}

/// The container that serves this port: the one that declares it, else the first.
pub(crate) fn serving_container<'a>(
    workload: &'a Workload,
    port: &ServicePort,
) -> Option<&'a Container> {
    let target = port.target_port.clone().unwrap_or(IntOrString::Int(port.port));
    let declares = |container: &&Container| {
        container.ports.iter().flatten().any(|declared| match &target {
            IntOrString::Int(number) => declared.container_port == *number,
            IntOrString::String(name) => declared.name.as_ref() == Some(name),
        })
    };
    let containers = workload.containers();
    containers.iter().find(declares).or(containers.first())
}

/// Addresses to try, in this order: cluster IP, load balancer, node ports.
pub(crate) fn candidates(service: &Service, port: &ServicePort, nodes: &[Node]) -> Vec<Candidate> {
    let number = |port: i32| u16::try_from(port).unwrap_or(0);
    let mut all = Vec::new();
    if let Some(address) = cluster_ip(service) {
        all.push(Candidate {
            host: address.to_owned(),
            port: number(port.port),
            what: "cluster IP".to_owned(),
        });
    }
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    for ingress in balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default() {
        let host = ingress.ip.clone().or(ingress.hostname.clone());
        all.extend(host.map(|host| Candidate {
            host,
            port: number(port.port),
            what: "load balancer".to_owned(),
        }));
    }
    if let Some(node_port) = port.node_port.filter(|port| *port > 0) {
        all.extend(nodes.iter().flat_map(node_addresses).map(|(node, host)| Candidate {
            host,
            port: number(node_port),
            what: format!("node port on {node}"),
        }));
    }
    all.truncate(CANDIDATES_MAX);
    all
}

fn node_addresses(node: &Node) -> Vec<(String, String)> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref());
    let mut found: Vec<_> = addresses
        .unwrap_or_default()
        .iter()
        .filter(|address| ["InternalIP", "ExternalIP"].contains(&address.type_.as_str()))
        .collect();
    found.sort_by_key(|address| address.type_ == "InternalIP");
    found.iter().map(|address| (name.clone(), address.address.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::deployment;
    use serde_json::{Value, json};

    fn service(name: &str, spec: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    #[test]
    fn the_service_is_found_by_its_selector() {
        let services = || {
            vec![
                service("a-headless", json!({"clusterIP": "None", "selector": {"app": "web"}})),
                service("other", json!({"clusterIP": "10.0.0.1", "selector": {"app": "db"}})),
                service("web", json!({"clusterIP": "10.0.0.2", "selector": {"app": "web"}})),
                service("none", json!({"clusterIP": "10.0.0.3"})),
            ]
        };
        let workload = deployment(json!({}));
        let name = |wanted| {
            choose(&workload, services(), wanted).map(|service| service.metadata.name.unwrap())
        };
        assert_eq!(name(None).unwrap(), "web", "one with an address comes first");
        assert_eq!(name(Some("other")).unwrap(), "other");
        assert!(name(Some("missing")).unwrap_err().to_string().contains("--service"));
    }

    #[test]
    fn ports_are_chosen_by_name_number_or_custom() {
        let web = service(
            "web",
            json!({"ports": [
            {"port": 53, "protocol": "UDP"}, {"port": 9000, "name": "metrics"},
            {"port": 8080, "name": "http", "targetPort": "web"}]}),
        );
        let number = |wanted| choose_port(&web, wanted).map(|port| port.port);
        assert_eq!(number(None).unwrap(), 8080);
        assert_eq!(number(Some("metrics")).unwrap(), 9000);
        assert_eq!(number(Some("9000")).unwrap(), 9000);
        assert!(number(Some("53")).unwrap_err().to_string().contains("it has 9000, 8080"));
        let one = service("one", json!({"ports": [{"port": 9000}]}));
        assert_eq!(choose_port(&one, None).unwrap().port, 9000);
    }

    #[test]
    fn the_container_with_the_port_serves() {
        let workload = deployment(json!({"template": {"spec": {"containers": [
            {"name": "log"}, {"name": "app", "ports": [{"containerPort": 8080, "name": "web"}]}]}}}));
        let port = |target: Value| {
            let port = json!({"port": 80, "targetPort": target});
            serde_json::from_value::<ServicePort>(port).unwrap()
        };
        let name = |target| serving_container(&workload, &port(target)).unwrap().name.as_str();
        assert_eq!(name(json!(8080)), "app");
        assert_eq!(name(json!("web")), "app");
        assert_eq!(name(json!(1)), "log", "undeclared ports are served by the first container");
    }

    #[test]
    fn every_kind_of_address_is_tried() {
        let mut web = service(
            "web",
            json!({"clusterIP": "10.0.0.2",
            "ports": [{"port": 80, "nodePort": 30001}]}),
        );
        web.status =
            serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}))
                .unwrap();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"addresses": [
            {"type": "InternalIP", "address": "192.168.0.1"}, {"type": "Hostname", "address": "n"}]}})).unwrap();
        let port = choose_port(&web, None).unwrap();
        let all = candidates(&web, &port, &[node]);
        let texts: Vec<String> =
            all.iter().map(|one| format!("{} {}:{}", one.what, one.host, one.port)).collect();
        assert_eq!(
            texts,
            [
                "cluster IP 10.0.0.2:80",
                "load balancer 1.2.3.4:80",
                "node port on n 192.168.0.1:30001"
            ]
        );
    }
}
