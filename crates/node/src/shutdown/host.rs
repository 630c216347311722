//! Ends pods when the host goes down (T-NODE-85 to 88).
//!
//!     logind: PrepareForShutdown ──▶ pods end ──▶ the delay lock is let go ──▶ the host goes on
//!                     └── not after all ──▶ new pods are taken again, the lock too
//!
//! A host without logind is left alone: there, `landfall down` before a shutdown does the same.

use super::Shutdown;
use super::dbus::{self, Error};
use super::logind::{Lock, Logind, Word, is_stopping};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// After a bus that broke off, and after one that is not there.
const RECONNECT: Duration = Duration::from_secs(1);
const ABSENT: Duration = Duration::from_secs(30);

/// Where the host is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) bus: String,
    /// Of logind: `/etc/systemd/logind.conf.d`.
    pub(crate) config: PathBuf,
}

impl Host {
    pub(crate) fn system() -> Host {
        Host { bus: dbus::system_bus(), config: "/etc/systemd/logind.conf.d".into() }
    }

    pub(crate) async fn is_stopping(&self) -> bool {
        is_stopping(&self.bus).await
    }

    /// For ever.
    pub(crate) async fn follow(self, shutdown: Arc<Shutdown>) {
        loop {
            match self.listen(&shutdown).await {
                Error::Connect(error) => {
                    tracing::debug!(%error, "the host does not tell when it goes down");
                    tokio::time::sleep(ABSENT).await;
                }
                error => {
                    tracing::warn!(%error, "the host's shutdown is not delayed for pods");
                    tokio::time::sleep(RECONNECT).await;
                }
            }
        }
    }

    /// Until it cannot go on.
    async fn listen(&self, shutdown: &Shutdown) -> Error {
        let mut logind = match Logind::connect(&self.bus).await {
            Ok(logind) => logind,
            Err(error) => return error,
        };
        let mut lock = match self.locked(&mut logind, shutdown).await {
            Ok(lock) => Some(lock),
            Err(error) => return error,
        };
        loop {
            match logind.word().await {
                Ok(Word::GoesDown) => {
                    shutdown.host_goes_down().await;
                    lock = None;
                }
                Ok(Word::StaysUp) => {
                    shutdown.host_stays_up().await;
                    if lock.is_none() {
                        lock = match logind.lock().await {
                            Ok(lock) => Some(lock),
                            Err(error) => return error,
                        };
                    }
                }
                Err(error) => return error,
            }
        }
    }

    async fn locked(&self, logind: &mut Logind, shutdown: &Shutdown) -> Result<Lock, Error> {
        if let Some(wanted) = shutdown.periods.total() {
            match logind.raise_delay(wanted, &self.config).await {
                Ok(delay) if delay >= wanted => {}
                Ok(delay) => tracing::warn!(
                    ?delay,
                    ?wanted,
                    "the host waits less for pods than --shutdown-grace asks for"
                ),
                Err(error) => {
                    tracing::warn!(%error, ?wanted, "the host was not told to wait that long");
                }
            }
        }
        logind.lock().await
    }
}
