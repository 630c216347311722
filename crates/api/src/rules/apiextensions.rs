//! Rules of the `apiextensions` kinds.

use super::Rules;

pub(crate) fn rules(_kind: &str) -> Rules {
    Rules::NONE
}
