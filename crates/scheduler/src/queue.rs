//! The scheduling queue: which pod is next, and which pods wait for what (N-183, N-185). Pure: time is an argument.
//!
//!     add ──▶ active ──take──▶ out ──done──▶ (forgotten)
//!               ▲               │
//!               │    rejected   ├────────▶ waiting ──5 min, or an event that helps──┐
//!               │    failed     └────────▶ backing off ◀──────────────────────────┤
//!               └───────────────────── 1 s, 2, 4, 8, 10 s after the last try ◀──────┘
//!
//! If an event certainly makes a waiting pod fit on a node, the pod becomes active without backoff. That holds for as
//! many pods as fit there together, in the order of priority; all others back off.

#[cfg(test)]
mod tests;

use crate::filters::Plugins;
use crate::pod::PodInfo;
use client::ObjectKey;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// After this long a pod is tried again without an event; checked at this interval.
const WAIT_MAX: Duration = Duration::from_secs(300);
const WAIT_CHECK_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: HashMap<ObjectKey, Entry>,
    active: BTreeSet<(Reverse<i32>, u64, ObjectKey)>,
    backing_off: BTreeSet<(Instant, u64, ObjectKey)>,
    waiting: BTreeSet<(Reverse<i32>, u64, ObjectKey)>,
    /// The number of waiting pods by the plugins that rejected them.
    waiting_by: BTreeMap<Plugins, usize>,
    sequence: u64,
    next_wait_check: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    attempts: u32,
    /// When it was added, and when it was taken last.
    added: Instant,
    taken: Option<Instant>,
    /// When the last try ended.
    tried: Option<Instant>,
    rejected_by: Plugins,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// With its priority at that time, which may have changed since.
    Active(i32, u64),
    BackingOff(Instant, u64),
    /// With its priority and sequence number.
    Waiting(i32, u64),
    /// Being scheduled or bound.
    Taken,
}

/// For metrics: attempts so far, when the last one began, and when the pod was added.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) attempts: u32,
    pub(crate) taken: Instant,
    pub(crate) added: Instant,
}

/// What an event means for a waiting pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueingHint {
    Skip,
    /// It may fit: try it after its backoff.
    QueueAfterBackoff,
    /// It fits: try it now.
    QueueNow,
}

impl Queue {
    /// Adds or updates a pod without a node. `changed` says that it changed in a way that may make it schedulable.
    pub(crate) fn put(&mut self, pod: Arc<PodInfo>, changed: bool, now: Instant) {
        let key = pod.key.clone();
        match self.entries.get_mut(&key) {
            Some(entry) if entry.pod.uid == pod.uid => {
                let (state, reprioritized) = (entry.state, entry.pod.priority != pod.priority);
                entry.pod = pod;
                match state {
                    State::Waiting(..) if changed => self.back_off(&key, now),
                    State::Waiting(..) if reprioritized => self.wait(&key),
                    State::Active(..) if reprioritized => self.activate(&key),
                    _ => (),
                }
            }
            _ => {
                self.remove(&key);
                let rejected_by = Plugins::default();
                let entry = Entry {
                    pod,
                    attempts: 0,
                    added: now,
                    taken: None,
                    tried: None,
                    rejected_by,
                    state: State::Taken,
                };
                self.entries.insert(key.clone(), entry);
                self.activate(&key);
            }
        }
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Arc<PodInfo>> {
        self.entries.get(key).map(|entry| &entry.pod)
    }

    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        self.leave_state(key);
        self.entries.remove(key);
    }

