//! One seed from beginning to end.

use crate::book::Name;
use crate::cluster::{Besides, Cluster, Shape, Wrap};
use crate::identity;
use crate::judge::Broken;
use crate::line::{State, Weather};
use crate::plan::{self, Act};
use crate::plane::Plane;
use crate::scenario::{Scenario, Style};
use crate::settle;
use client::Selection;
use lifecycle::timeline::Termination;
use server::Foundation;
use std::path::Path;
use std::time::Duration;

/// When simulated time begins.
const EPOCH: i64 = 1_800_000_000;
/// After everything healed, deletions are over within this: the longest grace, a watch that waits for
/// a silent server, and the waits between attempts.
const PATIENCE: Duration = Duration::from_secs(400);
/// What could not be told is told again within this.
const TOLD_WITHIN: Duration = Duration::from_secs(15);
/// How often to look whether everything is over.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the simulation cannot use the disk")]
    Disk(#[from] std::io::Error),
    #[error("the server cannot be prepared")]
    Server(#[from] server::Error),
}

/// What all simulated clusters of a process are built on.
pub struct Ground {
    pub(crate) foundation: Foundation,
    pub(crate) directory: tempfile::TempDir,
}

impl Ground {
    /// Takes a moment; then clusters are cheap.
    pub fn lay() -> Result<Ground, Error> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        let directory = tempfile::Builder::new().prefix("landfall-sim-").tempdir_in(place)?;
        let foundation = simulated(0, async {
            let foundation = Foundation::lay(directory.path()).await?;
            Plane::settled(&foundation).await
        })??;
        Ok(Ground { foundation, directory })
    }
}

/// How to run a seed.
#[derive(Clone, Default)]
pub struct Options {
    pub wrap: Option<Wrap>,
    pub besides: Option<Besides>,
    /// Keep the story also if nothing is wrong.
    pub story: bool,
    /// Run it again and compare, to the byte.
    pub twice: bool,
    /// Look only at what really happened, not at what the timelines say of it.
    pub without_timelines: bool,
}

#[derive(Debug, Clone)]
pub struct Outcome {
    pub seed: u64,
    pub violation: Option<Violation>,
    /// What happened, a line each, for people. Kept if a rule was broken, or if wanted.
    pub story: Vec<String>,
    /// The same to the last byte: of one seed, always the same.
    pub log: String,
    pub simulated: Duration,
    pub pods: usize,
    pub containers: usize,
}

#[derive(Debug, Clone)]
pub struct Violation {
    /// Since the beginning.
    pub at: Duration,
    pub broken: Broken,
}

/// Runs it on this thread.
pub fn run(
    ground: &Ground,
    scenario: &'static Scenario,
    seed: u64,
    options: &Options,
) -> Result<Outcome, Error> {
    let scenario = scenario.told_by(seed);
    let options = Options { story: options.story || options.twice, ..options.clone() };
    let mut outcome = once(ground, scenario, seed, &options)?;
    if options.twice && outcome.violation.is_none() {
        let again = once(ground, scenario, seed, &options)?;
        if again.log != outcome.log {
            let mut lines = outcome.log.lines().zip(again.log.lines());
            let (one, other) = lines.find(|(one, other)| one != other).unwrap_or_default();
            let why = format!("once {one}, and then {other}");
            let broken = Broken { rule: "one seed, one story", why };
            outcome.violation = Some(Violation { at: outcome.simulated, broken });
        }
    }
    Ok(outcome)
}

fn once(
    ground: &Ground,
    scenario: &Scenario,
    seed: u64,
    options: &Options,
) -> Result<Outcome, Error> {
    let directory = tempfile::Builder::new().prefix("seed-").tempdir_in(ground.directory.path())?;
    Ok(simulated(seed, tell(&ground.foundation, scenario, seed, options, directory.path()))?)
}

/// On this thread, in a world that ends with it.
pub(crate) fn simulated<T>(seed: u64, story: impl Future<Output = T>) -> std::io::Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    let runtime = builder.enable_time().start_paused(true).build()?;
    let told = runtime.block_on(async {
        clock::simulate(jiff::Timestamp::constant(EPOCH, 0), seed);
        story.await
    });
    drop(runtime);
    clock::stop_simulating();
    Ok(told)
}

async fn tell(
    foundation: &Foundation,
    scenario: &Scenario,
    seed: u64,
    options: &Options,
    directory: &Path,
) -> Outcome {
    let shape = Shape {
        foundation,
        seed,
        nodes: scenario.nodes,
        who: scenario.style.who(),
        directory,
        wrap: options.wrap.clone(),
        judged: true,
    };
    let mut cluster = match Cluster::start(shape).await {
        Ok(cluster) => cluster,
        Err(why) => {
            let broken = Broken { rule: "a cluster starts", why };
            let violation = Some(Violation { at: Duration::ZERO, broken });
            return Outcome {
                seed,
                violation,
                story: Vec::new(),
                log: String::new(),
                simulated: Duration::ZERO,
                pods: 0,
                containers: 0,
            };
        }
    };
    if let Some(besides) = &options.besides {
        cluster.let_in(besides);
    }
    match scenario.style {
        Style::Identity => identity::tell(&mut cluster, scenario, seed).await,
        Style::Settle => settle::tell(&mut cluster, scenario, seed).await,
        Style::Once | Style::Churn | Style::Mix => {
            perform(&mut cluster, scenario, seed).await;
            heal(&mut cluster).await;
            end(&cluster).await;
        }
    }
    if !options.without_timelines && matches!(scenario.style, Style::Once | Style::Identity) {
        compare_timelines(&cluster).await;
    }
    cluster.book.close();
    let broken = cluster.book.broken();
    let violation = broken.map(|(at, broken)| Violation { at, broken });
    let wanted = options.story || violation.is_some();
    let (pods, containers) = cluster.book.ask(|judge| judge.counts());
    Outcome {
        seed,
        violation,
        story: if wanted { cluster.book.story() } else { Vec::new() },
        log: if wanted { cluster.book.log() } else { String::new() },
        simulated: cluster.book.now(),
        pods,
        containers,
    }
}

