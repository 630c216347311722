//! The Service proxy of a simulated node: the real one, which writes into a table in memory ([`RuleTable`]) instead of the
//! kernel.
//!
//!     connection of the agent ──▶ caches ──▶ traffic::services ──▶ (planted fault?) ──▶ RuleTable ──▶ event log
//!
//! It starts and crashes with the agent; the table stays, as the kernel's rules do. Absent: health checks, metrics and
//! DNS, which need sockets, and routes and policies, which need packets.

mod rule_table;

pub(crate) use rule_table::RuleTable;

use crate::event_log::{Agent, Event, EventLog};
use crate::process_run::ProcessRun;
use async_trait::async_trait;
use client::Client;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::drain::DrainUpdate;
use node::NodeNetwork;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use traffic::services::PacketRules;
use traffic::{Watched, drain, services};

/// Wraps the packet rules of every node: for tests that plant a fault.
pub type WrapRules = Arc<dyn Fn(Box<dyn PacketRules>) -> Box<dyn PacketRules> + Send + Sync>;

/// The proxy of one node.
#[derive(Clone, Default)]
pub(crate) struct ProxyConfig {
    /// Changes are applied after a delay from this range.
    pub(crate) delay: Option<RangeInclusive<Duration>>,
    /// The run has no faults, so that every change is committed in time.
    pub(crate) undisturbed: bool,
    pub(crate) wrap: Option<WrapRules>,
}

/// What one run of an agent uses.
pub(crate) struct NodeProxy {
    pub(crate) client: Client,
    pub(crate) agent: Agent,
    pub(crate) process: Arc<ProcessRun>,
    pub(crate) log: EventLog,
    pub(crate) table: RuleTable,
    pub(crate) config: ProxyConfig,
    pub(crate) running: Mutex<Option<Parts>>,
}

/// Everything that runs. Dropping it stops it.
pub(crate) struct Parts {
    _proxy: services::Running,
    drain: drain::Running,
}

impl NodeProxy {
    fn running(&self) -> MutexGuard<'_, Option<Parts>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl node::Traffic for NodeProxy {
    async fn start(&self, network: NodeNetwork) -> Result<Vec<IpAddr>, String> {
        let watched = Watched::start(&self.client);
        watched.synced().await;
        let longest = self.config.delay.as_ref().map(|delay| *delay.end()).unwrap_or_default();
        self.log.record(Event::ProxyStarted {
            by: self.agent.clone(),
            addresses: network.addresses,
            longest_delay: self.config.undisturbed.then_some(longest),
        });
        let handle = self.table.of_process(&self.agent, &self.process, &self.log);
        let mut rules: Box<dyn PacketRules> = Box::new(handle);
        if let Some(wrap) = &self.config.wrap {
            rules = wrap(rules);
        }
        let config = services::Config {
            node_name: self.agent.node.to_string(),
            pod_ranges: Vec::new(),
            delay: self.config.delay.clone(),
        };
        let proxy = services::start(watched.clone(), rules, config);
        proxy.synced().await;
        let config = drain::Config {
            node_name: self.agent.node.to_string(),
            default: drain::Drain::Upstream,
        };
        let drain = drain::start(&self.client, &watched, proxy.committed(), config);
        *self.running() = Some(Parts { _proxy: proxy, drain });
        Ok(Vec::new())
    }

    fn routes(&self) -> Option<BoxStream<'static, Result<(), String>>> {
        None
    }

    async fn pod_attached(&self, _: &Pod, _: &[IpAddr]) -> Result<(), String> {
        Ok(())
    }

    fn drain(&self, pod: &Pod) -> Option<mpsc::Receiver<DrainUpdate>> {
        self.running().as_ref()?.drain.drains().wait(pod)
    }

    async fn pod_detached(&self, _: &str) {}

    async fn remove(&self) {
        drop(self.running().take());
    }
}
