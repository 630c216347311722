//! What the host's logind and systemd are asked for: a delay lock, a word when the host goes down, and
//! whether it is going down (T-NODE-85).

use super::dbus::{Bus, Error, Value, Whom};
use super::wire::Message;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

const LOGIND: Whom =
    ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager");
const SYSTEMD: Whom =
    ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
const PREPARES: &str = "type='signal',sender='org.freedesktop.login1',interface='org.freedesktop.login1.Manager',\
                        member='PrepareForShutdown',path='/org/freedesktop/login1'";

/// How long logind's lock may be raised to be seen: five looks, each twice as long after the last.
const LOOKS: u32 = 5;
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// Somebody who asks whether the host goes down wants to go on.
const STATE_MAX: Duration = Duration::from_secs(2);

/// As long as it lives, the host waits; but no longer than `InhibitDelayMaxSec`.
pub(crate) struct Lock {
    _descriptor: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    GoesDown,
    StaysUp,
}

pub(crate) struct Logind {
    bus: Bus,
}

impl Logind {
    pub(crate) async fn connect(address: &str) -> Result<Logind, Error> {
        let mut bus = Bus::connect(address).await?;
        bus.listen(PREPARES).await?;
        Ok(Logind { bus })
    }

    /// Shutdown waits for us from now on.
    pub(crate) async fn lock(&mut self) -> Result<Lock, Error> {
        let words = ["shutdown", "landfall", "Pods on this node need time to end", "delay"];
        let body = words.map(Value::from).to_vec();
        let mut answer = self.bus.call(LOGIND, "Inhibit", body).await?;
        match answer.descriptors.pop() {
            Some(descriptor) => Ok(Lock { _descriptor: descriptor }),
            None => Err(Error::Nonsense(format!("no lock, but {:?}", answer.body))),
        }
    }

    /// How long the host waits at most for whoever holds a lock.
    pub(crate) async fn delay(&mut self) -> Result<Duration, Error> {
        match self.bus.property(LOGIND, "InhibitDelayMaxUSec").await? {
            Value::Long(micros) => Ok(Duration::from_micros(micros)),
            other => Err(Error::Nonsense(format!("InhibitDelayMaxUSec is {other:?}"))),
        }
    }

    /// Makes the host wait at least that long: a file for logind, and a word to it to read that. Says
    /// what came of it.
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
            "# Written by landfall: --shutdown-grace asks for this much time.\n\
             [Login]\nInhibitDelayMaxSec={seconds}\n"
        );
        std::fs::create_dir_all(config)?;
        std::fs::write(config.join("99-landfall.conf"), text)?;
        let hangup = vec!["systemd-logind.service".into(), "all".into(), Value::Signed(1)];
        self.bus.call(SYSTEMD, "KillUnit", hangup).await?;
        let mut pause = FIRST_LOOK;
        let mut delay = found;
        for _ in 0..LOOKS {
            delay = self.delay().await?;
            if delay >= wanted {
                break;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Ok(delay)
    }

    /// Waits until the host is about to go down, or is not after all. Anybody may send us a signal;
    /// only logind is believed.
    pub(crate) async fn word(&mut self) -> Result<Word, Error> {
        loop {
            let message = self.bus.next().await?;
            if let Some(word) = prepares(&message)
                && message.sender == self.bus.owner(LOGIND.0).await?
            {
                return Ok(word);
            }
        }
    }
}

fn prepares(message: &Message) -> Option<Word> {
    if message.interface != LOGIND.2 || message.member != "PrepareForShutdown" {
        return None;
    }
    match message.body.first() {
        Some(Value::Bool(true)) => Some(Word::GoesDown),
        Some(Value::Bool(false)) => Some(Word::StaysUp),
        _ => None,
    }
}

/// Whether systemd is taking the host down: then a SIGTERM is for the pods too. A host without
/// systemd says no.
pub(crate) async fn is_stopping(address: &str) -> bool {
    let ask = async {
        let mut bus = Bus::connect(address).await.ok()?;
        bus.property(SYSTEMD, "SystemState").await.ok()
    };
    let state = tokio::time::timeout(STATE_MAX, ask).await;
    state.ok().flatten() == Some(Value::from("stopping"))
}
