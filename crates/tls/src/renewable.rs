//! The certificate of a process, which can be replaced while the process runs.
//!
//! Every handshake uses the newest certificate; existing connections are not affected. Handshakes fail as long as there is
//! no certificate.

use crate::{Error, Validity, certificates};
use arc_swap::ArcSwapOption;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use std::sync::Arc;

/// A certificate with its key, for serving or as a client.
pub struct RenewableCertificate {
    current: ArcSwapOption<Current>,
}

struct Current {
    key: Arc<CertifiedKey>,
    validity: Validity,
}

impl RenewableCertificate {
    /// Both in PEM. The first certificate is ours; the others are sent with it.
    pub fn new(certificate: &str, key: &str) -> Result<Arc<RenewableCertificate>, Error> {
        let current = Current::read(certificate, key)?;
        Ok(Arc::new(RenewableCertificate { current: ArcSwapOption::from_pointee(current) }))
    }

    /// Without a certificate, until the first one is issued.
    pub fn empty() -> Arc<RenewableCertificate> {
        Arc::new(RenewableCertificate { current: ArcSwapOption::empty() })
    }

    /// Replaces the certificate from the next handshake on, and returns its validity. An invalid one changes nothing.
    pub fn replace(&self, certificate: &str, key: &str) -> Result<Validity, Error> {
        let current = Current::read(certificate, key)?;
        let validity = current.validity;
        self.current.store(Some(Arc::new(current)));
        Ok(validity)
    }

    /// The validity of the current certificate, if there is one.
    pub fn validity(&self) -> Option<Validity> {
        self.current.load().as_ref().map(|current| current.validity)
    }

    fn key(&self) -> Option<Arc<CertifiedKey>> {
        self.current.load().as_ref().map(|current| current.key.clone())
    }
}

impl Current {
    fn read(certificate: &str, key: &str) -> Result<Current, Error> {
        let chain = certificates(certificate)?;
        let own = chain.first().ok_or_else(|| Error("there is no certificate".into()))?;
        let validity = Validity::of(own)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(Error::of)?;
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider).map_err(Error::of)?;
        Ok(Current { key: Arc::new(key), validity })
    }
}

impl ResolvesServerCert for RenewableCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.key()
    }
}

impl ResolvesClientCert for RenewableCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.key()
    }

    fn has_certs(&self) -> bool {
        self.current.load().is_some()
    }
}

impl std::fmt::Debug for RenewableCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RenewableCertificate")
            .field("validity", &self.validity())
            .finish_non_exhaustive()
    }
}
