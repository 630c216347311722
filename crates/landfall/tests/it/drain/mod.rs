//! Acknowledged drain on three nodes: no request is lost when pods are replaced, and a node or load balancer that does not
//! acknowledge delays a pod only up to its grace period.

mod load;

use crate::harness::{Kubectl, signal};
use crate::several_nodes::{MACHINES, Machine, Site};
use load::Load;
use std::net::SocketAddr;

/// Changes reach the packet rules of every node this late.
const PROXY_DELAY: &str = "500ms";
/// At least this many requests are sent while pods are replaced.
const REQUESTS_MIN: usize = 20_000;
const RESTARTS: usize = 3;

/// A Deployment and its Service, as YAML. The server closes its port when it is asked to stop.
fn web(replicas: u32, drain: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata:
      labels: {{app: web}}
      annotations: {{landfall.dev/drain: {drain}}}
    spec:
      terminationGracePeriodSeconds: 4
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {{matchLabels: {{app: web}}}}
        matchLabelKeys: [pod-template-hash]
      containers:
      - name: server
        image: nginx:1
        ports: [{{containerPort: 80, name: http}}]
        readinessProbe: {{tcpSocket: {{port: http}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: http}}]
"
    )
}

fn apply(kubectl: &Kubectl, manifest: &str) {
    kubectl.ok(&format!("kubectl apply -f - <<'END'\n{manifest}\nEND"));
}

/// W-44: one cluster for all of this, because starting it takes long.
#[test]
fn acknowledged_drain_loses_no_request_and_waits_for_nobody_beyond_the_grace_period() {
    let mut site = Site::start_with(&["nginx"], &["--proxy-delay", PROXY_DELAY]);
    apply(&site.kubectl, &web(3, "acknowledged"));
    site.kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
    w_44_no_request_is_lost_with_acknowledged_drain(&site);
    the_timeline_says_who_acknowledged(&site);
    requests_are_lost_without_it(&site);
    a_node_that_hangs_delays_a_pod_up_to_its_grace_period(&mut site);
    a_load_balancer_takes_part(&site);
    site.kubectl.ok("kubectl delete deployment,service web --timeout=60s");
    site.end();
}

/// W-44, for `make test-drain-long`: with slow nodes, and at least 5,000 requests per restart.
#[test]
fn w_44_no_request_is_lost_in_many_restarts() {
    let restarts = std::env::var("LANDFALL_TEST_RESTARTS").map(|text| text.parse());
    let restarts: usize = restarts.unwrap_or(Ok(200)).expect("LANDFALL_TEST_RESTARTS is a number");
    let site = Site::start_with(&["nginx"], &["--proxy-delay", PROXY_DELAY]);
    apply(&site.kubectl, &web(3, "acknowledged"));
    site.kubectl.ok("kubectl rollout status deployment/web --timeout=60s");
    let (sent, failed) = restart_under_load(&site, restarts, 5000 * restarts);
    eprintln!("{restarts} restarts: {} of {sent} requests failed", failed.len());
    assert!(failed.is_empty(), "{} of {sent} failed: {failed:?}", failed.len());
    site.kubectl.ok("kubectl delete deployment,service web --timeout=60s");
    site.end();
}

fn service(kubectl: &Kubectl) -> SocketAddr {
    let ip = kubectl.ok("kubectl get service web -o jsonpath='{.spec.clusterIP}'");
    format!("{}:80", ip.trim()).parse().expect("an address")
}

