//! Keys and certificates on disk, and TLS handshakes with them.

use super::*;
use crate::authn::{User, user_of_certificate};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

fn load(dir: &Path, sans: &[&str]) -> Result<Pki, Error> {
    let sans: Vec<String> = sans.iter().map(|&san| san.to_owned()).collect();
    Pki::load_or_create(dir, &sans)
}

fn contents(dir: &Path, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| fs::read_to_string(dir.join(name)).unwrap()).collect()
}

const LASTING: &[&str] =
    &["pki/ca.crt", "pki/ca.key", "pki/sa.key", "pki/admin.crt", "admin.token"];

/// Does a TLS handshake in memory; returns the client's user as the server sees it.
fn handshake(
    server: &Pki,
    trusted: &Pki,
    identity: Option<&Identity>,
    name: &str,
) -> Result<Option<User>, rustls::Error> {
    handshake_with(server.server_config().unwrap(), trusted, identity, name)
}

fn handshake_with(
    server: ServerConfig,
    trusted: &Pki,
    identity: Option<&Identity>,
    name: &str,
) -> Result<Option<User>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(trusted.ca_certificate().as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_details(provider, Arc::new(tls::Clock))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let client = match identity {
        None => client.with_no_client_auth(),
        Some(identity) => {
            let chain =
                vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            client.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name)?;
    let mut server = ServerConnection::new(Arc::new(server))?;
    for _ in 0..10 {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    let peer = server.peer_certificates().and_then(|chain| chain.first());
    Ok(peer.map(|der| user_of_certificate(der).unwrap()))
}

#[test]
fn a_second_start_loads_the_same_keys_and_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let first = load(dir.path(), &["192.0.2.7"]).unwrap();
    let before = contents(dir.path(), LASTING);
    let serving = contents(dir.path(), &["pki/serving.crt"]);
    let second = load(dir.path(), &["192.0.2.7"]).unwrap();
    assert_eq!(contents(dir.path(), LASTING), before);
    assert_eq!(contents(dir.path(), &["pki/serving.crt"]), serving);
    assert_eq!(first.admin_token(), second.admin_token());
    assert_eq!(first.kubeconfig("https://x:6443"), second.kubeconfig("https://x:6443"));
}

#[test]
fn a_new_address_renews_only_the_serving_certificate() {
    let dir = tempfile::tempdir().unwrap();
    load(dir.path(), &[]).unwrap();
    let before = contents(dir.path(), LASTING);
    let serving = contents(dir.path(), &["pki/serving.crt"]);
    let pki = load(dir.path(), &["192.0.2.7", "10.96.0.1", "cluster.example"]).unwrap();
    assert_eq!(contents(dir.path(), LASTING), before);
    assert_ne!(contents(dir.path(), &["pki/serving.crt"]), serving);
    for name in
        ["192.0.2.7", "cluster.example", "localhost", "::1", "10.96.0.1", "kubernetes.default.svc"]
    {
        assert_eq!(handshake(&pki, &pki, None, name).unwrap(), None, "{name}");
    }
    assert!(handshake(&pki, &pki, None, "elsewhere.example").is_err());
}

#[test]
fn an_address_that_is_added_later_replaces_only_the_serving_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let pki = load(dir.path(), &[]).unwrap();
    let before = contents(dir.path(), LASTING);
    assert!(handshake(&pki, &pki, None, "10.244.0.1").is_err());
    pki.add_address("10.244.0.1".parse().unwrap()).unwrap();
    assert_eq!(handshake(&pki, &pki, None, "10.244.0.1").unwrap(), None);
    assert_eq!(handshake(&pki, &pki, None, "localhost").unwrap(), None);
    assert!(pki.names().contains("10.244.0.1"));
    assert_eq!(contents(dir.path(), LASTING), before);
    let serving = contents(dir.path(), &["pki/serving.crt"]);
    pki.add_address("10.244.0.1".parse().unwrap()).unwrap();
    assert!(!pki.renew().unwrap());
    assert_eq!(contents(dir.path(), &["pki/serving.crt"]), serving, "it has the address already");
}

