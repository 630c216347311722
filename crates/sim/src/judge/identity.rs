//! No two processes ever have one name (T-INV-6, W-56): counted on the machines, whatever the API
//! says. Only where somebody forced it may there be two, and then the record of the ending says so.

use super::{Judge, Verdict, broken};
use crate::book::Name;
use lifecycle::timeline::{Termination, What};
use std::collections::{BTreeMap, BTreeSet};

/// Processes by the name of their pod.
#[derive(Default)]
pub(super) struct Holders {
    processes: BTreeMap<Name, Process>,
    running: BTreeMap<Name, BTreeSet<Name>>,
}

struct Process {
    /// `namespace/name` of its pod.
    pod: Name,
    uid: Name,
    container: Name,
}

impl Holders {
    pub(super) fn starts(&mut self, id: &Name, pod: &Name, uid: &Name, container: &Name) {
        let process = Process { pod: pod.clone(), uid: uid.clone(), container: container.clone() };
        self.processes.insert(id.clone(), process);
    }

    pub(super) fn ends(&mut self, id: &Name) {
        let Some(process) = self.processes.remove(id) else { return };
        if let Some(running) = self.running.get_mut(&process.pod) {
            running.remove(id);
        }
    }
}

impl Judge {
    /// A process runs from now on.
    pub(super) fn takes_its_name(&mut self, id: &Name) -> Verdict {
        let holders = &mut self.holders;
        let Some(new) = holders.processes.get(id) else { return Ok(()) };
        let running = holders.running.entry(new.pod.clone()).or_default();
        for other in running.iter() {
            let Some(old) = holders.processes.get(other) else { continue };
            if old.uid == new.uid && old.container == new.container {
                let why =
                    format!("{id} runs, and so does {other}, the same container of {}", new.pod);
                return broken("one process per container", why);
            }
            let forced = self.pods.get(&old.uid).is_some_and(|pod| pod.forced);
            if old.uid != new.uid && !forced {
                let why = format!("{id} runs as {}, and {other} still does", new.pod);
                return broken("W-56", why);
            }
        }
        running.insert(id.clone());
        Ok(())
    }

    /// What is on a node that somebody says is off may be given up.
    pub(super) fn disown(&mut self, node: &Name, still: bool) {
        if !still {
            self.disowned.remove(node);
            return;
        }
        self.disowned.insert(node.clone());
        let there = self.pods.values_mut().filter(|pod| pod.gone.is_none());
        there.filter(|pod| pod.object.node() == &**node).for_each(|pod| pod.forced = true);
    }

    /// Whoever was given up while it ran is said to be so, and nobody else is.
    pub(super) fn force_is_told(&self, records: &[Termination]) -> Verdict {
        for (uid, pod) in &self.pods {
            let record = records.iter().find(|record| record.pod.uid == **uid);
            let told = record.is_some_and(|record| {
                record.steps.iter().any(|step| matches!(step.what, What::UnsafeByRequest { .. }))
            });
            if pod.abandoned && !told {
                let why =
                    format!("{} ({uid}) ran when it was removed, and nothing says so", pod.name);
                return broken("unsafe by request", why);
            }
            if told && !pod.forced {
                let why = format!("{} ({uid}) is said to be forced, and nobody did", pod.name);
                return broken("unsafe by request", why);
            }
        }
        Ok(())
    }
}
