//! All kinds of volumes, as a container sees them.

use super::on_a_node;

/// N-134, N-136 to N-142, N-144, N-145, N-148, N-150: modes, owners, updates, and subPaths that are not updated.
#[test]
fn all_kinds_of_volumes_are_mounted_and_updated() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let host = cluster.dir().join("host");
        std::fs::create_dir_all(host.join("local")).unwrap();
        let host = host.display();
        kubectl.ok(&format!("kubectl create configmap cm --from-literal=key=one
kubectl create secret generic secret --from-literal=password=hidden
kubectl apply -f - <<'EOF'
apiVersion: v1
kind: PersistentVolume
metadata: {{name: disk}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  claimRef: {{namespace: default, name: claim}}
  local: {{path: {host}/local}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [n1]}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: claim}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  volumeName: disk
  resources: {{requests: {{storage: 1Gi}}}}
EOF
uid=$(kubectl get pvc claim -o jsonpath='{{.metadata.uid}}')
kubectl patch pv disk --type=merge -p \"{{\\\"spec\\\":{{\\\"claimRef\\\":{{\\\"uid\\\":\\\"$uid\\\"}}}}}}\"
kubectl patch pv disk --subresource=status --type=merge -p '{{\"status\":{{\"phase\":\"Bound\"}}}}'
kubectl patch pvc claim --subresource=status --type=merge -p '{{\"status\":{{\"phase\":\"Bound\",\"accessModes\":[\"ReadWriteOnce\"],\"capacity\":{{\"storage\":\"1Gi\"}}}}}}'
kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: volumes, labels: {{color: red}}}}
spec:
  securityContext: {{runAsUser: 1000, fsGroup: 3000}}
  containers:
  - name: c
    image: busybox:1
    command: [sleep, '1000']
    resources: {{limits: {{cpu: 1250m}}}}
    volumeMounts:
    - {{name: empty, mountPath: /empty}}
    - {{name: memory, mountPath: /memory}}
    - {{name: cm, mountPath: /cm}}
    - {{name: cm, mountPath: /one-key, subPath: key}}
    - {{name: secret, mountPath: /secret}}
    - {{name: all, mountPath: /all}}
    - {{name: host, mountPath: /host}}
    - {{name: disk, mountPath: /disk}}
  volumes:
  - {{name: empty, emptyDir: {{}}}}
  - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}
  - {{name: cm, configMap: {{name: cm}}}}
  - {{name: secret, secret: {{secretName: secret, defaultMode: 0400}}}}
  - name: all
    projected:
      sources:
      - serviceAccountToken: {{path: token}}
      - configMap: {{name: cm, items: [{{key: key, path: deep/key}}]}}
      - downwardAPI:
          items:
          - {{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}
          - {{path: cpu, resourceFieldRef: {{containerName: c, resource: limits.cpu}}}}
  - {{name: host, hostPath: {{path: {host}/made, type: DirectoryOrCreate}}}}
  - {{name: disk, persistentVolumeClaim: {{claimName: claim}}}}
EOF
kubectl wait --for=condition=Ready pod/volumes --timeout=60s"));
        let says = |command: &str, words: &str| {
            kubectl.prints(&format!("kubectl exec volumes -- {command}"), words)
        };
        says("stat -c '%a %g' /empty", "2777 3000");
        says("cat /cm/key /one-key", "oneone");
        says("stat -L -c '%a %u %g' /secret/password", "440 0 3000");
        says("stat -L -c '%a %u %g' /all/token", "640 1000 3000");
        says("cat /all/deep/key /all/labels", "onecolor=\"red\"");
        says("cat /all/cpu", "2");
        kubectl.fails("kubectl exec volumes -- touch /cm/new", "Read-only file system");
        kubectl.fails(
            "kubectl exec volumes -- dd if=/dev/zero of=/memory/x bs=1M count=2",
            "No space left on device",
        );
        kubectl.ok("kubectl exec volumes -- sh -c 'echo kept > /disk/file'");
        assert_eq!(std::fs::read_to_string(format!("{host}/local/file")).unwrap(), "kept\n");
        assert!(std::path::Path::new(&format!("{host}/made")).is_dir());
        kubectl.ok("kubectl patch configmap cm -p '{\"data\":{\"key\":\"two\"}}'
                    kubectl label pod volumes color=blue --overwrite
                    for i in $(seq 100); do [ \"$(kubectl exec volumes -- cat /cm/key)\" = two ] && break; done");
        says("cat /cm/key", "two");
        says("cat /one-key", "one");
        kubectl.ok("for i in $(seq 100); do kubectl exec volumes -- grep -q blue /all/labels && exit 0; done; exit 1");
        kubectl.ok("kubectl delete pod volumes --grace-period=1");
        assert_eq!(std::fs::read_to_string(format!("{host}/local/file")).unwrap(), "kept\n");
    });
}