/// Restarts the Deployment under load from all nodes.
fn restart_under_load(site: &Site, restarts: usize, requests: usize) -> (usize, Vec<String>) {
    let load = Load::start(&site.network, &MACHINES, service(&site.kubectl));
    for _ in 0..restarts {
        site.kubectl.ok("kubectl rollout restart deployment/web
                         kubectl rollout status deployment/web --timeout=120s");
        wait_for_old_pods(&site.kubectl);
    }
    load.reach(requests);
    load.stop()
}

/// The last old pods end after the rollout is complete.
fn wait_for_old_pods(kubectl: &Kubectl) {
    kubectl.ok("for i in $(seq 300); do
                  [ $(kubectl get pods -l app=web --no-headers | wc -l) = 3 ] && exit 0
                done
                kubectl get pods; exit 1");
}

fn w_44_no_request_is_lost_with_acknowledged_drain(site: &Site) {
    let (sent, failed) = restart_under_load(site, RESTARTS, REQUESTS_MIN);
    eprintln!("acknowledged: {} of {sent} requests failed", failed.len());
    assert!(failed.is_empty(), "{} of {sent} failed: {failed:?}", failed.len());
}

fn the_timeline_says_who_acknowledged(site: &Site) {
    let steps = site.kubectl.ok("kubectl get terminations -o jsonpath='{.items[0].steps}'");
    for word in ["Held", "Acknowledged", "node a", "node b", "node c", "Drained"] {
        assert!(steps.contains(word), "no {word}: {steps}");
    }
    let place = |word: &str| steps.find(&format!("\"what\":\"{word}\"")).expect(word);
    assert!(place("Drained") < place("Signal"), "{steps}");
}

fn requests_are_lost_without_it(site: &Site) {
    apply(&site.kubectl, &web(3, "upstream"));
    site.kubectl.ok("kubectl rollout status deployment/web --timeout=120s");
    wait_for_old_pods(&site.kubectl);
    let (sent, failed) = restart_under_load(site, 1, 0);
    eprintln!("upstream: {} of {sent} requests failed", failed.len());
    assert!(failed.iter().any(|error| error.contains("refused")), "{sent} sent: {failed:?}");
    apply(&site.kubectl, &web(3, "acknowledged"));
    site.kubectl.ok("kubectl rollout status deployment/web --timeout=120s");
    wait_for_old_pods(&site.kubectl);
}

/// Deletes one pod of node `a` and returns the event about its drain.
fn delete_one(kubectl: &Kubectl) -> String {
    let pods = "kubectl get pods -l app=web --field-selector spec.nodeName=a";
    kubectl.ok(&format!(
        "pod=$({pods} -o jsonpath='{{.items[0].metadata.name}}')
         kubectl delete pod $pod --timeout=30s >&2
         kubectl get events --field-selector involvedObject.name=$pod,reason=DrainTimedOut \
           -o jsonpath='{{.items[*].message}}'
         kubectl rollout status deployment/web --timeout=60s >&2"
    ))
}

fn a_node_that_hangs_delays_a_pod_up_to_its_grace_period(site: &mut Site) {
    let agent = site.agent_id(Machine::B);
    signal(agent, "STOP");
    let event = delete_one(&site.kubectl);
    signal(agent, "CONT");
    assert!(event.contains("node b") && !event.contains("node c"), "{event:?}");
    site.kubectl.ok("kubectl wait --for=condition=Ready node/b --timeout=60s
                     kubectl rollout status deployment/web --timeout=60s");
}

/// It registers, is waited for while it is silent, and no longer when it acknowledges.
fn a_load_balancer_takes_part(site: &Site) {
    let kubectl = &site.kubectl;
    apply(
        kubectl,
        "apiVersion: landfall.dev/v1
kind: DrainParticipant
metadata: {name: lb}
spec: {services: [default/web]}",
    );
    let event = delete_one(kubectl);
    assert!(event.ends_with("Still missing: lb"), "{event:?}");
    // It acknowledges whatever comes.
    kubectl.ok("kubectl patch drainparticipant lb --type=merge -p '{\"status\":{\"committed\":\"999999999\"}}'");
    assert_eq!(delete_one(kubectl), "");
    kubectl.fails(
        "kubectl patch drainparticipant lb --type=merge -p '{\"status\":{\"committed\":\"soon\"}}'",
        "must be the resourceVersion of an EndpointSlice",
    );
    kubectl.shows("kubectl get drainparticipants", &["COMMITTED", "lb", "node.a"]);
    kubectl.ok("kubectl delete drainparticipant lb");
}
