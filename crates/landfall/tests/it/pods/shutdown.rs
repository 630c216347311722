//! Shutdown of a whole node: `landfall stop` leaves pods running, `landfall down` terminates them in order and reports
//! pods that got less than their grace period.

use crate::harness::{Background, Cluster, Kubectl, LANDFALL, down, other_runtime, signal};
use crate::kernel_state::KernelState;
use std::process::Command;
use std::time::Duration;

/// Longer than any grace period here.
const LONG: Duration = Duration::from_secs(60);

/// A pod that records its SIGTERM, takes a while, longer if the file `out/hold` exists, and exits.
pub(crate) fn polite(cluster: &Cluster, name: &str, line: &str) -> String {
    let out = cluster.dir().join("out");
    std::fs::create_dir_all(&out).unwrap();
    let path = out.display();
    format!(
        "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  {line}
  volumes: [{{name: out, hostPath: {{path: {path}}}}}]
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, 'trap \"echo {name} asked >> /out/order; sleep 1; while [ -e /out/hold ]; do sleep 0.05; done; echo {name} gone >> /out/order; exit 0\" TERM; while :; do sleep 0.05; done']
    volumeMounts: [{{name: out, mountPath: /out}}]
EOF
"
    )
}

/// A pod that ignores SIGTERM.
fn deaf(name: &str, grace: u32) -> String {
    let spec = format!("{{\"spec\":{{\"terminationGracePeriodSeconds\":{grace}}}}}");
    format!(
        "kubectl run {name} --image=busybox:1 --overrides='{spec}' -- sh -c 'trap \"\" TERM; while :; do sleep 1; done'
kubectl wait --for=condition=Ready pod/{name} --timeout=30s\n"
    )
}

fn asked_down(cluster: &Cluster) -> Background {
    Background::spawn(Command::new(LANDFALL).arg("down").arg("--data-dir").arg(cluster.data_dir()))
}

fn containers(kubectl: &Kubectl) -> String {
    let path = "{range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                {.status.containerStatuses[0].restartCount} {.status.podIP}{\"\\n\"}{end}";
    kubectl.ok(&format!("kubectl get pods -o jsonpath='{path}'"))
}

