//! What rustls wants to know, in the two forms there are here: answering and calling.

use crate::{Error, Shown};
use rustls::client::Resumption;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use std::time::Duration;

/// For answering: shows `shown`; client certificates of `ca` (PEM) are welcome, and none is required.
/// TLS 1.2 and 1.3.
pub fn server_config(shown: Arc<Shown>, ca: &str, alpn: &[&str]) -> Result<ServerConfig, Error> {
    server_config_by(Arc::new(Clock), shown, ca, alpn)
}

/// The same by another clock.
pub fn server_config_by(
    clock: Arc<dyn TimeProvider>,
    shown: Arc<Shown>,
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
        .with_cert_resolver(shown);
    // A session that is taken up again carries the certificates of its first handshake: ours may be
    // another one by now, and the client's may have ended.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(config)
}

/// For calling those whose certificate `ca` (PEM) signed, as the one that `shown` names.
pub fn client_config(shown: Arc<Shown>, ca: &str) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_details(provider, Arc::new(Clock))
        .with_safe_default_protocol_versions()
        .map_err(Error::of)?
        .with_root_certificates(roots(ca)?)
        .with_client_cert_resolver(shown);
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

/// The one clock, for the dates of other people's certificates.
#[derive(Debug)]
pub struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(clock::now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}
