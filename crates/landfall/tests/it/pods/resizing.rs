//! Resizing of running pods: cgroups and status.

use super::{happens, on_a_node};
use crate::harness::{Cluster, Kubectl, down, image_archive, import};
use crate::kernel_state::KernelState;
use std::path::{Path, PathBuf};

/// The content of a control file of a container, or of its pod if `container` is empty; for cgroup v1 or v2.
fn control(kubectl: &Kubectl, pod: &str, container: &str, v1: &str, v2: &str) -> String {
    let uid = kubectl.ok(&format!("kubectl get pod {pod} -o jsonpath='{{.metadata.uid}}'"));
    let id = match container {
        "" => String::new(),
        name => ["containerStatuses", "initContainerStatuses"]
            .map(|list| {
                let id = format!("{{.status.{list}[?(@.name==\"{name}\")].containerID}}");
                kubectl.ok(&format!("kubectl get pod {pod} -o jsonpath='{id}'"))
            })
            .concat(),
    };
    let id = id.trim().rsplit('/').next().unwrap_or_default();
    let pod = group(Path::new("/sys/fs/cgroup"), &format!("pod{}", uid.trim()), v1, v2);
    let pod = pod.expect("the pod has a cgroup");
    let group = if id.is_empty() {
        pod
    } else {
        group(&pod, id, v1, v2).expect("the container has a cgroup")
    };
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    read(v1).or_else(|| read(v2)).expect("it has that file").trim().to_owned()
}

/// A directory below this one whose name contains `name` and that has one of the files.
fn group(below: &Path, name: &str, v1: &str, v2: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(below).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).find_map(|path| {
        let called = path.file_name()?.to_str()?;
        let is = called.contains(name) || called.contains(&name.replace('-', "_"));
        match is && (path.join(v1).exists() || path.join(v2).exists()) {
            true => Some(path),
            false => group(&path, name, v1, v2),
        }
    })
}

fn memory(kubectl: &Kubectl, pod: &str, container: &str) -> String {
    control(kubectl, pod, container, "memory.limit_in_bytes", "memory.max")
}

