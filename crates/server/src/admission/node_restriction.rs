//! NodeRestriction: a node may write only its own objects (A-154, T-API-35).
//!
//! The role of nodes allows writing Nodes, Leases and pods. This plugin restricts a node to its own Node, its own Lease,
//! the pods bound to it, their termination records, tokens for them, its drain participant, and its EndpointSlice of the
//! Service `kube-dns`.
//! Not here: what a node may read (`access::authz`).

use super::mirror_references::{self, Problem};
use super::{audience, certificate, refuse, resource};
use crate::background::dns_service;
use crate::object::{Stored, store_name};
use crate::request::call::{Call, name_of};
use crate::response::error::{ApiError, Result};
use access::authn::NODES;
use access::authz::{MIRROR_ANNOTATION, is_mirror_pod};
use api::value::ValueExt;
use lifecycle::timeline::{Step, StepKind, Steps, Subject};
use serde_json::{Value, json};

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The drain participant of a node is named `node.NAME`.
const NODE_PARTICIPANT: &str = "node.";

/// Signers whose certificates authenticate as a node.
const NODE_SIGNERS: [&str; 2] =
    ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];

/// The node that is the caller.
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
            ("", "pods") => {
                let node = call.store().get("nodes", self.name);
                self.new_pod(object, node.as_ref().map(|node| node.meta().uid.as_str()))
            }
            ("", "nodes") => self
                .own_name(name_of(object))
                .or_else(|| self.config_source(object, None))
                .or_else(|| self.labels(object, None)),
            ("", "persistentvolumeclaims") => Some("may only update PVC status".into()),
            ("resource.k8s.io", "resourceslices") => self.slice("create", object),
            ("discovery.k8s.io", "endpointslices") => self
                .dns_slice_name(&call.target.namespace, name_of(object))
                .or_else(|| self.dns_slice(object)),
            ("certificates.k8s.io", "certificatesigningrequests") => self.own_certificate(object),
            _ => self.other(call, name_of(object)),
        };
        problem.map_or(Ok(()), |why| Err(refuse(call, object, why)))
    }

    pub(super) fn check_update(&self, call: &Call, new: &Value, old: &Value) -> Result<()> {
        let problem = match resource(call) {
            ("", "pods") => match call.target.subresource.as_str() {
                "status" => self.pod_status(new, old),
                "" => Some(format!(
                    "unexpected operation \"UPDATE\", node {:?} can only create and delete mirror pods",
                    self.name
                )),
                other => Some(format!(
                    "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
                )),
            },
            ("", "nodes") => self
                .own_name(name_of(old))
                .or_else(|| self.config_source(new, Some(old)))
                .or_else(|| self.unchanged(new, old, &["spec", "taints"]))
                .or_else(|| self.unchanged(new, old, &["metadata", "ownerReferences"]))
                .or_else(|| self.labels(new, Some(old))),
            ("", "persistentvolumeclaims") if call.target.subresource == "status" => {
                self.claim_status(new, old)
            }
            ("", "persistentvolumeclaims") => Some("may only update PVC status".into()),
            ("discovery.k8s.io", "endpointslices") => self
                .dns_slice_name(&call.target.namespace, name_of(old))
                .or_else(|| self.dns_slice(new)),
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
            ("", "nodes") => self.own_name(name),
            ("", "persistentvolumeclaims") => Some("may only update PVC status".into()),
            ("resource.k8s.io", "resourceslices") => {
                let stored = call.store().get(&call.kind.storage.collection, name);
                stored.and_then(|stored| self.slice("delete", &stored.value()))
            }
            ("discovery.k8s.io", "endpointslices") => {
                self.dns_slice_name(&call.target.namespace, name)
            }
            _ => self.other(call, name),
        };
        problem.map_or(Ok(()), |why| Err(ApiError::forbidden(&call.kind, name, &why)))
    }

    /// POST to a subresource of a pod, such as an eviction.
    pub(super) fn check_posted(&self, call: &Call) -> Result<()> {
        let name = &call.target.name;
        if resource(call) == ("", "pods") && self.bound_elsewhere(call, name) {
            let why =
                format!("node {} can only evict pods with spec.nodeName set to itself", self.name);
            return Err(ApiError::forbidden(&call.kind, name, &why));
        }
        Ok(())
    }

    /// A node may post steps of pods bound to it, and its proxy steps of any pod.
    pub(super) fn check_steps(&self, call: &Call, steps: &Steps, subject: &Subject) -> Result<()> {
        let problem = self.own_steps(steps, subject);
        let refused = |why: String| ApiError::forbidden(&call.kind, &call.target.name, &why);
        problem.map_or(Ok(()), |why| Err(refused(why)))
    }

    fn own_steps(&self, steps: &Steps, subject: &Subject) -> Option<String> {
        let (node, proxy) = (format!("node/{}", self.name), format!("proxy/{}", self.name));
        let packets = |step: &Step| matches!(step.what, StepKind::RulesCommitted { .. });
        for step in &steps.steps {
            let own = step.actor == node || (step.actor == proxy && packets(step));
            if !own {
                return Some(format!("node {:?} cannot post steps of {:?}", self.name, step.actor));
            }
            if step.actor == node && subject.node != self.name {
                let only = "can only post steps of pods with spec.nodeName set to itself";
                return Some(format!("node {:?} {only}", self.name));
            }
        }
        None
    }

    /// A node may request tokens only for the service accounts of its pods.
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
        let stored = call.store().get("pods", &store_name(&call.target.namespace, name));
        // Whether the pod exists and has that uid is checked when the token is issued.
        let Some(stored) = stored else { return Ok(()) };
        let pod = stored.value();
        if pod.text(&["spec", "nodeName"]) != self.name {
            return forbidden("node requested token bound to a pod scheduled on a different node");
        }
        audience::check(call, &pod, request).or_else(|why| forbidden(&why))
    }

    /// False if the pod does not exist: the verb then returns the error.
    fn bound_elsewhere(&self, call: &Call, name: &str) -> bool {
        let key = store_name(&call.target.namespace, name);
        let pod = call.store().get("pods", &key);
        pod.is_some_and(|pod| pod.field(&call.kind, "spec.nodeName") != Some(self.name))
    }

    /// `uid` is that of the Node object, if it exists.
    fn new_pod(&self, pod: &Value, uid: Option<&str>) -> Option<String> {
        if !is_mirror_pod(pod) {
            return Some(format!(
                "pod does not have {:?} annotation, node {:?} can only create mirror pods",
                MIRROR_ANNOTATION, self.name
            ));
        }
        let only =
            |what: &str| Some(format!("node {:?} can only create pods with {what}", self.name));
        if pod.text(&["spec", "nodeName"]) != self.name {
            return only("spec.nodeName set to itself");
        }
        let owners = pod.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
        match owners.map(Vec::as_slice).unwrap_or_default() {
            [] => return only("an owner reference set to itself"),
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
                if owner["blockOwnerDeletion"] == Value::Bool(true) {
                    let not = "must not set blockOwnerDeletion on an owner reference";
                    return Some(format!("node {:?} {not}", self.name));
                }
                let (given, uid) = (owner.text(&["uid"]), uid.unwrap_or_default());
                if given != uid {
                    let node = self.name;
                    return Some(format!("node {node} UID mismatch: expected {given} got {uid}"));
                }
            }
            _ => return only("a single owner reference set to itself"),
        }
        mirror_references::first(pod).map(|problem| match problem {
            Problem::Refers(resource) => {
                format!("node {:?} can not create pods that reference {resource}", self.name)
            }
            Problem::Unknown(why) => format!("error checking mirror pod for API references: {why}"),
        })
    }

    fn slice(&self, verb: &str, slice: &Value) -> Option<String> {
        let own = slice.text(&["spec", "nodeName"]) == self.name;
        let only = "ResourceSlice with the same NodeName as the requesting node";
        (!own).then(|| format!("can only {verb} {only}"))
    }

    fn dns_slice_name(&self, namespace: &str, name: &str) -> Option<String> {
        let own = format!("{}-{}", dns_service::NAME, self.name);
        let in_place = namespace == dns_service::NAMESPACE && name == own;
        let space = dns_service::NAMESPACE;
        (!in_place).then(|| {
            format!("node {:?} can only write the EndpointSlice {own:?} in {space:?}", self.name)
        })
    }

    /// The slice must belong to the Service `kube-dns`, and must not attract queries of pods whose own node answers them: a
    /// zone hint counts only on nodes without an endpoint of their own (NET-25).
    fn dns_slice(&self, slice: &Value) -> Option<String> {
        let service = slice.text(&["metadata", "labels", "kubernetes.io/service-name"]);
        if service != dns_service::NAME {
            return Some(format!(
                "node {:?} can only write EndpointSlices with the label kubernetes.io/service-name={}",
                self.name,
                dns_service::NAME
            ));
        }
        let nodes = json!([{ "name": self.name }]);
        let own = |endpoint: &Value| {
            endpoint.text(&["nodeName"]) == self.name && endpoint["hints"]["forNodes"] == nodes
        };
        let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
        (!endpoints.iter().all(own)).then(|| {
            format!(
                "node {:?} can only write endpoints with nodeName and hints.forNodes set to itself",
                self.name
            )
        })
    }

    /// A node may request only its own certificate.
    fn own_certificate(&self, request: &Value) -> Option<String> {
        if !NODE_SIGNERS.contains(&request.text(&["spec", "signerName"])) {
            return None;
        }
        let own = format!("system:node:{}", self.name);
        match certificate::common_name(request.text(&["spec", "request"])) {
            None => Some("unable to parse csr: not a certificate request".into()),
            Some(name) if name != own => Some(format!("can only create a node CSR with CN={own}")),
            Some(_) => None,
        }
    }

    /// A node may update only the observed size of a volume.
    fn claim_status(&self, new: &Value, old: &Value) -> Option<String> {
        let rest = |claim: &Value| {
            let mut claim = claim.clone();
            for field in ["resourceVersion", "managedFields"] {
                claim.object("metadata").remove(field);
            }
            let status = claim.object("status");
            for field in
                ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"]
            {
                status.remove(field);
            }
            claim
        };
        (rest(new) != rest(old)).then(|| {
            format!(
                "node {:?} is not allowed to update fields other than status.quantity and status.conditions",
                self.name
            )
        })
    }

    fn pod_status(&self, new: &Value, old: &Value) -> Option<String> {
        if old.text(&["spec", "nodeName"]) != self.name {
            return Some(format!(
                "node {:?} can only update pod status for pods with spec.nodeName set to itself",
                self.name
            ));
        }
        let differs = |path: &[&str]| new.at(path) != old.at(path);
        let cannot = |what: &str| Some(format!("node {:?} cannot update {what}", self.name));
        if differs(&["metadata", "labels"]) {
            return cannot("labels through pod status");
        }
        if differs(&["status", "resourceClaimStatuses"]) {
            return cannot("resource claim statues");
        }
        if differs(&["status", "extendedResourceClaimStatus"]) {
            return cannot("extended resource claim status");
        }
        None
    }

    fn own_name(&self, name: &str) -> Option<String> {
        (name != self.name)
            .then(|| format!("node {:?} is not allowed to modify node {name:?}", self.name))
    }

    /// A node could read the ConfigMap that it names there.
    fn config_source(&self, new: &Value, old: Option<&Value>) -> Option<String> {
        let path = ["spec", "configSource"];
        let changed = |old: &Value| old.at(&path) != new.at(&path);
        if new.at(&path).is_none() || !old.is_none_or(changed) {
            return None;
        }
        let what = match old {
            None => "create pods with a non-nil configSource",
            Some(_) => "update configSource to a new non-nil configSource",
        };
        Some(format!("node {:?} is not allowed to {what}", self.name))
    }

    fn unchanged(&self, new: &Value, old: &Value, path: &[&str; 2]) -> Option<String> {
        (new.at(path) != old.at(path))
            .then(|| format!("node {:?} is not allowed to modify {}", self.name, path[1]))
    }

    /// Some labels keep workloads away from nodes, so a node must not set them itself.
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
        let list = changed.into_iter().collect::<Vec<_>>().join(", ");
        Some(match old {
            Some(_) => format!("is not allowed to modify labels: {list}"),
            None => {
                format!("node {:?} is not allowed to set the following labels: {list}", self.name)
            }
        })
    }

    fn other(&self, call: &Call, name: &str) -> Option<String> {
        match resource(call) {
            ("coordination.k8s.io", "leases") if call.target.namespace != LEASE_NAMESPACE => {
                Some(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"))
            }
            ("coordination.k8s.io", "leases") if name != self.name => {
                Some("can only access node lease with the same name as the requesting node".into())
            }
            ("landfall.dev", "drainparticipants")
                if name.strip_prefix(NODE_PARTICIPANT) != Some(self.name) =>
            {
                Some(format!(
                    "can only access the drain participant {NODE_PARTICIPANT}{}",
                    self.name
                ))
            }
            ("storage.k8s.io", "csinodes") if name != self.name => {
                Some("can only access CSINode with the same name as the requesting node".into())
            }
            _ => None,
        }
    }
}

