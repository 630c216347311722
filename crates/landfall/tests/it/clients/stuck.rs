//! Objects that are stuck in deletion, and how users release them.

use super::deletion::bound_pod;
use crate::harness::each_kubectl;

/// W-65: a finalizer that keeps a pod is found and removed.
#[test]
fn w_65_a_pod_held_by_a_finalizer_is_found_and_freed() {
    each_kubectl(|kubectl| {
        // The pod garbage collector would fail a pod without a node.
        bound_pod(kubectl, "p");
        kubectl.ok(r#"kubectl patch po p -p '{"metadata":{"finalizers":["example.com/hold"]}}'
            kubectl delete po p --wait=false --grace-period=1"#);
        kubectl.shows("kubectl get po p", &["p", "0/1", "Terminating"]);
        kubectl.shows("kubectl get po p -o yaml | grep finalizers -A 5", &["- example.com/hold"]);
        // T-API-38: during deletion finalizers can only be removed.
        kubectl.fails(
            r#"kubectl patch po p --type=merge -p '{"metadata":{"finalizers":["example.com/other"]}}'"#,
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
        );
        kubectl.ok(r#"kubectl patch po p -p '{"metadata":{"finalizers":null}}'
            kubectl delete po p --wait=false --grace-period=0 --force"#);
        kubectl.fails("kubectl get po p", "not found");
    });
}

/// T-CLI-33: a merge patch removes the finalizers of any object.
#[test]
fn t_cli_33_a_merge_patch_frees_any_held_object() {
    each_kubectl(|kubectl| {
        kubectl.ok(r#"kubectl create cm c --from-literal=a=b
            kubectl patch cm c --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'
            kubectl delete cm c --wait=false
            kubectl get cm c
            kubectl patch cm c --type=merge -p '{"metadata":{"finalizers":null}}'"#);
        kubectl.fails("kubectl get cm c", "not found");
    });
}

/// W-69: a stuck namespace is inspected and finalized.
#[test]
fn w_69_a_stuck_namespace_is_inspected_and_finalized() {
    each_kubectl(|kubectl| {
        kubectl.ok(r#"export S=stuck-$NS
            kubectl create ns $S
            kubectl -n $S create cm held --from-literal=a=b
            kubectl -n $S patch cm held --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'
            kubectl delete ns $S --wait=false"#);
        kubectl.ok("kubectl get all -n stuck-$NS");
        // T-CTRL-55: the conditions of the namespace name what remains.
        kubectl.ok("for i in $(seq 300); do kubectl get ns stuck-$NS -o yaml | grep -q 'type: NamespaceFinalizersRemaining' \\
              && break; sleep 0.1; done");
        kubectl.shows(
            "kubectl get ns stuck-$NS -o jsonpath='{range .status.conditions[?(@.status==\"True\")]}{.type}: {.message}{\"\\n\"}{end}'",
            &[
                "NamespaceContentRemaining: Some resources are remaining: configmaps. has 1 resource instances",
                "NamespaceFinalizersRemaining: Some content in the namespace has finalizers remaining: \
                 example.com/hold in 1 resource instances",
            ],
        );
        let left = kubectl.ok("kubectl api-resources --verbs=list --namespaced -o name \
             | xargs -n 1 -P 4 kubectl get --show-kind --ignore-not-found -n stuck-$NS");
        assert!(left.contains("configmap/held"), "what holds it is found: {left}");
        // T-CLI-34: a PUT to finalize, whose response is printed; the remaining objects are abandoned.
        kubectl.shows(
            r#"kubectl get ns stuck-$NS -o json | sed 's/"kubernetes"//' > temp.json
               kubectl replace --raw /api/v1/namespaces/stuck-$NS/finalize -f temp.json"#,
            &[r#""kind":"Namespace""#, r#""phase":"Terminating""#],
        );
        kubectl.fails("kubectl get ns stuck-$NS", "not found");
    });
}

#[test]
fn a_pod_on_a_lost_node_can_be_force_deleted() {
    each_kubectl(|kubectl| {
        bound_pod(kubectl, "p");
        kubectl.ok("kubectl delete po p --wait=false");
        kubectl
            .shows("kubectl delete po p --grace-period=0 --force", &[r#"pod "p" force deleted"#]);
        kubectl.fails("kubectl get po p", "not found");
    });
}
