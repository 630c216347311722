//! Counts requests by user, method and path.
//!
//! It counts attempts, not only what is stored: a client whose requests fail again and again is not silent.

use http::Request;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often each `user METHOD path` was requested.
pub(crate) type RequestCounts = BTreeMap<String, u64>;

/// Clones share their counts.
#[derive(Clone, Default)]
pub(crate) struct RequestCounter(Arc<Mutex<Option<RequestCounts>>>);

impl RequestCounter {
    /// Counts from now on.
    pub(crate) fn start(&self) {
        *self.counts() = Some(RequestCounts::new());
    }

    /// Stops counting and returns the counts since the start.
    pub(crate) fn stop(&self) -> RequestCounts {
        self.counts().take().unwrap_or_default()
    }

    pub(super) fn count<B>(&self, user: &str, request: &Request<B>) {
        if let Some(counts) = &mut *self.counts() {
            let what = format!("{user} {} {}", request.method(), request.uri().path());
            *counts.entry(what).or_default() += 1;
        }
    }

    fn counts(&self) -> MutexGuard<'_, Option<RequestCounts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
