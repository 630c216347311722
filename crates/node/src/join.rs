//! How a node gets its credentials: a token once, then certificates of its own.
//!
//!     token ──▶ CSR kube-apiserver-client-kubelet ──▶ client certificate (system:node:<name>)
//!                         client certificate ──▶ CSR kubelet-serving ──▶ serving certificate
//!
//! Whom to trust is in the token: its third part is the fingerprint of the cluster's authority, which
//! the server shows in its chain. Everything is kept in the data directory, so a second start needs
//! no token, and nobody's approval either. [`Credentials::renewing`] replaces both certificates before
//! they end.

mod authority;
mod credentials;

pub use authority::fingerprint;
pub use credentials::Credentials;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use client::{Client, ObjectKey};
use credentials::{Own, Whose};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde_json::json;
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// A person may have to approve it. Upstream: `certificateWaitTimeout` of client-go's certificate
/// manager.
const SIGNED_WITHIN: Duration = Duration::from_secs(15 * 60);
/// What needs nobody's say is signed sooner.
const SAID_AFTER: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_millis(200);

pub struct Join<'a> {
    /// `https://host:port`
    pub server: &'a str,
    /// `id.secret`, or `id.secret.fingerprint`.
    pub token: &'a str,
    /// The cluster's authority in PEM, if it is known.
    pub ca: Option<String>,
    pub name: &'a str,
    /// By which the API server will reach this node.
    pub addresses: &'a [IpAddr],
    /// Where credentials are kept.
    pub dir: &'a Path,
}

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("{0}")]
    Refused(String),
    #[error("the API server did not accept the request")]
    Api(#[from] client::Error),
    #[error("cannot write {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the certificate cannot be used")]
    Tls(#[from] tls::Error),
}

/// Asks for what is missing, or has ended.
pub async fn join(join: Join<'_>) -> Result<Credentials, JoinError> {
    let path = |name: &str| join.dir.join(name);
    private_dir(join.dir)?;
    let kubeconfig = path("kubeconfig");
    let (token, fingerprint) = split(join.token)?;
    let ca = match (&join.ca, std::fs::read_to_string(path("ca.crt"))) {
        (Some(ca), _) => ca.clone(),
        (None, Ok(ca)) => ca,
        (None, Err(_)) => authority::fetch(join.server, fingerprint).await?,
    };
    let whose =
        Whose { name: join.name.into(), addresses: join.addresses.to_vec(), dir: join.dir.into() };
    if !is_good(&kubeconfig).await {
        write(&path("ca.crt"), ca.as_bytes())?;
        let client = Client::connect(join.server, token, Some(&ca)).await?;
        let asked = client_certificate(&client, join.name).await;
        let (key, certificate) = asked.map_err(|error| not_known(join.server, error))?;
        let text = kubeconfig_text(join.server, &ca, &certificate, &key);
        write(&kubeconfig, text.as_bytes())?;
    }
    let (client, renewable) = Client::renewable(&kubeconfig).await?;
    let own = Own { server: join.server.into(), kubeconfig, renewable };
    Credentials::complete(client, ca, whose, Some(own)).await
}

/// With a kubeconfig that somebody made for this node: only the serving certificate is missing, and
/// only that is ours to renew.
pub async fn serve_as(
    kubeconfig: &Path,
    name: &str,
    addresses: &[IpAddr],
    dir: &Path,
) -> Result<Credentials, JoinError> {
    private_dir(dir)?;
    let client = Client::from_kubeconfig(kubeconfig).await?;
    let ca = client::trust_of(kubeconfig).await?.ca.ok_or_else(|| {
        let why = format!("{} does not say whom to trust", kubeconfig.display());
        JoinError::Refused(why)
    })?;
    let whose = Whose { name: name.into(), addresses: addresses.to_vec(), dir: dir.into() };
    Credentials::complete(client, ca, whose, None).await
}

/// Whether there is a certificate that has not ended.
async fn is_good(kubeconfig: &Path) -> bool {
    let shown = match kubeconfig.exists() {
        true => client::trust_of(kubeconfig).await.ok().and_then(|trust| trust.certificate),
        false => None,
    };
    let life = shown.and_then(|pem| tls::Validity::of_pem(&pem).ok());
    life.is_some_and(|life| !life.has_ended(clock::now()))
}

fn private_dir(dir: &Path) -> Result<(), JoinError> {
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)))
        .map_err(|source| JoinError::File { path: dir.to_owned(), source })
}

