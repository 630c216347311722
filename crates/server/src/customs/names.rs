//! Which names a definition gets, and what its conditions say about that.
//!
//! Within a group no two definitions share a plural, singular or short name, nor a kind or list
//! kind. Names once accepted stay; a name that another definition has is refused until it is free.

use super::conditions;
use api::value::ValueExt;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const APPROVED: &str = "api-approved.kubernetes.io";

/// Sets accepted names and conditions of all definitions, given in the order of their creation.
pub(super) fn settle(definitions: &mut [Value], now: &str) {
    for place in 0..definitions.len() {
        let (resources, kinds) = taken(definitions, place);
        let definition = &mut definitions[place];
        let (names, refused) = accept(definition, &resources, &kinds);
        definition.object("status")["acceptedNames"] = names;
        let (reason, message) =
            refused.as_ref().map_or(("NoConflicts", "no conflicts found"), |(reason, message)| {
                (*reason, message.as_str())
            });
        let status = if refused.is_none() { "True" } else { "False" };
        set_condition(definition, ["NamesAccepted", status, reason, message], now);
        establish(definition, refused.is_none(), now);
        approve(definition, now);
    }
}

/// Established stays, whatever becomes of the names later.
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

/// Groups of the Kubernetes project say where their API was approved.
fn approve(definition: &mut Value, now: &str) {
    let group = definition.text(&["spec", "group"]);
    if !group.ends_with(".k8s.io") && !group.ends_with(".kubernetes.io") {
        return;
    }
    let said = definition.text(&["metadata", "annotations", APPROVED]).to_owned();
    let how = if said.starts_with("unapproved") {
        ("False", "UnapprovedAnnotation", format!("not approved: {said:?}"))
    } else {
        ("True", "ApprovedAnnotation", format!("approved in {said}"))
    };
    let kind = "KubernetesAPIApprovalPolicyConformant";
    set_condition(definition, [kind, how.0, how.1, &how.2], now);
}

/// The definition has been established, so its kinds are served.
pub(super) fn is_accepted(definition: &Value) -> bool {
    let conditions = definition.at(&["status", "conditions"]).and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// Type, status, reason, message. The time changes with the status only.
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

type Names = BTreeSet<String>;

/// What the other definitions of the group have: resource names, and kinds.
fn taken(definitions: &[Value], place: usize) -> (Names, Names) {
    let group = definitions[place].text(&["spec", "group"]);
    let (mut resources, mut kinds) = (Names::new(), Names::new());
    for (other, definition) in definitions.iter().enumerate() {
        if other == place || definition.text(&["spec", "group"]) != group {
            continue;
        }
        let names = &definition["status"]["acceptedNames"];
        resources.extend(["plural", "singular"].map(|name| names.text(&[name]).to_owned()));
        resources.extend(short_names(names));
        kinds.extend(["kind", "listKind"].map(|name| names.text(&[name]).to_owned()));
    }
    (resources, kinds)
}

fn short_names(names: &Value) -> Vec<String> {
    let list = names["shortNames"].as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The names it has from now on; if some were refused, the last reason why.
fn accept(
    definition: &Value,
    resources: &Names,
    kinds: &Names,
) -> (Value, Option<(&'static str, String)>) {
    let wanted = &definition["spec"]["names"];
    let mut names =
        definition.at(&["status", "acceptedNames"]).cloned().unwrap_or_else(|| json!({}));
    let mut refused = None;
    let in_use = |name: &str| format!("{name:?} is already in use");
    let mut one = |names: &mut Value, field: &str, taken: &Names, reason: &'static str| {
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
        .filter(|name| !had.contains(name) && resources.contains(*name))
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

    fn condition<'v>(definition: &'v Value, kind: &str) -> &'v Value {
        let list = definition["status"]["conditions"].as_array().unwrap();
        list.iter().find(|condition| condition["type"] == kind).unwrap()
    }

    #[test]
    fn a_206_a_definition_without_rivals_gets_its_names() {
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
    fn a_206_who_came_first_keeps_a_name_until_it_goes() {
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
    fn a_206_an_established_definition_loses_nothing_by_wanting_too_much() {
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
