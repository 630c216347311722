//! Signs a certificate for a key that the requester holds: the last step of a certificate signing request (C-150).

use super::authority::{Authority, PLACEHOLDER_NAME, broken, now, params_between, to_pem};
use super::{Error, Pki, subject};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose};
use std::time::Duration;

/// For clients whose clock is a little behind ours.
const BACKDATED: Duration = Duration::from_secs(300);
/// From this lifetime on, a certificate ends earlier by as much as it is backdated.
const LONG_LIFETIME: Duration = Duration::from_secs(8 * 3600);

/// A certificate to sign. All decisions about it have been made.
pub struct CertificateOrder<'a> {
    /// Common name and organizations.
    pub name: &'a str,
    pub groups: &'a [String],
    /// DNS names and addresses.
    pub names: Vec<String>,
    /// As a signing request spells them.
    pub usages: Vec<&'a str>,
    /// SubjectPublicKeyInfo in DER.
    pub public_key: &'a [u8],
    pub lifetime: Duration,
}

impl Pki {
    /// The certificate in PEM.
    pub fn sign(&self, order: &CertificateOrder) -> Result<String, Error> {
        self.authority.sign(order)
    }
}

impl Authority {
    fn sign(&self, order: &CertificateOrder) -> Result<String, Error> {
        let key = rcgen::SubjectPublicKeyInfo::from_der(order.public_key)
            .map_err(|_| Error::Certificate("keys of this kind are not supported".into()))?;
        let now = now();
        let shortened_by = if order.lifetime >= LONG_LIFETIME { BACKDATED } else { Duration::ZERO };
        let end = (now + order.lifetime - shortened_by).min(self.expires());
        let mut params = params_between(now.saturating_sub(BACKDATED), end);
        let named = CertificateParams::new(order.names.clone()).map_err(broken)?;
        params.subject_alt_names = named.subject_alt_names;
        params.use_authority_key_identifier_extension = true;
        for usage in &order.usages {
            match *usage {
                "digital signature" => params.key_usages.push(KeyUsagePurpose::DigitalSignature),
                "key encipherment" => params.key_usages.push(KeyUsagePurpose::KeyEncipherment),
                "client auth" => {
                    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
                }
                "server auth" => {
                    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
                }
                other => return Err(Error::Certificate(format!("usage {other:?} is not signed"))),
            }
        }
        params.distinguished_name.push(DnType::CommonName, PLACEHOLDER_NAME);
        let issued = params.signed_by(&key, self.issuer()).map_err(broken)?;
        let der = subject::replace(issued.der(), order.name, order.groups, self.issuer().key())
            .ok_or_else(|| {
                Error::Certificate(format!("the subject {:?} cannot be written", order.name))
            })?;
        Ok(to_pem(&der))
    }
}
