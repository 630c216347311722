//! Which requests are approved without a person: those of nodes and of who may make nodes.
//!
//! Client certificates as upstream does (C-148). Serving certificates upstream leaves to people;
//! here a node gets one for its own name and addresses, or `kubectl logs` would need a ceremony.
//! A node says itself which addresses it has, so what it says is not believed where somebody else is
//! known to be: at the API server's names and addresses (who trusts the authority would take the node
//! for the server) and at those of other Nodes. Nothing is denied: what is not approved waits for a person, who may
//! know better (`kubectl certificate approve`).

use super::request::Asked;
use super::terms::Signer;
use crate::authn::{NODES, User};
use api::value::ValueExt as _;
use serde_json::Value;
use std::net::IpAddr;

/// A node has a name and a few addresses. Each is looked for at all others, so whoever wants more asks a
/// person.
const NAMES_MAX: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// With this message.
    Approve(&'static str),
    /// Not as things are: rights and Nodes change. Says why. A person may decide meanwhile.
    NotYet(String),
    /// A person may decide, and nothing that happens elsewhere changes that. Says why.
    Leave(String),
}

/// What decides besides the request itself.
pub(super) struct Surroundings<'a> {
    /// Whether a user may create that subresource of signing requests.
    pub(super) may: &'a dyn Fn(&User, &str) -> bool,
    /// Whether the API is reached by that name or address.
    pub(super) is_api: &'a dyn Fn(&str) -> bool,
    /// Where the Node of that name is, if there is one.
    pub(super) addresses: &'a dyn Fn(&str) -> Option<Vec<IpAddr>>,
    /// Whether a Node of another name is at that address.
    pub(super) is_anothers: &'a dyn Fn(IpAddr, &str) -> bool,
}

pub(super) fn judge(
    request: &Value,
    signer: Signer,
    asked: &Result<Asked, String>,
    around: &Surroundings,
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
        Signer::NodeClient => client(&requester, asked, around.may),
        _ => serving(&requester, asked, around),
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

fn serving(requester: &User, asked: &Asked, around: &Surroundings) -> Verdict {
    let own = asked.node().filter(|_| requester.in_group(NODES) && requester.name == asked.name);
    let Some(own) = own else {
        return Verdict::Leave(format!("{:?} is not the node it asks for", requester.name));
    };
    if asked.names().count() > NAMES_MAX {
        return Verdict::Leave(format!("it has more than {NAMES_MAX} names and addresses"));
    }
    // The Node may not be there yet: a new one gets its certificate first.
    let addresses = (around.addresses)(own);
    let is_own = |name: &str| match name.parse::<IpAddr>() {
        Ok(address) => {
            addresses.as_ref().is_none_or(|own| own.contains(&address))
                && !(around.is_anothers)(address, own)
        }
        Err(_) => name == own,
    };
    let foreign = asked.names().filter(|name| (around.is_api)(name) || !is_own(name));
    let foreign: Vec<String> = foreign.collect();
    match foreign.is_empty() {
        true => Verdict::Approve("Auto approving kubelet serving certificate of the node itself."),
        false => Verdict::NotYet(format!(
            "node {own:?} can only have a serving certificate for its own name and addresses, \
             not for {}",
            foreign.join(", ")
        )),
    }
}

/// Where a Node says it is.
pub(super) fn addresses(node: &Value) -> Vec<IpAddr> {
    let addresses = node.at(&["status", "addresses"]).and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten();
    let parsed = addresses.filter_map(|address| address.text(&["address"]).parse().ok());
    parsed.map(|address: IpAddr| address.to_canonical()).collect()
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
    const API: &str = "192.0.2.100";

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
        let n1 = json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.1"},
            // That a Node calls itself so does not make it so.
            {"type": "ExternalIP", "address": API},
            {"type": "Hostname", "address": "kubernetes"}]}});
        let around = Surroundings {
            may: &may,
            is_api: &|name| ["kubernetes", "localhost", "server", API].contains(&name),
            addresses: &|name| (name == "n1").then(|| addresses(&n1)),
            is_anothers: &|address, own| own != "n3" && address.to_string() == "192.0.2.3",
        };
        judge(&request, signer, &Ok(asked), &around)
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

    /// C-148
    #[test]
    fn a_node_serves_under_its_own_name_and_addresses_only() {
        let n1 = "system:node:n1";
        let good = "Auto approving kubelet serving certificate of the node itself.";
        assert_eq!(serving(n1, asked(n1, &["n1"], &["192.0.2.1"])), Verdict::Approve(good));
        for (dns, ips, named) in [
            (&["n1", "n2"][..], &[][..], "n2"),
            (&["n1"], &["192.0.2.1", "192.0.2.9"], "192.0.2.9"),
            (&["kubernetes"], &[], "kubernetes"),
            (&["n1"], &[API], API),
        ] {
            let why = format!(
                "node \"n1\" can only have a serving certificate for its own name and addresses, not for {named}"
            );
            assert_eq!(serving(n1, asked(n1, dns, ips)), Verdict::NotYet(why));
        }
    }

    /// C-148
    #[test]
    fn a_new_node_says_where_it_is_but_is_never_the_api_server() {
        let new = "system:node:new";
        let good = "Auto approving kubelet serving certificate of the node itself.";
        assert_eq!(serving(new, asked(new, &["new"], &["192.0.2.9"])), Verdict::Approve(good));
        for (dns, ips) in [(&["n1"][..], &[][..]), (&[], &[API]), (&[], &["192.0.2.3"])] {
            assert!(matches!(serving(new, asked(new, dns, ips)), Verdict::NotYet(_)));
        }
        for name in ["kubernetes", "localhost", "server"] {
            let named = format!("system:node:{name}");
            assert!(matches!(serving(&named, asked(&named, &[name], &[])), Verdict::NotYet(_)));
        }
    }

    #[test]
    fn a_serving_certificate_for_very_many_addresses_is_left_to_a_person() {
        let new = "system:node:new";
        let addresses: Vec<String> = (1..=64).map(|last| format!("198.51.100.{last}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let good =
            Verdict::Approve("Auto approving kubelet serving certificate of the node itself.");
        assert_eq!(serving(new, asked(new, &["new"], &addresses[..63])), good);
        let many = Verdict::Leave("it has more than 64 names and addresses".into());
        assert_eq!(serving(new, asked(new, &["new"], &addresses)), many);
    }

    #[test]
    fn a_serving_certificate_for_somebody_else_is_left_to_a_person() {
        let n1 = asked("system:node:n1", &["n1"], &[]);
        let leave = |who: &str| Verdict::Leave(format!("{who:?} is not the node it asks for"));
        assert_eq!(serving("system:node:n2", n1), leave("system:node:n2"));
        assert_eq!(serving("ana", asked("system:node:n1", &["n1"], &[])), leave("ana"));
    }
}
