//! Rules of the `scheduling.k8s.io` kinds: PriorityClasses.

use super::{Generation, Rules, check};
use api::field::{At, Errors};
use api::value::ValueExt;

/// Higher priorities are reserved for the system.
const USER_MAX: i64 = 1_000_000_000;

/// The predefined classes.
const SYSTEM: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// Whether a class is predefined.
pub fn is_system_class(name: &str) -> bool {
    SYSTEM.iter().any(|(system, _)| *system == name)
}

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "PriorityClass" => Rules {
            default: |class| {
                class.set_default("value", 0);
                class.set_default("preemptionPolicy", "PreemptLowerPriority");
            },
            validate,
            validate_update,
            generation: Generation::Fixed,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

fn validate(class: &At, errors: &mut Errors) {
    let metadata = class.field("metadata");
    let name = metadata.field("name");
    let value = class.field("value");
    if name.text().starts_with("system-") {
        if !SYSTEM.iter().any(|(known, priority)| {
            *known == name.text()
                && Some(*priority) == value.int()
                && !class.field("globalDefault").is_true()
        }) {
            let detail =
                "priority class names with 'system-' prefix are reserved for system use only";
            errors.forbidden(&name, &format!("{detail}. error: {}", why_not_system(class)));
        }
    } else if value.int().is_some_and(|value| value > USER_MAX) {
        let detail = format!("maximum allowed value of a user defined priority is {USER_MAX}");
        errors.forbidden(&value, &detail);
    }
    let preemption = class.field("preemptionPolicy");
    check::one_of_if_set(&preemption, &["PreemptLowerPriority", "Never"], errors);
}

fn why_not_system(class: &At) -> String {
    let metadata = class.field("metadata");
    let name = metadata.field("name").text();
    match SYSTEM.iter().find(|(known, _)| *known == name) {
        None => format!("{name} is not a known system priority class"),
        Some((_, priority)) if Some(*priority) != class.field("value").int() => {
            format!("value of {name} PriorityClass must be {priority}")
        }
        Some(_) => format!("globalDefault of {name} PriorityClass must be false"),
    }
}

/// Value and preemption policy are immutable, because pods have a copy of them.
fn validate_update(new: &At, old: &At, errors: &mut Errors) {
    let value = new.field("value");
    if !check::same(&value, &old.field("value")) {
        errors.forbidden(&value, "may not be changed in an update.");
    }
    check::immutable(&new.field("preemptionPolicy"), &old.field("preemptionPolicy"), errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_159_the_highest_priorities_are_reserved_for_the_system() {
        for (name, value, message) in [
            ("mine", 10, None),
            ("system-node-critical", 2_000_001_000, None),
            (
                "mine",
                1_000_000_001,
                Some(
                    "value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
                ),
            ),
            (
                "system-mine",
                1,
                Some(
                    "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class",
                ),
            ),
        ] {
            let class =
                json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"});
            let mut errors = Errors::default();
            validate(&At::root(&class), &mut errors);
            assert_eq!(errors.iter().next().map(ToString::to_string).as_deref(), message, "{name}");
        }
    }
}
