//! The certificate authority: issues certificates, and decides whether existing ones must be replaced.

use super::{CREATED_AGAIN, DAY, Error, LEAF_LIFETIME, LEAF_RENEWAL, START_OVER, files, subject};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The CA's certificate (not its key) is renewed when certificates that it signs could outlive it.
const CA_RENEWAL: Duration = Duration::from_secs(2 * 365 * 24 * 3600);
const CA_NAME: &str = "kubernetes";
/// The common name that `subject::replace` replaces.
pub(super) const PLACEHOLDER_NAME: &str = "placeholder";

/// A certificate and its key, both in PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// What a certificate is for.
pub(super) enum Purpose {
    Serving { subject: String, names: BTreeSet<String> },
    Client { name: String, groups: Vec<String> },
}

impl Purpose {
    pub(super) fn client(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        Purpose::Client { name: name.to_owned(), groups }
    }
}

pub(super) struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn load_or_create(dir: &Path) -> Result<Self, Error> {
        let (crt, key) = (dir.join("ca.crt"), dir.join("ca.key"));
        let found = (read_public(&crt)?, read_secret(&key)?);
        let (pem, key) = match found {
            (None, None) => {
                let made = new_key()?;
                write_secret(&key, &made.serialize_pem())?;
                (self_signed(&crt, &made)?, made)
            }
            // A crash between writing the two files: nothing was signed yet.
            (None, Some(pem)) => {
                let key = read_key(&key, &pem, START_OVER)?;
                (self_signed(&crt, &key)?, key)
            }
            (Some(_), None) => {
                return Err(damaged(&key, "the file is missing", START_OVER));
            }
            (Some(certificate), Some(pem)) => {
                let key = read_key(&key, &pem, START_OVER)?;
                let der = read_certificate(&crt, &certificate, START_OVER)?;
                match judge_authority(&der, &key).map_err(|why| damaged(&crt, why, START_OVER))? {
                    Verdict::Good => (certificate, key),
                    Verdict::Renew => (self_signed(&crt, &key)?, key),
                }
            }
        };
        let der = read_certificate(&crt, &pem, START_OVER)?;
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(broken)?;
        Ok(Authority { pem, der, issuer })
    }

    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// When the CA certificate expires, since 1970. No certificate that it signs is valid for longer.
    pub(super) fn expires(&self) -> Duration {
        let own = X509Certificate::from_der(&self.der);
        let end = own.map_or(0, |(_, own)| own.validity().not_after.timestamp());
        Duration::from_secs(u64::try_from(end).unwrap_or_default())
    }

    /// The certificate in `dir` under that name if it is still usable; a new one otherwise.
    pub(super) fn load_or_issue(
        &self,
        dir: &Path,
        name: &str,
        purpose: &Purpose,
    ) -> Result<Identity, Error> {
        let crt = dir.join(format!("{name}.crt"));
        let key = dir.join(format!("{name}.key"));
        if let (Some(certificate), Some(pem)) = (read_public(&crt)?, read_secret(&key)?) {
            let pair = read_key(&key, &pem, CREATED_AGAIN)?;
            let der = read_certificate(&crt, &certificate, CREATED_AGAIN)?;
            if self.is_usable(&der, &pair, purpose) {
                return Ok(Identity { certificate, key: pem });
            }
        }
        let issued = self.issue(purpose, LEAF_LIFETIME)?;
        // A crash between the two leaves a pair that does not match; the next start replaces it.
        let written =
            write_secret(&key, &issued.key).and_then(|()| write_public(&crt, &issued.certificate));
        match written {
            // The server must start on a full disk. The next start issues another one.
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::StorageFull => {}
            written => written?,
        }
        Ok(issued)
    }

    fn is_usable(&self, der: &CertificateDer, key: &KeyPair, purpose: &Purpose) -> bool {
        let (Ok((_, leaf)), Ok((_, authority))) =
            (X509Certificate::from_der(der), X509Certificate::from_der(&self.der))
        else {
            return false;
        };
        let matches = match purpose {
            Purpose::Serving { names, .. } => alternative_names(&leaf) == *names,
            Purpose::Client { name, groups } => {
                crate::authn::user_of_certificate(der).is_ok_and(|user| {
                    user.name == *name && groups.iter().all(|group| user.in_group(group))
                })
            }
        };
        matches
            && leaf.public_key().subject_public_key.data == key.der_bytes()
            && lives_for(&leaf, LEAF_RENEWAL)
            && leaf.verify_signature(Some(authority.public_key())).is_ok()
    }

    pub(super) fn issue(&self, purpose: &Purpose, lifetime: Duration) -> Result<Identity, Error> {
        let key = new_key()?;
        let mut params = params(lifetime);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        let der = match purpose {
            Purpose::Serving { subject, names } => {
                let names: Vec<String> = names.iter().cloned().collect();
                let named = CertificateParams::new(names).map_err(broken)?;
                params.subject_alt_names = named.subject_alt_names;
                params.distinguished_name.push(DnType::CommonName, subject.as_str());
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
                params.signed_by(&key, &self.issuer).map_err(broken)?.der().to_vec()
            }
            Purpose::Client { name, groups } => {
                params.distinguished_name.push(DnType::CommonName, PLACEHOLDER_NAME);
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                let made = params.signed_by(&key, &self.issuer).map_err(broken)?;
                subject::replace(made.der(), name, groups, self.issuer.key()).ok_or_else(|| {
                    Error::Certificate(format!("the subject {name:?} cannot be written"))
                })?
            }
        };
        Ok(Identity { certificate: to_pem(&der), key: key.serialize_pem() })
    }
}