/// A node may set labels outside Kubernetes' own domains, and these inside.
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

    const NODE: Node = Node { name: "n1" };

    #[test]
    fn a_node_may_write_only_its_own_slice_of_the_dns_service() {
        for (namespace, name, allowed) in [
            ("kube-system", "kube-dns-n1", true),
            ("kube-system", "kube-dns-n2", false),
            ("kube-system", "kube-dns", false),
            ("kube-system", "web", false),
            ("default", "kube-dns-n1", false),
            ("default", "kubernetes", false),
        ] {
            assert_eq!(
                NODE.dns_slice_name(namespace, name).is_none(),
                allowed,
                "{namespace}/{name}"
            );
        }
        let slice = |service: &str, node: &str, hints: Value| {
            json!({"metadata": {"labels": {"kubernetes.io/service-name": service}},
                   "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": node, "hints": hints}]})
        };
        let own = json!({"forNodes": [{"name": "n1"}]});
        let both = json!({"forNodes": [{"name": "n1"}, {"name": "n2"}]});
        let zone = json!({"forNodes": [{"name": "n1"}], "forZones": [{"name": "z"}]});
        for (slice, allowed) in [
            (slice("kube-dns", "n1", own.clone()), true),
            (slice("other", "n1", own.clone()), false),
            (slice("kube-dns", "n2", own), false),
            (slice("kube-dns", "n1", both), false),
            (slice("kube-dns", "n1", zone), true),
            (slice("kube-dns", "n1", json!({"forZones": [{"name": "z"}]})), false),
            (slice("kube-dns", "n1", Value::Null), false),
            (json!({"metadata": {"labels": {"kubernetes.io/service-name": "kube-dns"}}}), true),
        ] {
            assert_eq!(NODE.dns_slice(&slice).is_none(), allowed, "{slice}");
        }
    }

    #[test]
    fn a_154_a_node_may_create_only_its_own_mirror_pods() {
        let owner = || json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true});
        let owned = |change: fn(&mut Value)| {
            let mut owner = owner();
            change(&mut owner);
            json!({"metadata": {"ownerReferences": [owner]}})
        };
        let only = |what: &str| Some(format!("node \"n1\" can only create pods with {what}"));
        for (change, expected) in [
            (json!({}), None),
            (json!({"spec": {"nodeName": "n2"}}), only("spec.nodeName set to itself")),
            (
                json!({"metadata": {"annotations": null}}),
                Some("pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods".into()),
            ),
            (
                json!({"metadata": {"ownerReferences": null}}),
                only("an owner reference set to itself"),
            ),
            (
                json!({"metadata": {"ownerReferences": []}}),
                only("an owner reference set to itself"),
            ),
            (
                json!({"metadata": {"ownerReferences": [owner(), owner()]}}),
                only("a single owner reference set to itself"),
            ),
            (owned(|o| o["name"] = "n2".into()), only("an owner reference set to itself")),
            (owned(|o| o["kind"] = "Pod".into()), only("an owner reference set to itself")),
            (
                owned(|o| o["controller"] = false.into()),
                only("a controller owner reference set to itself"),
            ),
            (
                owned(|o| o["blockOwnerDeletion"] = true.into()),
                Some("node \"n1\" must not set blockOwnerDeletion on an owner reference".into()),
            ),
            (
                owned(|o| o["uid"] = "u2".into()),
                Some("node n1 UID mismatch: expected u2 got u1".into()),
            ),
            (
                json!({"spec": {"imagePullSecrets": [{"name": "s"}]}}),
                Some("node \"n1\" can not create pods that reference secrets".into()),
            ),
        ] {
            let mut pod = json!({
                "metadata": {"annotations": {"kubernetes.io/config.mirror": "x"},
                             "ownerReferences": [owner()]},
                "spec": {"nodeName": "n1"}});
            pod = api::patch::merge(&pod, &change).unwrap();
            assert_eq!(NODE.new_pod(&pod, Some("u1")), expected, "{change}");
        }
    }

    #[test]
    fn a_154_a_node_may_write_only_its_own_slices_and_certificates() {
        let slice = |node: &str| json!({"spec": {"nodeName": node}});
        assert_eq!(NODE.slice("create", &slice("n1")), None);
        for other in [slice("n2"), json!({"spec": {"allNodes": true}})] {
            assert_eq!(
                NODE.slice("delete", &other).unwrap(),
                "can only delete ResourceSlice with the same NodeName as the requesting node"
            );
        }
        let request =
            |signer: &str, pem: &str| json!({"spec": {"signerName": signer, "request": pem}});
        assert_eq!(NODE.own_certificate(&request("example.com/any", "?")), None);
        let wrong = NODE.own_certificate(&request(NODE_SIGNERS[0], "?")).unwrap();
        assert_eq!(wrong, "unable to parse csr: not a certificate request");
    }

    #[test]
    fn a_154_a_node_may_change_only_observed_fields_of_its_node_and_claims() {
        let node = |more: Value| api::patch::merge(&json!({"spec": {}}), &more).unwrap();
        let source = node(json!({"spec": {"configSource": {"configMap": {}}}}));
        let plain = node(json!({}));
        assert!(NODE.config_source(&source, None).is_some());
        assert!(NODE.config_source(&source, Some(&plain)).is_some());
        assert_eq!(NODE.config_source(&source, Some(&source)), None);
        assert_eq!(NODE.config_source(&plain, Some(&source)), None);
        let owned = node(json!({"metadata": {"ownerReferences": [{"name": "x"}]}}));
        assert_eq!(
            NODE.unchanged(&owned, &plain, &["metadata", "ownerReferences"]).unwrap(),
            "node \"n1\" is not allowed to modify ownerReferences"
        );
        let claim = json!({"metadata": {"resourceVersion": "1"}, "status": {"phase": "Bound"}});
        let change = |more: Value| {
            NODE.claim_status(&api::patch::merge(&claim, &more).unwrap(), &claim).is_some()
        };
        assert!(!change(json!({"status": {"capacity": {"storage": "2Gi"}, "conditions": [{}]}})));
        assert!(!change(json!({"metadata": {"resourceVersion": null}})));
        assert!(change(json!({"status": {"phase": "Lost"}})));
        assert!(change(json!({"metadata": {"labels": {"a": "b"}}})));
    }

    #[test]
    fn t_api_35_a_node_may_write_the_status_of_its_own_pods_only() {
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
    fn a_154_a_node_cannot_set_labels_that_isolate_workloads() {
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
