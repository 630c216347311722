//! The grace period of a pod: hooks, stop signals and all containers share it.

use super::node::{Node, on_a_node};
use super::witness::{GONE, OFF, hook, is_about, script};
use serde_json::{Value, json};

/// W-3, W-5, W-9, W-54, T-NODE-15, T-NODE-47, T-NODE-48: two containers that ignore the stop signal are killed together
/// after one grace period; each gets one stop signal. A pod of the same name in another namespace is not affected.
#[test]
fn two_containers_that_ignore_the_signal_share_one_grace_period() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let pair = vec![
            place.witness("one", "--term ignore", json!({})),
            place.witness("two", "--term ignore", json!({})),
        ];
        let twin = vec![place.witness("twin", "", json!({}))];
        let twin = {
            let mut pod = place.pod("pair", 3, twin, json!({}));
            pod["metadata"]["namespace"] = "elsewhere".into();
            pod
        };
        node.kubectl.ok("kubectl create namespace elsewhere");
        let watch = node.watch();
        node.run(&[twin, place.pod("pair", 3, pair, json!({}))], &["one", "two", "twin"]);
        node.delete("pair");
        let apart = place.between(("one", "SIGTERM"), ("two", "SIGTERM")).abs();
        assert!(apart < 0.5, "T-NODE-15: at the same time, not {apart} s apart");
        for name in ["one", "two"] {
            is_about("W-5", place.between((name, "SIGTERM"), (name, GONE)), 3.0);
            assert_eq!(place.words(name), ["start", "SIGTERM", GONE], "W-3");
            let end = watch.end_of("pair", name);
            assert_eq!((&end["exitCode"], &end["reason"]), (&json!(137), &json!("Error")), "W-54");
        }
        agrees_with_the_record(node);
        assert_eq!(place.words("twin"), ["start"], "it was another pod");
        node.kubectl.shows("kubectl get pods -n elsewhere", &["pair", "1/1", "Running", "0"]);
    });
}

/// The times of signals in `kubectl get terminations` agree with what the processes saw. On a busy machine a process may
/// notice a signal late; the fastest one shows how exact the record is.
fn agrees_with_the_record(node: &Node) {
    let record = node.record("pair");
    let steps = record["steps"].as_array().unwrap();
    let at = |step: &Value| -> jiff::Timestamp { step["at"].as_str().unwrap().parse().unwrap() };
    let find =
        |what: &str| steps.iter().find(|step| step["what"] == what || step["signal"] == what);
    let (requested, stopped) = (find("Requested").unwrap(), find("SIGTERM").unwrap());
    let took = at(stopped).duration_since(at(requested)).as_secs_f64();
    assert!(took < OFF, "W-9: {took} s from the delete to the signal");
    let mut off = Vec::new();
    for name in ["one", "two"] {
        for (signal, seen) in [("SIGTERM", "SIGTERM"), ("SIGKILL", GONE)] {
            let step = steps.iter().find(|s| s["container"] == name && s["signal"] == signal);
            let step = step.unwrap_or_else(|| panic!("{name}: no {signal} in {steps:#?}"));
            off.push(node.place.at(name, seen) - at(step).as_nanosecond() as f64 / 1e9);
        }
    }
    eprintln!("the record is off by {off:.4?} s");
    assert!(off.iter().all(|off| off.abs() < OFF), "off by {off:.3?} s");
    assert!(off.iter().any(|off| off.abs() < 0.02), "off by {off:.3?} s");
}

