//! A whole drill: measure as configured, search, verify the recommendation, and put everything back.
//!
//!     begin ──▶ run as configured ──▶ search ⇄ runs ──▶ verification ──▶ restore ──▶ report
//!       │                                                                   ▲
//!       └────────────── on any error and on Ctrl-C ─────────────────────────┘
//!
//! Not here: one run (`experiment`), which value is next (`search`), what is changed back (`restore`).

use crate::advice::{Advice, Findings, advise};
use crate::error::{Error, Result};
use crate::experiment::{Experiment, Run};
use crate::forecast::RolloutModel;
use crate::hook::Hook;
use crate::interrupt::Interrupt;
use crate::observer::Observer;
use crate::options::Options;
use crate::outcome::Failure;
use crate::progress::{Progress, Report};
use crate::restore::{self, Original};
use crate::rollout::{self, Setting, State};
use crate::search::{Search, Tally};
use crate::target::Target;
use crate::workload::{Workload, WorkloadRef};
use client::Client;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Verification runs at most: each that fails continues the search.
const VERIFICATIONS_MAX: usize = 3;
/// Seconds between the slowest measured shutdown and the recommended end of the grace period.
const GRACE_RESERVE: i64 = 1;
/// The shortest time for a shutdown that is recommended: what the stop signal gets in any case.
const SHUTDOWN_MIN: i64 = 2;
/// How long nodes may take to use a changed delay.
const DELAY_APPLIES: Duration = Duration::from_secs(2);

/// How long the end of an earlier rollout is waited for at most, and how often it is looked at.
const SETTLED_MAX: Duration = Duration::from_secs(300);
const SETTLED_POLL: Duration = Duration::from_millis(300);

/// The result of a drill.
#[derive(Debug, Clone)]
pub struct Drilled {
    pub options: Options,
    pub target: Target,
    /// The values of the workload as it is.
    pub configured: Setting,
    /// In the order in which they were measured. The first is the workload as it is.
    pub runs: Vec<Run>,
    /// For each level of success: the smallest values that reach it.
    pub levels: Vec<(f64, Option<Setting>)>,
    pub recommended: Option<Recommendation>,
    pub advice: Vec<Advice>,
    /// Why there was no search, or why it ended early.
    pub notes: Vec<String>,
    /// Duration of a rollout as computed from the manifest and the measured start and shutdown of pods, with the values
    /// of each run.
    pub forecasts: Vec<Option<f64>>,
}

/// Values that reach the target.
#[derive(Debug, Clone, PartialEq)]
pub struct Recommendation {
    pub setting: Setting,
    /// All requests that were measured with exactly these values.
    pub tally: Tally,
    /// Index of the run that shows it.
    pub run: usize,
}

impl Drilled {
    /// All requests measured with the workload as it is.
    pub fn as_configured(&self) -> Tally {
        tally_of(&self.runs, self.configured)
    }

    /// The workload as it is reaches the target.
    pub fn reached(&self) -> bool {
        self.as_configured().reaches(self.options.target)
    }

    /// The strategic merge patch that sets the recommended values. None: nothing to change.
    pub fn patch(&self) -> Option<Value> {
        let setting = self.recommended.as_ref()?.setting;
        (setting != self.configured).then(|| patch_of(&self.target, setting))
    }
}

fn patch_of(target: &Target, setting: Setting) -> Value {
    let values = rollout::values(&target.workload, &target.container, setting);
    json!({ "spec": { "template": { "spec": values } } })
}

fn tally_of(runs: &[Run], setting: Setting) -> Tally {
    let mut sum = Tally::default();
    for tally in runs.iter().filter(|run| run.setting == setting).map(Run::tally) {
        sum.failed += tally.failed;
        sum.total += tally.total;
    }
    sum
}

/// The values that the workload has.
pub fn configured(target: &Target) -> Setting {
    Setting { pre_stop_seconds: target.hook.seconds(), grace_seconds: target.workload.grace() }
}

/// Why the preStop hook cannot be varied. None: it can.
pub fn why_no_search(target: &Target) -> Option<String> {
    match &target.hook {
        Hook::None | Hook::Sleep(_) => None,
        Hook::Other(what) => Some(format!(
            "the preStop hook of container {} {what}. The drill measures with it and does not vary it, because it is not a \
             sleep",
            target.container
        )),
    }
}

/// Runs a drill. Whatever happens, the workload is as before when this returns, unless the error says otherwise.
pub async fn run(
    client: &Client,
    options: &Options,
    target: &Target,
    interrupt: &Interrupt,
    report: &Report,
) -> Result<Drilled> {
    let mut original =
        Original::of(&target.workload, &target.container, &clock::rfc3339(clock::now()));
    if options.proxy_delay.is_some() {
        original.nodes = restore::proxy_delays(client).await?;
    }
    interrupt.check()?;
    restore::begin(client, &target.workload, &original).await?;
    let observer = Observer::start(
        client,
        target.workload.id.key.namespace(),
        &target.workload.selector,
        &target.container,
        target.service.as_deref(),
    )
    .await;
    let experiment = Experiment { client, options, target, observer: &observer, interrupt, report };
    let measured = measure(&experiment, &original).await;
    report(Progress::Restoring);
    let restored = restore::put_back(client, &target.workload.id, &original).await;
    match (measured, restored) {
        (Ok(drilled), Ok(_)) => {
            settle(&experiment).await;
            report(Progress::Restored);
            Ok(drilled)
        }
        (Err(error), Ok(restored)) => {
            if restored.workload {
                report(Progress::Restored);
            }
            Err(error)
        }
        (measured, Err(error)) => Err(not_restored(target, measured.err(), &error)),
    }
}

