//! What a node may do: its role in general, and of other people's objects only what its pods need.
//!
//! Reading goes by [`Relations`]; for writing, NodeRestriction looks at the object itself
//! (`admission::node_restriction`). A refusal here is no last word: RBAC is asked next. Upstream:
//! `NodeAuthorizer`, whose reasons these are.

use super::relations::Relations;
use super::rule::Rule;
use super::{Attributes, Decision};

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// `rules` are those of role `system:node`.
pub(super) fn decide(
    node: &str,
    wanted: &Attributes,
    rules: &[Rule],
    relations: Option<&Relations>,
) -> Decision {
    let judged = match (wanted.group, wanted.resource) {
        _ if !wanted.is_resource() => None,
        ("", "secrets" | "configmaps") => Some(read(node, wanted, relations)),
        ("", "persistentvolumeclaims") if wanted.subresource == "status" => {
            Some(write_status(node, wanted, relations))
        }
        ("", "persistentvolumeclaims" | "persistentvolumes")
        | ("resource.k8s.io", "resourceclaims")
        | ("storage.k8s.io", "volumeattachments") => Some(get(node, wanted, relations)),
        ("", "serviceaccounts") => Some(account(node, wanted, relations)),
        ("coordination.k8s.io", "leases") => Some(lease(node, wanted)),
        ("storage.k8s.io", "csinodes") => Some(csi_node(node, wanted)),
        ("", "nodes") => Some(own_node(node, wanted)),
        ("", "pods") => Some(pod(node, wanted, relations)),
        _ => None,
    };
    match judged {
        Some(Ok(())) => Decision { allowed: true, reason: String::new() },
        Some(Err(reason)) => Decision { allowed: false, reason },
        None => Decision {
            allowed: rules.iter().any(|rule| rule.matches(wanted)),
            reason: String::new(),
        },
    }
}

type Judged = Result<(), String>;

fn no(why: &str) -> Judged {
    Err(why.to_owned())
}

fn read(node: &str, wanted: &Attributes, relations: Option<&Relations>) -> Judged {
    match wanted.verb {
        "get" | "list" | "watch" if !wanted.subresource.is_empty() => no("cannot read subresource"),
        "get" | "list" | "watch" if wanted.namespace.is_empty() => {
            no("can only read namespaced object of this type")
        }
        "get" | "list" | "watch" => related(node, wanted, relations),
        _ => no("can only read resources of this type"),
    }
}

fn get(node: &str, wanted: &Attributes, relations: Option<&Relations>) -> Judged {
    match (wanted.verb, wanted.subresource) {
        ("get", "") => related(node, wanted, relations),
        ("get", _) => no("cannot get subresource"),
        _ => no("can only get individual resources of this type"),
    }
}

fn write_status(node: &str, wanted: &Attributes, relations: Option<&Relations>) -> Judged {
    match wanted.verb {
        "update" | "patch" => related(node, wanted, relations),
        _ => no("can only get/update/patch this type"),
    }
}

/// A token of an account, and the account itself, if a pod here runs as it.
fn account(node: &str, wanted: &Attributes, relations: Option<&Relations>) -> Judged {
    match (wanted.verb, wanted.subresource) {
        ("get", "") => related(node, wanted, relations),
        ("create", "token") if !wanted.name.is_empty() => related(node, wanted, relations),
        ("create", "token") => no("can only create tokens for individual service accounts"),
        ("create", _) => no("can only create token subresource of serviceaccount"),
        _ => no("can only create tokens for individual service accounts"),
    }
}

