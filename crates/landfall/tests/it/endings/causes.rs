//! Every cause of a termination runs the preStop hook; an exit of the container itself does not (W-12).

use super::node::{Node, on_a_node, state_of};
use super::witness::{GONE, Place, is_about, script, with};
use serde_json::{Value, json};

/// A pod of one container with these fields and a grace period of five seconds.
fn pod(place: &Place, name: &str, arguments: &str, container: Value, more: Value) -> Value {
    let hook = script(&format!("echo hook > /out/{name}"));
    place.pod(name, 5, vec![place.witness(name, arguments, with(hook, container))], more)
}

fn probe(command: &str, more: Value) -> Value {
    let exec = json!({"exec": {"command": ["sh", "-c", command]}});
    with(with(exec, json!({"periodSeconds": 1, "failureThreshold": 1})), more)
}

/// W-12, T-NODE-2, T-NODE-3, T-NODE-17, T-NODE-18, T-NODE-26, T-NODE-62, T-NODE-63, T-NODE-67, T-NODE-77: failed
/// probes, an active deadline and a terminal phase run the hook; a container that exits by itself does not.
#[test]
fn every_cause_except_the_containers_own_exit_runs_the_hook() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let liveness = probe("test ! -f /out/unwell", json!({"terminationGracePeriodSeconds": 3}));
        // The probe hangs until the test writes its result.
        let startup = probe(
            "until [ -f /out/dead ]; do sleep 0.1; done; false",
            json!({"timeoutSeconds": 60}),
        );
        let never = json!({"restartPolicy": "Never"});
        let deadline = json!({"restartPolicy": "Never", "activeDeadlineSeconds": 12});
        let itself = {
            let hook = script("echo hook > /out/itself");
            let container = place.shell("itself", "python:1", "echo start > $P; exit 0");
            place.pod("itself", 5, vec![with(container, hook)], never.clone())
        };
        // postStart hooks: one that succeeds delays the next container, one that fails stops its own.
        let post = |then: &str| {
            let wait = format!("until [ -f /out/dead ]; do sleep 0.1; done; {then}");
            json!({"exec": {"command": ["sh", "-c", wait]}})
        };
        let mut first = place.witness("first", "", json!({}));
        first["lifecycle"] = json!({"postStart": post("echo posted > /out/first")});
        let next = place.witness("next", "", json!({}));
        let mut post_fails = pod(place, "post", "--term 1", json!({}), never.clone());
        post_fails["spec"]["containers"][0]["lifecycle"]["postStart"] = post("false");
        let pods = [
            place.pod("first", 5, vec![first, next], json!({})),
            post_fails,
            pod(place, "alive", "--term ignore", json!({"livenessProbe": liveness}), json!({})),
            pod(place, "startup", "--term 1", json!({"startupProbe": startup}), never.clone()),
            pod(place, "deadline", "", json!({}), deadline),
            pod(place, "failed", "", json!({}), json!({})),
            itself,
        ];
        node.run(&pods, &["first", "post", "alive", "startup", "deadline", "failed", "itself"]);
        std::fs::write(place.path().join("unwell"), "").unwrap();
        // This container is being stopped; the next one is healthy from the start.
        place.at("alive", "hook");
        std::fs::remove_file(place.path().join("unwell")).unwrap();
        std::fs::write(place.path().join("dead"), "").unwrap();
        // Otherwise the first status of the agent might arrive after the patch.
        node.kubectl.ok("kubectl wait --for=condition=Ready pod/failed --timeout=30s");
        node.kubectl.ok("kubectl patch pod failed --subresource=status -p '{\"status\":{\"phase\":\"Failed\"}}'");
        assert!(place.between(("first", "posted"), ("next", "start")) > 0.0, "T-NODE-67");
        for name in ["startup", "deadline", "failed", "post"] {
            place.at(name, GONE);
            assert_eq!(place.words(name), ["start", "hook", "SIGTERM", "exit", GONE], "{name}");
        }
        is_about("T-NODE-18", place.between(("alive", "SIGTERM"), ("alive", GONE)), 3.0);
        place.nth("alive", "start", 1);
        assert_eq!(place.words("alive")[..4], ["start", "hook", "SIGTERM", GONE], "T-NODE-62");
        place.at("itself", GONE);
        assert_eq!(place.words("itself"), ["start", GONE], "T-NODE-26");
        assert_events(node);
    });
}

