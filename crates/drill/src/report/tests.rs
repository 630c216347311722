//! All formats of one made-up drill, whose names try to break out of their places.

use super::*;
use crate::attribution::Attribution;
use crate::connection::Address;
use crate::drill::Recommendation;
use crate::experiment::Restart;
use crate::hook::Hook;
use crate::load::{Paths, Sample};
use crate::options::Options;
use crate::outcome::ConnectionKind;
use crate::pod_timeline::{Mark, PodEvent, PodTimeline};
use crate::rollout::Setting;
use crate::target::Target;
use crate::workload::tests::deployment;
use serde_json::json;
use std::time::Duration;

const EVIL: &str = "</title><script>alert('x')</script>&\"";

fn run(pre_stop: u32, grace: i64, failed: usize) -> Run {
    let sample = |number: usize| Sample {
        kind: ConnectionKind::New,
        due: number as f64 / 100.0,
        lag: 0.0,
        latency: 0.01,
        reused: false,
        result: if number < failed + 100 && number >= 100 {
            Err(Failure::Refused)
        } else {
            Ok(200)
        },
    };
    let loss = Attribution { failure: Failure::Refused, step: Step::AfterExit, pod: Some(0) };
    let marks = [
        (1.0, PodEvent::Deleted),
        (1.0 + f64::from(pre_stop), PodEvent::StopSignal),
        (1.5 + f64::from(pre_stop), PodEvent::Exited { code: 0 }),
    ];
    Run {
        setting: Setting { pre_stop_seconds: pre_stop, grace_seconds: grace },
        began: "2026-01-01T00:00:00Z".parse().unwrap(),
        length: 11.0,
        restarts: vec![Restart { at: 1.0, rollout: 3.5, settled: 5.25 }],
        samples: (0..1100).map(sample).collect(),
        pods: vec![PodTimeline {
            name: EVIL.into(),
            node: EVIL.into(),
            precise: true,
            marks: marks.iter().map(|(at, event)| Mark { at: *at, event: *event }).collect(),
            ..PodTimeline::default()
        }],
        losses: (100..100 + failed).map(|index| (index, loss)).collect(),
    }
}

fn drilled(target: f64) -> Drilled {
    let workload = deployment(json!({}));
    let options = Options {
        workload: workload.id.clone(),
        target,
        restarts: 1,
        rate: 100.0,
        connections: vec![ConnectionKind::New],
        path: "/".into(),
        slow_path: None,
        timeout: Duration::from_secs(5),
        service: None,
        port: None,
        url: None,
        proxy_delay: None,
        time_limit: Duration::from_secs(600),
        search: true,
        pre_stop_max: 30,
    };
    let target = Target {
        strategy: workload.strategy.clone().unwrap(),
        container: EVIL.into(),
        hook: Hook::None,
        service: Some("web".into()),
        address: Address { host: "10.0.0.1".into(), port: 80 },
        via: "cluster IP of Service web".into(),
        paths: Paths { usual: "/".into(), slow: "/".into() },
        slow_seconds: None,
        workload,
    };
    let good = Setting { pre_stop_seconds: 2, grace_seconds: 5 };
    Drilled {
        options,
        target,
        configured: Setting { pre_stop_seconds: 0, grace_seconds: 30 },
        runs: vec![run(0, 30, 50), run(2, 5, 0)],
        levels: vec![(0.99, Some(good)), (0.999, Some(good)), (1.0, None)],
        recommended: Some(Recommendation {
            setting: good,
            tally: Tally { failed: 0, total: 1000 },
            run: 1,
        }),
        advice: vec![],
        notes: vec![EVIL.into()],
        forecasts: vec![Some(3.4), None],
    }
}

#[test]
fn figures_are_written_for_people() {
    for (share, expected) in [
        (1.0, "100 %"),
        (0.999, "99.9 %"),
        (0.9999999, "99.999 %"),
        (0.5, "50 %"),
        (0.95263, "95.263 %"),
    ] {
        assert_eq!(percent(share), expected);
    }
    assert_eq!(grouped(1), "1");
    assert_eq!(grouped(1_234_567), "1,234,567");
}

#[test]
fn the_text_has_measurements_causes_answers_and_the_verdict() {
    let text = text(&drilled(0.999));
    for words in [
        "Deployment shop/web",
        "0 s    30 s      1,000      50       95 %",
        "as configured",
        "50  connection refused, after the exit, while the Service still sent connections",
        "99.9 %  preStop 2 s, grace period 5 s",
        "100 %  not reached",
        "0 of 1,000 requests lost: at most 0.3 % lost, at 95 % confidence",
        "to prove 99.9 %, 3,000 requests without a loss are needed",
        "kubectl patch deployment/web -n shop --patch '{",
        "target 99.9 %: missed as configured (95 %); preStop 2 s and grace period 5 s reach it",
    ] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
}

#[test]
fn a_lower_target_is_reached_as_configured() {
    let drilled = drilled(0.95);
    assert!(drilled.reached());
    assert!(text(&drilled).contains("target 95 %: reached as configured (95 %)"));
    assert!(junit(&drilled).contains("failures=\"0\""));
}

#[test]
fn junit_fails_if_the_target_is_missed_and_stays_xml() {
    let xml = junit(&drilled(0.999));
    assert!(xml.contains("tests=\"1\" failures=\"1\""), "{xml}");
    assert!(xml.contains("<failure message=\"target 99.9 %: missed"), "{xml}");
    assert!(!xml.contains("<script"), "{xml}");
    assert!(junit::escape("\u{1}a\u{ffff}") == "\u{fffd}a\u{fffd}");
}

#[test]
fn json_has_every_run_with_its_failures_and_pods() {
    let value = json(&drilled(0.999));
    assert_eq!(value["targetReached"], false);
    assert_eq!(value["targetPercent"], 99.9);
    assert_eq!(value["runs"][0]["lost"], 50);
    assert_eq!(value["runs"][0]["losses"][0]["failure"], "refused");
    assert_eq!(value["runs"][0]["losses"][0]["step"], "after-exit");
    assert_eq!(value["runs"][0]["failures"].as_array().unwrap().len(), 50);
    assert_eq!(value["runs"][0]["pods"][0]["marks"][0]["what"], "deleted");
    assert_eq!(value["recommended"]["values"]["preStopSeconds"], 2);
    assert_eq!(
        value["recommended"]["patch"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        5
    );
    assert_eq!(value["levels"][2]["values"], serde_json::Value::Null);
}

/// Names from the cluster cannot add elements, and the page loads nothing.
#[test]
fn html_is_self_contained_and_escapes_everything() {
    let page = html(&drilled(0.999));
    assert!(!page.contains("<script"), "{page}");
    for reference in ["http://", "https://", "src=", "url(", "@import", "<link"] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
    assert!(page.contains("default-src 'none'"));
    assert_eq!(page.matches("<svg").count(), 3, "loss, as configured, recommended");
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.contains("role=\"img\"") && page.contains("<desc"));
    assert!(page.contains("50 connection refused") || page.contains("connection refused</title>"));
}
