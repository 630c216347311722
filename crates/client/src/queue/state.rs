//! The state of a queue and its decisions. No clock, no waiting: `now` is an argument.

use super::{Key, QueueCounts};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct State<K> {
    /// First in, first out.
    ready: VecDeque<K>,
    /// All keys of `ready`, and keys in progress that become ready again when they are done.
    requested: HashSet<K>,
    in_progress: HashSet<K>,
    /// Keys by the time at which they become ready; ties keep the order in which they were added.
    waiting: BTreeMap<(Instant, u64), K>,
    /// The position of a key in `waiting`.
    due: HashMap<K, (Instant, u64)>,
    sequence: u64,
    failures: HashMap<K, u32>,
    first: Duration,
    max: Duration,
    shut_down: bool,
    handed_out: u64,
    retried: u64,
}

impl<K: Key> State<K> {
    pub(super) fn new(first: Duration, max: Duration) -> Self {
        State {
            ready: VecDeque::new(),
            requested: HashSet::new(),
            in_progress: HashSet::new(),
            waiting: BTreeMap::new(),
            due: HashMap::new(),
            sequence: 0,
            failures: HashMap::new(),
            first,
            max,
            shut_down: false,
            handed_out: 0,
            retried: 0,
        }
    }

    pub(super) fn add(&mut self, key: K) {
        if self.shut_down || !self.requested.insert(key.clone()) {
            return;
        }
        if !self.in_progress.contains(&key) {
            self.ready.push_back(key);
        }
    }

    pub(super) fn add_at(&mut self, key: K, at: Instant) {
        if self.shut_down {
            return;
        }
        if let Some(position) = self.due.get(&key) {
            if position.0 <= at {
                return;
            }
            self.waiting.remove(position);
        }
        let position = (at, self.sequence);
        self.sequence += 1;
        self.due.insert(key.clone(), position);
        self.waiting.insert(position, key);
    }

    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        while let Some(entry) = self.waiting.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
        let key = self.ready.pop_front()?;
        self.requested.remove(&key);
        self.in_progress.insert(key.clone());
        self.handed_out += 1;
        Some(key)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn done(&mut self, key: &K) {
        if self.in_progress.remove(key) && self.requested.contains(key) {
            self.ready.push_back(key.clone());
        }
    }

