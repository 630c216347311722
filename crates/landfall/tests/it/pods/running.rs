//! Running pods: probes, restarts, exit codes, security contexts.

use super::on_a_node;

/// N-92, N-104, T-NODE-62, W-60: readiness changes, and a failed liveness probe restarts the container.
#[test]
fn probes_change_readiness_and_restart_unhealthy_containers() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, 'touch /tmp/ready; exec sleep 1000']
    readinessProbe: {exec: {command: [test, -f, /tmp/ready]}, periodSeconds: 1, failureThreshold: 1}
    livenessProbe: {exec: {command: [test, '!', -f, /tmp/dead]}, periodSeconds: 1, failureThreshold: 2}
EOF
kubectl wait --for=condition=Ready pod/probed --timeout=30s
kubectl exec probed -- rm /tmp/ready
kubectl wait --for=condition=Ready=false pod/probed --timeout=30s
kubectl exec probed -- touch /tmp/ready
kubectl wait --for=condition=Ready pod/probed --timeout=30s
kubectl exec probed -- touch /tmp/dead
kubectl wait --for=jsonpath='{.status.containerStatuses[0].restartCount}'=1 pod/probed --timeout=30s
kubectl wait --for=condition=Ready pod/probed --timeout=30s");
        kubectl.shows("kubectl get pod probed", &["1/1", "Running", "1 ("]);
        kubectl.shows(
            "kubectl describe pod probed",
            &[
                "Readiness probe failed",
                "Liveness probe failed",
                "failed liveness probe, will be restarted",
            ],
        );
    });
}

/// N-97, N-99, N-100: HTTP and TCP probes of a real server.
#[test]
fn nginx_is_ready_when_it_responds() {
    on_a_node(&["busybox", "nginx"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: nginx
    image: nginx:1
    ports: [{name: http, containerPort: 80}]
    startupProbe: {tcpSocket: {port: http}, periodSeconds: 1}
    readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
EOF
kubectl wait --for=condition=Ready pod/web --timeout=30s");
        kubectl.shows("kubectl logs web", &["kube-probe/1.36"]);
        kubectl.shows("kubectl get pod web -o wide", &["1/1", "Running", "n1"]);
    });
}

/// T-NODE-47, T-NODE-48, T-NODE-65, T-NODE-66, N-43, N-44, N-108: exit codes, reasons and back-off.
#[test]
fn exits_have_codes_reasons_and_back_off() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl run done --image=busybox:1 --restart=Never -- true
kubectl run failed --image=busybox:1 --restart=Never -- sh -c 'exit 3'
kubectl run again --image=busybox:1 -- sh -c 'echo I was here; exit 7'
kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: eater}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: 'busybox:1', command: [tail, /dev/zero], resources: {limits: {memory: 20Mi}}}
EOF
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/done --timeout=30s
kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/failed pod/eater --timeout=30s
kubectl wait --for=jsonpath='{.status.containerStatuses[0].state.waiting.reason}'=CrashLoopBackOff pod/again --timeout=30s");
        let state = |pod: &str| {
            format!(
                "kubectl get pod {pod} -o jsonpath='{{.status.containerStatuses[0].state.terminated.reason}} \
                 {{.status.containerStatuses[0].state.terminated.exitCode}}'"
            )
        };
        kubectl.prints(&state("done"), "Completed 0");
        kubectl.prints(&state("failed"), "Error 3");
        kubectl.prints(&state("eater"), "OOMKilled 137");
        kubectl.shows(
            "kubectl get pods",
            &["again", "CrashLoopBackOff", "done", "Completed", "OOMKilled"],
        );
        kubectl.prints("kubectl logs again --previous", "I was here");
        kubectl.shows(
            "kubectl describe pod again",
            &["Exit Code:", "7", "Back-off restarting failed container"],
        );
    });
}

/// N-126, N-127, N-129, N-131: user, groups, capabilities and sysctls of a process.
#[test]
fn processes_run_with_their_security_context() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: careful}
spec:
  hostname: named
  securityContext:
    runAsUser: 1000
    runAsGroup: 2000
    supplementalGroups: [4000]
    sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '1024'}]
  containers:
  - name: c
    image: busybox:1
    command: [sleep, '1000']
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
EOF
kubectl wait --for=condition=Ready pod/careful --timeout=30s");
        kubectl.prints("kubectl exec careful -- id -u", "1000");
        kubectl.prints("kubectl exec careful -- id -G", "2000 4000");
        kubectl.prints("kubectl exec careful -- hostname", "named");
        kubectl.shows(
            "kubectl exec careful -- cat /proc/1/status",
            &["CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"],
        );
        kubectl.fails("kubectl exec careful -- touch /file", "Read-only file system");
        kubectl.prints(
            "kubectl exec careful -- cat /proc/sys/net/ipv4/ip_unprivileged_port_start",
            "1024",
        );
        kubectl.ok("kubectl run root --image=busybox:1 -- sleep 1000
                    kubectl wait --for=condition=Ready pod/root --timeout=30s");
        kubectl
            .fails("kubectl exec root -- ip link add dummy0 type dummy", "Operation not permitted");
    });
}