/// The token itself, and the fingerprint it may carry.
fn split(token: &str) -> Result<(&str, Option<&str>), JoinError> {
    let shape = || {
        let why = "a join token looks like `abcdef.0123456789abcdef.FINGERPRINT`; make one with \
                   `landfall token create` where the API server runs";
        JoinError::Refused(why.into())
    };
    let mut dots = token.match_indices('.').map(|(at, _)| at);
    dots.next().ok_or_else(shape)?;
    match dots.next() {
        Some(at) => Ok((&token[..at], Some(&token[at + 1..]))),
        None => Ok((token, None)),
    }
}

/// 401 says only that a credential is not good; here it is known which.
fn not_known(server: &str, error: JoinError) -> JoinError {
    match error {
        JoinError::Api(error) if error.status().is_some_and(|status| status.code == 401) => {
            JoinError::Refused(format!(
                "{server} does not accept the token: it is mistyped, has expired or was removed; \
                 make a new one with `landfall token create` where the API server runs"
            ))
        }
        error => error,
    }
}

async fn client_certificate(client: &Client, name: &str) -> Result<(String, String), JoinError> {
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    ask(client, name, &[], signer, "client auth").await?.answered(client).await
}

async fn ask_for_serving(
    client: &Client,
    name: &str,
    addresses: &[IpAddr],
) -> Result<Asked, JoinError> {
    tell_addresses(client, name, addresses).await?;
    ask(client, name, addresses, "kubernetes.io/kubelet-serving", "server auth").await
}

/// A machine may have moved since its Node was written, and a node gets a certificate only for the
/// addresses that its Node has. The agent fills in the rest later.
async fn tell_addresses(
    client: &Client,
    name: &str,
    addresses: &[IpAddr],
) -> Result<(), JoinError> {
    let key = ObjectKey::cluster(name);
    let Some(node) = client.find::<Node>(&key).await? else { return Ok(()) };
    let known = node.status.and_then(|status| status.addresses).unwrap_or_default();
    let has = |ip: &IpAddr| known.iter().any(|known| known.address == ip.to_string());
    if !addresses.iter().all(has) {
        // Not merged by their type: a node may have two of one.
        let mut all = vec![json!({"$patch": "replace"})];
        all.extend(addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})));
        all.push(json!({"type": "Hostname", "address": name}));
        client.patch_status::<Node>(&key, &json!({"status": {"addresses": all}})).await?;
    }
    Ok(())
}

/// A request for a certificate that was made, and the key that it is for.
struct Asked {
    key: String,
    request: String,
    signer: &'static str,
}

