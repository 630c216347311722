//! Prevents privilege escalation through RBAC objects.
//!
//! To write a role, a user needs all of its rules, or the verb `escalate`. To write a binding, a user needs all rules
//! of the role that it names, or the verb `bind` on that role.

use super::rule::{Rule, has, has_or_all, url_covers};
use super::{Attributes, Policy, aggregation};
use crate::authn::{MASTERS, User};
use api::Status;
use api::status::Details;
use api::value::ValueExt as _;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A rule stands for the product of its lists. At most this many missing rights are listed.
const MISSING_MAX: usize = 1000;

/// Whether `user` may create this Role or ClusterRole, or change it from `old`.
pub fn may_write_role(
    policy: &Policy,
    user: &User,
    role: &Value,
    old: Option<&Value>,
) -> Result<(), Box<Status>> {
    let Place { namespace, name } = Place::of(role);
    let resource = if role.text(&["kind"]) == "Role" { "roles" } else { "clusterroles" };
    let unchanged = |field: &str| old.is_some_and(|old| old.at(&[field]) == role.at(&[field]));
    if unchanged("rules") && unchanged("aggregationRule") {
        return Ok(());
    }
    let escalate =
        Attributes { namespace, name, ..Attributes::resource(user, "escalate", GROUP, resource) };
    if user.in_group(MASTERS) || policy.allows(&escalate).allowed {
        return Ok(());
    }
    let rules: Vec<Rule> = Rule::all_of(role).collect();
    covers(policy, user, namespace, &rules).map_err(|why| refused(resource, name, &why))?;
    if aggregation::is_aggregated(role) && covers(policy, user, "", &everything()).is_err() {
        let why = "must have cluster-admin privileges to use the aggregationRule";
        return Err(refused(resource, name, why));
    }
    Ok(())
}

/// Whether `user` may create this RoleBinding or ClusterRoleBinding, or change it from `old`.
pub fn may_write_binding(
    policy: &Policy,
    user: &User,
    binding: &Value,
    old: Option<&Value>,
) -> Result<(), Box<Status>> {
    let Place { namespace, name } = Place::of(binding);
    let unchanged = |field: &str| old.is_some_and(|old| old.at(&[field]) == binding.at(&[field]));
    if unchanged("roleRef") && unchanged("subjects") {
        return Ok(());
    }
    let (kind, role) = (binding.text(&["roleRef", "kind"]), binding.text(&["roleRef", "name"]));
    let resource = if kind == "Role" { "roles" } else { "clusterroles" };
    let bind =
        Attributes { namespace, name: role, ..Attributes::resource(user, "bind", GROUP, resource) };
    if user.in_group(MASTERS) || policy.allows(&bind).allowed {
        return Ok(());
    }
    let rules = policy
        .role_rules(kind, namespace, role)
        .map_err(|why| failure(404, "NotFound", &why, &kind.to_lowercase(), role))?;
    let own = if namespace.is_empty() { "clusterrolebindings" } else { "rolebindings" };
    covers(policy, user, namespace, &rules).map_err(|why| refused(own, name, &why))
}

/// Whether the user holds all of these rules in the namespace. The error lists what is missing, in upstream's words.
pub fn covers(policy: &Policy, user: &User, namespace: &str, rules: &[Rule]) -> Result<(), String> {
    let held = policy.rules_for(user, namespace);
    let mut missing = Vec::new();
    for rule in rules {
        missing_rights(rule, &held, &mut missing);
        if missing.len() >= MISSING_MAX {
            break;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let listed: BTreeSet<String> = compact(missing).iter().map(describe).collect();
    let listed: Vec<String> = listed.into_iter().collect();
    let mut message = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        quoted(&user.groups),
        listed.join("\n")
    );
    let unresolved = policy.unresolved(user, namespace);
    if !unresolved.is_empty() {
        message.push_str(&format!("; resolution errors: [{}]", unresolved.join(", ")));
    }
    Err(message)
}

struct Place<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Place<'a> {
    fn of(object: &'a Value) -> Self {
        Place {
            namespace: object.text(&["metadata", "namespace"]),
            name: object.text(&["metadata", "name"]),
        }
    }
}

