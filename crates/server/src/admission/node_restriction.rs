//! NodeRestriction: a node writes only what is its own (A-154, T-API-35).
//!
//! Its role lets a node write Nodes, Leases and pods; here it is held to its own Node, its own
//! Lease, the pods bound to it, their endings, and tokens for these. Not here: which secrets a node may read.

use super::{is_mirror, refuse, resource};
use crate::authn::NODES;
use crate::call::{Call, name_of};
use crate::error::{ApiError, Result};
use crate::object::{Stored, store_name};
use api::value::ValueExt;
use lifecycle::timeline::{Step, Steps, Subject, What};
use serde_json::Value;

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The node that is asking.
pub(super) struct Node<'a> {
    name: &'a str,
}

impl<'a> Node<'a> {
    /// None if the caller is not a node.
    pub(super) fn of(call: &'a Call) -> Result<Option<Node<'a>>> {
        if let Some(name) = call.user.node_name() {
            return Ok(Some(Node { name }));
        }
        if call.user.in_group(NODES) {
            let why = format!("could not determine node from user {:?}", call.user.name);
            return Err(ApiError::forbidden(&call.kind, &call.target.name, &why));
        }
        Ok(None)
    }

    pub(super) fn check_create(&self, call: &Call, object: &Value) -> Result<()> {
        let problem = match resource(call) {
            ("", "pods") => self.new_pod(object),
            ("", "nodes") => {
                self.own_name("node", name_of(object)).or_else(|| self.labels(object, None))
            }
            _ => self.other(call, name_of(object)),
        };
        problem.map_or(Ok(()), |why| Err(refuse(call, object, why)))
    }

    pub(super) fn check_update(&self, call: &Call, new: &Value, old: &Value) -> Result<()> {
        let problem = match resource(call) {
            ("", "pods") => self.pod_status(new, old),
            ("", "nodes") => self
                .own_name("node", name_of(old))
                .or_else(|| self.taints(new, old))
                .or_else(|| self.labels(new, Some(old))),
            _ => self.other(call, name_of(old)),
        };
        problem.map_or(Ok(()), |why| Err(refuse(call, new, why)))
    }

    pub(super) fn check_delete(&self, call: &Call, name: &str) -> Result<()> {
        let problem = match resource(call) {
            ("", "pods") => self.bound_elsewhere(call, name).then(|| {
                format!(
                    "node {:?} can only delete pods with spec.nodeName set to itself",
                    self.name
                )
            }),
            ("", "nodes") => self.own_name("node", name),
            _ => self.other(call, name),
        };
        problem.map_or(Ok(()), |why| Err(ApiError::forbidden(&call.kind, name, &why)))
    }

    /// Evictions, and what else is posted to a pod.
    pub(super) fn check_posted(&self, call: &Call) -> Result<()> {
        let name = &call.target.name;
        if resource(call) == ("", "pods") && self.bound_elsewhere(call, name) {
            let why =
                format!("node {} can only evict pods with spec.nodeName set to itself", self.name);
            return Err(ApiError::forbidden(&call.kind, name, &why));
        }
        Ok(())
    }

    /// A node tells of the pods bound to it, and its proxy of packets to anybody's.
    pub(super) fn check_steps(&self, call: &Call, steps: &Steps, subject: &Subject) -> Result<()> {
        let problem = self.own_steps(steps, subject);
        let refused = |why: String| ApiError::forbidden(&call.kind, &call.target.name, &why);
        problem.map_or(Ok(()), |why| Err(refused(why)))
    }

    fn own_steps(&self, steps: &Steps, subject: &Subject) -> Option<String> {
        let (node, proxy) = (format!("node/{}", self.name), format!("proxy/{}", self.name));
        let packets = |step: &Step| matches!(step.what, What::RulesCommitted { .. });
        for step in &steps.steps {
            let own = step.actor == node || (step.actor == proxy && packets(step));
            if !own {
                return Some(format!("node {:?} cannot speak for {:?}", self.name, step.actor));
            }
            if step.actor == node && subject.node != self.name {
                let only = "can only tell of pods with spec.nodeName set to itself";
                return Some(format!("node {:?} {only}", self.name));
            }
        }
        None
    }

    /// A token speaks for a service account: a node gets those of the pods it runs.
    pub(super) fn check_token(&self, call: &Call, request: &Value) -> Result<()> {
        let forbidden = |why: &str| Err(ApiError::forbidden(&call.kind, &call.target.name, why));
        let bound = request.at(&["spec", "boundObjectRef"]).cloned().unwrap_or_default();
        let name = bound.text(&["name"]);
        let is_pod = bound.text(&["kind"]) == "Pod" && bound.text(&["apiVersion"]) == "v1";
        if !is_pod || name.is_empty() {
            return forbidden("node requested token not bound to a pod");
        }
        if bound.text(&["uid"]).is_empty() {
            return forbidden("node requested token with a pod binding without a uid");
        }
        let pod = call.store().get("pods", &store_name(&call.target.namespace, name));
        match pod {
            // Whether it is there, and is the one that is meant, is asked when the token is made.
            Some(pod) if pod.value().text(&["spec", "nodeName"]) != self.name => {
                forbidden("node requested token bound to a pod scheduled on a different node")
            }
            _ => Ok(()),
        }
    }

    /// A pod that is not there is nobody's: the verb will say so.
    fn bound_elsewhere(&self, call: &Call, name: &str) -> bool {
        let key = store_name(&call.target.namespace, name);
        let pod = call.store().get("pods", &key);
        pod.is_some_and(|pod| pod.field(&call.kind, "spec.nodeName") != Some(self.name))
    }

    fn new_pod(&self, pod: &Value) -> Option<String> {
        if !is_mirror(pod) {
            return Some(format!(
                "pod does not have {:?} annotation, node {:?} can only create mirror pods",
                super::MIRROR,
                self.name
            ));
        }
        let only =
            |what: &str| Some(format!("node {:?} can only create pods with {what}", self.name));
        if pod.text(&["spec", "nodeName"]) != self.name {
            return only("spec.nodeName set to itself");
        }
        let owners = pod.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
        match owners.map(Vec::as_slice).unwrap_or_default() {
            [] => {}
            [owner] => {
                let own = owner.text(&["apiVersion"]) == "v1"
                    && owner.text(&["kind"]) == "Node"
                    && owner.text(&["name"]) == self.name;
                if !own {
                    return only("an owner reference set to itself");
                }
                if owner["controller"] != Value::Bool(true) {
                    return only("a controller owner reference set to itself");
                }
            }
            _ => return only("a single owner reference set to itself"),
        }
        let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array);
        let mut volumes = volumes.into_iter().flatten();
        let claims = volumes.any(|volume| volume.at(&["persistentVolumeClaim"]).is_some());
        claims.then(|| {
            let what = "persistentvolumeclaims";
            format!("node {:?} can not create pods that reference {what}", self.name)
        })
    }

