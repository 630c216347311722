//! The termination records (`lifecycle::timeline`) agree with what happened.

use super::{Checker, SLACK, Verdict, broken};
use crate::event_log::Name;
use lifecycle::timeline::{Step, StepKind, TerminationRecord};
use std::time::Duration;

impl Checker {
    pub(crate) fn check_records(&self, records: &[TerminationRecord]) -> Verdict {
        for record in records {
            for step in &record.steps {
                self.step_happened(record, step)?;
            }
        }
        for (uid, pod) in &self.pods {
            // A crashed agent may have crashed before it could report.
            if pod.deleted.is_none() || self.agent_crashed.contains(uid) {
                continue;
            }
            let record = records.iter().find(|record| record.pod.uid == **uid);
            self.signals_are_recorded(&pod.name, uid, record)?;
        }
        self.forced_removals_are_recorded(records)
    }

    /// Every recorded signal and exit happened.
    fn step_happened(&self, record: &TerminationRecord, step: &Step) -> Verdict {
        let (pod, uid, name) = (&record.pod.name, record.pod.uid.as_str(), &step.container);
        let at = Duration::from_nanos(u64::try_from(step.monotonic).unwrap_or_default());
        let ids = self.containers_by_pod.get(uid).into_iter().flatten();
        let mut known = ids.filter_map(|id| self.containers.get(id)).filter(|c| *c.name == **name);
        let happened = match &step.what {
            StepKind::Signal { signal, .. } => {
                let kill = signal == "SIGKILL";
                known.any(|c| c.signals.iter().any(|(t, k)| *k == kill && near(*t, at)))
            }
            StepKind::Exited { exit_code, .. } => known.any(|c| c.code == Some(*exit_code)),
            _ => true,
        };
        match happened {
            true => Ok(()),
            false => broken(
                "timelines are true",
                format!("{pod}: {name} at {at:?}: {:?} did not happen", step.what),
            ),
        }
    }

    /// Every signal of a termination is recorded.
    fn signals_are_recorded(
        &self,
        pod: &Name,
        uid: &Name,
        record: Option<&TerminationRecord>,
    ) -> Verdict {
        let ids = self.containers_by_pod.get(uid).into_iter().flatten();
        for container in ids.filter_map(|id| self.containers.get(id)) {
            for (at, kill) in &container.signals {
                let recorded = record.into_iter().flat_map(|record| &record.steps).any(|step| {
                    let same = matches!(&step.what, StepKind::Signal { signal, .. }
                        if (signal == "SIGKILL") == *kill);
                    let recorded = u64::try_from(step.monotonic).unwrap_or_default();
                    same && *step.container == *container.name
                        && near(Duration::from_nanos(recorded), *at)
                });
                if !recorded {
                    let what = if *kill { "kill" } else { "stop signal" };
                    let why = format!(
                        "{pod}: the {what} of {} at {at:?} is not recorded",
                        container.name
                    );
                    return broken("timelines are complete", why);
                }
            }
        }
        Ok(())
    }
}

fn near(a: Duration, b: Duration) -> bool {
    a.abs_diff(b) <= SLACK
}
