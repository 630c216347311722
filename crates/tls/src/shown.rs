//! The certificate that a process shows, and its replacement while it runs.
//!
//! Every handshake shows what is newest; connections that stand are not touched. As long as there is
//! nothing to show, handshakes fail.

use crate::{Error, Validity, certificates};
use arc_swap::ArcSwapOption;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use std::sync::Arc;

pub struct Shown {
    current: ArcSwapOption<Current>,
}

struct Current {
    key: Arc<CertifiedKey>,
    life: Validity,
}

impl Shown {
    /// Both in PEM. The first certificate is ours; others are shown along with it.
    pub fn new(certificate: &str, key: &str) -> Result<Arc<Shown>, Error> {
        let current = Current::read(certificate, key)?;
        Ok(Arc::new(Shown { current: ArcSwapOption::from_pointee(current) }))
    }

    /// For one who has to wait for the first certificate.
    pub fn nothing_yet() -> Arc<Shown> {
        Arc::new(Shown { current: ArcSwapOption::empty() })
    }

    /// From the next handshake on. What cannot be used changes nothing. Answers how long it is good for.
    pub fn replace(&self, certificate: &str, key: &str) -> Result<Validity, Error> {
        let current = Current::read(certificate, key)?;
        let life = current.life;
        self.current.store(Some(Arc::new(current)));
        Ok(life)
    }

    /// How long what is shown now is good for; None while nothing is.
    pub fn life(&self) -> Option<Validity> {
        self.current.load().as_ref().map(|current| current.life)
    }

    fn key(&self) -> Option<Arc<CertifiedKey>> {
        self.current.load().as_ref().map(|current| current.key.clone())
    }
}

impl Current {
    fn read(certificate: &str, key: &str) -> Result<Current, Error> {
        let chain = certificates(certificate)?;
        let own = chain.first().ok_or_else(|| Error("there is no certificate".into()))?;
        let life = Validity::of(own)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(Error::of)?;
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider).map_err(Error::of)?;
        Ok(Current { key: Arc::new(key), life })
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.key()
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.key()
    }

    fn has_certs(&self) -> bool {
        self.current.load().is_some()
    }
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shown").field("life", &self.life()).finish_non_exhaustive()
    }
}
