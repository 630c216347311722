//! Sets of completion indexes, as the status spells them: `1-3,5,6,9` (C-104). Pure.

use std::collections::BTreeSet;
use std::fmt;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Indexes(BTreeSet<i32>);

impl Indexes {
    /// Those below `completions`; what lies beyond was dropped when the Job shrank (C-107).
    pub(super) fn parse(text: &str, completions: i32) -> Indexes {
        let mut all = BTreeSet::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else {
                continue;
            };
            all.extend(first.max(0)..=last.min(completions.saturating_sub(1)));
        }
        Indexes(all)
    }

    pub(super) fn insert(&mut self, index: i32) {
        self.0.insert(index);
    }

    pub(super) fn has(&self, index: i32) -> bool {
        self.0.contains(&index)
    }

    pub(super) fn total(&self) -> i32 {
        crate::workload::count(self.0.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = i32> {
        self.0.iter().copied()
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(i32, i32)> = Vec::new();
        for index in self.iter() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == index => *last = index,
                _ => runs.push((index, index)),
            }
        }
        for (number, (first, last)) in runs.into_iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
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
    fn c_104_runs_of_three_are_written_as_ranges() {
        for text in ["", "0", "0,2", "0,1", "0-2", "1-3,5,6,9"] {
            assert_eq!(Indexes::parse(text, 100).to_string(), text);
        }
        assert_eq!(Indexes::parse("1-3,5,6,9", 6).to_string(), "1-3,5", "C-107");
    }
}
