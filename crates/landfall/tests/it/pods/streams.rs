//! logs, exec, attach, cp and port-forward (W-60, W-70), with every kubectl.

use super::on_a_node;
use crate::harness::{Kubectl, installed_kubectls};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(30);

/// W-60, W-70: all commands that stream data work.
#[test]
fn logs_exec_attach_cp_and_port_forward_work_with_every_kubectl() {
    on_a_node(&["busybox", "nginx"], |cluster, kubectl| {
        kubectl.ok("kubectl run talker --image=busybox:1 -- sh -c 'i=0; while :; do echo line $i; i=$((i+1)); sleep 0.2; done'
kubectl run web --image=nginx:1
kubectl run -i --tty=false --restart=Never --image=busybox:1 --attach=false --stdin listener -- sh -c 'read x; echo got $x'
kubectl wait --for=condition=Ready pod/talker pod/web --timeout=60s");
        for installed in installed_kubectls() {
            let kubectl = cluster.kubectl_of(&installed, "default");
            eprintln!("--- {installed:?}");
            logs(&kubectl);
            exec(&kubectl);
            cp(&kubectl);
            port_forward(&kubectl);
        }
        kubectl.ok("echo hello | kubectl attach -i listener
                    kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/listener --timeout=30s");
        kubectl.prints("kubectl logs listener", "got hello");
    });
}

/// N-161, N-162, N-163: logs, their options, and following.
fn logs(kubectl: &Kubectl) {
    kubectl.shows("kubectl logs talker", &["line 0", "line 1"]);
    let follow = kubectl.spawn("exec kubectl logs -f talker --tail=1");
    let first = follow.line("line", BOUND);
    let next = follow.line("line", BOUND);
    assert_ne!(first, next);
    kubectl.shows("kubectl logs talker --timestamps --tail=1", &["T", "Z line "]);
    kubectl.prints("kubectl logs talker --limit-bytes=6", "line 0");
    kubectl.fails(
        "kubectl logs talker --previous",
        "previous terminated container \"talker\" in pod \"talker\" not found",
    );
}

/// N-164: exec with and without a terminal.
fn exec(kubectl: &Kubectl) {
    kubectl.prints("kubectl exec talker -- echo hello", "hello");
    kubectl.prints("echo through | kubectl exec -i talker -- cat", "through");
    assert_eq!(kubectl.run("kubectl exec talker -- sh -c 'exit 5'").code, 5);
    kubectl.fails("kubectl exec talker -- no-such-program", "no-such-program");
    // `script` provides a terminal for `-it`.
    kubectl.shows(
        "script -qec 'kubectl exec -it talker -- sh -c \"tty; stty size\"' /dev/null </dev/null",
        &["/dev/pts/"],
    );
}

fn cp(kubectl: &Kubectl) {
    kubectl.ok(
        "echo content > here; kubectl cp here talker:/tmp/there; kubectl cp talker:/tmp/there back",
    );
    kubectl.prints("cat back", "content");
}

/// N-166, NET-120: port-forward reaches a port of the pod, even one that listens only on the pod's loopback address.
fn port_forward(kubectl: &Kubectl) {
    let answer = forwarded(kubectl, "pod/web :80");
    assert!(answer.contains("Welcome to nginx"), "{answer}");
    kubectl.run("kubectl exec talker -- busybox httpd -p 127.0.0.1:8081 -h /etc");
    let answer = forwarded(kubectl, "pod/talker :8081");
    assert!(answer.starts_with("HTTP/1."), "{answer}");
}

/// The response to a request through port-forward.
fn forwarded(kubectl: &Kubectl, to: &str) -> String {
    let forward = kubectl.spawn(&format!("exec kubectl port-forward {to}"));
    let output = forward.line("Forwarding from 127.0.0.1:", BOUND);
    let port = output.split([':', ' ']).nth(3).and_then(|port| port.parse::<u16>().ok());
    let port = port.unwrap_or_else(|| panic!("no port in {output:?}"));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(BOUND)).expect("a bound");
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}
