//! The book: what really happened, in order, whatever anybody believes or reports.
//!
//!     machines, lines, the observer ──▶ Book::write ──▶ entries, for the story
//!                                              └──────▶ Judge, at every step

use crate::judge::{Broken, Judge};
use bytes::Bytes;
use lifecycle::timeline::Termination;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) type Name = Arc<str>;

/// One life of one node's agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Agent {
    pub(crate) node: Name,
    pub(crate) life: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Stop,
    Kill,
    /// Its sandbox was stopped over its head.
    Sandbox,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    /// A call to the runtime that may start something of this pod begins and ends.
    Busy {
        by: Agent,
        uid: Name,
    },
    Idle {
        by: Agent,
        uid: Name,
    },
    Starting {
        container: Name,
        name: Name,
        /// `namespace/name`, as the machine knows it.
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
    /// A signal for a container that has ended.
    TooLate {
        container: Name,
        signal: Signal,
        by: Agent,
        asked: Duration,
    },
    Exit {
        container: Name,
        code: i32,
    },
    /// An agent has been shown that a container has ended.
    Shown {
        container: Name,
        by: Agent,
    },
    HookBegins {
        container: Name,
        by: Agent,
    },
    HookEnds {
        container: Name,
        by: Agent,
        how: Option<i32>,
    },
    /// An agent has heard of a pod. With a grace: that it is being deleted.
    Told {
        by: Agent,
        uid: Name,
        grace: Option<i64>,
    },
    /// An agent has heard that a pod is no more.
    Gone {
        by: Agent,
        uid: Name,
    },
    Agent {
        agent: Agent,
        lives: bool,
    },
    /// A line of the watch on all pods.
    Api(Bytes),
    /// A user wants this pod to end.
    Asked {
        pod: Name,
        grace: Option<i64>,
    },
    /// Somebody says of a node that it is off: its object is deleted or out of service, until that is
    /// taken back. What runs there may get a successor meanwhile.
    Disowned {
        node: Name,
        still: bool,
    },
    /// A record of an ending, as the API has it in the end.
    Record(String),
    /// Something else, in words.
    Said(String),
}

pub(crate) struct Entry {
    pub(crate) at: Duration,
    pub(crate) what: What,
}

struct Pages {
    entries: Vec<Entry>,
    judge: Judge,
    broken: Option<(Duration, Broken)>,
}

/// Clones share it.
#[derive(Clone)]
pub(crate) struct Book {
    began: Instant,
    /// Nothing is written into it.
    pub(crate) closed: bool,
    pages: Arc<Mutex<Pages>>,
}

impl Book {
    pub(crate) fn new() -> Book {
        let pages = Pages { entries: Vec::new(), judge: Judge::default(), broken: None };
        Book { began: Instant::now(), closed: false, pages: Arc::new(Mutex::new(pages)) }
    }

    /// For what is measured and not judged: everything that happens would fill the memory.
    pub(crate) fn closed() -> Book {
        Book { closed: true, ..Book::new() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn write(&self, what: What) {
        if self.closed {
            return;
        }
        let at = self.now();
        let mut pages = self.pages();
        if pages.broken.is_none()
            && let Err(broken) = pages.judge.see(at, &what)
        {
            pages.broken = Some((at, broken));
        }
        if what.is_told() {
            pages.entries.push(Entry { at, what });
        }
    }

    pub(crate) fn say(&self, text: impl Into<String>) {
        self.write(What::Said(text.into()));
    }

    /// A rule is seen to be broken by somebody who looked at the whole.
    pub(crate) fn find(&self, rule: &'static str, why: String) {
        let at = self.now();
        self.pages().broken.get_or_insert((at, Broken { rule, why }));
    }

    /// What must be true at the end, too.
    pub(crate) fn close(&self) {
        let at = self.now();
        let mut pages = self.pages();
        if pages.broken.is_none()
            && let Err(broken) = pages.judge.finish(at)
        {
            pages.broken = Some((at, broken));
        }
    }

    pub(crate) fn broken(&self) -> Option<(Duration, Broken)> {
        self.pages().broken.clone()
    }

    pub(crate) fn ask<T>(&self, question: impl FnOnce(&Judge) -> T) -> T {
        question(&self.pages().judge)
    }

    /// Looks whether the records of endings say what happened.
    pub(crate) fn compare(&self, records: &[Termination]) {
        for record in records {
            self.write(What::Record(serde_json::to_string(record).unwrap_or_default()));
        }
        let at = self.now();
        let mut pages = self.pages();
        if pages.broken.is_none()
            && let Err(broken) = pages.judge.compare(records)
        {
            pages.broken = Some((at, broken));
        }
    }

    /// What people want to know of it, a line each.
    pub(crate) fn story(&self) -> Vec<String> {
        let pages = self.pages();
        let told = pages.entries.iter().filter(|entry| !matches!(entry.what, What::Record(_)));
        told.map(ToString::to_string).collect()
    }

    /// Everything, with objects as they were.
    pub(crate) fn log(&self) -> String {
        let mut log = String::new();
        for entry in &self.pages().entries {
            let whole = match &entry.what {
                What::Api(line) => String::from_utf8_lossy(line).into_owned(),
                what => what.to_string(),
            };
            log.push_str(&format!("{} {}\n", entry.at.as_nanos(), whole.trim_end()));
        }
        log
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl What {
    /// Worth a line in the story.
    fn is_told(&self) -> bool {
        !matches!(self, What::Busy { .. } | What::Idle { .. } | What::Shown { .. })
            && !matches!(self, What::Told { grace: None, .. })
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.life)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.at.as_secs(), self.at.subsec_micros());
        write!(f, "{seconds:5}.{micros:06}  {}", self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Busy { by, uid } => write!(f, "{by} is busy with {uid}"),
            What::Idle { by, uid } => write!(f, "{by} is done with {uid}"),
            What::Starting { container, name, uid, by, .. } => {
                write!(f, "{by} starts {container} ({name} of {uid})")
            }
            What::Running { container } => write!(f, "{container} runs"),
            What::Signal { container, signal, by } => write!(f, "{by} {signal:?} {container}"),
            What::TooLate { container, signal, by, .. } => {
                write!(f, "{by} {signal:?} {container}, which has ended")
            }
            What::Exit { container, code } => write!(f, "{container} exits with {code}"),
            What::Shown { container, by } => write!(f, "{by} sees that {container} has ended"),
            What::HookBegins { container, by } => write!(f, "{by} runs the hook of {container}"),
            What::HookEnds { container, by, how } => {
                write!(f, "the hook of {container} that {by} ran ends: {how:?}")
            }
            What::Told { by, uid, grace } => write!(f, "{by} hears that {uid} ends: {grace:?}"),
            What::Gone { by, uid } => write!(f, "{by} hears that {uid} is gone"),
            What::Agent { agent, lives: true } => write!(f, "{agent} begins"),
            What::Agent { agent, lives: false } => write!(f, "{agent} has crashed"),
            What::Api(line) => f.write_str(&crate::judge::in_short(line)),
            What::Record(record) => f.write_str(record),
            What::Disowned { node, still: true } => write!(f, "somebody says that {node} is off"),
            What::Disowned { node, still: false } => write!(f, "{node} is not off any more"),
            What::Asked { pod, grace } => write!(f, "somebody deletes {pod}, grace {grace:?}"),
            What::Said(text) => f.write_str(text),
        }
    }
}