    fn pod_status(&self, new: &Value, old: &Value) -> Option<String> {
        if old.text(&["spec", "nodeName"]) != self.name {
            return Some(format!(
                "node {:?} can only update pod status for pods with spec.nodeName set to itself",
                self.name
            ));
        }
        (new.at(&["metadata", "labels"]) != old.at(&["metadata", "labels"]))
            .then(|| format!("node {:?} cannot update labels through pod status", self.name))
    }

    fn own_name(&self, kind: &str, name: &str) -> Option<String> {
        (name != self.name)
            .then(|| format!("node {:?} is not allowed to modify {kind} {name:?}", self.name))
    }

    fn taints(&self, new: &Value, old: &Value) -> Option<String> {
        (new.at(&["spec", "taints"]) != old.at(&["spec", "taints"]))
            .then(|| format!("node {:?} is not allowed to modify taints", self.name))
    }

    /// Workloads are kept away from nodes by labels that a node cannot give itself.
    fn labels(&self, new: &Value, old: Option<&Value>) -> Option<String> {
        let of = |node: &Value| {
            node.at(&["metadata", "labels"]).and_then(Value::as_object).cloned().unwrap_or_default()
        };
        let (new, old_labels) = (of(new), old.map(of).unwrap_or_default());
        let keys = new.keys().chain(old_labels.keys());
        let changed: std::collections::BTreeSet<&str> = keys
            .filter(|key| new.get(*key) != old_labels.get(*key))
            .map(String::as_str)
            .filter(|key| !is_nodes_own(key))
            .collect();
        if changed.is_empty() {
            return None;
        }
        let verb = if old.is_some() { "modify labels" } else { "set the following labels" };
        let list: Vec<&str> = changed.into_iter().collect();
        Some(format!("node {:?} is not allowed to {verb}: {}", self.name, list.join(", ")))
    }

