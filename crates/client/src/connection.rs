//! HTTPS connections that notice within seconds that the server is gone.
//!
//! A watch only receives. If the network between client and server is interrupted, nothing tells the client: the kernel
//! waits for packets, and the server repeats lost ones at intervals that double, up to minutes. Therefore the kernel
//! probes idle connections every second, and a connection without an answer is closed and opened again.
//!
//! The server's kernel answers probes, so a busy server loses no connections.

use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use std::time::Duration;
use tower::{BoxError, Layer, ServiceExt};

/// A connection is probed after this long without a packet, and then at this interval.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// A connection is closed if the server has not acknowledged a probe or a packet for this long: at the third probe. A
/// server repeats a lost packet after 0.2, 0.6, 1.4 and 3 s, so after a shorter interruption the connection works again
/// within two seconds.
const UNANSWERED_MAX: Duration = Duration::from_millis(2500);
/// How long the kernel tries to open a connection: it repeats a lost packet after one second, and some kernels then wait
/// two more. A new attempt is faster.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// A client for the server of this configuration.
pub(crate) fn client(config: kube::Config) -> kube::Result<kube::Client> {
    if config.proxy_url.is_some() {
        return kube::Client::try_from(config); // Says that proxies are not supported.
    }
    let connector = config.rustls_https_connector_with_connector(connector())?;
    let https: legacy::Client<_, Body> =
        legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = config.extra_headers_layer()?.layer(https.map_err(BoxError::from));
    let (base, namespace) = (config.base_uri_layer(), config.default_namespace.clone());
    Ok(match config.auth_layer()? {
        Some(auth) => kube::Client::new(base.layer(auth.layer(service)), namespace),
        None => kube::Client::new(base.layer(service), namespace),
    })
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(PROBE_INTERVAL));
    connector.set_keepalive_interval(Some(PROBE_INTERVAL));
    connector.set_tcp_user_timeout(Some(UNANSWERED_MAX));
    connector
}
