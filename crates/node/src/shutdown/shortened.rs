//! Reports pods that did not get all their time in a node shutdown, with the reason and what would help.
//!
//! Upstream reports nothing of this; people notice lost seconds by chance. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use std::fmt;
use std::time::Duration;

/// Exit code of a process that SIGKILL ended.
const KILLED: i32 = 128 + 9;

/// A pod that did not get all the time it could have used. Its `Display` is a line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortenedPod {
    /// `namespace/name`.
    pub pod: String,
    /// Its own grace period.
    pub own: Duration,
    /// The grace period it got.
    pub given: Duration,
    /// A person asked to hurry.
    pub hurried: bool,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It stopped by itself, although it got less than its own grace period.
    InTime,
    /// These containers did not stop in time and were killed.
    Killed(Vec<String>),
    /// It had not terminated when the shutdown stopped waiting.
    NotTerminated { running: bool },
}

/// What was requested of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StopRequest {
    pub(super) pod: String,
    pub(super) own: Duration,
    pub(super) given: Duration,
    pub(super) hurried: bool,
}

impl StopRequest {
    pub(super) fn outcome(self, outcome: Outcome) -> ShortenedPod {
        let StopRequest { pod, own, given, hurried } = self;
        ShortenedPod { pod, own, given, hurried, outcome }
    }

    /// None: the pod got all its time. `pod` is its last known state.
    pub(super) fn terminated(self, pod: Option<&Pod>, since: Timestamp) -> Option<ShortenedPod> {
        let killed = pod.map(|pod| killed(pod, since)).unwrap_or_default();
        if !killed.is_empty() {
            return Some(self.outcome(Outcome::Killed(killed)));
        }
        (self.given < self.own || self.hurried).then(|| self.outcome(Outcome::InTime))
    }
}

/// Containers that were killed after `since`, except those that ran out of memory.
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
            // Times in a status are whole seconds.
            let recent =
                ended.finished_at.as_ref().is_some_and(|at| at.0.as_second() >= since.as_second());
            ended.exit_code == KILLED && recent && ended.reason.as_deref() != Some("OOMKilled")
        })
    };
    let containers = all.into_iter().flatten().flatten().filter(was_killed);
    containers.map(|container| container.name.clone()).collect()
}

impl fmt::Display for ShortenedPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (own, given) = (self.own.as_secs(), self.given.as_secs());
        let shortened = self.given < self.own;
        write!(f, "{}", self.pod)?;
        match (&self.outcome, shortened) {
            (Outcome::InTime, _) if self.hurried => {
                write!(
                    f,
                    ": a second request shortened its grace period of {own}s; it stopped in time"
                )
            }
            (Outcome::InTime, _) => write!(f, " had {given}s of its {own}s, and stopped in time"),
            (Outcome::Killed(names), _) if self.hurried => {
                let killed = were(names);
                write!(
                    f,
                    ": a second request shortened its grace period of {own}s; {killed} killed"
                )
            }
            (Outcome::Killed(names), true) => write!(
                f,
                " had {given}s of its {own}s: {} killed. Give pods of its priority more \
                 (--shutdown-grace, --shutdown-grace-by-priority), or make it stop sooner",
                were(names)
            ),
            (Outcome::Killed(names), false) => write!(
                f,
                " did not stop within its {own}s: {} killed. Raise its \
                 terminationGracePeriodSeconds, or make its main process stop on its stop signal",
                were(names)
            ),
            (Outcome::NotTerminated { running: true }, _) => write!(
                f,
                " is still running, even after SIGKILL. Look for a process in uninterruptible sleep, or a \
                 runtime that does not answer; then run `landfall down` again"
            ),
            (Outcome::NotTerminated { running: false }, _) => write!(
                f,
                " has stopped, but it was not cleaned up in time, or the API server did not accept its \
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

    fn request(own: u64, given: u64) -> StopRequest {
        let (own, given) = (Duration::from_secs(own), Duration::from_secs(given));
        StopRequest { pod: "default/p".into(), own, given, hurried: false }
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
    fn a_pod_with_all_its_time_is_not_reported() {
        let ended = pod(143, "Error", "2026-01-01T00:00:06Z");
        assert_eq!(request(30, 30).terminated(Some(&ended), since()), None);
        assert_eq!(request(30, 30).terminated(None, since()), None);
    }

    #[test]
    fn only_kills_of_this_shutdown_count() {
        let is_reported = |code, reason, finished| {
            request(30, 30).terminated(Some(&pod(code, reason, finished)), since()).is_some()
        };
        assert!(is_reported(137, "Error", "2026-01-01T00:00:05Z"));
        assert!(!is_reported(137, "Error", "2026-01-01T00:00:04Z"));
        assert!(!is_reported(137, "OOMKilled", "2026-01-01T00:00:07Z"));
    }

    #[test]
    fn the_report_says_what_would_help() {
        let killed = pod(137, "Error", "2026-01-01T00:00:06Z");
        let line =
            |request: StopRequest| request.terminated(Some(&killed), since()).unwrap().to_string();
        let own = line(request(30, 30));
        assert!(own.contains("30s: c was killed") && own.contains("terminationGracePeriodSeconds"));
        let shortened = line(request(60, 20));
        assert!(shortened.contains("20s of its 60s") && shortened.contains("--shutdown-grace"));
        let hurried = line(StopRequest { hurried: true, ..request(60, 60) });
        assert!(
            hurried.contains("a second request shortened its grace period of 60s; c was killed"),
            "{hurried}"
        );
    }

    #[test]
    fn a_shortened_pod_that_stopped_in_time_is_reported() {
        let ended = pod(0, "Completed", "2026-01-01T00:00:06Z");
        let report = request(60, 20).terminated(Some(&ended), since()).unwrap();
        assert_eq!(report.to_string(), "default/p had 20s of its 60s, and stopped in time");
    }
}
