//! The start of pods: in order, or with a reason why not.

use super::on_a_node;
use crate::harness::{
    Background, Cluster, down, image_archive, import, node_link, other_runtime, pod_range, up,
};
use crate::kernel_state::KernelState;
use std::process::Command;
use std::time::Duration;

/// How long a landfall takes to exit if it cannot start.
const REJECTED_MAX: Duration = Duration::from_secs(60);

/// Paths are made absolute, because shims run in other directories.
#[test]
fn pods_run_below_a_relative_data_directory() {
    let kernel = KernelState::capture();
    let dir = tempfile::tempdir().unwrap();
    import(&dir.path().join("data"), &image_archive("busybox"));
    let cluster = Cluster::with_node_beside(dir, &[]);
    cluster.kubectl().ok("kubectl run p --image=busybox:1 -- sleep 1000
                          kubectl wait --for=condition=Ready pod/p --timeout=30s
                          kubectl delete pod p --grace-period=1");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// A second landfall with the link or the addresses of the first one exits with a message that names the flag to use. The
/// pods of the first one are not affected, not even by the cleanup of the second.
#[test]
fn a_second_landfall_cannot_take_the_network_of_the_first() {
    if other_runtime().is_some() {
        return; // It brings the network.
    }
    on_a_node(&["busybox"], |cluster, kubectl| {
        kubectl.ok("kubectl run p --image=busybox:1 -- sleep 1000
                    kubectl wait --for=condition=Ready pod/p --timeout=30s");
        let before = network_of_node();
        assert!(before.contains("host-ports"), "the table is there: {before}");
        let (link, other) = (node_link(), format!("{}x", node_link()));
        let range = pod_range();
        for (link, flag) in [(&link, "--pod-link"), (&other, "--pod-cidr")] {
            let data = cluster.dir().join(flag);
            let mut command = up(&data);
            command.args(["--node-name", "n2", "--node-listen", "0.0.0.0:0", "--pod-cidr", &range]);
            let mut second = Background::spawn(command.args(["--pod-link", link]));
            assert_eq!(second.exit(REJECTED_MAX), Some(1));
            let stderr = second.stderr();
            let records = cluster.data_dir().join("network").display().to_string();
            assert!(stderr.contains(flag) && stderr.contains(&records), "{stderr}");
            down(&data);
            assert_eq!(network_of_node(), before, "after {flag}");
        }
    });
}

/// The links, routes and rules of this test's node.
fn network_of_node() -> String {
    let (link, range) = (node_link(), pod_range());
    let range = range.trim_end_matches("0/20");
    let script = format!(
        "ip -o link | grep -o '{link}[^:@ ]*' | sort -u; ip route | grep -F '{range}'; \
         nft list table ip landfall-{link}"
    );
    let shown = Command::new("sh").args(["-c", &script]).output().unwrap();
    String::from_utf8_lossy(&shown.stdout).into_owned()
}

/// W-1, N-38, N-40, N-41, N-76: init containers and sidecars start one after another, then the regular containers.
#[test]
fn init_containers_and_sidecars_start_in_order_and_the_pod_completes() {
    on_a_node(&["busybox"], |_, kubectl| {
        let watch = kubectl.spawn("exec kubectl get pods -w --no-headers");
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: ordered}
spec:
  restartPolicy: Never
  volumes: [{name: w, emptyDir: {}}]
  initContainers:
  - name: first
    image: busybox:1
    command: [sh, -c, 'echo first >> /w/order; sleep 1']
    volumeMounts: [{name: w, mountPath: /w}]
  - name: side
    image: busybox:1
    restartPolicy: Always
    command: [sh, -c, 'echo side >> /w/order; trap \"exit 0\" TERM; while :; do sleep 0.1; done']
    startupProbe: {exec: {command: [test, -s, /w/order]}, periodSeconds: 1}
    volumeMounts: [{name: w, mountPath: /w}]
  - name: second
    image: busybox:1
    command: [sh, -c, 'echo second >> /w/order; sleep 1']
    volumeMounts: [{name: w, mountPath: /w}]
  containers:
  - name: main
    image: busybox:1
    command: [sh, -c, 'cat /w/order']
    volumeMounts: [{name: w, mountPath: /w}]
EOF
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/ordered --timeout=60s");
        kubectl.prints("kubectl logs ordered -c main", "first\nside\nsecond");
        for word in ["Init:0/3", "Init:1/3", "Init:2/3", "PodInitializing", "Completed"] {
            watch.line(word, std::time::Duration::from_secs(10));
        }
        kubectl.prints(
            "kubectl get pod ordered -o jsonpath='{.status.conditions[?(@.type==\"Initialized\")].status}'",
            "True",
        );
    });
}

/// N-45, N-65, N-67, N-128: each failure has its own reason, and the pod starts when the cause is gone.
#[test]
fn a_pod_that_cannot_start_has_a_reason_and_starts_later() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: no-config}
spec:
  containers:
  - name: c
    image: busybox:1
    command: [sleep, '1000']
    envFrom: [{configMapRef: {name: later}}]
---
apiVersion: v1
kind: Pod
metadata: {name: never-pulled}
spec:
  containers: [{name: c, image: 'absent:1', imagePullPolicy: Never}]
---
apiVersion: v1
kind: Pod
metadata: {name: bad-name}
spec:
  containers: [{name: c, image: 'Upper/Case:1'}]
---
apiVersion: v1
kind: Pod
metadata: {name: no-command}
spec:
  restartPolicy: Never
  containers: [{name: c, image: 'busybox:1', command: [/no/such/program]}]
---
apiVersion: v1
kind: Pod
metadata: {name: root}
spec:
  securityContext: {runAsNonRoot: true}
  containers: [{name: c, image: 'busybox:1', command: [sleep, '1000']}]
EOF");
        let waits = |pod: &str, reason: &str| {
            kubectl.ok(&format!(
                "kubectl wait --timeout=30s pod/{pod} \
                 --for=jsonpath='{{.status.containerStatuses[0].state.waiting.reason}}'={reason}"
            ));
        };
        waits("no-config", "CreateContainerConfigError");
        waits("never-pulled", "ErrImageNeverPull");
        waits("bad-name", "InvalidImageName");
        waits("root", "CreateContainerConfigError");
        kubectl.ok("kubectl wait --timeout=30s pod/no-command --for=jsonpath='{.status.containerStatuses[0].state.terminated.reason}'=StartError");
        kubectl.shows("kubectl describe pod no-config", &["configmap \"later\" not found"]);
        kubectl.shows("kubectl describe pod root", &["image will run as root"]);
        kubectl.ok("kubectl create configmap later --from-literal=a=b
                    kubectl wait --for=condition=Ready pod/no-config --timeout=60s");
        kubectl.prints("kubectl exec no-config -- sh -c 'echo $a'", "b");
    });
}

