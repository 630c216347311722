//! Which requests are approved without a person: those of nodes and of who may make nodes.
//!
//! Client certificates as upstream does (C-148). Serving certificates upstream leaves to people;
//! here a node gets one for its own name and addresses, or `kubectl logs` would need a ceremony.
//! A node says itself which addresses it has, so this keeps a node from taking another's name, not
//! from lying about where it is. Nothing is denied: what is not approved waits for a person, who may
//! know better (`kubectl certificate approve`).

use super::request::Asked;
use super::terms::Signer;
use crate::authn::{NODES, User};
use crate::pki::is_api_name;
use api::value::ValueExt as _;
use serde_json::Value;
use std::net::IpAddr;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// With this message.
    Approve(&'static str),
    /// Not as things are: rights and Nodes change. Says why. A person may decide meanwhile.
    NotYet(String),
    /// A person may decide, and nothing that happens elsewhere changes that. Says why.
    Leave(String),
}

/// `may` is whether a user may create that subresource of signing requests; `node` finds a Node.
pub(super) fn judge(
    request: &Value,
    signer: Signer,
    asked: &Result<Asked, String>,
    may: &dyn Fn(&User, &str) -> bool,
    node: &dyn Fn(&str) -> Option<Value>,
) -> Verdict {
    if signer == Signer::Client {
        return Verdict::Leave("certificates of people are for people to approve".into());
    }
    let asked = match asked {
        Ok(asked) => asked,
        Err(why) => return Verdict::Leave(why.clone()),
    };
    if let Err(why) = signer.check(asked, request) {
        return Verdict::Leave(why);
    }
    let requester = requester(request);
    match signer {
        Signer::NodeClient => client(&requester, asked, may),
        _ => serving(&requester, asked, node),
    }
}

fn client(requester: &User, asked: &Asked, may: &dyn Fn(&User, &str) -> bool) -> Verdict {
    if requester.name == asked.name && may(requester, "selfnodeclient") {
        let said = "Auto approving self kubelet client certificate after SubjectAccessReview.";
        return Verdict::Approve(said);
    }
    if may(requester, "nodeclient") {
        let said = "Auto approving kubelet client certificate after SubjectAccessReview.";
        return Verdict::Approve(said);
    }
    Verdict::NotYet(format!("{:?} may not make nodes", requester.name))
}

fn serving(requester: &User, asked: &Asked, node: &dyn Fn(&str) -> Option<Value>) -> Verdict {
    let own = asked.node().filter(|_| requester.in_group(NODES) && requester.name == asked.name);
    let Some(own) = own else {
        return Verdict::Leave(format!("{:?} is not the node it asks for", requester.name));
    };
    // The Node may not be there yet: a new one gets its certificate first.
    let addresses = node(own).map(|node| addresses(&node));
    let foreign = |name: &str| {
        let is_own = match name.parse::<IpAddr>() {
            Ok(address) => addresses.as_ref().is_none_or(|own| own.contains(&address)),
            Err(_) => name == own,
        };
        !is_own || is_api_name(name)
    };
    let foreign: Vec<String> = asked.names().filter(|name| foreign(name)).collect();
    match foreign.is_empty() {
        true => Verdict::Approve("Auto approving kubelet serving certificate of the node itself."),
        false => Verdict::NotYet(format!(
            "node {own:?} can only have a serving certificate for its own name and addresses, \
             not for {}",
            foreign.join(", ")
        )),
    }
}

fn addresses(node: &Value) -> Vec<IpAddr> {
    let addresses = node.at(&["status", "addresses"]).and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten();
    addresses.filter_map(|address| address.text(&["address"]).parse().ok()).collect()
}

