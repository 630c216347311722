//! What a node has to show, and how it stays good: both certificates are replaced while the node runs,
//! without a restart (C-148 to C-150).
//!
//!     due ──▶ CSR with what is still good ──▶ files ──▶ client and endpoint take the new one

use super::{JoinError, client_certificate, kubeconfig_text, serving_certificate, write};
use client::{Client, Renewable};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tls::{Shown, Validity};
use tokio::time::sleep;

/// A server that does not answer is asked again after this long.
const ANSWER_AGAIN: Duration = Duration::from_secs(1);

pub struct Credentials {
    /// As `system:node:<name>`.
    pub client: Client,
    /// What the endpoint shows.
    pub serving: Arc<Shown>,
    /// The cluster's authority in PEM.
    pub ca: String,
    whose: Whose,
    own: Option<Own>,
}

/// The node, as its certificates name it, and where they are kept.
pub(super) struct Whose {
    pub(super) name: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) dir: PathBuf,
}

/// A kubeconfig that is ours to rewrite.
pub(super) struct Own {
    pub(super) server: String,
    pub(super) kubeconfig: PathBuf,
    pub(super) renewable: Renewable,
}

impl Credentials {
    /// With a serving certificate for the addresses of today. A node that has joined waits for its
    /// server: it may be that it is just the network, or that both were restarted.
    pub(super) async fn complete(
        client: Client,
        ca: String,
        whose: Whose,
        own: Option<Own>,
    ) -> Result<Credentials, JoinError> {
        let (key, certificate) = loop {
            match serving(&client, &whose).await {
                Err(JoinError::Api(error)) if own.is_some() && error.status().is_none() => {
                    tracing::warn!("no answer yet: {}", Chain(error.into()));
                    sleep(ANSWER_AGAIN).await;
                }
                asked => break asked?,
            }
        };
        let serving = Shown::new(&certificate, &key)?;
        Ok(Credentials { client, serving, ca, whose, own })
    }

    /// Replaces both certificates whenever they are due, for as long as this is polled.
    pub async fn renewing(self) {
        let serving = tls::keep("node's serving", self.serving.life(), || self.renew_serving());
        let client = async {
            if let Some(own) = &self.own
                && let Some(life) = own.life().await
            {
                tls::keep("node's client", life, || self.renew_client(own)).await;
            }
        };
        tokio::join!(serving, client);
    }

    async fn renew_serving(&self) -> Result<Validity, Chain> {
        let (key, certificate) = serving(&self.client, &self.whose).await?;
        self.serving.replace(&certificate, &key)?;
        Ok(self.serving.life())
    }

    async fn renew_client(&self, own: &Own) -> Result<Validity, Chain> {
        let (key, certificate) = client_certificate(&self.client, &self.whose.name).await?;
        let life = Validity::of_pem(&certificate)?;
        let text = kubeconfig_text(&own.server, &self.ca, &certificate, &key);
        write(&own.kubeconfig, text.as_bytes())?;
        own.renewable.reload().await?;
        Ok(life)
    }
}

impl Own {
    async fn life(&self) -> Option<Validity> {
        let trust = client::trust_of(&self.kubeconfig).await.ok()?;
        Validity::of_pem(&trust.certificate?).ok()
    }
}

/// Asks for a serving certificate and keeps it. Answers (key, certificate).
async fn serving(client: &Client, whose: &Whose) -> Result<(String, String), JoinError> {
    let (key, certificate) = serving_certificate(client, &whose.name, &whose.addresses).await?;
    write(&whose.dir.join("serving.key"), key.as_bytes())?;
    write(&whose.dir.join("serving.crt"), certificate.as_bytes())?;
    Ok((key, certificate))
}

/// An error with what caused it, for the log.
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
    use server::authn::User;
    use std::path::Path;
    use std::time::Duration;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    async fn server(dir: &Path) -> server::Running {
        let config = server::Config {
            data_dir: dir.to_owned(),
            listen: ([127, 0, 0, 1], 0).into(),
            store: server::StoreChoice::Embedded,
            audit_log: None,
            controllers: true,
        };
        server::start(config).await.unwrap()
    }

    async fn life_in(kubeconfig: &Path) -> Validity {
        let trust = client::trust_of(kubeconfig).await.unwrap();
        Validity::of_pem(&trust.certificate.unwrap()).unwrap()
    }

    /// Until it is so; the clock moves by itself while nobody works.
    async fn wait<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        for _ in 0..600 {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("not within a minute: {what}");
    }

    /// C-148, C-149, C-150: a node that runs for longer than its certificates live always has good
    /// ones, for both roles, and asks for them as itself.
    #[tokio::test(start_paused = true)]
    async fn a_node_outlives_its_certificates() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 3);
        let dir = tempfile::tempdir().unwrap();
        let running = server(&dir.path().join("server")).await;
        let node = User::authenticated("system:node:n1", &["system:nodes"]);
        let client = Client::in_process(running.server.door(node));
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let own: Node = serde_json::from_value(serde_json::json!({"metadata": {"name": "n1"},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}}))
        .unwrap();
        client.create(&own).await.unwrap();
        let made = running.node_credentials("n1", &[]).unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        write(&kubeconfig, made.kubeconfig.as_bytes()).unwrap();
        let (_, renewable) = Client::renewable(&kubeconfig).await.unwrap();
        let whose = Whose { name: "n1".into(), addresses: vec![address], dir: dir.path().into() };
        let server = format!("https://{}", running.address);
        let own = Own { server, kubeconfig: kubeconfig.clone(), renewable };
        let ca = made.ca_certificate.clone();
        let complete = Credentials::complete(client.clone(), ca, whose, Some(own)).await;
        let credentials = complete.unwrap();
        let shown = credentials.serving.clone();
        let renewing = tokio::spawn(credentials.renewing());
        let (mut serving, mut calling) = (shown.life(), life_in(&kubeconfig).await);
        for _ in 0..3 {
            // In the middle of the window's end and the end of the certificate.
            tokio::time::advance(365 * DAY * 95 / 100).await;
            serving = wait("another serving certificate", async || {
                Some(shown.life()).filter(|life| *life != serving)
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
        running.stop().await;
    }

    /// C-148: on the API server's own machine a person has to say yes, and may take their time.
    #[tokio::test(start_paused = true)]
    async fn a_node_waits_for_the_person_who_approves_its_certificate() {
        clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 3);
        let dir = tempfile::tempdir().unwrap();
        let running = server(&dir.path().join("server")).await;
        let user = |name: &str, group: &str| {
            Client::in_process(running.server.door(User::authenticated(name, &[group])))
        };
        let (node, admin) = (user("system:node:n1", "system:nodes"), user("a", "system:masters"));
        let here = [running.address.ip()];
        let asking = tokio::spawn(async move { serving_certificate(&node, "n1", &here).await });
        tokio::time::sleep(Duration::from_secs(10 * 60)).await;
        let all = client::Selection::default();
        let mut all = admin.list::<CertificateSigningRequest>(&all).await.unwrap();
        assert_eq!(all.len(), 1);
        let condition =
            serde_json::json!({"type": "Approved", "status": "True", "reason": "ByHand"});
        let status = serde_json::json!({"conditions": [condition]});
        all[0].status = Some(serde_json::from_value(status).unwrap());
        admin.update_subresource(&all[0], "approval").await.unwrap();
        let (_, certificate) = asking.await.unwrap().unwrap();
        assert!(!Validity::of_pem(&certificate).unwrap().has_ended(clock::now()));
        running.stop().await;
    }
}
