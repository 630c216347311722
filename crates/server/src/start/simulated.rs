//! A server without listener, disk and keys of its own, for simulated clusters.
//!
//!     ServerTemplate::create (once) ──▶ instance (one per cluster) ──▶ ServerInstance::start, crash, start, …
//!
//! What is expensive and the same in every cluster (keys, bootstrap objects, compiled roles) is created once, in the
//! template. Requests come through [`Server::in_process`] and take the usual path.

use crate::background::kubernetes_service::KubernetesService;
use crate::background::{self, system_objects};
use crate::object::{Index, Store};
use crate::server::{Parts, Server};
use crate::service_allocation::ServiceRanges;
use crate::start::{Error, authenticator, store_options};
use access::authz::Policy;
use access::pki::Pki;
use api::Registry;
use futures::future::BoxFuture;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use store::Memory;
use tokio::sync::oneshot;

/// The address that the server reports. Nothing listens there.
const ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 6443);

/// The state that every simulated cluster starts with. Cheap to clone.
#[derive(Clone)]
pub struct ServerTemplate(Arc<Prepared>);

struct Prepared {
    keys: Keys,
    memory: Memory<Index>,
    policy: Arc<Policy>,
}

#[derive(Clone)]
struct Keys {
    pki: Arc<Pki>,
    nodes: Arc<rustls::ClientConfig>,
    built_in: Arc<Registry>,
}

/// The server of one simulated cluster: its stored objects survive a crash.
pub struct ServerInstance {
    template: ServerTemplate,
    memory: Memory<Index>,
    /// Not started yet, so the store is as in the template.
    fresh: bool,
}

/// A running simulated server. Dropping it is a crash: it writes nothing more.
pub struct SimulatedServer {
    pub server: Server,
    store: Store,
}

impl ServerTemplate {
    /// Creates keys in `dir`, which is not needed afterwards, and the bootstrap objects. Boxed like
    /// [`start`](crate::start).
    pub fn create(dir: &Path) -> BoxFuture<'_, Result<ServerTemplate, Error>> {
        Box::pin(ServerTemplate::create_objects(dir))
    }

    async fn create_objects(dir: &Path) -> Result<ServerTemplate, Error> {
        let api_address = ServiceRanges::default().api_address();
        let names = [ADDRESS.ip().to_string(), api_address.to_string()];
        let pki = Arc::new(Pki::load_or_create(dir, &names)?);
        let keys = Keys {
            nodes: Arc::new(pki.node_client_config()?),
            built_in: Arc::new(Registry::built_in()),
            pki,
        };
        let memory = Memory::default();
        let simulated = SimulatedServer::open(&keys, &memory)?;
        let service = KubernetesService::new(&simulated.server, ADDRESS, keys.pki.names(), false);
        let stored = system_objects::create_missing(&simulated.server, &service, true).await;
        stored.map_err(Error::Bootstrap)?;
        let policy = simulated.server.policy();
        Ok(ServerTemplate(Arc::new(Prepared { keys, memory, policy })))
    }

    pub fn instance(&self) -> ServerInstance {
        ServerInstance { template: self.clone(), memory: self.0.memory.copy(), fresh: true }
    }
}

impl ServerInstance {
    /// Starts a server on the stored objects. A server that was still running on them can no longer write. Boxed like
    /// [`start`](crate::start).
    pub fn start(&mut self) -> BoxFuture<'_, Result<SimulatedServer, Error>> {
        Box::pin(self.open_and_serve())
    }

    async fn open_and_serve(&mut self) -> Result<SimulatedServer, Error> {
        let prepared = &self.template.0;
        let simulated = SimulatedServer::open(&prepared.keys, &self.memory)?;
        let service = Arc::new(KubernetesService::new(
            &simulated.server,
            ADDRESS,
            prepared.keys.pki.names(),
            false,
        ));
        if std::mem::take(&mut self.fresh) {
            simulated.server.set_policy(Policy::clone(&prepared.policy));
        } else {
            let stored = system_objects::create_missing(&simulated.server, &service, true).await;
            stored.map_err(Error::Bootstrap)?;
        }
        background::start(&simulated.server, &service, Some(prepared.keys.pki.clone()));
        Ok(simulated)
    }

    /// A template with the objects that are stored now, so that other clusters can start from this state.
    pub fn to_template(&self, simulated: &SimulatedServer) -> ServerTemplate {
        let keys = self.template.0.keys.clone();
        let policy = simulated.server.policy();
        ServerTemplate(Arc::new(Prepared { keys, memory: self.memory.copy(), policy }))
    }

    /// Accepts `writes` more writes, and none after that until the next start. Resolves after the last one: the moment
    /// to let the server crash.
    pub fn cut_after(&self, writes: u64) -> oneshot::Receiver<()> {
        self.memory.cut_after(writes)
    }
}

impl SimulatedServer {
    fn open(keys: &Keys, memory: &Memory<Index>) -> Result<SimulatedServer, Error> {
        let store = Store::open_memory(memory, store_options());
        let server = Server::new(Parts {
            store: store.clone(),
            authenticator: authenticator(&keys.pki, &store)?,
            address: ADDRESS.to_string(),
            ca_certificate: keys.pki.ca_certificate().to_owned(),
            service_ranges: ServiceRanges::default(),
            nodes: keys.nodes.clone(),
            audit: None,
            built_in: keys.built_in.clone(),
        });
        Ok(SimulatedServer { server, store })
    }
}

impl Drop for SimulatedServer {
    fn drop(&mut self) {
        self.store.cut();
        self.server.close_watches();
    }
}
