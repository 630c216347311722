//! Which stop signal a container gets, and which exit code and reason the API shows.

use super::node::{Node, on_a_node, state_of};
use super::witness::{GONE, Place, is_about};
use serde_json::{Value, json};

/// A container that reports which of the usual stop signals it gets, and exits.
fn traps(place: &Place, name: &str, image: &str) -> Value {
    let says = |signal: &str| format!("trap 'echo {signal} > $P; exit 0' {signal}; ");
    let traps: String = ["TERM", "QUIT", "INT", "HUP", "USR1"].map(says).concat();
    place.shell(name, image, &format!("{traps} echo start > $P; while :; do sleep 0.05; done"))
}

/// W-4, T-NODE-22: the STOPSIGNAL of an image replaces SIGTERM: SIGQUIT for nginx, SIGINT for another image.
#[test]
fn the_image_defines_the_stop_signal() {
    on_a_node(&["busybox", "nginx", "sigint"], &[], |node| {
        let place = &node.place;
        let containers = vec![
            traps(place, "term", "busybox:1"),
            traps(place, "quit", "nginx:1"),
            traps(place, "int", "sigint:1"),
        ];
        let pod = place.pod("signals", 10, containers, json!({}));
        node.run(&[pod], &["term", "quit", "int"]);
        node.delete("signals");
        for (name, signal) in [("term", "TERM"), ("quit", "QUIT"), ("int", "INT")] {
            place.at(name, signal);
            let words: Vec<String> =
                place.words(name).into_iter().filter(|word| word != GONE).collect();
            assert_eq!(words, ["start", signal], "W-4");
        }
        // The termination record names the signal that was sent.
        node.kubectl.ok("kubectl wait --for=delete pod/signals --timeout=30s");
        let record = node.record("signals");
        for (name, signal) in [("term", "SIGTERM"), ("quit", "SIGQUIT"), ("int", "SIGINT")] {
            let steps = record["steps"].as_array().unwrap();
            let sent = steps.iter().find(|it| it["what"] == "Signal" && it["container"] == name);
            assert_eq!(sent.unwrap()["signal"], signal, "W-4: {record:#}");
        }
    });
}

/// W-15, W-54, T-NODE-47, T-NODE-48, T-NODE-51, T-NODE-72: the exit code is 0 after a handler, 143 after an unhandled
/// signal and 137 after a kill, with the reason `Error`; OOMKilled only after the memory limit. Child processes, even in
/// other sessions, end with their container, and no cgroup is left.
#[test]
fn exit_codes_and_reasons_are_correct_and_no_process_is_left() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let eats = json!({"name": "eats", "image": "python:1",
            "command": ["python3", "-c", "x = b'x' * (300 << 20)"],
            "resources": {"limits": {"memory": "64Mi"}}});
        // In a shared process namespace the container is not process 1, so unhandled signals take effect.
        let all = json!({"shareProcessNamespace": true});
        let containers = vec![
            place.witness("handles", "--children", json!({})),
            place.witness("unhandled", "--term default --children", json!({})),
            place.witness("stubborn", "--term ignore --children", json!({})),
        ];
        let mut held = place.pod("held", 2, containers, all);
        held["metadata"]["finalizers"] = json!(["landfall.test/look-at-it"]);
        let alone = vec![place.witness("alone", "--children", json!({}))];
        let pods = [
            held,
            place.pod("alone", 10, alone, json!({})),
            place.pod("eats", 2, vec![eats], json!({"restartPolicy": "Never"})),
        ];
        let watch = node.watch();
        node.run(&pods, &["handles", "unhandled", "stubborn", "alone"]);
        let uid = node.get("held", "{.metadata.uid}");
        node.delete("held alone");
        for name in ["handles", "unhandled", "stubborn", "alone"] {
            place.at(name, GONE); // Of the children too: they have the pipe.
        }
        is_about("W-5", place.between(("stubborn", "SIGTERM"), ("stubborn", GONE)), 2.0);
        assert_eq!(watch.end_of("alone", "alone")["exitCode"], 0);
        let last = watch.until("held", |event| event["object"]["status"]["phase"] == "Failed");
        let last = &last[last.len() - 1]["object"];
        for (name, code, reason) in
            [("handles", 0, "Completed"), ("unhandled", 143, "Error"), ("stubborn", 137, "Error")]
        {
            let end = state_of(last, name)["terminated"].clone();
            assert_eq!(
                (&end["exitCode"], &end["reason"]),
                (&json!(code), &json!(reason)),
                "{name}"
            );
            for field in ["startedAt", "finishedAt", "containerID"] {
                assert!(end[field].is_string(), "T-NODE-47: {end:#}");
            }
        }
        node.kubectl.shows(
            "kubectl describe pod held",
            &[
                "Status:",
                "handles:",
                "Exit Code:    0",
                "unhandled:",
                "Reason:       Error",
                "Exit Code:    143",
                "stubborn:",
                "Exit Code:    137",
            ],
        );
        assert_eq!(cgroups_of(&uid), Vec::<String>::new(), "T-NODE-72");
        out_of_memory(node);
        node.kubectl.ok("kubectl patch pod held -p '{\"metadata\":{\"finalizers\":null}}'
kubectl wait --for=delete pod/held --timeout=30s");
    });
}

fn out_of_memory(node: &Node) {
    node.kubectl.ok("kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/eats --timeout=60s");
    node.kubectl
        .shows("kubectl describe pod eats", &["Reason:       OOMKilled", "Exit Code:    137"]);
}

/// All cgroups of any hierarchy that have the uid of the pod in their name.
pub(crate) fn cgroups_of(uid: &str) -> Vec<String> {
    let find = "find /sys/fs/cgroup -type d -name";
    let command =
        format!("{find} '*{uid}*' 2>/dev/null; {find} '*{}*' 2>/dev/null", uid.replace('-', "_"));
    let found = std::process::Command::new("sh").args(["-c", &command]).output();
    let found = found.expect("a shell can be run");
    assert_ne!(
        found.status.code(),
        Some(127),
        "find is not installed: `apt-get install findutils`"
    );
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}
