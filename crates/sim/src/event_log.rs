//! The event log: what really happened, in order, independent of what components believe or report.
//!
//!     machines, connections, the observer ──▶ EventLog::record ──▶ entries, for the trace
//!                                                     └──────────▶ Checker, after every event

use crate::checker::{BrokenRule, Checker};
use bytes::Bytes;
use lifecycle::timeline::TerminationRecord;
use network::{Frontend, ServiceRules};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
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
    /// The container accepts requests from now on.
    Listening {
        container: Name,
    },
    /// A Service proxy starts on a node.
    ProxyStarted {
        by: Agent,
        /// At which node ports are served.
        addresses: Vec<IpAddr>,
        /// After at most this long it applies what it has received. None: the run has faults, and a change may reach it
        /// at any time.
        longest_delay: Option<Duration>,
    },
    /// The rules of a Service on a node have changed; None: they are removed.
    RulesCommitted {
        by: Agent,
        service: Name,
        rules: Option<Arc<ServiceRules>>,
    },
    Request(Request),
    /// A line of the watch on all pods.
    ApiChange(Bytes),
    /// A line of the watch on all Services or EndpointSlices.
    TrafficChange(Bytes),
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

/// A client's request to a Service, through the rules of one node.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) node: Name,
    pub(crate) service: Name,
    pub(crate) to: Frontend,
    /// The endpoint that the rules chose; None: they have none.
    pub(crate) endpoint: Option<SocketAddr>,
    /// The uid of the pod that has this address now, and whether it accepted the request.
    pub(crate) pod: Option<(Name, bool)>,
}

impl Request {
    /// The rules led to an endpoint, and no pod accepted the request there.
    pub(crate) fn is_lost(&self) -> bool {
        self.endpoint.is_some() && !self.pod.as_ref().is_some_and(|(_, accepted)| *accepted)
    }
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
        let shown = state.entries.iter().filter(|entry| match &entry.event {
            Event::Record(_) => false,
            Event::Request(request) => request.is_lost(),
            _ => true,
        });
        shown.map(ToString::to_string).collect()
    }

    /// Everything, with complete API objects, to compare two runs byte by byte.
    pub(crate) fn full_text(&self) -> String {
        let mut log = String::new();
        for entry in &self.state().entries {
            let whole = match &entry.event {
                Event::ApiChange(line) | Event::TrafficChange(line) => {
                    String::from_utf8_lossy(line).into_owned()
                }
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

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { node, service, to, .. } = self;
        write!(f, "a request through {node} to {service} at {}:{}", to.address, to.port)?;
        match (&self.endpoint, &self.pod) {
            (None, _) => f.write_str(" is rejected: there is no endpoint"),
            (Some(endpoint), None) => write!(f, " is lost: {endpoint} is gone"),
            (Some(endpoint), Some((uid, false))) => {
                write!(f, " is lost: {endpoint} ({uid}) does not listen")
            }
            (Some(endpoint), Some((uid, true))) => write!(f, " reaches {endpoint} ({uid})"),
        }
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
            Event::Listening { container } => write!(f, "{container} listens"),
            Event::ProxyStarted { by, longest_delay: Some(delay), .. } => {
                write!(f, "the proxy of {by} starts, with a delay of at most {delay:?}")
            }
            Event::ProxyStarted { by, longest_delay: None, .. } => {
                write!(f, "the proxy of {by} starts")
            }
            Event::RulesCommitted { by, service, rules } => {
                let rules = rules.as_ref().map(|rules| crate::checker::rules_in_short(rules));
                write!(f, "{by} commits {service}: {}", rules.as_deref().unwrap_or("removed"))
            }
            Event::Request(request) => write!(f, "{request}"),
            Event::ApiChange(line) => f.write_str(&crate::checker::in_short(line)),
            Event::TrafficChange(line) => f.write_str(&crate::checker::change_in_short(line)),
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
