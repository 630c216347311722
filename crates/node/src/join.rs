//! How a node gets its credentials: with a token once, then with its own certificates.
//!
//!     token ──▶ CSR kube-apiserver-client-kubelet ──▶ client certificate (system:node:<name>)
//!                         client certificate ──▶ CSR kubelet-serving ──▶ serving certificate
//!
//! The third part of a token is the fingerprint of the cluster's authority, which the server sends
//! in its certificate chain. All credentials are kept in the data directory, so that a second start
//! needs no token and no approval. [`Credentials::renewing`] replaces both certificates before they
//! expire.

mod authority;
mod credentials;

pub use authority::fingerprint;
pub use credentials::Credentials;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use client::{Client, ObjectKey};
use credentials::{NodeIdentity, OwnKubeconfig};
use futures::future::BoxFuture;
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

/// How long to wait for a certificate that a person must approve. Upstream:
/// `certificateWaitTimeout` of client-go's certificate manager.
const APPROVAL_MAX: Duration = Duration::from_secs(15 * 60);
/// A certificate that needs no approval is signed sooner than this.
const AUTOMATIC_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(200);
/// How often a first request without a response is repeated.
const RETRIES: usize = 5;

pub struct Join<'a> {
    /// `https://host:port`
    pub server: &'a str,
    /// `id.secret`, or `id.secret.fingerprint`.
    pub token: &'a str,
    /// The cluster's authority in PEM, if known.
    pub ca: Option<String>,
    pub name: &'a str,
    /// Addresses by which the API server reaches this node.
    pub addresses: &'a [IpAddr],
    /// The directory that keeps the credentials.
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

/// Requests the certificates that are missing or have expired. Boxed like [`start`](crate::start).
pub fn join(join: Join<'_>) -> BoxFuture<'_, Result<Credentials, JoinError>> {
    Box::pin(request_missing(join))
}

async fn request_missing(join: Join<'_>) -> Result<Credentials, JoinError> {
    let path = |name: &str| join.dir.join(name);
    private_dir(join.dir)?;
    let kubeconfig = path("kubeconfig");
    let (token, fingerprint) = split(join.token)?;
    let ca = match (&join.ca, std::fs::read_to_string(path("ca.crt"))) {
        (Some(ca), _) => ca.clone(),
        (None, Ok(ca)) => ca,
        (None, Err(_)) => authority::fetch(join.server, fingerprint).await?,
    };
    let identity = NodeIdentity {
        name: join.name.into(),
        addresses: join.addresses.to_vec(),
        dir: join.dir.into(),
    };
    if !has_valid_certificate(&kubeconfig).await {
        write(&path("ca.crt"), ca.as_bytes())?;
        let client =
            Client::connect(join.server, token, Some(&ca)).await?.named(crate::agent::NAME);
        let signed = first_certificate(&client, join.name).await;
        let (key, certificate) = signed.map_err(|error| explain_401(join.server, error))?;
        let text = kubeconfig_text(join.server, &ca, &certificate, &key);
        write(&kubeconfig, text.as_bytes())?;
    }
    let (client, renewable) = Client::renewable(&kubeconfig).await?;
    let client = client.named(crate::agent::NAME);
    let own = OwnKubeconfig { server: join.server.into(), kubeconfig, renewable };
    Credentials::complete(client, ca, identity, Some(own)).await
}

/// For a node with an existing kubeconfig: requests and renews only the serving certificate.
pub async fn serve_as(
    kubeconfig: &Path,
    name: &str,
    addresses: &[IpAddr],
    dir: &Path,
) -> Result<Credentials, JoinError> {
    private_dir(dir)?;
    let client = Client::from_kubeconfig(kubeconfig).await?.named(crate::agent::NAME);
    let ca = client::read_certificates(kubeconfig).await?.ca.ok_or_else(|| {
        let why = format!("{} does not contain a certificate authority", kubeconfig.display());
        JoinError::Refused(why)
    })?;
    let identity =
        NodeIdentity { name: name.into(), addresses: addresses.to_vec(), dir: dir.into() };
    Credentials::complete(client, ca, identity, None).await
}

/// Whether the kubeconfig has a certificate that has not expired.
async fn has_valid_certificate(kubeconfig: &Path) -> bool {
    let certificate = match kubeconfig.exists() {
        true => {
            client::read_certificates(kubeconfig).await.ok().and_then(|trust| trust.certificate)
        }
        false => None,
    };
    let life = certificate.and_then(|pem| tls::Validity::of_pem(&pem).ok());
    life.is_some_and(|life| !life.has_ended(clock::now()))
}

fn private_dir(dir: &Path) -> Result<(), JoinError> {
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)))
        .map_err(|source| JoinError::File { path: dir.to_owned(), source })
}

