//! Performs a termination: `lifecycle` says what comes next, this does it and tells how it went.
//!
//!     orders, exits, hook ends, time ──▶ Termination::step ──▶ hook, stop signal, kill
//!
//! The same for a whole pod and for one container of it. Nothing that takes time stands between a moment
//! and what is due at it: looking at the runtime, writing to the API and hooks all run beside the loop.

use super::notes::Teller;
use super::observe::Seen;
use super::{RETRY, Worker, jittered};
use crate::config::PodContainer;
use crate::deadlines::{Unfinished, Uptime};
use crate::probes::{Target, hook_word, run_hook};
use crate::timeline::stamp;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{LifecycleHandler, ObjectReference, Pod};
use lifecycle::bringup::Kill;
use lifecycle::observed::Observed;
use lifecycle::status::Stage;
use lifecycle::termination::{
    self as machine, Action, Input, Member, Moment, Termination, container_grace, member, members,
    pod_grace, reported_after,
};
use lifecycle::timeline::What;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Inputs that hooks and signals have for the machine; each container has at most a few at once.
const INPUTS_WAITING: usize = 64;
/// A runtime that does not tell of changes is asked this often while something is ending.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Longer than any wait: nothing is due.
const NEVER: Duration = Duration::from_secs(86_400);

/// The pod as a whole is to end while only a part of it was being ended. The worker keeps what was
/// under way ([`Worker::underway`]).
pub(super) struct Overtaken;

/// What hooks and signals have to say.
struct Told {
    input: Input,
    /// A hook failed.
    failed: bool,
}

impl From<Input> for Told {
    fn from(input: Input) -> Told {
        Told { input, failed: false }
    }
}

/// One run of the machine.
pub(super) struct Drive {
    machine: Termination,
    /// Moments count from here.
    origin: Instant,
    /// The shortest grace that was asked for.
    asked: Duration,
    inputs: mpsc::Sender<Told>,
    waiting: mpsc::Receiver<Told>,
    /// What the event `Killing` says.
    message: Box<dyn Fn(&Member) -> String + Send + Sync>,
    addresses: Vec<IpAddr>,
    whole_pod: bool,
    /// T-NODE-84: when somebody is told that it takes too long.
    overdue: Option<Instant>,
    /// As written down last, for the next agent.
    kept: Option<Unfinished>,
    /// Hooks that this node runs by itself: nobody needs them when the last container has ended. (A hook
    /// that is a command ends with its container.)
    hooks: JoinSet<()>,
    /// Signals on their way, until they are told.
    signals: JoinSet<()>,
}

impl Worker {
    /// Ends everything that runs, however often it has to be tried (T-NODE-9).
    pub(super) async fn end(&mut self) {
        self.stage = Stage::Terminating;
        self.parts.prober.add_pod(&self.pod);
        self.parts.prober.stop_liveness(&self.uid);
        while let Err(why) = self.try_end().await {
            let message = format!("error killing pod: {why}");
            self.parts.recorder.warning(&self.reference(), "FailedKillPod", message);
            self.wait(jittered(RETRY)).await;
            self.follow_orders();
        }
        if let Some(deadlines) = &self.parts.deadlines {
            deadlines.forget(&self.uid);
        }
    }

    async fn try_end(&mut self) -> Result<(), String> {
        let observed = self.observe().await?;
        let (drive, grace) = self.whole_pod(&observed);
        let _ = self.drive(drive, grace, Some(&observed)).await;
        let observed = self.observe().await?;
        self.stop_sandboxes(&observed).await?;
        let observed = self.observe().await?;
        if observed.any_running() {
            // T-NODE-25
            return Err("detected running containers after a successful KillPod".into());
        }
        self.note_exits(&observed);
        self.note(What::SandboxStopped);
        if self.parts.network.is_some() && !self.host_network() && !observed.sandboxes.is_empty() {
            self.note(What::NetworkGone);
        }
        Ok(())
    }

