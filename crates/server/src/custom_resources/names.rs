//! The accepted names of a definition, and its conditions.
//!
//! Within a group no two definitions share a plural, singular or short name, nor a kind or list
//! kind. Names once accepted stay; a name that another definition has is refused until it is free.

use super::conditions;
use api::value::ValueExt;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const APPROVED: &str = "api-approved.kubernetes.io";

/// Sets accepted names and conditions of a definition. True if it did not get all its names.
pub(super) fn settle(definition: &mut Value, taken: &Taken, now: &str) -> bool {
    let (names, refused) = accept(definition, taken);
    definition.object("status")["acceptedNames"] = names;
    let (reason, message) =
        refused.as_ref().map_or(("NoConflicts", "no conflicts found"), |(reason, message)| {
            (*reason, message.as_str())
        });
    let status = if refused.is_none() { "True" } else { "False" };
    set_condition(definition, ["NamesAccepted", status, reason, message], now);
    establish(definition, refused.is_none(), now);
    approve(definition, now);
    refused.is_some()
}

/// A definition stays Established, whatever happens to its names later.
fn establish(definition: &mut Value, accepted: bool, now: &str) {
    if is_accepted(definition) {
        return;
    }
    let how = if accepted {
        ["Established", "True", "InitialNamesAccepted", "the initial names have been accepted"]
    } else {
        ["Established", "False", "NotAccepted", "not all names are accepted"]
    };
    set_condition(definition, how, now);
}

/// Groups of the Kubernetes project need an annotation with the approval of the API.
fn approve(definition: &mut Value, now: &str) {
    let group = definition.text(&["spec", "group"]);
    if !group.ends_with(".k8s.io") && !group.ends_with(".kubernetes.io") {
        return;
    }
    let approval = definition.text(&["metadata", "annotations", APPROVED]).to_owned();
    let how = if approval.starts_with("unapproved") {
        ("False", "UnapprovedAnnotation", format!("not approved: {approval:?}"))
    } else {
        ("True", "ApprovedAnnotation", format!("approved in {approval}"))
    };
    let kind = "KubernetesAPIApprovalPolicyConformant";
    set_condition(definition, [kind, how.0, how.1, &how.2], now);
}

/// Whether the names are accepted, so that the kinds are served.
pub(super) fn is_accepted(definition: &Value) -> bool {
    let conditions = definition.at(&["status", "conditions"]).and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// Type, status, reason, message. The transition time changes only with the status.
pub(super) fn set_condition(definition: &mut Value, condition: [&str; 4], now: &str) {
    let [kind, status, reason, message] = condition;
    let list = conditions(definition);
    let old = list.iter_mut().find(|condition| condition["type"] == kind);
    let since = match &old {
        Some(old) if old["status"] == status => old["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    let new = json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since,
    });
    match old {
        Some(old) => *old = new,
        None => list.push(new),
    }
}

/// The names of the other definitions in the group.
#[derive(Default)]
pub(super) struct Taken<'a> {
    /// Plurals, singulars and short names.
    resources: BTreeSet<&'a str>,
    kinds: BTreeSet<&'a str>,
}

impl<'a> Taken<'a> {
    /// From their accepted names.
    pub(super) fn of(others: impl Iterator<Item = &'a Value>) -> Self {
        let mut taken = Taken::default();
        for names in others {
            taken.resources.extend(["plural", "singular"].map(|name| names.text(&[name])));
            let short = names["shortNames"].as_array().into_iter().flatten();
            taken.resources.extend(short.filter_map(Value::as_str));
            taken.kinds.extend(["kind", "listKind"].map(|name| names.text(&[name])));
        }
        taken
    }
}

