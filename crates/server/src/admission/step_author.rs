//! A caller may post steps of a termination only as the actor that it is.

use crate::request::call::Call;
use crate::response::error::{ApiError, Result};
use access::authn::MASTERS;
use lifecycle::timeline::{SERVER, Steps};

const PROXIES: &str = "system:kube-proxy";

/// For callers that are not nodes: controllers, and a proxy with a user of its own.
pub(super) fn check(call: &Call, steps: &Steps) -> Result<()> {
    let foreign = steps.steps.iter().map(|step| step.actor.as_str()).find(|actor| {
        let is_proxy = call.user.name == PROXIES || call.user.in_group(MASTERS);
        actor.is_empty()
            || *actor == SERVER
            || actor.starts_with("node/")
            || (actor.starts_with("proxy/") && !is_proxy)
    });
    let refuse = |actor: &str| {
        let why = format!("user {:?} cannot post steps of {actor:?}", call.user.name);
        Err(ApiError::forbidden(&call.kind, &call.target.name, &why))
    };
    foreign.map_or(Ok(()), refuse)
}
