//! Performs a termination: `lifecycle` says what comes next, this does it and tells how it went.
//!
//!     orders, exits, hook ends, time ──▶ Termination::step ──▶ hook, stop signal, kill
//!
//! The same for a whole pod and for one container of it.

use super::{Cause, RETRY, Worker, jittered};
use crate::config::PodContainer;
use crate::probes::{Target, run_hook};
use k8s_openapi::api::core::v1::{LifecycleHandler, ObjectReference, Pod};
use lifecycle::bringup::Kill;
use lifecycle::observed::Observed;
use lifecycle::status::Stage;
use lifecycle::termination::{
    Action, Input, Member, Moment, Termination, container_grace, member, members, pod_grace,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Inputs that hooks and signals have for the machine; each container has at most a few at once.
const INPUTS_WAITING: usize = 64;
/// A runtime that does not tell of changes is asked this often while something is ending.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The pod as a whole is to end while only one container was being ended.
pub(super) struct Overtaken;

/// One run of the machine.
struct Drive {
    machine: Termination,
    /// Moments count from here.
    origin: Instant,
    inputs: mpsc::Sender<Input>,
    waiting: mpsc::Receiver<Input>,
    /// What the event `Killing` says.
    message: Box<dyn Fn(&Member) -> String + Send + Sync>,
    addresses: Vec<IpAddr>,
    whole_pod: bool,
}

impl Worker {
    /// Ends everything that runs, however often it has to be tried (T-NODE-9).
    pub(super) async fn end(&mut self, cause: &Cause) {
        self.stage = Stage::Terminating;
        self.parts.prober.stop_liveness(&self.uid);
        while let Err(why) = self.try_end(cause).await {
            let message = format!("error killing pod: {why}");
            self.parts.recorder.warning(&self.reference(), "FailedKillPod", message);
            self.wait(jittered(RETRY)).await;
            self.follow_orders();
        }
    }

    async fn try_end(&mut self, cause: &Cause) -> Result<(), String> {
        let observed = self.observe().await?;
        self.publish(&observed);
        let machine = Termination::new(members(&self.pod, &observed));
        let grace = self.grace(cause);
        let stopping = |member: &Member| format!("Stopping container {}", member.name);
        let drive = Drive::new(machine, self.addresses(&observed), Box::new(stopping), true);
        self.drive(drive, grace).await;
        let observed = self.observe().await?;
        self.stop_sandboxes(&observed).await?;
        let observed = self.observe().await?;
        if observed.any_running() {
            // T-NODE-25
            return Err("detected running containers after a successful KillPod".into());
        }
        Ok(())
    }

    /// T-NODE-5. What left its source without a deletion was forced.
    fn grace(&self, cause: &Cause) -> Duration {
        let internal = self.orders.borrow().kill.as_ref().and_then(|kill| kill.grace);
        let internal = internal.map(|grace| i64::try_from(grace.as_secs()).unwrap_or(i64::MAX));
        let forced = *cause == Cause::Gone && self.pod.metadata.deletion_timestamp.is_none();
        pod_grace(&self.pod, if forced { Some(1) } else { internal })
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
        let drive = Drive::new(machine, addresses, Box::new(move |_| message.clone()), false);
        match self.drive(drive, kill.grace).await {
            Some(overtaken) => Err(overtaken),
            None => Ok(()),
        }
    }

    /// The container's postStart hook failed (T-NODE-67).
    pub(super) async fn end_after_hook(&mut self, container: &PodContainer<'_>, id: &str) {
        let machine = Termination::new(vec![member(&self.pod, id, &container.name)]);
        let message = Box::new(|_: &Member| "FailedPostStartHook".to_owned());
        let grace = container_grace(&self.pod, None);
        self.drive(Drive::new(machine, Vec::new(), message, false), grace).await;
    }

    /// The sandbox is no good: what runs in it ends with the pod's own grace, then it goes (N-36).
    pub(super) async fn end_sandboxes(&mut self, observed: &Observed) -> Result<(), String> {
        let machine = Termination::new(members(&self.pod, observed));
        let stopping = |member: &Member| format!("Stopping container {}", member.name);
        let drive = Drive::new(machine, self.addresses(observed), Box::new(stopping), false);
        if self.drive(drive, container_grace(&self.pod, None)).await.is_none() {
            self.stop_sandboxes(observed).await?;
        }
        Ok(())
    }

    /// All start over: no hook, a stop signal with its two seconds, then the kill (T-NODE-68).
    pub(super) async fn end_for_reset(&mut self, containers: Vec<(&str, &str)>) {
        let all = containers.iter().map(|(id, name)| member(&self.pod, id, name));
        let machine = Termination::new(all.collect());
        let message = Box::new(|_: &Member| "killing".to_owned());
        self.drive(Drive::new(machine, Vec::new(), message, false), Duration::ZERO).await;
    }

    /// Runs the machine to its end. `Overtaken`: the whole pod is to end, and this was only a part.
    async fn drive(&mut self, mut drive: Drive, grace: Duration) -> Option<Overtaken> {
        let actions = drive.machine.step(drive.now(), Input::Terminate { grace });
        self.perform_all(&drive, actions);
        let (mut changes, mut ending) = (self.orders.clone(), self.orders.clone());
        while !drive.machine.is_over() {
            let due = drive.machine.next_due().map(|due| drive.origin + due.0);
            let due = due.unwrap_or_else(|| Instant::now() + LOOK_AGAIN);
            let look_again = Instant::now() + LOOK_AGAIN;
            let inputs = tokio::select! {
                biased;
                Some(input) = drive.waiting.recv() => vec![input],
                _ = changes.changed(), if drive.whole_pod => self.hurry(),
                () = Worker::ending(&mut ending), if !drive.whole_pod => return Some(Overtaken),
                () = tokio::time::sleep_until(due.min(look_again)) => {
                    let mut inputs = self.exits(&drive).await;
                    inputs.push(Input::Tick);
                    inputs
                }
                // Last: news may never cease, and time must not wait for it.
                () = self.news.notified() => self.exits(&drive).await,
            };
            for input in inputs {
                let actions = drive.machine.step(drive.now(), input);
                self.perform_all(&drive, actions);
            }
        }
        None
    }

    /// What was seen to have ended since, and what turned out to run.
    async fn exits(&mut self, drive: &Drive) -> Vec<Input> {
        let observed = match self.observe().await {
            Ok(observed) => observed,
            Err(why) => {
                // The machine goes on by its own clock; it must not start over.
                tracing::warn!(pod = %self.title(), why, "nobody knows what runs");
                return Vec::new();
            }
        };
        self.publish(&observed);
        let running = |id: &str| observed.containers.iter().any(|c| c.id == id && c.is_running());
        let ended = drive.machine.stages().filter(|(member, _)| !running(&member.id));
        let mut inputs: Vec<Input> =
            ended.map(|(member, _)| Input::Exited { id: member.id.clone() }).collect();
        if drive.whole_pod {
            inputs.extend(members(&self.pod, &observed).into_iter().map(Input::Found));
        }
        inputs
    }

    /// A later delete with a shorter grace takes effect at once (T-EDGE-2).
    fn hurry(&mut self) -> Vec<Input> {
        let before = self.grace(&Cause::Deleted);
        self.follow_orders();
        let gone = self.orders.borrow().gone && self.pod.metadata.deletion_timestamp.is_none();
        let after = self.grace(if gone { &Cause::Gone } else { &Cause::Deleted });
        if after < before { vec![Input::Terminate { grace: after }] } else { Vec::new() }
    }

    fn perform_all(&mut self, drive: &Drive, actions: Vec<Action>) {
        for action in actions {
            self.perform_action(drive, action);
        }
    }

    /// Starts it; how it went comes as an input.
    fn perform_action(&mut self, drive: &Drive, action: Action) {
        match action {
            Action::Announce { id } => {
                if let Some(member) = drive.member(&id) {
                    let message = (drive.message)(member);
                    self.parts.recorder.normal(&self.part(member), "Killing", message);
                }
            }
            Action::RunPreStop { id } => self.start_hook(drive, &id),
            Action::HookOverran { id } => {
                tracing::info!(pod = %self.title(), id, "the preStop hook took the whole grace");
            }
            Action::SendStop { id, kill_at } => {
                let runtime = self.parts.runtime.clone();
                let window = drive.now().until(kill_at);
                let inputs = drive.inputs.clone();
                tokio::spawn(async move {
                    if let Err(error) = runtime.stop_container(&id, window).await {
                        tracing::warn!(%error, id, "the stop signal was not sent");
                        let _ = inputs.send(Input::StopFailed { id }).await;
                    }
                });
            }
            Action::SendKill { id } => {
                let runtime = self.parts.runtime.clone();
                let inputs = drive.inputs.clone();
                tokio::spawn(async move {
                    if let Err(error) = runtime.kill_container(&id).await {
                        tracing::warn!(%error, id, "a container was not killed");
                        let _ = inputs.send(Input::KillFailed { id }).await;
                    }
                });
            }
        }
    }

    /// The hook runs beside the machine; one that overruns is left to itself (T-NODE-28).
    fn start_hook(&mut self, drive: &Drive, id: &str) {
        let Some(member) = drive.member(id) else { return };
        let Some(handler) = pre_stop(&self.pod, &member.name) else { return };
        let target = self.target(&member.name, id, &drive.addresses);
        let (recorder, on) = (self.parts.recorder.clone(), self.part(member));
        let (inputs, id, title) = (drive.inputs.clone(), id.to_owned(), self.title());
        tokio::spawn(async move {
            if let Err(failure) = run_hook(&handler, &target, &recorder).await {
                tracing::info!(pod = title, why = %failure.message, "preStop failed");
                recorder.warning(&on, "FailedPreStopHook", "PreStopHook failed");
            }
            let _ = inputs.send(Input::HookFinished { id }).await;
        });
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
        whole_pod: bool,
    ) -> Drive {
        let (inputs, waiting) = mpsc::channel(INPUTS_WAITING);
        let origin = Instant::now();
        Drive { machine, origin, inputs, waiting, message, addresses, whole_pod }
    }

    fn now(&self) -> Moment {
        Moment(self.origin.elapsed())
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