/// Waits until the original pods are back, so that the next command finds a workload at rest. The measurement is complete,
/// so an error here does not matter.
async fn settle(experiment: &Experiment<'_>) {
    let Experiment { client, target, observer, interrupt, .. } = experiment;
    if let Ok(Some(current)) = Workload::find(client, &target.workload.id).await {
        let silent = |_: &str| {};
        let _ = rollout::wait(client, &current, observer, interrupt, &silent).await;
    }
}

fn not_restored(target: &Target, first: Option<Error>, error: &Error) -> Error {
    let first = first.map(|error| format!("{}; ", crate::error::chain(&error))).unwrap_or_default();
    let (id, error) = (&target.workload.id, crate::error::chain(error));
    Error::Unsupported(format!(
        "{first}putting back the values of {id} failed: {error}. Run `landfall drill --restore {}/{} -n {}`",
        id.kind.plural(),
        id.key.name(),
        id.key.namespace()
    ))
}

async fn measure(experiment: &Experiment<'_>, original: &Original) -> Result<Drilled> {
    if let Some(delay) = &experiment.options.proxy_delay {
        for node in original.nodes.keys() {
            restore::set_proxy_delay(experiment.client, node, Some(&delay.text)).await?;
        }
        experiment.interrupt.sleep(DELAY_APPLIES).await?;
    }
    let replicas = experiment.target.workload.replicas;
    let end = Instant::now() + SETTLED_MAX;
    while experiment.observer.unsettled(replicas) > 0 && Instant::now() < end {
        experiment.interrupt.sleep(SETTLED_POLL).await?; // Pods of an earlier rollout are terminating.
    }
    let mut session = Session::new(experiment);
    session.measure_all().await?;
    Ok(session.finish())
}

/// The runs of a drill, and what they have shown so far.
struct Session<'a> {
    experiment: &'a Experiment<'a>,
    configured: Setting,
    /// What the pods have at the moment.
    installed: Setting,
    search: Search,
    runs: Vec<Run>,
    notes: Vec<String>,
    recommended: Option<Recommendation>,
    end: Instant,
}

