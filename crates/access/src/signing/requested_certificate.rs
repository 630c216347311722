//! Reads what a certificate signing request asks for, and verifies that the requester holds the key.

use api::value::ValueExt as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use std::net::IpAddr;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

/// The certificate that a request asks for.
#[derive(Debug, Default)]
pub(super) struct RequestedCertificate {
    /// The common name.
    pub(super) name: String,
    /// The organizations.
    pub(super) groups: Vec<String>,
    pub(super) dns: Vec<String>,
    pub(super) ips: Vec<IpAddr>,
    /// Whether there are alternative names of other kinds: mail addresses, URIs and so on.
    pub(super) other_names: bool,
    /// SubjectPublicKeyInfo in DER.
    pub(super) public_key: Vec<u8>,
}

impl RequestedCertificate {
    /// The error says what is wrong with the request.
    pub(super) fn read(request: &Value) -> Result<RequestedCertificate, String> {
        let pem = BASE64_STANDARD
            .decode(request.text(&["spec", "request"]))
            .map_err(|_| "the request is not base64".to_owned())?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem)
            .map_err(|_| "the request is not PEM".to_owned())?;
        let (_, request) = X509CertificationRequest::from_der(&pem.contents)
            .map_err(|_| "the request is not a certificate request".to_owned())?;
        request
            .verify_signature()
            .map_err(|_| "the signature of the request does not match its public key".to_owned())?;
        let info = &request.certification_request_info;
        let text = |text: Result<&str, _>| {
            text.map(str::to_owned).map_err(|_: x509_parser::error::X509Error| {
                "the subject of the request cannot be read".to_owned()
            })
        };
        let names = info.subject.iter_common_name().map(|name| text(name.as_str()));
        let names: Vec<String> = names.collect::<Result<_, _>>()?;
        // With several, readers of the certificate might not agree which one is the user.
        let [name] = <[String; 1]>::try_from(names)
            .map_err(|_| "the subject must have one common name".to_owned())?;
        let groups = info.subject.iter_organization().map(|group| text(group.as_str()));
        let mut requested = RequestedCertificate {
            name,
            groups: groups.collect::<Result<_, _>>()?,
            public_key: info.subject_pki.raw.to_vec(),
            ..RequestedCertificate::default()
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            match extension {
                ParsedExtension::SubjectAlternativeName(names) => {
                    names.general_names.iter().for_each(|name| requested.add(name));
                }
                ParsedExtension::ParseError { .. } => requested.other_names = true,
                _ => {}
            }
        }
        Ok(requested)
    }

    fn add(&mut self, name: &GeneralName) {
        match name {
            GeneralName::DNSName(name) => self.dns.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match address(bytes) {
                Some(address) => self.ips.push(address),
                None => self.other_names = true,
            },
            _ => self.other_names = true,
        }
    }

    /// All names and addresses that the certificate is good for.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.dns.iter().cloned().chain(self.ips.iter().map(IpAddr::to_string))
    }

    /// The node that the subject names.
    pub(super) fn node(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|name| !name.is_empty())
    }
}

/// An IPv4-mapped IPv6 address counts as the IPv4 address, as clients treat it.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let address = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    };
    address.map(|address| address.to_canonical())
}

pub(super) fn usages(request: &Value) -> Vec<String> {
    let usages = request.at(&["spec", "usages"]).and_then(Value::as_array);
    usages.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