enum Verdict {
    Good,
    Renew,
}

fn judge_authority(der: &CertificateDer, key: &KeyPair) -> Result<Verdict, &'static str> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| "not a certificate")?;
    if certificate.public_key().subject_public_key.data != key.der_bytes() {
        return Err("it does not belong to ca.key");
    }
    if !certificate.is_ca() {
        return Err("it is not the certificate of an authority");
    }
    Ok(if lives_for(&certificate, CA_RENEWAL) { Verdict::Good } else { Verdict::Renew })
}

fn lives_for(certificate: &X509Certificate, least: Duration) -> bool {
    let (now, dates) = (clock::now().as_second(), certificate.validity());
    let least = i64::try_from(least.as_secs()).unwrap_or(i64::MAX);
    dates.not_before.timestamp() <= now && dates.not_after.timestamp() - now >= least
}

fn alternative_names(certificate: &X509Certificate) -> BTreeSet<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    let text = |name: &GeneralName| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let address: Option<IpAddr> = match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
                _ => <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from),
            };
            address.map(|address| address.to_string())
        }
        _ => None,
    };
    names.value.general_names.iter().filter_map(text).collect()
}

fn self_signed(path: &Path, key: &KeyPair) -> Result<String, Error> {
    let mut params = params(CA_LIFETIME);
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    let pem = params.self_signed(key).map_err(broken)?.pem();
    write_public(path, &pem)?;
    Ok(pem)
}

/// Valid from a day ago, for clients whose clock is behind ours.
fn params(lifetime: Duration) -> CertificateParams {
    let now = now();
    params_between(now.saturating_sub(DAY), now + lifetime)
}

/// Since 1970.
pub(super) fn now() -> Duration {
    Duration::from_secs(u64::try_from(clock::now().as_second()).unwrap_or_default())
}

pub(super) fn params_between(start: Duration, end: Duration) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = epoch + start;
    params.not_after = epoch + end;
    let mut serial = clock::random_bytes::<16>();
    serial[0] &= 0x7f; // A serial number is positive.
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params
}

pub(super) fn new_key() -> Result<KeyPair, Error> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(broken)
}

pub(super) fn to_pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::prelude::BASE64_STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|&byte| char::from(byte)));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

fn read_certificate(
    path: &Path,
    pem: &str,
    advice: &'static str,
) -> Result<CertificateDer<'static>, Error> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| damaged(path, "not a PEM certificate", advice))?;
    match X509Certificate::from_der(&der) {
        Ok(_) => Ok(der),
        Err(_) => Err(damaged(path, "not a certificate", advice)),
    }
}

fn read_key(path: &Path, pem: &str, advice: &'static str) -> Result<KeyPair, Error> {
    // Without the parser's message: nothing of a key may reach a log.
    KeyPair::from_pem(pem).map_err(|_| damaged(path, "not a PEM private key", advice))
}

fn damaged(path: &Path, why: &str, advice: &'static str) -> Error {
    Error::Damaged { path: path.to_owned(), why: why.to_owned(), advice }
}

pub(super) fn broken(error: rcgen::Error) -> Error {
    Error::Certificate(error.to_string())
}

fn read_public(path: &Path) -> Result<Option<String>, Error> {
    files::read(path).map_err(|source| file("read", path, source))
}

fn read_secret(path: &Path) -> Result<Option<String>, Error> {
    files::read_secret(path).map_err(|source| file("read", path, source))
}

fn write_public(path: &Path, text: &str) -> Result<(), Error> {
    files::write_public(path, text.as_bytes()).map_err(|source| file("write", path, source))
}

fn write_secret(path: &Path, text: &str) -> Result<(), Error> {
    files::write_secret(path, text.as_bytes()).map_err(|source| file("write", path, source))
}

fn file(doing: &'static str, path: &Path, source: std::io::Error) -> Error {
    let path: PathBuf = path.to_owned();
    Error::File { doing, path, source }
}
