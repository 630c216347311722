//! Certificates whose subject names several organizations.
//!
//! A user's groups are the organizations of its certificate, but rcgen supports one value per attribute. So rcgen
//! creates the certificate with a placeholder, and this module replaces the subject and signs the result again.

use rcgen::SigningKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// The same certificate with another subject, signed with the issuer's key.
pub(super) fn replace(
    der: &[u8],
    name: &str,
    organizations: &[String],
    key: &impl SigningKey,
) -> Option<Vec<u8>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let signed: &[u8] = certificate.tbs_certificate.as_ref();
    let old = certificate.tbs_certificate.subject.as_raw();
    let start = (old.as_ptr() as usize).checked_sub(signed.as_ptr() as usize)?;
    let content = signed.get(header_len(signed)?..start)?;
    let rest = signed.get(start + old.len()..)?;
    let signed_end = header_len(der)? + signed.len();
    let algorithm = der.get(signed_end..)?;
    let algorithm = algorithm.get(..2 + usize::from(*algorithm.get(1)?))?;

    let signed = element(SEQUENCE, &[content, &subject(name, organizations), rest].concat());
    let signature = key.sign(&signed).ok()?;
    let signature = element(BIT_STRING, &[&[0], signature.as_slice()].concat());
    Some(element(SEQUENCE, &[&signed, algorithm, &signature].concat()))
}

fn subject(name: &str, organizations: &[String]) -> Vec<u8> {
    let attribute = |kind: &[u8], text: &str| {
        let pair = [element(OBJECT_ID, kind), element(UTF8_STRING, text.as_bytes())].concat();
        element(SET, &element(SEQUENCE, &pair))
    };
    let mut parts: Vec<Vec<u8>> =
        organizations.iter().map(|group| attribute(&ORGANIZATION, group)).collect();
    parts.push(attribute(&COMMON_NAME, name));
    element(SEQUENCE, &parts.concat())
}

/// A DER element: tag, length, content.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut element = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => element.push(short),
        _ => {
            let length = content.len().to_be_bytes();
            let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
            element.push(0x80 | length.len() as u8);
            element.extend_from_slice(length);
        }
    }
    element.extend_from_slice(content);
    element
}

/// The size of an element's tag and length.
fn header_len(element: &[u8]) -> Option<usize> {
    match *element.get(1)? {
        short if short < 0x80 => Some(2),
        long => Some(2 + usize::from(long & 0x7f)),
    }
}
