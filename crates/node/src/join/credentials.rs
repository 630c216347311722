//! The credentials of a node and their renewal: both certificates are replaced while the node runs
//! (C-148 to C-150).
//!
//!     due ──▶ CSR with the valid certificate ──▶ files ──▶ client and endpoint use the new one
//!
//! When an agent starts, it uses the certificates in the files. If they are no longer valid, it
//! requests new ones but waits only briefly, because a person may have to approve them (C-148) and
//! pods need their agent more than its endpoint. Until then the endpoint rejects every handshake,
//! as a kubelet does.

use super::{
    JoinError, PendingRequest, client_certificate, kubeconfig_text, request_serving, write,
};
use client::{Client, Renewable};
use futures::future::BoxFuture;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tls::{RenewableCertificate, Validity};
use tokio::time::sleep;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Interval of requests to a server that does not answer.
const RETRY: Duration = Duration::from_secs(1);

pub struct Credentials {
    /// As `system:node:<name>`.
    pub client: Client,
    /// The certificate that the endpoint presents.
    pub serving: Arc<RenewableCertificate>,
    /// The cluster's authority in PEM.
    pub ca: String,
    identity: NodeIdentity,
    own: Option<OwnKubeconfig>,
    /// The request for a serving certificate that waits for approval.
    pending: Option<PendingRequest>,
}

/// Name and addresses of the node in its certificates, and the directory of their files.
pub(super) struct NodeIdentity {
    pub(super) name: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) dir: PathBuf,
}

/// A kubeconfig that this agent wrote and renews.
pub(super) struct OwnKubeconfig {
    pub(super) server: String,
    pub(super) kubeconfig: PathBuf,
    pub(super) renewable: Renewable,
}

impl Credentials {
    /// With the serving certificate of the last start, or one that was signed at once, or none yet.
    pub(super) async fn complete(
        client: Client,
        ca: String,
        identity: NodeIdentity,
        own: Option<OwnKubeconfig>,
    ) -> Result<Credentials, JoinError> {
        let kept = identity.kept(&ca);
        let mut credentials = Credentials {
            serving: kept.clone().unwrap_or_else(RenewableCertificate::empty),
            client,
            ca,
            identity,
            own,
            pending: None,
        };
        if kept.is_none() {
            let request = credentials.request_serving().await?;
            match request.wait_briefly(&credentials.client).await {
                Some(signed) => {
                    credentials.install(signed?)?;
                }
                None => credentials.pending = Some(request),
            }
        }
        Ok(credentials)
    }

    /// A node that has joined before retries until its server answers: the network may be down, or
    /// both may have been restarted.
    async fn request_serving(&self) -> Result<PendingRequest, JoinError> {
        loop {
            match self.identity.request_serving(&self.client).await {
                Err(JoinError::Api(error)) if self.own.is_some() && error.status().is_none() => {
                    tracing::warn!(
                        "the API server does not answer; trying again: {}",
                        Chain(error.into())
                    );
                    sleep(RETRY).await;
                }
                requested => return requested,
            }
        }
    }

    /// Replaces both certificates whenever they are due, until the future is dropped. Boxed like
    /// [`start`](crate::start).
    pub fn renewing(self) -> BoxFuture<'static, ()> {
        Box::pin(self.renew_when_due())
    }

    async fn renew_when_due(self) {
        let serving = async {
            if let Some(request) = &self.pending
                && let Err(why) = self.wait_for_approval(request).await
            {
                tracing::warn!(%why, "this node has no serving certificate; logs, exec and metrics do not work");
            }
            tls::keep("node's serving", self.serving.validity(), || self.renew_serving()).await;
        };
        let client = async {
            if let Some(own) = &self.own
                && let life @ Some(_) = own.life().await
            {
                tls::keep("node's client", life, || self.renew_client(own)).await;
            }
        };
        tokio::join!(serving, client);
    }

    async fn renew_serving(&self) -> Result<Validity, Chain> {
        let request = self.identity.request_serving(&self.client).await?;
        Ok(self.install(request.certificate(&self.client).await?)?)
    }

    async fn wait_for_approval(&self, request: &PendingRequest) -> Result<Validity, Chain> {
        Ok(self.install(request.wait_for_approval(&self.client).await?)?)
    }

    /// Saves a serving certificate and presents it from now on.
    fn install(&self, (key, certificate): (String, String)) -> Result<Validity, JoinError> {
        write(&self.identity.key(), key.as_bytes())?;
        write(&self.identity.certificate(), certificate.as_bytes())?;
        Ok(self.serving.replace(&certificate, &key)?)
    }

    async fn renew_client(&self, own: &OwnKubeconfig) -> Result<Validity, Chain> {
        let (key, certificate) = client_certificate(&self.client, &self.identity.name).await?;
        let life = Validity::of_pem(&certificate)?;
        let text = kubeconfig_text(&own.server, &self.ca, &certificate, &key);
        write(&own.kubeconfig, text.as_bytes())?;
        own.renewable.reload().await?;
        Ok(life)
    }
}

