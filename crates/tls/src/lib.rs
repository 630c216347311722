#![doc = include_str!("../README.md")]

mod accept;
mod config;
mod connections;
mod insecure_verifier;
mod renewable;
mod renewal;

pub use accept::{accept, handshake};
pub use config::{Clock, certificates, client_config, server_config, server_config_by};
pub use connections::{
    ActiveBody, ActiveRequest, Admitted, Connections, CountedStream, Usage, connections_max,
};
pub use insecure_verifier::insecure_client_config;
pub use renewable::RenewableCertificate;
pub use renewal::{Validity, due, keep};

/// Why a certificate or key cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    fn of(error: impl std::fmt::Display) -> Error {
        Error(error.to_string())
    }
}
