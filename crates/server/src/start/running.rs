//! A running server: what its process can ask of it, and its stop.

use crate::background::kubernetes_service::KubernetesService;
use crate::backup::Backups;
use crate::listen::Listeners;
use crate::object::Store;
use crate::server::Server;
use crate::service_allocation::ServiceRanges;
use crate::start::{Error, administrator, reachable};
use access::pki::{Identity, Pki};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

/// A running server.
pub struct Running {
    pub server: Server,
    pub address: SocketAddr,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    pub(super) pki: Arc<Pki>,
    pub(super) kubernetes_service: Arc<KubernetesService>,
    /// The addresses on which it listens besides `address`. Locked while one is added.
    pub(super) further: Mutex<BTreeSet<SocketAddr>>,
    pub(super) listeners: Arc<Listeners>,
    pub(super) stop: oneshot::Sender<()>,
    pub(super) done: JoinHandle<()>,
    pub(super) store: Store,
    pub(super) backups: Backups,
    pub(super) _lock: std::fs::File,
}

/// The credentials of a node, in PEM.
#[derive(Debug, Clone)]
pub struct NodeCredentials {
    /// For its HTTPS endpoint.
    pub serving: Identity,
    /// `system:node:<name>` in `system:nodes`.
    pub client: Identity,
    pub ca_certificate: String,
    /// For its connection to this server.
    pub kubeconfig: String,
}

impl Running {
    /// Credentials for a node of this process, without a signing request. `addresses` are all names and addresses of
    /// its endpoint.
    pub fn node_credentials(
        &self,
        name: &str,
        addresses: &[String],
    ) -> Result<NodeCredentials, Error> {
        let (serving, client) = self.pki.sign_node(name, addresses)?;
        let url = format!("https://{}", reachable(self.address));
        let user = format!("system:node:{name}");
        let kubeconfig = self.pki.kubeconfig_for(&url, &user, &client);
        let ca_certificate = self.pki.ca_certificate().to_owned();
        Ok(NodeCredentials { serving, client, ca_certificate, kubeconfig })
    }

    /// Accepts connections on a further address of this machine, with the same certificate and limits, until the server
    /// stops. Returns the address, with the port that was chosen if it was 0.
    pub async fn also_listen(&self, address: SocketAddr) -> Result<SocketAddr, Error> {
        let mut further = self.further.lock().await;
        if address == self.address || further.contains(&address) {
            return Ok(address);
        }
        let listen = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        // Before the first connection is accepted: the certificate must have the address.
        self.pki.add_address(address.ip())?;
        self.listeners.accept_on(listener);
        further.insert(address);
        Ok(address)
    }

    /// Sets the address of this server in the Endpoints and EndpointSlice `kubernetes`. It must be one on which the
    /// server listens.
    pub async fn advertise(&self, address: SocketAddr) -> Result<(), Error> {
        let advertised = self.kubernetes_service.advertise(address, self.pki.names()).await;
        advertised.map_err(|why| Error::Advertise { address, why })
    }

    /// Lets pods reach the server at this address of the node, if it otherwise listens only on a loopback address, which
    /// they cannot reach (NET-95).
    pub async fn serve_pods_at(&self, address: IpAddr) -> Result<(), Error> {
        if !self.address.ip().is_loopback() {
            return Ok(());
        }
        let address = self.also_listen(SocketAddr::new(address, self.address.port())).await?;
        self.advertise(address).await
    }

    /// Keeps the newest `count` termination records (`terminations.landfall.dev`).
    pub fn keep_terminations(&self, count: usize) {
        self.server.terminations().keep(count);
    }

    /// The ranges of cluster IPs that this cluster uses.
    pub fn service_ranges(&self) -> ServiceRanges {
        self.server.service_ranges()
    }

    /// Why the store does not accept writes, such as a full disk.
    pub fn store_health(&self) -> Result<(), String> {
        self.store.health()
    }

    pub fn backups(&self) -> Backups {
        self.backups.clone()
    }

    /// Replaces the administrator's token. The new token is stored first; then this server accepts only that.
    pub fn rotate_admin_token(&self) -> Result<(), Error> {
        let token = self.pki.replace_admin_token()?;
        self.server.authenticator().static_tokens.replace(&token, administrator());
        Ok(())
    }

    /// Renews the serving certificate of a node of this process.
    pub fn node_signer(
        &self,
        name: &str,
        addresses: &[String],
    ) -> impl Fn() -> Result<Identity, Error> + Send + Sync + 'static {
        let (pki, name, addresses) = (self.pki.clone(), name.to_owned(), addresses.to_vec());
        move || Ok(pki.sign_node(&name, &addresses)?.0)
    }

    /// Removes this server from the endpoints, waits for requests in flight, ends watches, and closes the store.
    pub async fn stop(self) {
        self.kubernetes_service.leave().await;
        let _ = self.stop.send(());
        let _ = self.done.await;
        if let Err(error) = self.store.close().await {
            tracing::error!(%error, "the store did not close cleanly");
        }
    }
}
