//! Who tells of an ending is who was there: nobody posts steps in another's name.

use crate::authn::MASTERS;
use crate::call::Call;
use crate::error::{ApiError, Result};
use lifecycle::timeline::{SERVER, Steps};

const PROXIES: &str = "system:kube-proxy";

/// For callers that are not nodes: controllers, and a proxy that has a user of its own.
pub(super) fn check(call: &Call, steps: &Steps) -> Result<()> {
    let foreign = steps.steps.iter().map(|step| step.actor.as_str()).find(|actor| {
        let packets = call.user.name == PROXIES || call.user.in_group(MASTERS);
        actor.is_empty()
            || *actor == SERVER
            || actor.starts_with("node/")
            || (actor.starts_with("proxy/") && !packets)
    });
    let refuse = |actor: &str| {
        let why = format!("user {:?} cannot speak for {actor:?}", call.user.name);
        Err(ApiError::forbidden(&call.kind, &call.target.name, &why))
    };
    foreign.map_or(Ok(()), refuse)
}