fn lease(node: &str, wanted: &Attributes) -> Judged {
    match wanted.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return no("can only get, create, update, patch, or delete a node lease"),
    }
    if wanted.namespace != LEASE_NAMESPACE {
        return Err(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
    }
    // Whoever creates says the name in the body: NodeRestriction reads it.
    if wanted.verb != "create" && wanted.name != node {
        return no("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn csi_node(node: &str, wanted: &Attributes) -> Judged {
    match wanted.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return no("can only get, create, update, patch, or delete a CSINode"),
    }
    if !wanted.subresource.is_empty() {
        return no("cannot authorize CSINode subresources");
    }
    if wanted.verb != "create" && wanted.name != node {
        return no("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

/// The name, not the index, so that a node can look for itself before it is there.
fn own_node(node: &str, wanted: &Attributes) -> Judged {
    match (wanted.subresource, wanted.verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match wanted.name {
            name if name == node => Ok(()),
            "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object")),
            other => Err(format!("node '{node}' cannot read '{other}', only its own Node object")),
        },
        _ => no(""),
    }
}

fn pod(node: &str, wanted: &Attributes, relations: Option<&Relations>) -> Judged {
    match (wanted.subresource, wanted.verb) {
        ("", "get") => related(node, wanted, relations),
        ("", "list" | "watch") => {
            let own = |term: &str| match term.split_once('=') {
                Some(("spec.nodeName", value)) => value.strip_prefix('=').unwrap_or(value) == node,
                _ => false,
            };
            match wanted.selector.split(',').any(own) {
                true => Ok(()),
                false => no("can only list/watch pods with spec.nodeName field selector"),
            }
        }
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
            Ok(())
        }
        _ => no(""),
    }
}

fn related(node: &str, wanted: &Attributes, relations: Option<&Relations>) -> Judged {
    if wanted.name.is_empty() {
        return no("No Object name found");
    }
    let holds = |relations: &Relations| {
        relations.hold(node, wanted.resource, wanted.namespace, wanted.name)
    };
    match relations.is_some_and(holds) {
        true => Ok(()),
        false => Err(format!("no relationship found between node '{node}' and this object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::User;
    use crate::object::{ENVELOPE, Store, draft};
    use serde_json::json;
    use store::{Backend, Change, Expect, Options, Write};

    /// A pod `mine` on n1 and a pod `theirs` on n2, each with a secret and an account of that name.
    async fn relations() -> Relations {
        let store = Store::open(Backend::Memory, Options::new(ENVELOPE)).await.unwrap();
        let registry = api::Registry::built_in();
        let kind = registry.resource("", "v1", "pods").unwrap();
        for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
            let pod = json!({"metadata": {"namespace": "ns", "name": name}, "spec": {
                "nodeName": node, "serviceAccountName": name,
                "volumes": [
                    {"name": "s", "secret": {"secretName": name}},
                    {"name": "m", "configMap": {"name": name}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": name}},
                ],
            }});
            let change = Change::Put(draft(kind, &pod));
            let (collection, name) = ("pods".into(), format!("ns/{name}"));
            let write = Write { collection, name, expect: Expect::Absent, change };
            assert!(store.write(write).await.is_ok());
        }
        Relations::of(&store)
    }

    /// A-154, T-API-35, A-7: what node n1 asks for, and what it is told.
    #[tokio::test]
    async fn a_node_reads_what_its_pods_need_and_nothing_else() {
        let relations = relations().await;
        let roles = crate::bootstrap::cluster_roles();
        let role = roles.iter().find(|role| role["metadata"]["name"] == "system:node").unwrap();
        let rules: Vec<Rule> = Rule::all_of(role).collect();
        let user = User::authenticated("system:node:n1", &["system:nodes"]);
        let none = "no relationship found between node 'n1' and this object";
        let own = "node 'n1' cannot read 'n2', only its own Node object";
        let all = "node 'n1' cannot read all nodes, only its own Node object";
        let by_node = "can only list/watch pods with spec.nodeName field selector";
        let tokens = "can only create tokens for individual service accounts";
        let leases = "can only access leases in the \"kube-node-lease\" system namespace";
        let its_lease = "can only access node lease with the same name as the requesting node";
        for (what, selector, said) in [
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
            // Nothing that is somebody's: the role decides.
            ("list -/services - -", "", Ok(())),
            ("delete -/services ns s", "", Err("")),
            ("create -/events ns -", "", Ok(())),
        ] {
            let words: Vec<&str> =
                what.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
            let mut target =
                words[1].splitn(3, '/').map(|part| if part == "-" { "" } else { part });
            let mut part = || target.next().unwrap_or_default();
            let (group, resource) = (part(), part());
            let wanted = Attributes {
                subresource: part(),
                namespace: words[2],
                name: words[3],
                selector,
                ..Attributes::resource(&user, words[0], group, resource)
            };
            let Decision { allowed, reason } = decide("n1", &wanted, &rules, Some(&relations));
            let decided = if allowed { Ok(()) } else { Err(reason.as_str()) };
            assert_eq!(decided, said, "{what} {selector}");
        }
    }
}