impl<'a> Session<'a> {
    fn new(experiment: &'a Experiment<'a>) -> Session<'a> {
        let options = experiment.options;
        Session {
            experiment,
            configured: configured(experiment.target),
            installed: configured(experiment.target),
            search: Search::new(options.pre_stop_max, &options.levels()),
            runs: Vec::new(),
            notes: Vec::new(),
            recommended: None,
            end: Instant::now() + options.time_limit,
        }
    }

    async fn measure_all(&mut self) -> Result<()> {
        self.run(self.configured).await?;
        if !self.experiment.options.search {
            self.notes.push("only measured, because --no-search was given".to_owned());
            return Ok(());
        }
        if let Some(why) = why_no_search(self.experiment.target) {
            self.notes.push(why);
            return Ok(());
        }
        for _ in 0..VERIFICATIONS_MAX {
            while let Some(seconds) = self.search.next() {
                if !self.time_for_another() {
                    return Ok(());
                }
                self.run(self.setting(seconds)).await?;
            }
            if self.verify().await? {
                break;
            }
        }
        Ok(())
    }

    /// Measures the recommendation. False: it lost too much, and the search goes on.
    async fn verify(&mut self) -> Result<bool> {
        let target = self.experiment.options.target;
        let Some(seconds) = self.search.smallest(target) else { return Ok(true) };
        let setting = self.recommended_setting(seconds);
        if tally_of(&self.runs, setting).total == 0 {
            if !self.time_for_another() {
                return Ok(true);
            }
            self.run(setting).await?;
        }
        let tally = tally_of(&self.runs, setting);
        if !tally.reaches(target) || self.search.smallest(target) != Some(seconds) {
            return Ok(false);
        }
        let run = self.runs.iter().rposition(|run| run.setting == setting).unwrap_or(0);
        self.recommended = Some(Recommendation { setting, tally, run });
        Ok(true)
    }

    async fn run(&mut self, setting: Setting) -> Result<()> {
        if setting != self.installed {
            self.experiment.install(setting).await?;
            self.installed = setting;
        }
        let run = self.experiment.run(setting).await?;
        self.search.add(setting.pre_stop_seconds, run.tally());
        if setting.pre_stop_seconds == 0 || self.runs.is_empty() {
            self.search.suggest(first_guess(&run, self.experiment.target.slow_seconds));
        }
        self.runs.push(run);
        Ok(())
    }

    fn time_for_another(&mut self) -> bool {
        let typical = self.runs.last().map_or(0.0, |run| run.length);
        let enough = Instant::now() + Duration::from_secs_f64(typical) < self.end;
        if !enough {
            (self.experiment.report)(Progress::TimeOver);
            let limit = self.experiment.options.time_limit.as_secs();
            self.notes.push(format!(
                "the search ended after {limit} s, before all values were known; --for allows more"
            ));
        }
        enough
    }

    /// The values of a run of the search: after the sleep, as much time for the shutdown as the workload has now.
    fn setting(&self, pre_stop: u32) -> Setting {
        if pre_stop == self.configured.pre_stop_seconds {
            return self.configured;
        }
        let grace_seconds = i64::from(pre_stop) + self.shutdown_budget();
        Setting { pre_stop_seconds: pre_stop, grace_seconds }
    }

    fn shutdown_budget(&self) -> i64 {
        let left = self.configured.grace_seconds - i64::from(self.configured.pre_stop_seconds);
        left.max(SHUTDOWN_MIN)
    }

    /// The sleep, and a grace period that also covers the slowest shutdown and the longest request.
    fn recommended_setting(&self, pre_stop: u32) -> Setting {
        let enough: Vec<&Run> =
            self.runs.iter().filter(|run| run.setting.pre_stop_seconds >= pre_stop).collect();
        let ignores_signal = enough.iter().any(|run| run.killed_pods() > 0);
        let slowest = enough
            .iter()
            .map(|run| run.longest_shutdown().unwrap_or(0.0).max(run.longest_answer()))
            .fold(0.0, f64::max);
        let shutdown = match ignores_signal {
            true => self.shutdown_budget(),
            false => (slowest.ceil() as i64 + GRACE_RESERVE).max(SHUTDOWN_MIN),
        };
        let grace_seconds = i64::from(pre_stop) + shutdown;
        Setting { pre_stop_seconds: pre_stop, grace_seconds }
    }

    fn finish(self) -> Drilled {
        let levels = self.experiment.options.levels();
        let answers = levels.iter().map(|level| {
            let seconds = self.search.smallest(*level);
            (*level, seconds.map(|seconds| self.recommended_setting(seconds)))
        });
        let least = self.runs.iter().min_by(|a, b| {
            let share = |run: &Run| 1.0 - run.tally().success();
            share(a).total_cmp(&share(b))
        });
        let target = self.experiment.target;
        Drilled {
            options: self.experiment.options.clone(),
            target: target.clone(),
            configured: self.configured,
            levels: answers.collect(),
            recommended: self.recommended.clone(),
            advice: least.map(|run| advise(&findings(run))).unwrap_or_default(),
            notes: self.notes.clone(),
            forecasts: self.runs.iter().map(|run| forecast(target, run)).collect(),
            runs: self.runs,
        }
    }
}

/// The sleep that would have covered all losses of this run.
fn first_guess(run: &Run, slow_seconds: Option<f64>) -> u32 {
    let mut seconds = run.longest_loss_after_deletion();
    if run.counted_losses().any(|loss| loss.failure == Failure::Cut) {
        seconds += slow_seconds.unwrap_or(0.0);
    }
    seconds.ceil().clamp(1.0, f64::from(u16::MAX)) as u32
}

fn findings(run: &Run) -> Findings {
    let mut findings = Findings {
        replaced: run.pods.iter().filter(|pod| pod.deleted().is_some()).count(),
        killed: run.killed_pods(),
        ..Findings::default()
    };
    findings.add(run.counted_losses().copied());
    findings
}

/// The duration of a rollout with the values of a run, from the manifest and the measured start and shutdown of pods.
fn forecast(target: &Target, run: &Run) -> Option<f64> {
    let mut model = RolloutModel::of(&target.workload, run.startup()).ok()?;
    model.ready = run.startup()?;
    model.pre_stop = f64::from(run.setting.pre_stop_seconds);
    model.grace = run.setting.grace_seconds as f64;
    model.shutdown = run.longest_shutdown().unwrap_or(model.grace);
    Some(model.forecast().duration_best)
}

/// Waits until no rollout of the workload is under way.
pub async fn settled(client: &Client, id: &WorkloadRef) -> Result<()> {
    let end = Instant::now() + SETTLED_MAX;
    loop {
        let workload = Workload::load(client, id).await?;
        let state = match rollout::state(&workload, workload.generation) {
            State::Done => return Ok(()),
            State::Waiting(state) | State::Failed(state) => state,
        };
        if Instant::now() > end {
            return Err(Error::Busy { workload: id.to_string(), state });
        }
        tokio::time::sleep(SETTLED_POLL).await;
    }
}

/// Sets the recommended values for good.
pub async fn apply(client: &Client, drilled: &Drilled) -> Result<()> {
    if let Some(patch) = drilled.patch() {
        Workload::patch(client, &drilled.target.workload.id, &patch).await?;
    }
    Ok(())
}
