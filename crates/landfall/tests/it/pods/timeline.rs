//! Termination records: with kubectl get, describe and watch, and with `landfall timeline`.

use super::on_a_node;
use crate::harness::{Cluster, Kubectl, LANDFALL, down};
use crate::kernel_state::KernelState;
use serde_json::Value;
use std::time::Duration;

/// Steps may be posted a moment after the object is removed.
const SETTLED: &str = "for i in $(seq 100); do kubectl get terminations -o json --field-selector \
                       pod.name=POD | grep -q CgroupGone && exit 0; sleep 0.1; done; exit 1";

/// The complete record of a terminated pod.
pub(super) fn record(kubectl: &Kubectl, pod: &str) -> Value {
    kubectl.ok(&SETTLED.replace("POD", pod));
    let found =
        kubectl.ok(&format!("kubectl get terminations -o json --field-selector pod.name={pod}"));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["items"].as_array().unwrap().len(), 1, "{found:#}");
    found["items"][0].clone()
}

fn whats(record: &Value) -> Vec<&str> {
    record["steps"].as_array().unwrap().iter().map(|step| step["what"].as_str().unwrap()).collect()
}

#[track_caller]
fn in_order(record: &Value, wanted: &[&str]) {
    let all = whats(record);
    let mut rest = all.iter();
    for what in wanted {
        assert!(rest.any(|found| found == what), "{what} is not there in order: {all:?}");
    }
}

pub(super) fn find<'a>(record: &'a Value, what: &str) -> &'a Value {
    let mut steps = record["steps"].as_array().unwrap().iter();
    steps.find(|step| step["what"] == what).unwrap_or_else(|| panic!("no {what}: {record:#}"))
}

pub(super) fn at(step: &Value) -> jiff::Timestamp {
    step["at"].as_str().unwrap().parse().unwrap()
}

fn timeline(cluster: &Cluster, args: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(LANDFALL);
    command.arg("timeline").args(args).arg("--kubeconfig").arg(cluster.kubeconfig());
    command.env_remove("COLUMNS").output().expect("landfall can be run")
}

fn drawn(cluster: &Cluster, args: &[&str]) -> String {
    let output = timeline(cluster, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
}

/// A pod whose process does this on SIGTERM.
fn pod(name: &str, grace: u32, on_term: &str, hook: &str) -> String {
    format!(
        "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: {grace}
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, 'trap \"{on_term}\" TERM; while :; do sleep 0.02; done']
    {hook}
EOF
kubectl wait --for=condition=Ready pod/{name} --timeout=30s"
    )
}

/// W-35, T-EDGE-7: the record has the requester and every step, in order and with exact times.
#[test]
fn a_clean_termination_can_be_read_afterwards() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        // It exits when the record has been seen.
        kubectl.ok(&pod("web", 50, "until [ -e /go ]; do sleep 0.05; done; exit 0", ""));
        let watch = kubectl.spawn("exec kubectl get terminations -w --no-headers");
        kubectl.ok("kubectl delete pod web --wait=false");
        let first = watch.line("web.", Duration::from_secs(30));
        has(&first, &["Ending"]);
        kubectl.ok("kubectl exec web -- touch /go
                    kubectl wait --for=delete pod/web --timeout=60s");
        let web = record(kubectl, "web");
        let steps = [
            "Requested",
            "Seen",
            "Signal",
            "Exited",
            "SandboxStopped",
            "VolumesGone",
            "StatusWritten",
        ];
        in_order(&web, &steps);
        in_order(&web, &["StatusWritten", "Removed", "CgroupGone"]);
        assert_eq!((&web["outcome"], &web["confirmed"]), (&"Clean".into(), &true.into()));
        assert_eq!(web["request"]["by"], "kubernetes-admin");
        has(web["request"]["agent"].as_str().unwrap(), &["kubectl/"]);
        assert_eq!(web["request"]["graceSeconds"], 50);
        assert_eq!(find(&web, "Signal")["signal"], "SIGTERM");
        assert_eq!(find(&web, "Exited")["exitCode"], 0);
        let waited = at(find(&web, "Exited")).duration_since(at(find(&web, "Signal")));
        assert!(waited.as_millis() >= 0 && waited.as_secs() < 50, "{waited}");
        read_it(cluster, kubectl, web["metadata"]["name"].as_str().unwrap());
    });
}