    /// Takes the active pod of the highest priority; among equals the first in the queue.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        while let Some((due, _, key)) = self.backing_off.first().cloned() {
            if due > now {
                break;
            }
            self.activate(&key);
        }
        self.activate_long_waiting(now);
        let (_, _, key) = self.active.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.state = State::Taken;
        entry.attempts = entry.attempts.saturating_add(1);
        entry.taken = Some(now);
        Some(entry.pod.clone())
    }

    /// No node is feasible: the pod waits for an event.
    pub(crate) fn rejected(&mut self, key: &ObjectKey, by: Plugins, now: Instant) {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.state == State::Taken)
        else {
            return;
        };
        (entry.rejected_by, entry.tried) = (by, Some(now));
        self.wait(key);
        self.next_wait_check.get_or_insert(now + WAIT_CHECK_INTERVAL);
    }

    /// Scheduling failed with an error: the pod backs off.
    pub(crate) fn failed(&mut self, key: &ObjectKey, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.tried = Some(now);
            self.back_off(key, now);
        }
    }

    /// Requeues waiting pods by the hint for each, in the order in which they would be taken.
    pub(crate) fn requeue(
        &mut self,
        now: Instant,
        mut hint: impl FnMut(&Arc<PodInfo>, Plugins) -> QueueingHint,
    ) {
        let mut requeued = Vec::new();
        for (_, _, key) in &self.waiting {
            if let Some(entry) = self.entries.get(key) {
                match hint(&entry.pod, entry.rejected_by) {
                    QueueingHint::Skip => (),
                    hint => requeued.push((key.clone(), hint)),
                }
            }
        }
        for (key, hint) in requeued {
            match hint {
                QueueingHint::QueueNow => self.activate(&key),
                _ => self.back_off(&key, now),
            }
        }
    }

    /// The number of active, backing off and waiting pods.
    pub(crate) fn lengths(&self) -> [usize; 3] {
        [self.active.len(), self.backing_off.len(), self.waiting.len()]
    }

    pub(crate) fn timing(&self, key: &ObjectKey) -> Option<Timing> {
        let entry = self.entries.get(key)?;
        Some(Timing { attempts: entry.attempts, taken: entry.taken?, added: entry.added })
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a waiting pod was rejected by one of these plugins.
    pub(crate) fn has_waiting_for(&self, plugins: Plugins) -> bool {
        self.waiting_by.keys().any(|by| by.intersects(plugins))
    }

    /// When the queue changes without an event.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let backing_off = self.backing_off.first().map(|(due, _, _)| *due);
        [backing_off, self.next_wait_check].into_iter().flatten().min()
    }

    fn activate_long_waiting(&mut self, now: Instant) {
        if self.next_wait_check.is_none_or(|due| due > now) {
            return;
        }
        let long = |key: &ObjectKey| {
            let since = self.entries.get(key).and_then(|entry| entry.tried);
            since.is_none_or(|since| now.duration_since(since) >= WAIT_MAX)
        };
        let due = self.waiting.iter().map(|(_, _, key)| key).filter(|key| long(key)).cloned();
        for key in due.collect::<Vec<_>>() {
            self.activate(&key);
        }
        self.next_wait_check = (!self.waiting.is_empty()).then_some(now + WAIT_CHECK_INTERVAL);
    }

    fn activate(&mut self, key: &ObjectKey) {
        self.leave_state(key);
        if let Some(entry) = self.entries.get_mut(key) {
            self.sequence += 1;
            let priority = entry.pod.priority;
            entry.state = State::Active(priority, self.sequence);
            self.active.insert((Reverse(priority), self.sequence, key.clone()));
        }
    }

    fn wait(&mut self, key: &ObjectKey) {
        self.leave_state(key);
        if let Some(entry) = self.entries.get_mut(key) {
            self.sequence += 1;
            let priority = entry.pod.priority;
            entry.state = State::Waiting(priority, self.sequence);
            *self.waiting_by.entry(entry.rejected_by).or_default() += 1;
            self.waiting.insert((Reverse(priority), self.sequence, key.clone()));
        }
    }

    fn back_off(&mut self, key: &ObjectKey, now: Instant) {
        let Some(entry) = self.entries.get(key) else {
            return;
        };
        let due = entry.tried.map_or(now, |tried| tried + wait(entry.attempts));
        if due <= now {
            return self.activate(key);
        }
        self.leave_state(key);
        if let Some(entry) = self.entries.get_mut(key) {
            self.sequence += 1;
            entry.state = State::BackingOff(due, self.sequence);
            self.backing_off.insert((due, self.sequence, key.clone()));
        }
    }

    fn leave_state(&mut self, key: &ObjectKey) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        match std::mem::replace(&mut entry.state, State::Taken) {
            State::Active(priority, number) => {
                self.active.remove(&(Reverse(priority), number, key.clone()));
            }
            State::BackingOff(due, number) => {
                self.backing_off.remove(&(due, number, key.clone()));
            }
            State::Waiting(priority, number) => {
                self.waiting.remove(&(Reverse(priority), number, key.clone()));
                if let Some(count) = self.waiting_by.get_mut(&entry.rejected_by) {
                    *count -= 1;
                    if *count == 0 {
                        self.waiting_by.remove(&entry.rejected_by);
                    }
                }
            }
            State::Taken => (),
        }
    }
}

/// The backoff after this many attempts.
fn wait(attempts: u32) -> Duration {
    let doubled = BACKOFF_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(8));
    doubled.min(BACKOFF_MAX)
}
