//! The rustls configurations for servers and clients.

use crate::{Error, RenewableCertificate};
use rustls::client::Resumption;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use std::time::Duration;

/// A server configuration with this certificate, TLS 1.2 and 1.3. Client certificates signed by `ca` (PEM) are accepted,
/// but not required.
pub fn server_config(
    certificate: Arc<RenewableCertificate>,
    ca: &str,
    alpn: &[&str],
) -> Result<ServerConfig, Error> {
    server_config_by(Arc::new(Clock), certificate, ca, alpn)
}

/// The same with another clock.
pub fn server_config_by(
    clock: Arc<dyn TimeProvider>,
    certificate: Arc<RenewableCertificate>,
    ca: &str,
    alpn: &[&str],
) -> Result<ServerConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(Error::of)?;
    let mut config = ServerConfig::builder_with_details(provider, clock)
        .with_safe_default_protocol_versions()
        .map_err(Error::of)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(certificate);
    // No session resumption: a resumed session keeps the certificates of its first handshake, but ours may have been
    // replaced, and the client's may have expired.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(config)
}

/// A client configuration with this certificate, for servers whose certificate `ca` (PEM) has signed.
pub fn client_config(
    certificate: Arc<RenewableCertificate>,
    ca: &str,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_details(provider, Arc::new(Clock))
        .with_safe_default_protocol_versions()
        .map_err(Error::of)?
        .with_root_certificates(roots(ca)?)
        .with_client_cert_resolver(certificate);
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// All certificates of a PEM file.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(Error::of)
}

fn roots(ca: &str) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for root in certificates(ca)? {
        roots.add(root).map_err(Error::of)?;
    }
    Ok(roots)
}

/// The time of `clock`, for checking the dates of certificates.
#[derive(Debug)]
pub struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(clock::now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}
