//! What a shutdown cost: whose grace was shortened, who had to be killed, and what would help.
//!
//! Upstream says nothing of this; a process that lost its last seconds is found out by chance. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use std::fmt;
use std::time::Duration;

/// SIGKILL, as an exit code.
const KILLED: i32 = 128 + 9;

/// A pod that did not get all the time it could have used. Printed, it is a line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Namespace and name.
    pub pod: String,
    pub own: Duration,
    pub given: Duration,
    /// Somebody asked to hurry.
    pub hurried: bool,
    pub how: How,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// It ended by itself, in less than it was entitled to.
    InTime,
    /// These containers did not end on their stop signal.
    Killed(Vec<String>),
    /// It was given up.
    Left { running: bool },
}

/// How one pod was told to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) pod: String,
    pub(super) own: Duration,
    pub(super) given: Duration,
    pub(super) hurried: bool,
}

impl Told {
    pub(super) fn how(self, how: How) -> Cut {
        let Told { pod, own, given, hurried } = self;
        Cut { pod, own, given, hurried, how }
    }

    /// None: it lost nothing. `pod` as it is after its end, if somebody still knows it.
    pub(super) fn ended(self, pod: Option<&Pod>, since: Timestamp) -> Option<Cut> {
        let killed = pod.map(|pod| killed(pod, since)).unwrap_or_default();
        if !killed.is_empty() {
            return Some(self.how(How::Killed(killed)));
        }
        (self.given < self.own || self.hurried).then(|| self.how(How::InTime))
    }
}

/// Containers that a SIGKILL ended since then. What ran out of memory was not killed by us.
fn killed(pod: &Pod, since: Timestamp) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let was_killed = |container: &&ContainerStatus| {
        let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| {
            // Written in whole seconds.
            let recent =
                ended.finished_at.as_ref().is_some_and(|at| at.0.as_second() >= since.as_second());
            ended.exit_code == KILLED && recent && ended.reason.as_deref() != Some("OOMKilled")
        })
    };
    let containers = all.into_iter().flatten().flatten().filter(was_killed);
    containers.map(|container| container.name.clone()).collect()
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (own, given) = (self.own.as_secs(), self.given.as_secs());
        let shortened = self.given < self.own;
        write!(f, "{}", self.pod)?;
        match (&self.how, shortened) {
            (How::InTime, _) if self.hurried => {
                write!(f, " was hurried and ended by itself; it could have had {own}s")
            }
            (How::InTime, _) => write!(f, " had {given}s of its {own}s, and ended in time"),
            (How::Killed(names), _) if self.hurried => {
                write!(f, " was hurried: {} killed before its {own}s were over", were(names))
            }
            (How::Killed(names), true) => write!(
                f,
                " had {given}s of its {own}s: {} killed. Give pods of its priority more \
                 (--shutdown-grace, --shutdown-grace-by-priority), or see that it ends sooner",
                were(names)
            ),
            (How::Killed(names), false) => write!(
                f,
                " did not end within its {own}s: {} killed. Raise its \
                 terminationGracePeriodSeconds, or see that its main process ends on its stop \
                 signal",
                were(names)
            ),
            (How::Left { running: true }, _) => write!(
                f,
                " is still running: even SIGKILL did not end it. Look for a process in \
                 uninterruptible sleep, or a runtime that does not answer; then `landfall down` again"
            ),
            (How::Left { running: false }, _) => write!(
                f,
                " has ended, but was not cleared away in time, or the API server did not take its \
                 last status"
            ),
        }
    }
}

/// `a was`, `a, b were`
pub(crate) fn were(names: &[String]) -> String {
    let verb = if names.len() == 1 { "was" } else { "were" };
    format!("{} {verb}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(own: u64, given: u64) -> Told {
        let (own, given) = (Duration::from_secs(own), Duration::from_secs(given));
        Told { pod: "default/p".into(), own, given, hurried: false }
    }

    fn pod(code: i32, reason: &str, finished: &str) -> Pod {
        typed::from_value(json!({"status": {"containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated":
                {"exitCode": code, "reason": reason, "finishedAt": finished}},
        }]}}))
        .unwrap()
    }

    fn since() -> Timestamp {
        "2026-01-01T00:00:05.5Z".parse().unwrap()
    }

    #[test]
    fn who_had_all_its_time_and_ended_lost_nothing() {
        let ended = pod(143, "Error", "2026-01-01T00:00:06Z");
        assert_eq!(told(30, 30).ended(Some(&ended), since()), None);
        assert_eq!(told(30, 30).ended(None, since()), None);
    }

    #[test]
    fn only_kills_of_this_shutdown_count() {
        let cut = |code, reason, finished| {
            told(30, 30).ended(Some(&pod(code, reason, finished)), since()).is_some()
        };
        assert!(cut(137, "Error", "2026-01-01T00:00:05Z"));
        assert!(!cut(137, "Error", "2026-01-01T00:00:04Z"));
        assert!(!cut(137, "OOMKilled", "2026-01-01T00:00:07Z"));
    }

    #[test]
    fn what_would_help_is_said() {
        let killed = pod(137, "Error", "2026-01-01T00:00:06Z");
        let line = |told: Told| told.ended(Some(&killed), since()).unwrap().to_string();
        let own = line(told(30, 30));
        assert!(own.contains("30s: c was killed") && own.contains("terminationGracePeriodSeconds"));
        let shortened = line(told(60, 20));
        assert!(shortened.contains("20s of its 60s") && shortened.contains("--shutdown-grace"));
        let hurried = line(Told { hurried: true, ..told(60, 60) });
        assert!(hurried.contains("was hurried"), "{hurried}");
    }

    #[test]
    fn a_shortened_pod_that_ended_is_told_of_too() {
        let ended = pod(0, "Completed", "2026-01-01T00:00:06Z");
        let cut = told(60, 20).ended(Some(&ended), since()).unwrap();
        assert_eq!(cut.to_string(), "default/p had 20s of its 60s, and ended in time");
    }
}
