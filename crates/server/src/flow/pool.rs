//! A limited resource (seats, bodies, bytes, watches) of which each user may hold only a share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    total: usize,
    /// The limit for one user.
    share: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    all: usize,
    /// Users who hold nothing have no entry.
    by_user: HashMap<String, usize>,
}

/// What a user holds of a pool, until it is dropped.
pub(crate) struct Hold {
    pool: Arc<Inner>,
    user: String,
    amount: usize,
}

impl Pool {
    pub(crate) fn new(total: usize, share: usize) -> Pool {
        Pool(Arc::new(Inner { total, share, held: Mutex::default() }))
    }

    pub(crate) fn unlimited() -> Pool {
        Pool::new(usize::MAX, usize::MAX)
    }

    /// None if the pool or the user's share is used up.
    pub(crate) fn take(&self, user: &str, amount: usize) -> Option<Hold> {
        let mut hold = Hold { pool: self.0.clone(), user: user.to_owned(), amount: 0 };
        hold.grow(amount).then_some(hold)
    }
}

impl Inner {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// Takes more. False, without any change, if the pool or the user's share is used up.
    pub(crate) fn grow(&mut self, amount: usize) -> bool {
        if amount == 0 {
            return true;
        }
        let mut held = self.pool.held();
        let own = held.by_user.get(&self.user).copied().unwrap_or(0);
        if own.saturating_add(amount) > self.pool.share
            || held.all.saturating_add(amount) > self.pool.total
        {
            return false;
        }
        held.all += amount;
        match held.by_user.get_mut(&self.user) {
            Some(own) => *own += amount,
            None => drop(held.by_user.insert(self.user.clone(), amount)),
        }
        self.amount += amount;
        true
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut held = self.pool.held();
        held.all -= self.amount;
        let Some(own) = held.by_user.get_mut(&self.user) else { return };
        *own -= self.amount;
        if *own == 0 {
            held.by_user.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dropped_holds_can_be_taken_again_and_leave_no_entries() {
        let pool = Pool::new(10, 4);
        let mut first = pool.take("a", 3).unwrap();
        assert!(pool.take("a", 2).is_none() && !first.grow(2) && first.grow(1));
        let others: Vec<Hold> = ["b", "c"].map(|user| pool.take(user, 3).unwrap()).into();
        assert!(pool.take("d", 1).is_none(), "all ten are held");
        drop((first, others));
        assert!(pool.take("a", 4).is_some());
        assert!(pool.0.held().by_user.is_empty());
    }

    proptest! {
        /// In any order of takes and drops, no user exceeds its share and nothing is lost.
        #[test]
        fn no_user_holds_more_than_its_share(steps in proptest::collection::vec((0..4usize, 0..6usize, any::<bool>()), 0..200)) {
            let pool = Pool::new(12, 5);
            let mut holds: Vec<Hold> = Vec::new();
            for (user, amount, take) in steps {
                match take {
                    true => holds.extend(pool.take(&user.to_string(), amount)),
                    false if !holds.is_empty() => drop(holds.remove(user % holds.len())),
                    false => {}
                }
                let held = pool.0.held();
                prop_assert!(held.by_user.values().all(|own| (1..=5).contains(own)));
                prop_assert_eq!(held.all, holds.iter().map(|hold| hold.amount).sum::<usize>());
                prop_assert!(held.all <= 12);
            }
            drop(holds);
            prop_assert_eq!(pool.0.held().all, 0);
        }
    }
}
