//! Image volumes: the files of an image in another container, and errors if the image is missing.

use super::{happens, on_a_node};
use crate::harness::{Kubectl, other_runtime};

/// N-146: read-only and not executable, completely or by subPath; shown in the status; unmounted with the pod.
#[test]
fn an_image_is_shown_read_only_in_another_container() {
    on_a_node(&["busybox", "nginx"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: web, image: {reference: 'nginx:1', pullPolicy: Never}}
  - {name: again, image: {reference: 'nginx:1'}}
  containers:
  - name: c
    image: busybox:1
    command: [sleep, '1000']
    volumeMounts:
    - {name: web, mountPath: /web}
    - {name: web, mountPath: /html, subPath: usr/share/nginx/html}
    - {name: again, mountPath: /again}
EOF");
        if other_runtime().is_some() {
            return image_volumes_are_refused(kubectl);
        }
        kubectl.ok("kubectl wait --for=condition=Ready pod/p --timeout=30s");
        let from_image = kubectl.ok("kubectl exec p -- cat /web/usr/share/nginx/html/index.html");
        assert!(from_image.contains("nginx"), "{from_image}");
        kubectl.prints("kubectl exec p -- cat /html/index.html", from_image.trim_end());
        kubectl.fails("kubectl exec p -- touch /web/new", "Read-only file system");
        kubectl.fails("kubectl exec p -- touch /html/new", "Read-only file system");
        kubectl.fails("kubectl exec p -- /web/bin/busybox true", "permission denied");
        kubectl.ok("kubectl exec p -- test -x /again/bin/busybox");
        happens(kubectl, "Container image \"nginx:1\" already present on machine");
        kubectl.prints(
            "kubectl get events -o jsonpath='{range .items[*]}{.involvedObject.fieldPath}|{.message}{\"\\n\"}{end}' | grep nginx | cut -d'|' -f1 | sort -u",
            "",
        );
        kubectl.ok("kubectl delete pod p");
        assert_eq!(kubectl.ok("mount | grep -c kubernetes.io~image/web || true").trim(), "0");
    });
}

/// CRI runtimes here do not support image volumes: the container waits, and its status says why.
fn image_volumes_are_refused(kubectl: &Kubectl) {
    kubectl.ok("kubectl wait --timeout=30s pod/p --for=jsonpath='{.status.containerStatuses[0].state.waiting.reason}'=CreateContainerError");
    kubectl.prints(
        "kubectl get pod p -o jsonpath='{.status.containerStatuses[0].state.waiting.message}'",
        "image volumes are supported by landfall's own runtime only, not with CRI",
    );
}

/// N-146, N-67: containers that mount a missing image wait with its reason; the others start.
#[test]
fn a_missing_image_volume_blocks_only_containers_that_mount_it() {
    on_a_node(&["busybox", "nginx"], |_, kubectl| {
        for (pod, image, sub_path) in [
            ("never", "{reference: 'absent:1', pullPolicy: Never}", ""),
            ("unreachable", "{reference: 'localhost:1/absent:1'}", ""),
            ("misnamed", "{reference: 'Upper/Case:1'}", ""),
            ("no-path", "{reference: 'nginx:1'}", ", subPath: no/such/path"),
        ] {
            kubectl.ok(&format!("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: {pod}}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: v, image: {image}}}]
  containers:
  - {{name: other, image: 'busybox:1', command: [sleep, '1000']}}
  - {{name: waits, image: 'busybox:1', command: [sleep, '1000'], volumeMounts: [{{name: v, mountPath: /v{sub_path}}}]}}
EOF"));
        }
        let waits = |pod: &str, reason: &str| {
            kubectl.ok(&format!(
                "kubectl wait --timeout=30s pod/{pod} \
                 --for=jsonpath='{{.status.containerStatuses[1].state.waiting.reason}}'={reason}"
            ));
            kubectl.ok(&format!(
                "kubectl wait --timeout=30s pod/{pod} --for=jsonpath='{{.status.containerStatuses[0].ready}}'=true"
            ));
        };
        waits("never", "ErrImageNeverPull");
        waits("misnamed", "InvalidImageName");
        waits("no-path", "CreateContainerError");
        waits("unreachable", "ImagePullBackOff");
        kubectl.shows("kubectl describe pod no-path", &["no/such/path"]);
    });
}
