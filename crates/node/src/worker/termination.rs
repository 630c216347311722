//! Terminates a pod: everything that happens on this node, top to bottom in this file.
//!
//! | step | what happens | in the timeline |
//! |---|---|---|
//! | 1 | the worker notices why the pod has to terminate | `Seen` |
//! | 2 | with acknowledged drain: wait until nothing sends new connections | `Held`, `Acknowledged`, `Drained` |
//! |   | containers: preStop hook, stop signal, kill at the deadline | `Hook…`, `Signal`, `Exited` |
//! | 3 | the sandbox is stopped, its network detached | `SandboxStopped`, `NetworkGone` |
//! | 4 | volumes are removed | `VolumesGone` |
//! | 5 | the terminal status is stored in the API | `StatusWritten` |
//! | 6 | the object is deleted, if a client deleted it | `Removed`, by the server |
//! | 7 | container records, cgroup and logs are removed | `CgroupGone` |
//!
//! `lifecycle::termination` decides what happens to which container and when. This file tells it what
//! happened and starts what it returns. Nothing slow stands between a moment and what is due at it:
//! listing containers, writing to the API, hooks and signals run beside the loop of step 2.
//! Not here: the wait until nothing sends new connections (`drain`), termination of single containers while the pod keeps
//! running (`container`), the timeline's contents (`timeline_steps`).

mod container;
mod drain;
mod run;

pub(super) use run::TerminationRun;

use super::observe::{Listing, network_key};
use super::{Cause, RETRY, Worker, jittered};
use crate::deadlines::{Unfinished, Uptime};
use crate::probes::{Target, hook_kind, run_hook};
use crate::static_pods::{delete_mirror, is_static};
use crate::termination_message::remove_logs;
use crate::timeline::stamp;
use client::{DeleteOptions, ObjectKey};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{LifecycleHandler, ObjectReference, Pod};
use lifecycle::observed::Observed;
use lifecycle::status::{self, WorkerState};
use lifecycle::termination::{
    Action, Input, Member, Moment, Termination, members, pod_grace, reported_after,
};
use lifecycle::timeline::StepKind;
use run::TaskResult;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// While containers terminate, a runtime that does not report changes is asked this often.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Clean-up that failed is repeated after this time, doubling (T-NODE-71).
pub(crate) const CLEANUP_RETRY_FIRST: Duration = Duration::from_millis(100);
pub(crate) const CLEANUP_RETRY_MAX: Duration = Duration::from_secs(10);
/// Nothing to do until the desired state changes, which wakes the worker.
const IDLE: Duration = Duration::from_secs(3600);

/// The whole pod has to terminate while only some of its containers were being terminated. The worker
/// keeps that run in [`Worker::interrupted`].
pub(super) struct Interrupted;

impl Worker {
    /// Steps 1 to 5. Afterwards nothing of the pod runs, and the API knows it.
    pub(super) async fn terminate(&mut self, cause: &Cause) {
        tracing::debug!(pod = %self.title(), ?cause, "terminating");
        self.record_cause(cause);

        let began = Instant::now();
        self.stop_pod().await;
        self.observe_seconds("kill", began);

        let began = Instant::now();
        self.status.state = WorkerState::Terminated;
        self.remove_volumes().await;
        self.observe_seconds("terminated", began);

        if self.status.report.written().await {
            self.record_step(StepKind::StatusWritten);
        }
        self.give_up_capacity();
    }

    // Steps 2 and 3: everything that runs.

    /// Stops everything that runs, and repeats that until nothing runs (T-NODE-9).
    async fn stop_pod(&mut self) {
        self.status.state = WorkerState::Terminating;
        self.deps.prober.add_pod(&self.pod);
        self.deps.prober.stop_liveness(&self.uid);
        while let Err(error) = self.try_stop_pod().await {
            let message = format!("error killing pod: {error}");
            self.deps.recorder.warning(&self.reference(), "FailedKillPod", message);
            self.inbox.wait(jittered(RETRY)).await;
            self.take_desired_state();
        }
        if let Some(deadlines) = &self.deps.deadlines {
            deadlines.forget(&self.uid);
        }
    }

    async fn try_stop_pod(&mut self) -> Result<(), String> {
        let observed = self.observe().await?;
        let (run, grace) = self.run_for_pod(&observed);
        // Only a run for single containers can be interrupted.
        let _ = self.stop_containers(run, grace, Some(&observed)).await;

        let observed = self.observe().await?;
        self.stop_sandboxes(&observed).await?;

        let observed = self.observe().await?;
        if observed.any_running() {
            // The pod is not terminated before no container runs, whatever the runtime answered
            // (T-NODE-25).
            return Err("detected running containers after a successful KillPod".into());
        }
        self.record_exits(&observed);
        self.record_step(StepKind::SandboxStopped);
        let has_network = self.deps.network.is_some() && !self.uses_host_network();
        if has_network && !observed.sandboxes.is_empty() {
            self.record_step(StepKind::NetworkGone);
        }
        Ok(())
    }

