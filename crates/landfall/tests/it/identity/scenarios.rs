//! The scenarios: faults of two nodes with the pods of a StatefulSet, and what must hold afterwards.

use super::random::Random;
use super::site::Site;
use super::witness::{self, SCRIPT};
use serde_json::json;
use std::time::Duration;

/// Replicas of every set here.
const REPLICAS: u64 = 2;

/// Creates a set whose pods run on both nodes.
fn set(site: &Site, name: &str) {
    let lost = |key: &str| {
        json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists",
                                  "effect": "NoExecute", "tolerationSeconds": 1})
    };
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let spread = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                         "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": name}}}]);
    let pod = json!({
        "terminationGracePeriodSeconds": 3, "automountServiceAccountToken": false,
        "tolerations": [lost("unreachable"), lost("not-ready")],
        "topologySpreadConstraints": spread,
        "volumes": [{"name": "out", "hostPath": {"path": site.out()}}],
        "containers": [{"name": "c", "image": "python:1", "command": ["python3", "-c", SCRIPT],
            "env": [field("NAME", "metadata.name"), field("ID", "metadata.uid")],
            "volumeMounts": [{"name": "out", "mountPath": "/out"}]}]});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {"replicas": REPLICAS, "serviceName": name, "podManagementPolicy": "Parallel",
                 "selector": {"matchLabels": {"app": name}},
                 "template": {"metadata": {"labels": {"app": name}}, "spec": pod}}});
    let file = site.out().join(format!("{name}.json"));
    std::fs::write(&file, set.to_string()).expect("it is written");
    site.kubectl.ok(&format!("kubectl apply -f {}", file.display()));
    wait_until_running(site, name);
}

/// Waits until all pods run and none is terminating. A node that was lost may take a while to become Ready.
fn wait_until_running(site: &Site, name: &str) {
    let (kubectl, ready) = (&site.kubectl, format!("{REPLICAS}/{REPLICAS}"));
    let pods = format!("kubectl get pods -l app={name}");
    kubectl.ok(&format!(
        "for i in $(seq 450); do
           if kubectl get sts {name} --no-headers | grep -q ' {ready} ' && ! {pods} | grep -q Terminating
           then exit 0; fi
           sleep 0.1
         done; {pods} -o wide; kubectl get nodes; kubectl get events | tail -30; exit 1"
    ));
}

fn uid(site: &Site, pod: &str) -> String {
    let uid = site.kubectl.ok(&format!("kubectl get pod {pod} -o jsonpath='{{.metadata.uid}}'"));
    uid.trim().to_owned()
}

fn pause(site: &Site, time: Duration) {
    site.kubectl.ok(&format!("sleep {}", time.as_secs_f64()));
}

/// Checks that no two pods of one name ran at once, except those that were force deleted.
#[track_caller]
fn assert_none_ran_twice(site: &Site, forced: &[String], story: &str) {
    let log = witness::log(&site.out());
    for (beside, holder) in witness::pairs(&log) {
        assert!(forced.contains(&holder.uid), "{story}: {beside:?} beside {holder:?}\n{log:#?}");
    }
}

/// A node is lost and becomes Unknown, its pod is evicted and stays terminating; the pod is replaced only after the node
/// is back and has terminated it.
pub(crate) fn a_lost_node(site: &mut Site) {
    set(site, "lost");
    let kubectl = &site.kubectl;
    let machine = site.machine_of("lost-0");
    let node = super::network::MACHINES[machine];
    let old = uid(site, "lost-0");
    site.cut(machine);
    kubectl.ok(&format!(
        "kubectl wait --for=condition=Ready=Unknown node/{node} --timeout=30s
         kubectl get nodes | grep '^{node} .*NotReady'
         kubectl wait --for=jsonpath='{{.metadata.deletionGracePeriodSeconds}}'=3 pod/lost-0 --timeout=50s"
    ));
    kubectl.shows(
        &format!("kubectl describe node {node}"),
        &["node.kubernetes.io/unreachable:NoExecute", "NodeStatusUnknown", "NodeNotReady"],
    );
    kubectl.shows("kubectl get pod lost-0", &["lost-0", "Terminating"]);
    // The grace period is long over, but no node has confirmed the exit.
    pause(site, Duration::from_secs(6));
    assert_eq!(uid(site, "lost-0"), old, "the identity is taken");
    assert_eq!(site.machine_of("lost-0"), machine);
    site.heal(machine);
    wait_until_running(site, "lost");
    let new = uid(site, "lost-0");
    assert_ne!(new, old);
    // The process of a running container may not have written its line yet.
    let has_started = format!("grep -q '^start lost-0 {new} ' {}/log", site.out().display());
    kubectl
        .ok(&format!("for i in $(seq 100); do {has_started} && exit 0; sleep 0.1; done; exit 1"));
    let log = witness::log(&site.out());
    let at = |what: &str, uid: &str| {
        let line = log.iter().find(|line| line.what == what && line.uid == uid);
        line.unwrap_or_else(|| panic!("no {what} of {uid}: {log:#?}")).at
    };
    assert!(at("end", &old) <= at("start", &new), "{log:#?}");
    assert_none_ran_twice(site, &[], "a lost node");
    kubectl.ok("kubectl delete sts lost; kubectl wait --for=delete pod -l app=lost --timeout=40s");
}

