//! Pods that answer each other, and what they see.

use super::network::Machine;
use crate::harness::Kubectl;

/// The program of the pods.
const PEER: &str = include_str!("peer.py");
/// Sends requests, with `kubectl exec`.
const CLIENT: &str = include_str!("client.py");

/// A pod with this name on this machine's node, as YAML. It answers requests at port 8080 with its name. `label` is the
/// value of its label `name`.
pub(crate) fn pod(name: &str, label: &str, machine: Machine) -> String {
    let program: String = PEER.lines().map(|line| format!("        {line}\n")).collect();
    let node = machine.name();
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{name: {label}}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 5
  containers:
  - name: peer
    image: python:1
    command: [python3, -c]
    args:
      - |
{program}
    readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
"
    )
}

/// The Service `to-NAME` of the pods with this name as their label `name`, as YAML. Pods know their own name from
/// /etc/hosts, so a Service needs another one.
pub(crate) fn service(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: to-{name}}}
spec:
  selector: {{name: {name}}}
  ports: [{{port: 80, targetPort: 8080}}]
"
    )
}

pub(crate) fn apply(kubectl: &Kubectl, manifest: &str) {
    kubectl.ok(&format!("kubectl apply -f - <<'END'\n{manifest}\nEND"));
}

pub(crate) fn pod_ip(kubectl: &Kubectl, name: &str) -> String {
    kubectl.ok(&format!("kubectl get pod {name} -o jsonpath='{{.status.podIP}}'")).trim().to_owned()
}

/// The address of the Service `to-NAME`.
pub(crate) fn service_ip(kubectl: &Kubectl, name: &str) -> String {
    let ip =
        kubectl.ok(&format!("kubectl get service to-{name} -o jsonpath='{{.spec.clusterIP}}'"));
    ip.trim().to_owned()
}

/// Each of these pods gets these answers: `URL=ANSWER`, where the answer `-` means none.
#[track_caller]
pub(crate) fn all_answer(kubectl: &Kubectl, pods: &[&str], expected: &[String]) {
    let urls: String = expected.iter().map(|argument| format!(" '{argument}'")).collect();
    let pods = pods.join(" ");
    // All pods at the same time. A pod's output has its name in front. kubectl sometimes says that it has discarded the
    // empty message with which a connection begins.
    let script = format!(
        "client=$(cat <<'END'\n{CLIENT}\nEND\n)
         for pod in {pods}; do
           (kubectl exec $pod -- python3 -c \"$client\"{urls} 2>&1 || echo failed) |
             grep -v 'Unknown stream id' | sed \"s/^/from $pod: /\" &
         done
         wait"
    );
    kubectl.prints(&script, "");
}

/// When a pod's polls got this answer for the first time, in seconds since the boot of the machine. Waits for it.
#[track_caller]
pub(crate) fn recorded(kubectl: &Kubectl, pod: &str, answer: &str) -> f64 {
    let read = "import urllib.request
print(urllib.request.urlopen(\"http://127.0.0.1:8080/recorded\", timeout=3).read().decode())";
    let line = kubectl.ok(&format!(
        "for i in $(seq 100); do
           kubectl exec {pod} -- python3 -c '{read}' 2>&1 | tee recorded | grep -m1 ' {answer}$' && exit 0
           sleep 0.1
         done
         cat recorded; exit 1"
    ));
    let time = line.split_whitespace().next().and_then(|text| text.parse().ok());
    time.unwrap_or_else(|| panic!("not a time: {line:?}"))
}
