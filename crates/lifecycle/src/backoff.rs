//! Delays after failures: crashed containers and image pulls.
//!
//! Each pod has its own, with a key per container or image. The first failure causes the first delay; each further
//! one doubles it up to the longest. After a long time without failures it starts again (T-NODE-65, N-68).

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use std::collections::BTreeMap;

/// Entries of one pod, which has fewer containers and images. The oldest entry is dropped first. Callers with more
/// keys use [`Backoffs::remember`].
const ENTRIES_MAX: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub first: SignedDuration,
    pub longest: SignedDuration,
    /// After this time without failures, the next failure counts as the first.
    pub forgotten_after: SignedDuration,
}

/// Crash back-off and image pull back-off: 10 s to 300 s, reset after 600 s.
pub const PACE: Pace = Pace {
    first: SignedDuration::from_secs(10),
    longest: SignedDuration::from_secs(300),
    forgotten_after: SignedDuration::from_secs(600),
};

#[derive(Debug, Clone)]
pub struct Backoffs {
    pace: Pace,
    entries: BTreeMap<String, Entry>,
    most: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    delay: SignedDuration,
    updated: Timestamp,
}

/// A delay that is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    pub until: Timestamp,
    /// The whole delay, for messages.
    pub delay: SignedDuration,
}

impl Default for Backoffs {
    fn default() -> Self {
        Backoffs::new(PACE)
    }
}

impl Backoffs {
    pub fn new(pace: Pace) -> Backoffs {
        Backoffs { pace, entries: BTreeMap::new(), most: ENTRIES_MAX }
    }

    /// Keeps at least this many keys from now on.
    pub fn remember(&mut self, at_least: usize) {
        self.most = self.most.max(at_least);
    }

    /// Whether `key`, which failed at `failed`, still waits at `now`. The delay counts from the failure: for a
    /// container from its finish time.
    pub fn waiting(&self, key: &str, failed: Timestamp, now: Timestamp) -> Option<Remaining> {
        let entry = self.entries.get(key).filter(|entry| !self.forgotten(entry, failed))?;
        let until = later(failed, entry.delay);
        (now < until).then_some(Remaining { until, delay: entry.delay })
    }

    /// Whether `key` still waits, counted from the last call of [`Backoffs::failed`]: for image pulls.
    pub fn waiting_since_told(&self, key: &str, now: Timestamp) -> Option<Remaining> {
        let entry = self.entries.get(key).filter(|entry| !self.forgotten(entry, now))?;
        let until = later(entry.updated, entry.delay);
        (now < until).then_some(Remaining { until, delay: entry.delay })
    }

    /// Records at `now` that `key` failed at `failed`: the next delay is the first one or twice the last one.
    ///
    /// For containers this is called when the next attempt *starts*, with the finish time of the previous one, so the
    /// first restart is immediate.
    pub fn failed(&mut self, key: &str, failed: Timestamp, now: Timestamp) {
        let last = self.entries.get(key).filter(|entry| !self.forgotten(entry, failed));
        let delay = match last {
            Some(entry) => (entry.delay + entry.delay).min(self.pace.longest),
            None => self.pace.first,
        };
        self.entries.insert(key.to_owned(), Entry { delay, updated: now });
        if self.entries.len() > self.most {
            let stalest = self.entries.iter().min_by_key(|(_, entry)| entry.updated);
            let stalest = stalest.map(|(key, _)| key.clone());
            stalest.and_then(|key| self.entries.remove(&key));
        }
    }

    /// After a success the next failure counts as the first.
    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }

    fn forgotten(&self, entry: &Entry, failed: Timestamp) -> bool {
        failed.duration_since(entry.updated) > self.pace.forgotten_after
    }
}

/// A changed image or changed resources start a new back-off (T-NODE-65).
pub fn container_key(container: &core::Container) -> String {
    let resources = format!("{:?}", container.resources);
    let image = container.image.as_deref().unwrap_or_default();
    format!("{}_{}", container.name, crate::observed::hash(&[image, &resources]))
}

