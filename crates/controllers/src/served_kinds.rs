//! Caches the kinds that the server serves, because discovery is expensive.

use client::{Client, ServedKind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a result is cached. Upstream: the discovery period of the quota and garbage controllers.
const MAX_AGE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct ServedKinds(Mutex<Option<(Instant, Arc<Vec<ServedKind>>)>>);

impl ServedKinds {
    /// The cached kinds if they are recent and `is_enough`, or else a new discovery.
    pub(crate) async fn get(
        &self,
        client: &Client,
        is_enough: impl Fn(&[ServedKind]) -> bool,
    ) -> client::Result<Arc<Vec<ServedKind>>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match cached {
            Some((since, kinds)) if since.elapsed() < MAX_AGE && is_enough(&kinds) => Ok(kinds),
            _ => {
                let kinds = Arc::new(client.discover().await?.kinds);
                let now = Some((Instant::now(), kinds.clone()));
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
                Ok(kinds)
            }
        }
    }
}
