//! Terminates pods when the host shuts down (T-NODE-85 to 88).
//!
//!     logind: PrepareForShutdown ──▶ pods terminate ──▶ the delay lock is released ──▶ the host goes on
//!                     └── cancelled ──▶ the node accepts pods again and takes a new lock
//!
//! On a host without logind, run `landfall down` before a shutdown.

use super::Shutdown;
use super::dbus::{self, Error};
use super::logind::{Lock, Logind, ShutdownSignal, is_stopping};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Pause before the next attempt after a broken connection to the bus.
const RECONNECT: Duration = Duration::from_secs(1);
/// Pause before the next attempt when the host has no bus.
const ABSENT: Duration = Duration::from_secs(30);

/// How to reach the host's logind.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) bus: String,
    /// Configuration directory of logind: `/etc/systemd/logind.conf.d`.
    pub(crate) config: PathBuf,
}

impl Host {
    pub(crate) fn system() -> Host {
        Host { bus: dbus::system_bus(), config: "/etc/systemd/logind.conf.d".into() }
    }

    pub(crate) async fn is_stopping(&self) -> bool {
        is_stopping(&self.bus).await
    }

    /// Runs forever.
    pub(crate) async fn follow(self, shutdown: Arc<Shutdown>) {
        loop {
            match self.listen(&shutdown).await {
                Error::Connect(error) => {
                    tracing::debug!(%error, "no connection to logind: pods are not terminated when the host shuts down");
                    tokio::time::sleep(ABSENT).await;
                }
                error => {
                    tracing::warn!(%error, "lost the connection to logind: the host does not wait for pods at a shutdown");
                    tokio::time::sleep(RECONNECT).await;
                }
            }
        }
    }

    /// Runs until the connection fails.
    async fn listen(&self, shutdown: &Shutdown) -> Error {
        let mut logind = match Logind::connect(&self.bus).await {
            Ok(logind) => logind,
            Err(error) => return error,
        };
        let mut lock = match self.take_lock(&mut logind, shutdown).await {
            Ok(lock) => Some(lock),
            Err(error) => return error,
        };
        loop {
            match logind.next_signal().await {
                Ok(ShutdownSignal::Begins) => {
                    shutdown.host_goes_down().await;
                    lock = None;
                }
                Ok(ShutdownSignal::Cancelled) => {
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

    async fn take_lock(&self, logind: &mut Logind, shutdown: &Shutdown) -> Result<Lock, Error> {
        if let Some(wanted) = shutdown.periods.total() {
            match logind.raise_delay(wanted, &self.config).await {
                Ok(delay) if delay >= wanted => {}
                Ok(delay) => tracing::warn!(
                    ?delay,
                    ?wanted,
                    "the host waits for pods for a shorter time than --shutdown-grace requires"
                ),
                Err(error) => {
                    tracing::warn!(%error, ?wanted, "raising the time that the host waits for pods failed");
                }
            }
        }
        logind.lock().await
    }
}
