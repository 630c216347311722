//! Errors from the kernel, from records on disk and from invalid configuration.

use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller passed an invalid value.
    #[error("{0}")]
    Invalid(String),
    /// Every address of the range is in use.
    #[error("no pod address is free in {0}")]
    Exhausted(String),
    /// A device of that name exists, and this instance did not create it.
    #[error("link {link} {}", owned_by(owner.as_deref()))]
    LinkTaken {
        link: String,
        /// The records of the instance that owns it. `None` if the device has no mark.
        owner: Option<String>,
    },
    /// Another instance on this machine has pods with these addresses.
    #[error("the pod addresses {range} are in use: link {link} {}", owned_by(Some(owner)))]
    RangeTaken { range: String, link: String, owner: String },
    /// The kernel rejected one message of a request.
    #[error("cannot {doing}: {source}{}", detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Kernel {
        /// What the rejected message does: `add link lf0p17`.
        doing: String,
        source: std::io::Error,
        /// The kernel's error text, if it sent one.
        detail: Option<String>,
    },
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    /// A thread could not be started, or it panicked.
    #[error("cannot run a thread in a network namespace: {0}")]
    Thread(String),
}

impl Error {
    /// For `map_err`: adds the operation and the path.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { doing, path, source }
    }

    /// For `map_err` on a system call without a path.
    pub(crate) fn call(doing: impl Into<String>) -> impl FnOnce(nix::errno::Errno) -> Error {
        let doing = doing.into();
        move |errno| Error::Kernel { doing, source: errno.into(), detail: None }
    }

    /// The kernel's error number, if the error came from the kernel.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Kernel { source, .. } | Error::Io { source, .. } => source.raw_os_error(),
            Error::Invalid(_)
            | Error::Exhausted(_)
            | Error::LinkTaken { .. }
            | Error::RangeTaken { .. }
            | Error::Thread(_) => None,
        }
    }

    /// Whether another program or instance owns the device or the range.
    pub fn is_taken(&self) -> bool {
        matches!(self, Error::LinkTaken { .. } | Error::RangeTaken { .. })
    }
}

fn owned_by(owner: Option<&str>) -> String {
    match owner {
        Some(records) => {
            format!("belongs to another landfall instance, whose records are in {records}")
        }
        None => "already exists, and this landfall instance did not create it".to_owned(),
    }
}
