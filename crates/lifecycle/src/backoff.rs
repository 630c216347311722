//! How long to wait before trying again what failed: crashed containers and image pulls.
//!
//! Each pod has its own; keys are what is tried. The first failure costs the first delay, each
//! further one twice that up to the longest; a long quiet time forgets it all (T-NODE-65, N-68).

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use std::collections::BTreeMap;

/// Entries of one pod; a pod has fewer containers and images than this. The stalest goes first.
const ENTRIES_MAX: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub first: SignedDuration,
    pub longest: SignedDuration,
    /// After so much quiet the next failure is a first one again.
    pub forgotten_after: SignedDuration,
}

/// Crash back-off and image pull back-off alike: 10 s to 300 s, forgotten after 600 s.
pub const PACE: Pace = Pace {
    first: SignedDuration::from_secs(10),
    longest: SignedDuration::from_secs(300),
    forgotten_after: SignedDuration::from_secs(600),
};

#[derive(Debug, Clone)]
pub struct Backoffs {
    pace: Pace,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    delay: SignedDuration,
    updated: Timestamp,
}

/// How long is still to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    pub until: Timestamp,
    /// The whole delay of this step, for messages.
    pub delay: SignedDuration,
}

impl Default for Backoffs {
    fn default() -> Self {
        Backoffs::new(PACE)
    }
}

impl Backoffs {
    pub fn new(pace: Pace) -> Backoffs {
        Backoffs { pace, entries: BTreeMap::new() }
    }

    /// Whether `key`, which failed at `failed`, still has to wait at `now`. The delay counts from the
    /// failure: for a container from its finish time.
    pub fn waiting(&self, key: &str, failed: Timestamp, now: Timestamp) -> Option<Remaining> {
        let entry = self.entries.get(key).filter(|entry| !self.forgotten(entry, failed))?;
        let until = later(failed, entry.delay);
        (now < until).then_some(Remaining { until, delay: entry.delay })
    }

    /// Whether `key` still has to wait, counted from when [`Backoffs::failed`] was last told: for image pulls.
    pub fn waiting_since_told(&self, key: &str, now: Timestamp) -> Option<Remaining> {
        let entry = self.entries.get(key).filter(|entry| !self.forgotten(entry, now))?;
        let until = later(entry.updated, entry.delay);
        (now < until).then_some(Remaining { until, delay: entry.delay })
    }

    /// `key` failed at `failed`, and that is told at `now`: the next delay is the first or twice the last.
    ///
    /// For containers this is told when the next attempt *starts*, with the finish time of the
    /// previous one, so the first restart is immediate.
    pub fn failed(&mut self, key: &str, failed: Timestamp, now: Timestamp) {
        let last = self.entries.get(key).filter(|entry| !self.forgotten(entry, failed));
        let delay = match last {
            Some(entry) => (entry.delay + entry.delay).min(self.pace.longest),
            None => self.pace.first,
        };
        self.entries.insert(key.to_owned(), Entry { delay, updated: now });
        if self.entries.len() > ENTRIES_MAX {
            let stalest = self.entries.iter().min_by_key(|(_, entry)| entry.updated);
            let stalest = stalest.map(|(key, _)| key.clone());
            stalest.and_then(|key| self.entries.remove(&key));
        }
    }

    /// It worked: the next failure is a first one.
    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }

    fn forgotten(&self, entry: &Entry, failed: Timestamp) -> bool {
        failed.duration_since(entry.updated) > self.pace.forgotten_after
    }
}

/// A changed image or changed resources are something new to try (T-NODE-65).
pub fn container_key(container: &core::Container) -> String {
    let resources = format!("{:?}", container.resources);
    let image = container.image.as_deref().unwrap_or_default();
    format!("{}_{}", container.name, crate::observed::hash(&[image, &resources]))
}

pub(crate) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(at)
}
