//! Runs one seed from beginning to end.

use crate::checker::{BrokenRule, Requests};
use crate::cluster::{Cluster, ClusterConfig, Interference, WrapRuntime};
use crate::connection::{NetworkFaults, State};
use crate::control_plane::ControlPlane;
use crate::event_log::Name;
use crate::identity;
use crate::plan::{self, Action};
use crate::proxy::WrapRules;
use crate::scenario::{Scenario, Style};
use crate::service_traffic;
use crate::settle;
use client::Selection;
use lifecycle::timeline::TerminationRecord;
use server::ServerTemplate;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

/// The Unix time at which simulated time begins.
const EPOCH: i64 = 1_800_000_000;
/// Deletions finish within this time after all faults have ended: it covers the longest grace period, a watch that
/// waits for a silent server, and the delays between retries.
const PATIENCE: Duration = Duration::from_secs(400);
/// Agents report within this time what they could not report before.
const REPORTED_WITHIN: Duration = Duration::from_secs(15);
/// How often to check whether all deletions have finished.
const POLL: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use the directory of the simulation")]
    Disk(#[from] std::io::Error),
    #[error("cannot prepare the server")]
    Server(#[from] server::Error),
}

/// What all simulated clusters of this process share: keys, the first objects, a directory.
pub struct SimulationSetup {
    pub(crate) foundation: ServerTemplate,
    pub(crate) directory: tempfile::TempDir,
}

impl SimulationSetup {
    /// Takes about a second; after that, clusters start quickly.
    pub fn prepare() -> Result<SimulationSetup, Error> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        let directory = tempfile::Builder::new().prefix("landfall-sim-").tempdir_in(place)?;
        let foundation = block_on_simulated(0, async {
            let foundation = ServerTemplate::create(directory.path()).await?;
            ControlPlane::settled(&foundation).await
        })??;
        Ok(SimulationSetup { foundation, directory })
    }
}

/// How to run a seed.
#[derive(Clone, Default)]
pub struct Options {
    pub wrap_runtime: Option<WrapRuntime>,
    pub wrap_rules: Option<WrapRules>,
    pub interference: Option<Interference>,
    /// How late the Service proxy of every node applies a change. None: the seed decides.
    pub proxy_delay: Option<RangeInclusive<Duration>>,
    /// Keep the trace even if no rule is broken.
    pub trace: bool,
    /// Run the seed again and compare the runs byte by byte.
    pub twice: bool,
    /// Do not check the termination records.
    pub ignore_timelines: bool,
}

#[derive(Debug, Clone)]
pub struct Outcome {
    pub seed: u64,
    pub violation: Option<Violation>,
    /// One line per event, for people. Kept if a rule was broken or [`Options::trace`] is set.
    pub trace: Vec<String>,
    /// All events with complete API objects. The same seed always gives the same bytes.
    pub log: String,
    pub simulated: Duration,
    pub pods: usize,
    pub containers: usize,
    pub requests: Requests,
}

#[derive(Debug, Clone)]
pub struct Violation {
    /// Time since the start of the run.
    pub at: Duration,
    pub broken: BrokenRule,
}

/// Runs a seed on this thread.
pub fn run(
    setup: &SimulationSetup,
    scenario: &'static Scenario,
    seed: u64,
    options: &Options,
) -> Result<Outcome, Error> {
    let scenario = scenario.resolve(seed);
    let options = Options { trace: options.trace || options.twice, ..options.clone() };
    let mut outcome = run_once(setup, scenario, seed, &options)?;
    if options.twice && outcome.violation.is_none() {
        let again = run_once(setup, scenario, seed, &options)?;
        if again.log != outcome.log {
            let mut lines = outcome.log.lines().zip(again.log.lines());
            let (one, other) = lines.find(|(one, other)| one != other).unwrap_or_default();
            let why = format!("the first run has {one}, the second {other}");
            let broken = BrokenRule { rule: "one seed, one run", why };
            outcome.violation = Some(Violation { at: outcome.simulated, broken });
        }
    }
    Ok(outcome)
}

