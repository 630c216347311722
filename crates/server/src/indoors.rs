//! A server without a listener, a disk and keys of its own: for simulated clusters.
//!
//!     Foundation::lay (once) ──▶ Foundation::site (one per cluster) ──▶ Site::start, crash, start, …
//!
//! Everything that costs time and is the same in every cluster (keys, the first objects, compiled
//! roles) is made once. Requests come through [`Server::door`] and take the way they always take.

use crate::authz::Policy;
use crate::object::{Index, Store};
use crate::own_service::OwnService;
use crate::pki::Pki;
use crate::run::{Error, authenticator, store_options};
use crate::server::{Parts, Server};
use crate::upkeep;
use api::Registry;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use store::Memory;
use tokio::sync::oneshot;

/// Where the server says it is. Nobody can go there.
const ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 6443);

/// What every cluster begins with. Cheap to clone.
#[derive(Clone)]
pub struct Foundation(Arc<Laid>);

struct Laid {
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

/// The place of one cluster's server: what it has stored stays here when it crashes.
pub struct Site {
    foundation: Foundation,
    memory: Memory<Index>,
    /// It is as the foundation left it.
    fresh: bool,
}

/// A server that answers at its door. Dropped, it is dead: it writes nothing more.
pub struct Indoors {
    pub server: Server,
    store: Store,
}

impl Foundation {
    /// Makes the keys below `dir`, which is not needed afterwards, and the first objects.
    pub async fn lay(dir: &Path) -> Result<Foundation, Error> {
        let pki = Arc::new(Pki::load_or_create(dir, &[ADDRESS.ip().to_string()])?);
        let keys = Keys {
            nodes: Arc::new(pki.node_client_config()?),
            built_in: Arc::new(Registry::built_in()),
            pki,
        };
        let memory = Memory::default();
        let indoors = Indoors::open(&keys, &memory)?;
        let own = OwnService::new(&indoors.server, ADDRESS, keys.pki.names(), false);
        let stored = upkeep::store_what_is_missing(&indoors.server, &own, true).await;
        stored.map_err(Error::Bootstrap)?;
        let policy = indoors.server.policy();
        Ok(Foundation(Arc::new(Laid { keys, memory, policy })))
    }

    pub fn site(&self) -> Site {
        Site { foundation: self.clone(), memory: self.0.memory.copy(), fresh: true }
    }
}

impl Site {
    /// Opens what is there. A server that was still running here can write no more.
    pub async fn start(&mut self) -> Result<Indoors, Error> {
        let laid = &self.foundation.0;
        let indoors = Indoors::open(&laid.keys, &self.memory)?;
        let own = Arc::new(OwnService::new(&indoors.server, ADDRESS, laid.keys.pki.names(), false));
        if std::mem::take(&mut self.fresh) {
            indoors.server.set_policy(Policy::clone(&laid.policy));
        } else {
            let stored = upkeep::store_what_is_missing(&indoors.server, &own, true).await;
            stored.map_err(Error::Bootstrap)?;
        }
        upkeep::attend(&indoors.server, &own, Some(laid.keys.pki.clone()));
        Ok(indoors)
    }

    /// What is stored now is what other clusters begin with, so that not every one of them has to get there.
    pub fn foundation(&self, indoors: &Indoors) -> Foundation {
        let keys = self.foundation.0.keys.clone();
        let policy = indoors.server.policy();
        Foundation(Arc::new(Laid { keys, memory: self.memory.copy(), policy }))
    }

    /// After `writes` more nothing is stored before the next start. Resolves when it is so far: the
    /// moment to let the server crash.
    pub fn cut_after(&self, writes: u64) -> oneshot::Receiver<()> {
        self.memory.cut_after(writes)
    }
}

impl Indoors {
    fn open(keys: &Keys, memory: &Memory<Index>) -> Result<Indoors, Error> {
        let store = Store::open_memory(memory, store_options());
        let server = Server::new(Parts {
            store: store.clone(),
            authenticator: authenticator(&keys.pki, &store)?,
            address: ADDRESS.to_string(),
            ca_certificate: keys.pki.ca_certificate().to_owned(),
            nodes: keys.nodes.clone(),
            audit: None,
            built_in: keys.built_in.clone(),
        });
        Ok(Indoors { server, store })
    }
}

impl Drop for Indoors {
    fn drop(&mut self) {
        self.store.cut();
        self.server.close_watches();
    }
}
