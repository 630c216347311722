//! Starting and stopping a server: its data directory, its store, its keys, its first objects.

use crate::audit::Audit;
use crate::authn::{
    Authenticator, BootstrapTokens, ServiceAccountTokens, StaticTokens, User, bootstrap_tokens,
};
use crate::object::{ENVELOPE, Store, Stored, store_name};
use crate::own_service::OwnService;
use crate::pki::{Identity, Pki};
use crate::server::{Parts, Server};
use crate::{listen, upkeep, usage};
use api::value::ValueExt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Where objects are kept.
#[derive(Debug, Clone)]
pub enum StoreChoice {
    /// In the data directory.
    Embedded,
    /// `http://host:port`, one or several.
    Etcd(Vec<String>),
}

#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    pub store: StoreChoice,
    /// One line of JSON per request goes here.
    pub audit_log: Option<PathBuf>,
    /// Keep up what the control plane owes every namespace (the `default` service account), and
    /// answer nodes that ask for certificates.
    pub controllers: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the data directory {} cannot be used", path.display())]
    DataDir { path: PathBuf, source: std::io::Error },
    #[error(
        "another landfall is running on {}: stop it first, or give this one another --data-dir",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error("the store cannot be opened")]
    Store(#[source] store::Error),
    #[error("the keys and certificates in the data directory cannot be used")]
    Pki(#[from] crate::pki::Error),
    #[error(
        "this etcd holds the objects of a cluster with another certificate authority than {}: copy the \
         pki directory of a server of that cluster to there first",
        path.display()
    )]
    Foreign { path: PathBuf },
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the service account key cannot be used")]
    Key,
    #[error("the audit log {} cannot be opened", path.display())]
    Audit { path: PathBuf, source: std::io::Error },
    #[error("the first objects could not be stored: {0}")]
    Bootstrap(String),
}

/// A server that answers.
pub struct Running {
    pub server: Server,
    pub address: SocketAddr,
    /// The admin's kubeconfig.
    pub kubeconfig: PathBuf,
    pki: Arc<Pki>,
    own: Arc<OwnService>,
    stop: oneshot::Sender<()>,
    done: JoinHandle<()>,
    store: Store,
    _lock: std::fs::File,
}

/// The URL that service account tokens name as their issuer.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Memory that past events may take, for watchers that come late. Five minutes of an ordinary day
/// are far below it.
const HISTORY_BYTES: usize = 32 << 20;

/// Opens everything and answers requests from the moment this returns.
pub async fn start(config: Config) -> Result<Running, Error> {
    let dir = &config.data_dir;
    let data_dir = |source| Error::DataDir { path: dir.clone(), source };
    crate::pki::make_private_dir(dir).map_err(data_dir)?;
    let lock = lock(dir)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|source| Error::Listen { address: config.listen, source })?;
    let address = listener.local_addr().map_err(data_dir)?;
    let outside = outside(address);
    let names = [address.ip().to_string(), outside.ip().to_string()];
    let pki = Arc::new(Pki::load_or_create(dir, &names)?);
    let store = open_store(&config).await?;
    if matches!(config.store, StoreChoice::Etcd(_)) {
        check_authority(&store, &pki, dir)?;
    }
    let audit = config
        .audit_log
        .as_deref()
        .map(|path| Audit::open(path).map_err(|source| Error::Audit { path: path.into(), source }))
        .transpose()?;
    let server = Server::new(Parts {
        store: store.clone(),
        authenticator: authenticator(&pki, &store)?,
        address: outside.to_string(),
        ca_certificate: pki.ca_certificate().to_owned(),
        nodes: Arc::new(pki.node_client_config()?),
        audit,
        built_in: Arc::new(api::Registry::built_in()),
    });
    let controllers = config.controllers.then(|| pki.clone());
    let shared = matches!(config.store, StoreChoice::Etcd(_));
    let own = Arc::new(OwnService::new(&server, outside, pki.names(), shared));
    let stored = upkeep::store_what_is_missing(&server, &own, controllers.is_some());
    stored.await.map_err(Error::Bootstrap)?;
    upkeep::attend(&server, &own, controllers);
    upkeep::spawn_until_closing(&server, usage::scrape::run);
    let kubeconfig = dir.join("kubeconfig");
    let text = pki.kubeconfig(&format!("https://{}", reachable(address)));
    crate::pki::write_secret(&kubeconfig, text.as_bytes()).map_err(data_dir)?;
    let tls = Arc::new(pki.server_config()?);
    let (signs, writes) = (pki.clone(), kubeconfig.clone());
    upkeep::spawn_until_closing(&server, move |_| {
        upkeep::renew_certificates(signs.clone(), writes.clone(), reachable(address))
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let done = tokio::spawn(listen::serve(server.clone(), listener, tls, stopped));
    Ok(Running { server, address, kubeconfig, pki, own, stop, done, store, _lock: lock })
}

/// What a node needs to take part, all in PEM.
#[derive(Debug, Clone)]
pub struct NodeCredentials {
    /// For its HTTPS endpoint.
    pub serving: Identity,
    /// `system:node:<name>` in `system:nodes`.
    pub client: Identity,
    pub ca_certificate: String,
    /// With which it reaches this server.
    pub kubeconfig: String,
}

impl Running {
    /// For a node that runs in this process, or is set up by it: no request, no approval. `addresses`
    /// are all names and addresses under which its endpoint is reached.
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

    /// How many records of endings (`terminations.landfall.dev`) are kept; the newest.
    pub fn keep_terminations(&self, count: usize) {
        self.server.terminations().keep(count);
    }

    /// Makes the same again, for a node of this process whose certificates have become old.
    pub fn node_signer(
        &self,
        name: &str,
        addresses: &[String],
    ) -> impl Fn() -> Result<Identity, Error> + Send + Sync + 'static {
        let (pki, name, addresses) = (self.pki.clone(), name.to_owned(), addresses.to_vec());
        move || Ok(pki.sign_node(&name, &addresses)?.0)
    }

    /// Sends clients to the other servers, lets requests in flight finish, ends watches, writes
    /// everything down.
    pub async fn stop(self) {
        self.own.leave().await;
        let _ = self.stop.send(());
        let _ = self.done.await;
        if let Err(error) = self.store.close().await {
            tracing::error!(%error, "the store did not close cleanly");
        }
    }
}

