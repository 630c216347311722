//! What a node may do: what the role `system:node` allows. It may read secrets, volumes and other objects of pods
//! only if its own pods use them.
//!
//! Reads are decided by the [`NodeGraph`]; for writes, `server`'s NodeRestriction admission plugin checks the
//! object itself. After a denial here RBAC still decides. Upstream: `NodeAuthorizer`; the reasons are its own.

use super::node_graph::NodeGraph;
use super::rule::Rule;
use super::{Attributes, Decision};

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// `rules` are those of role `system:node`.
pub(super) fn decide(
    node: &str,
    request: &Attributes,
    rules: &[Rule],
    graph: Option<&dyn NodeGraph>,
) -> Decision {
    let decided = match (request.group, request.resource) {
        _ if !request.is_resource() => None,
        ("", "secrets" | "configmaps") => Some(read(node, request, graph)),
        ("", "persistentvolumeclaims") if request.subresource == "status" => {
            Some(write_status(node, request, graph))
        }
        ("", "persistentvolumeclaims" | "persistentvolumes")
        | ("resource.k8s.io", "resourceclaims")
        | ("storage.k8s.io", "volumeattachments") => Some(get(node, request, graph)),
        ("", "serviceaccounts") => Some(account(node, request, graph)),
        ("coordination.k8s.io", "leases") => Some(lease(node, request)),
        ("storage.k8s.io", "csinodes") => Some(csi_node(node, request)),
        ("resource.k8s.io", "resourceslices") => Some(slice(node, request, graph)),
        ("", "nodes") => Some(own_node(node, request)),
        ("", "pods") => Some(pod(node, request, graph)),
        _ => None,
    };
    match decided {
        Some(Ok(())) => Decision { allowed: true, reason: String::new() },
        Some(Err(reason)) => Decision { allowed: false, reason },
        None => Decision {
            allowed: rules.iter().any(|rule| rule.matches(request)),
            reason: String::new(),
        },
    }
}

type Decided = Result<(), String>;

fn no(why: &str) -> Decided {
    Err(why.to_owned())
}

fn read(node: &str, request: &Attributes, graph: Option<&dyn NodeGraph>) -> Decided {
    match request.verb {
        "get" | "list" | "watch" if !request.subresource.is_empty() => {
            no("cannot read subresource")
        }
        "get" | "list" | "watch" if request.namespace.is_empty() => {
            no("can only read namespaced object of this type")
        }
        "get" | "list" | "watch" => related(node, request, graph),
        _ => no("can only read resources of this type"),
    }
}

fn get(node: &str, request: &Attributes, graph: Option<&dyn NodeGraph>) -> Decided {
    match (request.verb, request.subresource) {
        ("get", "") => related(node, request, graph),
        ("get", _) => no("cannot get subresource"),
        _ => no("can only get individual resources of this type"),
    }
}

fn write_status(node: &str, request: &Attributes, graph: Option<&dyn NodeGraph>) -> Decided {
    match request.verb {
        "update" | "patch" => related(node, request, graph),
        _ => no("can only get/update/patch this type"),
    }
}

/// A service account and its tokens, if a pod of this node uses it.
fn account(node: &str, request: &Attributes, graph: Option<&dyn NodeGraph>) -> Decided {
    match (request.verb, request.subresource) {
        ("get", "") => related(node, request, graph),
        ("create", "token") if !request.name.is_empty() => related(node, request, graph),
        ("create", "token") => no("can only create tokens for individual service accounts"),
        ("create", _) => no("can only create token subresource of serviceaccount"),
        _ => no("can only create tokens for individual service accounts"),
    }
}

