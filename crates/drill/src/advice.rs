//! What to change besides the preStop hook, and when a longer sleep will not help.
//!
//! Pure: from what was lost, and at which steps, to sentences.

use crate::attribution::{Attribution, Step};
use crate::outcome::Failure;
use serde::Serialize;
use std::collections::BTreeMap;

/// What was lost in one run, and what the pods did.
#[derive(Debug, Clone, Default)]
pub(crate) struct Findings {
    pub(crate) losses: BTreeMap<(Failure, Step), usize>,
    /// Replaced pods, and how many of them had to be killed.
    pub(crate) replaced: usize,
    pub(crate) killed: usize,
}

impl Findings {
    pub(crate) fn add(&mut self, losses: impl Iterator<Item = Attribution>) {
        for loss in losses {
            *self.losses.entry((loss.failure, loss.step)).or_default() += 1;
        }
    }

    fn count(&self, is: impl Fn(Failure, Step) -> bool) -> usize {
        self.losses.iter().filter(|((failure, step), _)| is(*failure, *step)).map(|(_, n)| n).sum()
    }
}

/// One finding, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    pub finding: String,
    pub remedy: String,
    /// A longer preStop sleep would help.
    pub sleep_helps: bool,
}

/// `best` is the run with the least loss: what it still loses, a sleep did not cure.
pub(crate) fn advise(best: &Findings) -> Vec<Advice> {
    let total: usize = best.losses.values().sum();
    let mut advice = Vec::new();
    let mut add = |lost: usize, finding: String, remedy: &str, sleep_helps: bool| {
        if lost > 0 {
            let finding = format!("{lost} of {total} lost requests: {finding}");
            advice.push(Advice { finding, remedy: remedy.to_owned(), sleep_helps });
        }
    };
    let count = |failure: Failure| best.count(|one, step| one == failure && step != Step::Starting);
    add(
        count(Failure::ResetOnReuse),
        "the server closed a connection that was in use, when it got its stop signal or exited. A longer sleep does \
         not help: connections that exist stay with the pod until its end"
            .to_owned(),
        "On SIGTERM, answer the next request of each connection with `Connection: close` and close only idle \
         connections; or let clients retry requests that failed on a reused connection.",
        false,
    );
    add(
        count(Failure::CutBySigkill),
        format!(
            "the server did not exit after SIGTERM and was killed when the grace period was over ({} of {} pods). A \
             longer sleep or grace period only delays that",
            best.killed, best.replaced
        ),
        "Handle SIGTERM: stop accepting connections, finish open requests, exit. Process 1 of a container ignores \
         signals without a handler, and a shell passes none on: start the server with `exec`, or with an init such \
         as tini.",
        false,
    );
    add(
        best.count(|failure, step| failure == Failure::Cut && step != Step::Starting),
        "the server exited, or closed the connection, before it had answered".to_owned(),
        "On SIGTERM, finish open requests before the exit. Until the server does, the preStop sleep must be longer than \
         the longest request, besides the time that Services need to redirect connections.",
        true,
    );
    add(
        count(Failure::Refused) + count(Failure::Unreachable) + count(Failure::Timeout),
        "new connections were still sent to a pod that no longer served".to_owned(),
        "A longer preStop sleep helps: it must cover the time until all proxies and load balancers have redirected \
         connections.",
        true,
    );
    add(
        best.count(|failure, step| failure == Failure::ServerError && step != Step::Starting),
        "the server answered with 5xx while it was terminating. A longer sleep does not help if it begins with the \
         deletion"
            .to_owned(),
        "Serve requests normally until SIGTERM, and after it until no new ones come.",
        false,
    );
    add(
        count(Failure::NoEndpoint),
        "no pod was ready".to_owned(),
        "Keep pods available during rollouts: maxUnavailable 0 and maxSurge at least 1 (and more than one replica).",
        false,
    );
    add(
        best.count(|_, step| step == Step::Starting),
        "a new pod got requests before it could serve them".to_owned(),
        "Add a readiness probe that succeeds only when the server answers.",
        false,
    );
    add(
        count(Failure::Dns),
        "the name was not resolved".to_owned(),
        "This has nothing to do with restarts of this workload: look at the DNS server.",
        false,
    );
    if total == 0 && best.killed > 0 {
        advice.push(Advice {
            finding: format!(
                "{} of {} replaced pods did not exit after SIGTERM and were killed when the grace period was over. No \
                 request was lost, but every rollout waits for it",
                best.killed, best.replaced
            ),
            remedy: "Handle SIGTERM, and pods end seconds earlier.".to_owned(),
            sleep_helps: false,
        });
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(losses: &[(Failure, Step, usize)]) -> Findings {
        let losses = losses.iter().map(|(failure, step, n)| ((*failure, *step), *n)).collect();
        Findings { losses, replaced: 3, killed: 0 }
    }

    #[test]
    fn each_cause_has_its_remedy() {
        use Failure::*;
        for (failure, step, words, sleep_helps) in [
            (Refused, Step::AfterExit, "longer preStop sleep helps", true),
            (Timeout, Step::AfterExit, "longer preStop sleep helps", true),
            (ResetOnReuse, Step::AfterStopSignal, "Connection: close", false),
            (CutBySigkill, Step::AtKill, "Handle SIGTERM", false),
            (Cut, Step::AtExit, "finish open requests", true),
            (ServerError, Step::PreStop, "Serve requests normally", false),
            (NoEndpoint, Step::NoEndpoint, "maxUnavailable 0", false),
            (Refused, Step::Starting, "readiness probe", false),
        ] {
            let advice = advise(&findings(&[(failure, step, 7)]));
            assert_eq!(advice.len(), 1, "{failure:?}: {advice:#?}");
            assert!(advice[0].remedy.contains(words), "{failure:?}: {}", advice[0].remedy);
            assert!(advice[0].finding.starts_with("7 of 7 lost requests"), "{}", advice[0].finding);
            assert_eq!(advice[0].sleep_helps, sleep_helps, "{failure:?}");
        }
    }

    #[test]
    fn ignored_stop_signals_are_reported_even_if_nothing_is_lost() {
        assert!(advise(&findings(&[])).is_empty());
        let ignored = Findings { killed: 3, ..findings(&[]) };
        let advice = advise(&ignored);
        assert!(advice[0].finding.contains("3 of 3 replaced pods did not exit"));
    }
}
