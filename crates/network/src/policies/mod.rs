//! The packet rules of network policies: one table per IP family, which nothing else uses.
//!
//!     forward ──▶ egress ──▶ map by incoming link ──▶ egress-lf0p17 ──▶ chains of its policies ──▶ drop
//!     input   ──▶ egress
//!     forward ──▶ ingress ─▶ map by outgoing link ──▶ ingress-lf0p18 ─▶ chains of its policies ──▶ drop
//!
//! Only isolated pods have chains. Packets of established connections and ICMP errors about them pass first, so a
//! change of the rules applies to new connections only. The chains run at filter priority: after the translation of
//! Service addresses, before masquerading (NET-130).
//!
//! Pods are found by their link and not by their address: a pod cannot forge the link on which its packets arrive.
//! Its packets to the node itself (input) need permission too; packets from the node to a pod (output) need none
//! (NET-131). A new connection from a pod must have the pod's own source address, because peers are recognized
//! by it.
//!
//! Not here: which pods and peers a policy means (`traffic::policies`).

mod change;
mod write;

pub(crate) use change::link_name;
pub use change::{
    ChainChange, Change, Direction, Life, Member, Peers, PodChange, PodLinks, PolicyRule, Ports,
    SetChange, SetKind, Target,
};

use crate::namespace::Namespace;
use crate::nft::{self, Batch};
use crate::{Cidr, Protocol, Result, conntrack};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use write::FamilyTable;

#[derive(Debug, Clone)]
pub struct PolicyConfig {
    /// Name of the tables. No other program may use it.
    pub table: String,
    /// As in `PodsConfig`.
    pub link: String,
    /// As in `PodsConfig`. They decide which IP families have a table.
    pub cidrs: Vec<Cidr>,
}

/// The policy tables of one node. Dropping it leaves the tables as they are.
pub struct PolicyTables {
    node: Namespace,
    inner: Arc<Inner>,
}

struct Inner {
    connection: Mutex<nft::Connection>,
    families: Vec<FamilyTable>,
}

impl PolicyTables {
    /// Opens the tables in the network namespace of the calling thread. Changes nothing: rules of an earlier process
    /// stay in force until [`PolicyTables::replace`].
    pub async fn open(config: PolicyConfig) -> Result<PolicyTables> {
        let node = Namespace::current()?;
        let connection = node.run(nft::Connection::open).await?;
        let families = config.cidrs.iter().map(|range| FamilyTable::new(&config, range.is_ipv4()));
        let inner = Inner { connection: Mutex::new(connection), families: families.collect() };
        Ok(PolicyTables { node, inner: Arc::new(inner) })
    }

    /// Replaces the tables by new ones with these contents, each in one transaction.
    pub async fn replace(&self, contents: Change) -> Result<()> {
        self.commit(move |family, batch| {
            family.create(batch);
            family.apply(batch, &contents);
        })
        .await
    }

    /// Applies a change, to each table in one transaction. Fails if a table is not as expected; the caller must then
    /// replace the tables.
    pub async fn update(&self, change: Change) -> Result<()> {
        self.commit(move |family, batch| family.apply(batch, &change)).await
    }

    /// Forgets the UDP flows of addresses that a new pod has, before it sends or receives anything. They are flows of
    /// an earlier pod, and the rules would take them for established connections of the new one.
    pub async fn forget_flows(&self, addresses: Vec<IpAddr>) -> Result<()> {
        let work = move || {
            for ipv4 in BTreeSet::from_iter(addresses.iter().map(IpAddr::is_ipv4)) {
                conntrack::delete_matching(ipv4, |connection| {
                    let (original, reply) = (connection.original, connection.reply);
                    let ends = [original.source, original.destination, reply.source];
                    connection.protocol == Protocol::Udp
                        && ends.iter().any(|end| addresses.contains(end))
                })?;
            }
            Ok(())
        };
        self.node.run(work).await
    }

    /// Removes the tables: every connection is allowed.
    pub async fn remove(&self) -> Result<()> {
        self.commit(FamilyTable::remove).await
    }

    async fn commit(
        &self,
        write: impl Fn(&FamilyTable, &mut Batch) + Send + 'static,
    ) -> Result<()> {
        let inner = self.inner.clone();
        let work = move || {
            let mut connection = inner.connection.lock().unwrap_or_else(PoisonError::into_inner);
            // The families are independent, and the size of a transaction is limited.
            inner.families.iter().try_for_each(|family| {
                let mut batch = Batch::new();
                write(family, &mut batch);
                connection.commit(batch)
            })
        };
        self.node.run(work).await
    }
}

/// Removes the tables of this name, in the network namespace of the calling thread. For a node that is removed.
pub fn remove_tables(table: &str) -> Result<()> {
    crate::remove_service_rules(table)
}
