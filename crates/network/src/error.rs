//! What can go wrong between us and the kernel, or us and our records.

use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked for something that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// Every address of the range is in use.
    #[error("no pod address is free in {0}")]
    Exhausted(String),
    /// The kernel refused one message of a request.
    #[error("cannot {doing}: {source}{}", detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Kernel {
        /// `add link lf0p17`: the failing message, not the request as a whole.
        doing: String,
        source: std::io::Error,
        /// What the kernel says beyond the error number, if it does.
        detail: Option<String>,
    },
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    /// A thread could not be started, or it died.
    #[error("cannot work in a network namespace: {0}")]
    Thread(String),
}

impl Error {
    /// For `map_err`: says what was being done to which path.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { doing, path, source }
    }

    /// For `map_err` on a system call that names no path.
    pub(crate) fn call(doing: impl Into<String>) -> impl FnOnce(nix::errno::Errno) -> Error {
        let doing = doing.into();
        move |errno| Error::Kernel { doing, source: errno.into(), detail: None }
    }

    /// The kernel's error number, if it was the kernel who refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Kernel { source, .. } | Error::Io { source, .. } => source.raw_os_error(),
            Error::Invalid(_) | Error::Exhausted(_) | Error::Thread(_) => None,
        }
    }
}
