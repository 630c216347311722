//! Telling others what changed: those who listen, and a subscription that coalesces.

use super::contents::Change;
use crate::ObjectKey;
use crate::object::AnyObject;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// Told of a change: key, before, after. Returns false when it does not want to be told any more.
type Listener =
    Box<dyn Fn(&ObjectKey, Option<&dyn AnyObject>, Option<&dyn AnyObject>) -> bool + Send + Sync>;

/// One lock for changing and telling: everybody hears of every change once, in order. It is not the
/// lock of the contents, so a listener may read them.
#[derive(Default)]
pub(super) struct Listeners {
    all: Mutex<Vec<Listener>>,
}

impl Listeners {
    /// Tells `listener` of all that is `there`, and from now on of changes.
    pub(super) fn add(&self, listener: Listener, there: impl FnOnce() -> Vec<Arc<dyn AnyObject>>) {
        let mut all = locked(&self.all);
        for object in there() {
            listener(&ObjectKey::named(object.metadata()), None, Some(object.as_ref()));
        }
        all.push(listener);
    }

    /// Makes a change and tells of it.
    pub(super) fn tell(&self, change: impl FnOnce() -> Vec<Change>) {
        let mut all = locked(&self.all);
        for change in change() {
            let (before, after) = (change.before.as_deref(), change.after.as_deref());
            all.retain(|listener| listener(&change.key, before, after));
        }
    }
}

/// The keys of what changed, each once however often it changed. Bounded by the number of objects.
pub struct Changes {
    shared: Arc<Shared>,
}

pub(super) struct Sender {
    shared: std::sync::Weak<Shared>,
}

struct Shared {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Default)]
struct Pending {
    order: VecDeque<ObjectKey>,
    keys: HashSet<ObjectKey>,
}

pub(super) fn channel() -> (Changes, Sender) {
    let shared = Arc::new(Shared { pending: Mutex::default(), changed: Notify::new() });
    let sender = Sender { shared: Arc::downgrade(&shared) };
    (Changes { shared }, sender)
}

impl Sender {
    /// False once nobody can receive any more.
    pub(super) fn send(&self, key: &ObjectKey) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        let mut pending = locked(&shared.pending);
        if pending.keys.insert(key.clone()) {
            pending.order.push_back(key.clone());
        }
        drop(pending);
        shared.changed.notify_one();
        true
    }
}

impl Changes {
    /// The key that has been waiting longest, as soon as there is one.
    pub async fn next(&mut self) -> ObjectKey {
        loop {
            if let Some(key) = self.try_next() {
                return key;
            }
            // There is one receiver, and a notification that comes early is kept.
            self.shared.changed.notified().await;
        }
    }

    pub fn try_next(&mut self) -> Option<ObjectKey> {
        let mut pending = locked(&self.shared.pending);
        let key = pending.order.pop_front()?;
        pending.keys.remove(&key);
        Some(key)
    }
}

/// A listener that panicked has not been in the middle of changing anything of ours.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_that_changes_often_comes_once() {
        let (mut changes, sender) = channel();
        let [a, b] = ["a", "b"].map(ObjectKey::cluster);
        for key in [&a, &b, &a, &a] {
            assert!(sender.send(key));
        }
        assert_eq!((changes.next().await, changes.next().await), (a.clone(), b));
        assert_eq!(changes.try_next(), None);
        sender.send(&a);
        assert_eq!(changes.next().await, a);
    }

    #[test]
    fn nobody_is_told_after_the_subscription_is_dropped() {
        let (changes, sender) = channel();
        drop(changes);
        assert!(!sender.send(&ObjectKey::cluster("a")));
    }
}
