//! `kubectl cordon` and `kubectl drain`.

use crate::harness::{Kubectl, each_kubectl};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// A node that exists only as an object, with pods that are bound to it.
fn node_with_pods(kubectl: &Kubectl, pods: &[&str]) -> String {
    let node = format!("node-of-{}", kubectl.namespace);
    kubectl.ok(&format!(
        "kubectl create --validate=false -f - <<END
apiVersion: v1
kind: Node
metadata: {{name: {node}}}
END"
    ));
    for pod in pods {
        kubectl.ok(&format!(
            r#"kubectl run {pod} --image=nginx --labels=app=drained
            kubectl create --raw /api/v1/namespaces/$NS/pods/{pod}/binding -f - <<END
{{"apiVersion": "v1", "kind": "Binding", "metadata": {{"name": "{pod}"}}, "target": {{"kind": "Node", "name": "{node}"}}}}
END"#
        ));
    }
    node
}

/// T-CLI-36: cordon sets spec.unschedulable and prints what it did.
#[test]
fn t_cli_36_a_node_is_cordoned_and_uncordoned() {
    each_kubectl(|kubectl| {
        let node = node_with_pods(kubectl, &[]);
        kubectl.prints(&format!("kubectl cordon {node}"), &format!("node/{node} cordoned"));
        kubectl.prints(&format!("kubectl cordon {node}"), &format!("node/{node} already cordoned"));
        // T-CLI-25: the status of the node shows SchedulingDisabled.
        kubectl.shows(&format!("kubectl get no {node}"), &[&node, ",SchedulingDisabled"]);
        kubectl.prints(&format!("kubectl uncordon {node}"), &format!("node/{node} uncordoned"));
        kubectl.prints(
            &format!("kubectl taint node {node} a=b:NoSchedule"),
            &format!("node/{node} tainted"),
        );
        kubectl.shows(&format!("kubectl delete no {node}"), &[&format!("node \"{node}\" deleted")]);
    });
}

/// T-CLI-37, T-CLI-40: drain refuses pods that it would lose, then evicts all and waits.
#[test]
fn t_cli_37_and_40_a_drain_refuses_then_evicts_and_waits() {
    each_kubectl(|kubectl| {
        let node = node_with_pods(kubectl, &["a"]);
        kubectl.fails(
            &format!("kubectl drain {node}"),
            "annot delete Pods", // A drain without --force refuses to delete pods without a controller.
        );
        kubectl.prints("kubectl get po a -o jsonpath='{.metadata.deletionTimestamp}'", "");
        let mut drain = kubectl.spawn(&format!("exec kubectl drain {node} --force"));
        drain.line(&format!("evicting pod {}/a", kubectl.namespace), SOON);
        // The node reports that the pod has terminated.
        kubectl.ok("kubectl wait --for=jsonpath='{.metadata.deletionGracePeriodSeconds}'=30 po/a --timeout=30s \
            || until kubectl get po a | grep Terminating; do :; done
            kubectl delete po a --force --grace-period=0");
        drain.line("pod/a evicted", SOON);
        assert_eq!(drain.exit(SOON), Some(0), "{}", drain.stderr());
        kubectl.ok(&format!("kubectl delete no {node}"));
    });
}

/// T-CLI-39: drain retries an eviction that a PodDisruptionBudget blocks.
#[test]
fn t_cli_39_a_drain_retries_an_eviction_that_a_budget_blocks() {
    each_kubectl(|kubectl| {
        if kubectl.is_before(24) {
            return; // It knows budgets of policy/v1beta1 only, and cannot write a status.
        }
        let node = node_with_pods(kubectl, &["a"]);
        kubectl.ok(r#"kubectl create pdb tight --selector=app=drained --min-available=1
            kubectl patch pdb tight --subresource=status --type=merge -p '{"status":
                {"observedGeneration":1,"disruptionsAllowed":0,"currentHealthy":1,"desiredHealthy":1,"expectedPods":1}}'
            kubectl patch po a --subresource=status --type=merge -p '{"status":
                {"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'"#);
        let output = kubectl.run(&format!("kubectl drain {node} --force --timeout=2s"));
        assert_ne!(output.code, 0, "{output}");
        assert!(
            output
                .stderr
                .contains("Cannot evict pod as it would violate the pod's disruption budget."),
            "{output}"
        );
        kubectl.prints("kubectl get po a -o jsonpath='{.metadata.deletionTimestamp}'", "");
        // T-CLI-38: a drain without evictions ignores the budget.
        let mut drain =
            kubectl.spawn(&format!("exec kubectl drain {node} --force --disable-eviction"));
        kubectl.ok("until kubectl get po a | grep Terminating; do :; done
            kubectl delete po a --force --grace-period=0");
        assert_eq!(drain.exit(SOON), Some(0), "{}", drain.stderr());
        kubectl.ok(&format!("kubectl delete no {node}"));
    });
}
