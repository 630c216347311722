//! The loop: take in what changed, decide about one pod, start what follows, and again.
//!
//!     watches ──▶ inputs ──▶ world, queue ──▶ decide ──▶ act
//!                               ▲                        │
//!                               └──── how it ended ◀─────┘
//!
//! One task, one pod at a time (N-183); requests run beside it, and a pod counts on its node from
//! the moment it is decided. Nothing here is polled.

mod help;
mod intake;

use crate::act::{Done, Hands, Report};
use crate::decide::{Decision, Unfit, decide};
use crate::figures::{Ended, Figures};
use crate::filters::Choice;
use crate::pod::PodInfo;
use crate::preempt::{Preemption, preempt};
use crate::queue::{Queue, Timing};
use crate::text;
use crate::world::World;
use client::{Client, ObjectKey, Recorder};
use futures::FutureExt;
use intake::{Caches, Input};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// The profile: pods that name this scheduler, or none, are ours.
pub(crate) const NAME: &str = "default-scheduler";

/// The lease that says who of several servers schedules (C-194).
const LEASE: (&str, &str) = ("kube-system", "kube-scheduler");

/// What is under way may end in this time when the scheduler is told to stop.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// A scheduler that runs. Dropping the handle lets it run on.
pub struct Handle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    figures: Figures,
}

/// Starts the scheduler on a task of its own. If there are several servers, `identity` is who this one
/// is, and only one of them decides.
pub fn start(client: &Client, identity: Option<String>) -> Handle {
    let (stop, stopped) = oneshot::channel();
    let (client, figures) = (client.clone(), Figures::new());
    let counted = figures.clone();
    let task = tokio::spawn(async move {
        let stopped = async move {
            // Without a handle nobody can stop it.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let Some(identity) = identity else {
            return run_counted(client, counted, stopped).await;
        };
        let lease = ObjectKey::new(LEASE.0, LEASE.1);
        let run = |until| run_counted(client.clone(), counted.clone(), until);
        client::lead(&client, &lease, &identity, stopped, run).await;
    });
    Handle { stop, task, figures }
}

impl Handle {
    /// What it counts about itself.
    pub fn metrics(&self) -> Arc<metrics::Registry> {
        self.figures.registry()
    }

