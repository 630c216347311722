//! Each row is a history and a recommendation, and the limited size.

use super::*;
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::new(1_800_000_000 + second, 0).unwrap()
}

fn behavior(value: &Value) -> HorizontalPodAutoscalerBehavior {
    serde_json::from_value(value.clone()).unwrap()
}

/// A recommendation at second 1000, with the current size and the history.
struct Case {
    name: &'static str,
    current: i32,
    wanted: i32,
    /// (second, replicas)
    recommended: &'static [(i64, i32)],
    /// (second, by how many)
    scaled: &'static [(i64, i32)],
    behavior: Value,
    expected: (i32, &'static str, bool, &'static str),
}

fn check(cases: &[Case]) {
    for case in cases {
        let times = |all: &[(i64, i32)]| all.iter().map(|(s, n)| (at(*s), *n)).collect();
        let mut history =
            History { recommended: times(case.recommended), scaled: times(case.scaled) };
        let bounds = Bounds { current: case.current, min: 2, max: 20 };
        let behavior = (!case.behavior.is_null()).then(|| behavior(&case.behavior));
        let found = apply(&mut history, behavior.as_ref(), bounds, case.wanted, at(1000));
        let (is, (limited, _)) = found.limited;
        assert_eq!((found.replicas, found.able.0, is, limited), case.expected, "{}", case.name);
        assert_eq!(history.recommended.last(), Some(&(at(1000), case.wanted)), "{}", case.name);
    }
}

const PLAIN: Case = Case {
    name: "",
    current: 5,
    wanted: 5,
    recommended: &[],
    scaled: &[],
    behavior: Value::Null,
    expected: (5, "ReadyForNewScale", false, "DesiredWithinRange"),
};

/// C-135: stabilisation and scaling policies.
#[test]
fn c_135_without_a_behavior_scaling_down_waits_and_scaling_up_is_limited() {
    check(&[
        Case { name: "unchanged", ..PLAIN },
        Case {
            name: "grows at once",
            wanted: 9,
            expected: (9, "ReadyForNewScale", false, "DesiredWithinRange"),
            ..PLAIN
        },
        Case {
            name: "to at most twice as many",
            wanted: 11,
            expected: (10, "ReadyForNewScale", true, "ScaleUpLimit"),
            ..PLAIN
        },
        Case {
            name: "but to four in any case",
            current: 2,
            wanted: 20,
            expected: (4, "ReadyForNewScale", true, "ScaleUpLimit"),
            ..PLAIN
        },
        Case {
            name: "and not above the maximum",
            current: 15,
            wanted: 25,
            expected: (20, "ReadyForNewScale", true, "TooManyReplicas"),
            ..PLAIN
        },
        Case {
            name: "not below the minimum",
            wanted: 1,
            expected: (2, "ReadyForNewScale", true, "TooFewReplicas"),
            ..PLAIN
        },
        Case {
            name: "nor below what was recommended in the last five minutes",
            wanted: 2,
            recommended: &[(699, 9), (700, 4), (990, 3)],
            expected: (4, "ScaleDownStabilized", false, "DesiredWithinRange"),
            ..PLAIN
        },
    ]);
}

/// C-135: stabilisation and scaling policies.
#[test]
fn c_135_each_direction_has_its_window() {
    let windows = |up: i32, down: i32| {
        let every = json!([{ "type": "Percent", "value": 900, "periodSeconds": 15 }]);
        json!({
            "scaleUp": { "stabilizationWindowSeconds": up, "selectPolicy": "Max", "policies": every },
            "scaleDown": { "stabilizationWindowSeconds": down, "selectPolicy": "Max", "policies": every },
        })
    };
    check(&[
        Case {
            name: "growing goes to the lowest of its window",
            wanted: 9,
            recommended: &[(930, 6), (950, 7), (990, 8)],
            behavior: windows(60, 0),
            expected: (7, "ScaleUpStabilized", false, "DesiredWithinRange"),
            ..PLAIN
        },
        Case {
            name: "which may be the current size",
            wanted: 9,
            recommended: &[(990, 2)],
            behavior: windows(60, 0),
            expected: (5, "ScaleUpStabilized", false, "DesiredWithinRange"),
            ..PLAIN
        },
        Case {
            name: "shrinking goes to the highest of its window",
            wanted: 2,
            recommended: &[(930, 9), (950, 4), (990, 3)],
            behavior: windows(0, 60),
            expected: (4, "ScaleDownStabilized", false, "DesiredWithinRange"),
            ..PLAIN
        },
        Case {
            name: "a window of 0 s does not wait",
            wanted: 2,
            recommended: &[(1000, 9)],
            behavior: windows(0, 0),
            expected: (2, "ReadyForNewScale", false, "DesiredWithinRange"),
            ..PLAIN
        },
        Case {
            name: "without one, shrinking has five minutes",
            wanted: 2,
            recommended: &[(701, 4)],
            behavior: json!({ "scaleUp": {}, "scaleDown": { "selectPolicy": "Max",
                "policies": [{ "type": "Percent", "value": 100, "periodSeconds": 15 }] } }),
            expected: (4, "ScaleDownStabilized", false, "DesiredWithinRange"),
            ..PLAIN
        },
    ]);
}

