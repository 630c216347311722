//! Namespaces.

use crate::Rules;
use api::field::{At, Errors, Wrong};
use api::names;
use api::names::NameRule;
use api::value::ValueExt;
use serde_json::{Value, json};

/// Every namespace has this label, so that selectors can select it by name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) const RULES: Rules = Rules {
    default: name_label,
    prepare_create,
    prepare_update: |new, old| {
        // Only `/finalize` changes finalizers.
        match old.at(&["spec"]) {
            Some(spec) => new.map().insert("spec".into(), spec.clone()),
            None => new.remove("spec"),
        };
    },
    validate: |namespace, errors| {
        let spec = namespace.field("spec");
        let list = spec.field("finalizers");
        finalizers(&list, errors);
    },
    validate_status_update,
    fields: &[("status.phase", |namespace| namespace.text(&["status", "phase"]).into())],
    name: NameRule::Label,
    returns_deleted: true,
    ..Rules::NONE
};

fn name_label(namespace: &mut Value) {
    let name = namespace.text(&["metadata", "name"]).to_owned();
    if !name.is_empty() {
        let labels = namespace.object("metadata").object("labels");
        labels.map().insert(NAME_LABEL.into(), name.into());
    }
}

fn prepare_create(namespace: &mut Value) {
    name_label(namespace);
    namespace.map().insert("status".into(), json!({"phase": "Active"}));
    let spec = namespace.object("spec");
    spec.set_default("finalizers", json!([]));
    if let Some(Value::Array(list)) = spec.get_mut("finalizers")
        && !list.iter().any(|finalizer| finalizer == "kubernetes")
    {
        list.push("kubernetes".into());
    }
}

fn finalizers(list: &At, errors: &mut Errors) {
    for finalizer in list.items() {
        let name = finalizer.text();
        for wrong in names::qualified_name(name) {
            errors.invalid_value(list, name, &wrong);
        }
        if !name.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&name) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid_value(list, name, detail);
        }
    }
}

fn validate_status_update(new: &At, _old: &At, errors: &mut Errors) {
    let status = new.field("status");
    let phase = status.field("phase");
    let (only, detail) = match new.field("metadata").field("deletionTimestamp").is_set() {
        false => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
        true => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
    };
    if phase.text() != only {
        let path = format!("{}.Phase", status.path());
        errors.push(Wrong::Invalid, path, Some(&phase.text().into()), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, created, update_status, updated};
    use serde_json::json;

    #[test]
    fn a_147_t_ctrl_49_a_new_namespace_has_a_name_label_and_a_finalizer() {
        let made = created("Namespace", json!({"metadata": {"name": "a"}}));
        assert_eq!(made["metadata"]["labels"], json!({"kubernetes.io/metadata.name": "a"}));
        assert_eq!(made["spec"], json!({"finalizers": ["kubernetes"]}));
        assert_eq!(made["status"], json!({"phase": "Active"}));
        let change = json!({"spec": {"finalizers": []}, "metadata": {"labels": {"kubernetes.io/metadata.name": "b"}}});
        let (new, wrong) = updated("Namespace", &made, change);
        assert_eq!(wrong, NOTHING);
        assert_eq!(new["spec"], made["spec"]);
        assert_eq!(new["metadata"]["labels"], made["metadata"]["labels"]);
    }

    #[test]
    fn a_75_the_name_of_a_namespace_is_a_dns_label() {
        assert_eq!(
            create("Namespace", json!({"metadata": {"name": "a.b"}})),
            ["metadata.name: Invalid value: \"a.b\": must not contain dots"]
        );
    }

    #[test]
    fn a_84_t_ctrl_58_the_phase_is_terminating_only_during_deletion() {
        let made = created("Namespace", json!({"metadata": {"name": "a"}}));
        assert_eq!(
            update_status("Namespace", &made, json!({"phase": "Terminating"})),
            [
                "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
            ]
        );
        let mut deleting = made;
        deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(
            update_status("Namespace", &deleting, json!({"phase": "Active"})),
            [
                "status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"
            ]
        );
        assert_eq!(update_status("Namespace", &deleting, json!({"phase": "Terminating"})), NOTHING);
    }
}
