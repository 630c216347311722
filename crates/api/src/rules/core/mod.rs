//! Rules of the core (`v1`) kinds.

use super::Rules;

pub(crate) mod pod_template;

mod persistent_volume;
mod pod_spec;
mod volumes;

pub(crate) fn rules(_kind: &str) -> Rules {
    Rules::NONE
}