    /// All that runs, and how long it has. What is already ending goes on where it is.
    fn whole_pod(&mut self, observed: &Observed) -> (Drive, Duration) {
        let mut members = members(&self.pod, observed);
        let asked = self.grace();
        let left = self.resume(&mut members);
        let addresses = self.addresses(observed);
        let stopping = Box::new(|member: &Member| format!("Stopping container {}", member.name));
        let mut drive = match self.underway.take() {
            None => Drive::new(Termination::new(members), addresses, stopping, asked),
            Some(mut drive) => {
                drive.machine.join(members);
                Drive { addresses, message: stopping, asked, ..drive }
            }
        };
        drive.whole_pod = true;
        let by_node = self.orders.borrow().kill.is_some();
        drive.overdue = by_node.then(|| Instant::now() + reported_after(asked));
        (drive, left.map_or(asked, |left| left.min(asked)))
    }

    /// What an agent before this one had done, and the time it had left for the rest (T-EDGE-3).
    fn resume(&self, members: &mut [Member]) -> Option<Duration> {
        let unfinished = self.parts.deadlines.as_ref()?.read(&self.uid)?;
        Some(unfinished.resume(members, Uptime::now()))
    }

    /// T-NODE-5
    fn grace(&self) -> Duration {
        let orders = self.orders.borrow();
        let internal = orders.kill.as_ref().and_then(|kill| kill.grace);
        let internal = internal.map(|grace| i64::try_from(grace.as_secs()).unwrap_or(i64::MAX));
        pod_grace(&self.pod, internal, orders.gone)
    }

    /// Ends one container while its pod goes on.
    pub(super) async fn end_one(
        &mut self,
        kill: &Kill,
        observed: &Observed,
    ) -> Result<(), Overtaken> {
        let machine = Termination::new(vec![member(&self.pod, &kill.id, &kill.name)]);
        let message = kill.message.clone();
        let addresses = self.addresses(observed);
        let drive = Drive::new(machine, addresses, Box::new(move |_| message.clone()), kill.grace);
        self.drive(drive, kill.grace, None).await
    }

    /// The container's postStart hook failed (T-NODE-67).
    pub(super) async fn end_after_hook(&mut self, container: &PodContainer<'_>, id: &str) {
        let machine = Termination::new(vec![member(&self.pod, id, &container.name)]);
        let message = Box::new(|_: &Member| "FailedPostStartHook".to_owned());
        let grace = container_grace(&self.pod, None);
        let _ = self.drive(Drive::new(machine, Vec::new(), message, grace), grace, None).await;
    }

    /// The sandbox is no good: what runs in it ends with the pod's own grace, then it goes (N-36).
    pub(super) async fn end_sandboxes(&mut self, observed: &Observed) -> Result<(), String> {
        let machine = Termination::new(members(&self.pod, observed));
        let stopping = |member: &Member| format!("Stopping container {}", member.name);
        let grace = container_grace(&self.pod, None);
        let drive = Drive::new(machine, self.addresses(observed), Box::new(stopping), grace);
        if self.drive(drive, grace, None).await.is_ok() {
            self.stop_sandboxes(observed).await?;
        }
        Ok(())
    }

    /// All start over: no hook, a stop signal with its two seconds, then the kill (T-NODE-68).
    pub(super) async fn end_for_reset(
        &mut self,
        containers: Vec<(&str, &str)>,
    ) -> Result<(), Overtaken> {
        let all = containers.iter().map(|(id, name)| member(&self.pod, id, name));
        let machine = Termination::new(all.collect());
        let message = Box::new(|_: &Member| "killing".to_owned());
        let drive = Drive::new(machine, Vec::new(), message, Duration::ZERO);
        self.drive(drive, Duration::ZERO, None).await
    }

