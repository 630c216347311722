//! Starts and stops a server: data directory, store, keys, bootstrap objects, listener.

pub(crate) mod first_start;
pub(crate) mod running;
pub(crate) mod simulated;

use crate::audit::{Audit, AuditConfig};
use crate::background::kubernetes_service::{self, KubernetesService};
use crate::background::{self, service_cidr, system_objects};
use crate::backup::Backups;
use crate::listen::Listeners;
use crate::object::{ENVELOPE, Store, Stored, store_name};
use crate::server::{Parts, Server};
use crate::service_allocation::{self, ServiceRanges};
use crate::start::first_start::FirstStart;
use crate::start::running::Running;
use access::authn::{
    Authenticator, BootstrapTokens, ServiceAccountTokens, StaticTokens, User, bootstrap_tokens,
};
use access::pki::Pki;
use api::value::ValueExt;
use futures::future::BoxFuture;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, oneshot};

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
    /// The ranges of cluster IPs of a new cluster. An existing cluster keeps its ranges; it can get a second family.
    pub service_ranges: ServiceRanges,
    /// Where and how requests are logged, if they are.
    pub audit_log: Option<AuditConfig>,
    /// Create the objects of every namespace (such as the service account `default`), and sign certificates for nodes,
    /// as upstream's controller manager does.
    pub controllers: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use the data directory {}", path.display())]
    DataDir { path: PathBuf, source: std::io::Error },
    #[error(
        "another landfall is running on {}: stop it first, or give this one another --data-dir",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error(
        "{} is missing or empty, but {} has the keys of a cluster. To keep that cluster, put the file back, or \
         restore a backup with `landfall restore` into another data directory. To start over with a new and \
         empty cluster, move {} away: every existing kubeconfig and token stops working, and nodes have to \
         join again",
        store.display(), pki.display(), pki.display()
    )]
    StoreLost { store: PathBuf, pki: PathBuf },
    #[error(
        "the etcd at {endpoints} has no objects of a cluster, but {} has the keys of one. To keep that cluster, name \
         its etcd with --store, or restore a backup with `landfall restore` into an empty etcd and another data \
         directory. To start over with a new and empty cluster, move {} away: every existing kubeconfig and token \
         stops working, and nodes have to join again",
        pki.display(), pki.display()
    )]
    EtcdEmpty { endpoints: String, pki: PathBuf },
    #[error("cannot open the store")]
    Store(#[source] store::Error),
    #[error("cannot use the keys and certificates in the data directory")]
    Pki(#[from] access::pki::Error),
    #[error(
        "this etcd holds the objects of a cluster with another certificate authority than {}: copy the \
         pki directory of a server of that cluster there first",
        path.display()
    )]
    Foreign { path: PathBuf },
    #[error(
        "a restore into {} did not finish: remove what is in it and run `landfall restore` again",
        path.display()
    )]
    Unfinished { path: PathBuf },
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot write {address} into the endpoints of the Service kubernetes: {why}")]
    Advertise { address: SocketAddr, why: String },
    #[error("cannot use the service account key")]
    Key,
    #[error("cannot write the audit log {}", path.display())]
    Audit { path: PathBuf, source: std::io::Error },
    #[error("cannot store the bootstrap objects: {0}")]
    Bootstrap(String),
}

/// The URL that service account tokens name as their issuer.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Memory for recent events, from which watches can start in the past. Five minutes of ordinary load need far less.
const HISTORY_BYTES: usize = 32 << 20;

/// Opens everything. The server serves requests when this returns.
///
/// The future is boxed so that the code behind it is compiled in this crate. The body of an `async fn` is compiled where it
/// is awaited: in the binary, and again in every test program.
pub fn start(config: Config) -> BoxFuture<'static, Result<Running, Error>> {
    Box::pin(open_and_serve(config))
}

