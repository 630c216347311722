//! What the API shows of a termination: the object, its events, and its removal.

use super::node::{Node, on_a_node, state_of};
use super::signals::cgroups_of;
use super::witness::{GONE, is_about};
use crate::kernel_state::mounts;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

fn condition<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let all = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().find(|condition| condition["type"] == name).unwrap_or(&Value::Null)
}

/// W-2, W-8, W-16, W-17, T-NODE-44 to 46, T-NODE-51, T-NODE-53 to 56, T-NODE-70 to 74, T-INV-3, T-INV-4, T-INV-7: a watch
/// shows all changes from the deletionTimestamp to the removal in order; the node corrects a status that others write; a
/// container that has exited is shown as terminated while another one still runs (T-EDGE-5).
#[test]
fn a_watch_shows_a_termination_in_order() {
    let audit = tempfile::NamedTempFile::new().unwrap();
    let args = ["--audit-log", audit.path().to_str().unwrap()];
    on_a_node(&["python"], &args, |node| {
        let place = &node.place;
        let memory = json!({"volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}]});
        let mount = json!({"volumeMounts": [{"name": "memory", "mountPath": "/memory"}]});
        let web = place.witness("web", "--http 80 --until /out/enough", mount);
        let pods = [
            place.pod("plain", 60, vec![web, place.witness("quick", "", json!({}))], memory),
            place.pod("bad", 60, vec![place.witness("bad", "--term 5", json!({}))], json!({})),
        ];
        let watch = node.watch();
        node.run(&pods, &["web", "quick", "bad"]);
        node.kubectl.ok("kubectl wait --for=condition=Ready pod/plain --timeout=30s");
        let (uid, ip) =
            (node.get("plain", "{.metadata.uid}"), node.get("plain", "{.status.podIP}"));
        let address: SocketAddr = format!("{ip}:80").parse().unwrap();
        let reach = || TcpStream::connect_timeout(&address, Duration::from_secs(1));
        reach().expect("it answers");
        let volumes = node.cluster.data_dir().join("kubelet/pods").join(&uid);
        assert!(!mounts(&volumes).is_empty());
        node.delete("plain bad");
        place.at("quick", GONE);
        while_it_goes_on(node, &watch);
        std::fs::write(place.path().join("enough"), "").unwrap();
        let events = watch.until_deleted("plain");
        is_in_order(&events, place.at("web", GONE));
        assert_eq!(mounts(&volumes), Vec::<String>::new(), "T-NODE-70");
        assert!(!volumes.exists(), "T-NODE-71");
        assert_eq!(cgroups_of(&uid), Vec::<String>::new(), "T-NODE-72");
        assert!(reach().is_err(), "T-NODE-24: its address is not reachable");
        let bad = watch.until_deleted("bad");
        assert_eq!(bad[bad.len() - 1]["object"]["status"]["phase"], "Failed", "T-NODE-51");
        node.kubectl.fails("kubectl get pod plain", "not found");
        written_then_removed(&std::fs::read_to_string(audit.path()).unwrap());
    });
}

fn while_it_goes_on(node: &Node, watch: &super::node::Watch) {
    node.kubectl.shows("kubectl get pod plain", &["plain", "Terminating"]);
    node.kubectl.shows("kubectl describe pod plain", &["Status:", "Terminating (lasts"]);
    let ended = watch
        .until("plain", |event| state_of(&event["object"], "quick")["terminated"]["exitCode"] == 0);
    let object = &ended[ended.len() - 1]["object"];
    assert!(state_of(object, "web")["running"].is_object(), "T-EDGE-5: {object:#}");
    // T-NODE-46: the node overwrites conditions that others set.
    node.kubectl.ok("kubectl patch pod plain --subresource=status -p '{\"status\":{\"conditions\":[{\"type\":\"PodScheduled\",\"status\":\"False\"},{\"type\":\"Initialized\",\"status\":\"False\"}]}}'
kubectl wait --for=condition=Initialized pod/plain --timeout=30s");
}

fn is_in_order(events: &[Value], gone: f64) {
    let object = |index: usize| &events[index]["object"];
    let marked = |index: &usize| object(*index)["metadata"]["deletionTimestamp"].is_string();
    let first = (0..events.len()).find(marked).expect("W-2: it is marked");
    assert_eq!(object(first)["metadata"]["deletionGracePeriodSeconds"], 60, "W-2");
    assert_eq!(condition(object(first), "Ready")["status"], "True", "T-NODE-44");
    assert_eq!(object(first)["status"]["phase"], "Running");
    let mut versions = events.iter().map(|event| {
        event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap()
    });
    assert!(versions.by_ref().is_sorted_by(|a, b| a < b), "T-INV-7");
    let mut grace = 60;
    for event in &events[first..] {
        let meta = &event["object"]["metadata"];
        let now = meta["deletionGracePeriodSeconds"].as_i64().unwrap();
        assert!(meta["deletionTimestamp"].is_string() && now <= grace, "T-INV-4: {meta:#}");
        grace = now;
    }
    for event in events {
        let pod = &event["object"];
        if !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
            continue;
        }
        assert!(event["seen"].as_f64().unwrap() >= gone, "T-NODE-53: its processes are gone");
        assert_eq!(condition(pod, "Ready")["reason"], "PodCompleted", "T-NODE-54: {pod:#}");
    }
    let last = object(events.len() - 1);
    let before = object(events.len() - 2);
    assert_eq!(before["status"]["phase"], "Succeeded", "W-16, T-NODE-55: before it goes");
    assert!(last["status"]["podIP"].is_string(), "T-NODE-56");
    for name in ["web", "quick"] {
        assert_eq!(state_of(last, name)["terminated"]["exitCode"], 0, "T-NODE-73");
    }
    let took = events[events.len() - 1]["seen"].as_f64().unwrap() - gone;
    assert!(took < 4.0, "T-NODE-10: gone {took} s after its last process");
}

/// T-NODE-74: the node writes the last status before it removes the object.
fn written_then_removed(audit: &str) {
    let lines = audit.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let by_node: Vec<(String, String)> = lines
        .filter(|line| line["stage"] == "ResponseComplete")
        .filter(|line| line["user"]["username"] == "system:node:n1")
        .filter(|line| {
            line["objectRef"]["resource"] == "pods" && line["objectRef"]["name"] == "plain"
        })
        .map(|line| (line["verb"].to_string(), line["objectRef"]["subresource"].to_string()))
        .collect();
    let last: Vec<&str> = by_node.iter().rev().take(2).map(|(verb, _)| verb.as_str()).collect();
    assert_eq!(last, ["\"delete\"", "\"patch\""], "T-NODE-74: {by_node:?}");
}

/// T-NODE-7, T-NODE-8, T-NODE-41, T-NODE-50, T-NODE-52, T-EDGE-4: a delete does not wait for the start to finish: for a
/// postStart hook, an init container, or an image that cannot be pulled.
#[test]
fn a_delete_does_not_wait_for_a_start() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let forever =
            json!({"exec": {"command": ["sh", "-c", "echo hook > /out/post; exec sleep 1000"]}});
        let post = place.witness("post", "", json!({"lifecycle": {"postStart": forever}}));
        let init = place.witness("init", "--term 1", json!({}));
        let after = json!({"name": "after", "image": "python:1"});
        let absent = json!({"name": "absent", "image": "absent:1", "imagePullPolicy": "Never"});
        let pods = [
            place.pod("post", 60, vec![post], json!({})),
            place.pod("init", 60, vec![after], json!({"initContainers": [init]})),
            place.pod("absent", 60, vec![absent], json!({})),
        ];
        let watch = node.watch();
        node.run(&pods, &["post", "init"]);
        place.at("post", "hook");
        node.kubectl.ok("kubectl wait --for=jsonpath='{.status.containerStatuses[0].state.waiting.reason}'=ErrImageNeverPull pod/absent --timeout=30s");
        node.delete("post init absent");
        for (name, code) in [("post", 0), ("init", 1)] {
            place.at(name, GONE);
            let words = place.words(name);
            assert_eq!(words[words.len() - 3..], ["SIGTERM", "exit", GONE], "T-NODE-7, T-NODE-41");
            assert_eq!(watch.end_of(name, name)["exitCode"], code);
        }
        let lost = watch.end_of("absent", "absent");
        assert_eq!(
            (&lost["exitCode"], &lost["reason"]),
            (&json!(137), &json!("ContainerStatusUnknown")),
            "T-NODE-50"
        );
        for name in ["init", "absent"] {
            let events = watch.until_deleted(name);
            assert_eq!(
                events[events.len() - 1]["object"]["status"]["phase"],
                "Failed",
                "T-NODE-52"
            );
        }
        at_once(node, &watch);
    });
}