/// W-10, W-11, W-21, T-NODE-19, T-NODE-27 to 30, T-NODE-33: every kind of hook uses part of the grace period, and a stop
/// signal gets two seconds even if nothing of it is left. `clock` has no hook: its signal marks the beginning.
#[test]
fn hooks_use_part_of_the_grace_period() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let stubborn = |name: &str, hook| place.witness(name, "--term ignore", hook);
        let sleep = |seconds: u64| hook(json!({"sleep": {"seconds": seconds}}));
        let slow = "echo begin > /out/slow; sleep 3; ls /proc/1 > /dev/null; echo end > /out/slow";
        let containers = vec![
            stubborn("clock", json!({})),
            // A long part of the grace period, as 45 s of a minute: the hook is not interrupted.
            stubborn("slow", script(slow)),
            stubborn("short", script("sleep 1")),
            stubborn("nap", sleep(2)),
            stubborn("no-nap", sleep(0)),
        ];
        let names = ["clock", "slow", "short", "nap", "no-nap"];
        let late =
            vec![stubborn("overruns", script("echo begin > /out/overruns; exec sleep 1000"))];
        let late = place.pod("late", 2, late, json!({}));
        let fails = vec![stubborn("fails", script("echo begin > /out/fails; exit 3"))];
        let fails = place.pod("fails", 6, fails, json!({}));
        node.run(&[place.pod("hooked", 6, containers, json!({})), late, fails], &names);
        place.at("overruns", "start");
        place.at("fails", "start");
        node.delete("hooked late fails");
        for (name, term) in [("slow", 3.0), ("short", 1.0), ("nap", 2.0), ("no-nap", 0.0)] {
            let took = place.between(("clock", "SIGTERM"), (name, "SIGTERM"));
            is_about(&format!("the signal of {name}"), took, term);
        }
        assert_eq!(place.words("slow")[..4], ["start", "begin", "end", "SIGTERM"], "T-NODE-30");
        let took = place.between(("fails", "begin"), ("fails", "SIGTERM"));
        is_about("T-NODE-29: a hook that fails is not waited for", took, 0.0);
        for name in names {
            let took = place.between(("clock", "SIGTERM"), (name, GONE));
            is_about(&format!("T-NODE-27: the end of {name}"), took, 6.0);
        }
        is_about("W-11", place.between(("overruns", "begin"), ("overruns", "SIGTERM")), 2.0);
        is_about("T-NODE-19", place.between(("overruns", "SIGTERM"), ("overruns", GONE)), 2.0);
        node.kubectl.ok("kubectl wait --for=delete pod --all --timeout=30s");
        let events = node.kubectl.ok("kubectl get events -o custom-columns=P:.involvedObject.fieldPath,R:.reason,M:.message --no-headers");
        let has_event = |part: &str, reason: &str| {
            let part = format!("spec.containers{{{part}}}");
            let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            events.lines().map(line).any(|line| line.starts_with(&part) && line.contains(reason))
        };
        assert!(has_event("fails", "FailedPreStopHook PreStopHook failed"), "T-NODE-29: {events}");
        assert!(has_event("overruns", "PreStopHookOverran"), "T-EDGE-8: {events}");
        assert!(!has_event("overruns", "FailedPreStopHook"), "T-NODE-28: {events}");
        assert!(has_event("slow", "Killing"), "T-NODE-16: {events}");
    });
}

/// T-EDGE-2, W-7, W-55: a second, shorter delete takes effect at once, and no container gets a second stop signal; a
/// longer one changes nothing.
#[test]
fn a_second_delete_can_only_shorten_the_grace_period() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let hooked = script("echo begin > /out/hooked; exec sleep 1000");
        let pods = [
            place.pod(
                "plain",
                60,
                vec![place.witness("plain", "--term ignore", json!({}))],
                json!({}),
            ),
            place.pod(
                "hooked",
                60,
                vec![place.witness("hooked", "--term ignore", hooked)],
                json!({}),
            ),
            place.pod(
                "long",
                60,
                vec![place.witness("long", "--term ignore", json!({}))],
                json!({}),
            ),
        ];
        node.run(&pods, &["plain", "hooked", "long"]);
        node.delete("plain hooked");
        node.delete("long --grace-period=6");
        node.delete("long --grace-period=300");
        assert_eq!(node.get("long", "{.metadata.deletionGracePeriodSeconds}"), "6", "W-7");
        place.at("plain", "SIGTERM");
        place.at("hooked", "begin");
        place.at("long", "SIGTERM");
        assert_eq!(node.get("plain", "{.metadata.deletionGracePeriodSeconds}"), "60", "W-55");
        let requested = super::witness::now();
        node.delete("plain hooked --grace-period=1");
        for name in ["plain", "hooked"] {
            let left = place.at(name, GONE) - requested;
            assert!((1.9..6.0).contains(&left), "{name} had {left} s left");
        }
        is_about("T-NODE-19", place.between(("hooked", "SIGTERM"), ("hooked", GONE)), 2.0);
        is_about("T-API-17", place.between(("long", "SIGTERM"), ("long", GONE)), 6.0);
        for name in ["plain", "long"] {
            assert_eq!(place.words(name), ["start", "SIGTERM", GONE]);
        }
        assert_eq!(place.words("hooked"), ["start", "begin", "SIGTERM", GONE]);
    });
}

/// W-10, W-21 with typical values: a hook of 45 s in a grace period of a minute.
#[test]
fn a_hook_of_45_seconds_in_a_grace_of_a_minute_is_not_cut() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let hook = script("echo begin > /out/long; sleep 45; echo end > /out/long");
        let containers = vec![place.witness("long", "--term ignore", hook)];
        node.run(&[place.pod("long", 60, containers, json!({}))], &["long"]);
        node.delete("long");
        is_about("the signal", place.between(("long", "begin"), ("long", "SIGTERM")), 45.0);
        is_about("the kill", place.between(("long", "begin"), ("long", GONE)), 60.0);
        assert_eq!(place.words("long"), ["start", "begin", "end", "SIGTERM", GONE]);
    });
}
