//! The Service through which pods reach the API, and the servers behind it (A-160, T-CTRL-63).
//!
//!     each server ──▶ a sign of life in the store, every 5 s ──▶ each server: whose are fresh?
//!                                                                      │
//!                                        Endpoints, EndpointSlices ◀───┘
//!
//! Signs are no API objects, as upstream's are none: who may write Leases must not say where the API
//! is. A server that has its store to itself gives no signs, and looks only when something happened.
//! Not here: what the objects look like (`bootstrap`).

use crate::bootstrap;
use crate::follower::{Follower, Heard};
use crate::object::{self, Store, Stored};
use crate::server::Server;
use crate::services;
use crate::signs::{self, Signs};
use crate::upkeep::{Keep, ensure};
use futures::future::try_join_all;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, EventKind, Expect, Write, WriteError};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The Service in `default`, and where the parts of it are stored.
const NAME: &str = "kubernetes";
pub(crate) const PARTS: [&str; 4] =
    ["services", "endpoints", SLICES, "networking.k8s.io/ipaddresses"];
const SLICES: &str = "discovery.k8s.io/endpointslices";

/// A stop does not wait longer for a store that does not answer.
const LEAVE_MAX: Duration = Duration::from_secs(2);

pub(crate) struct OwnService {
    server: Server,
    /// Where this server is.
    address: SocketAddr,
    /// What clients know it by.
    names: BTreeSet<String>,
    /// Other servers may use the same store.
    shared: bool,
    /// One look at a time, and none after the server has left.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    signs: Signs,
    left: bool,
}

impl OwnService {
    pub(crate) fn new(
        server: &Server,
        address: SocketAddr,
        names: &BTreeSet<String>,
        shared: bool,
    ) -> OwnService {
        let (server, names) = (server.clone(), names.clone());
        OwnService { server, address, names, shared, state: Mutex::default() }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Is there, with all servers that are.
    pub(crate) async fn ensure(&self) -> Result<(), String> {
        let mut state = self.state.lock().await;
        match state.left {
            true => Ok(()),
            false => self.show(&self.servers(&mut state.signs)).await,
        }
    }

    /// A sign of life now. Whoever cannot give one cannot blame others for giving none either.
    pub(crate) async fn sign(&self) -> Result<(), String> {
        let mut state = self.state.lock().await;
        if !self.shared || state.left {
            return Ok(());
        }
        let began = Instant::now();
        let signed = self.give_sign(false).await;
        if signed.is_err() || began.elapsed() > signs::EVERY {
            state.signs.excuse(Instant::now());
        }
        signed
    }

    async fn give_sign(&self, gone: bool) -> Result<(), String> {
        signs::give(self.server.store(), self.address, &self.names, gone).await
    }

    /// Gives signs and looks at those of others, for as long as the server runs.
    pub(crate) async fn live(self: Arc<Self>) {
        loop {
            tokio::time::sleep(signs::EVERY).await;
            let done = match self.sign().await {
                Ok(()) => self.ensure().await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tracing::warn!(error, "the other servers do not hear of this one");
            }
            self.forget_old().await;
        }
    }

    async fn forget_old(&self) {
        let store = self.server.store();
        let old = {
            let state = self.state.lock().await;
            state.signs.old(&signs::read(store), Instant::now(), clock::now())
        };
        signs::forget(store, old).await;
    }

    /// At an orderly stop, while requests are still answered: from now on others are asked.
    pub(crate) async fn leave(&self) {
        let leaving = async {
            let mut state = self.state.lock().await;
            state.left = true;
            if !self.shared {
                return Ok(()); // Nobody can ask before the next start.
            }
            self.give_sign(true).await?;
            let mut others = self.servers(&mut state.signs);
            others.remove(&self.address);
            match others.is_empty() {
                true => Ok(()),
                false => self.show(&others).await,
            }
        };
        let left = tokio::time::timeout(LEAVE_MAX, leaving).await;
        if let Err(error) = left.unwrap_or_else(|_| Err("the store does not answer".to_owned())) {
            tracing::warn!(error, "clients may go on looking for this server for a while");
        }
    }

    /// This one, and all others that give signs.
    fn servers(&self, signs: &mut Signs) -> BTreeSet<SocketAddr> {
        let mut servers = match self.shared {
            true => signs.fresh(&signs::read(self.server.store()), Instant::now(), clock::now()),
            false => BTreeSet::new(),
        };
        servers.insert(self.address);
        servers
    }

    async fn show(&self, servers: &BTreeSet<SocketAddr>) -> Result<(), String> {
        let api_ip = services::API_ADDRESS;
        let mut claim = services::ip_address("default", NAME, api_ip);
        claim["apiVersion"] = "networking.k8s.io/v1".into();
        claim["kind"] = "IPAddress".into();
        let service = bootstrap::kubernetes_service(api_ip.into(), self.address.port());
        let slices = bootstrap::endpoint_slices(servers);
        let count = slices.len();
        let mut parts = vec![
            (claim, Keep::AsItIs),
            (service, Keep::AsItIs),
            (bootstrap::endpoints(servers), Keep::ButContent),
        ];
        parts.extend(slices.into_iter().map(|slice| (slice, Keep::ButContent)));
        let ensured = parts.into_iter().map(|(object, keep)| ensure(&self.server, object, keep));
        try_join_all(ensured).await?;
        remove_other_slices(self.server.store(), count).await
    }

    /// `kubectl delete all --all` takes the Service along: it comes back (W-52). The address is given
    /// back after the Service is gone, so its claim is looked after too. What somebody writes into the
    /// rest is put right.
    pub(crate) async fn follow(self: Arc<Self>, collection: &'static str) {
        let mut follower = Follower::of(self.server.store(), collection);
        loop {
            let changed = match follower.next().await {
                Heard::Missed => true,
                Heard::Events(events) => events.iter().any(|event| self.concerns(event)),
            };
            if changed && let Err(error) = self.ensure().await {
                tracing::warn!(error, "the server's own Service is incomplete");
            }
        }
    }

    /// Two servers that for a moment do not see the same would answer each other's writes without end:
    /// where there may be several, an edit waits for the next look.
    fn concerns(&self, event: &object::Event) -> bool {
        let place = event.object.place();
        let ours = place == ("default", NAME) || place == ("", &services::API_ADDRESS.to_string());
        ours && match event.kind {
            EventKind::Deleted => true,
            EventKind::Updated => !self.shared,
            EventKind::Created => false,
        }
    }
}

/// There are as many as servers listen on different ports; usually one.
async fn remove_other_slices(store: &Store, wanted: usize) -> Result<(), String> {
    let (_, further) = store.list(SLICES, &object::store_name("default", NAME), None);
    for slice in further {
        let number = bootstrap::number_of_slice(slice.place().1);
        let ours = slice.label("kubernetes.io/service-name") == Some(NAME);
        if !ours || number.is_none_or(|number| number < wanted) {
            continue;
        }
        let write = Write {
            collection: SLICES.into(),
            name: slice.name().to_owned(),
            expect: Expect::Revision(slice.revision()),
            change: Change::Delete,
        };
        if let Err(WriteError::Backend(error)) = store.write(write).await {
            return Err(error.to_string());
        }
    }
    Ok(())
}
