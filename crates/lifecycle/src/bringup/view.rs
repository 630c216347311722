//! The inputs of one decision, and how a container gets into the plan.

use super::{Again, ContainerKill, KillReason, Plan, Start, Waiting};
use crate::backoff::{Backoffs, container_key};
use crate::containers::{Kind, pod_title};
use crate::observed::{Container, Observed, fingerprint};
use crate::termination::container_grace;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;

pub(super) struct View<'a> {
    pub(super) pod: &'a core::Pod,
    pub(super) spec: &'a core::PodSpec,
    pub(super) observed: &'a Observed,
    pub(super) backoffs: &'a Backoffs,
    pub(super) now: Timestamp,
}

impl<'a> View<'a> {
    /// The newest instance in this sandbox. Instances in earlier sandboxes do not count for initialisation.
    pub(super) fn current(&self, sandbox: &str, name: &str) -> Option<&'a Container> {
        self.observed.instances(name).find(|container| container.sandbox == sandbox)
    }

    /// Adds a container to those to start, or to those in back-off.
    pub(super) fn start(&self, plan: &mut Plan, kind: Kind, index: usize, of: &core::Container) {
        let name = &of.name;
        let key = container_key(of);
        let again = self.last_end(name).map(|finished_at| Again { key, finished_at });
        let remaining =
            again.as_ref().and_then(|a| self.backoffs.waiting(&a.key, a.finished_at, self.now));
        if let Some(remaining) = remaining {
            let pod = pod_title(self.pod);
            let delay = go_duration(remaining.delay);
            plan.waiting.push(Waiting {
                name: name.clone(),
                kind,
                until: remaining.until,
                delay: remaining.delay,
                message: format!("back-off {delay} restarting failed container={name} pod={pod}"),
                event: format!("Back-off restarting failed container {name} in pod {pod}"),
            });
            return;
        }
        let attempt = self.next_attempt(name);
        plan.start.push(Start { name: name.clone(), kind, index, attempt, again });
    }

    pub(super) fn start_ephemeral(
        &self,
        plan: &mut Plan,
        index: usize,
        of: &core::EphemeralContainer,
    ) {
        let kind = Kind::Ephemeral;
        plan.start.push(Start { name: of.name.clone(), kind, index, attempt: 0, again: None });
    }

    pub(super) fn kill(
        &self,
        plan: &mut Plan,
        kind: Kind,
        of: &Container,
        why: KillReason,
        text: String,
    ) {
        let spec = self.spec_of(&of.name);
        let probe = spec.and_then(|spec| match why {
            KillReason::Liveness => spec.liveness_probe.as_ref(),
            KillReason::Startup => spec.startup_probe.as_ref(),
            KillReason::Changed | KillReason::Resized | KillReason::Unknown => None,
        });
        plan.kill.push(ContainerKill {
            id: of.id.clone(),
            name: of.name.clone(),
            kind,
            why,
            message: text,
            grace: container_grace(self.pod, probe),
        });
    }

    /// It was created from another image than the spec has now (N-21).
    pub(super) fn changed(&self, spec: &core::Container, container: &Container) -> bool {
        let wanted = fingerprint(&spec.name, spec.image.as_deref());
        !container.fingerprint.is_empty() && container.fingerprint != wanted
    }

    /// It runs with other resources than granted, and its policy requires a restart for them (N-120).
    pub(super) fn outgrown(&self, spec: &core::Container, container: &Container) -> bool {
        let applied = container.resources.as_ref();
        let change = applied.and_then(|applied| crate::resize::change(spec, applied));
        change.is_some_and(|change| change.restart)
    }

    fn spec_of(&self, name: &str) -> Option<&'a core::Container> {
        let mut all = self.spec.containers.iter().chain(self.spec.init_containers.iter().flatten());
        all.find(|container| container.name == name)
    }

    fn published(&self, name: &str) -> Option<&'a core::ContainerStatus> {
        let status = self.pod.status.as_ref()?;
        let lists = [&status.container_statuses, &status.init_container_statuses];
        lists.into_iter().flatten().flatten().find(|status| status.name == name)
    }

    /// When it exited last; its back-off counts from there. If the runtime's record is gone, the published status
    /// counts: a container that is removed after each exit must not escape its back-off.
    fn last_end(&self, name: &str) -> Option<Timestamp> {
        let seen = self.observed.instances(name).find_map(|container| container.exit());
        if let Some(exit) = seen {
            return Some(exit.finished_at);
        }
        let published = self.published(name)?;
        let ended = |state: &Option<core::ContainerState>| {
            state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0)
        };
        ended(&published.state).or_else(|| ended(&published.last_state))
    }

    /// The next restart count: one more than that of any known instance (N-48).
    fn next_attempt(&self, name: &str) -> u32 {
        let seen = self.observed.instances(name).map(|container| container.attempt).max();
        let logged = self.observed.past_attempts.get(name).copied();
        let published = self.published(name).map(|published| {
            let count = u32::try_from(published.restart_count).unwrap_or(0);
            // Without an ID the status is about an instance that does not exist yet.
            count + u32::from(published.container_id.is_some())
        });
        let after = |past: Option<u32>| past.map(|attempt| attempt.saturating_add(1));
        [after(seen), after(logged), published].into_iter().flatten().max().unwrap_or(0)
    }
}

/// `10s`, `1m20s`, `5m0s`: as upstream writes durations.
fn go_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}