#[test]
fn stop_leaves_pods_that_the_next_start_adopts() {
    let kernel = KernelState::capture();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl run p --image=busybox:1 -- sh -c 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done'
                kubectl wait --for=condition=Ready pod/p --timeout=30s");
    let before = containers(&kubectl);
    let mut stop = Command::new(LANDFALL);
    let stop = stop.arg("stop").arg("--data-dir").arg(cluster.data_dir()).output().unwrap();
    assert!(stop.status.success(), "{}", String::from_utf8_lossy(&stop.stderr));
    assert!(String::from_utf8_lossy(&stop.stdout).contains("its pods keep running"));
    let cluster = Cluster::with_node_in(cluster.ended(), &[]);
    let kubectl = cluster.kubectl();
    assert_eq!(containers(&kubectl), before, "the same container and address, no restart");
    kubectl.ok("kubectl wait --for=condition=Ready pod/p --timeout=30s
                kubectl exec p -- true
                kubectl delete pod p --grace-period=1");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

#[test]
fn ctrl_c_prints_how_many_pods_keep_running_and_how_to_end_them() {
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let data_dir = cluster.data_dir();
    cluster.kubectl().ok("kubectl run p --image=busybox:1 -- sleep 1000
                          kubectl run over --image=busybox:1 --restart=Never -- true
                          kubectl wait --for=condition=Ready pod/p --timeout=30s
                          kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/over --timeout=30s");
    let (_dir, line) = cluster.interrupt("keep");
    assert!(line.contains("1 pod keeps running"), "{line}");
    assert!(line.contains(&format!("landfall down --data-dir {} (", data_dir.display())), "{line}");
    down(&data_dir);
}

/// T-NODE-86, T-NODE-87, T-NODE-88: the order of termination, the condition of the node, and the stored status.
#[test]
fn down_terminates_pods_by_priority_and_stores_their_last_status() {
    let kernel = KernelState::capture();
    let args = ["--shutdown-grace-by-priority", "0=60s,1000=20s,2000000000=20s"];
    let cluster = Cluster::with_node(&["busybox"], &args);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl create priorityclass above --value=1000");
    kubectl.ok(&polite(&cluster, "last", "priorityClassName: system-node-critical"));
    kubectl.ok(&polite(&cluster, "second", "priorityClassName: above"));
    kubectl.ok(&polite(&cluster, "first", "terminationGracePeriodSeconds: 50"));
    kubectl.ok("kubectl wait --for=condition=Ready pod --all --timeout=60s");
    // Until everything is checked that can be seen only while the node is shutting down.
    let hold = cluster.dir().join("out/hold");
    std::fs::write(&hold, "").unwrap();
    let mut down_command = asked_down(&cluster);
    kubectl.ok("kubectl wait --for=condition=Ready=false node/n1 --timeout=10s
                kubectl run late --image=busybox:1 --overrides='{\"spec\":{\"nodeName\":\"n1\"}}'
                kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/late --timeout=10s");
    let path = "{.status.conditions[?(@.type==\"Ready\")].reason}: \
                {.status.conditions[?(@.type==\"Ready\")].message}";
    kubectl.prints(
        &format!("kubectl get node n1 -o jsonpath='{path}'"),
        "KubeletNotReady: node is shutting down",
    );
    let status = "{.status.phase}: {.status.reason}: {.status.message}";
    kubectl.prints(
        &format!("kubectl get pod late -o jsonpath='{status}'"),
        "Failed: NodeShutdown: Pod was rejected: Pod was rejected as the node is shutting down.",
    );
    kubectl.shows(
        "kubectl get events --field-selector involvedObject.kind=Node",
        &["Shutdown", "Shutdown manager detected shutdown event", "NodeNotReady"],
    );
    std::fs::remove_file(&hold).unwrap();
    assert_eq!(down_command.exit(LONG), Some(0), "{}", down_command.stderr());
    let order = std::fs::read_to_string(cluster.dir().join("out/order")).unwrap();
    let wanted = ["first", "second", "last"].map(|name| format!("{name} asked\n{name} gone\n"));
    assert_eq!(order, wanted.concat());
    kernel.assert_unchanged(&cluster.data_dir());

    let cluster = Cluster::with_node_in(cluster.ended(), &[]);
    let kubectl = cluster.kubectl();
    for pod in ["first", "second", "last"] {
        let shows = |path: &str, text: &str| {
            kubectl.prints(&format!("kubectl get pod {pod} -o jsonpath='{path}'"), text);
        };
        shows(
            status,
            "Failed: Terminated: Pod was terminated in response to imminent node shutdown.",
        );
        shows(
            "{.status.conditions[?(@.type==\"DisruptionTarget\")].reason}",
            "TerminationByKubelet",
        );
        shows("{.status.containerStatuses[0].state.terminated.exitCode}", "0");
    }
    kubectl.ok("kubectl delete pods --all");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// The output names pods that got less time, and says what to change.
#[test]
fn down_reports_pods_that_got_less_time() {
    let kernel = KernelState::capture();
    let cluster = Cluster::with_node(&["busybox"], &["--shutdown-grace", "2s"]);
    let kubectl = cluster.kubectl();
    kubectl.ok(&(deaf("impatient", 1) + &deaf("robbed", 90)));
    kubectl.ok(&(polite(&cluster, "quick", "terminationGracePeriodSeconds: 90")
        + "kubectl wait --for=condition=Ready pod/quick --timeout=30s"));
    let output = down(&cluster.data_dir());
    for words in [
        "default/impatient did not stop within its 1s: impatient was killed. Raise its terminationGracePeriodSeconds",
        "default/robbed had 2s of its 90s: robbed was killed. Give pods of its priority more (--shutdown-grace",
        "default/quick had 2s of its 90s, and stopped in time",
    ] {
        assert!(output.contains(words), "it does not say {words:?}:\n{output}");
    }
    kernel.assert_unchanged(&cluster.data_dir());
}

/// After Ctrl-C or a second signal the remaining pods get two seconds.
#[test]
fn a_second_request_makes_down_faster() {
    for by_signal in [false, true] {
        let kernel = KernelState::capture();
        let cluster = Cluster::with_node(&["busybox"], &[]);
        let kubectl = cluster.kubectl();
        kubectl.ok(&deaf("slow", 600));
        let mut down_command = asked_down(&cluster);
        down_command.line("terminating 1 pod", LONG);
        if by_signal {
            signal(cluster.process_id(), "TERM");
        } else {
            signal(down_command.id(), "INT");
        }
        down_command.line("two seconds are left for 1 pod", LONG);
        down_command.line(
            "default/slow: a second request shortened its grace period of 600s; slow was killed",
            LONG,
        );
        assert_eq!(down_command.exit(LONG), Some(0), "{}", down_command.stderr());
        kernel.assert_unchanged(&cluster.data_dir());
    }
}

/// T-NODE-84: `down` gives up on a pod that cannot be terminated, names it, and exits.
#[test]
fn down_gives_up_on_a_stuck_pod() {
    if other_runtime().is_some() {
        return; // Its shims are not ours to hold up.
    }
    let kernel = KernelState::capture();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok(&deaf("stuck", 1));
    let shims = super::crashes::shims(&cluster.data_dir());
    assert_eq!(shims.len(), 1);
    signal(shims[0], "STOP");
    let mut down_command = asked_down(&cluster);
    down_command.line("default/stuck is still running", LONG);
    assert_eq!(down_command.exit(LONG), Some(0), "{}", down_command.stderr());
    signal(shims[0], "CONT");
    let output = down(&cluster.data_dir());
    assert!(output.contains("nothing of it is left running"), "{output}");
    kernel.assert_unchanged(&cluster.data_dir());
}

/// A log file contains no escape sequences.
#[test]
fn a_log_that_is_not_a_terminal_has_no_colours() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = crate::harness::up(dir.path());
    command.args(["--no-node", "--no-scheduler"]).env("LANDFALL_LOG", "debug");
    let mut landfall = Background::spawn(&mut command);
    landfall.line("ready", LONG);
    signal(landfall.id(), "TERM");
    assert_eq!(landfall.exit(LONG), Some(0), "{}", landfall.stderr());
    let output = landfall.stderr();
    assert!(output.contains("DEBUG") && !output.contains('\x1b'), "{output}");
}

#[test]
fn a_second_start_on_the_same_directory_does_not_harm_the_first() {
    let cluster = Cluster::start(&[]);
    let mut second = crate::harness::up(&cluster.data_dir());
    let second = second.args(["--no-node", "--no-scheduler"]).output().unwrap();
    assert!(!second.status.success());
    let output = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        output.contains("another landfall is running on") && output.contains("landfall stop"),
        "{output}"
    );
    cluster.kubectl().ok("kubectl get namespaces");
    let mut stop = Command::new(LANDFALL);
    let stop = stop.arg("stop").arg("--data-dir").arg(cluster.data_dir()).output().unwrap();
    assert!(stop.status.success());
    cluster.ended();
}
