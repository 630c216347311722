//! TLS towards those the server calls: nodes, which it knows, and pods and services, which it
//! cannot know.

use super::{Clock, Error, LEAF_LIFETIME, Pki};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::sync::Arc;

/// How nodes know us. Upstream's name for it.
const USER: &str = "kube-apiserver-kubelet-client";

impl Pki {
    /// For calling nodes: their certificates must be of our CA, and ours says that we may do
    /// everything there.
    pub(crate) fn node_client_config(&self) -> Result<ClientConfig, Error> {
        let broken = |error: &dyn std::fmt::Display| Error::Certificate(error.to_string());
        let identity = self.issue_client(USER, &[crate::authn::MASTERS], LEAF_LIFETIME)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).map_err(|error| broken(&error))?;
        let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| broken(&error))?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
            .map_err(|error| broken(&error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_details(provider, Arc::new(Clock))
            .with_safe_default_protocol_versions()
            .map_err(|error| broken(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| broken(&error))
    }
}

/// For backends whose certificates nobody here can judge: `https:` pods and services behind
/// `proxy`. What is sent to them carries no credentials of ours.
pub(crate) fn unverified() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth())
}

#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
