//! Rules of the `node.k8s.io` kinds: which handler runs a pod's containers.

use super::{Rules, check};
use crate::field::{At, Errors};
use crate::names;

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
    crate::metadata::labels(&scheduling.field("nodeSelector"), errors);
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

    ///
    #[test]
    fn a_77_a_runtime_class_keeps_its_handler() {
        let (old, new) = (json!({"handler": "runc"}), json!({"handler": "kata"}));
        let mut errors = Errors::default();
        (rules("RuntimeClass").validate_update)(&At::root(&new), &At::root(&old), &mut errors);
        let said: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["handler: Invalid value: \"kata\": field is immutable"]);
    }
}