/// Makes a key, and asks for a certificate of the node's name.
async fn ask(
    client: &Client,
    name: &str,
    addresses: &[IpAddr],
    signer: &'static str,
    usage: &str,
) -> Result<Asked, JoinError> {
    let (key, request) = request(name, addresses, signer.ends_with("serving"))
        .map_err(|error| JoinError::Refused(format!("no key could be made: {error}")))?;
    let asked = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".into()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: signer.into(),
            usages: Some(vec!["digital signature".into(), usage.into()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let asked = client.create(&asked).await?;
    Ok(Asked { key, request: asked.metadata.name.unwrap_or_default(), signer })
}

impl Asked {
    /// Answers (key, certificate).
    async fn answered(&self, client: &Client) -> Result<(String, String), JoinError> {
        match self.at_once(client).await {
            Some(answer) => answer,
            None => self.by_a_person(client).await,
        }
    }

    /// None: a person has to say yes, and is told how.
    async fn at_once(&self, client: &Client) -> Option<Result<(String, String), JoinError>> {
        match timeout(SAID_AFTER, self.answer(client)).await {
            Ok(answer) => Some(answer),
            Err(_) => {
                let (signer, how) = (self.signer, self.how());
                tracing::warn!(signer, "a person has to approve this node's certificate: {how}");
                None
            }
        }
    }

    async fn by_a_person(&self, client: &Client) -> Result<(String, String), JoinError> {
        timeout(SIGNED_WITHIN, self.answer(client)).await.map_err(|_| {
            let (request, signer, how) = (&self.request, self.signer, self.how());
            let nobody = format!("nobody approved the request {request} ({signer}) with `{how}`");
            JoinError::Refused(nobody)
        })?
    }

    async fn answer(&self, client: &Client) -> Result<(String, String), JoinError> {
        Ok((self.key.clone(), answer(client, &self.request).await?))
    }

    fn how(&self) -> String {
        format!("kubectl certificate approve {}", self.request)
    }
}

/// For as long as it takes; the caller knows how long that may be.
async fn answer(client: &Client, request: &str) -> Result<String, JoinError> {
    let key = ObjectKey::cluster(request);
    loop {
        let request = match client.get::<CertificateSigningRequest>(&key).await {
            Ok(request) => request,
            Err(error) if may_pass(&error) => {
                tracing::debug!(%error, "the request for a certificate cannot be read now");
                tokio::time::sleep(ASK_AGAIN).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let status = request.status.unwrap_or_default();
        if let Some(certificate) = status.certificate {
            return String::from_utf8(certificate.0)
                .map_err(|_| JoinError::Refused("the certificate is not PEM".into()));
        }
        let no = status.conditions.into_iter().flatten().find(|c| c.type_ != "Approved");
        if let Some(no) = no {
            let why = no.message.unwrap_or_default();
            return Err(JoinError::Refused(format!("the certificate was refused: {why}")));
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// The server is away, restarts or is busy: whoever waits for a person goes on waiting.
fn may_pass(error: &client::Error) -> bool {
    error.status().is_none_or(|status| status.code == 429 || status.code >= 500)
}

/// A fresh key, and a request for `system:node:<name>` in `system:nodes`.
fn request(
    name: &str,
    addresses: &[IpAddr],
    serving: bool,
) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{name}"));
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    if serving {
        params.subject_alt_names.push(SanType::DnsName(name.try_into()?));
        params.subject_alt_names.extend(addresses.iter().map(|ip| SanType::IpAddress(*ip)));
    }
    let request = params.serialize_request(&key)?.pem()?;
    Ok((key.serialize_pem(), request))
}

fn kubeconfig_text(server: &str, ca: &str, certificate: &str, key: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "landfall", "cluster": {
            "server": server, "certificate-authority-data": BASE64.encode(ca)}}],
        "users": [{"name": "node", "user": {
            "client-certificate-data": BASE64.encode(certificate),
            "client-key-data": BASE64.encode(key)}}],
        "contexts": [{"name": "node", "context": {"cluster": "landfall", "user": "node"}}],
        "current-context": "node",
    });
    // JSON is YAML.
    format!("{config:#}\n")
}

/// Secrets: for us alone, whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<(), JoinError> {
    let new = path.with_extension("new");
    let written = || {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&new)?;
        std::io::Write::write_all(&mut file, bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    written().map_err(|source| JoinError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_carry_a_fingerprint() {
        assert_eq!(split("a.b").unwrap(), ("a.b", None));
        assert_eq!(split("a.b.c").unwrap(), ("a.b", Some("c")));
        assert!(split("ab").unwrap_err().to_string().contains("landfall token create"));
    }

    /// Answers these, one after the other.
    fn saying(answers: Vec<(u16, serde_json::Value)>) -> Client {
        let mut answers = answers.into_iter();
        Client::in_process(tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let answer = answers.next().map(|(code, said)| {
                let body = http_body_util::Full::new(bytes::Bytes::from(said.to_string()));
                http::Response::builder().status(code).body(body).unwrap()
            });
            std::future::ready(answer.ok_or("nobody is there"))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_certificate_outlives_a_server_that_restarts() {
        let refused = |code: u16| {
            let said = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": "x", "code": code});
            (code, said)
        };
        let csr = |status: serde_json::Value| {
            let spec = json!({"request": "", "signerName": "s"});
            (200, json!({"metadata": {"name": "a"}, "spec": spec, "status": status}))
        };
        let signed = csr(json!({"certificate": BASE64.encode("PEM")}));
        let odd = (200, json!("half an ans"));
        let told = [csr(json!({})), refused(503), odd, refused(429), refused(500), signed];
        assert_eq!(answer(&saying(told.into()), "a").await.unwrap(), "PEM");
        for code in [401, 403, 404] {
            let told = saying(vec![csr(json!({})), refused(code)]);
            assert!(matches!(answer(&told, "a").await, Err(JoinError::Api(_))), "{code}");
        }
        let gone = timeout(SIGNED_WITHIN, answer(&saying(Vec::new()), "a")).await;
        assert!(gone.is_err(), "the caller decides for how long");
    }

    #[test]
    fn a_request_names_the_node_and_where_it_serves() {
        let (_, pem) = request("n1", &["10.0.0.1".parse().unwrap()], true).unwrap();
        let request = rcgen::CertificateSigningRequestParams::from_pem(&pem).unwrap();
        assert_eq!(request.params.subject_alt_names.len(), 2);
        let name = request.params.distinguished_name.get(&DnType::CommonName);
        assert_eq!(name, Some(&rcgen::DnValue::Utf8String("system:node:n1".into())));
    }
}