fn everything() -> [Rule; 2] {
    [
        json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
        json!({"verbs": ["*"], "nonResourceURLs": ["*"]}),
    ]
    .map(|rule| Rule::from_json(&rule))
}

fn refused(resource: &str, name: &str, why: &str) -> Box<Status> {
    let message = format!("{resource}.{GROUP} {name:?} is forbidden: {why}");
    failure(403, "Forbidden", &message, resource, name)
}

fn failure(code: u16, reason: &str, message: &str, resource: &str, name: &str) -> Box<Status> {
    let details = Details {
        name: name.to_owned(),
        group: GROUP.to_owned(),
        kind: resource.to_owned(),
        ..Details::default()
    };
    Status::failure(code, reason, message).with_details(details).into()
}

/// The rights of a rule, one verb on one thing each, that none of the held rules includes.
fn missing_rights(rule: &Rule, held: &[&Rule], missing: &mut Vec<Rule>) {
    if held.iter().any(|own| holds(own, rule)) {
        return;
    }
    let [verbs, groups, resources] =
        [&rule.verbs, &rule.api_groups, &rule.resources].map(|list| each_once(list));
    let [names, urls] = [&rule.resource_names, &rule.non_resource_urls].map(|list| each_once(list));
    let mut check = |right: Rule| {
        if !held.iter().any(|own| holds(own, &right)) {
            missing.push(right);
        }
        missing.len() < MISSING_MAX
    };
    // Without names, the rule covers all names in one right.
    let names: Vec<Vec<String>> = match names.is_empty() {
        true => vec![Vec::new()],
        false => names.iter().map(|name| vec![name.to_string()]).collect(),
    };
    let one = |item: &&str| vec![item.to_string()];
    for verb in &verbs {
        for url in &urls {
            let urls = one(url);
            if !check(Rule { verbs: one(verb), non_resource_urls: urls, ..Rule::default() }) {
                return;
            }
        }
        for (group, resource) in
            groups.iter().flat_map(|group| resources.iter().map(move |resource| (group, resource)))
        {
            for resource_names in &names {
                let right = Rule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: resource_names.clone(),
                    ..Rule::default()
                };
                if !check(right) {
                    return;
                }
            }
        }
    }
}

fn each_once(list: &[String]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    list.iter().map(String::as_str).filter(|item| seen.insert(*item)).collect()
}

/// Whether the first rule alone covers the second.
fn holds(rule: &Rule, right: &Rule) -> bool {
    let resource_held = |wanted: &String| {
        let subresource = wanted.split_once('/').map(|(_, sub)| format!("*/{sub}"));
        has_or_all(&rule.resources, wanted)
            || subresource.is_some_and(|wanted| has(&rule.resources, &wanted))
    };
    right.verbs.iter().all(|verb| has_or_all(&rule.verbs, verb))
        && right.api_groups.iter().all(|group| has_or_all(&rule.api_groups, group))
        && right.resources.iter().all(resource_held)
        && right
            .non_resource_urls
            .iter()
            .all(|url| rule.non_resource_urls.iter().any(|own| url_covers(own, url)))
        && (rule.resource_names.is_empty()
            || !right.resource_names.is_empty()
                && right.resource_names.iter().all(|name| has(&rule.resource_names, name)))
}

/// Joins the verbs of rights on the same resource, so that the message stays short.
fn compact(rights: Vec<Rule>) -> Vec<Rule> {
    let mut joined: Vec<Rule> = Vec::new();
    for right in rights {
        let same = joined.iter_mut().find(|known| {
            right.non_resource_urls.is_empty()
                && known.api_groups == right.api_groups
                && known.resources == right.resources
                && known.resource_names == right.resource_names
        });
        match same {
            Some(known) => known.verbs.extend(right.verbs),
            None => joined.push(right),
        }
    }
    joined
}

/// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`
fn describe(rule: &Rule) -> String {
    let parts: Vec<String> = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ]
    .into_iter()
    .filter(|(_, list)| !list.is_empty())
    .map(|(title, list)| format!("{title}:{}", quoted(list)))
    .collect();
    format!("{{{}}}", parts.join(", "))
}

/// `["a" "b"]`
fn quoted(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(" "))
}
