//! Services with real containers and real traffic, as kubectl users set them up.

use super::{on_a_node, on_a_node_with};
use crate::harness::{Cluster, Kubectl, down, other_runtime};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Every answer takes milliseconds. After this time a request has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers every request with the pod's name. On SIGTERM it closes its port at once and exits, or after LINGER seconds.
const SERVER: &str = "
import http.server, os, signal, threading
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = os.uname().nodename.encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
def stop(*_):
    linger = float(os.environ.get('LINGER', 0))
    threading.Timer(linger, os._exit, [0]).start() if linger else os._exit(0)
signal.signal(signal.SIGTERM, stop)
http.server.ThreadingHTTPServer(('', 8080), Answers).serve_forever()
";

/// A Deployment and a Service of it, as YAML. `extra` is added to the pod's container.
pub(super) fn web(replicas: u32, extra: &str) -> String {
    let server = SERVER.lines().map(|line| format!("            {line}\n")).collect::<String>();
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - name: server
        image: python:1
        command: [python3, -c]
        args:
          - |
{server}
        ports: [{{containerPort: 8080, name: http}}]
        readinessProbe: {{tcpSocket: {{port: http}}, periodSeconds: 1}}
{extra}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: NodePort
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: http}}]
"
    )
}

pub(super) fn apply(kubectl: &Kubectl, manifest: &str) {
    kubectl.ok(&format!("kubectl apply -f - <<'END'\n{manifest}\nEND"));
}

