//! Stand-in until the real core rules land.

use super::Rules;

pub(crate) mod pod_template;

mod persistent_volume;
mod pod_spec;
mod volumes;

pub(crate) fn rules(_kind: &str) -> Rules {
    Rules::NONE
}
pub(crate) mod pod_template {
    //! Stand-in.
    use crate::field::{At, Errors};
    use crate::value::ValueExt;
    use serde_json::Value;
    pub(crate) fn default_template(t: &mut Value) {
        t.object("metadata");
        t.object("spec").set_default("restartPolicy", "Always");
    }
    pub(crate) fn validate_template(_: &At, _: &mut Errors) {}
    pub(crate) fn default_claim(c: &mut Value) {
        c.object("spec").set_default("volumeMode", "Filesystem");
    }
    pub(crate) fn validate_claim(_: &At, _: &mut Errors) {}
}
