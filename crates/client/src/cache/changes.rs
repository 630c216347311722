//! Notifies listeners of changes, and offers a subscription that merges repeated changes of a key.

use super::contents::Change;
use crate::ObjectKey;
use crate::object::AnyObject;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// Called with a change: key, object before, object after. Returns false to unsubscribe.
type Listener =
    Box<dyn Fn(&ObjectKey, Option<&dyn AnyObject>, Option<&dyn AnyObject>) -> bool + Send + Sync>;

/// One lock for the change and its notification, so that every listener gets every change once and in order. The
/// contents have another lock, so a listener may read them.
#[derive(Default)]
pub(super) struct Listeners {
    all: Mutex<Vec<Listener>>,
}

impl Listeners {
    /// Notifies `listener` of all `present` objects, and from now on of changes.
    pub(super) fn add(
        &self,
        listener: Listener,
        present: impl FnOnce() -> Vec<Arc<dyn AnyObject>>,
    ) {
        let mut all = locked(&self.all);
        for object in present() {
            listener(&ObjectKey::from_meta(object.metadata()), None, Some(object.as_ref()));
        }
        all.push(listener);
    }

    /// Applies a change and notifies all listeners.
    pub(super) fn notify(&self, change: impl FnOnce() -> Vec<Change>) {
        let mut all = locked(&self.all);
        for change in change() {
            let (before, after) = (change.before.as_deref(), change.after.as_deref());
            all.retain(|listener| listener(&change.key, before, after));
        }
    }
}

/// The keys of changed objects, each once no matter how often it changed. Bounded by the number of objects.
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
    /// False once the receiver is dropped.
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
    /// Waits for the next key; keys come in the order of their first change.
    pub async fn next(&mut self) -> ObjectKey {
        loop {
            if let Some(key) = self.try_next() {
                return key;
            }
            // There is only one receiver, and `Notify` stores a notification that comes before this line.
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

/// A listener that panics cannot leave this data half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_changes_of_a_key_are_merged() {
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
    fn sending_fails_after_the_subscription_is_dropped() {
        let (changes, sender) = channel();
        drop(changes);
        assert!(!sender.send(&ObjectKey::cluster("a")));
    }
}
