//! Keeps the Service `kubernetes`, through which pods reach the API, and its endpoints (A-160, T-CTRL-63).
//!
//!     each server ──▶ heartbeat in the store, every 5 s ──▶ each server: which servers are alive?
//!                                                                      │
//!                                        Endpoints, EndpointSlices ◀───┘
//!
//! Heartbeats are not API objects, as upstream's are not: users who may write Leases must not be able to redirect
//! API traffic. A server that does not share its store sends no heartbeats, and acts only on changes.
//! Not here: the content of the objects (`bootstrap`).

use crate::background::follower::{Followed, Follower};
use crate::background::server_heartbeats::{self, Heartbeats};
use crate::background::system_objects::{IfExists, ensure};
use crate::bootstrap;
use crate::object::{self, Store, Stored};
use crate::server::Server;
use crate::service_allocation::{self, ServiceRanges};
use api::value::ValueExt;
use futures::future::try_join_all;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use store::{Change, EventKind, Expect, Write, WriteError};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The name of the Service, in the namespace `default`.
const NAME: &str = "kubernetes";
/// The collections of the objects that belong to the Service.
pub(crate) const COLLECTIONS: [&str; 4] =
    ["services", "endpoints", SLICES, "networking.k8s.io/ipaddresses"];
const SLICES: &str = "discovery.k8s.io/endpointslices";

/// How long a stop waits for a store that does not respond.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct KubernetesService {
    server: Server,
    /// Whether other servers may use the same store.
    shared: bool,
    /// One update at a time, and none after the server has left.
    state: Mutex<State>,
}

struct State {
    /// This server's address.
    address: SocketAddr,
    /// The names by which clients reach it.
    names: Arc<BTreeSet<String>>,
    heartbeats: Heartbeats,
    left: bool,
}

impl KubernetesService {
    pub(crate) fn new(
        server: &Server,
        address: SocketAddr,
        names: Arc<BTreeSet<String>>,
        shared: bool,
    ) -> KubernetesService {
        let state = State { address, names, heartbeats: Heartbeats::default(), left: false };
        KubernetesService { server: server.clone(), shared, state: Mutex::new(state) }
    }

    /// From now on, the endpoints have this address of the server instead of the previous one.
    pub(crate) async fn advertise(
        &self,
        address: SocketAddr,
        names: Arc<BTreeSet<String>>,
    ) -> Result<(), String> {
        let mut state = self.state.lock().await;
        if state.left || state.address == address {
            return Ok(());
        }
        if self.shared {
            // The entry stays, because certificate requests must not get the former address either.
            self.write_heartbeat(&state, true).await?;
        }
        (state.address, state.names) = (address, names);
        if self.shared {
            self.write_heartbeat(&state, false).await?;
        }
        let servers = self.servers(&mut state);
        self.update(&state, &servers).await
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Creates or updates the Service, with all servers that are alive.
    pub(crate) async fn ensure(&self) -> Result<(), String> {
        let mut state = self.state.lock().await;
        match state.left {
            true => Ok(()),
            false => {
                let servers = self.servers(&mut state);
                self.update(&state, &servers).await
            }
        }
    }

    /// Writes this server's heartbeat. If that fails, the other servers may have the same problem, so they count as
    /// alive for another period.
    pub(crate) async fn send_heartbeat(&self) -> Result<(), String> {
        let mut state = self.state.lock().await;
        if !self.shared || state.left {
            return Ok(());
        }
        let began = Instant::now();
        let sent = self.write_heartbeat(&state, false).await;
        if sent.is_err() || began.elapsed() > server_heartbeats::INTERVAL {
            state.heartbeats.extend(Instant::now());
        }
        sent
    }

    async fn write_heartbeat(&self, state: &State, stopped: bool) -> Result<(), String> {
        server_heartbeats::send(self.server.store(), state.address, &state.names, stopped).await
    }

    /// Sends heartbeats and updates the endpoints for as long as the server runs.
    pub(crate) async fn send_heartbeats(self: Arc<Self>) {
        loop {
            tokio::time::sleep(server_heartbeats::INTERVAL).await;
            let done = match self.send_heartbeat().await {
                Ok(()) => self.ensure().await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tracing::warn!(
                    error,
                    "sending this server's heartbeat or updating its endpoints failed"
                );
            }
            self.delete_expired().await;
        }
    }

    async fn delete_expired(&self) {
        let store = self.server.store();
        let expired = {
            let state = self.state.lock().await;
            let stored = server_heartbeats::read(store);
            state.heartbeats.expired(&stored, Instant::now(), clock::now())
        };
        server_heartbeats::delete(store, expired).await;
    }

    /// Removes this server from the endpoints at an orderly stop, while it still serves requests.
    pub(crate) async fn leave(&self) {
        let leaving = async {
            let mut state = self.state.lock().await;
            state.left = true;
            if !self.shared {
                return Ok(()); // No other server can serve requests before the next start.
            }
            self.write_heartbeat(&state, true).await?;
            let mut others = self.servers(&mut state);
            others.remove(&state.address);
            match others.is_empty() {
                true => Ok(()),
                false => self.update(&state, &others).await,
            }
        };
        let left = tokio::time::timeout(LEAVE_TIMEOUT, leaving).await;
        if let Err(error) = left.unwrap_or_else(|_| Err("the store does not respond".to_owned())) {
            tracing::warn!(
                error,
                "removing this server from the endpoints failed; clients may try it for a while"
            );
        }
    }

    /// This server, and all others that are alive.
    fn servers(&self, state: &mut State) -> BTreeSet<SocketAddr> {
        let mut servers = match self.shared {
            true => {
                let stored = server_heartbeats::read(self.server.store());
                state.heartbeats.alive(&stored, Instant::now(), clock::now())
            }
            false => BTreeSet::new(),
        };
        servers.insert(state.address);
        servers
    }

    fn cluster_ip(&self) -> IpAddr {
        cluster_ip(self.server.store(), self.server.service_ranges())
    }

    async fn update(&self, state: &State, servers: &BTreeSet<SocketAddr>) -> Result<(), String> {
        let api_ip = self.cluster_ip();
        let mut claim = service_allocation::ip_address("default", NAME, api_ip);
        claim["apiVersion"] = "networking.k8s.io/v1".into();
        claim["kind"] = "IPAddress".into();
        let service = bootstrap::kubernetes_service(api_ip, state.address.port());
        let slices = bootstrap::endpoint_slices(servers);
        let count = slices.len();
        let mut parts = vec![
            (claim, IfExists::Keep),
            (service, IfExists::Keep),
            (bootstrap::endpoints(servers), IfExists::Update),
        ];
        parts.extend(slices.into_iter().map(|slice| (slice, IfExists::Update)));
        let ensured =
            parts.into_iter().map(|(object, if_exists)| ensure(&self.server, object, if_exists));
        try_join_all(ensured).await?;
        remove_other_slices(self.server.store(), count).await
    }

    /// Restores the Service after `kubectl delete all --all` (W-52), the claim of its address, which is released after
    /// the Service is deleted, and edited endpoints.
    pub(crate) async fn follow(self: Arc<Self>, collection: &'static str) {
        let mut follower = Follower::of(self.server.store(), collection);
        loop {
            let changed = match follower.next().await {
                Followed::Gap => true,
                Followed::Events(events) => events.iter().any(|event| self.concerns(event)),
            };
            if changed && let Err(error) = self.ensure().await {
                tracing::warn!(error, "restoring the Service kubernetes failed");
            }
        }
    }

    /// With several servers, edits wait for the next heartbeat: servers that see different states for a moment would
    /// otherwise keep overwriting each other.
    fn concerns(&self, event: &object::Event) -> bool {
        let place = event.object.place();
        let ours = place == ("default", NAME) || place == ("", &self.cluster_ip().to_string());
        ours && match event.kind {
            EventKind::Deleted => true,
            EventKind::Updated => !self.shared,
            EventKind::Created => false,
        }
    }
}

/// The address of the Service if it exists; otherwise the first one of the first range. If somebody gave the cluster another
/// range, the Service keeps its address until it is deleted, as upstream.
pub(crate) fn cluster_ip(store: &Store, ranges: ServiceRanges) -> IpAddr {
    let stored = store.get("services", &object::store_name("default", NAME));
    let stored = stored.and_then(|stored| stored.value().text(&["spec", "clusterIP"]).parse().ok());
    stored.unwrap_or_else(|| ranges.api_address())
}

/// Deletes slices beyond the first `wanted`. There is one per port and address family; usually one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Parts;
    use crate::start;
    use access::pki::Pki;