    /// Runs the machine to its end. `known`: what was seen last and is still to be told; signals come
    /// first.
    async fn drive(
        &mut self,
        mut drive: Drive,
        grace: Duration,
        known: Option<&Observed>,
    ) -> Result<(), Overtaken> {
        self.step(&mut drive, Input::Terminate { grace });
        if let Some(observed) = known {
            // What was started by the step runs before this goes on.
            tokio::task::yield_now().await;
            self.note_beginning(observed, grace);
            self.take_in(&mut drive, observed);
        }
        let (mut changes, mut ending) = (self.orders.clone(), self.orders.clone());
        let mut look: Option<BoxFuture<'static, Seen>> = None;
        let mut look_again = Instant::now() + LOOK_AGAIN;
        while !drive.machine.is_over() {
            let looking = look.is_some();
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(drive.due()) => self.step(&mut drive, Input::Tick),
                Some(told) = drive.waiting.recv() => self.hear(&mut drive, told),
                _ = changes.changed(), if drive.whole_pod => self.hurry(&mut drive),
                () = Worker::ending(&mut ending), if !drive.whole_pod => {
                    self.underway = Some(drive);
                    return Err(Overtaken);
                }
                seen = seen(&mut look), if looking => {
                    look = None;
                    look_again = Instant::now() + LOOK_AGAIN;
                    self.exits(&mut drive, seen).await;
                }
                () = self.news.notified(), if !looking => look = Some(self.look()),
                () = tokio::time::sleep_until(look_again), if !looking => look = Some(self.look()),
                () = until(drive.overdue) => {
                    drive.overdue = None;
                    let message = "Container runtime did not kill the pod within specified grace period.";
                    self.parts.recorder.warning(&self.reference(), "ExceededGracePeriod", message);
                }
            }
        }
        // A process may end before the one who sent the signal has said so: what comes after the last
        // exit closes the record, and the signal has to be in it.
        drive.waiting.close();
        while drive.signals.join_next().await.is_some() {}
        Ok(())
    }

    /// A hook that nobody waits for any more cannot fail: its container's end is its end (T-NODE-28).
    fn hear(&mut self, drive: &mut Drive, told: Told) {
        if let Input::HookFinished { id } = &told.input
            && let Some(member) = drive.member(id).filter(|_| told.failed && drive.is_in_hook(id))
        {
            let on = self.part(member);
            self.parts.recorder.warning(&on, "FailedPreStopHook", "PreStopHook failed");
        }
        self.step(drive, told.input);
    }

    /// Something happened: what is to do now is begun at once, before anything else.
    fn step(&mut self, drive: &mut Drive, input: Input) {
        let actions = drive.machine.step(drive.now(), input);
        for action in actions {
            self.perform_action(drive, action);
        }
        self.keep(drive);
    }

    /// Writes down how far it has come, if that is wanted.
    fn keep(&self, drive: &mut Drive) {
        let wanted = drive.whole_pod && !drive.machine.is_over();
        let Some(deadlines) = self.parts.deadlines.as_ref().filter(|_| wanted) else { return };
        let now = (drive.now(), Uptime::now());
        let unfinished = Unfinished::of(&drive.machine, now);
        if let Some(unfinished) = unfinished.filter(|new| !new.is_as(drive.kept.as_ref())) {
            if let Err(error) = deadlines.write(&self.uid, &unfinished) {
                tracing::warn!(pod = %self.title(), %error, "the deadline is not kept");
            }
            drive.kept = Some(unfinished);
        }
    }

    /// What was seen to have ended since, and what turned out to run.
    async fn exits(&mut self, drive: &mut Drive, seen: Seen) {
        let observed = match seen {
            Ok(seen) => self.understand(seen).await,
            Err(why) => {
                // The machine goes on by its own clock; it must not start over.
                tracing::warn!(pod = %self.title(), why, "nobody knows what runs");
                return;
            }
        };
        self.take_in(drive, &observed);
    }

    fn take_in(&mut self, drive: &mut Drive, observed: &Observed) {
        let running = |id: &str| observed.containers.iter().any(|c| c.id == id && c.is_running());
        let ended = drive.machine.stages().filter(|(member, _)| !running(&member.id));
        let mut inputs: Vec<Input> =
            ended.map(|(member, _)| Input::Exited { id: member.id.clone() }).collect();
        if drive.whole_pod {
            inputs.extend(members(&self.pod, observed).into_iter().map(Input::Found));
        }
        for input in inputs {
            self.step(drive, input);
        }
        if drive.whole_pod {
            self.note_exits(observed);
        }
        self.publish(observed);
    }

    /// A later delete with a shorter grace takes effect at once, and so do the end of the object and
    /// the node's own end (T-EDGE-2).
    fn hurry(&mut self, drive: &mut Drive) {
        self.follow_orders();
        let asked = self.grace();
        if asked < drive.asked {
            drive.asked = asked;
            self.step(drive, Input::Terminate { grace: asked });
        }
    }

    /// Starts it; how it went comes as an input.
    fn perform_action(&mut self, drive: &mut Drive, action: Action) {
        match action {
            Action::Announce { id } => {
                if let Some(member) = drive.member(&id) {
                    let message = (drive.message)(member);
                    self.parts.recorder.normal(&self.part(member), "Killing", message);
                }
            }
            Action::RunPreStop { id } => self.start_hook(drive, &id),
            Action::HookOverran { id } => self.tell_overrun(drive, &id),
            Action::SendStop { id, kill_at } => {
                if let Some(member) = drive.member(&id).filter(|_| drive.whole_pod) {
                    // T-EDGE-12: who was told to end need not look alive.
                    self.parts.prober.stop_liveness_of(&self.uid, &member.name);
                }
                let runtime = self.parts.runtime.clone();
                let window = drive.now().until(kill_at);
                let inputs = drive.inputs.clone();
                let teller = self.teller_of(drive, &id);
                drive.signals.spawn(async move {
                    let asked = stamp();
                    if let Err(error) = runtime.stop_container(&id, window).await {
                        tracing::warn!(%error, id, "the stop signal was not sent");
                        let _ = inputs.send(Input::StopFailed { id }.into()).await;
                        return;
                    }
                    let _ = inputs.send(Input::StopSent { id: id.clone() }.into()).await;
                    if let Some(teller) = teller {
                        teller.stop_sent(&runtime, &id, asked).await;
                    }
                });
            }
            Action::SendKill { id } => {
                let runtime = self.parts.runtime.clone();
                let inputs = drive.inputs.clone();
                let teller = self.teller_of(drive, &id);
                self.tell_kill(drive, &id);
                drive.signals.spawn(async move {
                    let at = stamp();
                    if let Err(error) = runtime.kill_container(&id).await {
                        tracing::warn!(%error, id, "a container was not killed");
                        let _ = inputs.send(Input::KillFailed { id }.into()).await;
                    } else if let Some(teller) = teller {
                        teller.killed(at);
                    }
                });
            }
        }
    }

    /// The hook runs beside the machine; one that overruns is left to itself (T-NODE-28).
    fn start_hook(&mut self, drive: &mut Drive, id: &str) {
        let Some(member) = drive.member(id) else { return };
        let Some(handler) = pre_stop(&self.pod, &member.name) else { return };
        let target = self.target(&member.name, id, &drive.addresses);
        let recorder = self.parts.recorder.clone();
        let teller = self.teller_of(drive, id);
        let (inputs, id, title) = (drive.inputs.clone(), id.to_owned(), self.title());
        let is_command = handler.exec.is_some();
        let run = async move {
            if let Some(teller) = &teller {
                teller.tell(stamp(), What::HookStarted { hook: hook_word(&handler).to_owned() });
            }
            let ran = run_hook(&handler, &target, &recorder).await;
            if let Err(failure) = &ran {
                tracing::info!(pod = title, why = %failure.message, "preStop failed");
            }
            let failed = ran.is_err();
            if let Some(teller) = teller {
                teller.hook_ended(ran.is_ok(), ran.unwrap_or_else(|failure| failure.said));
            }
            let _ = inputs.send(Told { input: Input::HookFinished { id }, failed }).await;
        };
        if is_command {
            tokio::spawn(run);
        } else {
            drive.hooks.spawn(run);
        }
    }

    /// Upstream says nothing of it (T-NODE-28, T-EDGE-8).
    fn tell_overrun(&self, drive: &Drive, id: &str) {
        let Some(member) = drive.member(id) else { return };
        let message = format!(
            "PreStopHook was still running at the end of the grace period ({}s)",
            drive.asked.as_secs()
        );
        self.parts.recorder.warning(&self.part(member), "PreStopHookOverran", message);
        if let Some(teller) = self.teller_of(drive, id) {
            teller.tell(stamp(), What::HookOverran);
        }
    }

    /// Upstream says nothing of it either (T-EDGE-7).
    fn tell_kill(&self, drive: &Drive, id: &str) {
        let Some(member) = drive.member(id) else { return };
        let (name, asked) = (&member.name, drive.asked.as_secs());
        let message =
            format!("Container {name} did not end within its grace period ({asked}s): killed");
        self.parts.recorder.warning(&self.part(member), "KilledAfterGrace", message);
    }

    /// None: only a part of the pod ends, and its record does not begin with that.
    fn teller_of(&self, drive: &Drive, id: &str) -> Option<Teller> {
        let member = drive.member(id).filter(|_| drive.whole_pod)?;
        self.teller(&member.name)
    }

    pub(super) fn target(&self, container: &str, id: &str, addresses: &[IpAddr]) -> Target {
        Target {
            pod: self.pod.clone(),
            container: container.to_owned(),
            container_id: id.to_owned(),
            pod_ip: addresses.first().map(ToString::to_string).unwrap_or_default(),
            runtime: Arc::clone(&self.parts.runtime),
        }
    }

    fn part(&self, member: &Member) -> ObjectReference {
        client::part(&self.reference(), &member.kind.field_path(&member.name))
    }
}

