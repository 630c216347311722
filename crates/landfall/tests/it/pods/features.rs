//! Debug containers, active deadlines, host ports, static pods, programs in other languages, and setuid programs.

use super::{on_a_node, on_a_node_with};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// N-42: `kubectl debug` adds a container to a running pod.
#[test]
fn a_debugger_joins_a_running_pod() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl run p --image=busybox:1 -- sleep 1000
kubectl wait --for=condition=Ready pod/p --timeout=30s
kubectl debug p --image=busybox:1 --target=p -c look --attach=false -- sh -c 'ps; echo looked'
kubectl wait --for=jsonpath='{.status.ephemeralContainerStatuses[0].state.terminated.exitCode}'=0 pod/p --timeout=30s");
        kubectl.shows("kubectl logs p -c look", &["sleep 1000", "looked"]);
        kubectl.shows("kubectl get pod p", &["1/1", "Running", "0"]);
    });
}

/// T-NODE-77, N-51, N-23, N-25: an active deadline, a host port, a static pod.
#[test]
fn deadlines_host_ports_and_manifests_are_kept() {
    let manifests = tempfile::tempdir().unwrap();
    let manifest = manifests.path().join("static.yaml");
    let pod = "apiVersion: v1
kind: Pod
metadata: {name: fixed}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'busybox:1', imagePullPolicy: IfNotPresent, command: [sleep, '1000']}]
";
    std::fs::write(&manifest, pod).unwrap();
    let port = 20000 + u16::try_from(std::process::id() % 10000).unwrap();
    let args = ["--pod-manifests", manifests.path().to_str().unwrap()];
    on_a_node_with(&["busybox", "nginx"], &args, |_, kubectl| {
        kubectl.ok(&format!("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: short}}
spec:
  activeDeadlineSeconds: 2
  terminationGracePeriodSeconds: 1
  containers: [{{name: c, image: 'busybox:1', command: [sleep, '1000']}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  containers: [{{name: c, image: 'nginx:1', ports: [{{containerPort: 80, hostPort: {port}}}], readinessProbe: {{tcpSocket: {{port: 80}}, periodSeconds: 1}}}}]
EOF
kubectl wait --for=condition=Ready pod/web pod/fixed-n1 --timeout=60s
kubectl wait --for=jsonpath='{{.status.reason}}'=DeadlineExceeded pod/short --timeout=60s"));
        let mut stream =
            TcpStream::connect(("127.0.0.1", port)).expect("the node's port leads there");
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("Welcome to nginx"), "{answer}");
        std::fs::remove_file(&manifest).unwrap();
        kubectl.ok("kubectl wait --for=delete pod/fixed-n1 --timeout=60s");
    });
}

/// Real programs in other languages, in images built from packages of this machine.
#[test]
fn python_and_node_run_as_they_are() {
    on_a_node(&["busybox", "python", "node"], |_, kubectl| {
        kubectl.ok("kubectl run py --image=python:1 --restart=Never -- python3 -c 'import json,sys; print(json.dumps(sys.version_info.major))'
kubectl run js --image=node:1 --restart=Never -- node -e 'console.log([1,2].map(x => x * 2).join())'
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/py pod/js --timeout=60s");
        kubectl.prints("kubectl logs py", "3");
        kubectl.prints("kubectl logs js", "2,4");
    });
}

/// A setuid program gains nothing where privilege escalation is not allowed, and never leaves the container: its root
/// cannot mount, load modules, or see the node's processes.
#[test]
fn a_setuid_program_does_not_escape() {
    on_a_node(&["busybox"], |_, kubectl| {
        // Root makes busybox setuid in a volume, and another user runs it.
        let init = "cp /bin/busybox /w/su; chmod 4755 /w/su";
        kubectl.ok(&format!("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: setuid}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: w, emptyDir: {{}}}}]
  initContainers: [{{name: i, image: 'busybox:1', command: [sh, -c, '{init}'], volumeMounts: [{{name: w, mountPath: /w}}]}}]
  containers:
  - name: kept
    image: busybox:1
    command: [sleep, '1000']
    securityContext: {{runAsUser: 1000, allowPrivilegeEscalation: false}}
    volumeMounts: [{{name: w, mountPath: /w}}]
  - name: root
    image: busybox:1
    command: [sleep, '1000']
EOF
kubectl wait --for=condition=Ready pod/setuid --timeout=60s"));
        // The setuid bit has no effect where privilege escalation is not allowed.
        kubectl.fails("kubectl exec setuid -c kept -- /w/su", "must be suid to work properly");
        for attempt in
            ["mount -t tmpfs none /mnt", "mknod /tmp/disk b 8 0; cat /tmp/disk", "hostname other"]
        {
            let output = kubectl.run(&format!("kubectl exec setuid -c root -- sh -c '{attempt}'"));
            assert_ne!(output.code, 0, "it worked: {output}");
        }
        kubectl.ok("kubectl wait --for=condition=Ready node/n1 --timeout=10s");
    });
}
