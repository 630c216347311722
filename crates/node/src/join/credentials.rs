//! What a node has to show, and how it stays good: both certificates are replaced while the node runs,
//! without a restart (C-148 to C-150).
//!
//!     due ──▶ CSR with what is still good ──▶ files ──▶ client and endpoint take the new one
//!
//! An agent that starts takes what is in the files. If that is no longer good it asks, but waits only a
//! moment: pods need their agent more than its endpoint, and a person may have to say yes (C-148). Until
//! then the endpoint refuses every handshake, as a kubelet's does.

use super::{Asked, JoinError, ask_for_serving, client_certificate, kubeconfig_text, write};
use client::{Client, Renewable};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tls::{Shown, Validity};
use tokio::time::sleep;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

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
    /// A serving certificate for which nobody has said yes so far.
    asked: Option<Asked>,
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
    /// With the serving certificate of the last start, or one that was signed at once, or none so far.
    pub(super) async fn complete(
        client: Client,
        ca: String,
        whose: Whose,
        own: Option<Own>,
    ) -> Result<Credentials, JoinError> {
        let kept = whose.kept(&ca);
        let mut credentials = Credentials {
            serving: kept.clone().unwrap_or_else(Shown::nothing_yet),
            client,
            ca,
            whose,
            own,
            asked: None,
        };
        if kept.is_none() {
            let asked = credentials.ask_for_serving().await?;
            match asked.at_once(&credentials.client).await {
                Some(answer) => {
                    credentials.take(answer?)?;
                }
                None => credentials.asked = Some(asked),
            }
        }
        Ok(credentials)
    }

    /// A node that has joined waits for its server: it may be that it is just the network, or that both
    /// were restarted.
    async fn ask_for_serving(&self) -> Result<Asked, JoinError> {
        loop {
            match self.whose.ask_for_serving(&self.client).await {
                Err(JoinError::Api(error)) if self.own.is_some() && error.status().is_none() => {
                    tracing::warn!("no answer yet: {}", Chain(error.into()));
                    sleep(ANSWER_AGAIN).await;
                }
                asked => return asked,
            }
        }
    }

    /// Replaces both certificates whenever they are due, for as long as this is polled.
    pub async fn renewing(self) {
        let serving = async {
            if let Some(asked) = &self.asked
                && let Err(why) = self.approved(asked).await
            {
                tracing::warn!(%why, "this node has no serving certificate");
            }
            tls::keep("node's serving", self.serving.life(), || self.renew_serving()).await;
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
        let asked = self.whose.ask_for_serving(&self.client).await?;
        Ok(self.take(asked.answered(&self.client).await?)?)
    }

    async fn approved(&self, asked: &Asked) -> Result<Validity, Chain> {
        Ok(self.take(asked.by_a_person(&self.client).await?)?)
    }

    /// Keeps a serving certificate, and shows it from now on.
    fn take(&self, (key, certificate): (String, String)) -> Result<Validity, JoinError> {
        write(&self.whose.key(), key.as_bytes())?;
        write(&self.whose.certificate(), certificate.as_bytes())?;
        Ok(self.serving.replace(&certificate, &key)?)
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

impl Whose {
    fn key(&self) -> PathBuf {
        self.dir.join("serving.key")
    }

    fn certificate(&self) -> PathBuf {
        self.dir.join("serving.crt")
    }

    async fn ask_for_serving(&self, client: &Client) -> Result<Asked, JoinError> {
        ask_for_serving(client, &self.name, &self.addresses).await
    }

    /// What was shown before a restart, if it has not ended and still is for this node. One that is due is
    /// good enough: renewing it is begun at once.
    fn kept(&self, ca: &str) -> Option<Arc<Shown>> {
        let certificate = std::fs::read_to_string(self.certificate()).ok()?;
        let key = std::fs::read_to_string(self.key()).ok()?;
        let shown = Shown::new(&certificate, &key).ok()?;
        let good = shown.life().is_some_and(|life| !life.has_ended(clock::now()))
            && self.is_for_us(&certificate, ca) == Some(true);
        good.then_some(shown)
    }

    /// Signed by this authority, for our name and all addresses of today. None if it cannot be read.
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
        let own: Node = typed::from_value(serde_json::json!({"metadata": {"name": "n1"},
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
        let (mut serving, mut calling) = (shown.life().unwrap(), life_in(&kubeconfig).await);
        for _ in 0..3 {
            // In the middle of the window's end and the end of the certificate.
            tokio::time::advance(365 * DAY * 95 / 100).await;
            serving = wait("another serving certificate", async || {
                shown.life().filter(|life| *life != serving)
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
    async fn a_node_begins_without_the_certificate_that_a_person_has_to_approve_and_keeps_it() {
        clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 3);
        let dir = tempfile::tempdir().unwrap();
        let running = server(&dir.path().join("server")).await;
        let user = |name: &str, group: &str| {
            Client::in_process(running.server.door(User::authenticated(name, &[group])))
        };
        let (node, admin) = (user("system:node:n1", "system:nodes"), user("a", "system:masters"));
        let ca = running.node_credentials("n1", &[]).unwrap().ca_certificate;
        let start = async |ca: &str, address: IpAddr| {
            let (name, dir) = ("n1".into(), dir.path().into());
            let whose = Whose { name, addresses: vec![address], dir };
            Credentials::complete(node.clone(), ca.into(), whose, None).await.unwrap()
        };
        let requests = async || {
            let all = client::Selection::default();
            admin.list::<CertificateSigningRequest>(&all).await.unwrap()
        };
        let (here, before) = (running.address.ip(), clock::now());
        let first = start(&ca, here).await;
        assert!(clock::now().duration_since(before).as_secs() < 10, "its pods need not wait");
        let shown = first.serving.clone();
        assert_eq!(shown.life(), None);
        let renewing = tokio::spawn(first.renewing());
        tokio::time::sleep(Duration::from_secs(10 * 60)).await;
        let mut asked = requests().await;
        assert_eq!((asked.len(), shown.life()), (1, None));
        let condition =
            serde_json::json!({"type": "Approved", "status": "True", "reason": "ByHand"});
        let status = serde_json::json!({"conditions": [condition]});
        asked[0].status = Some(serde_json::from_value(status).unwrap());
        admin.update_subresource(&asked[0], "approval").await.unwrap();
        let life = wait("the certificate", async || shown.life()).await;
        renewing.abort();

        let again = start(&ca, here).await;
        assert_eq!((again.serving.life(), requests().await.len()), (Some(life), 1), "a restart");
        let elsewhere = tempfile::tempdir().unwrap();
        let other = server(elsewhere.path()).await;
        let others = other.node_credentials("n1", &[]).unwrap().ca_certificate;
        let there: IpAddr = "10.0.0.9".parse().unwrap();
        for (what, ca, address, days) in [
            ("of another cluster", &others, here, 0),
            ("for where it was", &ca, there, 0),
            ("has ended", &ca, there, 366),
        ] {
            let count = requests().await.len();
            tokio::time::advance(days * DAY).await;
            assert_ne!(start(ca, address).await.serving.life(), Some(life), "{what}");
            assert_eq!(requests().await.len(), count + 1, "{what}");
        }
        other.stop().await;
        running.stop().await;
    }
}
