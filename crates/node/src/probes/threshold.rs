//! When attempts add up to a verdict: so many equal ones in a row (N-91, N-93).

use super::prober::Kind;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Threshold {
    kind: Kind,
    success: u32,
    failure: u32,
    /// What counts now; None: nothing is known yet (startup only).
    verdict: Option<bool>,
    last: Option<bool>,
    run: u32,
    /// Liveness and startup say their last word once per container instance.
    settled: bool,
}

impl Threshold {
    pub(super) fn new(kind: Kind, success: i32, failure: i32) -> Threshold {
        let at_least_one = |count: i32| u32::try_from(count).unwrap_or_default().max(1);
        let (success, failure) = (at_least_one(success), at_least_one(failure));
        let (verdict, last, run, settled) = (initial(kind), None, 0, false);
        Threshold { kind, success, failure, verdict, last, run, settled }
    }

    pub(super) fn verdict(&self) -> Option<bool> {
        self.verdict
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// A new instance of the container, or the one from before the agent's restart (N-95).
    pub(super) fn begin(&mut self, known: Option<bool>) {
        self.verdict = known.or(initial(self.kind));
        (self.last, self.run) = (None, 0);
        self.settled = self.kind == Kind::Startup && known == Some(true);
    }

    /// The new verdict, if this attempt changed it.
    pub(super) fn count(&mut self, success: bool) -> Option<bool> {
        if self.last == Some(success) {
            self.run = self.run.saturating_add(1);
        } else {
            (self.last, self.run) = (Some(success), 1);
        }
        if self.run < if success { self.success } else { self.failure } {
            return None;
        }
        self.settled = match self.kind {
            Kind::Readiness => false,
            Kind::Liveness => !success,
            Kind::Startup => true,
        };
        let changed = self.verdict != Some(success);
        self.verdict = Some(success);
        changed.then_some(success)
    }
}

fn initial(kind: Kind) -> Option<bool> {
    match kind {
        Kind::Readiness => Some(false),
        Kind::Liveness => Some(true),
        Kind::Startup => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_91_only_results_in_a_row_count() {
        let mut liveness = Threshold::new(Kind::Liveness, 1, 3);
        let changes: Vec<_> = [false, false, true, false, false, false]
            .map(|success| liveness.count(success))
            .into_iter()
            .collect();
        assert_eq!(changes, [None, None, None, None, None, Some(false)]);
        let mut readiness = Threshold::new(Kind::Readiness, 2, 1);
        assert_eq!(readiness.verdict(), Some(false));
        assert_eq!(
            [true, false, true, true].map(|s| readiness.count(s)),
            [None, None, None, Some(true)]
        );
        assert_eq!(readiness.count(false), Some(false));
    }

    #[test]
    fn n_93_liveness_failure_and_startup_of_any_kind_are_final_for_an_instance() {
        let mut startup = Threshold::new(Kind::Startup, 1, 2);
        assert_eq!(startup.verdict(), None);
        startup.count(false);
        assert!(!startup.is_settled());
        assert_eq!(startup.count(false), Some(false));
        assert!(startup.is_settled());
        startup.begin(None);
        assert!(!startup.is_settled());
        assert_eq!(startup.count(true), Some(true));
        assert!(startup.is_settled());
    }
}
