//! The order of termination: sidecars last and in reverse order, and orders that hooks impose.

use super::node::on_a_node;
use super::witness::{GONE, hook, is_about, script};
use serde_json::{Value, json};

fn sidecar(mut container: Value) -> Value {
    container["restartPolicy"] = "Always".into();
    container
}

/// T-NODE-35, T-NODE-36, T-NODE-37, T-NODE-40: sidecars get their stop signal after the regular containers have exited,
/// the last declared first; their hooks run at the beginning; if a container uses up the grace period, the sidecar still
/// gets two seconds.
#[test]
fn sidecars_stop_last_and_in_reverse_order() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let first = place.witness("first", "--term 7", script("echo hook > /out/first"));
        let second = place.witness("second", "--after 0.5", json!({}));
        let apps = vec![
            place.witness("app", "--after 1", json!({})),
            place.witness("quick", "", json!({})),
        ];
        let sidecars = json!({"initContainers": [sidecar(first), sidecar(second)]});
        let polite = place.pod("polite", 20, apps, sidecars);
        let proxy = sidecar(place.witness("proxy", "--term ignore", json!({})));
        let stubborn = vec![place.witness("stubborn", "--term ignore", json!({}))];
        let stubborn = place.pod("stubborn", 3, stubborn, json!({"initContainers": [proxy]}));
        let watch = node.watch();
        node.run(&[polite, stubborn], &["first", "second", "app", "quick", "proxy", "stubborn"]);
        node.delete("polite stubborn");
        is_about("T-NODE-36", place.between(("app", "SIGTERM"), ("first", "hook")), 0.0);
        is_about("its turn comes", place.between(("app", "exit"), ("second", "SIGTERM")), 0.0);
        is_about("then the other's", place.between(("second", "exit"), ("first", "SIGTERM")), 0.0);
        is_about("T-NODE-37", place.between(("stubborn", "SIGTERM"), ("proxy", "SIGTERM")), 3.0);
        is_about("T-NODE-37", place.between(("proxy", "SIGTERM"), ("proxy", GONE)), 2.0);
        let events = watch.until_deleted("polite");
        let last = &events[events.len() - 1]["object"];
        assert_eq!(last["status"]["phase"], "Succeeded", "T-NODE-40: {last:#}");
    });
}

/// W-20: the second container's hook waits for a file that the first one writes when it exits. W-57, T-NODE-31: an HTTP
/// hook is sent once, before the signal, and any response counts as success.
#[test]
fn hooks_impose_an_order() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let leave = "trap 'touch /out/first-is-over; exit 0' TERM; echo start > $P; while :; do sleep 0.05; done";
        let first = place.shell("first", "python:1", leave);
        let wait =
            "until [ -f /out/first-is-over ]; do sleep 0.05; done; echo waited > /out/second";
        let second = place.witness("second", "", script(wait));
        let get = hook(json!({"httpGet": {"path": "/shutdown", "port": 8080}}));
        let web = place.witness("web", "--http 8080 --term ignore", get);
        let pods = [
            place.pod("ordered", 20, vec![first, second], json!({})),
            place.pod("web", 3, vec![web], json!({})),
        ];
        node.run(&pods, &["first", "second", "web"]);
        node.delete("ordered web");
        place.at("second", GONE);
        assert_eq!(place.words("second"), ["start", "waited", "SIGTERM", "exit", GONE], "W-20");
        place.at("web", GONE);
        assert_eq!(place.words("web"), ["start", "GET:/shutdown", "SIGTERM", GONE], "W-57");
        is_about("W-57", place.between(("web", "GET:/shutdown"), ("web", GONE)), 3.0);
        let events = node.kubectl.ok("kubectl get events");
        assert!(!events.contains("FailedPreStopHook"), "T-NODE-31: {events}");
    });
}
