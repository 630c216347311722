//! Signing for somebody who keeps the key: the last step of a certificate signing request (C-150).

use super::authority::{Authority, broken, now, params_between, to_pem};
use super::{Error, Pki, subject};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose};
use std::time::Duration;

/// For clocks that are a little behind ours.
const BACKDATED: Duration = Duration::from_secs(300);
/// From this lifetime on the backdating is taken off its end.
const LONG: Duration = Duration::from_secs(8 * 3600);

/// A certificate that was decided upon.
pub(crate) struct Order<'a> {
    /// Common name and organizations.
    pub(crate) name: &'a str,
    pub(crate) groups: &'a [String],
    /// DNS names and addresses.
    pub(crate) names: Vec<String>,
    /// As a signing request spells them.
    pub(crate) usages: Vec<&'a str>,
    /// SubjectPublicKeyInfo in DER.
    pub(crate) public_key: &'a [u8],
    pub(crate) lifetime: Duration,
}

impl Pki {
    /// The certificate in PEM.
    pub(crate) fn sign(&self, order: &Order) -> Result<String, Error> {
        self.authority.sign(order)
    }
}

impl Authority {
    fn sign(&self, order: &Order) -> Result<String, Error> {
        let key = rcgen::SubjectPublicKeyInfo::from_der(order.public_key)
            .map_err(|_| Error::Certificate("keys of this kind are not supported".into()))?;
        let now = now();
        let taken_off = if order.lifetime >= LONG { BACKDATED } else { Duration::ZERO };
        let end = (now + order.lifetime - taken_off).min(self.ends());
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
        params.distinguished_name.push(DnType::CommonName, "stand-in");
        let made = params.signed_by(&key, self.issuer()).map_err(broken)?;
        let der = subject::exchange(made.der(), order.name, order.groups, self.issuer().key())
            .ok_or_else(|| {
                Error::Certificate(format!("the subject {:?} cannot be written", order.name))
            })?;
        Ok(to_pem(&der))
    }
}
