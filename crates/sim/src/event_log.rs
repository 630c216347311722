//! The event log: what really happened, in order, independent of what components believe or report.
//!
//!     machines, connections, the observer ──▶ EventLog::record ──▶ entries, for the trace
//!                                                     └──────────▶ Checker, after every event

use crate::checker::{BrokenRule, Checker};
use bytes::Bytes;
use lifecycle::timeline::TerminationRecord;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) type Name = Arc<str>;

/// One run of one node's agent, from its start to its crash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Agent {
    pub(crate) node: Name,
    pub(crate) run: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Stop,
    Kill,
    /// The kill of all processes when the sandbox is stopped.
    Sandbox,
}

#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The agent calls the runtime, and the call may start a container of this pod.
    Busy {
        by: Agent,
        uid: Name,
    },
    /// That call has returned.
    Idle {
        by: Agent,
        uid: Name,
    },
    Starting {
        container: Name,
        name: Name,
        /// `namespace/name`, as the agent passed it to the machine.
        pod: Name,
        uid: Name,
        by: Agent,
    },
    Running {
        container: Name,
    },
    Signal {
        container: Name,
        signal: Signal,
        by: Agent,
    },
    /// A signal for a container that has already exited.
    SignalAfterExit {
        container: Name,
        signal: Signal,
        by: Agent,
        called_at: Duration,
    },
    Exit {
        container: Name,
        code: i32,
    },
    /// The runtime has told the agent that a container has exited.
    ExitObserved {
        container: Name,
        by: Agent,
    },
    HookStarted {
        container: Name,
        by: Agent,
    },
    HookFinished {
        container: Name,
        by: Agent,
        how: Option<i32>,
    },
    /// An agent has received a pod in a list or watch. With `grace`: the pod is being deleted.
    PodObserved {
        by: Agent,
        uid: Name,
        grace: Option<i64>,
    },
    /// An agent has received that a pod was removed.
    PodGone {
        by: Agent,
        uid: Name,
    },
    AgentRun {
        agent: Agent,
        running: bool,
    },
    /// A line of the watch on all pods.
    ApiChange(Bytes),
    /// A user requests the deletion of this pod.
    DeleteRequested {
        pod: Name,
        grace: Option<i64>,
    },
    /// A user declares that a node is down, by deleting its object or with the taint out-of-service, or takes that
    /// back. While it is declared down, its pods may be replaced although they still run.
    NodeDeclaredDown {
        node: Name,
        down: bool,
    },
    /// A termination record, as the API returns it at the end of the run.
    Record(String),
    /// Anything else, as text.
    Note(String),
}

pub(crate) struct Entry {
    pub(crate) at: Duration,
    pub(crate) event: Event,
}

struct LogState {
    entries: Vec<Entry>,
    checker: Checker,
    broken: Option<(Duration, BrokenRule)>,
}

/// Clones share their entries.
#[derive(Clone)]
pub(crate) struct EventLog {
    began: Instant,
    /// Nothing is recorded.
    pub(crate) disabled: bool,
    state: Arc<Mutex<LogState>>,
}

impl EventLog {
    pub(crate) fn new() -> EventLog {
        let state = LogState { entries: Vec::new(), checker: Checker::default(), broken: None };
        EventLog { began: Instant::now(), disabled: false, state: Arc::new(Mutex::new(state)) }
    }