    /// All running containers and their grace period. Containers that are already terminating continue
    /// from where they are.
    fn run_for_pod(&mut self, observed: &Observed) -> (TerminationRun, Duration) {
        let mut members = members(&self.pod, observed);
        let grace = self.grace_period();
        let saved = self.deps.deadlines.as_ref().and_then(|saved| saved.read(&self.uid));
        // With the time that an earlier agent had left (T-EDGE-3).
        let left = saved.map(|saved| saved.resume(&mut members, Uptime::now()));
        let addresses = self.addresses(observed);
        let stopping = Box::new(|member: &Member| format!("Stopping container {}", member.name));
        let mut run = match self.interrupted.take() {
            None => TerminationRun::new(Termination::new(members), addresses, stopping, grace),
            Some(mut run) => {
                run.machine.join(members);
                (run.addresses, run.message, run.grace) = (addresses, stopping, grace);
                run
            }
        };
        run.whole_pod = true;
        self.begin_drain(&mut run);
        let by_node = self.inbox.current().kill.is_some();
        run.report_slow_at = by_node.then(|| Instant::now() + reported_after(grace));
        (run, left.map_or(grace, |left| left.min(grace)))
    }

    /// The smallest grace period that anybody asked for (T-NODE-5).
    fn grace_period(&self) -> Duration {
        let desired = self.inbox.current();
        let by_node = desired.kill.as_ref().and_then(|kill| kill.grace);
        let by_node = by_node.map(|grace| i64::try_from(grace.as_secs()).unwrap_or(i64::MAX));
        pod_grace(&self.pod, by_node, desired.gone)
    }

