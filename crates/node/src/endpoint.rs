//! The agent's HTTPS endpoint: logs, exec, attach, port-forward, stats (N-157 to N-171).
//!
//!     request ▸ access (who, may they) ▸ routes ▸ logs · exec · forward · stats · metrics · files
//!                                                     │
//!                           websocket, spdy ◀─────────┘  once the connection is upgraded
//!
//! The API server is its most frequent caller; metrics scrapers call it directly. Everybody is
//! asked the same way who they are (N-168). Not here: running anything (`runtime`).

mod access;
mod answer;
mod container_logs;
mod exec;
mod files;
mod forward;
mod listen;
mod machine;
mod metrics;
mod query;
mod remote;
mod routes;
mod scrape;
mod spdy;
mod stats;
mod upgrade;
mod websocket;

pub use listen::{Health, Serving, serve_health};
pub use metrics::{Labels, Metrics};

use crate::pods::Pods;
use runtime::Runtime;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The port of every node (N-168).
pub const PORT: u16 = 10250;

/// What the endpoint is made of.
pub struct Endpoint {
    /// Name of the Node.
    pub node: String,
    pub listen: SocketAddr,
    /// See [`server_config`].
    pub tls: Arc<rustls::ServerConfig>,
    /// Asked who callers are and what they may do.
    pub client: client::Client,
    pub pods: Arc<Pods>,
    pub runtime: Arc<dyn Runtime>,
    /// `/var/log/pods`
    pub log_root: PathBuf,
    /// `/var/log`, shown below `/logs/`.
    pub host_logs: PathBuf,
    pub metrics: Arc<Metrics>,
    /// Shown as `kubeletconfig` at `/configz`.
    pub config: serde_json::Value,
}

/// Shows what `shown` has at the time. Client certificates of `ca` (PEM) are welcome, none is required
/// (N-168). HTTP/1.1 only, since upgrades need it.
pub fn server_config(shown: Arc<tls::Shown>, ca: &str) -> Result<rustls::ServerConfig, tls::Error> {
    tls::server_config(shown, ca, &["http/1.1"])
}

/// Listens, and answers until the returned handle is stopped.
pub async fn serve(endpoint: Endpoint) -> std::io::Result<Serving> {
    listen::serve(endpoint).await
}

/// What every request shares.
struct State {
    endpoint: Endpoint,
    access: access::Access,
    started: jiff::Timestamp,
    rates: stats::Rates,
}