/// T-NODE-8, T-INV-1: a pod that is deleted right after it was bound is removed, and none of its containers starts after
/// the deletionTimestamp.
fn at_once(node: &Node, watch: &super::node::Watch) {
    let place = &node.place;
    let pod = place.pod(
        "hasty",
        1,
        vec![place.witness("hasty", "", json!({}))],
        json!({"nodeName": "n1"}),
    );
    node.create(&[pod]);
    node.delete("hasty");
    let events = watch.until_deleted("hasty");
    let marked =
        events.iter().position(|e| e["object"]["metadata"]["deletionTimestamp"].is_string());
    let ids = |events: &[Value]| {
        let all = events
            .iter()
            .map(|e| e["object"]["status"]["containerStatuses"][0]["containerID"].clone());
        all.filter(Value::is_string).collect::<Vec<_>>()
    };
    let (before, after) = events.split_at(marked.unwrap() + 1);
    if let Some(late) = ids(after).first() {
        // A start may already have been under way; then it is the only one, as T-NODE-1 allows.
        let known = ids(before);
        assert!(known.is_empty() || known.contains(late), "T-NODE-1: {known:?} {late}");
    }
}

/// T-NODE-4, T-NODE-75: a completed pod is cleaned up like a deleted one, but its object and its log stay. T-NODE-25: the
/// node reports an exit only after the runtime has reported it.
#[test]
fn no_pod_is_reported_terminated_while_its_processes_may_run() {
    if crate::harness::other_runtime().is_some() {
        return; // It has shims of its own.
    }
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let volume = json!({"restartPolicy": "Never",
                            "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}]});
        let done = place.shell("done", "python:1", "echo start > $P; echo last words");
        let stuck = place.witness("stuck", "--term ignore", json!({}));
        let pods = [
            place.pod("done", 5, vec![done], volume),
            place.pod("stuck", 2, vec![stuck], json!({})),
        ];
        node.run(&pods, &["done", "stuck"]);
        node.kubectl
            .ok("kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/done --timeout=30s");
        let uid = node.get("done", "{.metadata.uid}");
        let volumes = node.cluster.data_dir().join("kubelet/pods").join(&uid);
        node.kubectl.ok(&format!(
            "for i in $(seq 300); do [ -e {0} ] || exit 0; sleep 0.1; done; exit 1",
            volumes.display()
        ));
        assert_eq!(cgroups_of(&uid), Vec::<String>::new(), "T-NODE-4");
        node.kubectl.prints("kubectl logs done", "last words");
        let shim = shim_of(node, "stuck");
        crate::harness::signal(shim, "STOP");
        node.delete("stuck");
        // A kill works without the shim; the report of the exit does not.
        place.at("stuck", GONE);
        let state = node.get("stuck", "{.status.containerStatuses[0].state.running.startedAt}");
        assert!(!state.is_empty(), "T-NODE-25: its exit was not observed");
        crate::harness::signal(shim, "CONT");
        node.kubectl.ok("kubectl wait --for=delete pod/stuck --timeout=30s");
    });
}

