//! One measured run: load, restarts with given values, and what they cost.

use crate::attribution::{Attribution, Lost, attribute};
use crate::connection::Requester;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::load::{Load, Recorded, Sample};
use crate::observer::Observer;
use crate::options::Options;
use crate::outcome::Failure;
use crate::pod_timeline::PodTimeline;
use crate::progress::{Progress, Report};
use crate::rollout::{self, Completed, Setting};
use crate::saturation::{CpuTime, verdict};
use crate::schedule::streams;
use crate::search::Tally;
use crate::target::Target;
use crate::workload::Workload;
use client::Client;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Load before the first restart, to see that nothing is lost without one.
const LEAD_IN: Duration = Duration::from_secs(1);
/// Load after the last replaced pod is gone, besides the delay of the proxies.
const TAIL: Duration = Duration::from_secs(1);
/// How often a run is repeated if this machine was too busy.
const ATTEMPTS_MAX: usize = 5;
/// Pause after a discarded run, so that other work on the machine can end.
const PAUSE: Duration = Duration::from_secs(5);
/// Share of requests that may fail before the first restart.
const UNHEALTHY: f64 = 0.01;

/// One restart within a run. Seconds since the run began, and durations in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Restart {
    pub at: f64,
    /// Until `kubectl rollout status` would return.
    pub rollout: f64,
    /// Until the last replaced pod was gone.
    pub settled: f64,
}

/// A run that counts.
#[derive(Debug, Clone)]
pub struct Run {
    pub setting: Setting,
    pub began: Timestamp,
    /// Seconds from its first to its last planned request.
    pub length: f64,
    pub restarts: Vec<Restart>,
    /// By the time at which they were to be sent.
    pub samples: Vec<Sample>,
    pub pods: Vec<PodTimeline>,
    /// The explanation of every failed request, by index into `samples`.
    pub losses: BTreeMap<usize, Attribution>,
}

/// What every run of a drill needs.
pub(crate) struct Experiment<'a> {
    pub(crate) client: &'a Client,
    pub(crate) options: &'a Options,
    pub(crate) target: &'a Target,
    pub(crate) observer: &'a Observer,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) report: &'a Report,
}

impl Experiment<'_> {
    /// Measures these values, which the present pods must have ([`Experiment::install`]); runs on a saturated machine are
    /// repeated.
    pub(crate) async fn run(&self, setting: Setting) -> Result<Run> {
        let mut reason = String::new();
        for attempt in 1..=ATTEMPTS_MAX {
            (self.report)(Progress::RunStarted { setting, attempt });
            let (run, discarded) = self.measure(setting).await?;
            match discarded {
                None => {
                    (self.report)(Progress::RunDone { setting, tally: run.tally() });
                    return Ok(run);
                }
                Some(why) => {
                    (self.report)(Progress::Discarded { why: &why });
                    reason = why;
                    self.interrupt.sleep(PAUSE).await?;
                }
            }
        }
        Err(Error::Saturated { why: reason, attempts: ATTEMPTS_MAX })
    }

    /// Replaces all pods by ones with these values. A restart terminates the pods that are there, so the new values count
    /// only from the next one on.
    pub(crate) async fn install(&self, setting: Setting) -> Result<()> {
        (self.report)(Progress::Installing { setting });
        let written = self.restart(Some(setting)).await?;
        let silent = |_: &str| {};
        rollout::wait(self.client, &written, self.observer, self.interrupt, &silent).await?;
        self.interrupt.sleep(self.proxy_delay()).await
    }

    /// How long the packet rules of nodes lag behind.
    fn proxy_delay(&self) -> Duration {
        self.options.proxy_delay.as_ref().map_or(Duration::ZERO, |delay| delay.longest)
    }

    /// One run, and why it must be discarded.
    async fn measure(&self, setting: Setting) -> Result<(Run, Option<String>)> {
        let options = self.options;
        let requester = Requester::new(self.target.address.clone(), options.timeout);
        let before = CpuTime::now();
        let planned = streams(&options.connections, options.rate);
        let load = Load::start(requester, self.target.paths.clone(), &planned);
        self.lead_in(&load).await?;
        let mut restarts = Vec::new();
        for number in 1..=options.restarts {
            let at = load.elapsed();
            let written = self.restart(None).await?;
            let tick = |state: &str| {
                let (failed, ended) = load.count();
                (self.report)(Progress::Tick { restart: number, failed, ended, state });
            };
            let Completed { rollout, settled } =
                rollout::wait(self.client, &written, self.observer, self.interrupt, &tick).await?;
            let (rollout, settled) = (rollout.as_secs_f64(), settled.as_secs_f64());
            restarts.push(Restart { at, rollout, settled });
        }
        self.interrupt.sleep(TAIL + self.proxy_delay()).await?;
        let (began, length) = (load.began, load.elapsed());
        let recorded = load.finish().await;
        let discarded = verdict(&recorded, before, CpuTime::now());
        let pods = self.observer.timelines(began, setting.pre_stop_seconds).await?;
        let ready = self.observer.ready_endpoints(began);
        let Recorded { samples, .. } = recorded;
        let losses = explain(&samples, &pods, &ready);
        Ok((Run { setting, began, length, restarts, samples, pods, losses }, discarded))
    }

    async fn lead_in(&self, load: &Load) -> Result<()> {
        self.interrupt.sleep(LEAD_IN).await?;
        let (failed, total) = load.count();
        if failed as f64 > UNHEALTHY * total.max(1) as f64 {
            let classes = load.failures();
            let text =
                |(failure, count): (&Failure, &usize)| format!("{count} {}", failure.phrase());
            let classes = classes.iter().map(text).collect::<Vec<_>>().join(", ");
            return Err(Error::Unhealthy { failed, total, classes });
        }
        Ok(())
    }

    async fn restart(&self, setting: Option<Setting>) -> Result<Workload> {
        self.interrupt.check()?;
        let stamp = clock::rfc3339_micros(clock::now());
        let workload = &self.target.workload;
        let patch = rollout::patch(workload, &self.target.container, setting, &stamp);
        match Workload::patch(self.client, &workload.id, &patch).await {
            Err(Error::Api(error)) if error.is_not_found() => {
                Err(Error::Deleted(workload.id.to_string()))
            }
            written => written,
        }
    }
}

