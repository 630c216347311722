//! Rules of the core (`v1`) kinds.

use super::Rules;

pub(crate) fn rules(_kind: &str) -> Rules {
    Rules::NONE
}
