//! The client handle and its two transports: in-process and HTTPS. Callers cannot tell which one they use.
//!
//! Not here: the requests (`read`, `write`).

use crate::object::{Decoder, downcast};
use crate::{Error, Object, Result, connection, decode_cache};
use arc_swap::ArcSwap;
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a response may take. Servers end their own work after 60 s, so a client that waits longer has
/// lost its server.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(65);

/// Sends requests to the API server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    kube: kube::Client,
    /// Sends lists and watches if they run as another user than `kube`.
    reader: Option<kube::Client>,
    manager: Option<String>,
    user_agent: HeaderValue,
}

/// The Kubernetes version in user agents.
const KUBERNETES: &str = "v1.36.4";

/// The name of a client without a name of its own.
const UNNAMED: &str = "landfall";

/// The format of upstream's clients: name, version, platform, product. Servers use the part before the first `/` as
/// field manager.
fn user_agent(name: &str) -> HeaderValue {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let text = format!("{name}/{KUBERNETES} (linux/{arch}) landfall/{}", env!("CARGO_PKG_VERSION"));
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(UNNAMED))
}

impl Client {
    /// A client of a service in this process, such as a `server::InProcessService`. Needs a tokio runtime.
    pub fn in_process<S, B>(service: S) -> Client
    where
        S: tower::Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<tower::BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<tower::BoxError>,
    {
        Client::over(kube::Client::new(service, "default"))
    }

    /// An HTTPS client for the current context of a kubeconfig.
    pub async fn from_kubeconfig(path: impl AsRef<Path>) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(path).map_err(config_error)?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        Client::from_config(config.map_err(config_error)?)
    }

    /// As [`Client::from_kubeconfig`], for a kubeconfig whose credentials are renewed: see [`Renewable::reload`].
    pub async fn renewable(path: impl AsRef<Path>) -> Result<(Client, Renewable)> {
        let newest = Client::from_kubeconfig(&path).await?.kube;
        let newest = Arc::new(ArcSwap::from_pointee(newest));
        let current = newest.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let kube = current.load_full();
            async move { kube.send(request).await }
        });
        let renewable = Renewable { path: path.as_ref().to_owned(), newest };
        Ok((Client::in_process(service), renewable))
    }

    /// An HTTPS client with a bearer token. `ca` is PEM; without it the system's root certificates are trusted.
    pub async fn connect(url: &str, token: &str, ca: Option<&str>) -> Result<Client> {
        // Build a kubeconfig, so that certificates are read by the same code as from a file.
        let mut cluster = serde_json::json!({ "server": url });
        if let Some(ca) = ca {
            // Without this check no server would be trusted, and the error of the first request would not say why.
            if !ca.contains("-----BEGIN CERTIFICATE-----") {
                return Err(Error::Config { why: "the CA is not a certificate in PEM".into() });
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
        // Callers decide whether and when to retry.
        config.default_retry = false;
        connection::client(config).map(Client::over).map_err(config_error)
    }

    fn over(kube: kube::Client) -> Client {
        Client { kube, reader: None, manager: None, user_agent: user_agent(UNNAMED) }
    }

    /// The same client, with `name` as its user agent and field manager.
    pub fn named(mut self, name: &str) -> Client {
        self.manager = Some(name.to_owned());
        self.user_agent = user_agent(name);
        self
    }

    /// A client that writes with the credentials of `actor`, but lists and watches with those of this client, so that
    /// controllers with different rights can share caches. `suffix` is appended to its user agent.
    pub fn acting_as(&self, actor: &Client, suffix: &str) -> Client {
        let agent = format!("{}/{suffix}", self.user_agent.to_str().unwrap_or_default());
        Client {
            kube: actor.kube.clone(),
            reader: Some(self.reader().clone()),
            manager: self.manager.clone(),
            user_agent: HeaderValue::from_str(&agent).unwrap_or_else(|_| self.user_agent()),
        }
    }

    /// The client for lists and watches.
    pub(crate) fn reader(&self) -> &kube::Client {
        self.reader.as_ref().unwrap_or(&self.kube)
    }

    pub(crate) fn user_agent(&self) -> HeaderValue {
        self.user_agent.clone()
    }

    /// kube's own client, for requests that this crate does not offer: logs, exec, discovery, dynamic kinds.
    pub fn kube(&self) -> &kube::Client {
        &self.kube
    }

    pub(crate) fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    /// Sends a request and returns the response body.
    pub(crate) async fn send(
        &self,
        doing: &Doing<'_>,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String> {
        self.send_through(&self.kube, doing, request).await
    }

    pub(crate) async fn send_through(
        &self,
        kube: &kube::Client,
        doing: &Doing<'_>,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String> {
        let mut request = request
            .map_err(|error| Error::Unsendable { doing: doing(), why: error.to_string() })?;
        request.headers_mut().insert(USER_AGENT, self.user_agent());
        match tokio::time::timeout(RESPONSE_TIMEOUT, kube.request_text(request)).await {
            Ok(response) => response.map_err(|error| Error::from_kube(doing(), error)),
            Err(_) => Err(Error::Timeout { doing: doing() }),
        }
    }
}

/// Completes "failed to …" when a request has failed.
pub(crate) type Doing<'a> = dyn Fn() -> String + Send + Sync + 'a;

/// Decodes a response that is an object.
pub(crate) fn decode<K: Object>(doing: &Doing<'_>, response: &str) -> Result<K> {
    K::decode(response).map_err(|error| unreadable(doing, error))
}

/// As [`decode`], for an object that caches of this process will receive too.
pub(crate) fn decode_shared<K: Object>(doing: &Doing<'_>, response: &str) -> Result<Arc<K>> {
    let object = decode_cache::decode(response, Decoder::of::<K>());
    object.map(downcast).map_err(|error| unreadable(doing, error))
}

/// Decodes a response that is not an object.
pub(crate) fn read<'a, T: Deserialize<'a>>(doing: &Doing<'_>, response: &'a str) -> Result<T> {
    serde_json::from_str(response).map_err(|error| unreadable(doing, error))
}

pub(crate) fn unreadable(doing: &Doing<'_>, error: serde_json::Error) -> Error {
    Error::from_kube(doing(), kube::Error::SerdeError(error))
}

/// Reloads the credentials of a [`Client::renewable`].
pub struct Renewable {
    path: PathBuf,
    newest: Arc<ArcSwap<kube::Client>>,
}

impl Renewable {
    /// Reads the kubeconfig again. New requests use its credentials; running requests, including watches, keep the
    /// old ones.
    pub async fn reload(&self) -> Result<()> {
        let newest = Client::from_kubeconfig(&self.path).await?.kube;
        self.newest.store(Arc::new(newest));
        Ok(())
    }
}

/// The certificates in the current context of a kubeconfig, in PEM.
pub struct KubeconfigCertificates {
    pub ca: Option<String>,
    /// The client certificate. `None` if the context uses a token or other credentials.
    pub certificate: Option<String>,
}

/// Reads the certificates of a kubeconfig without connecting to the server.
pub async fn read_certificates(kubeconfig: impl AsRef<Path>) -> Result<KubeconfigCertificates> {
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
    Ok(KubeconfigCertificates { ca, certificate })
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
