//! Rules of the `landfall.dev` kinds, which are not part of Kubernetes. Only the server writes them, so
//! there are no defaults and no validation.

use super::Rules;
use api::value::ValueExt;

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
