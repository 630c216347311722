//! Checks of a pod's spec, the same for pods and templates.

use crate::field::{At, Errors};

pub(super) fn validate(_spec: &At, _metadata: &At, _errors: &mut Errors) {}

pub(super) fn annotations(_annotations: &At, _spec: &At, _errors: &mut Errors) {}
