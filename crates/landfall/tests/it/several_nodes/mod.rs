//! Three nodes on two subnets: every pod reaches every other one, policies apply across nodes, and nodes are cut off,
//! leave and change their addresses.
//!
//! `network` is the machines and the router between them, `site` the server and the agents, `peers` the pods.

mod network;
mod peers;
mod site;

pub(crate) use network::{MACHINES, Machine, Network};
pub(crate) use site::Site;

use peers::{all_answer, apply, pod, pod_ip, service, service_ip};

/// How soon after its return a node that was cut off must have the right packet rules, in seconds.
const RECOVERY_MAX: f64 = 2.0;

/// NET-2, NET-3, NET-4, NET-8, NET-15, NET-125: one cluster for all of this, because starting it takes long.
#[test]
fn pods_of_three_nodes_reach_each_other_while_nodes_are_cut_off_leave_and_move() {
    let mut site = Site::start_with(&["python"], &[]);
    every_pair_of_pods_connects(&site);
    neighbours_have_direct_routes_and_other_nodes_vxlan(&site);
    policies_apply_across_nodes(&site);
    a_node_that_was_cut_off_recovers_within_two_seconds(&site);
    a_node_that_leaves_takes_its_routes_along(&mut site);
    a_node_can_change_its_address_and_reports_that_it_has_no_routes(&mut site);
    site.end();
}

fn every_pair_of_pods_connects(site: &Site) {
    let manifests = MACHINES.map(|machine| {
        let name = machine.name();
        format!("{}---\n{}", pod(name, name, machine), service(name))
    });
    apply(&site.kubectl, &manifests.join("---\n"));
    site.kubectl.ok("kubectl wait --for=condition=Ready pod --all --timeout=60s");
    let mut expected = Vec::new();
    for name in MACHINES.map(Machine::name) {
        let (pod, service) = (pod_ip(&site.kubectl, name), service_ip(&site.kubectl, name));
        expected.push(format!("http://{pod}:8080/={name}"));
        expected.push(format!("http://{service}/={name}"));
        expected.push(format!("http://to-{name}/={name}"));
        expected.push(format!("http://to-{name}.default.svc.cluster.local/={name}"));
        // Packets that are too large for the way between nodes would be lost.
        expected.push(format!("http://{pod}:8080/large=1000000"));
    }
    all_answer(&site.kubectl, &MACHINES.map(Machine::name), &expected);
}

fn neighbours_have_direct_routes_and_other_nodes_vxlan(site: &Site) {
    let device = |machine| format!("dev {}v", site.link(machine));
    for (from, to, way) in [
        (Machine::A, Machine::B, format!("via {} dev eth0", site.network.address(Machine::B))),
        (Machine::B, Machine::A, format!("via {} dev eth0", site.network.address(Machine::A))),
        (Machine::A, Machine::C, device(Machine::A)),
        (Machine::B, Machine::C, device(Machine::B)),
        (Machine::C, Machine::A, device(Machine::C)),
        (Machine::C, Machine::B, device(Machine::C)),
    ] {
        let route = site.network.run(from, &format!("ip route show {}", site.range(to)));
        assert!(route.contains(&way), "from {from:?} to {to:?}: {route:?} instead of {way}");
    }
    for machine in MACHINES {
        let entries = forwarding_entries(site, machine);
        // One entry per other node, and none for unknown destinations.
        assert_eq!(entries.lines().count(), 2, "{machine:?}: {entries}");
        assert!(!entries.contains("00:00:00:00:00:00"), "{machine:?}: {entries}");
        let name = machine.name();
        site.kubectl.prints(&format!("kubectl exec {name} -- cat /sys/class/net/eth0/mtu"), "1450");
        site.kubectl.prints(&network_unavailable(name), "False RouteCreated");
    }
}

/// The entries of the machine's VXLAN device.
fn forwarding_entries(site: &Site, machine: Machine) -> String {
    site.network.run(machine, &format!("bridge fdb show dev {}v", site.link(machine)))
}

/// The command that prints the condition of a node.
fn network_unavailable(node: &str) -> String {
    format!(
        "kubectl get node {node} -o jsonpath='{{range .status.conditions[?(@.type==\"NetworkUnavailable\")]}}\
         {{.status}} {{.reason}}{{end}}'"
    )
}

/// A NetworkPolicy for the ingress of pod `to`, as YAML.
fn policy(to: &str, ingress: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: {to}}}
spec:
  podSelector: {{matchLabels: {{name: {to}}}}}
  ingress: {ingress}
"
    )
}

/// NET-125: the policy of a pod on one node selects pods on the others.
fn policies_apply_across_nodes(site: &Site) {
    let kubectl = &site.kubectl;
    let expect = |from: &str, answer: &str| {
        all_answer(kubectl, &[from], &[format!("http://to-a/={answer}")]);
    };
    apply(kubectl, &policy("a", "[{from: [{podSelector: {matchLabels: {name: b}}}]}]"));
    expect("c", "-");
    expect("b", "a");
    apply(kubectl, &policy("a", "[{from: [{podSelector: {matchLabels: {name: c}}}]}]"));
    expect("c", "a");
    expect("b", "-");
    kubectl.ok("kubectl delete networkpolicy a");
    expect("b", "a");
}

