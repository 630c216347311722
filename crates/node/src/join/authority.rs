//! Fetches the cluster's authority from the server and verifies its fingerprint.

use super::JoinError;
use crate::digest::{hex, sha256};
use base64::Engine as _;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;

/// How long to wait for the server.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The SHA-256 of the authority's certificate, in hexadecimal: the third part of a join token.
pub fn fingerprint(certificate: &[u8]) -> String {
    hex(&sha256(certificate))
}

/// The authority in PEM, if the server sends one with this fingerprint and its own certificate is
/// signed by it.
pub(super) async fn fetch(server: &str, fingerprint: Option<&str>) -> Result<String, JoinError> {
    let refused = |why: String| JoinError::Refused(why);
    let fingerprint = fingerprint.ok_or_else(|| {
        refused("the token has no fingerprint: use a token with one, or --ca FILE".into())
    })?;
    let uri: http::Uri =
        server.parse().map_err(|_| refused(format!("{server:?} is not https://HOST:PORT")))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let name = ServerName::try_from(host.clone())
        .map_err(|_| refused(format!("{server:?} has no host name")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pinned = Arc::new(PinnedAuthority {
        fingerprint: fingerprint.to_lowercase(),
        found: Mutex::new(None),
        provider: provider.clone(),
    });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(pinned.clone())
        .with_no_client_auth();
    let connect = async {
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let connected = tokio::time::timeout(CONNECT_MAX, connect).await;
    let failed = match connected {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the server does not answer".into()),
    };
    if let Some(why) = failed {
        return Err(refused(format!("joining {server} failed: {why}")));
    }
    let found = pinned.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    found.ok_or_else(|| refused(format!("{server} sent no certificate")))
}

/// Accepts certificates that are signed by the authority with this fingerprint.
#[derive(Debug)]
struct PinnedAuthority {
    fingerprint: String,
    found: Mutex<Option<String>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let sent = intermediates.iter().chain([leaf]);
        let authority =
            sent.into_iter().find(|certificate| fingerprint(certificate) == self.fingerprint);
        let authority = authority.ok_or_else(|| {
            rustls::Error::General("the server does not belong to the cluster of this token".into())
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        let verified = verifier.verify_server_cert(leaf, intermediates, name, ocsp, now)?;
        let mut found = self.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *found = Some(pem(authority));
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn pem(certificate: &[u8]) -> String {
    let text = base64::prelude::BASE64_STANDARD.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}