    /// Runs the state machine until every container's exit was observed. `observed` is the observation
    /// that the run was made from: it is published after the first hooks and signals have started.
    async fn stop_containers(
        &mut self,
        mut run: TerminationRun,
        grace: Duration,
        observed: Option<&Observed>,
    ) -> Result<(), Interrupted> {
        self.step(&mut run, Input::Terminate { grace });
        if let Some(observed) = observed {
            // Lets the tasks that the step started run first.
            tokio::task::yield_now().await;
            self.record_begin(observed, grace);
            if run.drain.is_some() {
                self.record_step(StepKind::Held);
            }
            self.apply_observation(&mut run, observed);
        }
        let (mut changes, mut desired) = (self.inbox.watch(), self.inbox.watch());
        let mut listing: Option<BoxFuture<'static, Listing>> = None;
        let mut list_at = Instant::now() + LIST_EVERY;
        while !run.machine.is_over() {
            let is_listing = listing.is_some();
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(run.next_due()) => self.step(&mut run, Input::Tick),
                Some(result) = run.results.recv() => self.task_finished(&mut run, result),
                () = changes.changed(), if run.whole_pod => self.shorten_grace(&mut run),
                update = drain::next_update(&mut run.drain) => self.drain_updated(&mut run, update),
                () = desired.termination(), if !run.whole_pod => {
                    self.interrupted = Some(run);
                    return Err(Interrupted);
                }
                listed = finished(&mut listing), if is_listing => {
                    listing = None;
                    list_at = Instant::now() + LIST_EVERY;
                    self.listed(&mut run, listed).await;
                }
                () = self.inbox.woken(), if !is_listing => listing = Some(self.list_sandboxes()),
                () = tokio::time::sleep_until(list_at), if !is_listing => {
                    listing = Some(self.list_sandboxes());
                }
                () = reached(run.report_slow_at) => {
                    run.report_slow_at = None;
                    self.report_slow_termination();
                }
            }
        }
        // A process may exit before the task that signalled it has recorded the signal. The steps after
        // the last exit close the record, so the signal has to be in it by then.
        run.results.close();
        while run.signals.join_next().await.is_some() {}
        Ok(())
    }

    /// Tells the state machine what happened, and starts what it returns before anything else happens.
    fn step(&mut self, run: &mut TerminationRun, input: Input) {
        for action in run.machine.step(run.now(), input) {
            self.perform(run, action);
        }
        self.end_unused_drain(run);
        self.save_progress(run);
    }

    /// Starts an action. How it went comes back as a [`TaskResult`].
    fn perform(&mut self, run: &mut TerminationRun, action: Action) {
        match action {
            Action::Announce { id } => {
                if let Some(member) = run.member(&id) {
                    let (on, message) = (self.container_reference(member), (run.message)(member));
                    self.deps.recorder.normal(&on, "Killing", message);
                }
            }
            Action::RunPreStop { id } => self.start_hook(run, &id),
            Action::HookOverran { id } => self.report_hook_overrun(run, &id),
            Action::SendStop { id, kill_at } => self.send_stop(run, id, kill_at),
            Action::SendKill { id } => self.send_kill(run, id),
        }
    }

    /// The hook runs beside the state machine, which does not wait for it beyond the grace period
    /// (T-NODE-28).
    fn start_hook(&mut self, run: &mut TerminationRun, id: &str) {
        let Some(member) = run.member(id) else { return };
        let Some(handler) = pre_stop(&self.pod, &member.name) else { return };
        let target = self.hook_target(&member.name, id, &run.addresses);
        let recorder = self.deps.recorder.clone();
        let steps = self.steps_of(run, id);
        let (results, id, title) = (run.sender.clone(), id.to_owned(), self.title());
        let is_command = handler.exec.is_some();
        let hook = async move {
            if let Some(steps) = &steps {
                let hook = hook_kind(&handler).to_owned();
                steps.record(stamp(), StepKind::HookStarted { hook });
            }
            let ran = run_hook(&handler, &target, &recorder).await;
            if let Err(failure) = &ran {
                tracing::info!(pod = title, error = %failure.message, "preStop hook failed");
            }
            let hook_failed = ran.is_err();
            if let Some(steps) = steps {
                steps.hook_ended(ran.is_ok(), ran.unwrap_or_else(|failure| failure.output));
            }
            let input = Input::HookFinished { id };
            let _ = results.send(TaskResult { input, hook_failed }).await;
        };
        if is_command {
            // It ends with its container.
            tokio::spawn(hook);
        } else {
            run.hooks.spawn(hook);
        }
    }

    fn send_stop(&mut self, run: &mut TerminationRun, id: String, kill_at: Moment) {
        if let Some(member) = run.member(&id).filter(|_| run.whole_pod) {
            // A container that was asked to stop need not look alive (T-EDGE-12).
            self.deps.prober.stop_liveness_of(&self.uid, &member.name);
        }
        let runtime = self.deps.runtime.clone();
        let window = run.now().until(kill_at);
        let results = run.sender.clone();
        let steps = self.steps_of(run, &id);
        run.signals.spawn(async move {
            let requested = stamp();
            if let Err(error) = runtime.stop_container(&id, window).await {
                tracing::warn!(%error, id, "sending the stop signal failed, will retry");
                let _ = results.send(Input::StopFailed { id }.into()).await;
                return;
            }
            let _ = results.send(Input::StopSent { id: id.clone() }.into()).await;
            if let Some(steps) = steps {
                steps.stop_sent(&runtime, &id, requested).await;
            }
        });
    }

    fn send_kill(&mut self, run: &mut TerminationRun, id: String) {
        let runtime = self.deps.runtime.clone();
        let results = run.sender.clone();
        let steps = self.steps_of(run, &id);
        self.report_kill(run, &id);
        run.signals.spawn(async move {
            let at = stamp();
            if let Err(error) = runtime.kill_container(&id).await {
                tracing::warn!(%error, id, "killing a container failed, will retry");
                let _ = results.send(Input::KillFailed { id }.into()).await;
            } else if let Some(steps) = steps {
                steps.killed(at);
            }
        });
    }

    fn task_finished(&mut self, run: &mut TerminationRun, result: TaskResult) {
        // The failure of a hook that nothing waits for is not reported: it fails because its
        // container is being stopped (T-NODE-28).
        if let Input::HookFinished { id } = &result.input
            && let Some(member) =
                run.member(id).filter(|_| result.hook_failed && run.is_in_hook(id))
        {
            let on = self.container_reference(member);
            self.deps.recorder.warning(&on, "FailedPreStopHook", "PreStopHook failed");
        }
        self.step(run, result.input);
    }

    /// A later delete with a shorter grace period, a forced delete and the node's own shutdown take effect
    /// at once (T-EDGE-2).
    fn shorten_grace(&mut self, run: &mut TerminationRun) {
        self.take_desired_state();
        let grace = self.grace_period();
        if grace < run.grace {
            run.grace = grace;
            self.step(run, Input::Terminate { grace });
        }
        self.end_drain_if_forced(run);
    }

    async fn listed(&mut self, run: &mut TerminationRun, listed: Listing) {
        match listed {
            Ok(sandboxes) => {
                let observed = self.translate(sandboxes).await;
                self.apply_observation(run, &observed);
            }
            // The state machine continues by its own clock; it must not start over.
            Err(error) => {
                tracing::warn!(pod = %self.title(), error, "listing the pod's containers failed");
            }
        }
    }

    /// Tells the state machine which containers have exited, and which ones turned out to run.
    fn apply_observation(&mut self, run: &mut TerminationRun, observed: &Observed) {
        let running = |id: &str| observed.containers.iter().any(|c| c.id == id && c.is_running());
        let exited = run.machine.stages().filter(|(member, _)| !running(&member.id));
        let mut inputs: Vec<Input> =
            exited.map(|(member, _)| Input::Exited { id: member.id.clone() }).collect();
        if run.whole_pod {
            inputs.extend(members(&self.pod, observed).into_iter().map(Input::Found));
        }
        for input in inputs {
            self.step(run, input);
        }
        if run.whole_pod {
            self.record_exits(observed);
        }
        self.publish(observed);
    }

    /// Saves how far the termination has come, for the case that the agent is restarted (T-EDGE-3).
    fn save_progress(&self, run: &mut TerminationRun) {
        let wanted = run.whole_pod && !run.machine.is_over();
        let Some(deadlines) = self.deps.deadlines.as_ref().filter(|_| wanted) else { return };
        let progress = Unfinished::of(&run.machine, (run.now(), Uptime::now()));
        if let Some(progress) = progress.filter(|new| !new.is_same(run.saved.as_ref())) {
            if let Err(error) = deadlines.write(&self.uid, &progress) {
                tracing::warn!(pod = %self.title(), %error, "saving the deadline failed");
            }
            run.saved = Some(progress);
        }
    }

    // Step 3: sandbox and network.

    /// Stops every sandbox and detaches its network. The containers have been stopped before.
    pub(super) async fn stop_sandboxes(&mut self, observed: &Observed) -> Result<(), String> {
        for sandbox in &observed.sandboxes {
            let stopped = self.deps.runtime.stop_sandbox(&sandbox.id).await;
            stopped.map_err(|error| error.to_string())?;
            if let Some(traffic) = &self.deps.traffic {
                traffic.pod_detached(&self.uid).await;
            }
            if let Some(network) = &self.deps.network {
                let detached = network.disconnect(&network_key(&self.uid, sandbox.attempt)).await;
                detached.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    // Step 4: volumes.

    /// Publishes the terminal status and removes what the pod had on this node, except its logs.
    async fn remove_volumes(&mut self) {
        let mut pause = CLEANUP_RETRY_FIRST;
        while let Err(error) = self.try_remove_volumes().await {
            tracing::warn!(pod = %self.title(), error, "cleaning up the pod failed, will retry");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(CLEANUP_RETRY_MAX);
        }
    }

    async fn try_remove_volumes(&mut self) -> Result<(), String> {
        let observed = self.observe().await?;
        self.publish(&observed);
        self.deps.prober.remove_pod(&self.uid);
        self.deps.objects.unregister(&self.uid);
        let removed = self.deps.volumes.tear_down(&self.uid).await;
        removed.map_err(|error| format!("removing its volumes failed: {error}"))?;
        self.deps.users.release(&self.uid);
        clock::crash_point("volumes removed");
        self.record_step(StepKind::VolumesGone);
        Ok(())
    }

    // Steps 6 and 7: the object in the API, and what is left on this node.

    /// Waits until the object may go, deletes it, and removes what is left of the pod. A pod that has
    /// only finished keeps its object, its last containers' records and its logs until a client deletes
    /// it; a finalizer keeps them until it is removed (T-NODE-75).
    pub(super) async fn release(&mut self) {
        let mut deleted = false;
        loop {
            self.take_desired_state();
            if self.inbox.current().gone {
                self.delete_mirror().await;
                break;
            }
            if self.pod.metadata.deletion_timestamp.is_some() && !deleted {
                match self.delete_object().await {
                    Ok(()) => deleted = true,
                    Err(error) => {
                        tracing::warn!(pod = %self.title(), error, "deleting the pod's object failed");
                        self.inbox.wait(jittered(RETRY)).await;
                    }
                }
            } else if deleted && self.pod.metadata.finalizers.iter().flatten().next().is_none() {
                break;
            } else {
                self.inbox.wait(IDLE).await;
            }
        }
        self.remove_traces().await;
    }

    /// Deletes the object after the terminal status is stored, and only if it is still this pod
    /// (T-NODE-55, T-NODE-74).
    async fn delete_object(&mut self) -> Result<(), String> {
        if !self.status.report.written().await {
            return Ok(()); // It is gone already.
        }
        // A client that watches the object go can then read the whole timeline.
        self.deps.timeline.flush(&self.uid).await;
        let latest = &self.status.latest;
        debug_assert!(status::is_terminal(latest), "{:?}", latest.phase);
        let key = ObjectKey::of(&*self.pod);
        let options = DeleteOptions::of_uid(&self.uid).grace(0);
        clock::crash_point("final status written");
        match self.deps.client.delete::<Pod>(&key, &options).await {
            Ok(_) => {
                clock::crash_point("object deleted");
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The mirror of a static pod goes after the pod has stopped (T-NODE-89). If deleting it fails, the next
    /// pod of that name need not wait: `dispatch` repeats it.
    async fn delete_mirror(&mut self) {
        let mirror = self.inbox.current().mirror.clone();
        if let Some(mirror) = mirror.filter(|_| is_static(&self.pod))
            && let Err(error) = delete_mirror(&self.deps.client, &mirror).await
        {
            tracing::warn!(pod = %self.title(), %error, "deleting the mirror pod failed");
        }
    }

    /// Removes records, cgroup and logs, and repeats that until nothing of the pod is left (T-NODE-76).
    async fn remove_traces(&mut self) {
        self.deps.pods.remove(&self.uid);
        self.deps.metrics.forget("pod_uid", &self.uid);
        let mut pause = CLEANUP_RETRY_FIRST;
        while let Err(error) = self.remove_sandboxes().await {
            tracing::warn!(pod = %self.title(), %error, "removing the pod's sandbox failed, will retry");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(CLEANUP_RETRY_MAX);
        }
        self.record_step(StepKind::CgroupGone);
        remove_logs(&self.log_dir());
    }

    async fn remove_sandboxes(&self) -> runtime::Result<()> {
        for sandbox in self.deps.runtime.sandboxes_of(&self.uid).await? {
            self.deps.runtime.remove_sandbox(&sandbox.id).await?;
            for container in &sandbox.containers {
                self.unlink_log(&container.name, &container.id);
            }
        }
        Ok(())
    }

    // Events. Upstream reports neither overrun hooks nor kills.

    /// An event if the hook is still running at the end of the grace period (T-NODE-28, T-EDGE-8).
    fn report_hook_overrun(&self, run: &TerminationRun, id: &str) {
        let Some(member) = run.member(id) else { return };
        let seconds = run.grace.as_secs();
        let message =
            format!("PreStopHook was still running at the end of the grace period ({seconds}s)");
        let on = self.container_reference(member);
        self.deps.recorder.warning(&on, "PreStopHookOverran", message);
        if let Some(steps) = self.steps_of(run, id) {
            steps.record(stamp(), StepKind::HookOverran);
        }
    }

    /// An event for a container that is killed because its grace period is over (T-EDGE-7).
    fn report_kill(&self, run: &TerminationRun, id: &str) {
        let Some(member) = run.member(id) else { return };
        let (name, seconds) = (&member.name, run.grace.as_secs());
        let message =
            format!("Container {name} did not exit within its grace period ({seconds}s): killed");
        let on = self.container_reference(member);
        self.deps.recorder.warning(&on, "KilledAfterGrace", message);
    }

    /// An event if a pod that the node terminates takes too long (T-NODE-84).
    fn report_slow_termination(&self) {
        let message = "Container runtime did not kill the pod within specified grace period.";
        self.deps.recorder.warning(&self.reference(), "ExceededGracePeriod", message);
    }

    /// What a hook or probe of this container acts on.
    pub(super) fn hook_target(&self, container: &str, id: &str, addresses: &[IpAddr]) -> Target {
        Target {
            pod: self.pod.clone(),
            container: container.to_owned(),
            container_id: id.to_owned(),
            pod_ip: addresses.first().map(ToString::to_string).unwrap_or_default(),
            runtime: Arc::clone(&self.deps.runtime),
        }
    }

    fn container_reference(&self, member: &Member) -> ObjectReference {
        client::field_reference(&self.reference(), &member.kind.field_path(&member.name))
    }
}

fn pre_stop(pod: &Pod, container: &str) -> Option<LifecycleHandler> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let container = all.find(|candidate| candidate.name == container)?;
    container.lifecycle.as_ref()?.pre_stop.clone()
}

async fn finished(listing: &mut Option<BoxFuture<'static, Listing>>) -> Listing {
    match listing {
        Some(listing) => listing.await,
        None => std::future::pending().await,
    }
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