    /// Decides nothing more, and lets what is under way end.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Gives pods to nodes until `stop`.
pub async fn run(client: Client, stop: impl Future<Output = ()>) {
    run_counted(client, Figures::new(), stop).await;
}

async fn run_counted(client: Client, figures: Figures, stop: impl Future<Output = ()>) {
    let client = client.named(NAME);
    let caches = Caches::start(&client);
    let recorder = Recorder::new(&client, NAME, NAME);
    let hands = Hands::new(client, recorder.clone(), caches.claims.clone());
    let mut scheduler = Scheduler {
        caches,
        hands,
        world: World::default(),
        queue: Queue::default(),
        deeds: JoinSet::new(),
        binding: HashMap::new(),
        skipped: HashMap::new(),
        start: 0,
        figures,
    };
    tokio::select! {
        biased;
        () = scheduler.work() => (),
        () = stop => (),
    }
    let ended = async { while scheduler.deeds.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(STOP_WITHIN, ended).await;
    recorder.flush().await;
}

/// A deed that panics must not leave its pod between two places for ever.
async fn ending_anyhow(deed: impl Future<Output = Done>, failed: Done) -> Done {
    match AssertUnwindSafe(deed).catch_unwind().await {
        Ok(done) => done,
        Err(_) => {
            tracing::error!(?failed, "a deed panicked");
            failed
        }
    }
}

struct Scheduler {
    caches: Caches,
    hands: Hands,
    world: World,
    queue: Queue,
    deeds: JoinSet<Done>,
    /// By uid. The watch may tell of a binding before its answer comes, and the queue forgets then.
    binding: HashMap<String, Timing>,
    /// Pods that are being deleted and were told so.
    skipped: HashMap<ObjectKey, String>,
    /// Where the next look at the nodes begins.
    start: usize,
    figures: Figures,
}

impl Scheduler {
    async fn work(&mut self) {
        self.caches.synced().await;
        loop {
            while let Some(Some(input)) = self.caches.inputs.get().now_or_never() {
                self.take(input);
            }
            while let Some(done) = self.deeds.try_join_next() {
                self.settle(done.ok());
            }
            match self.queue.take(Instant::now()) {
                Some(pod) => {
                    self.schedule(pod);
                    // What was decided is to happen now, not after the next thousand decisions.
                    tokio::task::yield_now().await;
                }
                None => {
                    self.figures.pending(self.queue.lengths());
                    self.wait().await;
                }
            }
        }
    }

    async fn wait(&mut self) {
        let due = self.queue.next_due();
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(input) = self.caches.inputs.get() => self.take(input),
            Some(done) = self.deeds.join_next() => self.settle(done.ok()),
            () = due => (),
        }
    }

    fn take(&mut self, input: Input) {
        self.take_in(&input);
        self.caches.inputs.done(&input);
    }

    fn schedule(&mut self, pod: Arc<PodInfo>) {
        if pod.is_going() {
            let (namespace, name) = (pod.namespace(), pod.key.name());
            let message = format!("skip schedule deleting pod: {namespace}/{name}");
            self.hands.unscheduled(&pod, &message);
            self.queue.remove(&pod.key);
            self.skipped.insert(pod.key.clone(), pod.uid.clone());
            return;
        }
        let began = Instant::now();
        let decision = decide(&self.world, &pod, &mut self.start, clock::random_u64);
        self.figures.decided(began.elapsed());
        match decision {
            Decision::Node { name, volumes } => self.bind(pod, name, volumes),
            Decision::Unfit(unfit) => {
                self.refuse(pod, &unfit);
                self.figures.attempt(Ended::Unschedulable, began.elapsed());
            }
        }
    }

    fn bind(&mut self, pod: Arc<PodInfo>, node: Arc<str>, volumes: Choice) {
        self.world.assume(&pod, &node);
        for (claim, volume) in &volumes.bind {
            self.world.volumes.reserve(volume, claim);
        }
        if let Some(timing) = self.queue.timing(&pod.key) {
            self.binding.insert(pod.uid.clone(), timing);
        }
        let failed = Done::NotBound {
            pod: pod.clone(),
            volumes: volumes.clone(),
            why: Some("binding rejected: it was given up half-way".to_owned()),
        };
        let deed = self.hands.clone().bind(pod, node, volumes);
        self.deeds.spawn(ending_anyhow(deed, failed));
    }

    fn refuse(&mut self, pod: Arc<PodInfo>, unfit: &Unfit) {
        let (said, nominated) = match preempt(&self.world, &pod, unfit, clock::random_u64()) {
            Preemption::MakeRoom { node, victims } => {
                self.make_room(&pod, &node, victims);
                (None, Some(Some(node)))
            }
            Preemption::UnderWay(said) => (Some(said.to_owned()), None),
            Preemption::NoHelp(said) => {
                self.world.withdraw(&pod.key);
                (said, Some(None))
            }
        };
        let message = text::unfit(unfit, said.as_deref());
        self.queue.rejected(&pod.key, unfit.plugins(), Instant::now());
        self.hands.unscheduled(&pod, &message);
        let report = Report { reason: "Unschedulable", message, nominated };
        self.deeds.spawn(self.hands.clone().report(pod, report));
    }

    fn make_room(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>, victims: Vec<Arc<PodInfo>>) {
        // Who is less important and was promised room there has to look elsewhere.
        let lesser: Vec<Arc<PodInfo>> = self
            .world
            .nominated(node, pod)
            .filter(|other| other.priority < pod.priority)
            .cloned()
            .collect();
        for other in lesser {
            self.world.withdraw(&other.key);
            self.queue.failed(&other.key, Instant::now());
            self.deeds.spawn(self.hands.clone().withdraw(other));
        }
        self.world.nominate(pod, node);
        self.figures.made_room(victims.len());
        let failed = Done::NoRoom { pod: pod.clone() };
        let deed = self.hands.clone().make_room(pod.clone(), node.clone(), victims);
        self.deeds.spawn(ending_anyhow(deed, failed));
    }

    fn settle(&mut self, done: Option<Done>) {
        match done {
            Some(Done::Bound { pod, volumes }) => {
                self.release(&volumes);
                self.count_bound(&pod);
                if self.is_current(&pod) {
                    self.queue.remove(&pod.key);
                }
            }
            Some(Done::NotBound { pod, volumes, why }) => {
                self.release(&volumes);
                let timing = self.binding.remove(&pod.uid);
                if why.is_some() {
                    let took = timing.map(|timing| timing.taken.elapsed()).unwrap_or_default();
                    self.figures.attempt(Ended::Error, took);
                }
                self.unbind(pod, why);
            }
            Some(Done::NoRoom { pod }) => {
                self.world.withdraw(&pod.key);
                self.queue.failed(&pod.key, Instant::now());
            }
            Some(Done::Nothing) | None => (),
        }
    }

    fn count_bound(&mut self, pod: &PodInfo) {
        if let Some(timing) = self.binding.remove(&pod.uid) {
            self.figures.attempt(Ended::Scheduled, timing.taken.elapsed());
            self.figures.bound(timing.attempts, timing.came.elapsed());
        }
    }

    fn is_current(&self, pod: &PodInfo) -> bool {
        self.queue.get(&pod.key).is_some_and(|queued| queued.uid == pod.uid)
    }

    fn release(&mut self, volumes: &Choice) {
        for (_, volume) in &volumes.bind {
            self.world.volumes.release(volume);
        }
    }

    /// The binding failed: the pod is nowhere again, and is tried again.
    fn unbind(&mut self, pod: Arc<PodInfo>, why: Option<String>) {
        let assumed = self.world.is_assumed(&pod.key)
            && self.world.placed(&pod.key).is_some_and(|placed| placed.uid == pod.uid);
        if assumed {
            self.world.remove_pod(&pod.key);
        }
        if !self.is_current(&pod) {
            return;
        }
        self.queue.failed(&pod.key, Instant::now());
        if let Some(message) = why {
            self.hands.unscheduled(&pod, &message);
            let report = Report { reason: "SchedulerError", message, nominated: Some(None) };
            self.deeds.spawn(self.hands.clone().report(pod, report));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_binding_that_panics_is_one_that_failed() {
        let pod = Arc::new(crate::pod::tests::asking("p", "1", "1Gi"));
        let failed = Done::NotBound { pod, volumes: Choice::default(), why: None };
        let deed = async { panic!("as planned") };
        let done = ending_anyhow(deed, failed).await;
        assert!(matches!(done, Done::NotBound { pod, .. } if pod.key.name() == "p"));
    }
}
