//! A map that remembers what was used last, and forgets what was not used for longest. Pure.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

pub(super) struct Recent<K, V> {
    max: usize,
    entries: HashMap<K, (u64, V)>,
    /// By when it was last used.
    order: BTreeMap<u64, K>,
    uses: u64,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    pub(super) fn new(max: usize) -> Self {
        Recent { max, entries: HashMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// Uses the entry of `key`, which is made if there is none.
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
        let answer = work(&mut value);
        self.order.insert(self.uses, key.clone());
        self.entries.insert(key.clone(), (self.uses, value));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays() {
        let mut recent = Recent::new(2);
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
        assert_eq!(count("c"), 1, "b makes room");
        assert_eq!((count("a"), count("b")), (3, 1));
        assert_eq!((recent.entries.len(), recent.order.len()), (2, 2));
    }
}
