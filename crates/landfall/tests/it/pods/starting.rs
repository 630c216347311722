//! How pods come up: in order, and when they cannot, saying why.

use super::on_a_node;
use crate::ground::Ground;
use crate::harness::{Cluster, built_image, down, import, other_runtime};
use std::process::Command;

/// What is started below it works elsewhere.
#[test]
fn pods_run_below_a_relative_data_directory() {
    let ground = Ground::look();
    let dir = tempfile::tempdir().unwrap();
    import(&dir.path().join("data"), &built_image("busybox"));
    let cluster = Cluster::with_node_beside(dir, &[]);
    cluster.kubectl().ok("kubectl run p --image=busybox:1 -- sleep 1000
                          kubectl wait --for=condition=Ready pod/p --timeout=30s
                          kubectl delete pod p --grace-period=1");
    down(&cluster.data_dir());
    ground.is_as_before(&cluster.data_dir());
}

/// What pods send to Services does not leave the node: the guard's range is the one that Services get
/// their addresses from.
#[test]
fn addresses_of_services_are_guarded() {
    if other_runtime().is_some() {
        return; // It brings the network.
    }
    on_a_node(&[], |_, kubectl| {
        let range = kubectl.ok("kubectl get servicecidr kubernetes -o jsonpath='{.spec.cidrs[0]}'");
        let table = format!("landfall-t{:x}", std::process::id() % 0x10_0000);
        let rules = Command::new("nft").args(["list", "table", "ip", &table]).output().unwrap();
        let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
        let refused = format!("ip daddr {} reject", range.trim());
        assert!(rules.contains(&refused), "{refused} is not in {rules}");
    });
}

/// W-1, N-38, N-40, N-41, N-76: init containers one after another, a sidecar in its place, then the rest.
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

/// N-45, N-65, N-67, N-128: each says its own reason, and recovers when the cause is gone.
#[test]
fn what_cannot_start_says_why_and_starts_when_it_can() {
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

/// N-66, N-68, N-216: a registry that is not there.
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

/// The timeline of a start (0.1 of the node's rules): N-7, N-31, N-35, N-41, N-46, N-181, N-215.
#[test]
fn a_pod_comes_up_step_by_step_and_says_so() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl run p --image=busybox:1 -- sleep 1000
                    kubectl wait --for=condition=Ready pod/p --timeout=30s");
        // Events are written in the order of what happened to one object.
        kubectl.ok(
            "for i in $(seq 100); do kubectl get events | grep -q Started && exit 0; done; exit 1",
        );
        let events = kubectl.ok(
            "kubectl get events --field-selector involvedObject.name=p --sort-by=.metadata.creationTimestamp \
             -o jsonpath='{range .items[*]}{.reason}|{.message}|{.involvedObject.fieldPath}|{.metadata.name}{\"\\n\"}{end}'",
        );
        let said = |reason: &str| {
            let found = events.lines().find(|line| line.starts_with(&format!("{reason}|")));
            found.unwrap_or_else(|| panic!("no {reason} in {events}")).to_owned()
        };
        assert!(said("Scheduled").contains("Successfully assigned default/p to n1"), "{events}");
        assert!(said("Pulled").contains("already present on machine"), "{events}");
        assert!(said("Created").starts_with("Created|Container created|spec.containers{p}|p."));
        assert!(said("Started").starts_with("Started|Container started|spec.containers{p}|p."));
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

/// N-125: a handler that nobody here knows.
#[test]
fn a_runtime_class_that_is_not_there_keeps_the_pod_from_starting() {
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
