//! The TLS side of the endpoint: our certificate, and whose client certificates count.

use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[error("the node's serving certificate cannot be used: {0}")]
pub struct TlsError(String);

/// All in PEM. Client certificates of `ca` are welcome, none is required (N-168). HTTP/1.1 only,
/// since upgrades need it.
pub fn server_config(certificate: &str, key: &str, ca: &str) -> Result<ServerConfig, TlsError> {
    let broken = |error: &dyn std::fmt::Display| TlsError(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let root = root.map_err(|error| broken(&error))?;
        roots.add(root).map_err(|error| broken(&error))?;
    }
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| broken(&error))?;
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| broken(&error))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| broken(&error))?;
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(Clock))
        .with_safe_default_protocol_versions()
        .map_err(|error| broken(&error))?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(|error| broken(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The one clock, for the dates of client certificates.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(clock::now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}
