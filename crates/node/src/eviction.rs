//! Evictions when the node is short of a resource, and the pressure conditions (N-115, N-137,
//! T-NODE-78 to 81).
//!
//!     signals ──▶ thresholds ──▶ conditions ──▶ Health, admission
//!                     │
//!     usage ──────────┴──▶ limits, rank ──▶ EvictionRequest to the agent, which terminates the pod
//!
//! Only `signals` and `usage` read from the machine; the rest is pure. Not here: how a pod terminates.

mod limits;
mod rank;
mod signals;
mod thresholds;
mod usage;

pub(crate) use signals::Filesystems;

use crate::dependencies::Dependencies;
use crate::node_object::{Health, node_reference};
use crate::static_pods::is_critical;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status::is_terminal_pod;
use std::sync::Arc;
use std::time::Duration;
use thresholds::{MetThreshold, Pressure, Threshold, default_thresholds, parse};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use usage::PodUsage;

/// Interval between checks.
const ROUND: Duration = Duration::from_secs(10);
/// How long to wait for evicted pods to terminate, and how often to check (T-NODE-78).
const TERMINATED_MAX: Duration = Duration::from_secs(30);
const TERMINATED_POLL: Duration = Duration::from_secs(1);
/// Grace period of an eviction (T-NODE-79). Containers still get two seconds after the stop signal.
const GRACE: Duration = Duration::from_secs(1);

/// A pod to evict: phase Failed, reason `Evicted`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EvictionRequest {
    pub(crate) pod: Arc<Pod>,
    pub(crate) message: String,
    pub(crate) grace: Duration,
    /// Whether the pod gets a DisruptionTarget condition: not if it exceeded its own limits.
    pub(crate) disruption: bool,
    /// The eviction signal: `memory.available`.
    pub(crate) signal: &'static str,
}

/// Frees unused images and dead containers.
pub(crate) type Reclaim = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The hard eviction thresholds.
pub(crate) struct Thresholds(Vec<Threshold>);

impl Thresholds {
    /// Parses `--eviction-hard`; None means upstream's defaults (N-115).
    pub(crate) fn hard(text: Option<&str>) -> Result<Thresholds, String> {
        Ok(Thresholds(text.map_or_else(|| Ok(default_thresholds()), parse)?))
    }
}

/// Decides on evictions.
pub(crate) struct Eviction {
    deps: Arc<Dependencies>,
    thresholds: Vec<Threshold>,
    filesystems: Filesystems,
    reclaim: Reclaim,
}

impl Eviction {
    pub(crate) fn new(
        deps: Arc<Dependencies>,
        thresholds: Thresholds,
        filesystems: Filesystems,
        reclaim: Reclaim,
    ) -> Eviction {
        Eviction { deps, thresholds: thresholds.0, filesystems, reclaim }
    }

    /// Checks every ten seconds, updates the pressures in `health`, and sends the pods to evict.
    pub(crate) async fn run(
        self,
        health: watch::Sender<Health>,
        evict: mpsc::Sender<EvictionRequest>,
    ) {
        let mut pressure = Pressure::new(self.thresholds.clone());
        loop {
            if let Some(victims) = self.round(&mut pressure, &health).await {
                for victim in &victims {
                    let message = victim.message.clone();
                    self.deps.recorder.warning(
                        &client::reference(&*victim.pod),
                        "Evicted",
                        message,
                    );
                    let labels = [("eviction_signal", victim.signal)];
                    self.deps.metrics.add("kubelet_evictions", &labels, 1);
                    if evict.send(victim.clone()).await.is_err() {
                        return;
                    }
                }
                self.wait_until_terminated(&victims).await;
            }
            sleep(ROUND).await;
        }
    }

    /// One check. Returns the pods to evict.
    async fn round(
        &self,
        pressure: &mut Pressure,
        health: &watch::Sender<Health>,
    ) -> Option<Vec<EvictionRequest>> {
        let mut met = pressure.step(tokio::time::Instant::now(), &signals::read(&self.filesystems));
        update_health(pressure, health);
        let pods = self.deps.pods.list();
        let active: Vec<_> = pods.into_iter().filter(is_active).collect();
        let usage = usage::read(&active, &self.deps).await;
        let over: Vec<EvictionRequest> = usage.iter().filter_map(exceeding_limits).collect();
        if !over.is_empty() {
            return Some(over);
        }
        let first = met.first()?;
        let resource = first.signal.resource();
        self.deps.recorder.warning(
            &node_reference(&self.deps.facts.name),
            "EvictionThresholdMet",
            format!("Attempting to reclaim {resource}"),
        );
        if first.signal.is_disk() {
            (self.reclaim)().await;
            met = pressure.step(tokio::time::Instant::now(), &signals::read(&self.filesystems));
        }
        let victim = choose(met.first()?, &usage)?;
        tracing::warn!(pod = ?victim.pod.metadata.name, message = victim.message, "evicting a pod");
        Some(vec![victim])
    }

    /// Waits until none of them runs, so that the next check sees what they have freed.
    async fn wait_until_terminated(&self, victims: &[EvictionRequest]) {
        let running = |victim: &EvictionRequest| {
            let uid = victim.pod.metadata.uid.as_deref().unwrap_or_default();
            self.deps.pods.by_uid(uid).is_some_and(|pod| is_active(&pod))
        };
        let terminated = async {
            while victims.iter().any(running) {
                sleep(TERMINATED_POLL).await;
            }
        };
        let _ = tokio::time::timeout(TERMINATED_MAX, terminated).await;
    }
}

fn is_active(pod: &Arc<Pod>) -> bool {
    !is_terminal_pod(pod)
}

fn update_health(pressure: &Pressure, health: &watch::Sender<Health>) {
    let now = pressure.conditions();
    health.send_if_modified(|health| {
        let before = (health.memory_pressure, health.disk_pressure, health.pid_pressure);
        (health.memory_pressure, health.disk_pressure, health.pid_pressure) = now;
        before != now
    });
}

/// A pod that uses more ephemeral storage than its limits allow (N-137).
fn exceeding_limits(usage: &PodUsage) -> Option<EvictionRequest> {
    if is_critical(&usage.pod) {
        return None;
    }
    let message = limits::exceeded(usage)?;
    let signal = "ephemeralpodfs.limit";
    Some(EvictionRequest {
        pod: usage.pod.clone(),
        message,
        grace: GRACE,
        disruption: false,
        signal,
    })
}

/// The first pod in the ranking that may be evicted (T-NODE-78).
fn choose(met: &MetThreshold, usage: &[PodUsage]) -> Option<EvictionRequest> {
    let victim = rank::ranked(met.signal, usage).into_iter().find(|u| !is_critical(&u.pod))?;
    let message = rank::message(met, victim);
    let signal = met.signal.name();
    Some(EvictionRequest {
        pod: victim.pod.clone(),
        message,
        grace: GRACE,
        disruption: true,
        signal,
    })
}