/// Splits a join token into the token itself and the optional fingerprint.
fn split(token: &str) -> Result<(&str, Option<&str>), JoinError> {
    let malformed = || {
        let why = "a join token looks like `abcdef.0123456789abcdef.FINGERPRINT`; make one with \
                   `landfall token create` where the API server runs";
        JoinError::Refused(why.into())
    };
    let mut dots = token.match_indices('.').map(|(at, _)| at);
    dots.next().ok_or_else(malformed)?;
    match dots.next() {
        Some(at) => Ok((&token[..at], Some(&token[at + 1..]))),
        None => Ok((token, None)),
    }
}

/// A 401 at this point means that the token was not accepted.
fn explain_401(server: &str, error: JoinError) -> JoinError {
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

/// Repeats a request without a response: the connection may have failed before the server's reason arrived.
async fn first_certificate(client: &Client, name: &str) -> Result<(String, String), JoinError> {
    let mut failures = 0;
    loop {
        match client_certificate(client, name).await {
            Err(JoinError::Api(error)) if error.status().is_none() && failures < RETRIES => {
                failures += 1;
                tracing::debug!(%error, "requesting a certificate failed; trying again");
                tokio::time::sleep(POLL).await;
            }
            done => return done,
        }
    }
}

async fn client_certificate(client: &Client, name: &str) -> Result<(String, String), JoinError> {
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    create_request(client, name, &[], signer, "client auth").await?.certificate(client).await
}

async fn request_serving(
    client: &Client,
    name: &str,
    addresses: &[IpAddr],
) -> Result<PendingRequest, JoinError> {
    update_addresses(client, name, addresses).await?;
    create_request(client, name, addresses, "kubernetes.io/kubelet-serving", "server auth").await
}

/// Writes the addresses into the Node if they have changed: a node gets a certificate only for
/// addresses of its Node. The agent updates the rest of the status later.
async fn update_addresses(
    client: &Client,
    name: &str,
    addresses: &[IpAddr],
) -> Result<(), JoinError> {
    let key = ObjectKey::cluster(name);
    let Some(node) = client.find::<Node>(&key).await? else { return Ok(()) };
    let known = node.status.and_then(|status| status.addresses).unwrap_or_default();
    let has = |ip: &IpAddr| known.iter().any(|known| known.address == ip.to_string());
    if !addresses.iter().all(has) {
        // Replace the list instead of merging it by type: a node may have two addresses of one type.
        let mut all = vec![json!({"$patch": "replace"})];
        all.extend(addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})));
        all.push(json!({"type": "Hostname", "address": name}));
        client.patch_status::<Node>(&key, &json!({"status": {"addresses": all}})).await?;
    }
    Ok(())
}

/// A CertificateSigningRequest and the key that it is for.
struct PendingRequest {
    key: String,
    request: String,
    signer: &'static str,
}

