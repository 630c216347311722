//! Tables of failures and the steps that explain them.

use super::*;
use crate::pod_timeline::{Mark, PodEvent};

fn pod(precise: bool, marks: &[(f64, PodEvent)]) -> PodTimeline {
    let marks = marks.iter().map(|(at, event)| Mark { at: *at, event: *event }).collect();
    PodTimeline { name: "a".into(), precise, marks, ..PodTimeline::default() }
}

/// Deleted at 10, stopped at 12, exits at 15, rules changed at 16.
fn graceful() -> PodTimeline {
    pod(
        true,
        &[
            (0.0, PodEvent::Created),
            (1.0, PodEvent::Ready),
            (10.0, PodEvent::Deleted),
            (10.0, PodEvent::HookStarted),
            (12.0, PodEvent::HookEnded),
            (12.0, PodEvent::StopSignal),
            (15.0, PodEvent::Exited { code: 0 }),
            (16.0, PodEvent::RulesChanged),
            (17.0, PodEvent::Removed),
        ],
    )
}

/// Deleted and stopped at 10, killed at 40.
fn stubborn() -> PodTimeline {
    pod(
        true,
        &[
            (10.0, PodEvent::Deleted),
            (10.0, PodEvent::StopSignal),
            (40.0, PodEvent::Killed),
            (40.05, PodEvent::Exited { code: 137 }),
            (40.5, PodEvent::Removed),
        ],
    )
}

fn lost(failure: Failure, sent: f64, failed: f64) -> Lost {
    Lost { failure, sent, failed }
}

#[test]
fn failures_are_explained_by_the_step_of_their_moment() {
    use Failure::*;
    for (name, pods, lost, failure, step) in [
        ("listener closed", graceful(), lost(Refused, 13.0, 13.0), Refused, Step::AfterStopSignal),
        ("stale rules", graceful(), lost(Refused, 15.5, 15.5), Refused, Step::AfterExit),
        ("rules are new", graceful(), lost(Refused, 20.0, 20.0), Refused, Step::Unexplained),
        ("cut at exit", graceful(), lost(Cut, 13.0, 15.01), Cut, Step::AtExit),
        (
            "idle closed",
            graceful(),
            lost(ResetOnReuse, 12.5, 12.5),
            ResetOnReuse,
            Step::AfterStopSignal,
        ),
        ("cut in hook", graceful(), lost(Cut, 10.5, 11.0), Cut, Step::PreStop),
        ("long before", graceful(), lost(Cut, 5.0, 5.0), Cut, Step::Unexplained),
        ("just ready", graceful(), lost(Refused, 1.2, 1.2), Refused, Step::Starting),
        ("5xx in hook", graceful(), lost(ServerError, 11.0, 11.0), ServerError, Step::PreStop),
        (
            "5xx after",
            graceful(),
            lost(ServerError, 14.0, 14.0),
            ServerError,
            Step::AfterStopSignal,
        ),
        ("gone address", graceful(), lost(Timeout, 15.2, 20.2), Timeout, Step::AfterExit),
        ("hung in flight", graceful(), lost(Timeout, 14.0, 19.0), Timeout, Step::AtExit),
        ("killed", stubborn(), lost(Cut, 38.0, 40.02), CutBySigkill, Step::AtKill),
        ("killed, reused", stubborn(), lost(ResetOnReuse, 40.0, 40.01), CutBySigkill, Step::AtKill),
        ("before the kill", stubborn(), lost(Cut, 20.0, 21.0), Cut, Step::AfterStopSignal),
        ("name", graceful(), lost(Dns, 13.0, 13.0), Dns, Step::Unexplained),
    ] {
        let got = attribute(lost, &[pods], &[]);
        assert_eq!((got.failure, got.step), (failure, step), "{name}");
        assert_eq!(got.pod.is_some(), step != Step::Unexplained, "{name}");
    }
}

#[test]
fn without_endpoints_no_pod_is_to_blame() {
    let ready = [(0.0, 2), (12.0, 0), (14.0, 1)];
    let got = attribute(lost(Failure::Refused, 13.0, 13.0), &[graceful()], &ready);
    assert_eq!((got.failure, got.step), (Failure::NoEndpoint, Step::NoEndpoint));
    let got = attribute(lost(Failure::Refused, 14.5, 14.5), &[graceful()], &ready);
    assert_eq!((got.failure, got.step), (Failure::Refused, Step::AfterStopSignal));
    // A connection that existed is not affected by endpoints.
    let got = attribute(lost(Failure::Cut, 13.0, 13.0), &[graceful()], &ready);
    assert_eq!(got.step, Step::AfterStopSignal);
}

#[test]
fn the_nearest_of_several_pods_is_chosen() {
    let first = pod(
        true,
        &[
            (1.0, PodEvent::Deleted),
            (1.0, PodEvent::StopSignal),
            (2.0, PodEvent::Exited { code: 0 }),
        ],
    );
    let second = pod(
        true,
        &[
            (5.0, PodEvent::Deleted),
            (5.0, PodEvent::StopSignal),
            (6.0, PodEvent::Exited { code: 0 }),
        ],
    );
    let pods = [first, second];
    let of = |lost| attribute(lost, &pods, &[]).pod;
    assert_eq!(of(lost(Failure::Refused, 2.5, 2.5)), Some(0));
    assert_eq!(of(lost(Failure::Refused, 6.2, 6.2)), Some(1));
    assert_eq!(of(lost(Failure::Cut, 4.0, 6.0)), Some(1));
}

/// The first pod took long to exit; the proxies had left it alone for seconds when the second one was deleted.
#[test]
fn a_refused_connection_belongs_to_the_pod_that_was_deleted_last() {
    let slow = pod(
        true,
        &[
            (1.0, PodEvent::Deleted),
            (1.0, PodEvent::StopSignal),
            (4.5, PodEvent::Exited { code: 0 }),
        ],
    );
    let next = pod(true, &[(4.2, PodEvent::Deleted), (4.2, PodEvent::StopSignal)]);
    let got = attribute(lost(Failure::Refused, 4.6, 4.6), &[slow, next], &[]);
    assert_eq!((got.pod, got.step), (Some(1), Step::AfterStopSignal));
}

#[test]
fn observed_times_get_more_tolerance_than_recorded_ones() {
    let marks = [
        (10.0, PodEvent::Deleted),
        (10.0, PodEvent::StopSignal),
        (15.0, PodEvent::Exited { code: 0 }),
    ];
    let late = lost(Failure::Cut, 15.0, 16.0);
    assert_eq!(attribute(late, &[pod(false, &marks)], &[]).step, Step::AtExit);
    assert_ne!(attribute(late, &[pod(true, &marks)], &[]).step, Step::AtExit);
}
