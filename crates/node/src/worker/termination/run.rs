//! One run of the state machine `lifecycle::termination`: of a whole pod, or of some of its containers.

use crate::deadlines::Unfinished;
use lifecycle::drain::DrainUpdate;
use lifecycle::termination::{ContainerStage, Input, Member, Moment, Termination};
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Results of hooks and signals that wait for the state machine; each container has a few at most.
const RESULTS_MAX: usize = 64;
/// Longer than any wait: nothing is due.
const NEVER: Duration = Duration::from_secs(86_400);

/// How a hook or signal went.
pub(super) struct TaskResult {
    pub(super) input: Input,
    pub(super) hook_failed: bool,
}

impl From<Input> for TaskResult {
    fn from(input: Input) -> TaskResult {
        TaskResult { input, hook_failed: false }
    }
}

/// Text of the event `Killing` for a container.
pub(super) type KillingMessage = Box<dyn Fn(&Member) -> String + Send + Sync>;

pub(crate) struct TerminationRun {
    pub(super) machine: Termination,
    /// The state machine's moments count from here.
    origin: Instant,
    /// The shortest grace period that was requested so far.
    pub(super) grace: Duration,
    pub(super) sender: mpsc::Sender<TaskResult>,
    pub(super) results: mpsc::Receiver<TaskResult>,
    pub(super) message: KillingMessage,
    /// The pod's addresses, for hooks.
    pub(super) addresses: Vec<IpAddr>,
    pub(in crate::worker) whole_pod: bool,
    /// When to report that a termination by the node takes too long.
    pub(super) report_slow_at: Option<Instant>,
    /// The progress that was saved last.
    pub(super) saved: Option<Unfinished>,
    /// Hooks that the agent runs itself; they are aborted when the last container has exited.
    pub(super) hooks: JoinSet<()>,
    /// Signals that are being sent and recorded.
    pub(super) signals: JoinSet<()>,
    /// Hooks and signals wait for it.
    pub(super) drain: Option<Drain>,
}

/// Until nothing sends new connections to the pod.
pub(super) struct Drain {
    pub(super) updates: mpsc::Receiver<DrainUpdate>,
    /// What is missing, for people.
    pub(super) missing: Vec<String>,
    /// How many have acknowledged.
    pub(super) acknowledged: usize,
    /// Some container waits for it.
    pub(super) used: bool,
}

impl TerminationRun {
    pub(super) fn new(
        machine: Termination,
        addresses: Vec<IpAddr>,
        message: KillingMessage,
        grace: Duration,
    ) -> TerminationRun {
        let (sender, results) = mpsc::channel(RESULTS_MAX);
        TerminationRun {
            machine,
            origin: Instant::now(),
            grace,
            sender,
            results,
            message,
            addresses,
            whole_pod: false,
            report_slow_at: None,
            saved: None,
            hooks: JoinSet::new(),
            signals: JoinSet::new(),
            drain: None,
        }
    }

    /// Some container still waits until nothing sends new connections.
    pub(super) fn is_held(&self) -> bool {
        let mut stages = self.machine.stages();
        stages.any(|(_, stage)| matches!(stage, ContainerStage::Held { .. }))
    }

    /// When the state machine needs its next [`Input::Tick`].
    pub(super) fn next_due(&self) -> Instant {
        let never = || Instant::now() + NEVER;
        self.machine.next_due().map_or_else(never, |due| self.origin + due.0)
    }

    pub(super) fn now(&self) -> Moment {
        Moment(self.origin.elapsed())
    }

    pub(super) fn is_in_hook(&self, id: &str) -> bool {
        self.machine.stages().any(|(member, stage)| {
            member.id == id && matches!(stage, ContainerStage::PreStop { .. })
        })
    }

    pub(in crate::worker) fn member(&self, id: &str) -> Option<&Member> {
        self.machine.stages().map(|(member, _)| member).find(|member| member.id == id)
    }
}