/// Creates a key and a CertificateSigningRequest for the node's name.
async fn create_request(
    client: &Client,
    name: &str,
    addresses: &[IpAddr],
    signer: &'static str,
    usage: &str,
) -> Result<PendingRequest, JoinError> {
    let (key, request) = request(name, addresses, signer.ends_with("serving"))
        .map_err(|error| JoinError::Refused(format!("creating a key failed: {error}")))?;
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".into()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: signer.into(),
            usages: Some(vec!["digital signature".into(), usage.into()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let csr = client.create(&csr).await?;
    Ok(PendingRequest { key, request: csr.metadata.name.unwrap_or_default(), signer })
}

impl PendingRequest {
    /// Waits for the signed certificate. Returns the key and the certificate.
    async fn certificate(&self, client: &Client) -> Result<(String, String), JoinError> {
        match self.wait_briefly(client).await {
            Some(signed) => signed,
            None => self.wait_for_approval(client).await,
        }
    }

    /// None if a person must approve the request; logs how.
    async fn wait_briefly(&self, client: &Client) -> Option<Result<(String, String), JoinError>> {
        match timeout(AUTOMATIC_MAX, self.wait(client)).await {
            Ok(signed) => Some(signed),
            Err(_) => {
                let (signer, command) = (self.signer, self.approve_command());
                tracing::warn!(signer, "approve the certificate of this node with: {command}");
                None
            }
        }
    }

    async fn wait_for_approval(&self, client: &Client) -> Result<(String, String), JoinError> {
        timeout(APPROVAL_MAX, self.wait(client)).await.map_err(|_| {
            let (request, signer) = (&self.request, self.signer);
            let command = self.approve_command();
            let why = format!(
                "the request {request} ({signer}) was not approved; approve it with `{command}`"
            );
            JoinError::Refused(why)
        })?
    }

    async fn wait(&self, client: &Client) -> Result<(String, String), JoinError> {
        Ok((self.key.clone(), wait_for_certificate(client, &self.request).await?))
    }

    fn approve_command(&self) -> String {
        format!("kubectl certificate approve {}", self.request)
    }
}

/// Polls without a time limit; the caller sets one.
async fn wait_for_certificate(client: &Client, request: &str) -> Result<String, JoinError> {
    let key = ObjectKey::cluster(request);
    loop {
        let request = match client.get::<CertificateSigningRequest>(&key).await {
            Ok(request) => request,
            Err(error) if is_transient(&error) => {
                tracing::debug!(%error, "reading the CertificateSigningRequest failed; trying again");
                tokio::time::sleep(POLL).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let status = request.status.unwrap_or_default();
        if let Some(certificate) = status.certificate {
            return String::from_utf8(certificate.0)
                .map_err(|_| JoinError::Refused("the certificate is not PEM".into()));
        }
        let denied = status.conditions.into_iter().flatten().find(|c| c.type_ != "Approved");
        if let Some(denied) = denied {
            let why = denied.message.unwrap_or_default();
            return Err(JoinError::Refused(format!(
                "the request for a certificate was denied: {why}"
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The server is unreachable, restarts or is busy: keep waiting.
fn is_transient(error: &client::Error) -> bool {
    error.status().is_none_or(|status| status.code == 429 || status.code >= 500)
}

/// Creates a key and a PKCS #10 request for `system:node:<name>` in `system:nodes`.
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

/// Writes a file that only this user may read, atomically.
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
    fn a_token_may_have_a_fingerprint() {
        assert_eq!(split("a.b").unwrap(), ("a.b", None));
        assert_eq!(split("a.b.c").unwrap(), ("a.b", Some("c")));
        assert!(split("ab").unwrap_err().to_string().contains("landfall token create"));
    }

    /// A client that gets these responses, one after the other.
    fn responding(responses: Vec<(u16, serde_json::Value)>) -> Client {
        let mut responses = responses.into_iter();
        Client::in_process(tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let response = responses.next().map(|(code, body)| {
                let body = http_body_util::Full::new(bytes::Bytes::from(body.to_string()));
                http::Response::builder().status(code).body(body).unwrap()
            });
            std::future::ready(response.ok_or("no connection"))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_certificate_survives_a_restart_of_the_server() {
        let refused = |code: u16| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": "x", "code": code});
            (code, status)
        };
        let csr = |status: serde_json::Value| {
            let spec = json!({"request": "", "signerName": "s"});
            (200, json!({"metadata": {"name": "a"}, "spec": spec, "status": status}))
        };
        let signed = csr(json!({"certificate": BASE64.encode("PEM")}));
        let malformed = (200, json!("half a resp"));
        let responses =
            [csr(json!({})), refused(503), malformed, refused(429), refused(500), signed];
        assert_eq!(wait_for_certificate(&responding(responses.into()), "a").await.unwrap(), "PEM");
        for code in [401, 403, 404] {
            let client = responding(vec![csr(json!({})), refused(code)]);
            assert!(
                matches!(wait_for_certificate(&client, "a").await, Err(JoinError::Api(_))),
                "{code}"
            );
        }
        let gone = timeout(APPROVAL_MAX, wait_for_certificate(&responding(Vec::new()), "a")).await;
        assert!(gone.is_err(), "only the caller limits the time");
    }

    #[test]
    fn a_request_contains_the_name_and_addresses_of_the_node() {
        let (_, pem) = request("n1", &["10.0.0.1".parse().unwrap()], true).unwrap();
        let request = rcgen::CertificateSigningRequestParams::from_pem(&pem).unwrap();
        assert_eq!(request.params.subject_alt_names.len(), 2);
        let name = request.params.distinguished_name.get(&DnType::CommonName);
        assert_eq!(name, Some(&rcgen::DnValue::Utf8String("system:node:n1".into())));
    }
}
