//! Decides whether the pod's sandbox can be used or has to be replaced (N-36).

use super::view::View;
use super::{NewSandbox, regular};
use crate::containers::RestartPolicy;

pub(super) enum Sandbox<'a> {
    /// Continue in the sandbox with this ID.
    Good(&'a str),
    New(NewSandbox),
    /// It cannot be used, and nothing would be started in a new one.
    NotWorthIt,
}

pub(super) fn wanted<'a>(view: &View<'a>) -> Sandbox<'a> {
    let Some(newest) = view.observed.sandboxes.first() else {
        return unless_all_done(view, NewSandbox { attempt: 0, changed: false });
    };
    let host_network = view.spec.host_network.unwrap_or(false);
    let ready = view.observed.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    let good = newest.ready
        && ready == 1
        && newest.host_network == host_network
        && (host_network || !newest.addresses.is_empty());
    if good {
        return Sandbox::Good(&newest.id);
    }
    if RestartPolicy::of(view.spec) == RestartPolicy::Never && !view.observed.containers.is_empty()
    {
        return Sandbox::NotWorthIt;
    }
    let attempt = newest.attempt.saturating_add(1);
    unless_all_done(view, NewSandbox { attempt, changed: true })
}

fn unless_all_done<'a>(view: &View<'a>, new: NewSandbox) -> Sandbox<'a> {
    match view.spec.containers.iter().any(|container| regular::is_wanted(view, container)) {
        true => Sandbox::New(new),
        false => Sandbox::NotWorthIt,
    }
}
