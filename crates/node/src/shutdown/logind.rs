//! Requests to the host's logind and systemd: a delay lock, a signal when the host shuts down, and whether it
//! is shutting down (T-NODE-85).

use super::dbus::{Bus, Error, Target, Value};
use super::wire::Message;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

const LOGIND: Target =
    ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager");
const SYSTEMD: Target =
    ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
const PREPARE_FOR_SHUTDOWN: &str = "type='signal',sender='org.freedesktop.login1',interface='org.freedesktop.login1.Manager',\
                        member='PrepareForShutdown',path='/org/freedesktop/login1'";

/// logind needs a moment to read a changed delay: it is checked this often, with doubling pauses.
const CHECKS: u32 = 5;
const FIRST_CHECK: Duration = Duration::from_millis(100);
/// Bound for the question whether the host shuts down.
const STATE_MAX: Duration = Duration::from_secs(2);

/// While this exists, a shutdown waits, but no longer than `InhibitDelayMaxSec`.
pub(crate) struct Lock {
    _descriptor: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShutdownSignal {
    Begins,
    Cancelled,
}

pub(crate) struct Logind {
    bus: Bus,
}

impl Logind {
    pub(crate) async fn connect(address: &str) -> Result<Logind, Error> {
        let mut bus = Bus::connect(address).await?;
        bus.listen(PREPARE_FOR_SHUTDOWN).await?;
        Ok(Logind { bus })
    }

    /// From now on a shutdown waits until the lock is dropped.
    pub(crate) async fn lock(&mut self) -> Result<Lock, Error> {
        let arguments =
            ["shutdown", "landfall", "Pods on this node need time to terminate", "delay"];
        let body = arguments.map(Value::from).to_vec();
        let mut reply = self.bus.call(LOGIND, "Inhibit", body).await?;
        match reply.descriptors.pop() {
            Some(descriptor) => Ok(Lock { _descriptor: descriptor }),
            None => Err(Error::Malformed(format!(
                "Inhibit returned {:?} instead of a lock",
                reply.body
            ))),
        }
    }

    /// How long a shutdown waits at most for lock holders.
    pub(crate) async fn delay(&mut self) -> Result<Duration, Error> {
        match self.bus.property(LOGIND, "InhibitDelayMaxUSec").await? {
            Value::Long(micros) => Ok(Duration::from_micros(micros)),
            other => Err(Error::Malformed(format!("InhibitDelayMaxUSec is {other:?}"))),
        }
    }

    /// Makes a shutdown wait at least that long: writes a configuration file for logind and makes logind read it.
    /// Returns the delay that logind has afterwards.
    pub(crate) async fn raise_delay(
        &mut self,
        wanted: Duration,
        config: &Path,
    ) -> Result<Duration, Error> {
        let found = self.delay().await?;
        if found >= wanted {
            return Ok(found);
        }
        let seconds = wanted.as_secs();
        let text = format!(
            "# Written by landfall: --shutdown-grace requests this much time.\n\
             [Login]\nInhibitDelayMaxSec={seconds}\n"
        );
        std::fs::create_dir_all(config)?;
        std::fs::write(config.join("99-landfall.conf"), text)?;
        let hangup = vec!["systemd-logind.service".into(), "all".into(), Value::Signed(1)];
        self.bus.call(SYSTEMD, "KillUnit", hangup).await?;
        let mut pause = FIRST_CHECK;
        let mut delay = found;
        for _ in 0..CHECKS {
            delay = self.delay().await?;
            if delay >= wanted {
                break;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Ok(delay)
    }

    /// Waits until a shutdown begins or is cancelled. Every local user can send such a signal, so only
    /// signals from logind count.
    pub(crate) async fn next_signal(&mut self) -> Result<ShutdownSignal, Error> {
        loop {
            let message = self.bus.next().await?;
            if let Some(signal) = shutdown_signal(&message)
                && message.sender == self.bus.owner(LOGIND.0).await?
            {
                return Ok(signal);
            }
        }
    }
}

fn shutdown_signal(message: &Message) -> Option<ShutdownSignal> {
    if message.interface != LOGIND.2 || message.member != "PrepareForShutdown" {
        return None;
    }
    match message.body.first() {
        Some(Value::Bool(true)) => Some(ShutdownSignal::Begins),
        Some(Value::Bool(false)) => Some(ShutdownSignal::Cancelled),
        _ => None,
    }
}

/// Whether systemd is shutting the host down: then a SIGTERM concerns the pods too. False on a host without
/// systemd.
pub(crate) async fn is_stopping(address: &str) -> bool {
    let state = async {
        let mut bus = Bus::connect(address).await.ok()?;
        bus.property(SYSTEMD, "SystemState").await.ok()
    };
    let state = tokio::time::timeout(STATE_MAX, state).await;
    state.ok().flatten() == Some(Value::from("stopping"))
}