async fn open_and_serve(config: Config) -> Result<Running, Error> {
    let dir = &config.data_dir;
    let data_dir = |source| Error::DataDir { path: dir.clone(), source };
    access::pki::make_private_dir(dir).map_err(data_dir)?;
    if crate::backup::unfinished(dir) {
        return Err(Error::Unfinished { path: dir.clone() });
    }
    let lock = lock(dir)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|source| Error::Listen { address: config.listen, source })?;
    let address = listener.local_addr().map_err(data_dir)?;
    let first = FirstStart::check_files(dir, &config.store)?;
    let store = open_store(&config).await?;
    first.check_objects(&store)?;
    let service_ranges = service_allocation::effective_ranges(&store, config.service_ranges);
    let advertised = advertised(address, service_ranges.api_address().is_ipv4());
    let names = [
        address.ip().to_string(),
        advertised.ip().to_string(),
        service_ranges.api_address().to_string(),
        kubernetes_service::cluster_ip(&store, service_ranges).to_string(),
    ];
    let pki = Arc::new(Pki::load_or_create(dir, &names)?);
    if matches!(config.store, StoreChoice::Etcd(_)) {
        check_authority(&store, &pki, dir)?;
    }
    let audit = config
        .audit_log
        .as_ref()
        .map(|audit| {
            Audit::open(audit).map_err(|source| Error::Audit { path: audit.path.clone(), source })
        })
        .transpose()?;
    let server = Server::new(Parts {
        store: store.clone(),
        authenticator: authenticator(&pki, &store)?,
        address: advertised.to_string(),
        ca_certificate: pki.ca_certificate().to_owned(),
        service_ranges,
        nodes: Arc::new(pki.node_client_config()?),
        audit,
        built_in: Arc::new(api::Registry::built_in()),
    });
    let controllers = config.controllers.then(|| pki.clone());
    let shared = matches!(config.store, StoreChoice::Etcd(_));
    let kubernetes_service =
        Arc::new(KubernetesService::new(&server, advertised, pki.names(), shared));
    match system_objects::create_missing(&server, &kubernetes_service, controllers.is_some()).await
    {
        Ok(()) => first.done(),
        // On a full disk the existing objects can be read and deleted.
        Err(why) if store.health().is_err() && server.has_objects() => {
            tracing::error!(
                why,
                "storing system objects failed; retrying until there is disk space"
            );
            let with_namespace_objects = controllers.is_some();
            system_objects::create_missing_later(
                &server,
                &kubernetes_service,
                with_namespace_objects,
            );
        }
        Err(why) => return Err(Error::Bootstrap(why)),
    }
    service_cidr::report_mismatch(&server, config.service_ranges).await;
    warn_of_other_family(advertised, service_ranges);
    background::start(&server, &kubernetes_service, controllers);
    background::start_usage(&server);
    let kubeconfig = dir.join("kubeconfig");
    let text = pki.kubeconfig(&format!("https://{}", reachable(address)));
    write_kubeconfig(&kubeconfig, &text).map_err(data_dir)?;
    let tls = Arc::new(pki.server_config()?);
    let (renewed, written) = (pki.clone(), kubeconfig.clone());
    background::spawn_until_closing(&server, move |_| {
        background::renew_certificates(renewed.clone(), written.clone(), reachable(address))
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let listeners = Listeners::new(server.clone(), tls);
    listeners.accept_on(listener);
    let done = tokio::spawn(listeners.clone().serve_until(stopped));
    let backups = Backups::new(store.clone(), dir);
    Ok(Running {
        server,
        address,
        kubeconfig,
        pki,
        kubernetes_service,
        further: Mutex::default(),
        listeners,
        stop,
        done,
        store,
        backups,
        _lock: lock,
    })
}

/// The address for clients on this machine: they cannot connect to the unspecified address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// The address for pods and nodes. If the server listens on all addresses, the address of the default route, of the
/// family of the Service `kubernetes` if possible: a Service has endpoints of its own families only.
fn advertised(address: SocketAddr, prefer_ipv4: bool) -> SocketAddr {
    let documentation: [IpAddr; 2] =
        [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    let of_default_route = |ipv4: bool| {
        // `[::]` accepts both families, `0.0.0.0` only one.
        let to = documentation.into_iter().find(|to| to.is_ipv4() == ipv4)?;
        let from: IpAddr = match ipv4 {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false if address.is_ipv6() => Ipv6Addr::UNSPECIFIED.into(),
            false => return None,
        };
        let socket = std::net::UdpSocket::bind((from, 0)).ok()?;
        // Sends no packet: the kernel only chooses the route, and with it our address.
        socket.connect((to, 9)).ok()?;
        Some(SocketAddr::new(socket.local_addr().ok()?.ip(), address.port()))
    };
    match address.ip().is_unspecified() {
        true => of_default_route(prefer_ipv4)
            .or_else(|| of_default_route(!prefer_ipv4))
            .unwrap_or_else(|| reachable(address)),
        false => address,
    }
}

fn warn_of_other_family(advertised: SocketAddr, service_ranges: ServiceRanges) {
    let service = service_ranges.api_address();
    // Pods reach a server that listens on loopback at their gateway.
    if advertised.is_ipv4() == service.is_ipv4() || advertised.ip().is_loopback() {
        return;
    }
    tracing::warn!(
        "pods cannot reach the API server: the Service kubernetes has the address {service}, but the server is \
         reached at {advertised}, which is of the other IP family. Give --listen an address of the family of the \
         first --service-cidr; [::]:6443 accepts both"
    );
}

/// On a full disk, an existing kubeconfig is kept.
fn write_kubeconfig(path: &Path, text: &str) -> std::io::Result<()> {
    if std::fs::read(path).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    match access::pki::write_secret(path, text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull && path.exists() => {
            tracing::error!(%error, path = %path.display(), "writing the kubeconfig failed: the disk is full");
            Ok(())
        }
        written => written,
    }
}

/// The embedded store, in the data directory.
pub(crate) const STORE_FILE: &str = "store.redb";
/// The prefix of our keys in etcd.
const ETCD_PREFIX: &str = "/landfall/";

pub(crate) fn backend(choice: &StoreChoice, data_dir: &Path) -> store::Backend {
    match choice {
        StoreChoice::Embedded => store::Backend::Embedded { path: data_dir.join(STORE_FILE) },
        StoreChoice::Etcd(endpoints) => store::Backend::Etcd(store::EtcdOptions {
            endpoints: endpoints.clone(),
            prefix: ETCD_PREFIX.into(),
        }),
    }
}

async fn open_store(config: &Config) -> Result<Store, Error> {
    let opened = Store::open(backend(&config.store, &config.data_dir), store_options()).await;
    opened.map_err(|error| match error {
        store::Error::InUse { .. } => Error::InUse { path: config.data_dir.clone() },
        error => Error::Store(error),
    })
}

/// Servers that share a store must have the same CA. Otherwise each would keep overwriting the published CA
/// certificate with its own.
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
    static_tokens.add(&pki.admin_token(), administrator());
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

fn administrator() -> User {
    User::authenticated(access::pki::ADMIN, &[access::authn::MASTERS])
}

/// Replaces the administrator's token in the data directory of a stopped server. The next start accepts only the new
/// one.
pub fn rotate_admin_token(data_dir: &Path) -> Result<(), Error> {
    let _lock = lock(data_dir)?;
    Ok(access::pki::rotate_admin_token(data_dir)?)
}

/// One server per data directory. The kernel releases the lock when the process ends.
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
    fn a_server_that_listens_on_all_addresses_advertises_one() {
        let given: SocketAddr = "192.0.2.7:6443".parse().unwrap();
        for prefer_ipv4 in [true, false] {
            assert_eq!(advertised(given, prefer_ipv4), given);
            for all in ["0.0.0.0:6443", "[::]:6443"] {
                let found = advertised(all.parse().unwrap(), prefer_ipv4);
                assert!(!found.ip().is_unspecified());
                assert_eq!(found.port(), 6443);
                assert!(found.is_ipv4() || all.starts_with('['), "0.0.0.0 accepts IPv4 only");
            }
        }
    }
}
