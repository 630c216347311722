//! Rules of the `landfall.dev` kinds: what is not part of Kubernetes. They are written by the server
//! itself, so that there is nothing to default and nobody to correct.

use super::Rules;
use crate::value::ValueExt;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "Termination" => Rules {
            fields: &[
                ("pod.name", |record| record.text(&["pod", "name"]).into()),
                ("pod.uid", |record| record.text(&["pod", "uid"]).into()),
                ("pod.node", |record| record.text(&["pod", "node"]).into()),
                ("outcome", |record| record.text(&["outcome"]).into()),
            ],
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}
