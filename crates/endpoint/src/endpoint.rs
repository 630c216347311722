//! What the endpoint needs, and how to start it (N-157 to N-171).

use crate::{Metrics, Serving, access, listen, stats};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use runtime::Runtime;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The default port (N-168).
pub const PORT: u16 = 10250;

/// The pods of this node, each with the status that the agent last computed for it.
pub trait PodLookup: Send + Sync {
    fn by_uid(&self, uid: &str) -> Option<Arc<Pod>>;

    /// The pod of that name that is not terminating, or a terminating one if there is no other.
    fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;

    fn list(&self) -> Vec<Arc<Pod>>;
}

/// Configuration of the endpoint, and what it uses of the agent.
pub struct Endpoint {
    /// Name of the Node.
    pub node: String,
    pub listen: SocketAddr,
    /// See [`server_config`].
    pub tls: Arc<rustls::ServerConfig>,
    /// For TokenReviews and SubjectAccessReviews of callers.
    pub client: client::Client,
    pub pods: Arc<dyn PodLookup>,
    pub runtime: Arc<dyn Runtime>,
    /// `/var/log/pods`
    pub log_root: PathBuf,
    /// `/var/log`, served below `/logs/`.
    pub host_logs: PathBuf,
    pub metrics: Arc<Metrics>,
    /// Served as `kubeletconfig` at `/configz`.
    pub config: serde_json::Value,
}

/// Presents the current certificate of `shown`. Accepts client certificates signed by `ca` (PEM),
/// but requires none (N-168). HTTP/1.1 only, because upgrades need it.
pub fn server_config(
    shown: Arc<tls::RenewableCertificate>,
    ca: &str,
) -> Result<rustls::ServerConfig, tls::Error> {
    tls::server_config(shown, ca, &["http/1.1"])
}

/// Listens, and serves requests until the returned handle is stopped.
///
/// The future is boxed so that the code behind it is compiled in this crate, not in every program that awaits it.
pub fn serve(endpoint: Endpoint) -> BoxFuture<'static, std::io::Result<Serving>> {
    Box::pin(listen::serve(endpoint))
}

/// What all requests share.
pub(crate) struct State {
    pub(crate) endpoint: Endpoint,
    pub(crate) access: access::Access,
    pub(crate) started: jiff::Timestamp,
    pub(crate) rates: stats::Rates,
}
