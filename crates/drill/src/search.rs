//! Which value to measure next to find the smallest ones that reach the wanted levels of success.
//!
//! Pure: results in, the next value out. It is a bisection that assumes that a larger value never loses more. Where
//! measurements contradict that, it is careful: a value counts only if no larger one was measured to fail.

use std::collections::BTreeMap;

/// What one value achieved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub failed: usize,
    pub total: usize,
}

impl Tally {
    /// The share of answered requests, 0 to 1.
    pub fn success(self) -> f64 {
        match self.total {
            0 => 0.0,
            total => 1.0 - self.failed as f64 / total as f64,
        }
    }

    pub(crate) fn reaches(self, level: f64) -> bool {
        // Percentages such as 99.9 are not exact in binary.
        self.total > 0 && self.success() >= level - 1e-12
    }
}

/// The state of a search over whole seconds from 0 to `max`.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    max: u32,
    /// Shares of success, such as 0.999.
    levels: Vec<f64>,
    /// The first value above zero to try: what earlier measurements suggest.
    guess: Option<u32>,
    measured: BTreeMap<u32, Tally>,
}

impl Search {
    pub(crate) fn new(max: u32, levels: &[f64]) -> Search {
        Search { max, levels: levels.to_vec(), guess: None, measured: BTreeMap::new() }
    }

    /// Adds the result of a run. Several runs of one value count together.
    pub(crate) fn add(&mut self, value: u32, tally: Tally) {
        let known = self.measured.entry(value).or_default();
        known.failed += tally.failed;
        known.total += tally.total;
    }

    pub(crate) fn suggest(&mut self, value: u32) {
        self.guess = Some(value.clamp(1, self.max.max(1)));
    }

    /// The value to measure next. None: every level has its answer, or cannot be reached up to `max`.
    pub(crate) fn next(&self) -> Option<u32> {
        if !self.measured.contains_key(&0) {
            return Some(0);
        }
        // The highest level first: its measurements are useful for the others too.
        let mut levels = self.levels.clone();
        levels.sort_by(|a, b| b.total_cmp(a));
        levels.into_iter().find_map(|level| self.next_for(level))
    }

    fn next_for(&self, level: f64) -> Option<u32> {
        let Some(failing) = self.largest_failing(level) else {
            return None; // Zero is enough.
        };
        match self.smallest(level) {
            Some(enough) if enough - failing > 1 => Some(failing + (enough - failing) / 2),
            Some(_) => None,
            None if failing >= self.max => None,
            None => {
                let guess = self.guess.filter(|guess| *guess > failing);
                Some(guess.unwrap_or((failing * 2).max(1)).min(self.max))
            }
        }
    }

    /// The smallest measured value that reaches the level.
    pub(crate) fn smallest(&self, level: f64) -> Option<u32> {
        let failing = self.largest_failing(level);
        let above = self.measured.keys().find(|value| failing.is_none_or(|bad| **value > bad));
        above.copied()
    }

    fn largest_failing(&self, level: f64) -> Option<u32> {
        let failing = self.measured.iter().rev().find(|(_, tally)| !tally.reaches(level));
        failing.map(|(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEVELS: &[f64] = &[0.99, 0.999, 1.0];

    fn lost(failed: usize) -> Tally {
        Tally { failed, total: 10_000 }
    }

    /// Searches with `measure` as the workload; returns the measured values in order.
    fn run(search: &mut Search, measure: impl Fn(u32) -> Tally) -> Vec<u32> {
        let mut tried = Vec::new();
        while let Some(value) = search.next() {
            assert!(tried.len() < 64, "it does not end: {tried:?}");
            tried.push(value);
            search.add(value, measure(value));
        }
        tried
    }

    #[test]
    fn the_smallest_values_are_found_in_few_runs() {
        let needs = |seconds: u32| move |value: u32| lost(if value < seconds { 500 } else { 0 });
        for (needed, guess, tried) in [
            (0, None, &[0][..]),
            (1, None, &[0, 1]),
            (2, Some(2), &[0, 2, 1]),
            (5, Some(3), &[0, 3, 6, 4, 5]),
            (5, None, &[0, 1, 2, 4, 8, 6, 5]),
            (30, Some(25), &[0, 25, 30, 27, 28, 29]),
        ] {
            let mut search = Search::new(30, LEVELS);
            if let Some(guess) = guess {
                search.suggest(guess);
            }
            assert_eq!(run(&mut search, needs(needed)), tried, "{needed} s are needed");
            assert_eq!(search.smallest(1.0), Some(needed));
        }
    }

    #[test]
    fn each_level_has_its_own_answer() {
        let measure = |value| lost([2000, 150, 90, 60, 8, 0][(value as usize).min(5)]);
        let mut search = Search::new(30, LEVELS);
        run(&mut search, measure);
        assert_eq!(search.smallest(0.99), Some(2));
        assert_eq!(search.smallest(0.999), Some(4));
        assert_eq!(search.smallest(1.0), Some(5));
    }

    #[test]
    fn a_level_out_of_reach_has_no_answer() {
        let mut search = Search::new(10, LEVELS);
        let tried = run(&mut search, |value| lost(if value < 3 { 500 } else { 20 }));
        assert_eq!(search.smallest(1.0), None);
        assert_eq!(search.smallest(0.99), Some(3));
        assert!(tried.contains(&10), "the largest value is tried before it says so: {tried:?}");
    }

    #[test]
    fn a_value_does_not_count_if_a_larger_one_failed() {
        let mut search = Search::new(30, &[1.0]);
        search.add(0, lost(9));
        search.add(2, lost(0));
        search.add(4, lost(1));
        search.add(8, lost(0));
        assert_eq!(search.smallest(1.0), Some(8));
        assert_eq!(search.next(), Some(6));
    }

    #[test]
    fn runs_of_one_value_are_added() {
        let mut search = Search::new(30, &[0.999]);
        search.add(0, lost(20));
        search.add(1, lost(0));
        assert_eq!(search.smallest(0.999), Some(1));
        search.add(1, lost(30));
        assert_eq!(search.smallest(0.999), None);
        assert_eq!(search.measured[&1], Tally { failed: 30, total: 20_000 });
    }

    #[test]
    fn no_requests_reach_nothing() {
        let mut search = Search::new(0, &[0.99]);
        search.add(0, Tally::default());
        assert_eq!((search.next(), search.smallest(0.99)), (None, None));
    }

    proptest! {
        /// For every workload that loses less with more time, the smallest value is found, in logarithmic time.
        #[test]
        fn monotone_workloads_are_solved(max in 1u32..120, needed in 0u32..150, guess in proptest::option::of(0u32..150)) {
            let mut search = Search::new(max, &[1.0]);
            if let Some(guess) = guess {
                search.suggest(guess);
            }
            let tried = run(&mut search, |value| lost(if value < needed { 7 } else { 0 }));
            prop_assert!(tried.len() <= 18, "{tried:?}");
            prop_assert_eq!(search.smallest(1.0), (needed <= max).then_some(needed));
        }
    }
}
