//! `kubectl delete` in all its forms.

use crate::harness::{Kubectl, each_kubectl};
use std::time::Duration;

/// The output of a watch or a wait arrives immediately, unless something is wrong.
const SOON: Duration = Duration::from_secs(30);

/// A pod that is bound to a node, so that its deletion is graceful.
pub(crate) fn bound_pod(kubectl: &Kubectl, name: &str) {
    kubectl.ok(&format!(
        r#"kubectl run {name} --image=nginx --labels=app={name}
        # Without validation kubectl need not fetch the whole schema, which is most of the work.
        kubectl get node nowhere 2> /dev/null || kubectl create --validate=false -f - <<END
apiVersion: v1
kind: Node
metadata: {{name: nowhere}}
END
        kubectl create --raw /api/v1/namespaces/$NS/pods/{name}/binding -f - <<END
{{"apiVersion": "v1", "kind": "Binding", "metadata": {{"name": "{name}"}},
 "target": {{"apiVersion": "v1", "kind": "Node", "name": "nowhere"}}}}
END"#
    ));
}

const GRACE: &str = "-o jsonpath='{.metadata.deletionGracePeriodSeconds}'";

/// W-50: `kubectl delete` by name, by label and with --all waits until the pods are gone.
#[test]
fn w_50_pods_are_deleted_by_name_by_label_and_all_at_once() {
    each_kubectl(|kubectl| {
        kubectl.ok("for p in a b c d; do kubectl run $p --image=nginx --labels=env=$p; done");
        kubectl.shows("kubectl delete po a", &[r#"pod "a" deleted"#]);
        kubectl.fails("kubectl get po a", r#"Error from server (NotFound): pods "a" not found"#);
        kubectl.shows("kubectl delete po -l env=b", &[r#"pod "b" deleted"#]);
        kubectl.prints("kubectl get po -o name", "pod/c\npod/d");
        kubectl.shows("kubectl delete po --all", &[r#"pod "c" deleted"#, r#"pod "d" deleted"#]);
        kubectl.prints("kubectl get po -o name", "");
        kubectl.ok("kubectl run e --image=nginx");
        kubectl.shows("kubectl delete po --all -n $NS", &[r#"pod "e" deleted"#]);
        kubectl.prints("kubectl get po -o name", "");
    });
}

/// W-51: everything in a deleted namespace is removed before the namespace.
#[test]
fn w_51_a_namespace_is_deleted_with_its_content() {
    each_kubectl(|kubectl| {
        let ns = format!("ending-{}", kubectl.namespace);
        kubectl.ok(&format!(
            "kubectl create ns {ns}
             kubectl -n {ns} create cm held --from-literal=a=b
             kubectl -n {ns} patch cm held --type=merge \
                 -p '{{\"metadata\":{{\"finalizers\":[\"example.com/hold\"]}}}}'"
        ));
        // T-CLI-13: kubectl prints the line before it waits.
        kubectl.shows(
            &format!("kubectl delete ns {ns} --wait=false"),
            &[&format!("namespace \"{ns}\" deleted")],
        );
        // T-CLI-25: the phase of the namespace is shown.
        kubectl.shows(&format!("kubectl get ns {ns}"), &["STATUS", &ns, "Terminating"]);
        kubectl.fails(
            &format!("kubectl -n {ns} create cm late --from-literal=a=b"),
            "because it is being terminated",
        );
        kubectl.ok(&format!(
            "kubectl -n {ns} patch cm held --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'"
        ));
    });
}

/// W-52: `delete all --all` leaves Secrets, ConfigMaps and claims, and the Service `kubernetes` is created again.
#[test]
fn w_52_delete_all_leaves_configuration_and_the_kubernetes_service_is_recreated() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl -n default create deployment web --image=nginx
             kubectl -n default create service clusterip web --tcp=80
             kubectl -n default run p --image=nginx
             kubectl -n default create cm kept --from-literal=a=b
             kubectl -n default create secret generic kept --from-literal=a=b");
        let uid = "kubectl -n default get svc kubernetes -o jsonpath='{.metadata.uid}'";
        let before = kubectl.ok(uid);
        // T-CLI-11: the kinds of the category `all`.
        kubectl.shows(
            "kubectl -n default delete all --all",
            &[
                r#"pod "p" deleted"#,
                r#"service "kubernetes" deleted"#,
                r#"service "web" deleted"#,
                r#"deployment.apps "web" deleted"#,
            ],
        );
        kubectl
            .prints("kubectl -n default get cm,secret kept -o name", "configmap/kept\nsecret/kept");
        kubectl.ok("until kubectl -n default get svc kubernetes; do :; done");
        assert_ne!(kubectl.ok(uid), before, "it is a new Service");
        kubectl.prints(
            "kubectl -n default get svc kubernetes -o jsonpath='{.spec.clusterIP}'",
            "10.96.0.1",
        );
        kubectl.ok("until kubectl get ipaddress 10.96.0.1; do :; done");
        kubectl.ok("kubectl -n default delete cm,secret kept");
    });
}

/// W-53: Secrets, ConfigMaps and claims are deleted, and `kube-root-ca.crt` is created again.
#[test]
fn w_53_secrets_configmaps_and_claims_are_deleted_and_the_root_certificate_is_recreated() {
    each_kubectl(|kubectl| {
        kubectl.ok(r#"kubectl create secret generic s --from-literal=a=b
             kubectl create cm c --from-literal=a=b
             kubectl apply -f - <<END
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
END"#);
        kubectl.shows("kubectl delete secrets --all", &[r#"secret "s" deleted"#]);
        kubectl.prints("kubectl get secrets -o name", "");
        kubectl.shows(
            "kubectl delete configmaps --all",
            &[r#"configmap "c" deleted"#, r#"configmap "kube-root-ca.crt" deleted"#],
        );
        kubectl.ok("until kubectl get cm kube-root-ca.crt; do :; done");
        // No pod uses it, so the pvc-protection controller removes its finalizer.
        kubectl.shows("kubectl delete pvc --all", &[r#"persistentvolumeclaim "claim" deleted"#]);
        kubectl.prints("kubectl get pvc -o name", "");
    });
}

/// W-61: a dry run deletes nothing and says so.
#[test]
fn w_61_a_dry_run_says_so_and_deletes_nothing() {
    each_kubectl(|kubectl| {
        bound_pod(kubectl, "p");
        let uid =
            kubectl.ok("kubectl get po p -o jsonpath='{.metadata.uid}{.metadata.resourceVersion}'");
        // T-CLI-8, T-CLI-4: a dry run does not wait and prints a suffix.
        kubectl.shows("kubectl delete po p --dry-run=client", &[r#"pod "p" deleted"#, "(dry run)"]);
        kubectl.shows(
            "kubectl delete po p --dry-run=server",
            &[r#"pod "p" deleted"#, "(server dry run)"],
        );
        kubectl.shows(
            "kubectl delete po p --dry-run=server --force --grace-period=0",
            &[r#"pod "p" force deleted"#, "(server dry run)"],
        );
        let after =
            kubectl.ok("kubectl get po p -o jsonpath='{.metadata.uid}{.metadata.resourceVersion}'");
        assert_eq!(uid, after, "nothing was written");
        kubectl.prints(
            "kubectl create cm dry --from-literal=a=b --dry-run=server",
            "configmap/dry created (server dry run)",
        );
        kubectl.fails("kubectl get cm dry", "not found");
    });
}

/// W-62: kubectl waits until the uid is gone, or returns at once.
#[test]
fn w_62_deleting_waits_for_the_uid_to_vanish_unless_wait_is_false() {
    each_kubectl(|kubectl| {
        bound_pod(kubectl, "p");
        // --wait=false returns at once while the pod is Terminating (T-CLI-22).
        kubectl.shows("kubectl delete po p --wait=false", &[r#"pod "p" deleted"#]);
        kubectl.shows("kubectl get po", &["p", "0/1", "Terminating"]);
        kubectl.prints(&format!("kubectl get po p {GRACE}"), "30");
        // T-CLI-7: after the timeout the deletion continues.
        kubectl.fails("kubectl delete po p --timeout=1s", "timed out waiting for the condition");
        // T-CLI-2: --now is one second.
        kubectl.ok("kubectl delete po p --now --wait=false");
        kubectl.prints(&format!("kubectl get po p {GRACE}"), "1");
        // T-CLI-5: kubectl prints the line before it waits; T-CLI-6: it waits until the pod is gone.
        let mut waiting = kubectl.spawn("exec kubectl delete po p");
        waiting.line(r#"pod "p" deleted"#, SOON);
        kubectl.ok("kubectl delete po p --force --grace-period=0");
        assert_eq!(waiting.exit(SOON), Some(0), "it was waited for: {}", waiting.stderr());
    });
}

/// T-CLI-1: kubectl sends one DELETE per object, with a propagationPolicy.
#[test]
fn t_cli_1_each_object_gets_one_delete_with_a_propagation_policy() {
    each_kubectl(|kubectl| {
        let body = |args: &str| {
            kubectl.ok("kubectl create cm x --from-literal=a=b");
            let output = kubectl.run(&format!("kubectl delete cm x {args} -v=8"));
            assert_eq!(output.code, 0, "{output}");
            // Versions of kubectl print it differently, so white space and escapes are removed.
            output.stderr.replace(|c: char| c.is_whitespace() || c == '\\' || c == '\t', "")
        };
        let plain = body("");
        assert!(plain.contains(r#""propagationPolicy":"Background""#), "{plain}");
        assert!(!plain.contains("gracePeriodSeconds"), "{plain}");
        let sent = body("--now");
        assert!(sent.contains(r#""gracePeriodSeconds":1"#), "{sent}");
        // T-CLI-2: 0 without --force means 1.
        let sent = body("--grace-period=0");
        assert!(sent.contains(r#""gracePeriodSeconds":1"#), "{sent}");
        let sent = body("--force");
        assert!(sent.contains(r#""gracePeriodSeconds":0"#), "{sent}");
        let sent = body("--grace-period=7");
        assert!(sent.contains(r#""gracePeriodSeconds":7"#), "{sent}");
    });
}

#[test]
fn t_cli_2_flags_that_contradict_each_other_are_refused() {
    each_kubectl(|kubectl| {
        bound_pod(kubectl, "p");
        kubectl.fails(
            "kubectl delete po p --now --grace-period=3",
            "--now and --grace-period cannot be specified together",
        );
        kubectl.fails(
            "kubectl delete po p --force --grace-period=3",
            "--force and --grace-period greater than 0 cannot be specified together",
        );
        kubectl.fails("kubectl delete po --all -l app=p", "found a non empty selector");
        // T-EDGE-31: without --force, 0 silently means 1.
        kubectl.ok("kubectl delete po p --grace-period=0 --wait=false");
        kubectl.prints(&format!("kubectl get po p {GRACE}"), "1");
        // T-CLI-3, T-CLI-4: --force prints a warning and `force deleted`.
        let output = kubectl.run("kubectl delete po p --force");
        assert_eq!(output.code, 0, "{output}");
        assert!(output.stdout.contains(r#"pod "p" force deleted"#), "{output}");
        let warning = "mmediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely.";
        assert!(output.stderr.contains(warning), "{output}");
        kubectl.fails("kubectl get po p", "not found");
    });
}

#[test]
fn a_second_delete_can_only_shorten_the_grace_period() {
    each_kubectl(|kubectl| {
        bound_pod(kubectl, "p");
        for (asked, granted) in [("20", "20"), ("25", "20"), ("5", "5")] {
            kubectl.ok(&format!("kubectl delete po p --grace-period={asked} --wait=false"));
            kubectl.prints(&format!("kubectl get po p {GRACE}"), granted);
        }
        kubectl.ok("kubectl delete po p --force --grace-period=0");
    });
}

#[test]
fn t_cli_4_the_output_names_kind_group_and_object() {
    each_kubectl(|kubectl| {
        kubectl.ok(
            "kubectl create deployment d --image=nginx; kubectl create cm c --from-literal=a=b",
        );
        kubectl.shows("kubectl delete deployment d", &[r#"deployment.apps "d" deleted"#]);
        kubectl.prints("kubectl delete cm c -o name", "configmap/c");
        kubectl.ok("kubectl create clusterrole r-$NS --verb=get --resource=pods");
        let ns = &kubectl.namespace;
        kubectl.prints(
            "kubectl delete clusterrole r-$NS",
            &format!(r#"clusterrole.rbac.authorization.k8s.io "r-{ns}" deleted"#),
        );
    });
}

/// T-CLI-9: --cascade takes background, foreground or orphan.
#[test]
fn t_cli_9_owners_are_deleted_before_after_or_without_their_dependents() {
    each_kubectl(|kubectl| {
        for cascade in ["background", "foreground", "orphan"] {
            kubectl.ok(&format!("kubectl create deployment {cascade} --image=nginx --replicas=0 || kubectl create deployment {cascade} --image=nginx"));
            let uid = kubectl
                .ok(&format!("kubectl get deploy {cascade} -o jsonpath='{{.metadata.uid}}'"));
            bound_pod(kubectl, &format!("of-{cascade}"));
            kubectl.ok(&format!(
                r#"kubectl patch po of-{cascade} --type=merge -p '{{"metadata":{{"ownerReferences":[
                   {{"apiVersion":"apps/v1","kind":"Deployment","name":"{cascade}","uid":"{uid}","blockOwnerDeletion":true}}]}}}}'"#
            ));
            kubectl.shows(
                &format!("kubectl delete deploy {cascade} --cascade={cascade} --wait=false"),
                &[&format!("deployment.apps \"{cascade}\" deleted")],
            );
        }
        kubectl.fails("kubectl get deploy background", "not found");
        // The pod is bound to a node and terminates gracefully, so its owner has to wait for it.
        kubectl.prints(
            "kubectl get deploy foreground -o jsonpath='{.metadata.finalizers}'",
            r#"["foregroundDeletion"]"#,
        );
        kubectl.prints("kubectl get po of-orphan -o jsonpath='{.metadata.deletionTimestamp}'", "");
    });
}

/// T-CLI-10: a missing object is an error only if it was named.
#[test]
fn t_cli_10_a_missing_object_is_an_error_only_if_it_was_named() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl run here --image=nginx");
        let output = kubectl.run("kubectl delete po missing here");
        assert_eq!(output.code, 1, "{output}");
        assert!(
            output.stderr.contains(r#"Error from server (NotFound): pods "missing" not found"#),
            "{output}"
        );
        assert!(
            output.stdout.contains(r#"pod "here" deleted"#),
            "others are still deleted: {output}"
        );
        kubectl.prints("kubectl delete po missing --ignore-not-found", "");
        kubectl.prints("kubectl delete po --all", "No resources found");
        kubectl.prints("kubectl delete po -l no=such", "No resources found");
    });
}

/// T-CLI-12: -n does not apply to cluster-scoped objects, and kubectl warns.
#[test]
fn t_cli_12_a_namespace_does_not_apply_to_cluster_scoped_objects() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl create clusterrole wide-$NS --verb=get --resource=pods");
        let output = kubectl.run("kubectl delete clusterrole wide-$NS -n $NS");
        assert_eq!(output.code, 0, "{output}");
        assert!(
            output.stderr.contains(
                "deleting cluster-scoped resources, not scoped to the provided namespace"
            ),
            "{output}"
        );
    });
}

/// T-CLI-14: -i asks for confirmation.
#[test]
fn t_cli_14_interactive_deletion_asks_first() {
    each_kubectl(|kubectl| {
        if kubectl.is_before(28) {
            return;
        }
        kubectl.ok("kubectl create cm c --from-literal=a=b");
        let no = kubectl.ok("echo n | kubectl delete cm c -i");
        assert!(
            no.contains("Do you want to continue?") && no.contains("deletion is cancelled"),
            "{no}"
        );
        kubectl.ok("kubectl get cm c");
        kubectl.ok("echo y | kubectl delete cm c -i");
        kubectl.fails("kubectl get cm c", "not found");
    });
}

/// T-CLI-15: `replace --force` deletes the object, waits, and creates it.
#[test]
fn t_cli_15_replace_with_force_deletes_and_creates_again() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl create cm c --from-literal=a=b; kubectl get cm c -o yaml > c.yaml");
        let uid = "kubectl get cm c -o jsonpath='{.metadata.uid}'";
        let before = kubectl.ok(uid);
        kubectl.shows(
            "kubectl replace --force -f c.yaml",
            &[r#"configmap "c" deleted"#, "configmap/c replaced"],
        );
        assert_ne!(kubectl.ok(uid), before);
    });
}