fn cpu(kubectl: &Kubectl, pod: &str, container: &str) -> String {
    let text = control(kubectl, pod, container, "cpu.cfs_quota_us", "cpu.max");
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// A command that resizes a container of pod `p`; `requests` and `limits` are JSON.
fn resize(container: &str, requests: &str, limits: &str) -> String {
    format!(
        "kubectl patch pod p --subresource resize -p '{{\"spec\":{{\"containers\":[{{\"name\":\"{container}\",\
         \"resources\":{{\"requests\":{requests},\"limits\":{limits}}}}}]}}}}'"
    )
}

/// Waits until the resize conditions of the newest generation are gone (N-213).
const SETTLED: &str = "for i in $(seq 100); do
  output=$(kubectl get pod p -o jsonpath='{.metadata.generation}={.status.observedGeneration} {.status.conditions[*].type}')
  case $output in *PodResize*) ;; *) g=${output%% *}; [ ${g%=*} = ${g#*=} ] && exit 0;; esac
done; echo $output; exit 1";

const RESTARTS: &str =
    "kubectl get pod p -o jsonpath='{.status.containerStatuses[*].restartCount}'";

/// N-83, N-116, N-119, N-120, N-213: containers grow and shrink, in place or with a restart.
#[test]
fn a_resize_changes_cgroups_and_restarts_only_containers_that_require_it() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: live
    image: busybox:1
    command: [sleep, '1000']
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
  - name: anew
    image: busybox:1
    command: [sleep, '1000']
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    resources: {requests: {cpu: 1m, memory: 32Mi}, limits: {cpu: 5m, memory: 64Mi}}
EOF
kubectl wait --for=condition=Ready pod/p --timeout=30s");
        assert_eq!(memory(kubectl, "p", "live"), (64 << 20).to_string());
        // Larger, in place.
        let larger = r#"{"cpu":"300m","memory":"96Mi"}"#;
        kubectl.ok(&resize("live", r#"{"cpu":"150m","memory":"48Mi"}"#, larger));
        kubectl.ok(SETTLED);
        assert_eq!(memory(kubectl, "p", "live"), (96 << 20).to_string());
        assert_eq!(memory(kubectl, "p", ""), (160 << 20).to_string(), "the pod's own");
        assert_eq!(cpu(kubectl, "p", "live"), "30000");
        kubectl.prints(RESTARTS, "0 0");
        let resources = "kubectl get pod p -o jsonpath='{range .status.containerStatuses[*]}{.name} {.resources.requests.cpu}/{.resources.limits.cpu} {.resources.limits.memory} {.allocatedResources.memory};{end}'";
        kubectl.prints(resources, "anew 1m/5m 64Mi 32Mi;live 150m/300m 96Mi 48Mi;");
        // Smaller, in place; the other container is restarted for its memory.
        kubectl.ok(&resize("live", r#"{"cpu":"50m"}"#, r#"{"cpu":"100m","memory":"80Mi"}"#));
        kubectl.ok(&resize("anew", "{}", r#"{"memory":"72Mi"}"#));
        kubectl.ok("kubectl wait --for=jsonpath='{.status.containerStatuses[0].restartCount}'=1 pod/p --timeout=30s
                    kubectl wait --for=condition=Ready pod/p --timeout=30s");
        kubectl.ok(SETTLED);
        assert_eq!(memory(kubectl, "p", "live"), (80 << 20).to_string());
        assert_eq!(memory(kubectl, "p", "anew"), (72 << 20).to_string());
        assert_eq!(memory(kubectl, "p", ""), (152 << 20).to_string());
        assert_eq!(cpu(kubectl, "p", "live"), "10000");
        kubectl.prints(RESTARTS, "1 0");
        happens(kubectl, "Container anew resize requires restart");
        happens(
            kubectl,
            "ResizeStarted.*Pod resize started: {\"containers\":\\[{\"name\":\"live\"",
        );
        happens(kubectl, "ResizeCompleted.*Pod resize completed: {.*\"generation\":2}");
        // N-117: the API rejects more than the node has.
        let much = r#"{"cpu":"900"}"#;
        kubectl.fails(
            &resize("live", much, much),
            "node didn't have enough allocatable resources: cpu, requested: 900001",
        );
    });
}

/// N-116: an init container that is not a sidecar is resized in place while it runs.
#[test]
fn a_running_init_container_is_resized_in_place() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: first
    image: busybox:1
    command: [sleep, '1000']
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
  containers:
  - {name: c, image: 'busybox:1', command: [sleep, '1000']}
EOF
until kubectl get pod p -o jsonpath='{.status.initContainerStatuses[0].state}' | grep -q startedAt; do sleep 0.1; done");
        assert_eq!(memory(kubectl, "p", "first"), (64 << 20).to_string());
        let larger = r#"{"cpu":"300m","memory":"96Mi"}"#;
        let resized = resize("first", r#"{"cpu":"150m","memory":"48Mi"}"#, larger);
        kubectl.ok(&resized.replace("\"containers\"", "\"initContainers\""));
        kubectl.ok(SETTLED);
        assert_eq!(memory(kubectl, "p", "first"), (96 << 20).to_string());
        assert_eq!(cpu(kubectl, "p", "first"), "30000");
        kubectl.prints(
            "kubectl get pod p -o jsonpath='{.status.initContainerStatuses[0].restartCount}'",
            "0",
        );
    });
}

/// N-121: a limit below the memory in use is not applied, and a condition says so.
#[test]
fn a_memory_limit_below_the_memory_in_use_is_not_applied() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: m, emptyDir: {medium: Memory}}]
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, 'head -c 20000000 /dev/zero > /m/x; touch /tmp/full; exec sleep 1000']
    readinessProbe: {exec: {command: [test, -f, /tmp/full]}, periodSeconds: 1}
    volumeMounts: [{name: m, mountPath: /m}]
    resources: {limits: {cpu: 500m, memory: 64Mi}}
EOF
kubectl wait --for=condition=Ready pod/p --timeout=30s");
        let small = r#"{"memory":"8Mi"}"#;
        kubectl.ok(&resize("c", small, small));
        kubectl.ok("kubectl wait --for=jsonpath='{.status.conditions[?(@.type==\"PodResizeInProgress\")].reason}'=Error pod/p --timeout=30s");
        kubectl.shows(
            "kubectl get pod p -o jsonpath='{.status.conditions[?(@.type==\"PodResizeInProgress\")].message}'",
            &["cannot decrease memory limits: attempting to set container \"c\" memory limit (8388608) below current usage ("],
        );
        kubectl.prints(
            "kubectl get pod p -o jsonpath='{.status.containerStatuses[0].resources.limits.memory} {.status.containerStatuses[0].allocatedResources.memory}'",
            "64Mi 8Mi",
        );
        assert_eq!(memory(kubectl, "p", "c"), (64 << 20).to_string());
        happens(kubectl, "ResizeError.*Pod resize error");
        let enough = r#"{"memory":"48Mi"}"#;
        kubectl.ok(&resize("c", enough, enough));
        kubectl.ok(SETTLED);
        assert_eq!(memory(kubectl, "p", "c"), (48 << 20).to_string());
        kubectl.prints(RESTARTS, "0");
    });
}

