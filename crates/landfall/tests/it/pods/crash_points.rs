//! landfall dies after every step that leaves something behind if it dies then: while it makes a pod, and while it
//! ends one. The next one finds everything: nothing is left over, and no exit code is wrong.
//!
//! The steps are the calls of `clock::crash_point` in the source. A process dies after one of them; the next process takes
//! over what it left, has a pod of its own, and dies after the next step.

use super::crashes::shims;
use crate::harness::{Cluster, Kubectl, Started, image_archive, import, other_runtime};
use crate::harness::{down, node_link};
use crate::kernel_state::{KernelState, groups_of_pods, mounts};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A pod is made and ended in about a second.
const STEP_MAX: Duration = Duration::from_secs(60);
/// The exit code of the container after SIGTERM.
const CODE: u32 = 7;

/// T-NODE-76, T-INV-2: these are the steps with even numbers, below are the others, so that both halves can run at
/// once.
#[test]
fn nothing_is_left_behind_by_a_crash_after_every_second_step() {
    crash_after_each(|number| number % 2 == 0);
}

#[test]
fn nothing_is_left_behind_by_a_crash_after_every_other_step() {
    crash_after_each(|number| number % 2 == 1);
}

fn crash_after_each(chosen: impl Fn(usize) -> bool) {
    let kernel = KernelState::capture();
    let mut dir = tempfile::tempdir().unwrap();
    import(&dir.path().join("data"), &image_archive("busybox"));
    for (number, step) in steps().iter().enumerate().filter(|(number, _)| chosen(*number)) {
        eprintln!("--- crash after: {step}");
        dir = crash_after(dir, step, number);
    }
    let cluster = Cluster::with_node_in(dir, &[]);
    let kubectl = cluster.kubectl();
    end_what_is_left(&kubectl);
    is_empty(&cluster);
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// Pods whose landfall died before they were asked to end, or before their exit code was seen.
fn end_what_is_left(kubectl: &Kubectl) {
    let path = "{range .items[*]}{.metadata.name} {.metadata.deletionTimestamp}{\"\\n\"}{end}";
    let listed = kubectl.ok(&format!("kubectl get pods -o jsonpath='{path}'"));
    let pods: Vec<Vec<&str>> = listed.lines().map(|line| line.split(' ').collect()).collect();
    let named = |chosen: &dyn Fn(&[&str]) -> bool| -> Vec<String> {
        pods.iter().filter(|pod| chosen(pod)).map(|pod| format!("pod/{}", pod[0])).collect()
    };
    let (all, alive) = (named(&|_| true), named(&|pod| pod[1].is_empty()).join(" "));
    if !alive.is_empty() {
        kubectl.ok(&format!("kubectl wait --for=condition=Ready {alive} --timeout=20s"));
    }
    if !all.is_empty() {
        kubectl.ok(&end(&all.join(" ")));
    }
    kubectl.prints("kubectl get pods -o name", "");
}

/// Starts landfall, has a pod made and ended, and answers when it has died after that step.
fn crash_after(dir: TempDir, step: &str, number: usize) -> TempDir {
    let cluster = match Cluster::with_node_that_crashes(dir, step) {
        Started::Ready(cluster) => cluster,
        // It came to that step when it took over what the last one left.
        Started::Died(dir) => return dir,
    };
    let kubectl = cluster.kubectl();
    // Its end is not waited for: `kubectl wait` retries for 20 seconds after landfall has died.
    let script = kubectl.spawn(&format!("{}{}", make(number), end(&format!("pod/p{number}"))));
    match cluster.crashed(STEP_MAX) {
        Some(dir) => dir,
        None => panic!("step {step:?} was not reached; kubectl: {}", script.stderr()),
    }
}

/// A pod that has of everything that can be left behind: a volume that is mounted, a port of the node, a shared
/// process namespace.
fn make(number: usize) -> String {
    let port = 20_000 + (std::process::id() as usize * 64 + number) % 40_000;
    format!(
        "kubectl create -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: p{number}, finalizers: [test.example/exit-code-is-read]}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 20
  shareProcessNamespace: true
  volumes: [{{name: v, emptyDir: {{medium: Memory}}}}]
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, 'trap \"exit {CODE}\" TERM; while :; do sleep 0.02; done']
    ports: [{{containerPort: 80, hostPort: {port}}}]
    volumeMounts: [{{name: v, mountPath: /v}}]
EOF
kubectl wait --for=condition=Ready pod/p{number} --timeout=20s
"
    )
}