#[test]
fn a_171_client_certificates_are_optional_and_must_be_signed_by_our_ca() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pki = load(dir.path(), &[]).unwrap();
    assert_eq!(handshake(&pki, &pki, None, "localhost").unwrap(), None);

    let admin = handshake(&pki, &pki, Some(&pki.admin()), "localhost").unwrap().unwrap();
    assert_eq!(admin.name, ADMIN);
    assert_eq!(admin.groups, ["system:masters", "system:authenticated"]);

    let stranger = load(other.path(), &[]).unwrap();
    assert!(handshake(&pki, &pki, Some(&stranger.admin()), "localhost").is_err());
    // What the server shows is no proof of being a client.
    assert!(handshake(&pki, &pki, Some(&pki.leaves.load().serving), "localhost").is_err());
}

#[derive(Debug)]
struct At(u64);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0)))
    }
}

#[test]
fn a_171_an_expired_client_certificate_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pki = load(dir.path(), &[]).unwrap();
    let now = u64::try_from(clock::now().as_second()).unwrap();
    let shake = |at| {
        let config = pki.server_config_by(Arc::new(At(at))).unwrap();
        handshake_with(config, &pki, Some(&pki.admin()), "localhost")
    };
    assert!(shake(now).is_ok());
    assert!(shake(now + LEAF_LIFETIME.as_secs() + 60).is_err());
}

#[test]
fn a_170_each_organization_is_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let pki = load(dir.path(), &[]).unwrap();
    for groups in [&[][..], &["system:nodes"], &["a", "b", "ü", &"long".repeat(50)]] {
        let identity = pki.issue_client("system:node:n1", groups, LEAF_LIFETIME).unwrap();
        let user = handshake(&pki, &pki, Some(&identity), "localhost").unwrap().unwrap();
        assert_eq!(user.name, "system:node:n1");
        assert_eq!(user.groups, [groups, &["system:authenticated"]].concat());
        let id = &user.extra["authentication.kubernetes.io/credential-id"][0];
        assert!(id.starts_with("X509SHA256=") && id.len() == 11 + 64, "A-172: {id}");
    }
}

#[test]
fn only_the_owner_can_read_files_with_secrets() {
    let dir = tempfile::tempdir().unwrap();
    load(dir.path(), &[]).unwrap();
    let mode =
        |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("pki"), 0o700);
    let secrets = ["pki/ca.key", "pki/serving.key", "pki/admin.key", "pki/sa.key", "admin.token"];
    for secret in secrets {
        assert_eq!(mode(secret), 0o600, "{secret}");
    }
    fs::set_permissions(dir.path().join("admin.token"), fs::Permissions::from_mode(0o644)).unwrap();
    load(dir.path(), &[]).unwrap();
    assert_eq!(mode("admin.token"), 0o600, "rights given to others are taken back");
    let left = fs::read_dir(dir.path().join("pki")).unwrap().count();
    assert_eq!(left, 7, "no temporary file is left behind");
}