/// The directory of the sandbox of a pod with one container.
pub(crate) fn sandbox_of(node: &Node, pod: &str) -> PathBuf {
    let id = node.get(pod, "{.status.containerStatuses[0].containerID}");
    let id = id.rsplit('/').next().unwrap().to_owned();
    let all = std::fs::read_dir(node.cluster.data_dir().join("run")).unwrap().flatten();
    let mut all = all.map(|entry| entry.path());
    all.find(|path| path.join("containers").join(&id).exists()).expect("it has a sandbox")
}

/// The shim of the only pod that runs a container of this name.
pub(crate) fn shim_of(node: &Node, container: &str) -> u32 {
    let sandbox = sandbox_of(node, container);
    let record = std::fs::read_to_string(sandbox.join("shim.pid")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    u32::try_from(record["pid"].as_u64().unwrap()).unwrap()
}

/// T-NODE-91: a deleted mirror pod is created again with another uid, and the static pod keeps running. T-NODE-89,
/// T-NODE-90: when a manifest changes, the old pod terminates with its own grace period before the new one starts.
#[test]
fn a_deleted_mirror_pod_does_not_stop_its_static_pod() {
    let manifests = tempfile::tempdir().unwrap();
    let args = ["--pod-manifests", manifests.path().to_str().unwrap()];
    on_a_node(&["python"], &args, |node| {
        let place = &node.place;
        let pod = place.pod(
            "fixed",
            3,
            vec![place.witness("fixed", "--term ignore", json!({}))],
            json!({}),
        );
        std::fs::write(manifests.path().join("fixed.json"), pod.to_string()).unwrap();
        place.at("fixed", "start");
        node.kubectl.ok("kubectl wait --for=condition=Ready pod/fixed-n1 --timeout=60s");
        let (uid, id) = ("{.metadata.uid}", "{.status.containerStatuses[0].containerID}");
        let (before, container) = (node.get("fixed-n1", uid), node.get("fixed-n1", id));
        node.kubectl.ok("kubectl delete pod fixed-n1 --wait=false");
        node.kubectl.ok(&format!("for i in $(seq 300); do u=$(kubectl get pod fixed-n1 -o jsonpath='{uid}' 2>/dev/null) && [ -n \"$u\" ] && [ $u != {before} ] && exit 0; sleep 0.1; done; exit 1
kubectl wait --for=jsonpath='{{.status.phase}}'=Running pod/fixed-n1 --timeout=60s"));
        assert_eq!(node.get("fixed-n1", id), container, "T-NODE-91");
        assert_eq!(place.words("fixed"), ["start"]);
        let mut other = pod;
        other["metadata"]["labels"] = json!({"edition": "second"});
        std::fs::write(manifests.path().join("fixed.json"), other.to_string()).unwrap();
        place.nth("fixed", "start", 1);
        assert_eq!(place.words("fixed"), ["start", "SIGTERM", GONE, "start"], "T-NODE-90");
        is_about("its own grace", place.between(("fixed", "SIGTERM"), ("fixed", GONE)), 3.0);
        std::fs::remove_file(manifests.path().join("fixed.json")).unwrap();
        place.nth("fixed", GONE, 1);
    });
}
