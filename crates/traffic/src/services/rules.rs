//! The packet rules of Services behind a trait: the kernel's, or those of a simulated node.

use super::plan::UdpPort;
use network::{Frontend, Protocol, Ranges, ServiceRules, Services, conntrack};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Changes of Services: their new rules, or `None` for those that are gone.
type Changes = Vec<(Arc<str>, Option<ServiceRules>)>;

/// Where the rules of Services are in force. [`network::Services`] is the kernel's.
pub trait PacketRules: Send + 'static {
    /// Makes these all Services there are. Returns how many elements were sent.
    fn replace_all(&mut self, services: HashMap<Arc<str>, ServiceRules>) -> network::Result<usize>;
    /// Replaces the rules of single Services, all or none.
    fn apply(&mut self, changes: Changes) -> network::Result<usize>;
    fn set_ranges(&mut self, ranges: Ranges) -> network::Result<()>;
    /// Removes what is left of earlier changes.
    fn sweep(&mut self) -> network::Result<()>;
    fn needs_sweep(&self) -> bool;
    /// Whether the rules in force are those that were written.
    fn verify(&mut self) -> network::Result<bool>;
    /// Lets UDP clients of these ports choose again if their endpoint no longer serves (NET-60). A port without any
    /// serving endpoint is left alone, as upstream does (T-NET-24).
    fn forget_udp_clients(&mut self, ports: &[UdpPort]) -> Vec<Forgotten>;
}

/// Tracked connections of one IP family that were deleted.
pub struct Forgotten {
    pub ipv4: bool,
    pub connections: usize,
    pub took: Duration,
}

impl PacketRules for Services {
    fn replace_all(&mut self, services: HashMap<Arc<str>, ServiceRules>) -> network::Result<usize> {
        Services::replace_all(self, services)
    }

    fn apply(&mut self, changes: Changes) -> network::Result<usize> {
        Services::apply(self, changes)
    }

    fn set_ranges(&mut self, ranges: Ranges) -> network::Result<()> {
        Services::set_ranges(self, ranges)
    }

    fn sweep(&mut self) -> network::Result<()> {
        Services::sweep(self)
    }

    fn needs_sweep(&self) -> bool {
        Services::needs_sweep(self)
    }

    fn verify(&mut self) -> network::Result<bool> {
        Services::verify(self)
    }

    fn forget_udp_clients(&mut self, ports: &[UdpPort]) -> Vec<Forgotten> {
        delete_stale(ports)
    }
}

/// Calls the kernel outside of the async threads, and logs failures.
pub(super) struct Rules {
    /// `None` while a call is running, and for good if one panicked.
    rules: Option<Box<dyn PacketRules>>,
}

impl Rules {
    pub(super) fn new(rules: Box<dyn PacketRules>) -> Rules {
        Rules { rules: Some(rules) }
    }

    /// True if it succeeded.
    pub(super) async fn replace_all(&mut self, all: HashMap<Arc<str>, ServiceRules>) -> bool {
        self.call(move |rules| rules.replace_all(all)).await.is_some()
    }

    /// How many elements were sent. `None`: it failed.
    pub(super) async fn apply(&mut self, changes: Changes) -> Option<usize> {
        self.call(move |rules| rules.apply(changes)).await
    }

    pub(super) async fn set_ranges(&mut self, ranges: Ranges) -> bool {
        self.call(move |rules| rules.set_ranges(ranges)).await.is_some()
    }

    /// True if it succeeded.
    pub(super) async fn sweep(&mut self) -> bool {
        self.call(|rules| rules.sweep()).await.is_some()
    }

    pub(super) fn needs_sweep(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.needs_sweep())
    }

    /// False if the kernel has other rules than were written, or cannot be asked.
    pub(super) async fn verify(&mut self) -> bool {
        self.call(|rules| rules.verify()).await == Some(true)
    }

    pub(super) async fn forget_udp_clients(&mut self, ports: Vec<UdpPort>) -> Vec<Forgotten> {
        self.call(move |rules| Ok(rules.forget_udp_clients(&ports))).await.unwrap_or_default()
    }

    async fn call<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn PacketRules) -> network::Result<T> + Send + 'static,
    ) -> Option<T> {
        let mut rules = self.rules.take()?;
        let done = clock::run_blocking(move || {
            let result = work(rules.as_mut());
            (rules, result)
        });
        let (rules, result) = match done.await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "writing the packet rules of Services panicked");
                return None;
            }
        };
        self.rules = Some(rules);
        result
            .inspect_err(
                |error| tracing::warn!(%error, "writing the packet rules of Services failed"),
            )
            .ok()
    }
}

fn delete_stale(ports: &[UdpPort]) -> Vec<Forgotten> {
    let mut serving: HashMap<Frontend, &UdpPort> = HashMap::new();
    for port in ports.iter().filter(|port| !port.serving.is_empty()) {
        serving.extend(port.frontends.iter().map(|frontend| (*frontend, port)));
    }
    let mut deleted = Vec::new();
    for ipv4 in [true, false] {
        if !serving.keys().any(|frontend| frontend.address.is_ipv4() == ipv4) {
            continue;
        }
        let began = Instant::now();
        let result = conntrack::delete_matching(ipv4, |connection| {
            let (original, reply) = (&connection.original, &connection.reply);
            let frontend = Frontend {
                address: original.destination,
                protocol: connection.protocol,
                port: original.destination_port,
            };
            let endpoint = SocketAddr::new(reply.source, reply.source_port);
            connection.protocol == Protocol::Udp
                && serving.get(&frontend).is_some_and(|port| !port.serving.contains(&endpoint))
        });
        match result {
            Ok(connections) => {
                deleted.push(Forgotten { ipv4, connections, took: began.elapsed() });
            }
            Err(error) => {
                tracing::warn!(%error, "deleting tracked UDP connections to former endpoints failed");
            }
        }
    }
    deleted
}
