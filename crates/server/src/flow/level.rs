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
    /// Leases, which expire if they are not renewed in time.
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
            () if lease && matches!(verb, "get" | "create" | "update" | "patch") => {
                Level::LeaderElection
            }
            () => Level::Workload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// administrators, nodes and leases are served even when other users send too many requests.
    #[test]
    fn administrators_nodes_and_leases_have_levels_of_their_own() {
        let (admin, node, account) = (
            User::authenticated("kubernetes-admin", &["system:masters"]),
            User::authenticated("system:node:n1", &["system:nodes"]),
            User::authenticated("system:serviceaccount:default:x", &["system:serviceaccounts"]),
        );
        // Without the group it is not a node.
        let pretender = User::authenticated("system:node:n1", &[]);
        let lease = ("coordination.k8s.io", "leases");
        let pods = ("", "pods");
        for (user, in_process, verb, (group, resource), wanted) in [
            (&admin, false, "list", pods, Level::Exempt),
            (&account, true, "list", pods, Level::Exempt),
            (&node, false, "patch", pods, Level::System),
            (&node, false, "update", lease, Level::System),
            (&account, false, "update", lease, Level::LeaderElection),
            (&account, false, "get", lease, Level::LeaderElection),
            (&account, false, "list", lease, Level::Workload),
            (&account, false, "watch", lease, Level::Workload),
            (&account, false, "create", pods, Level::Workload),
            (&account, false, "update", ("example.com", "leases"), Level::Workload),
            (&pretender, false, "get", pods, Level::Workload),
            (&User::anonymous(), false, "get", pods, Level::Workload),
        ] {
            let request = RequestAttributes { user, in_process, verb, group, resource };
            assert_eq!(Level::of(request), wanted, "{request:?}");
        }
    }
}
