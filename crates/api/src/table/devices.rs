//! Devices and claims on them.

use super::column::{AGE, NAME, Printed, text};
use super::subject::{Subject, join};

pub(super) const RESOURCE_CLAIM: &[Printed] = &[
    NAME,
    text("State", "Whether devices are set aside for it, and whether they are in use.", |o| {
        claim_state(o).into()
    }),
    AGE,
];

fn claim_state(o: &Subject) -> String {
    let mut states = Vec::new();
    if o.is_deleting() {
        states.push("deleted");
    }
    if o.get("status.allocation").is_some() {
        states.push("allocated");
        if !o.list("status.reservedFor").is_empty() {
            states.push("reserved");
        }
    } else if states.is_empty() {
        states.push("pending");
    }
    join(states, ",")
}

pub(super) const RESOURCE_SLICE: &[Printed] = &[
    NAME,
    text("Node", "The node whose devices these are.", |o| o.text("spec.nodeName").into()),
    text("Driver", "The driver that offers them.", |o| o.text("spec.driver").into()),
    text("Pool", "The pool they belong to.", |o| o.text("spec.pool.name").into()),
    AGE,
];
