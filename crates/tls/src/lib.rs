//! TLS as server and node have it. Start at `shown`; the README says how the parts meet.

mod accept;
mod anyone;
mod config;
mod renewal;
mod shown;

pub use accept::{accepted, shaken};
pub use anyone::trusting_anyone;
pub use config::{Clock, certificates, client_config, server_config, server_config_by};
pub use renewal::{Validity, due, keep};
pub use shown::Shown;

/// Why a certificate or key cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    fn of(error: impl std::fmt::Display) -> Error {
        Error(error.to_string())
    }
}