/// A script that deletes pods after it has checked their exit codes.
fn end(pods: &str) -> String {
    let code = "{.status.containerStatuses[0].state.terminated.exitCode}";
    format!(
        "kubectl delete {pods} --wait=false
kubectl wait --for=jsonpath='{code}'={CODE} {pods} --timeout=20s
for pod in {pods}; do kubectl patch $pod --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'; done
kubectl wait --for=delete {pods} --timeout=20s
"
    )
}

/// Checks that nothing of any pod is left while landfall runs.
fn is_empty(cluster: &Cluster) {
    let data = cluster.data_dir();
    let entries = |name: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(data.join(name)).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        // The runtime sometimes writes a test file there.
        paths.filter(|path| !path.ends_with(".ready")).collect()
    };
    // The last worker may still clean up after the object is removed.
    let nothing = || {
        shims(&data).is_empty()
            && groups_of_pods(&node_link()).is_empty()
            && [entries("run"), entries("netns"), entries("kubelet/pods")].concat().is_empty()
            && mounts(&data).is_empty()
            && sandboxes_of_runtime().is_empty()
    };
    let deadline = clock::now() + STEP_MAX;
    while !nothing() && clock::now() < deadline {
        // A loop without a pause would take CPU time from the cleanup.
        let _ = std::process::Command::new("sleep").arg("0.05").status();
    }
    assert_eq!(shims(&data), Vec::<u32>::new(), "shims");
    assert_eq!(groups_of_pods(&node_link()), Vec::<String>::new(), "cgroups");
    for place in ["run", "netns", "kubelet/pods"] {
        assert_eq!(entries(place), Vec::<PathBuf>::new());
    }
    assert_eq!(mounts(&data), Vec::<String>::new(), "mounts");
    assert_eq!(sandboxes_of_runtime(), Vec::<String>::new(), "sandboxes of the runtime");
}

/// The sandboxes of a CRI runtime.
fn sandboxes_of_runtime() -> Vec<String> {
    let Some(runtime) = other_runtime() else { return Vec::new() };
    let mut command = std::process::Command::new("ctr");
    command.args(["-a", runtime.trim_start_matches("unix://"), "-n", "k8s.io"]);
    let output = command.args(["containers", "list", "-q"]).output().expect("ctr can be run");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// These are reached only by a node that has neighbours. The tests of routes in `network` cover a crash there.
const STEPS_WITH_NEIGHBOURS: [&str; 3] = ["overlay device made", "tunnels made", "routes replaced"];

/// The steps of this runtime on a single node, as the source names them.
fn steps() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("among the crates");
    let (own, others) = match other_runtime() {
        None => (["runtime/src/native", "network/src"].as_slice(), "runtime/src/cri"),
        Some(_) => (["runtime/src/cri"].as_slice(), "runtime/src/native"),
    };
    assert!(!names(&crates.join(others)).is_empty(), "both runtimes have steps");
    let places = own.iter().chain(&["node/src"]);
    let steps: Vec<String> = places.flat_map(|place| names(&crates.join(place))).collect();
    let mut unique = steps.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), steps.len(), "each step has a name of its own: {steps:?}");
    steps.into_iter().filter(|step| !STEPS_WITH_NEIGHBOURS.contains(&step.as_str())).collect()
}

fn names(place: &Path) -> Vec<String> {
    let mut entries: Vec<_> =
        std::fs::read_dir(place).expect("a directory").map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() {
            found.extend(names(&path));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let calls = text.split("clock::crash_point(\"").skip(1);
        found.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    found
}