/// N-118, N-122: a resize that does not fit waits, even across a restart of the agent, and is applied when there is room.
#[test]
fn a_resize_that_does_not_fit_waits_until_another_pod_leaves() {
    let kernel = KernelState::capture();
    let dir = tempfile::tempdir().unwrap();
    import(&dir.path().join("data"), &image_archive("busybox"));
    let cluster = Cluster::with_node_in(dir, &[]);
    let kubectl = cluster.kubectl();
    let whole = kubectl.ok("kubectl get node n1 -o jsonpath='{.status.allocatable.cpu}'");
    let milli = match whole.trim().strip_suffix('m') {
        Some(milli) => milli.parse::<i64>().unwrap(),
        None => whole.trim().parse::<i64>().unwrap() * 1000,
    };
    let large = milli - 300;
    for (name, cpu) in [("large", large), ("p", 100)] {
        kubectl.ok(&format!("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{{name: c, image: 'busybox:1', command: [sleep, '1000'], resources: {{requests: {{cpu: {cpu}m}}}}}}]
EOF"));
    }
    kubectl.ok("kubectl wait --for=condition=Ready pod/p pod/large --timeout=30s");
    kubectl.ok(&resize("c", r#"{"cpu":"500m"}"#, "{}"));
    let waits = "kubectl wait --for=jsonpath='{.status.conditions[?(@.type==\"PodResizePending\")].reason}'=Deferred pod/p --timeout=30s";
    kubectl.ok(waits);
    kubectl.prints(
        "kubectl get pod p -o jsonpath='{.status.conditions[?(@.type==\"PodResizePending\")].message}'",
        &format!("Node didn't have enough resource: cpu, requested: 500, used: {large}, capacity: {milli}"),
    );
    let resources = "kubectl get pod p -o jsonpath='{.spec.containers[0].resources.requests.cpu} {.status.containerStatuses[0].allocatedResources.cpu} {.status.containerStatuses[0].resources.requests.cpu}'";
    kubectl.prints(resources, "500m 100m 100m");
    let shares = |kubectl: &Kubectl| control(kubectl, "p", "c", "cpu.shares", "cpu.weight");
    let before = shares(&kubectl);
    happens(&kubectl, "ResizeDeferred.*Pod resize Deferred: {");
    let dir = cluster.kill();
    let cluster = Cluster::with_node_in(dir, &[]);
    let kubectl = cluster.kubectl();
    kubectl.ok(waits);
    kubectl.prints(resources, "500m 100m 100m");
    assert_eq!(shares(&kubectl), before);
    kubectl.ok("kubectl delete pod large --wait=false");
    kubectl.ok(SETTLED);
    kubectl.prints(resources, "500m 500m 500m");
    assert_ne!(shares(&kubectl), before);
    kubectl.prints(RESTARTS, "0");
    kubectl.ok("kubectl delete pods --all --grace-period=1");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// N-105, N-109: the cgroups above pods have the limits of the node and the sum of the weights of their pods.
#[test]
fn the_cgroups_above_pods_carry_the_nodes_limits_and_their_pods_weight() {
    on_a_node(&["busybox"], |_, kubectl| {
        for (name, cpu) in [("p", "100m"), ("q", "150m")] {
            kubectl.ok(&format!("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{{name: c, image: 'busybox:1', command: [sleep, '1000'], resources: {{requests: {{cpu: {cpu}}}}}}}]
EOF"));
        }
        kubectl.ok("kubectl wait --for=condition=Ready pod/p pod/q --timeout=30s");
        happens(kubectl, "NodeAllocatableEnforced.*Updated Node Allocatable limit across pods");
        let uid = kubectl.ok("kubectl get pod p -o jsonpath='{.metadata.uid}'");
        let above = |v1: &str, v2: &str| {
            let pod = group(Path::new("/sys/fs/cgroup"), &format!("pod{}", uid.trim()), v1, v2);
            let pod = pod.expect("the pod has a cgroup");
            let class = pod.parent().expect("it is below the cgroup of its QoS class").to_owned();
            (class.parent().expect("that is below the cgroup of all pods").to_owned(), class)
        };
        let read = |group: &Path, v1: &str, v2: &str| {
            let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
            read(v1).or_else(|| read(v2)).expect("it has that file").trim().to_owned()
        };
        let (_, burstable) = above("cpu.shares", "cpu.weight");
        // 250m of cpu; as a weight of version 2 that is 10.
        let shares = read(&burstable, "cpu.shares", "cpu.weight");
        assert!(shares == "256" || shares == "10", "{shares}");
        let (all, _) = above("memory.limit_in_bytes", "memory.max");
        let limit: u64 = read(&all, "memory.limit_in_bytes", "memory.max").parse().unwrap();
        let capacity = kubectl.ok("kubectl get node n1 -o jsonpath='{.status.capacity.memory}'");
        let capacity = capacity.trim().strip_suffix("Ki").expect("in Ki").parse::<u64>().unwrap();
        assert_eq!(limit / 1024 / 4, capacity / 4, "in pages");
        kubectl.ok("kubectl delete pod q --wait=false");
        let lighter = |shares: &str| shares == "102" || shares == "4";
        let lighter = (0..500).any(|_| {
            kubectl.ok("kubectl get pod p -o name");
            lighter(&read(&burstable, "cpu.shares", "cpu.weight"))
        });
        assert!(lighter, "the class is as heavy as the pod that is left");
    });
}
