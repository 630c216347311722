//! The end of a whole node: `landfall stop` leaves pods, `landfall down` ends them in order and says
//! what it cost them.

use crate::ground::Ground;
use crate::harness::{Background, Cluster, Kubectl, LANDFALL, down, other_runtime, signal};
use std::process::Command;
use std::time::Duration;

/// Longer than any grace here; what is stuck fails by this.
const LONG: Duration = Duration::from_secs(60);

/// A pod that writes down when it was asked to end, takes a while, and ends.
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
    command: [sh, -c, 'trap \"echo {name} asked >> /out/order; sleep 1; echo {name} gone >> /out/order; exit 0\" TERM; while :; do sleep 0.05; done']
    volumeMounts: [{{name: out, mountPath: /out}}]
EOF
"
    )
}

/// A pod that does not care for being asked.
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
fn stop_leaves_pods_that_the_next_start_finds_again() {
    let ground = Ground::look();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl run p --image=busybox:1 -- sh -c 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done'
                kubectl wait --for=condition=Ready pod/p --timeout=30s");
    let before = containers(&kubectl);
    let mut stop = Command::new(LANDFALL);
    let stop = stop.arg("stop").arg("--data-dir").arg(cluster.data_dir()).output().unwrap();
    assert!(stop.status.success(), "{}", String::from_utf8_lossy(&stop.stderr));
    assert!(String::from_utf8_lossy(&stop.stdout).contains("its pods go on"));
    let cluster = Cluster::with_node_in(cluster.ended(), &[]);
    let kubectl = cluster.kubectl();
    assert_eq!(containers(&kubectl), before, "the same container and address, no restart");
    kubectl.ok("kubectl wait --for=condition=Ready pod/p --timeout=30s
                kubectl exec p -- true
                kubectl delete pod p --grace-period=1");
    down(&cluster.data_dir());
    ground.is_as_before(&cluster.data_dir());
}

/// T-NODE-86, T-NODE-87, T-NODE-88: who is asked when, what the node says meanwhile, what is stored.
#[test]
fn down_ends_pods_by_priority_and_leaves_their_last_status() {
    let ground = Ground::look();
    let args = ["--shutdown-grace-by-priority", "0=20s,1000=20s,2000000000=20s"];
    let cluster = Cluster::with_node(&["busybox"], &args);
    let kubectl = cluster.kubectl();
    kubectl.ok("kubectl create priorityclass above --value=1000");
    kubectl.ok(&polite(&cluster, "last", "priorityClassName: system-node-critical"));
    kubectl.ok(&polite(&cluster, "second", "priorityClassName: above"));
    kubectl.ok(&polite(&cluster, "first", "terminationGracePeriodSeconds: 15"));
    kubectl.ok("kubectl wait --for=condition=Ready pod --all --timeout=60s");
    let mut asked = asked_down(&cluster);
    kubectl.ok("kubectl wait --for=condition=Ready=false node/n1 --timeout=10s
                kubectl run late --image=busybox:1 --overrides='{\"spec\":{\"nodeName\":\"n1\"}}'
                kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/late --timeout=10s");
    let said = "{.status.conditions[?(@.type==\"Ready\")].reason}: \
                {.status.conditions[?(@.type==\"Ready\")].message}";
    kubectl.prints(
        &format!("kubectl get node n1 -o jsonpath='{said}'"),
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
    assert_eq!(asked.exit(LONG), Some(0), "{}", asked.stderr());
    let order = std::fs::read_to_string(cluster.dir().join("out/order")).unwrap();
    let wanted = ["first", "second", "last"].map(|name| format!("{name} asked\n{name} gone\n"));
    assert_eq!(order, wanted.concat());
    ground.is_as_before(&cluster.data_dir());

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
    ground.is_as_before(&cluster.data_dir());
}

/// Whose time was cut is told by name, with what to change.
#[test]
fn down_says_what_was_cut() {
    let ground = Ground::look();
    let cluster = Cluster::with_node(&["busybox"], &["--shutdown-grace", "2s"]);
    let kubectl = cluster.kubectl();
    kubectl.ok(&(deaf("impatient", 1) + &deaf("robbed", 90)));
    kubectl.ok(&(polite(&cluster, "quick", "terminationGracePeriodSeconds: 90")
        + "kubectl wait --for=condition=Ready pod/quick --timeout=30s"));
    let said = down(&cluster.data_dir());
    for words in [
        "default/impatient did not end within its 1s: impatient was killed. Raise its terminationGracePeriodSeconds",
        "default/robbed had 2s of its 90s: robbed was killed. Give pods of its priority more (--shutdown-grace",
        "default/quick had 2s of its 90s, and ended in time",
    ] {
        assert!(said.contains(words), "it does not say {words:?}:\n{said}");
    }
    ground.is_as_before(&cluster.data_dir());
}

/// Ctrl-C on the command, or a signal to landfall itself: two seconds for whoever is left.
#[test]
fn asked_again_down_hurries() {
    for by_signal in [false, true] {
        let ground = Ground::look();
        let cluster = Cluster::with_node(&["busybox"], &[]);
        let kubectl = cluster.kubectl();
        kubectl.ok(&deaf("slow", 600));
        let mut asked = asked_down(&cluster);
        asked.line("ending 1 pods", LONG);
        if by_signal {
            signal(cluster.process_id(), "TERM");
        } else {
            signal(asked.id(), "INT");
        }
        asked.line("hurrying 1 pods", LONG);
        asked.line("default/slow was hurried: slow was killed before its 600s were over", LONG);
        assert_eq!(asked.exit(LONG), Some(0), "{}", asked.stderr());
        ground.is_as_before(&cluster.data_dir());
    }
}

/// T-NODE-84: a pod that nothing can end is given up and named; `down` ends all the same.
#[test]
fn down_does_not_wait_for_ever_for_a_pod_that_is_stuck() {
    if other_runtime().is_some() {
        return; // Its shims are not ours to hold up.
    }
    let ground = Ground::look();
    let cluster = Cluster::with_node(&["busybox"], &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok(&deaf("stuck", 1));
    let shims = super::crashes::shims(&cluster.data_dir());
    assert_eq!(shims.len(), 1);
    signal(shims[0], "STOP");
    let mut asked = asked_down(&cluster);
    asked.line("default/stuck is still running", LONG);
    assert_eq!(asked.exit(LONG), Some(0), "{}", asked.stderr());
    signal(shims[0], "CONT");
    let said = down(&cluster.data_dir());
    assert!(said.contains("nothing of it is left running"), "{said}");
    ground.is_as_before(&cluster.data_dir());
}

/// A log in a file is text.
#[test]
fn a_log_that_is_not_a_terminal_has_no_colours() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = crate::harness::up(dir.path());
    command.args(["--no-node", "--no-scheduler"]).env("LANDFALL_LOG", "debug");
    let mut landfall = Background::spawn(&mut command);
    landfall.line("ready", LONG);
    signal(landfall.id(), "TERM");
    assert_eq!(landfall.exit(LONG), Some(0), "{}", landfall.stderr());
    let said = landfall.stderr();
    assert!(said.contains("DEBUG") && !said.contains('\x1b'), "{said}");
}

#[test]
fn a_second_start_on_the_same_directory_takes_nothing_from_the_first() {
    let cluster = Cluster::start(&[]);
    let mut second = crate::harness::up(&cluster.data_dir());
    let second = second.args(["--no-node", "--no-scheduler"]).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.contains("another landfall is running on") && said.contains("landfall stop"),
        "{said}"
    );
    cluster.kubectl().ok("kubectl get namespaces");
    let mut stop = Command::new(LANDFALL);
    let stop = stop.arg("stop").arg("--data-dir").arg(cluster.data_dir()).output().unwrap();
    assert!(stop.status.success());
    cluster.ended();
}
