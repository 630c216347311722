//! All roles and bindings, indexed by subject, so that a check reads only what is granted to the caller (A-182).

use super::aggregation::{self, Roles};
use super::node_graph::NodeGraph;
use super::rule::Rule;
use super::{Attributes, Decision, node};
use crate::authn::{MASTERS, User};
use api::value::ValueExt as _;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

const NODE_ROLE: &str = "system:node";

/// The rules of a role, or why it was not found.
type RoleRules = Result<Arc<[Rule]>, Arc<str>>;

/// What one binding gives one subject.
#[derive(Debug, Clone)]
struct Grant {
    /// `ClusterRoleBinding "b" of ClusterRole "r" to Group "g"`
    description: Arc<str>,
    rules: RoleRules,
}

/// Grants by subject. Service accounts are users with their full name.
#[derive(Debug, Default, Clone)]
struct Grants {
    users: HashMap<String, Vec<Grant>>,
    groups: HashMap<String, Vec<Grant>>,
}

impl Grants {
    fn of<'p>(&'p self, user: &User) -> impl Iterator<Item = &'p Grant> {
        let own = self.users.get(&user.name);
        let shared = user.groups.iter().filter_map(|group| self.groups.get(group));
        own.into_iter().chain(shared).flatten()
    }
}

#[derive(Debug, Default, Clone)]
pub struct Policy {
    everywhere: Grants,
    namespaces: HashMap<String, Grants>,
    cluster_roles: HashMap<String, Arc<[Rule]>>,
    roles: HashMap<(String, String), Arc<[Rule]>>,
    node_graph: Option<Arc<dyn NodeGraph>>,
}