pub(crate) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{at, container, pod};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use proptest::prelude::*;

    fn delay(backoffs: &Backoffs, key: &str, failed: i64) -> i64 {
        backoffs.waiting(key, at(failed), at(failed)).map_or(0, |left| left.delay.as_secs())
    }

    #[test]
    fn t_node_65_delays_double_from_10_to_300_seconds() {
        let mut backoffs = Backoffs::default();
        let mut delays = Vec::new();
        let mut second = 0;
        for _ in 0..8 {
            delays.push(delay(&backoffs, "app", second));
            second += delay(&backoffs, "app", second);
            backoffs.failed("app", at(second), at(second));
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(delay(&backoffs, "web", second), 0, "each has its own");
    }

    #[test]
    fn t_node_65_the_delay_counts_from_the_finish_time() {
        let mut backoffs = Backoffs::default();
        backoffs.failed("app", at(0), at(0));
        let left = Remaining { until: at(110), delay: PACE.first };
        assert_eq!(backoffs.waiting("app", at(100), at(104)), Some(left));
        assert_eq!(backoffs.waiting("app", at(100), at(110)), None);
    }

    #[test]
    fn t_node_65_a_long_run_resets_the_back_off() {
        let mut backoffs = Backoffs::default();
        for _ in 0..5 {
            backoffs.failed("app", at(0), at(0));
        }
        assert_eq!(delay(&backoffs, "app", 600), 160, "ten minutes are not more than ten minutes");
        assert_eq!(delay(&backoffs, "app", 601), 0);
        backoffs.failed("app", at(601), at(601));
        assert_eq!(delay(&backoffs, "app", 602), 10, "from the first again");
    }

    #[test]
    fn t_node_65_a_changed_image_or_changed_resources_reset_the_back_off() {
        let mut pod = pod("Always", "app");
        let app = container(&mut pod, "app");
        let plain = container_key(app);
        app.command = Some(vec!["other".into()]);
        assert_eq!(container_key(app), plain);
        app.image = Some("another".into());
        let image = container_key(app);
        let cpu = ("cpu".to_owned(), Quantity("1".into()));
        let requests = Some([cpu].into());
        app.resources = Some(core::ResourceRequirements { requests, ..Default::default() });
        let resources = container_key(app);
        assert!(plain != image && image != resources && plain != resources);
    }

    #[test]
    fn n_68_the_delay_of_a_pull_counts_from_the_end_of_the_failed_one() {
        let mut backoffs = Backoffs::default();
        assert_eq!(backoffs.waiting_since_told("image", at(0)), None);
        backoffs.failed("image", at(7), at(7));
        assert_eq!(
            backoffs.waiting_since_told("image", at(16)).map(|left| left.until),
            Some(at(17))
        );
        assert_eq!(backoffs.waiting_since_told("image", at(17)), None);
        backoffs.failed("image", at(20), at(20));
        assert!(backoffs.waiting_since_told("image", at(39)).is_some());
        backoffs.forget("image");
        assert_eq!(backoffs.waiting_since_told("image", at(39)), None);
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let mut backoffs = Backoffs::default();
        for n in 0..2 * ENTRIES_MAX as i64 {
            backoffs.failed(&format!("image {n}"), at(n), at(n));
        }
        assert_eq!(backoffs.entries.len(), ENTRIES_MAX);
    }

    proptest! {
        #[test]
        fn no_delay_is_longer_than_the_maximum(failures in prop::collection::vec(0i64..1000, 0..30)) {
            let mut backoffs = Backoffs::default();
            let mut second = 0;
            for after in failures {
                second += after;
                backoffs.failed("app", at(second), at(second));
                let left = backoffs.waiting("app", at(second), at(second)).unwrap();
                prop_assert!(left.delay >= PACE.first && left.delay <= PACE.longest);
            }
        }
    }
}