fn explain(
    samples: &[Sample],
    pods: &[PodTimeline],
    ready: &[(f64, usize)],
) -> BTreeMap<usize, Attribution> {
    let failed = samples.iter().enumerate().filter_map(|(index, sample)| {
        let failure = sample.result.err()?;
        let lost = Lost { failure, sent: sample.due, failed: sample.due + sample.latency };
        Some((index, attribute(lost, pods, ready)))
    });
    failed.collect()
}

impl Run {
    /// Requests since the first restart: those before it were only to see that all is well.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (usize, &Sample)> {
        let from = self.restarts.first().map_or(0.0, |restart| restart.at);
        self.samples.iter().enumerate().filter(move |(_, sample)| sample.due >= from)
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (_, sample) in self.counted() {
            tally.total += 1;
            tally.failed += usize::from(sample.result.is_err());
        }
        tally
    }

    /// The explanations of the failed requests that count.
    pub(crate) fn counted_losses(&self) -> impl Iterator<Item = &Attribution> {
        self.counted().filter_map(|(index, _)| self.losses.get(&index))
    }

    /// The longest that an answered request took.
    pub(crate) fn longest_answer(&self) -> f64 {
        let answered = self.counted().filter(|(_, sample)| sample.result.is_ok());
        answered.map(|(_, sample)| sample.latency).fold(0.0, f64::max)
    }

    /// The longest time from a stop signal to the exit, of pods that exited by themselves.
    pub(crate) fn longest_shutdown(&self) -> Option<f64> {
        self.pods.iter().filter_map(PodTimeline::shutdown).reduce(f64::max)
    }

    pub(crate) fn killed_pods(&self) -> usize {
        self.pods.iter().filter(|pod| pod.killed().is_some()).count()
    }

    /// The longest time from a pod's deletion to a request that it lost.
    pub(crate) fn longest_loss_after_deletion(&self) -> f64 {
        let after = self.losses.iter().filter_map(|(index, loss)| {
            let deleted = self.pods.get(loss.pod?)?.deleted()?;
            let sample = self.samples.get(*index)?;
            Some(sample.due + sample.latency - deleted)
        });
        after.fold(0.0, f64::max)
    }

    /// The mean time from a pod's creation until it was ready.
    pub(crate) fn startup(&self) -> Option<f64> {
        let times: Vec<f64> =
            self.pods.iter().filter_map(|pod| Some(pod.ready()? - pod.created()?)).collect();
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }

    pub(crate) fn mean_rollout(&self) -> f64 {
        let count = self.restarts.len().max(1) as f64;
        self.restarts.iter().map(|restart| restart.rollout).sum::<f64>() / count
    }

    pub(crate) fn mean_settled(&self) -> f64 {
        let count = self.restarts.len().max(1) as f64;
        self.restarts.iter().map(|restart| restart.settled).sum::<f64>() / count
    }
}
