//! What controllers clean up when objects are deleted, on a real node.

use super::on_a_node;

/// Exits four seconds after SIGTERM.
const SLOW: &str = r#"trap "sleep 4; exit 0" TERM; while :; do sleep 0.05; done"#;
const PROMPT: &str = r#"trap "exit 0" TERM; while :; do sleep 0.05; done"#;

/// T-CTRL-53, T-EDGE-21, W-51: pods go first, each with its grace period; the namespace reports what remains.
#[test]
fn a_namespace_deletes_its_pods_first_and_reports_what_remains() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&format!(
            "kubectl create ns away
             kubectl -n away create cm kept --from-literal=a=b
             kubectl -n away run p --image=busybox:1 -- sh -c '{SLOW}'
             kubectl -n away wait --for=condition=Ready pod/p --timeout=30s
             kubectl delete ns away --wait=false"
        ));
        let output =
            r#"jsonpath='{.status.conditions[?(@.type=="NamespaceContentRemaining")].message}'"#;
        kubectl.ok(&format!(
            "until kubectl get ns away -o {output} | grep 'pods. has 1 resource instances'; do sleep 0.1; done
             kubectl -n away get cm kept
             kubectl wait --for=delete ns/away --timeout=60s"
        ));
        kubectl.fails("kubectl -n away get cm kept", "not found");
    });
}

/// W-13, T-NET-1, T-NET-10: while the hook runs, EndpointSlices show the pod as terminating and Endpoints no longer list
/// it.
#[test]
fn a_terminating_pod_is_marked_in_its_slice_and_leaves_the_endpoints() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec:
  terminationGracePeriodSeconds: 20
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, '{PROMPT}']
    lifecycle: {{preStop: {{exec: {{command: [sleep, '5']}}}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
EOF
kubectl wait --for=condition=Ready pod/web --timeout=30s"
        ));
        let slices = "kubectl get endpointslices -l kubernetes.io/service-name=web \
                      -o jsonpath='{.items[*].endpoints[*].conditions}'";
        let ready = r#"{"ready":true,"serving":true,"terminating":false}"#;
        let ending = r#"{"ready":false,"serving":true,"terminating":true}"#;
        let listed =
            "kubectl get endpoints web -o jsonpath='{.subsets[*].addresses[*].targetRef.name}'";
        kubectl.ok(&format!(
            "until {slices} | grep -F '{ready}'; do sleep 0.1; done
             {listed} | grep web
             kubectl delete pod web --wait=false
             until {slices} | grep -F '{ending}'; do sleep 0.1; done
             until [ -z \"$({listed})\" ]; do sleep 0.1; done
             kubectl get pod web | grep Terminating
             kubectl wait --for=delete pod/web --timeout=30s
             until [ -z \"$({slices})\" ]; do sleep 0.1; done
             kubectl delete svc web"
        ));
    });
}

/// W-70, C-139, T-EVICT-8: a drain evicts as many pods as the budget allows, and the rest after it is deleted.
#[test]
fn a_drain_waits_for_the_disruption_budget() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&format!(
            "for p in a b; do kubectl run $p --image=busybox:1 --labels=app=web -- sh -c '{PROMPT}'; done
             kubectl create pdb web --selector=app=web --min-available=1
             kubectl wait --for=condition=Ready pod/a pod/b --timeout=30s
             until kubectl get pdb web -o jsonpath='{{.status.disruptionsAllowed}}' | grep 1; do sleep 0.1; done"
        ));
        let node = kubectl.ok("kubectl get nodes -o jsonpath='{.items[0].metadata.name}'");
        let node = node.trim();
        kubectl.fails(
            &format!("kubectl drain {node} --force --timeout=8s"),
            "Cannot evict pod as it would violate the pod's disruption budget.",
        );
        let left = kubectl.ok("kubectl get pods -l app=web -o name");
        assert_eq!(left.lines().count(), 1, "{left}");
        kubectl.prints(
            "kubectl get pdb web -o jsonpath='{.status.currentHealthy} {.status.disruptionsAllowed}'",
            "1 0",
        );
        kubectl.ok(&format!(
            "kubectl delete pdb web
             kubectl drain {node} --force --timeout=30s
             kubectl uncordon {node}"
        ));
        kubectl.prints("kubectl get pods -l app=web -o name", "");
    });
}

/// W-66, W-68: a claim stays while its pod exists; dependents are deleted with their owner.
#[test]
fn claims_outlive_their_pods_and_dependents_do_not_outlive_their_owners() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let path = cluster.dir().join("volume");
        std::fs::create_dir_all(&path).unwrap();
        let path = path.display();
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: PersistentVolume
metadata: {{name: v}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  storageClassName: ''
  hostPath: {{path: {path}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: c}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ''
  resources: {{requests: {{storage: 1Gi}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: c}}}}]
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, 'echo kept > /data/file; {PROMPT}']
    volumeMounts: [{{name: v, mountPath: /data}}]
EOF
kubectl wait --for=condition=Ready pod/p --timeout=30s
kubectl get pvc c -o jsonpath='{{.status.phase}}' | grep Bound
kubectl delete pvc c --grace-period=0 --force --wait=false
kubectl get pvc c | grep Terminating
kubectl delete pod p
kubectl wait --for=delete pvc/c --timeout=30s
until kubectl get pv v -o jsonpath='{{.status.phase}}' | grep Released; do sleep 0.1; done
kubectl delete pv v --timeout=30s"
        ));
        let file = cluster.dir().join("volume/file");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "kept\n", "Retain keeps");

        kubectl.ok(&format!(
            "kubectl create cm owner --from-literal=a=b
             kubectl run owned --image=busybox:1 -- sh -c '{PROMPT}'
             kubectl wait --for=condition=Ready pod/owned --timeout=30s"
        ));
        let uid = kubectl.ok("kubectl get cm owner -o jsonpath='{.metadata.uid}'");
        let uid = uid.trim();
        kubectl.ok(&format!(
            r#"kubectl patch pod owned --type=merge -p '{{"metadata":{{"ownerReferences":[
                 {{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"{uid}","blockOwnerDeletion":true}}]}}}}'
               kubectl delete cm owner --cascade=foreground --timeout=30s"#
        ));
        kubectl.fails("kubectl get pod owned", "not found");
    });
}

/// C-169, C-171: a claim without a class gets a directory of this machine, which is removed with the claim.
#[test]
fn a_claim_gets_a_directory_that_is_removed_with_it() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: c}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  securityContext: {{runAsUser: 1000}}
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: c}}}}]
  containers:
  - name: c
    image: busybox:1
    command: [sh, -c, 'echo kept > /data/file; {PROMPT}']
    volumeMounts: [{{name: v, mountPath: /data}}]
EOF
kubectl wait --for=condition=Ready pod/p --timeout=60s
kubectl delete pod p"
        ));
        let volume = kubectl.ok("kubectl get pvc c -o jsonpath='{.spec.volumeName}'");
        let volume = volume.trim();
        let path = cluster.data_dir().join("volumes").join(volume);
        assert_eq!(std::fs::read_to_string(path.join("file")).unwrap(), "kept\n");
        kubectl.ok(&format!(
            "kubectl delete pvc c
             kubectl wait --for=delete pv/{volume} --timeout=30s"
        ));
        assert!(!path.exists(), "the class says Delete");
    });
}