    /// For measurements without checks, in which recorded events would fill the memory.
    pub(crate) fn disabled() -> EventLog {
        EventLog { disabled: true, ..EventLog::new() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn record(&self, event: Event) {
        if self.disabled {
            return;
        }
        let at = self.now();
        let mut state = self.state();
        if state.broken.is_none()
            && let Err(broken) = state.checker.check(at, &event)
        {
            state.broken = Some((at, broken));
        }
        if event.is_in_trace() {
            state.entries.push(Entry { at, event });
        }
    }

    pub(crate) fn note(&self, text: impl Into<String>) {
        self.record(Event::Note(text.into()));
    }

    /// Records a broken rule that was found outside the checker. Only the first one is kept.
    pub(crate) fn report(&self, rule: &'static str, why: String) {
        let at = self.now();
        self.state().broken.get_or_insert((at, BrokenRule { rule, why }));
    }

    /// Checks what must hold at the end of a run.
    pub(crate) fn finish(&self) {
        let at = self.now();
        let mut state = self.state();
        if state.broken.is_none()
            && let Err(broken) = state.checker.finish(at)
        {
            state.broken = Some((at, broken));
        }
    }

    pub(crate) fn violation(&self) -> Option<(Duration, BrokenRule)> {
        self.state().broken.clone()
    }

    pub(crate) fn with_checker<T>(&self, question: impl FnOnce(&Checker) -> T) -> T {
        question(&self.state().checker)
    }

    /// Checks that the termination records agree with what happened.
    pub(crate) fn check_records(&self, records: &[TerminationRecord]) {
        for record in records {
            self.record(Event::Record(serde_json::to_string(record).unwrap_or_default()));
        }
        let at = self.now();
        let mut state = self.state();
        if state.broken.is_none()
            && let Err(broken) = state.checker.check_records(records)
        {
            state.broken = Some((at, broken));
        }
    }

    /// One line per event, for people.
    pub(crate) fn trace(&self) -> Vec<String> {
        let state = self.state();
        let shown = state.entries.iter().filter(|entry| !matches!(entry.event, Event::Record(_)));
        shown.map(ToString::to_string).collect()
    }

    /// Everything, with complete API objects, to compare two runs byte by byte.
    pub(crate) fn full_text(&self) -> String {
        let mut log = String::new();
        for entry in &self.state().entries {
            let whole = match &entry.event {
                Event::ApiChange(line) => String::from_utf8_lossy(line).into_owned(),
                event => event.to_string(),
            };
            log.push_str(&format!("{} {}\n", entry.at.as_nanos(), whole.trim_end()));
        }
        log
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Event {
    /// False for events that only the checker needs.
    fn is_in_trace(&self) -> bool {
        !matches!(self, Event::Busy { .. } | Event::Idle { .. } | Event::ExitObserved { .. })
            && !matches!(self, Event::PodObserved { grace: None, .. })
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.run)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.at.as_secs(), self.at.subsec_micros());
        write!(f, "{seconds:5}.{micros:06}  {}", self.event)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Busy { by, uid } => write!(f, "{by} is busy with {uid}"),
            Event::Idle { by, uid } => write!(f, "{by} is done with {uid}"),
            Event::Starting { container, name, uid, by, .. } => {
                write!(f, "{by} starts {container} ({name} of {uid})")
            }
            Event::Running { container } => write!(f, "{container} runs"),
            Event::Signal { container, signal, by } => {
                write!(f, "{by} sends {signal:?} to {container}")
            }
            Event::SignalAfterExit { container, signal, by, .. } => {
                write!(f, "{by} sends {signal:?} to {container}, which has already exited")
            }
            Event::Exit { container, code } => write!(f, "{container} exits with {code}"),
            Event::ExitObserved { container, by } => {
                write!(f, "{by} observes the exit of {container}")
            }
            Event::HookStarted { container, by } => write!(f, "{by} runs the hook of {container}"),
            Event::HookFinished { container, by, how } => {
                write!(f, "the hook of {container} that {by} ran has ended: {how:?}")
            }
            Event::PodObserved { by, uid, grace } => {
                write!(f, "{by} observes that {uid} is being deleted, grace {grace:?}")
            }
            Event::PodGone { by, uid } => write!(f, "{by} observes that {uid} was removed"),
            Event::AgentRun { agent, running: true } => write!(f, "{agent} starts"),
            Event::AgentRun { agent, running: false } => write!(f, "{agent} has crashed"),
            Event::ApiChange(line) => f.write_str(&crate::checker::in_short(line)),
            Event::Record(record) => f.write_str(record),
            Event::NodeDeclaredDown { node, down: true } => {
                write!(f, "a user declares that {node} is down")
            }
            Event::NodeDeclaredDown { node, down: false } => {
                write!(f, "{node} is no longer declared down")
            }
            Event::DeleteRequested { pod, grace } => {
                write!(f, "a user deletes {pod}, grace {grace:?}")
            }
            Event::Note(text) => f.write_str(text),
        }
    }
}
