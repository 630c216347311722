//! The audit log: requests, their users and their results, as JSON lines in upstream's format.
//!
//!     request ─▶ policy: which level, which stages ─▶ trail: one line per stage ─▶ log: rotated file
//!
//! A line is written before the operation (`RequestReceived`) and after it (`ResponseComplete`), so the log contains
//! operations that a crash interrupts. Bodies are logged only if a policy requests it.

mod log;
mod policy;
mod trail;

pub use log::Rotation;
pub(crate) use trail::{Trail, Wire};

use crate::request::summary::RequestSummary;
use log::Log;
use policy::{Level, Policy};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where to log, and what.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    pub path: PathBuf,
    /// Without a policy, the metadata of every request is logged.
    pub policy: Option<PathBuf>,
    pub rotation: Rotation,
}

impl AuditConfig {
    /// Logs the metadata of every request to this file.
    pub fn at(path: PathBuf) -> AuditConfig {
        AuditConfig { path, policy: None, rotation: Rotation::default() }
    }
}

/// The stage of a request. Names are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Stage {
    RequestReceived,
    /// The headers of a long-running response, such as a watch, were sent.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    fn word(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

pub(crate) struct Audit {
    policy: Policy,
    log: Log,
}

impl Audit {
    pub(crate) fn open(config: &AuditConfig) -> std::io::Result<Audit> {
        let policy = match &config.policy {
            Some(path) => read_policy(path)?,
            None => Policy::metadata_of_everything(),
        };
        Ok(Audit { policy, log: Log::open(&config.path, config.rotation)? })
    }

    /// The trail of a request, if the policy wants it logged.
    pub(crate) fn trail(self: &Arc<Self>, summary: &RequestSummary) -> Option<Arc<Trail>> {
        let verdict = self.policy.decide(summary);
        if verdict.level == Level::None {
            return None;
        }
        Some(Arc::new(Trail::new(self.clone(), verdict, summary.wire.as_ref()?, summary)))
    }

    fn write(&self, line: &str) {
        if let Err(error) = self.log.write(line) {
            tracing::error!(%error, "writing the audit log failed");
        }
    }
}

fn read_policy(path: &Path) -> std::io::Result<Policy> {
    Policy::read(path).map_err(|why| {
        std::io::Error::other(format!("cannot use the audit policy {}: {why}", path.display()))
    })
}
