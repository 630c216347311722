//! Rules of the `landfall.dev` kinds, which are not part of Kubernetes. Only the server writes terminations, so
//! they have no defaults and no validation.

use super::Rules;
use api::field::{At, Errors};
use api::value::ValueExt;

/// Services that one participant may name.
const SERVICES_MAX: usize = 1000;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "DrainParticipant" => Rules { validate: validate_participant, ..Rules::NONE },
        "Termination" => Rules {
            fields: &[
                ("pod.name", |record| record.text(&["pod", "name"]).into()),
                ("pod.uid", |record| record.text(&["pod", "uid"]).into()),
                ("pod.node", |record| record.text(&["pod", "node"]).into()),
                ("outcome", |record| record.text(&["outcome"]).into()),
            ],
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

fn validate_participant(participant: &At, errors: &mut Errors) {
    let spec = participant.field("spec");
    let services = spec.field("services");
    if services.len() > SERVICES_MAX {
        return errors.too_many(&services, SERVICES_MAX);
    }
    for service in services.items() {
        if !service.text().split_once('/').is_some_and(|(namespace, name)| {
            !namespace.is_empty() && !name.is_empty() && !name.contains('/')
        }) {
            errors.invalid(&service, "must be a Service as namespace/name, such as default/web");
        }
    }
    let status = participant.field("status");
    for version in ["committed", "awaits"].map(|name| status.field(name)) {
        if !version.text().is_empty() && version.text().parse::<u64>().is_err() {
            errors.invalid(&version, "must be the resourceVersion of an EndpointSlice");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_participant_names_services_and_versions_in_the_right_form() {
        let messages = |participant: serde_json::Value| -> Vec<String> {
            let mut errors = Errors::default();
            validate_participant(&At::root(&participant), &mut errors);
            errors.iter().map(ToString::to_string).collect()
        };
        let valid = json!({"spec": {"services": ["shop/web"]}, "status": {"committed": "12"}});
        assert!(messages(valid).is_empty());
        assert!(messages(json!({})).is_empty());
        let wrong = json!({"spec": {"services": ["web", "/web", "a/b/c"]},
                           "status": {"committed": "newest", "awaits": "-1"}});
        assert_eq!(messages(wrong).len(), 5);
    }
}