fn short_names(names: &Value) -> Vec<String> {
    let list = names["shortNames"].as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The accepted names and, if some were refused, the last reason.
fn accept(definition: &Value, taken: &Taken) -> (Value, Option<(&'static str, String)>) {
    let Taken { resources, kinds } = taken;
    let wanted = &definition["spec"]["names"];
    let mut names =
        definition.at(&["status", "acceptedNames"]).cloned().unwrap_or_else(|| json!({}));
    let mut refused = None;
    let in_use = |name: &str| format!("{name:?} is already in use");
    let mut one = |names: &mut Value, field: &str, taken: &BTreeSet<&str>, reason: &'static str| {
        let name = wanted.text(&[field]);
        if name != names.text(&[field]) && taken.contains(name) {
            refused = Some((reason, in_use(name)));
        } else {
            names[field] = name.into();
        }
    };
    one(&mut names, "plural", resources, "PluralConflict");
    one(&mut names, "singular", resources, "SingularConflict");
    let had = short_names(&names);
    let new = short_names(wanted);
    let clash: Vec<String> = new
        .iter()
        .filter(|name| !had.contains(name) && resources.contains(name.as_str()))
        .map(|name| in_use(name))
        .collect();
    let short_clash = match &clash[..] {
        [] => None,
        [only] => Some(only.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    };
    one(&mut names, "kind", kinds, "KindConflict");
    one(&mut names, "listKind", kinds, "ListKindConflict");
    match short_clash {
        Some(message) => refused = refused.or(Some(("ShortNamesConflict", message))),
        None => copy(&mut names, wanted, "shortNames"),
    }
    copy(&mut names, wanted, "categories");
    (names, refused)
}

fn copy(names: &mut Value, wanted: &Value, field: &str) {
    match wanted.get(field).filter(|list| list.as_array().is_some_and(|list| !list.is_empty())) {
        Some(list) => names[field] = list.clone(),
        None => drop(names.remove(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(plural: &str, kind: &str, short: &[&str]) -> Value {
        json!({"metadata": {"name": format!("{plural}.example.com")}, "spec": {"group": "example.com",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind,
                      "listKind": format!("{kind}List"), "shortNames": short}}})
    }

    /// The definitions after their names are decided, in the order of creation.
    fn settle(all: &mut [Value], now: &str) {
        for place in 0..all.len() {
            let mut definition = all[place].clone();
            let others = all.iter().enumerate().filter(|(other, _)| *other != place);
            let taken = Taken::of(others.map(|(_, other)| &other["status"]["acceptedNames"]));
            super::settle(&mut definition, &taken, now);
            all[place] = definition;
        }
    }

    fn condition<'v>(definition: &'v Value, kind: &str) -> &'v Value {
        let list = definition["status"]["conditions"].as_array().unwrap();
        list.iter().find(|condition| condition["type"] == kind).unwrap()
    }

    #[test]
    fn a_206_a_definition_without_conflicts_gets_its_names() {
        let mut all = [definition("widgets", "Widget", &["wd"])];
        settle(&mut all, "now");
        assert!(is_accepted(&all[0]));
        assert_eq!(all[0]["status"]["acceptedNames"], all[0]["spec"]["names"]);
        assert_eq!(condition(&all[0], "NamesAccepted")["reason"], "NoConflicts");
        assert_eq!(condition(&all[0], "Established")["reason"], "InitialNamesAccepted");
        let once = all.clone();
        settle(&mut all, "later");
        assert_eq!(all, once);
    }

    #[test]
    fn a_206_the_older_definition_keeps_a_name_until_it_is_deleted() {
        let mut all =
            [definition("widgets", "Widget", &["wd"]), definition("wodgets", "Widget", &["wd"])];
        settle(&mut all, "now");
        assert!(is_accepted(&all[0]) && !is_accepted(&all[1]));
        let refused = condition(&all[1], "NamesAccepted");
        assert_eq!(
            (&refused["status"], &refused["reason"]),
            (&"False".into(), &"ListKindConflict".into())
        );
        assert_eq!(refused["message"], "\"WidgetList\" is already in use");
        assert_eq!(condition(&all[1], "Established")["reason"], "NotAccepted");
        let mut left = [all[1].clone()];
        settle(&mut left, "later");
        assert!(is_accepted(&left[0]));
        assert_eq!(condition(&left[0], "Established")["lastTransitionTime"], "later");
    }

    #[test]
    fn a_206_an_established_definition_keeps_its_names_when_new_ones_are_refused() {
        let mut all = [definition("widgets", "Widget", &[]), definition("wodgets", "Wodget", &[])];
        settle(&mut all, "now");
        all[1]["spec"]["names"]["shortNames"] = json!(["widget", "ok"]);
        settle(&mut all, "later");
        assert!(is_accepted(&all[1]));
        let refused = condition(&all[1], "NamesAccepted");
        assert_eq!(refused["reason"], "ShortNamesConflict");
        assert_eq!(refused["message"], "\"widget\" is already in use");
        assert_eq!(all[1]["status"]["acceptedNames"]["kind"], "Wodget");
    }
}
