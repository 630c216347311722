//! ServiceAccounts, and bindings of pods to nodes: kinds with next to nothing to check.

use super::checks;
use crate::field::{At, Errors};
use crate::rules::Rules;

pub(super) const RULES: Rules = Rules { returns_deleted: true, ..Rules::NONE };

pub(super) const BINDING: Rules = Rules { validate: validate_binding, ..Rules::NONE };

fn validate_binding(binding: &At, errors: &mut Errors) {
    let target = binding.field("target");
    let kind = target.field("kind");
    if !["", "Node"].contains(&kind.text()) {
        errors.not_supported(&kind, &["Node", "<empty>"]);
    }
    checks::required(&target.field("name"), errors);
}
