//! Tasks that run for as long as the server does.
//!
//!     system_objects        creates and restores the objects that every cluster and namespace has; compiles RBAC
//!     kubernetes_service    keeps the Service `kubernetes` and its endpoints
//!     dns_service           keeps the Service `kube-dns`
//!     service_cidr          reports a configured range of cluster IPs that is not the cluster's
//!     server_heartbeats     how servers on one etcd know of each other
//!     certificate_requests  approves and signs certificate signing requests
//!     event_expiry          deletes old Events
//!
//! Custom resource definitions, retention of termination records and scraping of metrics are started here too, and
//! live with the rest of their subject.

mod certificate_requests;
pub(crate) mod dns_service;
mod event_expiry;
pub(crate) mod follower;
pub(crate) mod kubernetes_service;
pub(crate) mod server_heartbeats;
pub(crate) mod service_cidr;
pub(crate) mod system_objects;

use crate::server::Server;
use crate::{custom_resources, terminations, usage};
use access::pki::Pki;
use futures::FutureExt as _;
use kubernetes_service::KubernetesService;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The pause before a task that panicked is started again.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// How often certificates are checked. They are valid for a year, so a day more or less does not matter.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// How often the node graph applies new pod events, so that no authorization has many to apply.
const NODE_GRAPH_INTERVAL: Duration = Duration::from_secs(10);

/// Starts the background tasks. With the cluster's keys it also starts those that upstream's controller manager
/// runs.
pub(crate) fn start(
    server: &Server,
    kubernetes_service: &Arc<KubernetesService>,
    controllers: Option<Arc<Pki>>,
) {
    spawn_until_closing(server, system_objects::follow_roles);
    spawn_until_closing(server, custom_resources::follow);
    spawn_until_closing(server, event_expiry::run);
    spawn_until_closing(server, terminations::retention::run);
    spawn_until_closing(server, update_node_graph);
    if kubernetes_service.is_shared() {
        let service = kubernetes_service.clone();
        spawn_until_closing(server, move |_| service.clone().send_heartbeats());
    }
    if let Some(pki) = controllers {
        spawn_until_closing(server, move |server| {
            certificate_requests::follow(server, pki.clone())
        });
        server.create_namespace_objects();
        for collection in ["namespaces", "serviceaccounts", "configmaps"] {
            spawn_until_closing(server, move |server| {
                system_objects::restore_namespace_objects(server, collection)
            });
        }
        for collection in kubernetes_service::COLLECTIONS {
            let service = kubernetes_service.clone();
            spawn_until_closing(server, move |_| service.clone().follow(collection));
        }
        for collection in ["services", "networking.k8s.io/ipaddresses"] {
            spawn_until_closing(server, move |server| dns_service::follow(server, collection));
        }
    }
}

/// Starts scraping the resource usage of nodes and pods.
pub(crate) fn start_usage(server: &Server) {
    spawn_until_closing(server, usage::scrape::run);
}

/// Runs a task until the server closes. A task that panics is started again.
pub(crate) fn spawn_until_closing<Task>(
    server: &Server,
    task: impl Fn(Server) -> Task + Send + Sync + 'static,
) where
    Task: Future<Output = ()> + Send + 'static,
{
    let (server, mut closing) = (server.clone(), server.closing());
    tokio::spawn(async move {
        let working = async {
            while AssertUnwindSafe(task(server.clone())).catch_unwind().await.is_err() {
                tracing::error!("a background task panicked; starting it again");
                tokio::time::sleep(RESTART_DELAY).await;
            }
        };
        tokio::select! {
            biased;
            () = working => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
    });
}

/// Renews the server's own certificates for as long as it runs.
pub(crate) async fn renew_certificates(pki: Arc<Pki>, kubeconfig: PathBuf, address: SocketAddr) {
    loop {
        tokio::time::sleep(RENEWAL_INTERVAL).await;
        let renewed = pki.renew().map_err(|error| error.to_string()).and_then(|changed| {
            if changed {
                let text = pki.kubeconfig(&format!("https://{address}"));
                let written = access::pki::write_secret(&kubeconfig, text.as_bytes());
                written.map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        if let Err(error) = renewed {
            tracing::error!(error, "renewing the server's certificates failed");
        }
    }
}

/// Applies pod events to the node graph regularly, so that authorizing a node's request never has many to apply.
async fn update_node_graph(server: Server) {
    loop {
        server.node_graph().catch_up();
        tokio::time::sleep(NODE_GRAPH_INTERVAL).await;
    }
}