fn scaling_rules(direction: &str, select: &str, policies: Value) -> Value {
    let rules = json!({
        "stabilizationWindowSeconds": 0, "selectPolicy": select, "policies": policies,
    });
    json!({ direction: rules })
}

fn pods(value: i32) -> Value {
    json!({ "type": "Pods", "value": value, "periodSeconds": 60 })
}

fn percent(value: i32) -> Value {
    json!({ "type": "Percent", "value": value, "periodSeconds": 60 })
}

fn limited(to: i32, reason: &str) -> (i32, &str, bool, &str) {
    (to, "ReadyForNewScale", true, reason)
}

/// C-135: stabilisation and scaling policies.
#[test]
fn c_135_policies_limit_growth_within_their_period() {
    let up = |select: &str, policies: Value| scaling_rules("scaleUp", select, policies);
    let grow = Case { wanted: 20, ..PLAIN };
    check(&[
        Case {
            name: "up: pods",
            behavior: up("Max", json!([pods(3)])),
            expected: limited(8, "ScaleUpLimit"),
            ..grow
        },
        Case {
            name: "up: a share, rounded up",
            behavior: up("Max", json!([percent(10)])),
            expected: limited(6, "ScaleUpLimit"),
            ..grow
        },
        Case {
            name: "up: the larger",
            behavior: up("Max", json!([pods(3), percent(100)])),
            expected: limited(10, "ScaleUpLimit"),
            ..grow
        },
        Case {
            name: "up: the smaller",
            behavior: up("Min", json!([pods(3), percent(100)])),
            expected: limited(8, "ScaleUpLimit"),
            ..grow
        },
        Case {
            name: "up: not at all",
            behavior: up("Disabled", json!([pods(3)])),
            expected: limited(5, "ScaleUpLimit"),
            ..grow
        },
        Case {
            name: "up: what was added in the period counts, older does not",
            scaled: &[(930, 4), (950, 2)],
            behavior: up("Max", json!([pods(3)])),
            expected: limited(6, "ScaleUpLimit"),
            ..grow
        },
        Case {
            name: "up: what was taken in the period may come back",
            scaled: &[(950, -4)],
            behavior: up("Max", json!([pods(3)])),
            expected: limited(12, "ScaleUpLimit"),
            ..grow
        },
        Case {
            name: "up: it is used up",
            scaled: &[(950, 7)],
            behavior: up("Max", json!([pods(3)])),
            expected: limited(5, "ScaleUpLimit"),
            ..grow
        },
        Case {
            name: "up: the maximum is nearer",
            current: 19,
            wanted: 25,
            behavior: up("Max", json!([pods(3)])),
            expected: limited(20, "TooManyReplicas"),
            ..PLAIN
        },
    ]);
}

/// C-135: the same for fewer replicas.
#[test]
fn c_135_policies_limit_shrinking_within_their_period() {
    let down = |select: &str, policies: Value| scaling_rules("scaleDown", select, policies);
    let shrink = Case { current: 19, wanted: 2, ..PLAIN };
    check(&[
        Case {
            name: "down: pods",
            behavior: down("Max", json!([pods(3)])),
            expected: limited(16, "ScaleDownLimit"),
            ..shrink
        },
        Case {
            name: "down: a share, cut off",
            behavior: down("Max", json!([percent(10)])),
            expected: limited(17, "ScaleDownLimit"),
            ..shrink
        },
        Case {
            name: "down: the larger change",
            behavior: down("Max", json!([pods(3), percent(50)])),
            expected: limited(9, "ScaleDownLimit"),
            ..shrink
        },
        Case {
            name: "down: the smaller change",
            behavior: down("Min", json!([pods(3), percent(50)])),
            expected: limited(16, "ScaleDownLimit"),
            ..shrink
        },
        Case {
            name: "down: not at all",
            behavior: down("Disabled", json!([pods(3)])),
            expected: limited(19, "ScaleDownLimit"),
            ..shrink
        },
        Case {
            name: "down: the minimum is nearer",
            wanted: 1,
            current: 3,
            behavior: down("Max", json!([pods(3)])),
            expected: limited(2, "TooFewReplicas"),
            ..PLAIN
        },
    ]);
}

#[test]
fn history_is_bounded() {
    let mut history = History::starting_at(1, at(0));
    let bounds = Bounds { current: 5, min: 1, max: 9 };
    for second in 0..2_000 {
        apply(&mut history, None, bounds, 5, at(second));
        history.scaled(1, 2, at(second));
    }
    assert_eq!((history.recommended.len(), history.scaled.len()), (HISTORY_MAX, HISTORY_MAX));
    apply(&mut history, None, bounds, 5, at(20_000));
    assert_eq!(history.recommended, [(at(20_000), 5)]);
}
