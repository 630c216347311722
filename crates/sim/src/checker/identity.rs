//! No two pods of the same name ever run at once (T-INV-6, W-56). This counts processes on the machines, whatever the
//! API says. Two may run only if a user forced it, and then the termination record says so.

use super::{Checker, Verdict, broken};
use crate::event_log::Name;
use lifecycle::timeline::{StepKind, TerminationRecord};
use std::collections::{BTreeMap, BTreeSet};

/// Processes, and which of them run, by the name of their pod.
#[derive(Default)]
pub(super) struct NameHolders {
    processes: BTreeMap<Name, Process>,
    running: BTreeMap<Name, BTreeSet<Name>>,
}

struct Process {
    /// `namespace/name` of its pod.
    pod: Name,
    uid: Name,
    container: Name,
}

impl NameHolders {
    pub(super) fn add(&mut self, id: &Name, pod: &Name, uid: &Name, container: &Name) {
        let process = Process { pod: pod.clone(), uid: uid.clone(), container: container.clone() };
        self.processes.insert(id.clone(), process);
    }

    pub(super) fn remove(&mut self, id: &Name) {
        let Some(process) = self.processes.remove(id) else { return };
        if let Some(running) = self.running.get_mut(&process.pod) {
            running.remove(id);
        }
    }
}

impl Checker {
    /// Checks that no process of another pod of the same name runs.
    pub(super) fn process_started(&mut self, id: &Name) -> Verdict {
        let name_holders = &mut self.name_holders;
        let Some(new) = name_holders.processes.get(id) else { return Ok(()) };
        let running = name_holders.running.entry(new.pod.clone()).or_default();
        for other in running.iter() {
            let Some(old) = name_holders.processes.get(other) else { continue };
            if old.uid == new.uid && old.container == new.container {
                let why =
                    format!("{id} and {other} run, and are the same container of {}", new.pod);
                return broken("one process per container", why);
            }
            let forced = self.pods.get(&old.uid).is_some_and(|pod| pod.forced);
            if old.uid != new.uid && !forced {
                let why = format!(
                    "{id} runs as {} while {other} of another pod of that name still runs",
                    new.pod
                );
                return broken("W-56", why);
            }
        }
        running.insert(id.clone());
        Ok(())
    }

    /// Pods on a node that a user declares down may be replaced while they run.
    pub(super) fn declare_node(&mut self, node: &Name, down: bool) {
        if !down {
            self.nodes_declared_down.remove(node);
            return;
        }
        self.nodes_declared_down.insert(node.clone());
        let there = self.pods.values_mut().filter(|pod| pod.gone.is_none());
        there.filter(|pod| pod.object.node() == &**node).for_each(|pod| pod.forced = true);
    }

    /// The record says `UnsafeByRequest` for pods that were removed while they ran, and only for pods that were forced.
    pub(super) fn forced_removals_are_recorded(&self, records: &[TerminationRecord]) -> Verdict {
        for (uid, pod) in &self.pods {
            let record = records.iter().find(|record| record.pod.uid == **uid);
            let recorded = record.is_some_and(|record| {
                record
                    .steps
                    .iter()
                    .any(|step| matches!(step.what, StepKind::UnsafeByRequest { .. }))
            });
            if pod.removed_while_running && !recorded {
                let why = format!(
                    "{} ({uid}) ran when it was removed, and its record does not say so",
                    pod.name
                );
                return broken("unsafe by request", why);
            }
            if recorded && !pod.forced {
                let why = format!(
                    "the record of {} ({uid}) says that it was forced, but no user forced it",
                    pod.name
                );
                return broken("unsafe by request", why);
            }
        }
        Ok(())
    }
}