impl OwnKubeconfig {
    async fn life(&self) -> Option<Validity> {
        let trust = client::read_certificates(&self.kubeconfig).await.ok()?;
        Validity::of_pem(&trust.certificate?).ok()
    }
}

impl NodeIdentity {
    fn key(&self) -> PathBuf {
        self.dir.join("serving.key")
    }

    fn certificate(&self) -> PathBuf {
        self.dir.join("serving.crt")
    }

    async fn request_serving(&self, client: &Client) -> Result<PendingRequest, JoinError> {
        request_serving(client, &self.name, &self.addresses).await
    }

    /// The certificate from before a restart, if it has not expired and is still for this node. It
    /// may be due for renewal, which then starts at once.
    fn kept(&self, ca: &str) -> Option<Arc<RenewableCertificate>> {
        let certificate = std::fs::read_to_string(self.certificate()).ok()?;
        let key = std::fs::read_to_string(self.key()).ok()?;
        let shown = RenewableCertificate::new(&certificate, &key).ok()?;
        let valid = shown.validity().is_some_and(|life| !life.has_ended(clock::now()))
            && self.is_for_us(&certificate, ca) == Some(true);
        valid.then_some(shown)
    }

    /// Whether it is signed by this authority for our name and all current addresses. None if it
    /// cannot be parsed.
    fn is_for_us(&self, certificate: &str, ca: &str) -> Option<bool> {
        let (chain, authorities) =
            (tls::certificates(certificate).ok()?, tls::certificates(ca).ok()?);
        let (_, leaf) = X509Certificate::from_der(chain.first()?).ok()?;
        let signed = authorities.iter().any(|authority| {
            X509Certificate::from_der(authority)
                .is_ok_and(|(_, by)| leaf.verify_signature(Some(by.public_key())).is_ok())
        });
        let names = &leaf.subject_alternative_name().ok()??.value.general_names;
        let named = names.contains(&GeneralName::DNSName(&self.name));
        let is_named = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => names.contains(&GeneralName::IPAddress(&ip.octets())),
            IpAddr::V6(ip) => names.contains(&GeneralName::IPAddress(&ip.octets())),
        };
        Some(signed && named && self.addresses.iter().all(is_named))
    }
}

/// An error with its causes, for the log.
struct Chain(JoinError);

impl<E: Into<JoinError>> From<E> for Chain {
    fn from(error: E) -> Chain {
        Chain(error.into())
    }
}

