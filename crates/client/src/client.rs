//! A handle on the API, over one of two transports, and it does not say which.
//!
//! Not here: what is asked through it (`read`, `write`).

use crate::object::{Decoder, known};
use crate::{Error, Object, Result, decoded};
use arc_swap::ArcSwap;
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use http::{Request, Response};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long an answer may take. A server cuts its own work short at 60 s, so that no answer
/// after that means that nobody is there.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(65);

/// Where reading and writing starts. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    kube: kube::Client,
    manager: Option<String>,
}

impl Client {
    /// Through a service of this process, such as a `server::Door`. Needs a tokio runtime.
    pub fn in_process<S, B>(service: S) -> Client
    where
        S: tower::Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<tower::BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<tower::BoxError>,
    {
        Client { kube: kube::Client::new(service, "default"), manager: None }
    }

    /// Over HTTPS, to the current context of a kubeconfig.
    pub async fn from_kubeconfig(path: impl AsRef<Path>) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(path).map_err(config_error)?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        Client::from_config(config.map_err(config_error)?)
    }

    /// The same, for a kubeconfig whose credentials are replaced from time to time: see
    /// [`Renewable::reload`].
    pub async fn renewable(path: impl AsRef<Path>) -> Result<(Client, Renewable)> {
        let newest = Client::from_kubeconfig(&path).await?.kube;
        let newest = Arc::new(ArcSwap::from_pointee(newest));
        let asked = newest.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let kube = asked.load_full();
            async move { kube.send(request).await }
        });
        let renewable = Renewable { path: path.as_ref().to_owned(), newest };
        Ok((Client::in_process(service), renewable))
    }

    /// Over HTTPS, with a bearer token. `ca` is PEM; without it the system's roots are trusted.
    pub async fn connect(url: &str, token: &str, ca: Option<&str>) -> Result<Client> {
        // The same road as a file takes, so that there is one reader of certificates.
        let mut cluster = serde_json::json!({ "server": url });
        if let Some(ca) = ca {
            // Without this, nobody would be trusted, and the first request would fail to say why.
            if !ca.contains("-----BEGIN CERTIFICATE-----") {
                return Err(Error::Config { why: "the CA is no certificate in PEM".into() });
            }
            cluster["certificate-authority-data"] = BASE64.encode(ca).into();
        }
        let kubeconfig = serde_json::from_value(serde_json::json!({
            "clusters": [{ "name": "it", "cluster": cluster }],
            "users": [{ "name": "we", "user": { "token": token } }],
            "contexts": [{ "name": "we@it", "context": { "cluster": "it", "user": "we" } }],
            "current-context": "we@it",
        }));
        let options = KubeConfigOptions::default();
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig.map_err(config_error)?, &options).await;
        Client::from_config(config.map_err(config_error)?)
    }

    fn from_config(mut config: kube::Config) -> Result<Client> {
        // Whoever asks knows whether, and after which wait, asking again makes sense.
        config.default_retry = false;
        let kube = kube::Client::try_from(config).map_err(config_error)?;
        Ok(Client { kube, manager: None })
    }

    /// The same client, writing as field manager `name`.
    pub fn named(mut self, name: &str) -> Client {
        self.manager = Some(name.to_owned());
        self
    }

    /// kube's own client, for what has no helper here: logs, exec, discovery, dynamic kinds.
    pub fn kube(&self) -> &kube::Client {
        &self.kube
    }

    pub(crate) fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    /// Sends a request and returns the text of the answer.
    pub(crate) async fn send(
        &self,
        doing: &Doing<'_>,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String> {
        let request = request
            .map_err(|error| Error::Unsendable { doing: doing(), why: error.to_string() })?;
        match tokio::time::timeout(ANSWER_MAX, self.kube.request_text(request)).await {
            Ok(answer) => answer.map_err(|error| Error::from_kube(doing(), error)),
            Err(_) => Err(Error::Timeout { doing: doing() }),
        }
    }
}

/// Completes "failed to …" when a request has failed.
pub(crate) type Doing<'a> = dyn Fn() -> String + Send + Sync + 'a;

/// Reads an answer as an object.
pub(crate) fn decode<K: Object>(doing: &Doing<'_>, answer: &str) -> Result<K> {
    K::decode(answer).map_err(|error| unreadable(doing, error))
}

/// As [`decode`], for an object that caches of this process are about to receive too.
pub(crate) fn decode_shared<K: Object>(doing: &Doing<'_>, answer: &str) -> Result<Arc<K>> {
    let object = decoded::object(answer, Decoder::of::<K>());
    object.map(known).map_err(|error| unreadable(doing, error))
}

/// Reads an answer that is not an object.
pub(crate) fn read<'a, T: Deserialize<'a>>(doing: &Doing<'_>, answer: &'a str) -> Result<T> {
    serde_json::from_str(answer).map_err(|error| unreadable(doing, error))
}

pub(crate) fn unreadable(doing: &Doing<'_>, error: serde_json::Error) -> Error {
    Error::from_kube(doing(), kube::Error::SerdeError(error))
}

/// Where a [`Client::renewable`] takes its credentials from.
pub struct Renewable {
    path: PathBuf,
    newest: Arc<ArcSwap<kube::Client>>,
}

impl Renewable {
    /// Requests from now on go out with what the file says now. Those under way, watches among them,
    /// end as they began.
    pub async fn reload(&self) -> Result<()> {
        let newest = Client::from_kubeconfig(&self.path).await?.kube;
        self.newest.store(Arc::new(newest));
        Ok(())
    }
}

/// What a kubeconfig's current context trusts and shows, both in PEM.
pub struct Trust {
    pub ca: Option<String>,
    /// None if it names a token, or something else that is no certificate.
    pub certificate: Option<String>,
}

/// Reads it without connecting anywhere.
pub async fn trust_of(kubeconfig: impl AsRef<Path>) -> Result<Trust> {
    let read = Kubeconfig::read_from(kubeconfig).map_err(config_error)?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(read, &options).await;
    let config = config.map_err(config_error)?;
    let pem = |der: &Vec<u8>| to_pem(der);
    let ca = config.root_cert.map(|roots| roots.iter().map(pem).collect());
    let auth = config.auth_info;
    let certificate = match (auth.client_certificate_data, auth.client_certificate) {
        (Some(data), _) => {
            let bytes = BASE64.decode(data).map_err(config_error)?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }
        (None, Some(path)) => Some(std::fs::read_to_string(path).map_err(config_error)?),
        (None, None) => None,
    };
    Ok(Trust { ca, certificate })
}

fn to_pem(der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n");
    let lines: String = lines.collect();
    format!("-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n")
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("manager", &self.manager).finish_non_exhaustive()
    }
}

fn config_error(error: impl std::error::Error) -> Error {
    Error::Config { why: crate::error::chain(&error) }
}