fn read_it(cluster: &Cluster, kubectl: &Kubectl, name: &str) {
    let columns = ["NAME", "OUTCOME", "REQUESTED BY", "TOOK", "web.", "Clean"];
    kubectl.shows("kubectl get terminations", &columns);
    let wide = ["NAMESPACE", "SUMMARY", "all containers exited in time"];
    kubectl.shows("kubectl get term --all-namespaces -o wide", &wide);
    let yaml = ["kind: Termination", "what: Signal"];
    kubectl.shows(&format!("kubectl get termination {name} -o yaml"), &yaml);
    let described = ["Outcome:", "Clean", "Steps:", "What:"];
    kubectl.shows(&format!("kubectl describe termination {name}"), &described);
    kubectl.shows("kubectl explain terminations.steps", &["output", "Everyone who may read"]);
    kubectl.fails(&format!("kubectl delete termination {name}"), "read-only");
    let text = drawn(cluster, &["web"]);
    has(
        &text,
        &["requested by kubernetes-admin (kubectl/", "Clean after", "c: SIGTERM to process 1"],
    );
    has(&text, &["all containers exited in time", "object removed"]);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

/// T-EDGE-7, T-NODE-47: the record explains a kill, and there is an event.
#[test]
fn the_record_explains_why_a_container_was_killed() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        kubectl.ok(&pod("deaf", 3, "true", ""));
        kubectl.ok("kubectl delete pod deaf");
        let deaf = record(kubectl, "deaf");
        assert_eq!(deaf["outcome"], "Killed");
        let mut steps = deaf["steps"].as_array().unwrap().iter();
        assert!(steps.any(|step| step["signal"] == "SIGTERM"), "{deaf:#}");
        let kill = steps.find(|step| step["signal"] == "SIGKILL").unwrap();
        let patience = at(kill).duration_since(at(find(&deaf, "Seen"))).as_secs_f64();
        assert!((2.95..6.0).contains(&patience), "{patience}");
        assert_eq!(find(&deaf, "Exited")["exitCode"], 137);
        has(
            deaf["summary"].as_str().unwrap(),
            &["c did not exit within", "of SIGTERM and was killed"],
        );
        let event = ["KilledAfterGrace", "did not exit within its grace period (3s)"];
        kubectl.shows("kubectl get events", &event);
        let text = drawn(cluster, &["pod/deaf", "-n", "default"]);
        has(&text, &["Killed after", "✗"]);
        println!("{text}");
    });
}

/// T-EDGE-8, T-NODE-29: the output of a hook is only in the record.
#[test]
fn the_output_of_a_failed_hook_is_in_the_record() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let words = "echo draining; echo secret-word >&2; exit 3";
        let hook = format!("lifecycle: {{preStop: {{exec: {{command: [sh, -c, '{words}']}}}}}}");
        kubectl.ok(&pod("hooked", 20, "exit 0", &hook));
        kubectl.ok("kubectl delete pod hooked");
        let hooked = record(kubectl, "hooked");
        in_order(&hooked, &["HookStarted", "HookEnded", "Signal", "Exited"]);
        let ended = find(&hooked, "HookEnded");
        assert_eq!((&ended["exitCode"], &ended["succeeded"]), (&3.into(), &false.into()));
        has(ended["output"].as_str().unwrap(), &["draining", "secret-word"]);
        let text = drawn(cluster, &["hooked"]);
        has(&text, &["preStop hook FAILED, exit code 3", "│ draining"]);
        println!("{text}");
        let events = kubectl.ok("kubectl get events -o yaml");
        assert!(events.contains("FailedPreStopHook") && !events.contains("secret-word"));
        let slow = "lifecycle: {preStop: {exec: {command: [sleep, '1000']}}}";
        kubectl.ok(&pod("slow", 1, "exit 0", slow));
        kubectl.ok("kubectl delete pod slow");
        in_order(&record(kubectl, "slow"), &["HookStarted", "HookOverran", "Signal", "Exited"]);
    });
}

/// W-4, T-NODE-22: the record names the stop signal of the image.
#[test]
fn the_record_names_the_signal_that_the_image_wants() {
    on_a_node(&["sigint"], |_, kubectl| {
        kubectl.ok(&pod("other", 20, "exit 3", "")
            .replace("busybox:1", "sigint:1")
            .replace(" TERM;", " INT;"));
        kubectl.ok("kubectl delete pod other");
        let other = record(kubectl, "other");
        assert_eq!(find(&other, "Signal")["signal"], "SIGINT");
        assert_eq!(find(&other, "Exited")["exitCode"], 3);
    });
}