fn run_once(
    setup: &SimulationSetup,
    scenario: &Scenario,
    seed: u64,
    options: &Options,
) -> Result<Outcome, Error> {
    let directory = tempfile::Builder::new().prefix("seed-").tempdir_in(setup.directory.path())?;
    Ok(block_on_simulated(
        seed,
        simulate(&setup.foundation, scenario, seed, options, directory.path()),
    )?)
}

/// Runs a future on this thread, on simulated time and with random numbers from the seed, those of tokio included.
pub(crate) fn block_on_simulated<T>(seed: u64, run: impl Future<Output = T>) -> std::io::Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    let runtime = builder.enable_time().start_paused(true).build()?;
    let result = runtime.block_on(async {
        clock::simulate(jiff::Timestamp::constant(EPOCH, 0), seed);
        run.await
    });
    drop(runtime);
    clock::stop_simulating();
    Ok(result)
}

async fn simulate(
    foundation: &ServerTemplate,
    scenario: &Scenario,
    seed: u64,
    options: &Options,
    directory: &Path,
) -> Outcome {
    let proxies = match scenario.style {
        Style::Traffic => {
            let (delay, wrap) = (options.proxy_delay.as_ref(), options.wrap_rules.as_ref());
            service_traffic::proxies(scenario, seed, delay, wrap)
        }
        _ => Vec::new(),
    };
    let config = ClusterConfig {
        foundation,
        seed,
        nodes: scenario.nodes,
        controllers: scenario.style.controllers(),
        directory,
        wrap_runtime: options.wrap_runtime.clone(),
        proxies,
        checked: true,
    };
    let mut cluster = match Cluster::start(config).await {
        Ok(cluster) => cluster,
        Err(why) => {
            let broken = BrokenRule { rule: "a cluster starts", why };
            let violation = Some(Violation { at: Duration::ZERO, broken });
            return Outcome {
                seed,
                violation,
                trace: Vec::new(),
                log: String::new(),
                simulated: Duration::ZERO,
                pods: 0,
                containers: 0,
                requests: Requests::default(),
            };
        }
    };
    if let Some(interference) = &options.interference {
        cluster.start_interference(interference);
    }
    match scenario.style {
        Style::Identity => identity::simulate(&mut cluster, scenario, seed).await,
        Style::Settle => settle::simulate(&mut cluster, scenario, seed).await,
        Style::Traffic => service_traffic::simulate(&mut cluster, scenario, seed).await,
        Style::Once | Style::Churn | Style::Mix => {
            perform_plan(&mut cluster, scenario, seed).await;
            heal(&mut cluster).await;
            wait_until_quiet(&cluster).await;
        }
    }
    if !options.ignore_timelines && matches!(scenario.style, Style::Once | Style::Identity) {
        compare_timelines(&cluster).await;
    }
    cluster.log.finish();
    let broken = cluster.log.violation();
    let violation = broken.map(|(at, broken)| Violation { at, broken });
    let wanted = options.trace || violation.is_some();
    let (pods, containers) = cluster.log.with_checker(|checker| checker.counts());
    Outcome {
        seed,
        violation,
        trace: if wanted { cluster.log.trace() } else { Vec::new() },
        log: if wanted { cluster.log.full_text() } else { String::new() },
        simulated: cluster.log.now(),
        pods,
        containers,
        requests: cluster.log.with_checker(|checker| checker.requests()),
    }
}

/// Performs the actions that the seed decides.
async fn perform_plan(cluster: &mut Cluster, scenario: &Scenario, seed: u64) {
    let began = tokio::time::Instant::now();
    for action in plan::draw(scenario, seed) {
        tokio::time::sleep_until(began + action.at).await;
        if cluster.log.violation().is_some() {
            return;
        }
        perform(cluster, action.what).await;
    }
    tokio::time::sleep_until(began + scenario.span).await;
}

