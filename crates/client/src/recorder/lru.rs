//! A map of bounded size that drops the least recently used entry. Pure.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

pub(super) struct LruMap<K, V> {
    max: usize,
    entries: HashMap<K, (u64, V)>,
    /// Keys by the number of their last use.
    order: BTreeMap<u64, K>,
    uses: u64,
}

impl<K: Clone + Eq + Hash, V> LruMap<K, V> {
    pub(super) fn new(max: usize) -> Self {
        LruMap { max, entries: HashMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// Calls `work` with the entry of `key`, which is created by `make` if it is missing.
    pub(super) fn with<R>(
        &mut self,
        key: &K,
        make: impl FnOnce() -> V,
        work: impl FnOnce(&mut V) -> R,
    ) -> R {
        self.uses += 1;
        let (used, mut value) = match self.entries.remove(key) {
            Some((used, value)) => (used, value),
            None => (0, make()),
        };
        self.order.remove(&used);
        while self.entries.len() >= self.max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        let result = work(&mut value);
        self.order.insert(self.uses, key.clone());
        self.entries.insert(key.clone(), (self.uses, value));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_entry_is_dropped() {
        let mut recent = LruMap::new(2);
        let mut count = |key: &str| {
            recent.with(
                &key.to_owned(),
                || 0,
                |n| {
                    *n += 1;
                    *n
                },
            )
        };
        assert_eq!((count("a"), count("b"), count("a")), (1, 1, 2));
        assert_eq!(count("c"), 1, "b is dropped");
        assert_eq!((count("a"), count("b")), (3, 1));
        assert_eq!((recent.entries.len(), recent.order.len()), (2, 2));
    }
}
