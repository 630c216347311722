//! What can go wrong below the API. The node turns these into reasons and events.

use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such sandbox, container or image (any more).
    #[error("{what} \"{id}\" not found")]
    NotFound { what: &'static str, id: String },
    /// The runtime understood and will not do it; the text is for people.
    #[error("{0}")]
    Refused(String),
    /// The process of a container could not be started: no such command, not executable, …
    #[error("{0}")]
    Start(String),
    /// The name of an image cannot be read.
    #[error("couldn't parse image name {name:?}: {why}")]
    ImageName { name: String, why: String },
    /// A pull failed; asking again may help.
    #[error("{0}")]
    Pull(String),
    /// The registry could not be reached at all.
    #[error("{0}")]
    RegistryUnavailable(String),
    /// Nobody answers: the shim died, or the CRI runtime is down.
    #[error("{0}")]
    Unavailable(String),
    #[error("cannot {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
}

/// `no such file or directory`: the kernel's words without the number, in lower case.
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

impl Error {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::NotFound { .. })
    }

    /// For `map_err`: says what was being done to which path.
    pub fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { doing, path, source }
    }
}