pub(crate) async fn perform(cluster: &mut Cluster, what: Action) {
    let operator = cluster.operator.clone();
    match what {
        Action::Create(pod) => drop(tokio::spawn(operator.create(*pod))),
        Action::Delete { name, grace } => drop(tokio::spawn(operator.delete(name, grace))),
        Action::CrashAgent { host, steps, downtime } => {
            let host = &cluster.hosts[host];
            cluster.log.note(format!("{} will crash in {steps} steps", host.name));
            host.crash_after(steps, downtime);
        }
        Action::CrashAtStop { host, downtime } => {
            let host = &cluster.hosts[host];
            cluster.log.note(format!("{} will crash when it stops a container", host.name));
            host.crash_at_stop(downtime);
        }
        Action::CrashControlPlane { downtime } => crash_control_plane(cluster, downtime).await,
        Action::StopStoring { writes, downtime } => {
            let _ = cluster.control_plane.stop_storing_after(writes).await;
            crash_control_plane(cluster, downtime).await;
        }
        Action::Refuse { host, lasts } => disconnect(cluster, host, State::Refused, lasts),
        Action::Silence { host, lasts } => disconnect(cluster, host, State::Silent, lasts),
        Action::Tear { host } => {
            cluster.log.note(format!("the watches of {} break", cluster.hosts[host].name));
            cluster.hosts[host].connection.break_streams();
        }
        Action::NetworkFaults { host, delay, lost_responses, lost_requests, lasts } => {
            let host = &cluster.hosts[host];
            let faults = NetworkFaults { delay, lost_responses, lost_requests };
            cluster.log.note(format!("{}: {faults:?} for {lasts:?}", host.name));
            host.connection.set_faults(faults);
            let connection = host.connection.clone();
            tokio::spawn(async move {
                tokio::time::sleep(lasts).await;
                connection.set_faults(NetworkFaults::default());
            });
        }
        Action::JumpClock { seconds } => {
            cluster.log.note(format!("the clock jumps by {seconds} s"));
            clock::jump(jiff::SignedDuration::from_secs(seconds));
        }
    }
}

async fn crash_control_plane(cluster: &mut Cluster, downtime: Duration) {
    cluster.control_plane.crash();
    tokio::time::sleep(downtime).await;
    if let Err(error) = cluster.control_plane.start().await {
        cluster.log.note(format!("the control plane cannot start: {error}"));
    }
}

fn disconnect(cluster: &Cluster, host: usize, state: State, lasts: Duration) {
    let host = &cluster.hosts[host];
    cluster.log.note(format!("the connection of {} is {state:?} for {lasts:?}", host.name));
    host.connection.set_state(state);
    let connection = host.connection.clone();
    tokio::spawn(async move {
        tokio::time::sleep(lasts).await;
        connection.set_state(State::Up);
    });
}

/// Ends all faults and deletes all pods that are left.
async fn heal(cluster: &mut Cluster) {
    if cluster.log.violation().is_some() {
        return;
    }
    cluster.log.note("all faults end");
    for host in &cluster.hosts {
        host.connection.set_state(State::Up);
        host.connection.set_faults(NetworkFaults::default());
        host.cancel_crash();
    }
    let left: Vec<Name> = cluster.log.with_checker(|checker| checker.undeleted());
    for name in left {
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        tokio::spawn(cluster.operator.clone().delete(name, None));
    }
}

async fn wait_until_quiet(cluster: &Cluster) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < until && cluster.log.violation().is_none() {
        tokio::time::sleep(POLL).await;
        if cluster.log.with_checker(|checker| checker.is_quiet()) {
            return;
        }
    }
}

/// Checks that the termination records agree with what happened. Agents may report late, so this waits first.
async fn compare_timelines(cluster: &Cluster) {
    if cluster.log.violation().is_some() {
        return;
    }
    tokio::time::sleep(REPORTED_WITHIN).await;
    match cluster.operator.client.list::<TerminationRecord>(&Selection::default()).await {
        Ok(records) => cluster.log.check_records(&records),
        Err(error) => cluster.log.note(format!("cannot list the termination records: {error}")),
    }
}
