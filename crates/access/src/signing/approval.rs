//! Which requests are approved without a person: those of nodes, and of users who may create nodes.
//!
//! Client certificates are approved as upstream does (C-148). Upstream leaves serving certificates to people; here
//! a node gets one for its own name and addresses, so that `kubectl logs` works without manual approval.
//! A node reports its addresses itself. Its report is not enough for names and addresses of an API server (clients
//! that trust the CA would take the node for the server) or of other Nodes. Nothing is denied: a request that is
//! not approved waits for a person (`kubectl certificate approve`).

use super::requested_certificate::RequestedCertificate;
use super::signer::Signer;
use crate::authn::{NODES, User};
use api::value::ValueExt as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A node has a name and a few addresses. Each is compared with those of all other nodes, so requests with more
/// are left to a person.
const NAMES_MAX: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// With this message.
    Approve(&'static str),
    /// Not approved yet, with the reason. It is decided again when roles or Nodes change, or a person decides.
    Wait(String),
    /// Only a person can approve it. Says why.
    LeaveToPerson(String),
}

/// Names of Nodes by an address that they report.
pub type NodesByAddress = BTreeMap<IpAddr, Vec<String>>;

/// What a decision needs to know besides the request itself.
pub struct ClusterView<'a> {
    /// Whether a user may create that subresource of signing requests.
    pub may_create: &'a dyn Fn(&User, &str) -> bool,
    /// Whether clients reach an API server by that name or address.
    pub is_api_server: &'a dyn Fn(&str) -> bool,
    /// The addresses of the Node of that name, if it exists.
    pub node_addresses: &'a dyn Fn(&str) -> Option<Vec<IpAddr>>,
    /// The Nodes that report one of these addresses.
    pub nodes_at: &'a dyn Fn(&[IpAddr]) -> NodesByAddress,
}

pub(super) fn judge(
    request: &Value,
    signer: Signer,
    requested: &Result<RequestedCertificate, String>,
    cluster: &ClusterView,
) -> Verdict {
    if signer == Signer::Client {
        return Verdict::LeaveToPerson(
            "a person has to approve client certificates of users".into(),
        );
    }
    let requested = match requested {
        Ok(requested) => requested,
        Err(why) => return Verdict::LeaveToPerson(why.clone()),
    };
    if let Err(why) = signer.check(requested, request) {
        return Verdict::LeaveToPerson(why);
    }
    let requester = requester(request);
    match signer {
        Signer::NodeClient => client(&requester, requested, cluster.may_create),
        _ => serving(&requester, requested, cluster),
    }
}

fn client(
    requester: &User,
    requested: &RequestedCertificate,
    may_create: &dyn Fn(&User, &str) -> bool,
) -> Verdict {
    if requester.name == requested.name && may_create(requester, "selfnodeclient") {
        let message = "Auto approving self kubelet client certificate after SubjectAccessReview.";
        return Verdict::Approve(message);
    }
    if may_create(requester, "nodeclient") {
        let message = "Auto approving kubelet client certificate after SubjectAccessReview.";
        return Verdict::Approve(message);
    }
    Verdict::Wait(format!("{:?} may not request certificates for nodes", requester.name))
}

fn serving(requester: &User, requested: &RequestedCertificate, cluster: &ClusterView) -> Verdict {
    let own =
        requested.node().filter(|_| requester.in_group(NODES) && requester.name == requested.name);
    let Some(own) = own else {
        return Verdict::LeaveToPerson(format!(
            "{:?} is not the node that the certificate names",
            requester.name
        ));
    };
    if requested.names().count() > NAMES_MAX {
        return Verdict::LeaveToPerson(format!("it has more than {NAMES_MAX} names and addresses"));
    }
    // The Node may not exist yet: a new node gets its certificate first.
    let own_addresses = (cluster.node_addresses)(own);
    let nodes = (cluster.nodes_at)(&requested.ips);
    let another_has =
        |address| nodes.get(&address).is_some_and(|nodes| nodes.iter().any(|node| node != own));
    let is_own = |name: &str| match name.parse::<IpAddr>() {
        Ok(address) => {
            own_addresses.as_ref().is_none_or(|known| known.contains(&address))
                && !another_has(address)
        }
        Err(_) => name == own,
    };
    let foreign = requested.names().filter(|name| (cluster.is_api_server)(name) || !is_own(name));
    let foreign: Vec<String> = foreign.collect();
    match foreign.is_empty() {
        true => Verdict::Approve("Auto approving kubelet serving certificate of the node itself."),
        false => Verdict::Wait(format!(
            "node {own:?} can only have a serving certificate for its own name and addresses, \
             not for {}",
            foreign.join(", ")
        )),
    }
}