#[test]
fn the_error_for_a_damaged_file_has_advice_and_no_content_of_the_file() {
    let files = [
        "pki/ca.crt",
        "pki/ca.key",
        "pki/sa.key",
        "pki/serving.crt",
        "pki/admin.key",
        "admin.token",
    ];
    for file in files {
        let dir = tempfile::tempdir().unwrap();
        load(dir.path(), &[]).unwrap();
        fs::write(dir.path().join(file), "s3cret").unwrap();
        let said = load(dir.path(), &[]).unwrap_err().to_string();
        assert!(said.contains(file) && said.contains("delete"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
    let dir = tempfile::tempdir().unwrap();
    load(dir.path(), &[]).unwrap();
    fs::remove_file(dir.path().join("pki/ca.key")).unwrap();
    assert!(load(dir.path(), &[]).unwrap_err().to_string().contains("ca.key is damaged"));
}

#[test]
fn the_next_start_completes_an_interrupted_first_start() {
    let dir = tempfile::tempdir().unwrap();
    let pki = load(dir.path(), &[]).unwrap();
    for lost in ["pki/ca.crt", "pki/serving.crt", "pki/admin.key", "admin.token"] {
        fs::remove_file(dir.path().join(lost)).unwrap();
        let again = load(dir.path(), &[]).unwrap();
        assert!(handshake(&again, &again, Some(&again.admin()), "localhost").unwrap().is_some());
        // The authority's key is the same, so what was issued before still counts.
        assert!(
            handshake(&again, &pki, Some(&pki.admin()), "localhost").unwrap().is_some(),
            "{lost}"
        );
    }
}

#[test]
fn a_173_the_kubeconfig_has_all_credentials_and_debug_output_none() {
    let dir = tempfile::tempdir().unwrap();
    let pki = load(dir.path(), &[]).unwrap();
    let config = pki.kubeconfig("https://127.0.0.1:6443");
    for part in [pki.ca_certificate(), &pki.admin().certificate, &pki.admin().key] {
        assert!(config.contains(&BASE64_STANDARD.encode(part)));
    }
    assert!(config.contains("server: \"https://127.0.0.1:6443\""), "{config}");
    let shown = format!("{pki:?} {:?}", pki.admin());
    for secret in [pki.admin_token().as_str(), pki.service_account_key(), &pki.admin().key] {
        assert!(!shown.contains(secret) && !shown.contains("PRIVATE KEY"));
    }
}

/// a node authenticates as system:node:<name>.
#[test]
fn a_node_gets_a_serving_and_a_client_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let pki = load(dir.path(), &[]).unwrap();
    let (serving, client) = pki.sign_node("n1", &["10.0.0.7".into(), "not a name".into()]).unwrap();
    let user = handshake(&pki, &pki, Some(&client), "localhost").unwrap().unwrap();
    assert_eq!(user.name, "system:node:n1");
    assert!(user.in_group("system:nodes"));
    let der = CertificateDer::from_pem_slice(serving.certificate.as_bytes()).unwrap();
    let names = x509_parser::parse_x509_certificate(&der).unwrap().1;
    let names = names.subject_alternative_name().unwrap().unwrap().value.general_names.len();
    assert_eq!(names, 2, "its address and its own name");
    let caller = handshake(&pki, &pki, Some(&client), "n1");
    assert!(caller.is_err(), "the server is not the node");
}

/// a running server replaces all its certificates before they expire, and certificates that it signed
/// before stay valid.
#[tokio::test(start_paused = true)]
async fn a_server_that_runs_for_years_renews_its_certificates() {
    clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 1);
    let dir = tempfile::tempdir().unwrap();
    let pki = load(dir.path(), &[]).unwrap();
    let config = pki.server_config().unwrap();
    let old_admin = pki.admin();
    assert!(!pki.renew().unwrap(), "all is new");
    let lives = |pki: &Pki| {
        [pki.serving.validity(), pki.node_client.validity()].map(|life| life.unwrap().until)
    };
    let before = lives(&pki);
    tokio::time::advance(LEAF_LIFETIME - LEAF_RENEWAL + DAY).await;
    assert!(pki.renew().unwrap(), "the kubeconfig is another one");
    assert!(lives(&pki).iter().zip(before).all(|(now, before)| *now > before));
    let seen = handshake_with(config.clone(), &pki, Some(&old_admin), "localhost");
    assert_eq!(seen.unwrap().unwrap().name, ADMIN, "the old one until its end");
    tokio::time::advance(LEAF_RENEWAL).await;
    assert!(handshake_with(config.clone(), &pki, Some(&old_admin), "localhost").is_err());
    let seen = handshake_with(config, &pki, Some(&pki.admin()), "localhost");
    assert_eq!(seen.unwrap().unwrap().name, ADMIN);
}