/// N-66, N-68, N-216: pulls from an unreachable registry are retried with back-off.
#[test]
fn an_image_that_cannot_be_pulled_backs_off() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl run p --image=localhost:1/nothing:1
                    kubectl wait --timeout=60s pod/p --for=jsonpath='{.status.containerStatuses[0].state.waiting.reason}'=ImagePullBackOff");
        kubectl.shows("kubectl get pod p", &["ImagePullBackOff"]);
        kubectl.shows("kubectl describe pod p", &["Pulling image", "Failed to pull image"]);
        kubectl.ok("for i in $(seq 100); do kubectl get events | grep BackOff | grep -q Normal && exit 0; done; exit 1");
    });
}

/// N-7, N-31, N-35, N-41, N-46, N-181, N-215: conditions and events of a start come in order.
#[test]
fn conditions_and_events_of_a_start_come_in_order() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl run p --image=busybox:1 -- sleep 1000
                    kubectl wait --for=condition=Ready pod/p --timeout=30s");
        // The events of one object are written in order.
        kubectl.ok(
            "for i in $(seq 100); do kubectl get events | grep -q Started && exit 0; done; exit 1",
        );
        let events = kubectl.ok(
            "kubectl get events --field-selector involvedObject.name=p --sort-by=.metadata.creationTimestamp \
             -o jsonpath='{range .items[*]}{.reason}|{.message}|{.involvedObject.fieldPath}|{.metadata.name}{\"\\n\"}{end}'",
        );
        let text_of = |reason: &str| {
            let found = events.lines().find(|line| line.starts_with(&format!("{reason}|")));
            found.unwrap_or_else(|| panic!("no {reason} in {events}")).to_owned()
        };
        assert!(text_of("Scheduled").contains("Successfully assigned default/p to n1"), "{events}");
        assert!(text_of("Pulled").contains("already present on machine"), "{events}");
        assert!(text_of("Created").starts_with("Created|Container created|spec.containers{p}|p."));
        assert!(text_of("Started").starts_with("Started|Container started|spec.containers{p}|p."));
        if crate::harness::other_runtime().is_none() {
            let address = kubectl.ok("kubectl get pod p -o jsonpath='{.status.podIP}'");
            let range = kubectl.ok("kubectl get node n1 -o jsonpath='{.spec.podCIDR}'");
            let network = range.rsplit_once('.').map(|(network, _)| network).unwrap_or_default();
            assert!(address.starts_with(&format!("{network}.")), "{address} is not in {range}");
        }
        kubectl.prints(
            "kubectl get pod p -o jsonpath='{.status.conditions[*].type}'",
            "PodReadyToStartContainers Initialized Ready ContainersReady PodScheduled",
        );
    });
}

/// N-125: a RuntimeClass with an unknown handler.
#[test]
fn an_unknown_runtime_class_keeps_the_pod_from_starting() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: exotic}
handler: exotic
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  runtimeClassName: exotic
  containers: [{name: c, image: 'busybox:1'}]
EOF
for i in $(seq 100); do kubectl get events | grep -q FailedCreatePodSandBox && exit 0; done; exit 1");
        kubectl.shows("kubectl get pod p", &["0/1", "ContainerCreating"]);
    });
}