    fn server(dir: &std::path::Path) -> Server {
        let pki = Pki::load_or_create(dir, &[]).unwrap();
        let store = Store::open_memory(&store::Memory::default(), start::store_options());
        Server::new(Parts {
            authenticator: start::authenticator(&pki, &store).unwrap(),
            store,
            address: String::new(),
            ca_certificate: pki.ca_certificate().to_owned(),
            service_ranges: ServiceRanges::default(),
            nodes: Arc::new(pki.node_client_config().unwrap()),
            audit: None,
            built_in: Arc::new(api::Registry::built_in()),
        })
    }

    /// The addresses of the Endpoints, with their ports.
    fn listed(server: &Server) -> Vec<String> {
        let stored = server.store().get("endpoints", "default/kubernetes").unwrap().value();
        let subsets = stored["subsets"].as_array().unwrap().iter();
        let mut listed: Vec<String> = subsets
            .flat_map(|subset| {
                let addresses = subset["addresses"].as_array().unwrap().iter();
                addresses.map(|one| format!("{}:{}", one.text(&["ip"]), subset["ports"][0]["port"]))
            })
            .collect();
        listed.sort();
        listed
    }

    /// NET-95: each of several servers replaces only its own address.
    #[tokio::test]
    async fn net_95_each_server_advertises_its_own_address() {
        let dir = tempfile::tempdir().unwrap();
        let server = server(dir.path());
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let member = |address: &str| {
            let names = Arc::new(BTreeSet::from([address.to_owned()]));
            KubernetesService::new(&server, at(address), names, true)
        };
        let (first, second) = (member("127.0.0.1:6443"), member("127.0.0.1:7443"));
        for one in [&first, &second] {
            one.send_heartbeat().await.unwrap();
            one.ensure().await.unwrap();
        }
        assert_eq!(listed(&server), ["127.0.0.1:6443", "127.0.0.1:7443"]);
        let names = Arc::new(BTreeSet::from(["10.244.0.1".to_owned()]));
        first.advertise(at("10.244.0.1:6443"), names).await.unwrap();
        assert_eq!(listed(&server), ["10.244.0.1:6443", "127.0.0.1:7443"]);
        second.send_heartbeat().await.unwrap();
        second.ensure().await.unwrap();
        assert_eq!(listed(&server), ["10.244.0.1:6443", "127.0.0.1:7443"]);
        first.leave().await;
        assert_eq!(listed(&server), ["127.0.0.1:7443"]);
        first.advertise(at("10.244.0.9:6443"), Arc::default()).await.unwrap();
        assert_eq!(listed(&server), ["127.0.0.1:7443"], "it has left");
    }
}