fn lease(node: &str, request: &Attributes) -> Decided {
    match request.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return no("can only get, create, update, patch, or delete a node lease"),
    }
    if request.namespace != LEASE_NAMESPACE {
        return Err(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
    }
    // On create the name is in the body, which NodeRestriction checks.
    if request.verb != "create" && request.name != node {
        return no("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn csi_node(node: &str, request: &Attributes) -> Decided {
    match request.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return no("can only get, create, update, patch, or delete a CSINode"),
    }
    if !request.subresource.is_empty() {
        return no("cannot authorize CSINode subresources");
    }
    if request.verb != "create" && request.name != node {
        return no("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

/// Compares the name and not the graph, so that a node can read its Node before it exists.
fn own_node(node: &str, request: &Attributes) -> Decided {
    match (request.subresource, request.verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match request.name {
            name if name == node => Ok(()),
            "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object")),
            other => Err(format!("node '{node}' cannot read '{other}', only its own Node object")),
        },
        _ => no(""),
    }
}

/// ResourceSlices describe the devices of a node.
fn slice(node: &str, request: &Attributes, graph: Option<&dyn NodeGraph>) -> Decided {
    if !request.subresource.is_empty() {
        return no("cannot authorize ResourceSlice subresources");
    }
    match request.verb {
        // On create the node's name is in the body, which NodeRestriction checks.
        "create" => Ok(()),
        "get" | "update" | "patch" | "delete" => related(node, request, graph),
        "list" | "watch" | "deletecollection" if selects_node(node, request) => Ok(()),
        "list" | "watch" | "deletecollection" => {
            no("can only list/watch/deletecollection resourceslices with nodeName field selector")
        }
        _ => no(
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
        ),
    }
}

/// Whether the field selector selects only this node.
fn selects_node(node: &str, request: &Attributes) -> bool {
    let own = |term: &str| match term.split_once('=') {
        Some(("spec.nodeName", value)) => value.strip_prefix('=').unwrap_or(value) == node,
        _ => false,
    };
    request.selector.split(',').any(own)
}

fn pod(node: &str, request: &Attributes, graph: Option<&dyn NodeGraph>) -> Decided {
    match (request.subresource, request.verb) {
        ("", "get") => related(node, request, graph),
        ("", "list" | "watch") if selects_node(node, request) => Ok(()),
        ("", "list" | "watch") if !request.name.is_empty() => related(node, request, graph),
        ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
            Ok(())
        }
        _ => no(""),
    }
}

fn related(node: &str, request: &Attributes, graph: Option<&dyn NodeGraph>) -> Decided {
    if request.name.is_empty() {
        return no("No Object name found");
    }
    let refers = |graph: &dyn NodeGraph| {
        graph.node_refers_to(node, request.resource, request.namespace, request.name)
    };
    match graph.is_some_and(refers) {
        true => Ok(()),
        false => Err(format!("no relationship found between node '{node}' and this object")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::node_graph::StoreNodeGraph;
    use super::super::node_graph::tests::{open, put};
    use super::*;
    use crate::authn::User;
    use serde_json::json;

    /// A pod `mine` on n1 and a pod `theirs` on n2, each with a secret and an account of that name.
    async fn graph() -> StoreNodeGraph<()> {
        let store = open();
        for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
            let pod = json!({"metadata": {"namespace": "ns", "name": name}, "spec": {
                "nodeName": node, "serviceAccountName": name,
                "volumes": [
                    {"name": "s", "secret": {"secretName": name}},
                    {"name": "m", "configMap": {"name": name}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": name}},
                ],
            }});
            put(&store, "pods", &format!("ns/{name}"), pod).await;
            let slice = json!({"metadata": {"name": name}, "spec": {"nodeName": node}});
            put(&store, "resource.k8s.io/resourceslices", name, slice).await;
        }
        StoreNodeGraph::of(&store)
    }

    /// `verb group/resource/subresource namespace name`, with `-` for nothing.
    fn request<'a>(user: &'a User, case: &'a str, selector: &'a str) -> Attributes<'a> {
        let nothing = |word: &'a str| if word == "-" { "" } else { word };
        let words: Vec<&str> = case.split(' ').map(nothing).collect();
        let mut target = words[1].splitn(3, '/').map(nothing);
        let mut part = || target.next().unwrap_or_default();
        let (group, resource) = (part(), part());
        Attributes {
            subresource: part(),
            namespace: words[2],
            name: words[3],
            selector,
            ..Attributes::resource(user, words[0], group, resource)
        }
    }

    /// A-154, T-API-35, A-7: requests of node n1, and the decisions.
    #[tokio::test]
    async fn a_node_reads_what_its_pods_need_and_nothing_else() {
        let graph = graph().await;
        let roles = crate::default_roles::cluster_roles();
        let role = roles.iter().find(|role| role["metadata"]["name"] == "system:node").unwrap();
        let rules: Vec<Rule> = Rule::all_of(role).collect();
        let user = User::authenticated("system:node:n1", &["system:nodes"]);
        let none = "no relationship found between node 'n1' and this object";
        let own = "node 'n1' cannot read 'n2', only its own Node object";
        let all = "node 'n1' cannot read all nodes, only its own Node object";
        let by_node = "can only list/watch pods with spec.nodeName field selector";
        let slices =
            "can only list/watch/deletecollection resourceslices with nodeName field selector";
        let tokens = "can only create tokens for individual service accounts";
        let leases = "can only access leases in the \"kube-node-lease\" system namespace";
        let its_lease = "can only access node lease with the same name as the requesting node";
        for (case, selector, expected) in [
            ("get -/secrets ns mine", "", Ok(())),
            ("list -/secrets ns mine", "metadata.name=mine", Ok(())),
            ("watch -/configmaps ns mine", "metadata.name=mine", Ok(())),
            ("get -/secrets ns theirs", "", Err(none)),
            ("get -/configmaps ns theirs", "", Err(none)),
            ("get -/secrets other mine", "", Err(none)),
            ("list -/secrets ns -", "", Err("No Object name found")),
            ("list -/secrets - -", "", Err("can only read namespaced object of this type")),
            ("update -/secrets ns mine", "", Err("can only read resources of this type")),
            ("delete -/configmaps ns mine", "", Err("can only read resources of this type")),
            ("get -/persistentvolumeclaims ns mine", "", Ok(())),
            ("get -/persistentvolumeclaims ns theirs", "", Err(none)),
            (
                "list -/persistentvolumeclaims ns mine",
                "",
                Err("can only get individual resources of this type"),
            ),
            ("patch -/persistentvolumeclaims/status ns mine", "", Ok(())),
            ("patch -/persistentvolumeclaims/status ns theirs", "", Err(none)),
            ("get -/persistentvolumes - any", "", Err(none)),
            ("get storage.k8s.io/volumeattachments - any", "", Err(none)),
            ("create -/serviceaccounts/token ns mine", "", Ok(())),
            ("create -/serviceaccounts/token ns theirs", "", Err(none)),
            ("create -/serviceaccounts/token ns -", "", Err(tokens)),
            (
                "create -/serviceaccounts ns x",
                "",
                Err("can only create token subresource of serviceaccount"),
            ),
            ("list -/serviceaccounts ns -", "", Err(tokens)),
            ("get -/pods ns mine", "", Ok(())),
            ("get -/pods ns theirs", "", Err(none)),
            ("list -/pods - -", "spec.nodeName=n1", Ok(())),
            ("watch -/pods - -", "metadata.namespace=ns,spec.nodeName==n1", Ok(())),
            ("list resource.k8s.io/resourceslices - -", "spec.nodeName=n1", Ok(())),
            ("deletecollection resource.k8s.io/resourceslices - -", "spec.nodeName=n1", Ok(())),
            ("list resource.k8s.io/resourceslices - -", "", Err(slices)),
            ("watch resource.k8s.io/resourceslices - -", "spec.nodeName=n2", Err(slices)),
            ("create resource.k8s.io/resourceslices - -", "", Ok(())),
            ("get resource.k8s.io/resourceslices - mine", "", Ok(())),
            ("get resource.k8s.io/resourceslices - theirs", "", Err(none)),
            ("delete resource.k8s.io/resourceslices - theirs", "", Err(none)),
            ("watch -/pods ns mine", "metadata.name=mine", Ok(())),
            ("watch -/pods ns theirs", "metadata.name=theirs", Err(none)),
            ("list -/pods - -", "", Err(by_node)),
            ("list -/pods - -", "spec.nodeName=n2", Err(by_node)),
            ("list -/pods - -", "spec.nodeName!=n1", Err(by_node)),
            ("patch -/pods/status ns mine", "", Ok(())),
            ("patch -/pods ns mine", "", Err("")),
            ("get -/nodes - n1", "", Ok(())),
            ("watch -/nodes - n1", "metadata.name=n1", Ok(())),
            ("get -/nodes - n2", "", Err(own)),
            ("list -/nodes - -", "", Err(all)),
            ("patch -/nodes/status - n1", "", Ok(())),
            ("delete -/nodes - n1", "", Err("")),
            ("update coordination.k8s.io/leases kube-node-lease n1", "", Ok(())),
            ("create coordination.k8s.io/leases kube-node-lease -", "", Ok(())),
            ("update coordination.k8s.io/leases kube-node-lease n2", "", Err(its_lease)),
            ("get coordination.k8s.io/leases kube-system n1", "", Err(leases)),
            (
                "list coordination.k8s.io/leases kube-node-lease -",
                "",
                Err("can only get, create, update, patch, or delete a node lease"),
            ),
            (
                "get storage.k8s.io/csinodes - n2",
                "",
                Err("can only access CSINode with the same name as the requesting node"),
            ),
            // For other resources the role decides.
            ("list -/services - -", "", Ok(())),
            ("delete -/services ns s", "", Err("")),
            ("create -/events ns -", "", Ok(())),
        ] {
            let request = request(&user, case, selector);
            let Decision { allowed, reason } = decide("n1", &request, &rules, Some(&graph));
            let decided = if allowed { Ok(()) } else { Err(reason.as_str()) };
            assert_eq!(decided, expected, "{case} {selector}");
        }
    }
}
