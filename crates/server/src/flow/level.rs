//! The priority level of a request.

use access::authn::{MASTERS, User};

/// What the level depends on: the attributes that upstream's FlowSchemas match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestAttributes<'a> {
    pub(crate) user: &'a User,
    /// From a component of this process, which is part of the control plane.
    pub(crate) in_process: bool,
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
}

/// Named after upstream's priority levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Never limited: administrators and the control plane itself.
    Exempt,
    /// Nodes.
    System,
    /// Leases of the control plane, which expire if they are not renewed in time.
    LeaderElection,
    /// Everybody else.
    Workload,
}

impl Level {
    pub(crate) fn of(request: RequestAttributes<'_>) -> Level {
        let RequestAttributes { user, in_process, verb, group, resource } = request;
        let lease = group == "coordination.k8s.io" && resource == "leases";
        match () {
            () if in_process || user.in_group(MASTERS) => Level::Exempt,
            () if user.node_name().is_some() => Level::System,
            () if lease && matches!(verb, "get" | "create" | "update") && elects_leaders(user) => {
                Level::LeaderElection
            }
            () => Level::Workload,
        }
    }
}

/// Upstream's FlowSchemas `system-leader-election` and `workload-leader-election` match these users. Other users
/// with rights on leases could take all seats of the level.
fn elects_leaders(user: &User) -> bool {
    matches!(&*user.name, "system:kube-controller-manager" | "system:kube-scheduler")
        || user.name.starts_with("system:serviceaccount:kube-system:")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// administrators, nodes and leases are served even when other users send too many requests.
    #[test]
    fn administrators_nodes_and_leases_have_levels_of_their_own() {
        let (admin, node) = (
            User::authenticated("kubernetes-admin", &["system:masters"]),
            User::authenticated("system:node:n1", &["system:nodes"]),
        );
        let account = |name: &str| User::authenticated(name, &["system:serviceaccounts"]);
        let system = account("system:serviceaccount:kube-system:x");
        let similar = account("system:serviceaccount:kube-system-2:x");
        let account = account("system:serviceaccount:default:x");
        let manager = User::authenticated("system:kube-controller-manager", &[]);
        let scheduler = User::authenticated("system:kube-scheduler", &[]);
        // Without the group it is not a node.
        let pretender = User::authenticated("system:node:n1", &[]);
        let lease = ("coordination.k8s.io", "leases");
        let pods = ("", "pods");
        for (user, in_process, verb, (group, resource), wanted) in [
            (&admin, false, "list", pods, Level::Exempt),
            (&account, true, "list", pods, Level::Exempt),
            (&node, false, "patch", pods, Level::System),
            (&node, false, "update", lease, Level::System),
            (&system, false, "update", lease, Level::LeaderElection),
            (&system, false, "get", lease, Level::LeaderElection),
            (&manager, false, "create", lease, Level::LeaderElection),
            (&scheduler, false, "update", lease, Level::LeaderElection),
            (&account, false, "update", lease, Level::Workload),
            (&account, false, "get", lease, Level::Workload),
            (&similar, false, "update", lease, Level::Workload),
            (&User::authenticated("alice", &[]), false, "create", lease, Level::Workload),
            (&system, false, "patch", lease, Level::Workload),
            (&system, false, "list", lease, Level::Workload),
            (&system, false, "watch", lease, Level::Workload),
            (&system, false, "create", pods, Level::Workload),
            (&scheduler, false, "create", pods, Level::Workload),
            (&system, false, "update", ("example.com", "leases"), Level::Workload),
            (&pretender, false, "get", pods, Level::Workload),
            (&User::anonymous(), false, "get", pods, Level::Workload),
        ] {
            let request = RequestAttributes { user, in_process, verb, group, resource };
            assert_eq!(Level::of(request), wanted, "{request:?}");
        }
    }
}