impl Policy {
    pub fn build<'a>(
        cluster_roles: impl IntoIterator<Item = &'a Value>,
        cluster_role_bindings: impl IntoIterator<Item = &'a Value>,
        roles: impl IntoIterator<Item = &'a Value>,
        role_bindings: impl IntoIterator<Item = &'a Value>,
    ) -> Policy {
        let mut policy = Policy::default();
        let by_name: Roles = cluster_roles
            .into_iter()
            .map(|role| (role.text(&["metadata", "name"]), role))
            .collect();
        for (name, role) in &by_name {
            let rules = aggregation::rules_of(role, &by_name);
            let rules = rules.into_iter().map(Rule::from_json).collect();
            policy.cluster_roles.insert((*name).to_owned(), rules);
        }
        for role in roles {
            let (namespace, name) = namespace_and_name(role);
            let rules = Rule::all_of(role).collect();
            policy.roles.insert((namespace.to_owned(), name.to_owned()), rules);
        }
        for binding in cluster_role_bindings {
            policy.bind("", binding);
        }
        for binding in role_bindings {
            let (namespace, _) = namespace_and_name(binding);
            if !namespace.is_empty() {
                policy.bind(namespace, binding);
            }
        }
        policy
    }

    /// Without a graph no node may read any object of another owner.
    pub fn with_node_graph(self, graph: Arc<dyn NodeGraph>) -> Policy {
        Policy { node_graph: Some(graph), ..self }
    }

    fn bind(&mut self, namespace: &str, binding: &Value) {
        let (kind, role) = (binding.text(&["roleRef", "kind"]), binding.text(&["roleRef", "name"]));
        let rules = match (kind, namespace) {
            // A ClusterRoleBinding cannot refer to a Role in a namespace.
            ("Role", "") => return,
            _ => self.role_rules(kind, namespace, role),
        };
        let name = binding.text(&["metadata", "name"]);
        let what = if namespace.is_empty() {
            format!("ClusterRoleBinding {name:?} of {kind} {role:?}")
        } else {
            format!("RoleBinding \"{name}/{namespace}\" of {kind} {role:?}")
        };
        let grants = match namespace {
            "" => &mut self.everywhere,
            _ => self.namespaces.entry(namespace.to_owned()).or_default(),
        };
        for subject in binding.get("subjects").and_then(Value::as_array).into_iter().flatten() {
            let name = subject.text(&["name"]);
            let (map, key, to) = match subject.text(&["kind"]) {
                "User" => (&mut grants.users, name.to_owned(), format!("User {name:?}")),
                "Group" => (&mut grants.groups, name.to_owned(), format!("Group {name:?}")),
                "ServiceAccount" => {
                    let home = match subject.text(&["namespace"]) {
                        "" => namespace,
                        given => given,
                    };
                    let key = format!("system:serviceaccount:{home}:{name}");
                    (&mut grants.users, key, format!("ServiceAccount \"{name}/{home}\""))
                }
                _ => continue,
            };
            let description = format!("{what} to {to}").into();
            map.entry(key).or_default().push(Grant { description, rules: rules.clone() });
        }
    }

    /// The rules that a role reference stands for. The error has the words of upstream's lister.
    pub(super) fn role_rules(&self, kind: &str, namespace: &str, name: &str) -> RoleRules {
        let found = match kind {
            "ClusterRole" => self.cluster_roles.get(name),
            "Role" => self.roles.get(&(namespace.to_owned(), name.to_owned())),
            _ => return Err(format!("unsupported role reference kind: {kind:?}").into()),
        };
        found.cloned().ok_or_else(|| {
            let kind = kind.to_lowercase();
            format!("{kind}.rbac.authorization.k8s.io {name:?} not found").into()
        })
    }

    /// The grants that apply to this user in this namespace ("" for cluster-scoped requests).
    fn grants<'p>(&'p self, user: &User, namespace: &str) -> impl Iterator<Item = &'p Grant> {
        let local = self.namespaces.get(namespace).into_iter().flat_map(|own| own.of(user));
        self.everywhere.of(user).chain(local)
    }

    pub fn allows(&self, request: &Attributes) -> Decision {
        if request.user.in_group(MASTERS) {
            return Decision { allowed: true, reason: String::new() };
        }
        let as_node = self.as_node(request);
        if as_node.allowed {
            return as_node;
        }
        let mut missing: Vec<&str> = Vec::new();
        for grant in self.grants(request.user, request.namespace) {
            match &grant.rules {
                Ok(rules) if rules.iter().any(|rule| rule.matches(request)) => {
                    let reason = format!("RBAC: allowed by {}", grant.description);
                    return Decision { allowed: true, reason };
                }
                Ok(_) => {}
                Err(why) if missing.contains(&&**why) => {}
                Err(why) => missing.push(why),
            }
        }
        let by_roles = match missing.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        };
        let reasons: Vec<String> =
            [as_node.reason, by_roles].into_iter().filter(|why| !why.is_empty()).collect();
        Decision { allowed: false, reason: reasons.join("\n") }
    }

    /// Nodes have the role `system:node` without any binding, restricted by the node authorizer.
    fn as_node(&self, request: &Attributes) -> Decision {
        let rules = self.cluster_roles.get(NODE_ROLE);
        match (request.user.node_name(), rules) {
            (Some(name), Some(rules)) => {
                node::decide(name, request, rules, self.node_graph.as_deref())
            }
            _ => Decision::default(),
        }
    }

    /// Every rule the user has in this namespace, cluster-wide ones included.
    pub fn rules_for(&self, user: &User, namespace: &str) -> Vec<&Rule> {
        let node = user.node_name().and_then(|_| self.cluster_roles.get(NODE_ROLE));
        let granted = self.grants(user, namespace).filter_map(|grant| grant.rules.as_ref().ok());
        node.into_iter().chain(granted).flat_map(|rules| rules.iter()).collect()
    }

    /// Roles that are bound to the user but do not exist.
    pub fn unresolved(&self, user: &User, namespace: &str) -> Vec<&str> {
        self.grants(user, namespace)
            .filter_map(|grant| grant.rules.as_ref().err())
            .map(|why| &**why)
            .collect()
    }
}

fn namespace_and_name(object: &Value) -> (&str, &str) {
    (object.text(&["metadata", "namespace"]), object.text(&["metadata", "name"]))
}
