//! Volumes in detail: types of host paths, projections, subPaths, propagation, devices.

use super::{can, happens, on_a_node};
use crate::harness::Kubectl;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a program of the host.
#[track_caller]
fn host(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|why| panic!("{program} cannot be run: {why}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A mount of the host that is removed after the test, even if it fails.
struct HostMount(PathBuf);

impl HostMount {
    fn new(args: &[&str], at: &Path) -> HostMount {
        std::fs::create_dir_all(at).unwrap();
        host("mount", &[args, &[at.to_str().unwrap()]].concat());
        HostMount(at.to_owned())
    }
}

impl Drop for HostMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-R", "-l"]).arg(&self.0).status();
    }
}

/// A file as a block device.
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> Loop {
        std::fs::write(file, vec![b'x'; 1 << 20]).unwrap();
        Loop(host("losetup", &["-f", "--show", file.to_str().unwrap()]))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// N-133, N-145: each type of host path accepts only matching files and rejects others with a reason.
#[test]
fn a_host_path_must_match_its_type_or_the_pod_waits() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let dir = cluster.dir().join("host");
        std::fs::create_dir_all(dir.join("dir")).unwrap();
        std::fs::write(dir.join("file"), "content").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
        let path = dir.display();
        let rows = [
            ("dir", "Directory", format!("{path}/dir")),
            ("file", "File", format!("{path}/file")),
            ("socket", "Socket", format!("{path}/socket")),
            ("char", "CharDevice", "/dev/null".to_owned()),
            ("made-dir", "DirectoryOrCreate", format!("{path}/made/dir")),
            ("made-file", "FileOrCreate", format!("{path}/made-file")),
            ("any", "''", format!("{path}/any")),
        ];
        let volumes: String = rows
            .iter()
            .map(|(name, kind, path)| {
                format!("  - {{name: {name}, hostPath: {{path: {path}, type: {kind}}}}}\n")
            })
            .collect();
        let mounts: String = rows
            .iter()
            .map(|(name, _, _)| format!("    - {{name: {name}, mountPath: /v/{name}}}\n"))
            .collect();
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: good}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {{fsGroup: 3000}}
  volumes:
{volumes}  containers:
  - name: c
    image: busybox:1
    command: [sleep, '1000']
    volumeMounts:
{mounts}EOF"
        ));
        for (name, kind, path) in [
            ("not-dir", "Directory", format!("{path}/file")),
            ("not-file", "File", format!("{path}/none")),
            ("not-socket", "Socket", format!("{path}/file")),
            ("not-char", "CharDevice", format!("{path}/dir")),
            ("not-block", "BlockDevice", "/dev/null".to_owned()),
        ] {
            kubectl.ok(&format!(
                "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  volumes: [{{name: v, hostPath: {{path: {path}, type: {kind}}}}}]
  containers: [{{name: c, image: 'busybox:1', volumeMounts: [{{name: v, mountPath: /v}}]}}]
EOF"
            ));
        }
        kubectl.ok("kubectl wait --for=condition=Ready pod/good --timeout=30s");
        kubectl.prints("kubectl exec good -- cat /v/file", "content");
        kubectl.ok("kubectl exec good -- sh -c 'test -S /v/socket && test -c /v/char && test -d /v/any && test -d /v/made-dir && test -f /v/made-file'");
        // The group of files on the host is not changed (N-144).
        kubectl.prints("kubectl exec good -- stat -c %g /v/dir", "0");
        for (path, why) in [
            (format!("{path}/file"), "directory"),
            (format!("{path}/none"), "file"),
            (format!("{path}/file"), "socket file"),
            (format!("{path}/dir"), "character device"),
            ("/dev/null".to_owned(), "block device"),
        ] {
            happens(
                kubectl,
                &format!(
                    "MountVolume.SetUp failed for volume \"v\" : hostPath type check failed: {path} is not a {why}"
                ),
            );
        }
    });
}

