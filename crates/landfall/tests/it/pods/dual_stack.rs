//! A cluster with IPv4 and IPv6: pods, Services, names and policies of both families, as kubectl users see them.

use super::services::{apply, client, fetch, get};
use crate::harness::{Cluster, Kubectl, down, other_runtime};
use crate::kernel_state::KernelState;
use std::net::{IpAddr, SocketAddr};

/// Answers every request with the pod's name and its addresses, at addresses of both families.
const SERVER: &str = "
import http.server, os, socket
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = os.environ['IPS'].encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
Server(('::', 8080), Answers).serve_forever()
";

/// A pod, and a Service of it with both families.
fn web() -> String {
    let server = SERVER.lines().map(|line| format!("          {line}\n")).collect::<String>();
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    image: python:1
    command: [python3, -c]
    args:
      - |
{server}
    env: [{{name: IPS, valueFrom: {{fieldRef: {{fieldPath: status.podIPs}}}}}}]
    ports: [{{containerPort: 8080, name: http}}]
    readinessProbe: {{tcpSocket: {{port: http}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: http}}]
"
    )
}

/// The values that a JSON path has, one per family: IPv4 first.
fn pair(kubectl: &Kubectl, object: &str, path: &str) -> [IpAddr; 2] {
    let text = kubectl.ok(&format!("kubectl get {object} -o jsonpath='{{{path}}}'"));
    let found: Vec<IpAddr> = text.split_whitespace().map(|ip| ip.parse().expect("an IP")).collect();
    assert!(matches!(found[..], [IpAddr::V4(_), IpAddr::V6(_)]), "{object} {path}: {text}");
    [found[0], found[1]]
}

/// NET-13, NET-14, NET-26, NET-36, NET-75, NET-96, NET-125: from kubectl to packets of both families.
#[test]
fn net_26_services_and_pods_with_both_families_are_reached_by_both() {
    if other_runtime().is_some() {
        return; // The runtime provides the network.
    }
    let kernel = KernelState::capture();
    let cluster = Cluster::with_both_families(&["python"]);
    let kubectl = &cluster.kubectl();
    apply(kubectl, &web());
    client(kubectl);
    kubectl.ok("kubectl wait --for=condition=Ready pod/web --timeout=30s");
    let pod = pair(kubectl, "pod web", ".status.podIPs[*].ip");
    let service = pair(kubectl, "service web", ".spec.clusterIPs[*]");
    let node = pair(kubectl, "node n1", ".status.addresses[?(@.type==\"InternalIP\")].address");
    let port = kubectl.ok("kubectl get service web -o jsonpath='{.spec.ports[0].nodePort}'");
    let port: u16 = port.trim().parse().expect("a port");
    let expected = format!("{},{}", pod[0], pod[1]);
    let of_slice = |family: &str| {
        kubectl.ok(&format!(
            "kubectl get endpointslices -l kubernetes.io/service-name=web \
             -o jsonpath='{{.items[?(@.addressType==\"{family}\")].endpoints[*].addresses[*]}}'"
        ))
    };
    for (index, family) in ["IPv4", "IPv6"].into_iter().enumerate() {
        assert_eq!(of_slice(family).trim(), pod[index].to_string(), "the slice of {family}");
        // The pod, the Service and its node port, from this host; the Service, from a pod.
        for (address, port) in [(pod[index], 8080), (service[index], 80), (node[index], port)] {
            let answer = get(SocketAddr::new(address, port));
            let answer = answer.unwrap_or_else(|error| panic!("{address}:{port}: {error}"));
            assert_eq!(answer, expected, "{address}:{port}");
        }
        let url = format!("http://{}/", SocketAddr::new(service[index], 80));
        assert_eq!(kubectl.ok(&fetch(&url)).trim(), expected, "{url}");
    }
    let names = kubectl.ok("kubectl exec client -- python3 -c '
import socket
for family in socket.AF_INET, socket.AF_INET6:
    print(socket.getaddrinfo(\"web\", 80, family, socket.SOCK_STREAM)[0][4][0])'");
    let names: Vec<&str> = names.split_whitespace().collect();
    assert_eq!(names, service.map(|ip| ip.to_string()), "A and AAAA");

    // A policy isolates a pod in both families.
    apply(
        kubectl,
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}",
    );
    let blocked = fetch(&format!("http://[{}]:8080/", pod[1]));
    kubectl
        .ok(&format!("for i in $(seq 20); do {blocked} >/dev/null 2>&1 || exit 0; done; exit 1"));
    kubectl.ok("kubectl delete networkpolicy web");

    // Without the second family, the Service has one address, one slice and no rules of IPv6.
    kubectl.ok("kubectl patch service web -p '{\"spec\": {\"ipFamilyPolicy\": \"SingleStack\"}}'
                for i in $(seq 100); do
                  [ $(kubectl get endpointslices -l kubernetes.io/service-name=web --no-headers | wc -l) = 1 ] && exit 0
                done; exit 1");
    assert_eq!(of_slice("IPv6").trim(), "");
    assert_eq!(get(SocketAddr::new(service[0], 80)).unwrap(), expected);
    assert!(get(SocketAddr::new(node[1], port)).is_err(), "the node port of IPv6 is closed");
    kubectl.ok("kubectl delete pods --all --grace-period=1; kubectl delete service web");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}