/// While `c` is cut off, the only endpoint of a Service moves from `a` to `b`, and a policy that isolates a pod of `c` is
/// deleted.
fn a_node_that_was_cut_off_recovers_within_two_seconds(site: &Site) {
    let kubectl = &site.kubectl;
    apply(kubectl, &format!("{}---\n{}", pod("old", "moving", Machine::A), service("moving")));
    apply(kubectl, &policy("c", "[]"));
    kubectl.ok("kubectl wait --for=condition=Ready pod/old --timeout=30s");
    let (isolated, moving) = (pod_ip(kubectl, "c"), service_ip(kubectl, "moving"));
    all_answer(kubectl, &["c"], &[format!("http://{moving}/=old")]);
    all_answer(kubectl, &["a"], &[format!("http://{isolated}:8080/=-")]);
    all_answer(kubectl, &["c"], &[format!("http://127.0.0.1:8080/poll/{moving}/=c")]);
    all_answer(kubectl, &["a"], &[format!("http://127.0.0.1:8080/poll/{isolated}:8080/=a")]);

    site.network.cut(Machine::C);
    kubectl.ok("kubectl delete networkpolicy c; kubectl delete pod old");
    apply(kubectl, &pod("new", "moving", Machine::B));
    kubectl.ok("kubectl wait --for=condition=Ready pod/new --timeout=30s
                kubectl wait --for=condition=Ready=Unknown node/c --timeout=30s");
    let healed = seconds_since_boot();
    site.network.heal(Machine::C);
    for (pod, answer, what) in
        [("c", "new", "endpoints of a Service"), ("a", "c", "network policies")]
    {
        let took = peers::recorded(kubectl, pod, answer) - healed;
        eprintln!("{what} are right {took:.2} s after the node's return");
        assert!(took < RECOVERY_MAX, "{what}: {took:.2} s");
    }
    kubectl.ok("kubectl wait --for=condition=Ready node/c --timeout=30s");
    all_answer(kubectl, &["a", "b"], &[format!("http://{isolated}:8080/large=1000000")]);
}

fn seconds_since_boot() -> f64 {
    let uptime = std::fs::read_to_string("/proc/uptime").expect("/proc/uptime can be read");
    let seconds = uptime.split_whitespace().next().and_then(|text| text.parse().ok());
    seconds.expect("/proc/uptime begins with a number")
}

fn a_node_that_leaves_takes_its_routes_along(site: &mut Site) {
    let range = site.range(Machine::B);
    let address = site.network.address(Machine::B);
    site.down(Machine::B);
    site.kubectl.ok("kubectl delete node b");
    for machine in [Machine::A, Machine::C] {
        let device = format!("{}v", site.link(machine));
        site.network.run(
            machine,
            &format!(
                "for i in $(seq 100); do
                   [ -z \"$(ip route show {range})\" ] && ! bridge fdb show dev {device} | grep -wF {address} && exit 0
                   sleep 0.1
                 done
                 ip route; bridge fdb show dev {device}; exit 1"
            ),
        );
    }
    let target = pod_ip(&site.kubectl, "c");
    all_answer(&site.kubectl, &["a"], &[format!("http://{target}:8080/=c")]);
}

/// The pods of a node keep their addresses and are reachable through the node's new one. Until the node can create its
/// VXLAN device, it says so in its condition (NET-15) and works otherwise.
fn a_node_can_change_its_address_and_reports_that_it_has_no_routes(site: &mut Site) {
    let device = format!("{}v", site.link(Machine::A));
    site.stop_agent(Machine::A);
    let address = site.network.move_a();
    let block = format!("ip link del {device}; ip link add {device} type bridge");
    site.network.run(Machine::A, &block);
    site.start_agent(Machine::A, &address);
    site.wait_until_ready(Machine::A);
    let kubectl = &site.kubectl;
    kubectl.ok("kubectl wait --for=condition=NetworkUnavailable node/a --timeout=30s
                kubectl wait --for=condition=Ready node/a --timeout=30s");
    kubectl.shows("kubectl describe node a", &["NoRouteCreated", &device]);
    kubectl.ok("for i in $(seq 100); do
                  kubectl get node a -o jsonpath='{.spec.taints}' | grep -q network-unavailable && exit 0
                done; exit 1");
    site.network.run(Machine::A, &format!("ip link del {device}"));
    kubectl.ok("kubectl wait --for=condition=NetworkUnavailable=false node/a --timeout=30s");
    kubectl.shows(
        "kubectl get node a -o jsonpath='{.status.addresses[?(@.type==\"InternalIP\")].address}'",
        &[&address],
    );
    let [a, c] = ["a", "c"].map(|name| pod_ip(kubectl, name));
    all_answer(
        kubectl,
        &["a", "c"],
        &[format!("http://{a}:8080/=a"), format!("http://{c}:8080/=c")],
    );
    all_answer(kubectl, &["c"], &["http://to-a/large=1000000".to_owned()]);
    let entries = forwarding_entries(site, Machine::C);
    assert!(entries.contains(&format!("dst {address} ")), "{entries}");
}
