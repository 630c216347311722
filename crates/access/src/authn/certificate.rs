//! The user of a client certificate: CN is the name, each O a group.
//!
//! TLS has verified the chain and the dates; only the subject is read here.

use super::{CREDENTIAL_ID, User};
use ring::digest;
use std::fmt::Write as _;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The subject attribute that carries a user's uid. Upstream: `oidUserUID`.
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("the client certificate cannot be read")]
    Malformed,
    #[error("the client certificate has no common name")]
    NoName,
}

pub fn user_of_certificate(der: &[u8]) -> Result<User, CertificateError> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|_| CertificateError::Malformed)?;
    let subject = certificate.subject();
    let name = subject
        .iter_common_name()
        .filter_map(|name| name.as_str().ok())
        .find(|name| !name.is_empty())
        .ok_or(CertificateError::NoName)?;
    let groups: Vec<&str> =
        subject.iter_organization().filter_map(|group| group.as_str().ok()).collect();

    let mut user = User::authenticated(name, &groups);
    let uid = subject.iter_attributes().find(|part| part.attr_type().to_id_string() == UID_OID);
    if let Some(uid) = uid.and_then(|part| part.as_str().ok()) {
        user.uid = uid.to_owned();
    }
    user.extra.insert(CREDENTIAL_ID.into(), vec![format!("X509SHA256={}", fingerprint(der))]);
    Ok(user)
}

fn fingerprint(der: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, der);
    hash.as_ref().iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