/// Does what the seed has in mind.
async fn perform(cluster: &mut Cluster, scenario: &Scenario, seed: u64) {
    let began = tokio::time::Instant::now();
    for deed in plan::draw(scenario, seed) {
        tokio::time::sleep_until(began + deed.at).await;
        if cluster.book.broken().is_some() {
            return;
        }
        act(cluster, deed.what).await;
    }
    tokio::time::sleep_until(began + scenario.span).await;
}

pub(crate) async fn act(cluster: &mut Cluster, what: Act) {
    let person = cluster.person.clone();
    match what {
        Act::Create(pod) => drop(tokio::spawn(person.create(*pod))),
        Act::Delete { name, grace } => drop(tokio::spawn(person.delete(name, grace))),
        Act::CrashAgent { host, steps, downtime } => {
            let host = &cluster.hosts[host];
            cluster.book.say(format!("{} will crash in {steps} steps", host.name));
            host.crash_after(steps, downtime);
        }
        Act::CrashAtStop { host, downtime } => {
            let host = &cluster.hosts[host];
            cluster.book.say(format!("{} will crash when it stops a container", host.name));
            host.crash_at_stop(downtime);
        }
        Act::CrashPlane { downtime } => crash_plane(cluster, downtime).await,
        Act::CutPlane { writes, downtime } => {
            let _ = cluster.plane.cut_after(writes).await;
            crash_plane(cluster, downtime).await;
        }
        Act::Refuse { host, lasts } => cut(cluster, host, State::Refused, lasts),
        Act::Silence { host, lasts } => cut(cluster, host, State::Silent, lasts),
        Act::Tear { host } => {
            cluster.book.say(format!("the watches of {} tear", cluster.hosts[host].name));
            cluster.hosts[host].line.tear();
        }
        Act::Weather { host, delay, lost, dropped, lasts } => {
            let host = &cluster.hosts[host];
            let weather = Weather { delay, lost, dropped };
            cluster.book.say(format!("{}: {weather:?} for {lasts:?}", host.name));
            host.line.set_weather(weather);
            let line = host.line.clone();
            tokio::spawn(async move {
                tokio::time::sleep(lasts).await;
                line.set_weather(Weather::default());
            });
        }
        Act::JumpClock { seconds } => {
            cluster.book.say(format!("somebody sets the clock by {seconds} s"));
            clock::jump(jiff::SignedDuration::from_secs(seconds));
        }
    }
}

async fn crash_plane(cluster: &mut Cluster, downtime: Duration) {
    cluster.plane.crash();
    tokio::time::sleep(downtime).await;
    if let Err(error) = cluster.plane.start().await {
        cluster.book.say(format!("the control plane cannot start: {error}"));
    }
}

fn cut(cluster: &Cluster, host: usize, state: State, lasts: Duration) {
    let host = &cluster.hosts[host];
    cluster.book.say(format!("the line of {} is {state:?} for {lasts:?}", host.name));
    host.line.set(state);
    let line = host.line.clone();
    tokio::spawn(async move {
        tokio::time::sleep(lasts).await;
        line.set(State::Up);
    });
}

/// Nothing goes wrong any more, and everything that is left is deleted.
async fn heal(cluster: &mut Cluster) {
    if cluster.book.broken().is_some() {
        return;
    }
    cluster.book.say("everything heals");
    for host in &cluster.hosts {
        host.line.set(State::Up);
        host.line.set_weather(Weather::default());
        host.spare();
    }
    let left: Vec<Name> = cluster.book.ask(|judge| judge.living());
    for name in left {
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        tokio::spawn(cluster.person.clone().delete(name, None));
    }
}

async fn end(cluster: &Cluster) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < until && cluster.book.broken().is_none() {
        tokio::time::sleep(LOOK).await;
        if cluster.book.ask(|judge| judge.is_quiet()) {
            return;
        }
    }
}

/// What the cluster says of the endings is what happened. Agents tell it when they can, so they get a
/// moment.
async fn compare_timelines(cluster: &Cluster) {
    if cluster.book.broken().is_some() {
        return;
    }
    tokio::time::sleep(TOLD_WITHIN).await;
    match cluster.person.client.list::<Termination>(&Selection::default()).await {
        Ok(records) => cluster.book.compare(&records),
        Err(error) => cluster.book.say(format!("there are no timelines: {error}")),
    }
}
