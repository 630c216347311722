//! What the records of endings say is what happened (`lifecycle::timeline`).

use super::{Judge, SLACK, Verdict, broken};
use crate::book::Name;
use lifecycle::timeline::{Step, Termination, What};
use std::time::Duration;

impl Judge {
    pub(crate) fn compare(&self, records: &[Termination]) -> Verdict {
        for record in records {
            for step in &record.steps {
                self.is_true(record, step)?;
            }
        }
        for (uid, pod) in &self.pods {
            // An agent that died may have died before it could tell.
            if pod.deleted.is_none() || self.left.contains(uid) {
                continue;
            }
            let record = records.iter().find(|record| record.pod.uid == **uid);
            self.is_told(&pod.name, uid, record)?;
        }
        self.force_is_told(records)
    }

    /// Nothing is told that was not so.
    fn is_true(&self, record: &Termination, step: &Step) -> Verdict {
        let (pod, uid, name) = (&record.pod.name, record.pod.uid.as_str(), &step.container);
        let at = Duration::from_nanos(u64::try_from(step.monotonic).unwrap_or_default());
        let ids = self.of_pod.get(uid).into_iter().flatten();
        let mut known = ids.filter_map(|id| self.containers.get(id)).filter(|c| *c.name == **name);
        let so = match &step.what {
            What::Signal { signal, .. } => {
                let kill = signal == "SIGKILL";
                known.any(|c| c.signals.iter().any(|(t, k)| *k == kill && near(*t, at)))
            }
            What::Exited { exit_code, .. } => known.any(|c| c.code == Some(*exit_code)),
            _ => true,
        };
        match so {
            true => Ok(()),
            false => broken("true timelines", format!("{pod}: {name} at {at:?}: {:?}", step.what)),
        }
    }

    /// Every signal of an ending is told.
    fn is_told(&self, pod: &Name, uid: &Name, record: Option<&Termination>) -> Verdict {
        let ids = self.of_pod.get(uid).into_iter().flatten();
        for container in ids.filter_map(|id| self.containers.get(id)) {
            for (at, kill) in &container.signals {
                let told = record.into_iter().flat_map(|record| &record.steps).any(|step| {
                    let same = matches!(&step.what, What::Signal { signal, .. }
                        if (signal == "SIGKILL") == *kill);
                    let told = u64::try_from(step.monotonic).unwrap_or_default();
                    same && *step.container == *container.name
                        && near(Duration::from_nanos(told), *at)
                });
                if !told {
                    let what = if *kill { "kill" } else { "stop signal" };
                    let why =
                        format!("{pod}: the {what} of {} at {at:?} is not told", container.name);
                    return broken("whole timelines", why);
                }
            }
        }
        Ok(())
    }
}

fn near(a: Duration, b: Duration) -> bool {
    a.abs_diff(b) <= SLACK
}
