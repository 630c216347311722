//! How readiness and termination change which pods get new connections, with packet rules that follow after a second.

use super::on_a_node_with;
use super::services::{apply, connect, get, load, node_port, request, web};
use super::timeline::{at, find, record};
use crate::harness::Kubectl;
use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The delay of the packet rules.
const DELAY: Duration = Duration::from_secs(1);
/// So many new connections in a row that do not reach a pod mean that the packet rules have changed: if they had not,
/// half of the connections would reach it.
const ELSEWHERE: usize = 20;
/// After so many attempts the packet rules should have changed long ago.
const ATTEMPTS_MAX: usize = 100_000;

#[test]
fn readiness_and_termination_decide_who_gets_new_connections() {
    on_a_node_with(&["python"], &["--proxy-delay", "1s"], |_, kubectl| {
        w_30_stopping_containers_and_changing_rules_do_not_wait_for_each_other(kubectl);
        w_42_a_pod_that_is_not_ready_loses_its_connections_before_its_end(kubectl);
        w_43_readiness_gates_decide_about_ready(kubectl);
        kubectl.ok("kubectl delete deployment,service web");
    });
}

/// W-30: the stop signal is sent although the packet rules change only later, and they change although the container
/// still runs.
fn w_30_stopping_containers_and_changing_rules_do_not_wait_for_each_other(kubectl: &Kubectl) {
    apply(kubectl, &web(2, "        env: [{name: LINGER, value: '5'}]"));
    kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
    let to = node_port(kubectl);
    wait_until_pods_answer(kubectl, to);
    let mut open = connect(to).unwrap();
    let pod = request(&mut open).unwrap();
    kubectl.ok(&format!("kubectl delete pod {pod} --wait=false"));
    wait_until_elsewhere(to, &pod);
    assert_eq!(request(&mut open).unwrap(), pod, "its process still runs");
    let record = record(kubectl, &pod);
    let signalled = at(find(&record, "Signal")).duration_since(at(find(&record, "Requested")));
    assert!(signalled.as_millis() < DELAY.as_millis() as i128, "{signalled}: {record:#}");
    let ended = at(find(&record, "Exited")).duration_since(at(find(&record, "Signal")));
    assert!(ended.as_secs() >= 4, "it kept serving: {ended}");
}

/// W-42: the pod has no new connections any more when it is deleted, so none are refused although the rules are late.
fn w_42_a_pod_that_is_not_ready_loses_its_connections_before_its_end(kubectl: &Kubectl) {
    let manifest = web(2, "");
    let by_file = "exec: {command: [test, '!', -e, /tmp/leaving]}";
    let manifest = manifest.replace("tcpSocket: {port: http}", by_file);
    assert!(manifest.contains(by_file));
    apply(kubectl, &manifest);
    kubectl.ok("kubectl rollout status deployment/web --timeout=60s
                for i in $(seq 300); do [ $(kubectl get pods -l app=web --no-headers | wc -l) = 2 ] && exit 0; done; exit 1");
    let to = node_port(kubectl);
    wait_until_pods_answer(kubectl, to);
    let pod = get(to).unwrap();
    kubectl.ok(&format!(
        "kubectl exec {pod} -- touch /tmp/leaving
                         kubectl wait --for=condition=Ready=false pod/{pod} --timeout=30s"
    ));
    let ready = format!(
        "kubectl get endpointslices -l kubernetes.io/service-name=web \
           -o jsonpath='{{.items[*].endpoints[?(@.targetRef.name==\"{pod}\")].conditions}}'"
    );
    kubectl.ok(&format!("for i in $(seq 100); do {ready} | grep -q '\"ready\":false' && exit 0; done; {ready}; exit 1"));
    kubectl.shows(&ready, &["\"serving\":false", "\"terminating\":false"]);
    wait_until_elsewhere(to, &pod);
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..2).map(|_| load(to, &done)).collect();
    kubectl.ok(&format!("kubectl delete pod {pod}"));
    done.store(true, Ordering::Relaxed);
    for client in clients {
        let (sent, failed) = client.join().expect("a client");
        assert!(sent > 0 && failed.is_empty(), "{failed:?} of {sent}");
    }
}

/// W-43: a pod with ready containers is Ready when the condition of its gate is true, and only as long as it is.
fn w_43_readiness_gates_decide_about_ready(kubectl: &Kubectl) {
    kubectl.ok(
        "kubectl delete deployment web; kubectl wait --for=delete pod -l app=web --timeout=60s",
    );
    let gate = "      readinessGates: [{conditionType: example.com/balanced}]\n      containers:";
    apply(kubectl, &web(1, "").replace("      containers:", gate));
    kubectl.ok(
        "for i in $(seq 100); do kubectl get pods -l app=web -o name | grep -q . && break; done
                kubectl wait --for=condition=ContainersReady pod -l app=web --timeout=60s",
    );
    let to = node_port(kubectl);
    let pod = kubectl.ok("kubectl get pods -l app=web -o jsonpath='{.items[0].metadata.name}'");
    let ready = "kubectl get pods -l app=web -o \
                 jsonpath='{.items[0].status.conditions[?(@.type==\"Ready\")].status}'";
    kubectl.prints(ready, "False");
    kubectl.shows("kubectl get pods -l app=web -o wide", &["READINESS GATES", "0/1"]);
    assert_eq!(get(to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    for (status, answers) in [("True", true), ("False", false)] {
        let condition = format!("{{\"type\":\"example.com/balanced\",\"status\":\"{status}\"}}");
        kubectl.ok(&format!(
            "kubectl patch pod {pod} --subresource=status -p '{{\"status\":{{\"conditions\":[{condition}]}}}}'
             kubectl wait --for=condition=Ready={status} pod/{pod} --timeout=30s"
        ));
        let changed = (0..ATTEMPTS_MAX).any(|_| get(to).is_ok() == answers);
        assert!(changed, "the gate is {status}");
    }
}

/// Sends requests on new connections until all pods there are answer, and no others.
#[track_caller]
fn wait_until_pods_answer(kubectl: &Kubectl, to: SocketAddr) {
    let pods = kubectl.ok("kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.name}'");
    let mut recent = VecDeque::new();
    let settled = (0..ATTEMPTS_MAX).any(|_| {
        recent.push_back(get(to).unwrap_or_default());
        if recent.len() > ELSEWHERE {
            recent.pop_front();
        }
        let answers: BTreeSet<&str> = recent.iter().map(String::as_str).collect();
        recent.len() == ELSEWHERE && answers == pods.split_whitespace().collect()
    });
    assert!(settled, "{recent:?} instead of {pods}");
}

/// Sends requests on new connections until they do not reach this pod any more.
#[track_caller]
fn wait_until_elsewhere(to: SocketAddr, pod: &str) {
    let mut in_a_row = 0;
    let elsewhere = (0..ATTEMPTS_MAX).any(|_| {
        in_a_row = if get(to).unwrap() == pod { 0 } else { in_a_row + 1 };
        in_a_row == ELSEWHERE
    });
    assert!(elsewhere, "new connections still reach {pod}");
}
