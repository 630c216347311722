//! Rules of the `node.k8s.io` kinds: RuntimeClasses.

use super::{Rules, check};
use api::field::{At, Errors};
use api::names;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "RuntimeClass" => Rules {
            validate,
            validate_update: |new, old, errors| {
                check::immutable(&new.field("handler"), &old.field("handler"), errors);
            },
            unconditional_update: false,
            create_on_update: true,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

fn validate(class: &At, errors: &mut Errors) {
    check::text(&class.field("handler"), names::dns1123_label, errors);
    let scheduling = class.field("scheduling");
    api::metadata::labels(&scheduling.field("nodeSelector"), errors);
    let tolerations = scheduling.field("tolerations");
    let mut seen = check::Unique::new();
    for toleration in tolerations.items() {
        if !seen.add(toleration.value().cloned().unwrap_or_default()) {
            errors.duplicate(&toleration);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_77_the_handler_of_a_runtime_class_is_immutable() {
        let (old, new) = (json!({"handler": "runc"}), json!({"handler": "kata"}));
        let mut errors = Errors::default();
        (rules("RuntimeClass").validate_update)(&At::root(&new), &At::root(&old), &mut errors);
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(messages, ["handler: Invalid value: \"kata\": field is immutable"]);
    }
}