fn assert_events(node: &Node) {
    node.kubectl.ok("kubectl wait --for=jsonpath='{.status.containerStatuses[0].restartCount}'=1 pod/alive --timeout=30s
kubectl wait --for=jsonpath='{.status.reason}'=DeadlineExceeded pod/deadline --timeout=30s
kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/startup pod/failed pod/deadline --timeout=30s");
    let events = node.kubectl.ok(
        "kubectl get events -o custom-columns=O:.involvedObject.name,R:.reason,M:.message --no-headers",
    );
    for (pod, text) in [
        ("alive", "Container alive failed liveness probe, will be restarted"),
        ("startup", "Container startup failed startup probe"),
        ("deadline", "Pod was active on the node longer than the specified deadline"),
        ("deadline", "Stopping container deadline"),
        ("failed", "Stopping container failed"),
        ("post", "PostStartHook failed"),
        ("post", "FailedPostStartHook"),
    ] {
        let there = events.lines().any(|line| line.starts_with(pod) && line.contains(text));
        assert!(there, "T-NODE-17: {pod}: {text:?} is not in\n{events}");
    }
}

/// W-12, T-NODE-78 to 80, T-NODE-83: the node preempts a pod for a critical one and evicts a pod that uses too much
/// disk. Both become Failed, their objects stay, and their hooks have run.
#[test]
fn preempted_and_evicted_pods_run_their_hooks() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let cpus: u64 = node
            .kubectl
            .ok("kubectl get node n1 -o jsonpath='{.status.allocatable.cpu}'")
            .trim()
            .parse()
            .unwrap();
        let most = json!({"resources": {"requests": {"cpu": format!("{}m", cpus * 1000 - 200)}}});
        let victim = pod(place, "victim", "", most, json!({}));
        let limited = json!({"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]});
        let mount = json!({"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]});
        let hungry = pod(place, "hungry", "--term ignore", mount, limited);
        node.run(&[victim, hungry], &["victim", "hungry"]);
        node.kubectl.ok("kubectl exec hungry -- dd if=/dev/zero of=/scratch/much bs=1M count=8");
        let some = json!({"resources": {"requests": {"cpu": "500m"}}});
        let critical = json!({"priorityClassName": "system-node-critical", "nodeName": "n1"});
        let mut critical =
            place.pod("critical", 2, vec![place.witness("critical", "", some)], critical);
        critical["metadata"]["namespace"] = "kube-system".into();
        node.run(&[critical], &["critical"]);
        node.kubectl.ok(
            "kubectl wait --for=jsonpath='{.status.reason}'=Preempting pod/victim --timeout=30s
kubectl wait --for=jsonpath='{.status.reason}'=Evicted pod/hungry --timeout=60s",
        );
        assert_eq!(place.words("victim"), ["start", "hook", "SIGTERM", "exit", GONE], "W-12");
        assert_eq!(place.words("hungry"), ["start", "hook", "SIGTERM", GONE], "W-12");
        is_about("T-NODE-79", place.between(("hungry", "SIGTERM"), ("hungry", GONE)), 2.0);
        let victim: Value =
            serde_json::from_str(&node.kubectl.ok("kubectl get pod victim -o json")).unwrap();
        assert_eq!(victim["status"]["phase"], "Failed", "{victim:#}");
        assert_eq!(victim["status"]["message"], "Preempted in order to admit critical pod");
        assert_eq!(state_of(&victim, "victim")["terminated"]["exitCode"], 0);
        let conditions = victim["status"]["conditions"].as_array().unwrap();
        let disrupted = conditions.iter().any(|condition| {
            condition["type"] == "DisruptionTarget" && condition["reason"] == "TerminationByKubelet"
        });
        assert!(disrupted, "T-NODE-83: {conditions:#?}");
        node.kubectl.shows("kubectl get events", &["Preempting"]);
    });
}
