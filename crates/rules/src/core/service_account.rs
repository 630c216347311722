//! ServiceAccounts, and bindings of pods to nodes.

use super::checks;
use crate::Rules;
use api::field::{At, Errors};

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
