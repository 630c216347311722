//! When the node runs short: pressure conditions, and which pod has to go (N-115, N-137, T-NODE-78
//! to 81).
//!
//!     signals ──▶ thresholds ──▶ conditions ──▶ Health, admission
//!                     │
//!     usage ──────────┴──▶ limits, rank ──▶ one pod, told to the agent, which ends it
//!
//! Only `signals` and `usage` look at the machine; the rest is pure. Not here: how a pod ends.

mod limits;
mod rank;
mod signals;
mod thresholds;
mod usage;

pub(crate) use signals::Places;

use crate::node_object::{Health, node_reference};
use crate::parts::Parts;
use crate::static_pods::is_critical;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status::is_terminal;
use std::sync::Arc;
use std::time::Duration;
use thresholds::{Met, Pressure, Threshold, default_thresholds, parse};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use usage::PodUsage;

const ROUND: Duration = Duration::from_secs(10);
/// How long to wait for an evicted pod to be cleared away, and how often to look (T-NODE-78).
const CLEARED_MAX: Duration = Duration::from_secs(30);
const CLEARED_LOOK: Duration = Duration::from_secs(1);
/// Grace of an eviction (T-NODE-79); a stop signal gets its two seconds all the same.
const GRACE: Duration = Duration::from_secs(1);

/// A pod that has to go: phase Failed, reason `Evicted`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Evict {
    pub(crate) pod: Arc<Pod>,
    pub(crate) message: String,
    pub(crate) grace: Duration,
    /// Whether it gets a DisruptionTarget condition: not when its own limits are the reason.
    pub(crate) disruption: bool,
    /// What the node was short of, or the pod had too much of: `memory.available`.
    pub(crate) signal: &'static str,
}

/// Frees what nobody uses: images, dead containers.
pub(crate) type Reclaim = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// When the node is short of something.
pub(crate) struct Thresholds(Vec<Threshold>);

impl Thresholds {
    /// As `--eviction-hard` has them; None: upstream's (N-115).
    pub(crate) fn hard(text: Option<&str>) -> Result<Thresholds, String> {
        Ok(Thresholds(text.map_or_else(|| Ok(default_thresholds()), parse)?))
    }
}

/// What evictions are decided with.
pub(crate) struct Eviction {
    parts: Arc<Parts>,
    thresholds: Vec<Threshold>,
    places: Places,
    reclaim: Reclaim,
}

impl Eviction {
    pub(crate) fn new(
        parts: Arc<Parts>,
        thresholds: Thresholds,
        places: Places,
        reclaim: Reclaim,
    ) -> Eviction {
        Eviction { parts, thresholds: thresholds.0, places, reclaim }
    }

    /// Looks every ten seconds, keeps the pressures of `health` true, and tells who is to go.
    pub(crate) async fn run(self, health: watch::Sender<Health>, evict: mpsc::Sender<Evict>) {
        let mut pressure = Pressure::new(self.thresholds.clone());
        loop {
            if let Some(victims) = self.round(&mut pressure, &health).await {
                for victim in &victims {
                    let message = victim.message.clone();
                    self.parts.recorder.warning(
                        &client::reference(&*victim.pod),
                        "Evicted",
                        message,
                    );
                    let labels = [("eviction_signal", victim.signal)];
                    self.parts.metrics.add("kubelet_evictions", &labels, 1);
                    if evict.send(victim.clone()).await.is_err() {
                        return;
                    }
                }
                self.cleared(&victims).await;
            }
            sleep(ROUND).await;
        }
    }

    /// One look, and what follows from it.
    async fn round(
        &self,
        pressure: &mut Pressure,
        health: &watch::Sender<Health>,
    ) -> Option<Vec<Evict>> {
        let mut met = pressure.step(tokio::time::Instant::now(), &signals::read(&self.places));
        tell_health(pressure, health);
        let pods = self.parts.pods.list();
        let active: Vec<_> = pods.into_iter().filter(is_active).collect();
        let usage = usage::read(&active, &self.parts).await;
        let over: Vec<Evict> = usage.iter().filter_map(over_its_limits).collect();
        if !over.is_empty() {
            return Some(over);
        }
        let first = met.first()?;
        let resource = first.signal.resource();
        self.parts.recorder.warning(
            &node_reference(&self.parts.facts.name),
            "EvictionThresholdMet",
            format!("Attempting to reclaim {resource}"),
        );
        if first.signal.is_disk() {
            (self.reclaim)().await;
            met = pressure.step(tokio::time::Instant::now(), &signals::read(&self.places));
        }
        let victim = choose(met.first()?, &usage)?;
        tracing::warn!(pod = ?victim.pod.metadata.name, message = victim.message, "evicting a pod");
        Some(vec![victim])
    }

    /// Until none of them runs any more, so that the next look sees what their end has freed.
    async fn cleared(&self, victims: &[Evict]) {
        let there = |victim: &Evict| {
            let uid = victim.pod.metadata.uid.as_deref().unwrap_or_default();
            self.parts.pods.by_uid(uid).is_some_and(|pod| is_active(&pod))
        };
        let gone = async {
            while victims.iter().any(there) {
                sleep(CLEARED_LOOK).await;
            }
        };
        let _ = tokio::time::timeout(CLEARED_MAX, gone).await;
    }
}

fn is_active(pod: &Arc<Pod>) -> bool {
    !pod.status.as_ref().is_some_and(is_terminal)
}

fn tell_health(pressure: &Pressure, health: &watch::Sender<Health>) {
    let now = pressure.conditions();
    health.send_if_modified(|health| {
        let before = (health.memory_pressure, health.disk_pressure, health.pid_pressure);
        (health.memory_pressure, health.disk_pressure, health.pid_pressure) = now;
        before != now
    });
}

/// N-137.
fn over_its_limits(usage: &PodUsage) -> Option<Evict> {
    if is_critical(&usage.pod) {
        return None;
    }
    let message = limits::exceeded(usage)?;
    let signal = "ephemeralpodfs.limit";
    Some(Evict { pod: usage.pod.clone(), message, grace: GRACE, disruption: false, signal })
}

/// The first in order that may be evicted at all (T-NODE-78).
fn choose(met: &Met, usage: &[PodUsage]) -> Option<Evict> {
    let victim = rank::ranked(met.signal, usage).into_iter().find(|u| !is_critical(&u.pod))?;
    let message = rank::message(met, victim);
    let signal = met.signal.name();
    Some(Evict { pod: victim.pod.clone(), message, grace: GRACE, disruption: true, signal })
}
