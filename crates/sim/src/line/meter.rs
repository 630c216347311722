//! Counts what is written: every request that is not a read, by who sent it and where it went.
//!
//! Attempts count, not only what is stored: somebody who is refused again and again is not silent.

use http::{Method, Request};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `user METHOD path`
pub(crate) type Written = BTreeMap<String, u64>;

/// Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<Option<Written>>>);

impl Meter {
    /// From now on.
    pub(crate) fn start(&self) {
        *self.written() = Some(Written::new());
    }

    /// Since it was started. Counts no more.
    pub(crate) fn stop(&self) -> Written {
        self.written().take().unwrap_or_default()
    }

    pub(super) fn count<B>(&self, user: &str, request: &Request<B>) {
        if request.method() == Method::GET {
            return;
        }
        if let Some(written) = &mut *self.written() {
            let what = format!("{user} {} {}", request.method(), request.uri().path());
            *written.entry(what).or_default() += 1;
        }
    }

    fn written(&self) -> MutexGuard<'_, Option<Written>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
