//! Bounds the work that all clients together, and each client alone, can have under way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// Hands out shares, up to a number in total and a number per client address.
pub(crate) struct Shares {
    total_max: usize,
    client_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    total: usize,
    /// Only clients that hold a share.
    clients: HashMap<IpAddr, usize>,
}

/// The right to do one thing at a time. Returned when dropped.
pub(crate) struct Share {
    shares: Arc<Shares>,
    client: IpAddr,
}

impl Shares {
    pub(crate) fn new(total_max: usize, client_max: usize) -> Arc<Shares> {
        Arc::new(Shares { total_max, client_max, taken: Mutex::default() })
    }

    /// `None` if this client or all clients together hold too many.
    pub(crate) fn take(self: &Arc<Self>, client: IpAddr) -> Option<Share> {
        let client = client.to_canonical();
        let mut taken = self.locked();
        let mine = taken.clients.get(&client).copied().unwrap_or_default();
        if taken.total >= self.total_max || mine >= self.client_max {
            return None;
        }
        taken.total += 1;
        taken.clients.insert(client, mine + 1);
        Some(Share { shares: self.clone(), client })
    }

    fn locked(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.locked();
        taken.total = taken.total.saturating_sub(1);
        let mine = taken.clients.get(&self.client).copied().unwrap_or_default();
        match mine.saturating_sub(1) {
            0 => taken.clients.remove(&self.client),
            left => taken.clients.insert(self.client, left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_bounded_per_client_and_in_total_and_come_back() {
        let shares = Shares::new(3, 2);
        let [a, b]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let first = shares.take(a).unwrap();
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        let _second = shares.take(mapped).unwrap();
        assert!(shares.take(a).is_none(), "a has two");
        let third = shares.take(b).unwrap();
        assert!(shares.take(b).is_none(), "three are taken");
        drop(third);
        drop(first);
        let again = shares.take(a).unwrap();
        assert_eq!(shares.locked().clients.len(), 1, "b holds none and is forgotten");
        drop(again);
    }
}