    fn other(&self, call: &Call, name: &str) -> Option<String> {
        match resource(call) {
            ("coordination.k8s.io", "leases") if call.target.namespace != LEASE_NAMESPACE => {
                Some(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"))
            }
            ("coordination.k8s.io", "leases") if name != self.name => {
                Some("can only access node lease with the same name as the requesting node".into())
            }
            ("storage.k8s.io", "csinodes") if name != self.name => {
                Some("can only access CSINode with the same name as the requesting node".into())
            }
            _ => None,
        }
    }
}

/// Labels outside Kubernetes' own domains are free; inside, a node describes itself with these.
fn is_nodes_own(label: &str) -> bool {
    const OWN: [&str; 11] = [
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    ];
    let Some((domain, _)) = label.split_once('/') else { return true };
    let within = |parent: &str| {
        domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    if within("node-restriction.kubernetes.io") {
        return false;
    }
    !(within("kubernetes.io") || within("k8s.io"))
        || OWN.contains(&label)
        || within("kubelet.kubernetes.io")
        || within("node.kubernetes.io")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NODE: Node = Node { name: "n1" };

    #[test]
    fn a_154_a_node_creates_only_mirror_pods_of_its_own() {
        let mirror = json!({"kubernetes.io/config.mirror": "x"});
        for (annotations, node, said) in [
            (mirror.clone(), "n1", None),
            (
                mirror,
                "n2",
                Some("node \"n1\" can only create pods with spec.nodeName set to itself"),
            ),
            (
                json!({}),
                "n1",
                Some(
                    "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
                ),
            ),
        ] {
            let pod = json!({"metadata": {"annotations": annotations}, "spec": {"nodeName": node}});
            assert_eq!(NODE.new_pod(&pod).as_deref(), said);
        }
    }

    #[test]
    fn t_api_35_a_node_writes_the_status_of_its_own_pods_only() {
        let pod = |node: &str, label: &str| json!({"metadata": {"labels": {"a": label}}, "spec": {"nodeName": node}});
        assert_eq!(NODE.pod_status(&pod("n1", "1"), &pod("n1", "1")), None);
        assert_eq!(
            NODE.pod_status(&pod("n2", "1"), &pod("n2", "1")).unwrap(),
            "node \"n1\" can only update pod status for pods with spec.nodeName set to itself"
        );
        assert_eq!(
            NODE.pod_status(&pod("n1", "2"), &pod("n1", "1")).unwrap(),
            "node \"n1\" cannot update labels through pod status"
        );
    }

    #[test]
    fn a_154_a_node_does_not_give_itself_labels_that_keep_workloads_apart() {
        for (label, own) in [
            ("rack", true),
            ("example.com/rack", true),
            ("kubernetes.io/hostname", true),
            ("node.kubernetes.io/anything", true),
            ("x.kubelet.kubernetes.io/anything", true),
            ("node-restriction.kubernetes.io/tier", false),
            ("a.node-restriction.kubernetes.io/tier", false),
            ("node-role.kubernetes.io/control-plane", false),
            ("foo.k8s.io/bar", false),
            ("mykubernetes.io/bar", true),
        ] {
            assert_eq!(is_nodes_own(label), own, "{label}");
        }
        let node = json!({"metadata": {"labels": {"foo.k8s.io/bar": "1"}}});
        assert_eq!(
            NODE.labels(&node, None).unwrap(),
            "node \"n1\" is not allowed to set the following labels: foo.k8s.io/bar"
        );
        assert_eq!(NODE.labels(&node, Some(&node)), None);
    }
}