impl Drive {
    fn new(
        machine: Termination,
        addresses: Vec<IpAddr>,
        message: Box<dyn Fn(&Member) -> String + Send + Sync>,
        asked: Duration,
    ) -> Drive {
        let (inputs, waiting) = mpsc::channel(INPUTS_WAITING);
        let origin = Instant::now();
        Drive {
            machine,
            origin,
            asked,
            inputs,
            waiting,
            message,
            addresses,
            whole_pod: false,
            overdue: None,
            kept: None,
            hooks: JoinSet::new(),
            signals: JoinSet::new(),
        }
    }

    /// When the machine wants to be told that time has passed.
    fn due(&self) -> Instant {
        let never = || Instant::now() + NEVER;
        self.machine.next_due().map_or_else(never, |due| self.origin + due.0)
    }

    fn now(&self) -> Moment {
        Moment(self.origin.elapsed())
    }

    fn is_in_hook(&self, id: &str) -> bool {
        self.machine.stages().any(|(member, stage)| {
            member.id == id && matches!(stage, machine::Stage::PreStop { .. })
        })
    }

    fn member(&self, id: &str) -> Option<&Member> {
        self.machine.stages().map(|(member, _)| member).find(|member| member.id == id)
    }
}

fn pre_stop(pod: &Pod, container: &str) -> Option<LifecycleHandler> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let container = all.find(|candidate| candidate.name == container)?;
    container.lifecycle.as_ref()?.pre_stop.clone()
}

async fn seen(look: &mut Option<BoxFuture<'static, Seen>>) -> Seen {
    match look {
        Some(look) => look.await,
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
