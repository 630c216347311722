//! Services with real containers and real traffic, as kubectl users set them up.

use super::{on_a_node, on_a_node_with};
use crate::harness::Kubectl;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Every answer takes milliseconds. After this time a request has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers every request with the pod's name. On SIGTERM it closes its port at once and exits.
const SERVER: &str = "
import http.server, os, signal
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = os.uname().nodename.encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.ThreadingHTTPServer(('', 8080), Answers).serve_forever()
";

/// A Deployment and a Service of it, as YAML. `extra` is added to the pod's container.
fn web(replicas: u32, extra: &str) -> String {
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

fn apply(kubectl: &Kubectl, manifest: &str) {
    kubectl.ok(&format!("kubectl apply -f - <<'END'\n{manifest}\nEND"));
}

/// The address of the Service from outside: a node port.
fn node_port(kubectl: &Kubectl) -> SocketAddr {
    let address = kubectl.ok(
        "kubectl get node n1 -o jsonpath='{.status.addresses[?(@.type==\"InternalIP\")].address}'",
    );
    let port = kubectl.ok("kubectl get service web -o jsonpath='{.spec.ports[0].nodePort}'");
    format!("{}:{}", address.trim(), port.trim()).parse().expect("an address")
}

fn request(stream: &mut TcpStream) -> std::io::Result<String> {
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

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A request on a new connection.
fn get(to: SocketAddr) -> std::io::Result<String> {
    request(&mut connect(to)?)
}

/// Sends requests on new connections until `done`, and returns how many there were and why some failed.
fn load(
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
    on_a_node(&["busybox", "python"], |_, kubectl| {
        apply(kubectl, &web(2, ""));
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s
                    kubectl run client --image=busybox:1 -- sleep 1000
                    kubectl wait --for=condition=Ready pod/client --timeout=30s");
        let ip = kubectl.ok("kubectl get service web -o jsonpath='{.spec.clusterIP}'");
        let from_pod = format!("kubectl exec client -- wget -qO- -T 5 http://{}/", ip.trim());
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

/// W-31, T-NET-22: an open connection works until the process ends; new ones go to the other pod.
#[test]
fn w_31_open_connections_survive_a_delete_and_new_ones_go_elsewhere() {
    let linger = "        lifecycle: {preStop: {sleep: {seconds: 20}}}";
    on_a_node(&["python"], |_, kubectl| {
        apply(kubectl, &web(2, linger));
        kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
        let to = node_port(kubectl);
        let mut open = connect(to).unwrap();
        let pod = request(&mut open).unwrap();
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