/// Who asked, as the server wrote it down.
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

    fn asked(name: &str, dns: &[&str], ips: &[&str]) -> Asked {
        Asked {
            name: name.into(),
            groups: vec![NODES.into()],
            dns: dns.iter().map(|name| (*name).to_owned()).collect(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..Asked::default()
        }
    }

    fn verdict(signer: Signer, who: &str, usages: &[&str], asked: Asked) -> Verdict {
        let node = who.starts_with("system:node:");
        let groups = if node { json!([NODES]) } else { json!([]) };
        let request = json!({"spec": {"username": who, "groups": groups, "usages": usages}});
        let may = |user: &User, right: &str| match right {
            "selfnodeclient" => user.in_group(NODES),
            _ => user.name == BOOTSTRAPPER,
        };
        let known = |name: &str| {
            let addresses = json!([{"type": "InternalIP", "address": "192.0.2.1"},
                                   {"type": "Hostname", "address": "kubernetes"}]);
            (name == "n1").then(|| json!({"status": {"addresses": addresses}}))
        };
        judge(&request, signer, &Ok(asked), &may, &known)
    }

    fn client(who: &str, asked: Asked) -> Verdict {
        verdict(Signer::NodeClient, who, &["digital signature", "client auth"], asked)
    }

    fn serving(who: &str, asked: Asked) -> Verdict {
        verdict(Signer::NodeServing, who, &["digital signature", "server auth"], asked)
    }

    #[test]
    fn c_148_a_bootstrapper_makes_nodes_and_a_node_renews_itself() {
        assert_eq!(
            client(BOOTSTRAPPER, asked("system:node:n1", &[], &[])),
            Verdict::Approve(
                "Auto approving kubelet client certificate after SubjectAccessReview."
            )
        );
        assert_eq!(
            client("system:node:n1", asked("system:node:n1", &[], &[])),
            Verdict::Approve(
                "Auto approving self kubelet client certificate after SubjectAccessReview."
            )
        );
        for who in ["system:node:n1", "ana"] {
            let why = format!("{who:?} may not make nodes");
            assert_eq!(client(who, asked("system:node:n2", &[], &[])), Verdict::NotYet(why));
        }
    }

    #[test]
    fn c_148_what_is_not_a_nodes_certificate_is_left_to_a_person_with_the_reason() {
        let leave = |why: &str| Verdict::Leave(why.into());
        let name = "system:node:n1";
        assert_eq!(
            client(BOOTSTRAPPER, asked("kubernetes-admin", &[], &[])),
            leave("subject common name does not begin with system:node:")
        );
        assert_eq!(
            client(BOOTSTRAPPER, asked("system:node:No Name", &[], &[])),
            leave("subject common name does not name a node: \"No Name\"")
        );
        for groups in [vec!["system:masters"], vec![NODES, "system:masters"], vec![]] {
            let groups = groups.into_iter().map(str::to_owned).collect();
            let bold = Asked { groups, ..asked(name, &[], &[]) };
            assert_eq!(
                client(BOOTSTRAPPER, bold),
                leave("subject organization is not system:nodes")
            );
        }
        assert_eq!(
            client(BOOTSTRAPPER, asked(name, &["n1"], &[])),
            leave("DNS subjectAltNames are not allowed")
        );
        let usages = ["digital signature", "client auth", "server auth"];
        assert_eq!(
            verdict(Signer::NodeClient, BOOTSTRAPPER, &usages, asked(name, &[], &[])),
            leave("usages did not match: \"server auth\" is not allowed")
        );
    }

    #[test]
    fn a_node_serves_under_its_own_name_and_addresses_only() {
        let n1 = "system:node:n1";
        let good = "Auto approving kubelet serving certificate of the node itself.";
        assert_eq!(serving(n1, asked(n1, &["n1"], &["192.0.2.1"])), Verdict::Approve(good));
        for (dns, ips, named) in [
            (&["n1", "n2"][..], &[][..], "n2"),
            (&["n1"], &["192.0.2.1", "192.0.2.9"], "192.0.2.9"),
            // That a Node calls itself so does not make it so.
            (&["kubernetes"], &[], "kubernetes"),
        ] {
            let why = format!(
                "node \"n1\" can only have a serving certificate for its own name and addresses, not for {named}"
            );
            assert_eq!(serving(n1, asked(n1, dns, ips)), Verdict::NotYet(why));
        }
    }

    #[test]
    fn a_new_node_says_where_it_is_but_is_never_the_api_server() {
        let new = "system:node:new";
        let good = "Auto approving kubelet serving certificate of the node itself.";
        assert_eq!(serving(new, asked(new, &["new"], &["192.0.2.9"])), Verdict::Approve(good));
        for (dns, ips) in [(&["n1"][..], &[][..]), (&[], &["10.96.0.1"])] {
            assert!(matches!(serving(new, asked(new, dns, ips)), Verdict::NotYet(_)));
        }
        let named = "system:node:kubernetes";
        assert!(matches!(serving(named, asked(named, &["kubernetes"], &[])), Verdict::NotYet(_)));
    }

    #[test]
    fn a_serving_certificate_for_somebody_else_is_left_to_a_person() {
        let n1 = asked("system:node:n1", &["n1"], &[]);
        let leave = |who: &str| Verdict::Leave(format!("{who:?} is not the node it asks for"));
        assert_eq!(serving("system:node:n2", n1), leave("system:node:n2"));
        assert_eq!(serving("ana", asked("system:node:n1", &["n1"], &[])), leave("ana"));
    }
}
