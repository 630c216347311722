//! Restarts the workload with other values and waits until that is done.
//!
//! `patch` and `state` are pure; `wait` asks the API until the rollout is complete and all replaced pods are gone.

use crate::error::{Error, Result};
use crate::hook::{self, Hook};
use crate::interrupt::Interrupt;
use crate::observer::Observer;
use crate::workload::Workload;
use client::Client;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// The annotation that `kubectl rollout restart` sets.
pub(crate) const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// How often the state of a rollout is read.
const POLL: Duration = Duration::from_millis(100);
/// How long a rollout may take at most.
const ROLLOUT_MAX: Duration = Duration::from_secs(900);
/// A new pod that cannot start for this long stops the drill.
const STUCK_MAX: Duration = Duration::from_secs(10);

/// The values that a run is measured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    /// Length of the preStop sleep; 0: no hook.
    pub pre_stop_seconds: u32,
    pub grace_seconds: i64,
}

/// A strategic merge patch that restarts all pods with these values. Without values only the annotation changes.
pub(crate) fn patch(
    workload: &Workload,
    container: &str,
    setting: Option<Setting>,
    restarted_at: &str,
) -> Value {
    let mut template = json!({ "metadata": { "annotations": { RESTARTED_AT: restarted_at } } });
    if let Some(setting) = setting {
        template["spec"] = values(workload, container, setting);
    }
    json!({ "spec": { "template": template } })
}

/// The part of a pod's spec that sets these values.
pub(crate) fn values(workload: &Workload, container: &str, setting: Setting) -> Value {
    let mut spec = json!({ "terminationGracePeriodSeconds": setting.grace_seconds });
    let present = workload.container(container).map_or(Hook::None, Hook::of);
    // An empty `lifecycle` would differ from none.
    if setting.pre_stop_seconds > 0 || present != Hook::None {
        let lifecycle = hook::sleep_patch(setting.pre_stop_seconds, &present);
        spec["containers"] = json!([{ "name": container, "lifecycle": lifecycle }]);
    }
    spec
}

/// How far a rollout is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Done,
    Waiting(String),
    Failed(String),
}

/// As `kubectl rollout status` sees it.
pub(crate) fn state(workload: &Workload, generation: i64) -> State {
    let (status, wanted) = (&workload.status, workload.replicas);
    if status.observed_generation < generation {
        return State::Waiting("the controller has not seen the change yet".to_owned());
    }
    if let Some(message) = &status.deadline_exceeded {
        return State::Failed(format!("it exceeded its progress deadline: {message}"));
    }
    if status.updated < wanted {
        return State::Waiting(format!("{} of {wanted} pods are updated", status.updated));
    }
    if status.replicas > status.updated {
        let old = status.replicas - status.updated;
        return State::Waiting(format!("{old} old pods are left"));
    }
    if status.available < status.updated {
        let (available, updated) = (status.available, status.updated);
        return State::Waiting(format!("{available} of {updated} updated pods are available"));
    }
    State::Done
}

/// When a rollout was complete, and when the last replaced pod was gone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Completed {
    pub(crate) rollout: Duration,
    pub(crate) settled: Duration,
}

/// Waits until the change of `written` is rolled out and no pod terminates any more.
pub(crate) async fn wait(
    client: &Client,
    written: &Workload,
    observer: &Observer,
    interrupt: &Interrupt,
    waiting_for: &(dyn Fn(&str) + Sync),
) -> Result<Completed> {
    let start = Instant::now();
    let name = written.id.to_string();
    let mut complete = None;
    loop {
        let found = Workload::find(client, &written.id).await?;
        let current = found.filter(|found| found.uid == written.uid);
        let current = current.ok_or_else(|| Error::Deleted(name.clone()))?;
        if current.generation > written.generation && current.template != written.template {
            return Err(Error::ChangedByOthers(name));
        }
        let waiting = match state(&current, written.generation) {
            State::Failed(why) => return Err(Error::RolloutStuck { workload: name, why }),
            State::Waiting(state) => {
                if let Some(why) = observer.stuck(STUCK_MAX) {
                    return Err(Error::RolloutStuck { workload: name, why });
                }
                state
            }
            State::Done => {
                let rollout = *complete.get_or_insert_with(|| start.elapsed());
                match observer.unsettled(current.replicas) {
                    0 => return Ok(Completed { rollout, settled: start.elapsed() }),
                    left => format!("{left} replaced pods are terminating"),
                }
            }
        };
        if start.elapsed() > ROLLOUT_MAX {
            let seconds = ROLLOUT_MAX.as_secs();
            return Err(Error::RolloutTimeout { workload: name, seconds, state: waiting });
        }
        waiting_for(&waiting);
        interrupt.sleep(POLL).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::deployment;

    const SETTING: Setting = Setting { pre_stop_seconds: 3, grace_seconds: 33 };

    #[test]
    fn a_restart_sets_hook_grace_period_and_annotation() {
        let patch = patch(&deployment(json!({})), "server", Some(SETTING), "now");
        let template = &patch["spec"]["template"];
        assert_eq!(template["metadata"]["annotations"][RESTARTED_AT], "now");
        assert_eq!(template["spec"]["terminationGracePeriodSeconds"], 33);
        let container = &template["spec"]["containers"][0];
        assert_eq!(container["name"], "server");
        assert_eq!(container["lifecycle"]["preStop"]["sleep"]["seconds"], 3);
    }

    #[test]
    fn a_plain_restart_changes_only_the_annotation() {
        let patch = patch(&deployment(json!({})), "server", None, "now");
        assert_eq!(patch["spec"]["template"].get("spec"), None);
    }

    #[test]
    fn no_hook_is_removed_where_there_is_none() {
        let none = Setting { pre_stop_seconds: 0, ..SETTING };
        assert_eq!(values(&deployment(json!({})), "server", none).get("containers"), None);
        let with_hook = deployment(json!({"template": {"spec": {"containers": [
            {"name": "server", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]}}}));
        let values = values(&with_hook, "server", none);
        assert_eq!(values["containers"][0]["lifecycle"]["preStop"], Value::Null);
    }

    #[test]
    fn rollouts_are_complete_when_kubectl_says_so() {
        for (observed, replicas, updated, available, expected) in [
            (1, 4, 4, 4, None),
            (0, 4, 4, 4, Some("not seen")),
            (1, 4, 2, 4, Some("2 of 4 pods are updated")),
            (1, 5, 4, 4, Some("1 old pods are left")),
            (1, 4, 4, 3, Some("3 of 4 updated pods are available")),
        ] {
            let mut workload = deployment(json!({}));
            workload.status.observed_generation = observed;
            workload.status.replicas = replicas;
            workload.status.updated = updated;
            workload.status.available = available;
            match (state(&workload, 1), expected) {
                (State::Done, None) => {}
                (State::Waiting(text), Some(words)) => assert!(text.contains(words), "{text}"),
                (got, expected) => panic!("{got:?} instead of {expected:?}"),
            }
        }
        let mut late = deployment(json!({}));
        late.status.observed_generation = 1;
        late.status.deadline_exceeded = Some("too late".to_owned());
        assert!(matches!(state(&late, 1), State::Failed(_)));
    }
}
