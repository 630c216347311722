//! Sets of completion indexes in the format of the status: `1-3,5,6,9` (C-104). Pure.

use std::collections::BTreeMap;
use std::fmt;

/// Stored as ranges from first to last, which neither overlap nor touch; `0-2147483646` is one range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Indexes(BTreeMap<i32, i32>);

impl Indexes {
    /// Parses indexes below `completions`; higher ones are left over from before the Job was scaled down (C-107).
    pub(super) fn parse(text: &str, completions: i32) -> Indexes {
        let mut all = Indexes::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else {
                continue;
            };
            all.insert_run(first.max(0), last.min(completions.saturating_sub(1)));
        }
        all
    }

    pub(super) fn insert(&mut self, index: i32) {
        self.insert_run(index, index);
    }

    fn insert_run(&mut self, mut first: i32, mut last: i32) {
        if first > last {
            return;
        }
        // Merge all ranges that overlap or touch the new one.
        while let Some((start, end)) = self.run_before(last.saturating_add(1)) {
            if end < first.saturating_sub(1) {
                break;
            }
            self.0.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        self.0.insert(first, last);
    }

    /// The last range that begins at or before `index`.
    fn run_before(&self, index: i32) -> Option<(i32, i32)> {
        self.0.range(..=index).next_back().map(|(first, last)| (*first, *last))
    }

    pub(super) fn has(&self, index: i32) -> bool {
        self.last_of_run(index).is_some()
    }

    /// The last index of the range that contains `index`.
    pub(super) fn last_of_run(&self, index: i32) -> Option<i32> {
        self.run_before(index).map(|(_, last)| last).filter(|last| index <= *last)
    }

    pub(super) fn total(&self) -> i32 {
        self.0.iter().map(|(first, last)| size(*first, *last)).fold(0, i32::saturating_add)
    }

    /// The number of indexes that are in both sets.
    pub(super) fn shared_with(&self, others: &Indexes) -> i32 {
        let mut total: i32 = 0;
        for (first, last) in &self.0 {
            let reaching = others.0.range(..=last).rev().take_while(|(_, end)| *end >= first);
            for (start, end) in reaching {
                total = total.saturating_add(size(*first.max(start), *last.min(end)));
            }
        }
        total
    }
}

fn size(first: i32, last: i32) -> i32 {
    last.saturating_sub(first).saturating_add(1)
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (first, last)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match size(*first, *last) {
                1 => write!(f, "{comma}{first}")?,
                2 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_104_three_or_more_indexes_are_formatted_as_a_range() {
        for text in ["", "0", "0,2", "0,1", "0-2", "1-3,5,6,9"] {
            assert_eq!(Indexes::parse(text, 100).to_string(), text);
        }
        assert_eq!(Indexes::parse("1-3,5,6,9", 6).to_string(), "1-3,5", "C-107");
    }

    #[test]
    fn c_104_overlapping_and_adjacent_ranges_are_merged() {
        let cases = [
            ("5,3,4", "3-5"),
            ("0-3,2-6", "0-6"),
            ("2-6,0-9,1", "0-9"),
            ("0,1,3,4,2", "0-4"),
            ("7,0-2,4,2-3", "0-4,7"),
            ("4-2,-1,x,9", "9"),
        ];
        for (text, expected) in cases {
            let indexes = Indexes::parse(text, 100);
            assert_eq!(indexes.to_string(), expected, "{text}");
            let counted = (0..100).filter(|index| indexes.has(*index)).count();
            assert_eq!(crate::workload::count(counted), indexes.total(), "{text}");
        }
    }

    #[test]
    fn c_104_cost_depends_on_the_number_of_ranges_not_indexes() {
        let mut all = Indexes::parse("0-2147483646", i32::MAX);
        all.insert(7);
        assert_eq!((all.0.len(), all.total()), (1, i32::MAX));
        assert_eq!(all.last_of_run(9), Some(i32::MAX - 1));
    }

    #[test]
    fn c_118_shared_indexes_are_counted() {
        let cases =
            [("0-4", "1,3", 2), ("0-4", "1,7", 1), ("", "1", 0), ("1,3,5-9", "0-5,8-20", 5)];
        for (one, other, shared) in cases {
            let (one, other) = (Indexes::parse(one, 100), Indexes::parse(other, 100));
            assert_eq!((one.shared_with(&other), other.shared_with(&one)), (shared, shared));
        }
        let all = Indexes::parse("0-2147483646", i32::MAX);
        assert_eq!(all.shared_with(&all), i32::MAX);
    }
}