/// N-139 to N-142, N-144, N-148: four sources in one volume, modes, optional and required sources.
#[test]
fn projections_merge_their_sources_with_their_modes() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl create configmap cm --from-literal=a=from-map --from-literal=same=map
kubectl create secret generic secret --from-literal=b=from-secret
kubectl create secret generic other --from-literal=same=secret
kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {color: red}, annotations: {note: hello}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: busybox:1
    command: [sleep, '1000']
    resources: {requests: {cpu: 250m, memory: 32Mi}, limits: {memory: 64Mi, ephemeral-storage: 1Gi}}
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts:
    - {name: all, mountPath: /all}
    - {name: downward, mountPath: /downward}
    - {name: empty, mountPath: /parts, subPathExpr: '$(NAME)/deep'}
    - {name: empty, mountPath: /whole}
    - {name: absent, mountPath: /absent}
  volumes:
  - name: all
    projected:
      defaultMode: 0440
      sources:
      - configMap: {name: cm}
      - configMap: {name: cm, items: [{key: a, path: map/a, mode: 0400}]}
      - secret: {name: secret, items: [{key: b, path: secret/b}]}
      - secret: {name: other}
      - configMap: {name: nobody, optional: true}
      - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
      - serviceAccountToken: {path: token, expirationSeconds: 600, audience: somebody}
  - name: downward
    downwardAPI:
      items:
      - {path: milli, resourceFieldRef: {containerName: c, resource: requests.cpu, divisor: 1m}}
      - {path: mega, resourceFieldRef: {containerName: c, resource: limits.memory, divisor: 1Mi}}
      - {path: bytes, resourceFieldRef: {containerName: c, resource: requests.memory}}
      - {path: storage, resourceFieldRef: {containerName: c, resource: limits.ephemeral-storage, divisor: 1Gi}}
      - {path: cpus, resourceFieldRef: {containerName: c, resource: limits.cpu}}
      - {path: note, mode: 0404, fieldRef: {fieldPath: 'metadata.annotations[''note'']'}}
  - {name: empty, emptyDir: {}}
  - {name: absent, secret: {secretName: nobody, optional: true}}
---
apiVersion: v1
kind: Pod
metadata: {name: no-key}
spec:
  volumes: [{name: v, configMap: {name: cm, items: [{key: none, path: x}]}}]
  containers: [{name: c, image: 'busybox:1', volumeMounts: [{name: v, mountPath: /v}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: no-value}
spec:
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - name: c
    image: busybox:1
    env: [{name: EMPTY, value: ''}]
    volumeMounts: [{name: v, mountPath: /v, subPathExpr: $(EMPTY)/x}]
EOF
kubectl wait --for=condition=Ready pod/p --timeout=30s");
        let says = |command: &str, words: &str| {
            kubectl.prints(&format!("kubectl exec p -- {command}"), words);
        };
        says(
            "cat /all/map/a /all/secret/b /all/same /all/labels",
            "from-mapfrom-secretsecretcolor=\"red\"",
        );
        says(
            "stat -L -c %a /all/map/a /all/secret/b /all/labels /downward/note",
            "400\n440\n440\n404",
        );
        says("sh -c 'cut -d. -f2 /all/token | wc -l'", "1");
        says("sh -c 'ls /absent | wc -l'", "0");
        let allocatable = kubectl.ok("kubectl get node n1 -o jsonpath='{.status.allocatable.cpu}'");
        let cpus =
            allocatable.trim().parse::<i64>().map_or_else(|_| "2".to_owned(), |n| n.to_string());
        says(
            "sh -c 'cd /downward; for f in milli mega bytes storage cpus note; do cat $f; echo; done'",
            &format!("250\n64\n33554432\n1\n{cpus}\nhello"),
        );
        kubectl.ok("kubectl exec p -- sh -c 'echo x > /parts/file'");
        says("cat /whole/p/deep/file", "x");
        happens(
            kubectl,
            "MountVolume.SetUp failed for volume \"v\" : configmap references non-existent config key: none",
        );
        kubectl.ok("kubectl wait --timeout=30s pod/no-value --for=jsonpath='{.status.containerStatuses[0].state.waiting.reason}'=CreateContainerConfigError");
        kubectl.prints("kubectl get pod no-value -o jsonpath='{.status.containerStatuses[0].state.waiting.message}'", "missing value for EMPTY");
        // An optional source that is created later appears later (N-140).
        kubectl.ok("kubectl create secret generic nobody --from-literal=late=yes
                    for i in $(seq 100); do [ \"$(kubectl exec p -- cat /absent/late 2>/dev/null)\" = yes ] && exit 0; done; exit 1");
    });
}

