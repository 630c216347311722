//! The packet rules of Services of a simulated node: a table in memory instead of the kernel's.

use crate::event_log::{Agent, Event, EventLog, Name};
use crate::process_run::ProcessRun;
use network::{Ranges, ServiceEntry, ServiceRules};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use traffic::services::{Forgotten, PacketRules, UdpPort};

/// The rules in force on one node, by `namespace/name` of their Service. Clones share them, and they outlive the agent.
#[derive(Clone, Default)]
pub(crate) struct RuleTable(Arc<Mutex<BTreeMap<Name, Arc<ServiceRules>>>>);

impl RuleTable {
    /// The table as one run of an agent writes it.
    pub(super) fn of_process(
        &self,
        agent: &Agent,
        process: &Arc<ProcessRun>,
        log: &EventLog,
    ) -> RuleWriter {
        let (table, agent) = (self.clone(), agent.clone());
        RuleWriter { table, agent, process: process.clone(), log: log.clone() }
    }

    /// What the node does at each address of these Services, in a fixed order.
    pub(crate) fn entries(
        &self,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(Name, network::Frontend, ServiceEntry)> {
        let all = self.rules();
        let wanted = all.iter().filter(|(service, _)| wanted(service));
        let entries = wanted.flat_map(|(service, rules)| {
            rules
                .entries
                .iter()
                .map(|(frontend, entry)| (service.clone(), *frontend, entry.clone()))
        });
        entries.collect()
    }

    fn rules(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<ServiceRules>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the table and records every change. A process that has crashed changes nothing.
pub(super) struct RuleWriter {
    table: RuleTable,
    agent: Agent,
    process: Arc<ProcessRun>,
    log: EventLog,
}

impl RuleWriter {
    fn commit(&self, service: &Name, rules: Option<ServiceRules>) -> usize {
        let rules = rules.map(Arc::new);
        let before = match &rules {
            Some(rules) => self.table.rules().insert(service.clone(), rules.clone()),
            None => self.table.rules().remove(service),
        };
        if before == rules {
            return 0;
        }
        self.log.record(Event::RulesCommitted {
            by: self.agent.clone(),
            service: service.clone(),
            rules,
        });
        1
    }

    /// A transaction is a step at which the process may crash, before the effect.
    fn begin(&self) -> network::Result<()> {
        match self.process.step_in_place() {
            true => Ok(()),
            false => Err(network::Error::Invalid("the process has crashed".to_owned())),
        }
    }
}

impl PacketRules for RuleWriter {
    fn replace_all(&mut self, services: HashMap<Arc<str>, ServiceRules>) -> network::Result<usize> {
        self.begin()?;
        let wanted: BTreeMap<Name, ServiceRules> = services.into_iter().collect();
        let known: Vec<Name> = self.table.rules().keys().cloned().collect();
        let gone = known.into_iter().filter(|service| !wanted.contains_key(service));
        let mut changed: usize = gone.map(|service| self.commit(&service, None)).sum();
        for (service, rules) in wanted {
            changed += self.commit(&service, Some(rules));
        }
        Ok(changed)
    }

    fn apply(&mut self, changes: Vec<(Arc<str>, Option<ServiceRules>)>) -> network::Result<usize> {
        self.begin()?;
        Ok(changes.into_iter().map(|(service, rules)| self.commit(&service, rules)).sum())
    }

    fn set_ranges(&mut self, _: Ranges) -> network::Result<()> {
        Ok(())
    }

    fn sweep(&mut self) -> network::Result<()> {
        Ok(())
    }

    fn needs_sweep(&self) -> bool {
        false
    }

    fn verify(&mut self) -> network::Result<bool> {
        Ok(true)
    }

    /// Simulated nodes track no connections.
    fn forget_udp_clients(&mut self, _: &[UdpPort]) -> Vec<Forgotten> {
        Vec::new()
    }
}