/// Clients cannot connect to "any address".
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// Where pods and nodes find a server that listens on every address: that of the default route.
fn outside(address: SocketAddr) -> SocketAddr {
    let of_default_route = || {
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // No packet is sent: the kernel only chooses the way, and with it our address.
        socket.connect((std::net::Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        Some(SocketAddr::new(socket.local_addr().ok()?.ip(), address.port()))
    };
    match address.ip().is_unspecified() {
        true => of_default_route().unwrap_or_else(|| reachable(address)),
        false => address,
    }
}

async fn open_store(config: &Config) -> Result<Store, Error> {
    let backend = match &config.store {
        StoreChoice::Embedded => {
            store::Backend::Embedded { path: config.data_dir.join("store.redb") }
        }
        StoreChoice::Etcd(endpoints) => store::Backend::Etcd(store::EtcdOptions {
            endpoints: endpoints.clone(),
            prefix: "/landfall/".into(),
        }),
    };
    let opened = Store::open(backend, store_options()).await;
    opened.map_err(|error| match error {
        store::Error::InUse { .. } => Error::InUse { path: config.data_dir.clone() },
        error => Error::Store(error),
    })
}

/// Servers of one store must be servers of one cluster: each would go on putting its own certificate
/// where clients look for the cluster's.
fn check_authority(store: &Store, pki: &Pki, dir: &Path) -> Result<(), Error> {
    let ours = crate::bootstrap::authentication_config_map(pki.ca_certificate());
    let name = store_name(ours.text(&["metadata", "namespace"]), ours.text(&["metadata", "name"]));
    match store.get("configmaps", &name) {
        Some(stored) if stored.value()["data"] != ours["data"] => {
            Err(Error::Foreign { path: dir.join("pki") })
        }
        _ => Ok(()),
    }
}

pub(crate) fn store_options() -> store::Options {
    store::Options { history_bytes: HISTORY_BYTES, ..store::Options::new(ENVELOPE) }
}

pub(crate) fn authenticator(pki: &Pki, store: &Store) -> Result<Authenticator, Error> {
    let mut static_tokens = StaticTokens::new();
    static_tokens
        .add(pki.admin_token(), User::authenticated("kubernetes-admin", &["system:masters"]));
    let audiences = [ISSUER.to_owned()];
    let service_accounts = ServiceAccountTokens::new(pki.service_account_key(), ISSUER, &audiences)
        .map_err(|_| Error::Key)?;
    let store = store.clone();
    let bootstrap_tokens = BootstrapTokens::new(move |name| {
        let secret = store.get("secrets", &store_name(bootstrap_tokens::NAMESPACE, name))?;
        Some(secret.value())
    });
    Ok(Authenticator { static_tokens, bootstrap_tokens, service_accounts })
}

/// One server per data directory. The lock goes with the process, however it ends.
fn lock(dir: &Path) -> Result<std::fs::File, Error> {
    let path = dir.join("lock");
    let opened = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(|source| Error::DataDir { path: dir.into(), source })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::InUse { path: dir.into() }),
        Err(std::fs::TryLockError::Error(source)) => {
            Err(Error::DataDir { path: dir.into(), source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_found_somewhere() {
        let given: SocketAddr = "192.0.2.7:6443".parse().unwrap();
        assert_eq!(outside(given), given);
        let found = outside("0.0.0.0:6443".parse().unwrap());
        assert!(!found.ip().is_unspecified());
        assert_eq!(found.port(), 6443);
    }
}