/// The addresses that a Node reports.
pub fn addresses_of_node(node: &Value) -> Vec<IpAddr> {
    let addresses = node.at(&["status", "addresses"]).and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten();
    let parsed = addresses.filter_map(|address| address.text(&["address"]).parse().ok());
    parsed.map(|address: IpAddr| address.to_canonical()).collect()
}

/// The user who created the request, as the server recorded it.
fn requester(request: &Value) -> User {
    let groups = request.at(&["spec", "groups"]).and_then(Value::as_array);
    let groups = groups.into_iter().flatten().filter_map(Value::as_str);
    User {
        name: request.text(&["spec", "username"]).to_owned(),
        uid: request.text(&["spec", "uid"]).to_owned(),
        groups: groups.map(str::to_owned).collect(),
        ..User::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const BOOTSTRAPPER: &str = "system:bootstrap:abcdef";
    const API: &str = "192.0.2.100";

    fn requested(name: &str, dns: &[&str], ips: &[&str]) -> RequestedCertificate {
        RequestedCertificate {
            name: name.into(),
            groups: vec![NODES.into()],
            dns: dns.iter().map(|name| (*name).to_owned()).collect(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..RequestedCertificate::default()
        }
    }

    fn verdict(
        signer: Signer,
        who: &str,
        usages: &[&str],
        requested: RequestedCertificate,
    ) -> Verdict {
        let node = who.starts_with("system:node:");
        let groups = if node { json!([NODES]) } else { json!([]) };
        let request = json!({"spec": {"username": who, "groups": groups, "usages": usages}});
        let may = |user: &User, right: &str| match right {
            "selfnodeclient" => user.in_group(NODES),
            _ => user.name == BOOTSTRAPPER,
        };
        let n1 = json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.1"},
            // A Node may report any address, so this proves nothing.
            {"type": "ExternalIP", "address": API},
            {"type": "Hostname", "address": "kubernetes"}]}});
        let cluster = ClusterView {
            may_create: &may,
            is_api_server: &|name| ["kubernetes", "localhost", "server", API].contains(&name),
            node_addresses: &|name| (name == "n1").then(|| addresses_of_node(&n1)),
            nodes_at: &|_| [("192.0.2.3".parse().unwrap(), vec!["n3".into()])].into(),
        };
        judge(&request, signer, &Ok(requested), &cluster)
    }

    fn client(who: &str, requested: RequestedCertificate) -> Verdict {
        verdict(Signer::NodeClient, who, &["digital signature", "client auth"], requested)
    }

    fn serving(who: &str, requested: RequestedCertificate) -> Verdict {
        verdict(Signer::NodeServing, who, &["digital signature", "server auth"], requested)
    }

    #[test]
    fn c_148_a_bootstrap_token_gets_node_certificates_and_a_node_renews_its_own() {
        assert_eq!(
            client(BOOTSTRAPPER, requested("system:node:n1", &[], &[])),
            Verdict::Approve(
                "Auto approving kubelet client certificate after SubjectAccessReview."
            )
        );
        assert_eq!(
            client("system:node:n1", requested("system:node:n1", &[], &[])),
            Verdict::Approve(
                "Auto approving self kubelet client certificate after SubjectAccessReview."
            )
        );
        for who in ["system:node:n1", "ana"] {
            let why = format!("{who:?} may not request certificates for nodes");
            assert_eq!(client(who, requested("system:node:n2", &[], &[])), Verdict::Wait(why));
        }
    }

    #[test]
    fn c_148_other_client_certificates_are_left_to_a_person_with_the_reason() {
        let leave = |why: &str| Verdict::LeaveToPerson(why.into());
        let name = "system:node:n1";
        assert_eq!(
            client(BOOTSTRAPPER, requested("kubernetes-admin", &[], &[])),
            leave("subject common name does not begin with system:node:")
        );
        assert_eq!(
            client(BOOTSTRAPPER, requested("system:node:No Name", &[], &[])),
            leave("subject common name does not name a node: \"No Name\"")
        );
        for groups in [vec!["system:masters"], vec![NODES, "system:masters"], vec![]] {
            let groups = groups.into_iter().map(str::to_owned).collect();
            let bold = RequestedCertificate { groups, ..requested(name, &[], &[]) };
            assert_eq!(
                client(BOOTSTRAPPER, bold),
                leave("subject organization is not system:nodes")
            );
        }
        assert_eq!(
            client(BOOTSTRAPPER, requested(name, &["n1"], &[])),
            leave("DNS subjectAltNames are not allowed")
        );
        let usages = ["digital signature", "client auth", "server auth"];
        assert_eq!(
            verdict(Signer::NodeClient, BOOTSTRAPPER, &usages, requested(name, &[], &[])),
            leave("usages did not match: \"server auth\" is not allowed")
        );
    }

    /// C-148: no serving certificate for names or addresses of others.
    #[test]
    fn a_node_gets_a_serving_certificate_for_its_own_name_and_addresses_only() {
        let n1 = "system:node:n1";
        let good = "Auto approving kubelet serving certificate of the node itself.";
        assert_eq!(serving(n1, requested(n1, &["n1"], &["192.0.2.1"])), Verdict::Approve(good));
        for (dns, ips, named) in [
            (&["n1", "n2"][..], &[][..], "n2"),
            (&["n1"], &["192.0.2.1", "192.0.2.9"], "192.0.2.9"),
            (&["kubernetes"], &[], "kubernetes"),
            (&["n1"], &[API], API),
        ] {
            let why = format!(
                "node \"n1\" can only have a serving certificate for its own name and addresses, not for {named}"
            );
            assert_eq!(serving(n1, requested(n1, dns, ips)), Verdict::Wait(why));
        }
    }

    /// C-148: a node without a Node object may name its addresses, but not those of an API server.
    #[test]
    fn a_new_node_may_name_its_addresses_but_not_those_of_the_api_server() {
        let new = "system:node:new";
        let good = "Auto approving kubelet serving certificate of the node itself.";
        assert_eq!(serving(new, requested(new, &["new"], &["192.0.2.9"])), Verdict::Approve(good));
        for (dns, ips) in [(&["n1"][..], &[][..]), (&[], &[API]), (&[], &["192.0.2.3"])] {
            assert!(matches!(serving(new, requested(new, dns, ips)), Verdict::Wait(_)));
        }
        for name in ["kubernetes", "localhost", "server"] {
            let named = format!("system:node:{name}");
            assert!(matches!(serving(&named, requested(&named, &[name], &[])), Verdict::Wait(_)));
        }
    }

    #[test]
    fn a_serving_certificate_for_too_many_addresses_is_left_to_a_person() {
        let new = "system:node:new";
        let addresses: Vec<String> = (1..=64).map(|last| format!("198.51.100.{last}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let good =
            Verdict::Approve("Auto approving kubelet serving certificate of the node itself.");
        assert_eq!(serving(new, requested(new, &["new"], &addresses[..63])), good);
        let many = Verdict::LeaveToPerson("it has more than 64 names and addresses".into());
        assert_eq!(serving(new, requested(new, &["new"], &addresses)), many);
    }

    #[test]
    fn a_serving_certificate_for_another_node_is_left_to_a_person() {
        let n1 = requested("system:node:n1", &["n1"], &[]);
        let leave = |who: &str| {
            Verdict::LeaveToPerson(format!("{who:?} is not the node that the certificate names"))
        };
        assert_eq!(serving("system:node:n2", n1), leave("system:node:n2"));
        assert_eq!(serving("ana", requested("system:node:n1", &["n1"], &[])), leave("ana"));
    }
}