    pub(super) fn retry(&mut self, key: K, now: Instant) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = 2u32.checked_pow(*failures).and_then(|factor| self.first.checked_mul(factor));
        let delay = delay.unwrap_or(self.max).min(self.max);
        *failures = failures.saturating_add(1);
        self.retried += 1;
        self.add_at(key, now + delay);
        delay
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }

    pub(super) fn shut_down(&mut self) {
        self.shut_down = true;
        self.ready.clear();
        self.requested.clear();
        self.waiting.clear();
        self.due.clear();
        self.failures.clear();
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down
    }

    pub(super) fn counts(&self) -> QueueCounts {
        QueueCounts {
            ready: self.ready.len(),
            waiting: self.waiting.len(),
            in_progress: self.in_progress.len(),
            handed_out: self.handed_out,
            retried: self.retried,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Add(u8),
        After(u8, u64),
        Take,
        Done(u8),
        Retry(u8),
        Pass(u64),
    }
    use Step::*;

    struct Play {
        state: State<u8>,
        now: Instant,
        taken: Vec<u8>,
    }

    impl Play {
        fn new() -> Self {
            let state = State::new(Duration::from_secs(1), Duration::from_secs(8));
            Play { state, now: Instant::now(), taken: Vec::new() }
        }

        fn step(&mut self, step: Step) {
            match step {
                Add(key) => self.state.add(key),
                After(key, s) => self.state.add_at(key, self.now + Duration::from_secs(s)),
                Take => self.taken.extend(self.state.take(self.now)),
                Done(key) => self.state.done(&key),
                Retry(key) => drop(self.state.retry(key, self.now)),
                Pass(s) => self.now += Duration::from_secs(s),
            }
        }
    }

    fn check(story: &str, steps: &[Step], taken: &[u8]) {
        let mut play = Play::new();
        steps.iter().for_each(|step| play.step(*step));
        assert_eq!(play.taken, taken, "{story}");
    }

    #[test]
    fn keys_come_once_in_order_and_one_at_a_time() {
        check("first in, first out", &[Add(1), Add(2), Take, Take, Take], &[1, 2]);
        check("added twice, comes once", &[Add(1), Add(1), Take, Take], &[1]);
        check("not while in progress", &[Add(1), Take, Add(1), Take], &[1]);
        check("again after done", &[Add(1), Take, Add(1), Add(1), Done(1), Take, Take], &[1, 1]);
        check("and behind the others", &[Add(1), Take, Add(1), Add(2), Done(1), Take], &[1, 2]);
        check("done does not add", &[Add(1), Take, Done(1), Take], &[1]);
        check("done without take", &[Done(1), Add(1), Done(1), Take, Take], &[1]);
    }

    #[test]
    fn keys_come_when_they_are_due() {
        check("too early", &[After(1, 5), Pass(4), Take], &[]);
        check("in time", &[After(1, 5), Pass(5), Take, Take], &[1]);
        check("the earlier time counts", &[After(1, 9), After(1, 2), Pass(2), Take], &[1]);
        check("the later time does not", &[After(1, 2), After(1, 9), Pass(9), Take, Take], &[1]);
        check(
            "in the order they are due",
            &[After(1, 3), After(2, 1), Pass(3), Take, Take],
            &[2, 1],
        );
        check("due while in progress", &[Add(1), After(1, 1), Take, Pass(1), Take], &[1]);
        check(
            "now and later are separate",
            &[Add(1), After(1, 1), Take, Done(1), Pass(1), Take],
            &[1, 1],
        );
        check("a retry waits", &[Retry(1), Take, Pass(1), Take, Done(1), Take], &[1]);
        check(
            "a second retry waits longer",
            &[Retry(1), Pass(1), Take, Retry(1), Done(1), Pass(1), Take, Pass(1), Take],
            &[1, 1],
        );
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let key = 0u8..4;
        prop_oneof![
            key.clone().prop_map(Add),
            (key.clone(), 0u64..5).prop_map(|(key, s)| After(key, s)),
            Just(Take),
            key.clone().prop_map(Done),
            key.prop_map(Retry),
            (0u64..4).prop_map(Pass),
        ]
    }

    proptest! {
        /// For any sequence of calls: no key is taken while it is in progress, and a key that is added after it was
        /// taken is taken again.
        #[test]
        fn no_key_is_lost_or_taken_twice_at_once(
            steps in prop::collection::vec(any_step(), 0..60),
        ) {
            let mut play = Play::new();
            let mut in_progress = BTreeSet::new();
            let mut requested = BTreeSet::new();
            for step in steps {
                let before = play.taken.len();
                play.step(step);
                match step {
                    Add(key) | After(key, _) | Retry(key) => requested.insert(key),
                    Done(key) => in_progress.remove(&key),
                    Take | Pass(_) => false,
                };
                for key in &play.taken[before..] {
                    prop_assert!(in_progress.insert(*key), "{key} is in progress already");
                    if !play.state.due.contains_key(key) {
                        prop_assert!(requested.remove(key), "{key} was not added");
                    }
                }
            }
            // Finish everything: all added keys must come, and then nothing more.
            for _ in 0..100 {
                play.step(Pass(10));
                in_progress.iter().for_each(|key| play.step(Done(*key)));
                let before = play.taken.len();
                play.step(Take);
                in_progress = play.taken[before..].iter().copied().collect();
                requested.retain(|key| !play.taken[before..].contains(key));
            }
            prop_assert!(requested.is_empty(), "lost: {requested:?}");
            prop_assert!(in_progress.is_empty(), "taken without being added: {in_progress:?}");
            let counts = play.state.counts();
            prop_assert_eq!((counts.ready, counts.waiting, counts.in_progress), (0, 0, 0));
        }

        #[test]
        fn retry_delay_never_exceeds_the_maximum(failures in 0u32..200) {
            let mut play = Play::new();
            for _ in 0..failures {
                play.step(Retry(1));
            }
            prop_assert!(play.state.retry(1, play.now) <= Duration::from_secs(8));
        }
    }
}