/// After a force deletion two pods run, the record says that a user requested it, and the node terminates the old one
/// when it is back.
pub(crate) fn a_forced_delete(site: &mut Site) {
    set(site, "forced");
    let kubectl = &site.kubectl;
    let machine = site.machine_of("forced-0");
    let old = uid(site, "forced-0");
    site.cut(machine);
    kubectl.ok("kubectl delete pod forced-0 --force --grace-period=0");
    let beside = format!("grep '^beside forced-0' {}/log", site.out().display());
    // Until the lost node is noticed, the replacement may be bound to it and has to be force deleted too.
    let mut forced = vec![old.clone()];
    let replaced = |site: &Site| {
        let running =
            "kubectl wait --for=jsonpath='{.status.phase}'=Running pod/forced-0 --timeout=4s";
        site.kubectl.run(&format!("sleep 0.3; {running}")).code == 0
            && site.machine_of("forced-0") != machine
    };
    while !replaced(site) {
        assert!(forced.len() < 10, "no node takes it");
        forced.push(uid(site, "forced-0"));
        kubectl.ok("kubectl delete pod forced-0 --force --grace-period=0");
    }
    kubectl.ok(&format!("for i in $(seq 100); do {beside} && exit 0; sleep 0.1; done; exit 1"));
    let pairs = witness::pairs(&witness::log(&site.out()));
    assert!(
        pairs.iter().any(|(_, holder)| holder.uid == old),
        "the two processes were not observed: {pairs:?}"
    );
    assert_none_ran_twice(site, &forced, "a forced delete");

    let records = "kubectl get terminations -o json --field-selector pod.name=forced-0";
    let record = |site: &Site| {
        let found = site.kubectl.ok(records);
        let found: serde_json::Value = serde_json::from_str(&found).expect("records");
        let items = found["items"].as_array().expect("records").clone();
        items.into_iter().find(|item| item["pod"]["uid"] == old.as_str()).expect("a record of it")
    };
    let recorded = record(site);
    assert_eq!(
        (&recorded["outcome"], &recorded["confirmed"]),
        (&json!("Forced"), &json!(false)),
        "{recorded:#}"
    );
    assert!(recorded.to_string().contains("UnsafeByRequest"), "{recorded:#}");
    kubectl.shows("kubectl get terminations", &["Forced,Unconfirmed"]);

    site.heal(machine);
    kubectl.ok(&format!(
        "for i in $(seq 300); do grep -q '^end forced-0 {old}' {}/log && exit 0; sleep 0.1; done; exit 1",
        site.out().display()
    ));
    wait_until_running(site, "forced");
    kubectl.ok(&format!(
        "for i in $(seq 100); do {records} | grep -q '\"confirmed\": true' && exit 0; sleep 0.1; done; exit 1"
    ));
    assert_none_ran_twice(site, &forced, "a forced delete");
    kubectl
        .ok("kubectl delete sts forced; kubectl wait --for=delete pod -l app=forced --timeout=40s");
}

/// A run with random faults, and its steps so far for the failure message.
struct Run<'a> {
    site: &'a mut Site,
    random: Random,
    story_text: String,
}

impl Run<'_> {
    /// Records a step and then waits for up to `bound` milliseconds.
    fn then(&mut self, what: &str, bound: u64) {
        let wait = self.random.millis(bound);
        self.story_text += &format!("; {what}, {} ms", wait.as_millis());
        pause(self.site, wait);
    }

    /// True once in `many` calls.
    fn perhaps(&mut self, many: u64) -> bool {
        self.random.one_in(many)
    }

    fn delete(&mut self, which: &str) {
        let delete = format!("kubectl delete pod {which} --wait=false --ignore-not-found");
        self.site.kubectl.ok(&delete);
        self.then(&format!("deleted {which}"), 1500);
    }

    fn restart_server(&mut self) {
        self.site.kill_server();
        self.then("server killed", 2000);
        self.site.start_server();
        self.then("server back", 1000);
    }
}

/// Disconnects, kills and deletes at times that the seed decides.
pub(crate) fn random_faults(site: &mut Site, seed: u64) {
    let mut random = Random::new(seed);
    let name = format!("s{seed}");
    set(site, &name);
    let pod = format!("{name}-{}", random.below(REPLICAS));
    let machine = site.machine_of(&pod);
    let story_text = format!("story {seed}: {pod} on {machine}");
    let mut story = Run { site, random, story_text };
    if story.perhaps(2) {
        story.delete(&pod);
    }
    story.site.cut(machine);
    story.then("cut", 3000);
    while_disconnected(&mut story, &name, &pod, machine);
    assert_none_ran_twice(story.site, &[], &story.story_text);
    story.site.heal(machine);
    story.then("healed", 1500);
    if story.perhaps(3) {
        story.site.kill_agent(machine);
        story.then("agent killed", 1500);
    }
    story.site.start_agent(machine);
    if story.perhaps(4) {
        story.restart_server();
    }
    let Run { site, story_text, .. } = story;
    eprintln!("{story_text}");
    wait_until_running(site, &name);
    assert_none_ran_twice(site, &[], &story_text);
    site.kubectl.ok(&format!(
        "kubectl delete sts {name}; kubectl wait --for=delete pod -l app={name} --timeout=40s"
    ));
    assert_none_ran_twice(site, &[], &story_text);
}

/// Faults while the node is disconnected.
fn while_disconnected(story: &mut Run<'_>, name: &str, pod: &str, machine: usize) {
    if story.perhaps(3) {
        story.restart_server();
    }
    if story.perhaps(2) {
        story.delete(pod);
    }
    if story.perhaps(2) {
        story.site.kill_agent(machine);
        story.then("agent killed", 3000);
        if story.perhaps(2) {
            story.site.start_agent(machine);
            story.then("agent back", 3000);
        }
    }
    if story.perhaps(3) {
        story.delete(&format!("-l app={name}"));
    }
    // Half of the waits are long enough for the node to become Unknown and its pods to be evicted.
    if story.perhaps(2) {
        pause(story.site, Duration::from_secs(9));
        story.then("a long night", 3000);
    }
}
