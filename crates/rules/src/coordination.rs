//! Rules of the `coordination.k8s.io` kinds: leases for leader election and heartbeats.

use super::{Rules, check};
use api::field::{At, Errors};
use api::value::ValueExt;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "Lease" => Rules {
            default: |lease| {
                lease.object("spec");
            },
            validate,
            unconditional_update: false,
            create_on_update: true,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

fn validate(lease: &At, errors: &mut Errors) {
    let spec = lease.field("spec");
    let duration = spec.field("leaseDurationSeconds");
    if duration.int().is_some_and(|seconds| seconds <= 0) {
        errors.invalid(&duration, "must be greater than 0");
    }
    check::not_negative(&spec.field("leaseTransitions"), errors);
    let (strategy, preferred) = (spec.field("strategy"), spec.field("preferredHolder"));
    if preferred.is_set() && strategy.text().is_empty() {
        errors.forbidden(&preferred, "may only be specified if `strategy` is defined");
    }
    if strategy.is_set() && strategy.text().is_empty() {
        errors.invalid(&strategy, "must not be empty");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_92_a_lease_has_a_positive_duration() {
        let lease = json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}});
        let mut errors = Errors::default();
        validate(&At::root(&lease), &mut errors);
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }
}