/// N-152, N-153: mounts below a volume follow propagation and recursiveReadOnly, in both directions.
#[test]
fn mounts_below_a_volume_follow_propagation_and_recursive_read_only() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let shared = cluster.dir().join("shared");
        std::fs::create_dir_all(&shared).unwrap();
        let path = shared.to_str().unwrap();
        let _shared = HostMount::new(&["--bind", path], &shared);
        host("mount", &["--make-shared", path]);
        let _below = HostMount::new(&["-t", "tmpfs", "tmpfs"], &shared.join("below"));
        let deep = can(kubectl, "runtimeHandlers[0].features.recursiveReadOnlyMounts");
        if !deep {
            recursive_read_only_is_refused(kubectl, path);
        }
        let wish = if deep { "Enabled" } else { "IfPossible" };
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: v, hostPath: {{path: {path}}}}}]
  containers:
  - name: reads
    image: busybox:1
    command: [sleep, '1000']
    volumeMounts:
    - {{name: v, mountPath: /ro, readOnly: true}}
    - {{name: v, mountPath: /deep, readOnly: true, recursiveReadOnly: {wish}}}
    - {{name: v, mountPath: /slave, mountPropagation: HostToContainer}}
    - {{name: v, mountPath: /alone}}
  - name: mounts
    image: busybox:1
    command: [sleep, '1000']
    securityContext: {{privileged: true}}
    volumeMounts: [{{name: v, mountPath: /both, mountPropagation: Bidirectional}}]
EOF
kubectl wait --for=condition=Ready pod/p --timeout=30s"
        ));
        let reads = "kubectl exec p -c reads --";
        kubectl.fails(&format!("{reads} touch /ro/x"), "Read-only file system");
        kubectl.ok(&format!("{reads} touch /ro/below/x"));
        let is = match deep {
            true => {
                kubectl.fails(&format!("{reads} touch /deep/below/x"), "Read-only file system");
                "Enabled"
            }
            false => {
                kubectl.ok(&format!("{reads} touch /deep/below/x"));
                "Disabled"
            }
        };
        kubectl.prints(
            "kubectl get pod p -o jsonpath='{range .status.containerStatuses[?(@.name==\"reads\")].volumeMounts[*]}{.mountPath}={.recursiveReadOnly} {end}' | tr ' ' '\\n' | grep -e ^/ro -e ^/deep",
            &format!("/ro=Disabled\n/deep={is}"),
        );
        let late = shared.join("late");
        let _late = HostMount::new(&["-t", "tmpfs", "tmpfs"], &late);
        std::fs::write(late.join("seen"), "").unwrap();
        kubectl.ok(&format!("{reads} test -f /slave/late/seen"));
        kubectl.ok(&format!("{reads} test ! -f /alone/late/seen"));
        kubectl.ok("kubectl exec p -c mounts -- sh -c 'mkdir -p /both/up && mount -t tmpfs tmpfs /both/up && touch /both/up/here'");
        assert!(shared.join("up/here").exists(), "the node does not see the container's mount");
        kubectl.ok(&format!("{reads} test -f /slave/up/here"));
        kubectl.ok("kubectl exec p -c mounts -- umount /both/up
                    kubectl delete pod p");
        assert!(late.join("seen").exists(), "the node's own mounts are left alone");
    });
}

/// N-153: if the runtime cannot mount recursively read-only, the container does not start.
fn recursive_read_only_is_refused(kubectl: &Kubectl, path: &str) {
    kubectl.ok(&format!(
        "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: deep}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: v, hostPath: {{path: {path}}}}}]
  containers:
  - name: c
    image: busybox:1
    command: [sleep, '1000']
    volumeMounts: [{{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}}]
EOF
kubectl wait --timeout=30s pod/deep --for=jsonpath='{{.status.containerStatuses[0].state.waiting.reason}}'=CreateContainerConfigError"
    ));
    kubectl.prints(
        "kubectl get pod deep -o jsonpath='{.status.containerStatuses[0].state.waiting.message}'",
        "volume \"v\" requested recursive read-only mode, but it is not supported by the runtime",
    );
}

