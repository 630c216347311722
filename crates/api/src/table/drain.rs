//! Participants of drains: `kubectl get drainparticipants`.

use super::column::{AGE, NAME, Printed, text};
use super::subject::NONE;

pub(super) const PARTICIPANT: &[Printed] = &[
    NAME,
    text("Committed", "The version of the EndpointSlices that the participant uses.", |o| {
        o.text_or("status.committed", NONE).into()
    }),
    text("Awaits", "The version that the pods of this node wait for.", |o| {
        o.text_or("status.awaits", NONE).into()
    }),
    AGE,
];
