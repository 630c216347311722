//! Which pod is next, which wait, and for what (N-183, N-185). Pure: time is an argument.
//!
//!     add ──▶ active ──take──▶ out ──done──▶ (forgotten)
//!               ▲               │
//!               │    rejected   ├────────▶ waiting ──5 min, or an event that helps──┐
//!               │    failed     └────────▶ backing off ◀──────────────────────────┤
//!               └───────────────────── 1 s, 2, 4, 8, 10 s after the last try ◀──────┘
//!
//! A pod that waits, and that an event makes fit as far as its rules can tell from the one node,
//! does not back off: that it was tried a moment ago is no reason to let it wait for a sure thing. A
//! thing is sure for as many as find room there together, the most important first; all others back off.

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

/// After this long a pod is tried again, whatever rejected it; looked for this often.
const WAIT_MAX: Duration = Duration::from_secs(300);
const SWEEP: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: HashMap<ObjectKey, Entry>,
    active: BTreeSet<(Reverse<i32>, u64, ObjectKey)>,
    backing_off: BTreeSet<(Instant, u64, ObjectKey)>,
    waiting: BTreeSet<(Reverse<i32>, u64, ObjectKey)>,
    /// How many wait because of these plugins.
    waiting_by: BTreeMap<Plugins, usize>,
    sequence: u64,
    next_sweep: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    attempts: u32,
    /// When it came, and when it was taken last.
    came: Instant,
    taken: Option<Instant>,
    /// When the last try ended.
    tried: Option<Instant>,
    rejected_by: Plugins,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// With this priority: the pod's may have changed since.
    Active(i32, u64),
    BackingOff(Instant, u64),
    /// Where it would be if it were active.
    Waiting(i32, u64),
    /// Being decided or bound.
    Out,
}

/// For figures: attempts so far, when the last one began, and when the pod came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) attempts: u32,
    pub(crate) taken: Instant,
    pub(crate) came: Instant,
}

/// What an event means for a pod that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Help {
    None,
    Perhaps,
    Surely,
}

impl Queue {
    /// A pod that wants a node. If it is known, this is what it is now; `anew` says that it changed
    /// in a way that may help it.
    pub(crate) fn put(&mut self, pod: Arc<PodInfo>, anew: bool, now: Instant) {
        let key = pod.key.clone();
        match self.entries.get_mut(&key) {
            Some(entry) if entry.pod.uid == pod.uid => {
                let (place, moved) = (entry.place, entry.pod.priority != pod.priority);
                entry.pod = pod;
                match place {
                    Place::Waiting(..) if anew => self.back_off(&key, now),
                    Place::Waiting(..) if moved => self.wait(&key),
                    Place::Active(..) if moved => self.activate(&key),
                    _ => (),
                }
            }
            _ => {
                self.remove(&key);
                let rejected_by = Plugins::default();
                let entry = Entry {
                    pod,
                    attempts: 0,
                    came: now,
                    taken: None,
                    tried: None,
                    rejected_by,
                    place: Place::Out,
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
        self.leave_place(key);
        self.entries.remove(key);
    }

    /// The most important pod that can be tried now; of equals the one that came first.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        while let Some((due, _, key)) = self.backing_off.first().cloned() {
            if due > now {
                break;
            }
            self.activate(&key);
        }
        self.sweep(now);
        let (_, _, key) = self.active.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.place = Place::Out;
        entry.attempts = entry.attempts.saturating_add(1);
        entry.taken = Some(now);
        Some(entry.pod.clone())
    }

    /// No node could take the pod: it waits for something that helps.
    pub(crate) fn rejected(&mut self, key: &ObjectKey, by: Plugins, now: Instant) {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.place == Place::Out)
        else {
            return;
        };
        (entry.rejected_by, entry.tried) = (by, Some(now));
        self.wait(key);
        self.next_sweep.get_or_insert(now + SWEEP);
    }

    /// Something went wrong that has nothing to do with nodes.
    pub(crate) fn failed(&mut self, key: &ObjectKey, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.tried = Some(now);
            self.back_off(key, now);
        }
    }

    /// Asks of every pod that waits whether something helps it, in the order in which they would be taken.
    pub(crate) fn help(
        &mut self,
        now: Instant,
        mut helps: impl FnMut(&Arc<PodInfo>, Plugins) -> Help,
    ) {
        let mut helped = Vec::new();
        for (_, _, key) in &self.waiting {
            if let Some(entry) = self.entries.get(key) {
                match helps(&entry.pod, entry.rejected_by) {
                    Help::None => (),
                    help => helped.push((key.clone(), help)),
                }
            }
        }
        for (key, help) in helped {
            match help {
                Help::Surely => self.activate(&key),
                _ => self.back_off(&key, now),
            }
        }
    }

    /// How many are active, back off, and wait.
    pub(crate) fn lengths(&self) -> [usize; 3] {
        [self.active.len(), self.backing_off.len(), self.waiting.len()]
    }

    /// How long a pod has been on its way.
    pub(crate) fn timing(&self, key: &ObjectKey) -> Option<Timing> {
        let entry = self.entries.get(key)?;
        Some(Timing { attempts: entry.attempts, taken: entry.taken?, came: entry.came })
    }

    pub(crate) fn is_anyone_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether one of these plugins is why somebody waits.
    pub(crate) fn is_anyone_waiting_for(&self, plugins: Plugins) -> bool {
        self.waiting_by.keys().any(|by| by.meets(plugins))
    }

    /// When time alone changes something.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let backing_off = self.backing_off.first().map(|(due, _, _)| *due);
        [backing_off, self.next_sweep].into_iter().flatten().min()
    }

    fn sweep(&mut self, now: Instant) {
        if self.next_sweep.is_none_or(|due| due > now) {
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
        self.next_sweep = (!self.waiting.is_empty()).then_some(now + SWEEP);
    }

    fn activate(&mut self, key: &ObjectKey) {
        self.leave_place(key);
        if let Some(entry) = self.entries.get_mut(key) {
            self.sequence += 1;
            let priority = entry.pod.priority;
            entry.place = Place::Active(priority, self.sequence);
            self.active.insert((Reverse(priority), self.sequence, key.clone()));
        }
    }

    fn wait(&mut self, key: &ObjectKey) {
        self.leave_place(key);
        if let Some(entry) = self.entries.get_mut(key) {
            self.sequence += 1;
            let priority = entry.pod.priority;
            entry.place = Place::Waiting(priority, self.sequence);
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
        self.leave_place(key);
        if let Some(entry) = self.entries.get_mut(key) {
            self.sequence += 1;
            entry.place = Place::BackingOff(due, self.sequence);
            self.backing_off.insert((due, self.sequence, key.clone()));
        }
    }

    fn leave_place(&mut self, key: &ObjectKey) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        match std::mem::replace(&mut entry.place, Place::Out) {
            Place::Active(priority, number) => {
                self.active.remove(&(Reverse(priority), number, key.clone()));
            }
            Place::BackingOff(due, number) => {
                self.backing_off.remove(&(due, number, key.clone()));
            }
            Place::Waiting(priority, number) => {
                self.waiting.remove(&(Reverse(priority), number, key.clone()));
                if let Some(count) = self.waiting_by.get_mut(&entry.rejected_by) {
                    *count -= 1;
                    if *count == 0 {
                        self.waiting_by.remove(&entry.rejected_by);
                    }
                }
            }
            Place::Out => (),
        }
    }
}

/// How long after a try the next one may come.
fn wait(attempts: u32) -> Duration {
    let doubled = BACKOFF_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(8));
    doubled.min(BACKOFF_MAX)
}