impl std::fmt::Display for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut error: &dyn std::error::Error = &self.0;
        write!(f, "{error}")?;
        while let Some(source) = error.source() {
            write!(f, ": {source}")?;
            error = source;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::ObjectKey;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
    use k8s_openapi::api::core::v1::Node;
    use std::path::Path;
    use std::time::Duration;
    use testbed::TestServer;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    async fn life_in(kubeconfig: &Path) -> Validity {
        let trust = client::read_certificates(kubeconfig).await.unwrap();
        Validity::of_pem(&trust.certificate.unwrap()).unwrap()
    }

    /// Polls until there is a value. The paused clock advances while all tasks wait.
    async fn wait<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
        for _ in 0..600 {
            if let Some(found) = poll().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("not within a minute: {what}");
    }

    /// C-148, C-149, C-150: a node that runs longer than its certificates are valid always has
    /// valid ones, for both roles, and requests them with its own identity.
    #[tokio::test(start_paused = true)]
    async fn certificates_are_renewed_before_they_expire() {
        clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 3);
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::with_controllers().await;
        let client = server.node("n1");
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let own: Node = typed::from_value(serde_json::json!({"metadata": {"name": "n1"},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}}))
        .unwrap();
        client.create(&own).await.unwrap();
        let issued = server.running.node_credentials("n1", &[]).unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        write(&kubeconfig, issued.kubeconfig.as_bytes()).unwrap();
        let (_, renewable) = Client::renewable(&kubeconfig).await.unwrap();
        let identity =
            NodeIdentity { name: "n1".into(), addresses: vec![address], dir: dir.path().into() };
        let url = format!("https://{}", server.running.address);
        let own = OwnKubeconfig { server: url, kubeconfig: kubeconfig.clone(), renewable };
        let ca = issued.ca_certificate.clone();
        let complete = Credentials::complete(client.clone(), ca, identity, Some(own)).await;
        let credentials = complete.unwrap();
        let shown = credentials.serving.clone();
        let renewing = tokio::spawn(credentials.renewing());
        let (mut serving, mut calling) = (shown.validity().unwrap(), life_in(&kubeconfig).await);
        for _ in 0..3 {
            // Between the end of the renewal window and the expiry of the certificate.
            tokio::time::advance(365 * DAY * 95 / 100).await;
            serving = wait("another serving certificate", async || {
                shown.validity().filter(|life| *life != serving)
            })
            .await;
            calling = wait("another client certificate", async || {
                Some(life_in(&kubeconfig).await).filter(|life| *life != calling)
            })
            .await;
            let now = clock::now();
            assert!(!serving.has_ended(now) && !calling.has_ended(now));
            let on_disk = std::fs::read_to_string(dir.path().join("serving.crt")).unwrap();
            assert_eq!(Validity::of_pem(&on_disk).unwrap(), serving);
        }
        assert!(client.find::<Node>(&ObjectKey::cluster("n1")).await.unwrap().is_some());
        renewing.abort();
        server.stop().await;
    }

    /// C-148: on the API server's own machine a person must approve the request, which may take a while.
    #[tokio::test(start_paused = true)]
    async fn a_node_starts_without_a_certificate_that_needs_approval_and_keeps_it_once_approved() {
        clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 3);
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::with_controllers().await;
        let (node, admin) = (server.node("n1"), server.admin());
        let ca = server.running.node_credentials("n1", &[]).unwrap().ca_certificate;
        let start = async |ca: &str, address: IpAddr| {
            let (name, dir) = ("n1".into(), dir.path().into());
            let identity = NodeIdentity { name, addresses: vec![address], dir };
            Credentials::complete(node.clone(), ca.into(), identity, None).await.unwrap()
        };
        let requests = async || {
            let all = client::Selection::default();
            admin.list::<CertificateSigningRequest>(&all).await.unwrap()
        };
        let (here, before) = (server.running.address.ip(), clock::now());
        let first = start(&ca, here).await;
        assert!(clock::now().duration_since(before).as_secs() < 10, "its pods do not wait");
        let shown = first.serving.clone();
        assert_eq!(shown.validity(), None);
        let renewing = tokio::spawn(first.renewing());
        tokio::time::sleep(Duration::from_secs(10 * 60)).await;
        let mut pending = requests().await;
        assert_eq!((pending.len(), shown.validity()), (1, None));
        let condition =
            serde_json::json!({"type": "Approved", "status": "True", "reason": "ByHand"});
        let status = serde_json::json!({"conditions": [condition]});
        pending[0].status = Some(serde_json::from_value(status).unwrap());
        admin.update_subresource(&pending[0], "approval").await.unwrap();
        let life = wait("the certificate", async || shown.validity()).await;
        renewing.abort();

        let again = start(&ca, here).await;
        assert_eq!(
            (again.serving.validity(), requests().await.len()),
            (Some(life), 1),
            "a restart"
        );
        let other = TestServer::with_controllers().await;
        let others = other.running.node_credentials("n1", &[]).unwrap().ca_certificate;
        let there: IpAddr = "10.0.0.9".parse().unwrap();
        for (what, ca, address, days) in [
            ("of another cluster", &others, here, 0),
            ("for an old address", &ca, there, 0),
            ("has expired", &ca, there, 366),
        ] {
            let count = requests().await.len();
            tokio::time::advance(days * DAY).await;
            assert_ne!(start(ca, address).await.serving.validity(), Some(life), "{what}");
            assert_eq!(requests().await.len(), count + 1, "{what}");
        }
        other.stop().await;
        server.stop().await;
    }
}
