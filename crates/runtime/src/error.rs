//! Errors of a container runtime. The agent turns them into reasons and events.

use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sandbox, container or image does not exist.
    #[error("{what} \"{id}\" not found")]
    NotFound { what: &'static str, id: String },
    /// The runtime rejected the request.
    #[error("{0}")]
    Refused(String),
    /// The process of a container could not be started, for example because the command does not exist.
    #[error("{0}")]
    Start(String),
    /// An image name is invalid.
    #[error("couldn't parse image name {name:?}: {why}")]
    ImageName { name: String, why: String },
    /// A pull failed. A retry may succeed.
    #[error("{0}")]
    Pull(String),
    /// The registry could not be reached.
    #[error("{0}")]
    RegistryUnavailable(String),
    /// The shim died, or the CRI runtime is down.
    #[error("{0}")]
    Unavailable(String),
    #[error("cannot {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
}

/// The kernel's error text in lower case without the number: `no such file or directory`.
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

impl Error {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::NotFound { .. })
    }

    /// For `map_err`: adds the operation and the path.
    pub fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { doing, path, source }
    }
}
