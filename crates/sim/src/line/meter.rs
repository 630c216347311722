//! Counts requests, by who sent them and where they went.
//!
//! Attempts count, not only what is stored: somebody who is refused again and again is not silent.

use http::Request;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `user METHOD path`
pub(crate) type Sent = BTreeMap<String, u64>;

/// Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<Option<Sent>>>);

impl Meter {
    /// From now on.
    pub(crate) fn start(&self) {
        *self.sent() = Some(Sent::new());
    }

    /// Since it was started. Counts no more.
    pub(crate) fn stop(&self) -> Sent {
        self.sent().take().unwrap_or_default()
    }

    pub(super) fn count<B>(&self, user: &str, request: &Request<B>) {
        if let Some(sent) = &mut *self.sent() {
            let what = format!("{user} {} {}", request.method(), request.uri().path());
            *sent.entry(what).or_default() += 1;
        }
    }

    fn sent(&self) -> MutexGuard<'_, Option<Sent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
