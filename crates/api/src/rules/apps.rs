//! Rules of the `apps` kinds.

use super::Rules;

pub(crate) fn rules(_kind: &str) -> Rules {
    Rules::NONE
}
