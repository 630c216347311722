//! `kubectl delete` of objects with running pods: what is removed, what stays, what is replaced, and that kubectl waits.

use super::{on_a_node, on_a_node_with};
use crate::harness::Kubectl;

/// Exits a moment after SIGTERM.
const APP: &str = r#"trap "sleep 0.3; exit 0" TERM; while :; do sleep 0.05; done"#;

/// True if processes of the pod run.
fn processes_of(kubectl: &Kubectl, pod: &str) -> bool {
    kubectl.run(&format!("kubectl exec {pod} -- true")).code == 0
}

/// W-50, W-65: every form prints what it deletes and returns when nothing is left; a finalizer keeps the object, not the
/// process.
#[test]
fn w_50_w_65_deleting_pods_waits_until_they_are_gone() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&format!(
            "kubectl create ns other
             for p in a b c d; do kubectl run $p --image=busybox:1 --labels=env=$p -- sh -c '{APP}'; done
             kubectl -n other run e --image=busybox:1 -- sh -c '{APP}'
             kubectl wait --for=condition=Ready pod --all --timeout=40s
             kubectl -n other wait --for=condition=Ready pod/e --timeout=30s"
        ));
        kubectl.prints("kubectl delete po a", r#"pod "a" deleted"#);
        kubectl.fails("kubectl get po a", r#"Error from server (NotFound): pods "a" not found"#);
        kubectl.prints("kubectl delete po -l env=b", r#"pod "b" deleted"#);
        kubectl.prints("kubectl get po -o name", "pod/c\npod/d");

        kubectl.ok(r#"kubectl patch po c -p '{"metadata":{"finalizers":["example.com/hold"]}}'
            kubectl delete po c --wait=false
            kubectl wait --for=jsonpath='{.metadata.deletionGracePeriodSeconds}'=0 po/c --timeout=30s"#);
        assert!(!processes_of(kubectl, "c"), "the process is gone, the object is held");
        kubectl.shows("kubectl get po c -o yaml | grep finalizers -A 5", &["- example.com/hold"]);
        kubectl.ok(r#"kubectl patch po c -p '{"metadata":{"finalizers":null}}'
            kubectl wait --for=delete po/c --timeout=10s"#);

        kubectl.prints("kubectl delete po --all", r#"pod "d" deleted"#);
        kubectl.prints("kubectl get po -o name; kubectl -n other get po -o name", "pod/e");
        kubectl.prints("kubectl delete po --all -n other", r#"pod "e" deleted"#);
        kubectl.prints("kubectl get po -A -o name", "");
    });
}

/// W-64, W-14: the replacement runs while the old pod terminates; pods are deleted with their controller.
#[test]
fn w_64_a_pod_of_a_replication_controller_is_replaced_while_it_terminates() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl apply -f - <<'EOF'
apiVersion: v1
kind: ReplicationController
metadata: {name: slow}
spec:
  replicas: 1
  template:
    metadata: {labels: {app: slow}}
    spec:
      terminationGracePeriodSeconds: 20
      containers: [{name: c, image: 'busybox:1', command: [sh, -c, \"trap 'sleep 5; exit 0' TERM; while :; do sleep 0.05; done\"]}]
EOF
kubectl wait --for=jsonpath='{.status.readyReplicas}'=1 rc/slow --timeout=40s");
        let old = kubectl.ok("kubectl get pods -l app=slow -o name");
        kubectl.ok("kubectl delete pod -l app=slow --wait=false");
        kubectl.ok(&format!(
            "old={}
             until [ \"$(kubectl get pods -l app=slow --field-selector=status.phase=Running -o name | grep -vc $old)\" = 1 ]; do sleep 0.1; done
             kubectl get $old | grep Terminating",
            old.trim()
        ));
        kubectl
            .shows("kubectl get rc slow", &["DESIRED", "CURRENT", "READY", "slow", "1", "1", "1"]);
        kubectl.prints("kubectl delete rc slow", r#"replicationcontroller "slow" deleted"#);
        kubectl.ok("kubectl wait --for=delete pod -l app=slow --timeout=30s");
    });
}

/// W-51, W-52, W-53: a namespace is deleted with everything in it; `all` leaves configuration and claims.
#[test]
fn w_51_w_52_w_53_which_objects_are_deleted_together_and_which_stay() {
    on_a_node(&["busybox"], |_, kubectl| {
        let things = format!(
            "kubectl -n $IN create deployment web --image=busybox:1 -- sh -c '{APP}'
             kubectl -n $IN create service clusterip web --tcp=80
             kubectl -n $IN create cronjob tick --image=busybox:1 --schedule='@yearly' -- true
             kubectl -n $IN create cm kept --from-literal=a=b
             kubectl -n $IN create secret generic kept --from-literal=a=b
             kubectl -n $IN apply -f - <<'EOF'
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: kept}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}
EOF
kubectl -n $IN wait --for=condition=Available deployment/web --timeout=50s"
        );
        kubectl.ok(&format!("kubectl create ns away\nexport IN=away\n{things}"));
        kubectl.ok(&format!("export IN=default\n{things}"));
        let everything = "deployment,rs,pods,svc,cronjob,cm,secret,pvc,endpoints,endpointslices";
        kubectl.prints("kubectl delete ns away", r#"namespace "away" deleted"#);
        kubectl.prints(&format!("kubectl -n away get {everything} -o name"), "");
        kubectl.fails("kubectl get ns away", "not found");

        let own = "kubectl get svc kubernetes -o jsonpath='{.metadata.uid}'";
        let before = kubectl.ok(own);
        kubectl.shows(
            "kubectl delete all --all",
            &[
                r#"pod "web-"#,
                r#"service "kubernetes" deleted"#,
                r#"service "web" deleted"#,
                r#"deployment.apps "web" deleted"#,
                r#"cronjob.batch "tick" deleted"#,
            ],
        );
        kubectl.ok("kubectl wait --for=delete pod -l app=web --timeout=30s");
        kubectl.prints("kubectl get deployment,rs,pods,cronjob -o name", "");
        kubectl.prints(
            "kubectl get cm,secret,pvc kept -o name",
            "configmap/kept\nsecret/kept\npersistentvolumeclaim/kept",
        );
        kubectl.ok(
            "for i in $(seq 30); do kubectl get svc kubernetes && exit 0; sleep 0.1; done; exit 1",
        );
        assert_ne!(kubectl.ok(own), before, "it is a new Service");

        kubectl.prints("kubectl delete secrets --all", r#"secret "kept" deleted"#);
        kubectl.shows(
            "kubectl delete configmaps --all",
            &[r#"configmap "kept" deleted"#, r#"configmap "kube-root-ca.crt" deleted"#],
        );
        kubectl.prints("kubectl delete pvc --all", r#"persistentvolumeclaim "kept" deleted"#);
        kubectl.prints("kubectl get secret,pvc -o name", "");
        kubectl.ok("for i in $(seq 30); do kubectl get cm kube-root-ca.crt && exit 0; sleep 0.1; done; exit 1");
    });
}

/// W-68: pods come back until their owner is deleted.
#[test]
fn w_68_pods_are_recreated_until_their_owner_is_deleted() {
    on_a_node(&["busybox"], |_, kubectl| {
        let template = format!(
            "template: {{metadata: {{labels: {{app: APP}}}}, spec: {{terminationGracePeriodSeconds: 5, \
             containers: [{{name: c, image: 'busybox:1', command: [sh, -c, '{APP}']}}]}}}}"
        );
        let of = |app: &str| template.replace("APP", app);
        kubectl.ok(&format!(
            "kubectl apply -f - <<'EOF'
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec: {{selector: {{matchLabels: {{app: web}}}}, {}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: set}}
spec: {{selector: {{matchLabels: {{app: set}}}}, {}}}
---
apiVersion: v1
kind: ReplicationController
metadata: {{name: old}}
spec: {{{}}}
EOF
kubectl wait --for=condition=Available deployment/web --timeout=40s
kubectl wait --for=jsonpath='{{.status.readyReplicas}}'=1 rs/set rc/old --timeout=40s",
            of("web"),
            of("set"),
            of("old")
        ));
        kubectl.shows(
            "kubectl get all",
            &[
                "pod/old-",
                "pod/set-",
                "pod/web-",
                "replicationcontroller/old",
                "service/kubernetes",
                "deployment.apps/web",
                "replicaset.apps/set",
                "replicaset.apps/web-",
            ],
        );
        for (app, owner, named) in [
            ("web", "deployment", "Controlled By:  ReplicaSet/web-"),
            ("set", "rs", "Controlled By:  ReplicaSet/set"),
            ("old", "rc", "Controlled By:  ReplicationController/old"),
        ] {
            let pods = format!("kubectl get pods -l app={app} -o name");
            let before = kubectl.ok(&pods);
            kubectl.shows(&format!("kubectl describe pod -l app={app}"), &[named]);
            kubectl.ok(&format!(
                "kubectl delete {}
                 kubectl wait --for=condition=Ready pod -l app={app} --timeout=40s",
                before.trim()
            ));
            assert_ne!(kubectl.ok(&pods), before, "another came");
            kubectl.ok(&format!(
                "kubectl delete {owner} $(kubectl get {owner} -o name | sed 's/.*[/]//' | grep -x {app})
                 kubectl wait --for=delete pod -l app={app} --timeout=40s"
            ));
            kubectl.prints(&pods, "");
        }
        kubectl.prints("kubectl get deployment,rs,rc -o name", "");
    });
}

/// W-19, T-CTRL-33: terminated pods stay up to the threshold; the oldest are removed first.
#[test]
fn w_19_terminated_pods_stay_up_to_the_threshold() {
    on_a_node_with(&["busybox"], &["--terminated-pod-gc-threshold", "2"], |_, kubectl| {
        for (pod, script, phase) in [
            ("first", "exit 0", "Succeeded"),
            ("second", "exit 3", "Failed"),
            ("third", "exit 0", "Succeeded"),
        ] {
            kubectl.ok(&format!(
                "kubectl run {pod} --image=busybox:1 --restart=Never -- sh -c '{script}'
                 kubectl wait --for=jsonpath='{{.status.phase}}'={phase} pod/{pod} --timeout=40s
                 sleep 1" // Ages have a resolution of a second.
            ));
        }
        kubectl.ok("kubectl wait --for=delete pod/first --timeout=50s");
        kubectl.prints("kubectl get pods -o name", "pod/second\npod/third");
    });
}
