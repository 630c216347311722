//! TLS handshakes in memory, with replaced, missing and foreign certificates.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{ClientConnection, ServerConnection};
use rustls_pki_types::ServerName;
use std::sync::Arc;
use tls::RenewableCertificate;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// The peers' names as both sides see them.
fn handshake(
    server: &Arc<rustls::ServerConfig>,
    client: &Arc<rustls::ClientConfig>,
) -> Result<(String, Option<String>), rustls::Error> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(client.clone(), name)?;
    let mut server = ServerConnection::new(server.clone())?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    let name = |der: &rustls_pki_types::CertificateDer<'_>| {
        let (_, read) = x509_parser::parse_x509_certificate(der).unwrap();
        read.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned()
    };
    let seen = name(&client.peer_certificates().unwrap()[0]);
    Ok((seen, server.peer_certificates().map(|chain| name(&chain[0]))))
}

fn shown((certificate, key): &(String, String)) -> Arc<RenewableCertificate> {
    RenewableCertificate::new(certificate, key).unwrap()
}

/// A-171, N-168: no restart is needed on either side.
#[test]
fn a_replaced_certificate_is_used_from_the_next_handshake_on() {
    let authority = Authority::new();
    let (serving, calling) =
        (shown(&authority.issue("server 1")), shown(&authority.issue("client 1")));
    let server = Arc::new(tls::server_config(serving.clone(), &authority.pem, &[]).unwrap());
    let client = Arc::new(tls::client_config(calling.clone(), &authority.pem).unwrap());
    let saw = |one: &str, other: &str| (one.to_owned(), Some(other.to_owned()));
    assert_eq!(handshake(&server, &client).unwrap(), saw("server 1", "client 1"));
    let (certificate, key) = authority.issue("server 2");
    serving.replace(&certificate, &key).unwrap();
    let (certificate, key) = authority.issue("client 2");
    calling.replace(&certificate, &key).unwrap();
    assert_eq!(handshake(&server, &client).unwrap(), saw("server 2", "client 2"));
    let (_, other) = authority.issue("server 3");
    assert!(serving.replace(&certificate, &other).is_err(), "a key of another certificate");
    assert!(serving.replace("", &key).is_err());
    assert_eq!(handshake(&server, &client).unwrap(), saw("server 2", "client 2"));
}

/// Handshakes fail until there is a first certificate.
#[test]
fn without_a_certificate_no_handshake_succeeds() {
    let authority = Authority::new();
    let (serving, calling) = (RenewableCertificate::empty(), shown(&authority.issue("client")));
    assert_eq!(serving.validity(), None);
    let server = Arc::new(tls::server_config(serving.clone(), &authority.pem, &[]).unwrap());
    let client = Arc::new(tls::client_config(calling, &authority.pem).unwrap());
    assert!(handshake(&server, &client).is_err());
    let (certificate, key) = authority.issue("server");
    let life = serving.replace(&certificate, &key).unwrap();
    assert_eq!(serving.validity(), Some(life));
    assert_eq!(handshake(&server, &client).unwrap(), ("server".into(), Some("client".into())));
}

/// a client certificate of another CA is refused, not treated as anonymous.
#[test]
fn certificates_of_another_ca_are_refused_and_clients_without_one_accepted() {
    let (ours, others) = (Authority::new(), Authority::new());
    let server = tls::server_config(shown(&ours.issue("server")), &ours.pem, &[]).unwrap();
    let server = Arc::new(server);
    let stranger = tls::client_config(shown(&others.issue("client")), &ours.pem).unwrap();
    assert!(handshake(&server, &Arc::new(stranger)).is_err());
    let wary = tls::client_config(shown(&ours.issue("client")), &others.pem).unwrap();
    assert!(handshake(&server, &Arc::new(wary)).is_err());
    let nobody = Arc::new(tls::insecure_client_config().unwrap());
    assert_eq!(handshake(&server, &nobody).unwrap(), ("server".to_owned(), None));
}
