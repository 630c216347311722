//! Rules of the `rbac.authorization.k8s.io` kinds: roles and bindings.
//!
//! Not here: whether a writer may grant what the role contains (the server's authorizer).

use super::{Rules, check};
use api::field::{At, Errors};
use api::names;
use api::names::NameRule;
use api::value::ValueExt;
use serde_json::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) fn rules(kind: &str) -> Rules {
    let common = Rules { name: NameRule::PathSegment, create_on_update: true, ..Rules::NONE };
    match kind {
        "Role" => Rules { default: default_role, validate: validate_role, ..common },
        "ClusterRole" => Rules { default: default_role, validate: validate_cluster_role, ..common },
        "RoleBinding" => Rules {
            default: default_binding,
            validate: |binding, errors| validate_binding(binding, true, errors),
            validate_update: role_ref_is_immutable,
            ..common
        },
        "ClusterRoleBinding" => Rules {
            default: default_binding,
            validate: |binding, errors| validate_binding(binding, false, errors),
            validate_update: role_ref_is_immutable,
            ..common
        },
        _ => Rules::NONE,
    }
}

/// A role without rules has `rules: null`.
fn default_role(role: &mut Value) {
    role.set_default("rules", Value::Null);
}

/// Defaults of role bindings (A-147).
fn default_binding(binding: &mut Value) {
    let role = binding.object("roleRef");
    if role.text(&["apiGroup"]).is_empty() {
        role.map().insert("apiGroup".into(), json!(GROUP));
    }
    for subject in binding.list_mut("subjects") {
        let is_account = subject.text(&["kind"]) == "ServiceAccount";
        if !is_account
            && ["User", "Group"].contains(&subject.text(&["kind"]))
            && subject.text(&["apiGroup"]).is_empty()
        {
            subject.map().insert("apiGroup".into(), json!(GROUP));
        }
    }
}

fn validate_role(role: &At, errors: &mut Errors) {
    for rule in role.field("rules").items() {
        validate_policy_rule(&rule, true, errors);
    }
}

fn validate_cluster_role(role: &At, errors: &mut Errors) {
    for rule in role.field("rules").items() {
        validate_policy_rule(&rule, false, errors);
    }
    let aggregation = role.field("aggregationRule");
    if aggregation.is_set() {
        let selectors = aggregation.field("clusterRoleSelectors");
        if selectors.is_empty() {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.required(&selectors, detail);
        }
        for selector in selectors.items() {
            super::label_selector::validate(&selector, errors);
        }
    }
}

fn validate_policy_rule(rule: &At, namespaced: bool, errors: &mut Errors) {
    if rule.field("verbs").is_empty() {
        errors.required(&rule.field("verbs"), "verbs must contain at least one value");
    }
    let urls = rule.field("nonResourceURLs");
    let (groups, resources) = (rule.field("apiGroups"), rule.field("resources"));
    if !urls.is_empty() {
        if namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            errors.invalid(&urls, detail);
        }
        if !groups.is_empty() || !resources.is_empty() || !rule.field("resourceNames").is_empty() {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.invalid(&urls, detail);
        }
        return;
    }
    if groups.is_empty() {
        errors.required(&groups, "resource rules must supply at least one api group");
    }
    if resources.is_empty() {
        errors.required(&resources, "resource rules must supply at least one resource");
    }
}

fn validate_binding(binding: &At, namespaced: bool, errors: &mut Errors) {
    let role = binding.field("roleRef");
    check::one_of(&role.field("apiGroup"), &[GROUP], errors);
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    check::one_of(&role.field("kind"), kinds, errors);
    let name = role.field("name");
    if name.text().is_empty() {
        errors.required(&name, "");
    } else {
        check::text(&name, names::path_segment, errors);
    }
    for subject in binding.field("subjects").items() {
        validate_subject(&subject, namespaced, errors);
    }
}

fn validate_subject(subject: &At, namespaced: bool, errors: &mut Errors) {
    let (name, group) = (subject.field("name"), subject.field("apiGroup"));
    if name.text().is_empty() {
        errors.required(&name, "");
    }
    match subject.field("kind").text() {
        "ServiceAccount" => {
            if !name.text().is_empty() {
                check::text(&name, names::dns1123_subdomain, errors);
            }
            if !group.text().is_empty() {
                errors.not_supported(&group, &[""]);
            }
            // Without a namespace, a RoleBinding refers to an account in its own namespace.
            if !namespaced && subject.field("namespace").text().is_empty() {
                errors.required(&subject.field("namespace"), "");
            }
        }
        "User" | "Group" => check::one_of(&group, &[GROUP], errors),
        _ => errors.not_supported(&subject.field("kind"), &["ServiceAccount", "User", "Group"]),
    }
}

/// The role of a binding is immutable (A-77).
fn role_ref_is_immutable(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("roleRef"), old.field("roleRef"));
    if !check::same(&new, &old) {
        let shown = format!(
            "{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}",
            json!(new.field("apiGroup").text()),
            json!(new.field("kind").text()),
            json!(new.field("name").text()),
        );
        check::invalid_shown(errors, &new, &shown, "cannot change roleRef");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(kind: &str, mut object: Value) -> Vec<String> {
        (rules(kind).default)(&mut object);
        let mut errors = Errors::default();
        (rules(kind).validate)(&At::root(&object), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_77_the_role_of_a_binding_is_immutable() {
        let binding =
            |name: &str| json!({"roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name}});
        let mut errors = Errors::default();
        role_ref_is_immutable(
            &At::root(&binding("other")),
            &At::root(&binding("role")),
            &mut errors,
        );
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"other\"}: cannot change roleRef"
            ]
        );
    }

    #[test]
    fn a_147_users_and_groups_default_to_the_rbac_group() {
        let mut binding = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
            {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]});
        default_binding(&mut binding);
        assert_eq!(binding["roleRef"]["apiGroup"], GROUP);
        assert_eq!(binding["subjects"][0]["apiGroup"], GROUP);
        assert_eq!(binding["subjects"][1].get("apiGroup"), None);
    }

    #[test]
    fn a_92_invalid_roles_and_bindings_are_rejected_with_upstreams_messages() {
        let urls = json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]});
        assert_eq!(
            messages("Role", urls.clone()),
            [
                "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs"
            ]
        );
        assert!(messages("ClusterRole", urls).is_empty());
        assert_eq!(
            messages("Role", json!({"rules": [{}]})),
            [
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ]
        );
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "s"}]});
        assert_eq!(
            messages("ClusterRoleBinding", binding.clone()),
            ["subjects[0].namespace: Required value"]
        );
        assert!(messages("RoleBinding", binding).is_empty());
    }
}