/// A pod that sends requests.
pub(super) fn client(kubectl: &Kubectl) {
    kubectl.ok("kubectl run client --image=python:1 --labels=app=client -- sleep 1000
                kubectl wait --for=condition=Ready pod/client --timeout=30s");
}

/// The command that requests a URL from the pod `client` and prints the answer. It trusts the cluster's authority.
pub(super) fn fetch(url: &str) -> String {
    format!(
        "kubectl exec client -- python3 -c '
import ssl, urllib.request
account = \"/var/run/secrets/kubernetes.io/serviceaccount/\"
trusted = ssl.create_default_context(cafile=account + \"ca.crt\")
token = open(account + \"token\").read()
request = urllib.request.Request(\"{url}\", headers={{\"Authorization\": \"Bearer \" + token}})
print(urllib.request.urlopen(request, context=trusted, timeout=3).read().decode())'"
    )
}

/// The command that prints the addresses of a name, as the pod `client` resolves it.
fn resolve(name: &str) -> String {
    format!(
        "kubectl exec client -- python3 -c '
import socket
print(*sorted(socket.gethostbyname_ex(\"{name}\")[2]))'"
    )
}

/// The address of the Service from outside: a node port.
pub(super) fn node_port(kubectl: &Kubectl) -> SocketAddr {
    let address = kubectl.ok(
        "kubectl get node n1 -o jsonpath='{.status.addresses[?(@.type==\"InternalIP\")].address}'",
    );
    let port = kubectl.ok("kubectl get service web -o jsonpath='{.spec.ports[0].nodePort}'");
    format!("{}:{}", address.trim(), port.trim()).parse().expect("an address")
}

pub(super) fn request(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let value = line.to_ascii_lowercase();
                value.strip_prefix("content-length: ").and_then(|n| n.trim().parse::<usize>().ok())
            });
            if length == Some(body.len()) {
                return Ok(body.to_owned());
            }
        }
    }
}

pub(super) fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A request on a new connection.
pub(super) fn get(to: SocketAddr) -> std::io::Result<String> {
    request(&mut connect(to)?)
}

/// Sends requests on new connections until `done`, and returns how many there were and why some failed.
pub(super) fn load(
    to: SocketAddr,
    done: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<(usize, Vec<ErrorKind>)> {
    let done = done.clone();
    std::thread::spawn(move || {
        let (mut sent, mut failed) = (0, Vec::new());
        while !done.load(Ordering::Relaxed) {
            sent += 1;
            if let Err(error) = get(to) {
                failed.push(error.kind());
            }
        }
        (sent, failed)
    })
}

fn restart(kubectl: &Kubectl) {
    kubectl.ok("kubectl rollout restart deployment/web
                kubectl rollout status deployment/web --timeout=120s");
}

/// Restarts the Deployment under load.
fn restart_under_load(kubectl: &Kubectl) -> (usize, Vec<ErrorKind>) {
    let to = node_port(kubectl);
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4).map(|_| load(to, &done)).collect();
    restart(kubectl);
    // The last old pods end after the rollout is complete.
    kubectl.ok("for i in $(seq 300); do [ $(kubectl get pods -l app=web --no-headers | wc -l) = 2 ] && exit 0; done; exit 1");
    done.store(true, Ordering::Relaxed);
    let results = clients.into_iter().map(|client| client.join().expect("a client"));
    results.fold((0, Vec::new()), |(sent, mut failed), (more, errors)| {
        failed.extend(errors);
        (sent + more, failed)
    })
}

/// NET-19, NET-31, NET-34, NET-36: a ClusterIP from a pod, a node port from outside, no endpoints.
#[test]
fn a_service_is_reached_by_its_cluster_ip_and_its_node_port() {
    on_a_node(&["python"], |_, kubectl| {
        apply(kubectl, &web(2, ""));
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
        client(kubectl);
        let ip = kubectl.ok("kubectl get service web -o jsonpath='{.spec.clusterIP}'");
        let from_pod = fetch(&format!("http://{}/", ip.trim()));
        let names: BTreeSet<String> = (0..20).map(|_| kubectl.ok(&from_pod)).collect();
        assert_eq!(names.len(), 2, "both pods answer: {names:?}");
        let to = node_port(kubectl);
        let outside: BTreeSet<String> = (0..30).map(|_| get(to).unwrap()).collect();
        assert_eq!(outside.len(), 2, "{outside:?}");

        kubectl.ok("kubectl scale deployment/web --replicas=0
                    kubectl wait --for=delete pod -l app=web --timeout=60s");
        assert_eq!(get(to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        kubectl.fails(&from_pod, "refused");
        kubectl.ok("kubectl delete deployment,service web");
    });
}

/// W-31, T-NET-22: an open connection works until the process ends; new ones go to the other pod. NET-16: until then the
/// pod can be reached at its own address, and reaches others.
#[test]
fn w_31_open_connections_survive_a_delete_and_new_ones_go_elsewhere() {
    let linger = "        lifecycle: {preStop: {sleep: {seconds: 20}}}";
    on_a_node(&["python"], |_, kubectl| {
        apply(kubectl, &web(2, linger));
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
        let to = node_port(kubectl);
        let mut open = connect(to).unwrap();
        let pod = request(&mut open).unwrap();
        let address = kubectl.ok(&format!("kubectl get pod {pod} -o jsonpath='{{.status.podIP}}'"));
        kubectl.ok(&format!("kubectl delete pod {pod} --wait=false"));
        kubectl.ok("for i in $(seq 100); do
                      kubectl get endpointslices -l kubernetes.io/service-name=web -o json \
                        | grep -q '\"terminating\": true' && exit 0
                    done; exit 1");
        // The rules follow the slice within milliseconds; a new connection may still be faster.
        let _ = get(to);
        for _ in 0..30 {
            assert_ne!(get(to).unwrap(), pod, "a new connection");
            assert_eq!(request(&mut open).unwrap(), pod, "the open connection");
        }
        let own = format!("{}:8080", address.trim()).parse().expect("an address");
        assert_eq!(get(own).unwrap(), pod, "a new connection to its own address");
        let outward = kubectl.ok(&format!(
            "kubectl exec {pod} -- python3 -c '
import urllib.request
print(urllib.request.urlopen(\"http://{to}/\", timeout=3).read().decode())'"
        ));
        assert!(outward.starts_with("web-") && outward.trim() != pod, "{outward}");
        kubectl.ok("kubectl delete deployment,service web");
    });
}

/// W-32, W-33, W-37: if the packet rules change late, requests are refused; a preStop hook that is longer than the delay
/// removes these failures.
#[test]
fn w_32_late_packet_rules_lose_requests_and_w_33_a_pre_stop_hook_prevents_it() {
    on_a_node_with(&["python"], &["--proxy-delay", "300ms"], |_, kubectl| {
        apply(kubectl, &web(2, ""));
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
        let (sent, failed) = restart_under_load(kubectl);
        assert!(failed.contains(&ErrorKind::ConnectionRefused), "{sent} sent: {failed:?}");
        for hook in ["sleep: {seconds: 2}", "exec: {command: [/bin/sh, -c, sleep 2]}"] {
            apply(kubectl, &web(2, &format!("        lifecycle: {{preStop: {{{hook}}}}}")));
            kubectl.ok("kubectl rollout status deployment/web --timeout=120s
                        for i in $(seq 300); do [ $(kubectl get pods -l app=web --no-headers | wc -l) = 2 ] && exit 0; done; exit 1");
            let (sent, failed) = restart_under_load(kubectl);
            assert!(failed.is_empty(), "{hook}: {} of {sent} failed: {failed:?}", failed.len());
        }
        kubectl.ok("kubectl delete deployment,service web");
    });
}

/// NET-95, NET-96, NET-104, NET-107: pods find Services, endpoints and the API server by name; its certificate matches.
#[test]
fn pods_use_names() {
    on_a_node(&["python"], |_, kubectl| {
        apply(kubectl, &web(2, ""));
        apply(
            kubectl,
            "apiVersion: v1
kind: Service
metadata: {name: each}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080, name: http}]}",
        );
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
        client(kubectl);
        let ip = kubectl.ok("kubectl get service web -o jsonpath='{.spec.clusterIP}'");
        for name in ["web", "web.default", "web.default.svc", "web.default.svc.cluster.local"] {
            assert_eq!(kubectl.ok(&resolve(name)).trim(), ip.trim(), "{name}");
            assert!(kubectl.ok(&fetch(&format!("http://{name}/"))).starts_with("web-"), "{name}");
        }
        let pods = kubectl.ok("kubectl get pods -l app=web -o jsonpath='{.items[*].status.podIP}'");
        let pods: BTreeSet<&str> = pods.split_whitespace().collect();
        let each = kubectl.ok(&resolve("each"));
        assert_eq!(each.split_whitespace().collect::<BTreeSet<_>>(), pods, "all endpoints");
        kubectl.fails(&resolve("nothing"), "gaierror");
        for name in ["kubernetes", "kubernetes.default.svc.cluster.local"] {
            let version = kubectl.ok(&fetch(&format!("https://{name}/version")));
            assert!(version.contains("v1.36"), "{name}: {version}");
        }
        kubectl.ok("kubectl delete deployment,service web; kubectl delete service each");
    });
}

/// NET-58, NET-72: killed and started again, landfall interrupts neither open nor new connections.
#[test]
fn connections_survive_a_kill_and_a_restart_of_landfall() {
    let kernel = crate::kernel_state::KernelState::capture();
    let cluster = Cluster::with_node(&["python"], &[]);
    let kubectl = cluster.kubectl();
    apply(&kubectl, &web(2, ""));
    kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
    let to = node_port(&kubectl);
    let mut open = connect(to).unwrap();
    let pod = request(&mut open).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..2).map(|_| load(to, &done)).collect();
    let dir = cluster.kill();
    assert_eq!(request(&mut open).unwrap(), pod, "while landfall does not run");
    let cluster = Cluster::with_node_in(dir, &[]);
    assert_eq!(request(&mut open).unwrap(), pod, "after the restart");
    done.store(true, Ordering::Relaxed);
    for client in clients {
        let (sent, failed) = client.join().expect("a client");
        assert!(sent > 0 && failed.is_empty(), "{failed:?} of {sent}");
    }
    cluster.kubectl().ok("kubectl delete deployment,service web");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// NET-125, NET-133: a policy stops new connections and no open ones.
#[test]
fn a_network_policy_isolates_pods() {
    if other_runtime().is_some() {
        return; // The runtime provides the network.
    }
    on_a_node(&["python"], |_, kubectl| {
        apply(kubectl, &web(1, ""));
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
        client(kubectl);
        let from_pod = fetch("http://web/");
        assert!(kubectl.ok(&from_pod).starts_with("web-"));
        let policy = |from: &str| {
            format!(
                "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: web}}
spec:
  podSelector: {{matchLabels: {{app: web}}}}
  ingress: {from}"
            )
        };
        let until = |outcome: &str| {
            kubectl.ok(&format!(
                "for i in $(seq 20); do {outcome} {from_pod} >/dev/null 2>&1 && exit 0; done; exit 1"
            ));
        };
        apply(kubectl, &policy("[]"));
        until("!");
        apply(kubectl, &policy("[{from: [{podSelector: {matchLabels: {app: client}}}]}]"));
        until("");
        kubectl.ok("kubectl delete networkpolicy web; kubectl delete deployment,service web");
    });
}
