//! The status of the pod: computed from what was observed, published as far as it may be published.
//!
//! A terminal phase is held back while a container runs (T-NODE-53). Not here: what the status is
//! (`lifecycle::status`), how it gets into the API (`report`).

use super::Worker;
use super::inbox::DesiredState;
use crate::dependencies::Dependencies;
use crate::metrics;
use crate::report::Report;
use crate::static_pods::is_static;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use lifecycle::observed::Observed;
use lifecycle::status::{self, Verdict, WorkerState};
use std::sync::Arc;
use tokio::time::Instant;

pub(super) struct PublishedStatus {
    pub(super) report: Report,
    /// As published last.
    pub(super) latest: PodStatus,
    pub(super) state: WorkerState,
    /// Why the node terminates the pod, if it does.
    pub(super) verdict: Option<Verdict>,
    /// When this agent learnt of the pod.
    pub(super) known_since: Instant,
}

impl PublishedStatus {
    pub(super) fn new(deps: &Dependencies, pod: &Arc<Pod>) -> PublishedStatus {
        PublishedStatus {
            report: Report::on(&deps.client, Some(pod.clone()).filter(|pod| !is_static(pod))),
            latest: pod.status.clone().unwrap_or_default(),
            state: WorkerState::Syncing,
            verdict: None,
            known_since: Instant::now(),
        }
    }

    /// Takes over what others wrote into the status of the object in the API. `pod` is the desired pod
    /// with the resources that the node granted.
    pub(super) fn take_over(&mut self, desired: &DesiredState, pod: &Pod) {
        if let Some(written) = &pod.status {
            status::take_over(&mut self.latest, written);
            self.take_over_terminal_phase(written);
        }
        let object =
            if is_static(pod) { desired.mirror.clone() } else { Some(desired.pod.clone()) };
        self.report.observed(object);
        if let Some(kill) = &desired.kill {
            self.verdict.get_or_insert_with(|| kill.verdict.clone());
        }
    }

    /// A terminal phase that another client wrote stays: it is not taken back while containers still run,
    /// nor changed by how they end (T-NODE-3, T-NODE-57).
    fn take_over_terminal_phase(&mut self, written: &PodStatus) {
        if status::is_terminal(written) && !status::is_terminal(&self.latest) {
            self.latest.phase.clone_from(&written.phase);
            self.latest.reason.clone_from(&written.reason);
            self.latest.message.clone_from(&written.message);
        }
    }
}

impl Worker {
    /// Computes the status from what was observed and publishes what of it may be published. Returns
    /// whether the computed phase is terminal, published or not (T-NODE-53).
    pub(super) fn publish(&mut self, observed: &Observed) -> bool {
        let addresses = self.addresses(observed);
        let allocation = self.deps.allocations.get(&self.uid);
        let allocation = allocation.filter(|_| self.status.state == WorkerState::Syncing);
        let conditions = allocation.map(|known| known.conditions()).unwrap_or_default();
        let facts = status::Facts { conditions: &conditions, ..self.facts(&addresses) };
        let computed = status::status(&self.pod, observed, &facts, &self.status.latest);
        let is_terminal = status::is_terminal(&computed);
        let published = match observed.any_running() {
            true => status::withheld(computed, &self.status.latest),
            false => computed,
        };
        self.status.latest = published.clone();
        self.publish_status(published);
        is_terminal
    }

    pub(super) fn publish_status(&mut self, status: PodStatus) {
        let mut pod = Pod::clone(&self.pod);
        pod.status = Some(status.clone());
        let before = self.deps.pods.by_uid(&self.uid);
        let known = self.status.known_since.elapsed();
        metrics::record_status_change(
            &self.deps.metrics,
            before.as_deref(),
            &pod,
            clock::now(),
            known,
        );
        self.deps.pods.put(Arc::new(pod));
        self.status.report.write(status);
    }

    pub(super) fn facts<'a>(&'a self, addresses: &'a [std::net::IpAddr]) -> status::Facts<'a> {
        status::Facts {
            now: clock::now(),
            host_ips: &self.deps.facts.host_ips,
            pod_ips: addresses,
            runtime: &self.deps.runtime_name,
            stage: self.status.state,
            verdict: self.status.verdict.as_ref(),
            conditions: &[],
        }
    }
}
