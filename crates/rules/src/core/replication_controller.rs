//! ReplicationControllers and stored pod templates.

use super::checks;
use super::pod_template::{default_template, validate_template};
use crate::{Generation, Rules};
use api::field::{At, Errors};
use api::value::ValueExt;
use serde_json::{Value, json};

pub(super) const RULES: Rules = Rules {
    default,
    prepare_create: |controller| {
        controller.map().insert("status".into(), json!({"replicas": 0}));
    },
    validate,
    validate_status_update,
    fields: &[("status.replicas", |controller| {
        let replicas = controller.at(&["status", "replicas"]).and_then(Value::as_i64);
        replicas.unwrap_or_default().to_string()
    })],
    generation: Generation::Spec,
    orphans_by_default: true,
    ..Rules::NONE
};

pub(super) const POD_TEMPLATE: Rules = Rules {
    default: |stored| default_template(stored.object("template")),
    validate: |stored, errors| validate_template(&stored.field("template"), errors),
    generation: Generation::Content,
    returns_deleted: true,
    ..Rules::NONE
};

fn default(controller: &mut Value) {
    let spec = controller.object("spec");
    spec.set_default("replicas", 1);
    let Some(template) = spec.get_mut("template").filter(|template| template.is_object()) else {
        return;
    };
    default_template(template);
    let Some(labels) = template.at(&["metadata", "labels"]).cloned() else {
        return;
    };
    let empty = |value: Option<&Value>| {
        value.and_then(Value::as_object).is_none_or(serde_json::Map::is_empty)
    };
    if empty(spec.at(&["selector"])) {
        spec.map().insert("selector".into(), labels.clone());
    }
    if empty(controller.at(&["metadata", "labels"])) {
        controller.object("metadata").map().insert("labels".into(), labels);
    }
}

fn validate(controller: &At, errors: &mut Errors) {
    let spec = controller.field("spec");
    checks::non_negative(&spec.field("minReadySeconds"), errors);
    let selector = spec.field("selector");
    if selector.is_empty() {
        errors.required(&selector, "");
    }
    checks::non_negative(&spec.field("replicas"), errors);
    let template = spec.field("template");
    if !template.is_set() {
        errors.required(&template, "");
        return;
    }
    let metadata = template.field("metadata");
    let labels = metadata.field("labels");
    if selector.entries().any(|(key, value)| labels.key(key).str() != value.str()) {
        errors.invalid(&labels, "`selector` does not match template `labels`");
    }
    validate_template(&template, errors);
    let pod = template.field("spec");
    let restart = pod.field("restartPolicy");
    if restart.text() != "Always" {
        errors.not_supported(&restart, &["Always"]);
    }
    let deadline = pod.field("activeDeadlineSeconds");
    if deadline.is_set() {
        let detail = "activeDeadlineSeconds in ReplicationController is not Supported";
        errors.forbidden(&deadline, detail);
    }
}

fn validate_status_update(new: &At, _old: &At, errors: &mut Errors) {
    let status = new.field("status");
    let number = |field: &str| status.field(field).int().unwrap_or_default();
    let counts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    for field in ["replicas", counts[0], counts[1], counts[2], "observedGeneration"] {
        checks::non_negative(&status.field(field), errors);
    }
    for field in counts.iter().filter(|field| number(field) > number("replicas")) {
        errors.invalid(&status.field(field), "cannot be greater than status.replicas");
    }
    if number("availableReplicas") > number("readyReplicas") {
        let detail = "cannot be greater than readyReplicas";
        errors.invalid(&status.field("availableReplicas"), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, defaulted};
    use serde_json::{Value, json};

    fn controller(spec: Value) -> Value {
        let mut controller = json!({"spec": {"template": {
            "metadata": {"labels": {"app": "kubia"}},
            "spec": {"containers": [{"name": "app", "image": "app:1"}]},
        }}});
        super::super::trial::merge(&mut controller["spec"], spec);
        controller
    }

    #[test]
    fn a_147_selector_and_labels_come_from_the_template() {
        let made = defaulted("ReplicationController", controller(json!({})));
        assert_eq!(made["spec"]["replicas"], 1);
        assert_eq!(made["spec"]["selector"], json!({"app": "kubia"}));
        assert_eq!(made["metadata"]["labels"], json!({"app": "kubia"}));
    }

    #[test]
    fn a_92_invalid_controllers_are_rejected_with_upstreams_messages() {
        for (spec, message) in [
            (
                json!({"selector": {"app": "other"}}),
                "spec.template.metadata.labels: Invalid value: {\"app\":\"kubia\"}: `selector` does not match template `labels`",
            ),
            (
                json!({"replicas": -1}),
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                json!({"template": {"spec": {"restartPolicy": "Never"}}}),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
        ] {
            assert_eq!(create("ReplicationController", controller(spec)), [message]);
        }
        assert_eq!(create("ReplicationController", controller(json!({"selector": {}}))), NOTHING);
    }
}