/// N-147, N-148, N-155: a disk as a block device, as a filesystem, and claims that cannot be bound.
#[test]
fn a_disk_is_a_block_device_or_a_filesystem_by_its_volume_mode() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let raw = Loop::of(&cluster.dir().join("raw"));
        let formatted = Loop::of(&cluster.dir().join("formatted"));
        host("mkfs.ext4", &["-q", &formatted.0]);
        for (name, mode, device) in
            [("raw", "Block", &raw.0), ("files", "Filesystem", &formatted.0)]
        {
            kubectl.ok(&format!("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {{storage: 1Mi}}
  volumeMode: {mode}
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  claimRef: {{namespace: default, name: {name}}}
  local: {{path: {device}}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [n1]}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{volumeMode: {mode}, accessModes: [ReadWriteOnce], storageClassName: manual, volumeName: {name}, resources: {{requests: {{storage: 1Mi}}}}}}
EOF
uid=$(kubectl get pvc {name} -o jsonpath='{{.metadata.uid}}')
kubectl patch pv {name} --type=merge -p \"{{\\\"spec\\\":{{\\\"claimRef\\\":{{\\\"uid\\\":\\\"$uid\\\"}}}}}}\"
kubectl patch pv {name} --subresource=status --type=merge -p '{{\"status\":{{\"phase\":\"Bound\"}}}}'
kubectl patch pvc {name} --subresource=status --type=merge -p '{{\"status\":{{\"phase\":\"Bound\",\"accessModes\":[\"ReadWriteOnce\"],\"capacity\":{{\"storage\":\"1Mi\"}}}}}}'"));
        }
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 3000}
  volumes:
  - {name: raw, persistentVolumeClaim: {claimName: raw}}
  - {name: files, persistentVolumeClaim: {claimName: files}}
  containers:
  - name: c
    image: busybox:1
    command: [sleep, '1000']
    volumeDevices: [{name: raw, devicePath: /dev/mine}]
    volumeMounts: [{name: files, mountPath: /files}]
---
apiVersion: v1
kind: Pod
metadata: {name: wrong}
spec:
  nodeName: n1
  volumes: [{name: v, persistentVolumeClaim: {claimName: raw}}]
  containers: [{name: c, image: 'busybox:1', volumeMounts: [{name: v, mountPath: /v}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: nothing}
spec:
  nodeName: n1
  volumes: [{name: v, persistentVolumeClaim: {claimName: nothing}}]
  containers: [{name: c, image: 'busybox:1', volumeMounts: [{name: v, mountPath: /v}]}]
EOF
kubectl wait --for=condition=Ready pod/p --timeout=30s");
        kubectl.ok("kubectl exec p -- test -b /dev/mine");
        kubectl.prints("kubectl exec p -- sh -c 'head -c 3 /dev/mine'", "xxx");
        kubectl.ok("kubectl exec p -- sh -c 'echo abc > /dev/mine && sync'");
        kubectl.prints("kubectl exec p -- stat -c '%a %g' /files", "2775 3000");
        kubectl.ok("kubectl exec p -- sh -c 'test -d /files/lost+found && echo kept > /files/x'");
        happens(kubectl, "volume v has volumeMode Block, but is specified in volumeMounts");
        happens(
            kubectl,
            "error processing PVC default/nothing: failed to fetch PVC from API server",
        );
        kubectl.ok("kubectl delete pod p");
        let device = std::fs::read(&raw.0).unwrap();
        assert!(device.starts_with(b"abc\nxxx"), "what was written is on the disk");
    });
}

/// N-137: disk usage is measured every ten seconds; a pod above its limit is evicted with a reason.
#[test]
fn a_pod_above_its_disk_limit_is_evicted() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: volume}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]
  containers:
  - {name: c, image: 'busybox:1', command: [sh, -c, 'head -c 3000000 /dev/zero > /v/x; exec sleep 1000'], volumeMounts: [{name: v, mountPath: /v}]}
---
apiVersion: v1
kind: Pod
metadata: {name: layer}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: 'busybox:1', command: [sh, -c, 'head -c 3000000 /dev/zero > /x; exec sleep 1000'], resources: {limits: {ephemeral-storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: modest}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, emptyDir: {sizeLimit: 10Mi}}]
  containers:
  - {name: c, image: 'busybox:1', command: [sh, -c, 'head -c 3000000 /dev/zero > /v/x; exec sleep 1000'], volumeMounts: [{name: v, mountPath: /v}]}
EOF
kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/volume pod/layer --timeout=60s");
        let command_for = |pod: &str| {
            format!("kubectl get pod {pod} -o jsonpath='{{.status.reason}}: {{.status.message}}'")
        };
        kubectl.prints(
            &command_for("volume"),
            "Evicted: Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\".",
        );
        kubectl.prints(
            &command_for("layer"),
            "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 1Mi.",
        );
        kubectl.prints("kubectl get pod modest -o jsonpath='{.status.phase}'", "Running");
    });
}
