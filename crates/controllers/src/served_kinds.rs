//! Which kinds there are, remembered for a while: to ask costs the server more than most answers that
//! depend on it.

use client::{Client, ServedKind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// So long it is remembered. Upstream: how often the quota and garbage controllers look.
const KEPT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct ServedKinds(Mutex<Option<(Instant, Arc<Vec<ServedKind>>)>>);

impl ServedKinds {
    /// What is remembered, if that is enough, or else what there is now.
    pub(crate) async fn get(
        &self,
        client: &Client,
        is_enough: impl Fn(&[ServedKind]) -> bool,
    ) -> client::Result<Arc<Vec<ServedKind>>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match kept {
            Some((since, kinds)) if since.elapsed() < KEPT && is_enough(&kinds) => Ok(kinds),
            _ => {
                let kinds = Arc::new(client.discover().await?.kinds);
                let now = Some((Instant::now(), kinds.clone()));
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
                Ok(kinds)
            }
        }
    }
}