/// T-EDGE-13, W-56: the record says unsafe by request until the node has confirmed the termination.
#[test]
fn a_forced_delete_is_recorded_as_unsafe_and_then_confirmed() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        kubectl.ok(&pod("forced", 20, "true", ""));
        // The pod is killed two seconds after its stop signal: long enough to read the record in between.
        let watch = kubectl.spawn("exec kubectl get terminations -w --no-headers");
        kubectl.ok("kubectl delete pod forced --force --grace-period=0");
        watch.line("Forced,Unconfirmed", Duration::from_secs(10));
        let forced = record(kubectl, "forced");
        assert_eq!((&forced["outcome"], &forced["confirmed"]), (&"Forced".into(), &true.into()));
        in_order(&forced, &["Requested", "UnsafeByRequest", "Removed", "Exited", "SandboxStopped"]);
        let text = drawn(cluster, &["forced"]);
        has(&text, &["UNSAFE BY REQUEST of kubernetes-admin", "confirmed later"]);
        println!("{text}");
    });
}

/// T-NODE-76: no step is lost when landfall is killed, and the record shows the interruption.
#[test]
fn a_termination_interrupted_by_sigkill_is_recorded_completely() {
    let kernel = KernelState::capture();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok(&pod("brave", 6, "true", ""));
    kubectl.ok("kubectl delete pod brave --wait=false
for i in $(seq 100); do kubectl get terminations -o yaml | grep -q 'what: Signal' && exit 0; sleep 0.05; done
exit 1");
    let dir = cluster.kill();
    let cluster = Cluster::with_node_in(dir, &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl wait --for=delete pod/brave --timeout=40s");
    let brave = record(&kubectl, "brave");
    in_order(&brave, &["Requested", "Seen", "Signal", "AgentRestarted", "Seen", "Exited"]);
    in_order(&brave, &["Exited", "SandboxStopped", "StatusWritten", "Removed"]);
    let exits = whats(&brave).iter().filter(|what| **what == "Exited").count();
    assert_eq!(exits, 1, "{brave:#}");
    assert_eq!(brave["outcome"], "Killed");
    println!("{}", drawn(&cluster, &["brave"]));
    let journals = cluster.data_dir().join("timeline");
    assert_eq!(std::fs::read_dir(journals).unwrap().count(), 0, "all steps were posted");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// A completed pod has a record; without a record, `landfall timeline` says what to do.
#[test]
fn a_completed_pod_has_a_record_and_a_missing_record_an_error() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        kubectl.ok("kubectl run once --image=busybox:1 --restart=Never -- true
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/once --timeout=30s
for i in $(seq 100); do kubectl get terminations | grep Completed && break; sleep 0.1; done
kubectl delete pod once");
        let once = record(kubectl, "once");
        assert_eq!(once["outcome"], "Completed", "{once:#}");
        has(&drawn(cluster, &["once"]), &["Completed after"]);
        let output = timeline(cluster, &["nobody"]);
        assert!(!output.status.success());
        let stderr = String::from_utf8_lossy(&output.stderr);
        has(&stderr, &["no record", "kubectl get terminations"]);
    });
}

/// If the node itself terminates a pod, the record names the node and the reason.
#[test]
fn the_record_of_an_exceeded_deadline_names_the_node() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(r#"kubectl run late --image=busybox:1 --restart=Never \
  --overrides='{"spec": {"activeDeadlineSeconds": 2, "terminationGracePeriodSeconds": 1}}' -- sleep 1000
kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/late --timeout=30s
for i in $(seq 100); do kubectl get terminations | grep Killed && break; sleep 0.1; done
kubectl delete pod late"#);
        let late = record(kubectl, "late");
        assert_eq!(late["request"]["by"], "system:node:n1", "{late:#}");
        assert_eq!(late["request"]["through"], "active deadline");
        assert_eq!(late["outcome"], "Killed");
        in_order(
            &late,
            &["Requested", "Seen", "Exited", "SandboxStopped", "StatusWritten", "Removed"],
        );
    });
}

/// `--follow` prints steps as they come, and the whole timeline at the end.
#[test]
fn a_termination_can_be_followed() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&pod("seen", 20, "exit 0", ""));
        let follow = kubectl.spawn(&format!("exec {LANDFALL} timeline seen --follow 2>waiting"));
        kubectl.ok("until grep -q 'waiting for seen to terminate' waiting; do sleep 0.05; done
kubectl delete pod seen");
        follow.line("   +0.000 s  server", Duration::from_secs(10));
        follow.line("Clean after", Duration::from_secs(20));
    });
}
