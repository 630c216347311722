//! Each row is a few pods with their usage, and the recommended number.

use super::*;
use serde_json::{Value, json};

/// Seconds since an arbitrary time; now is 1000.
fn at(second: i64) -> Timestamp {
    Timestamp::new(1_800_000_000 + second, 0).unwrap()
}

/// A pod with a request of 1000m and its usage, if known.
#[derive(Clone)]
struct One {
    pod: Value,
    used: Option<i64>,
}

/// A pod that has been ready for long.
fn busy(used: i64) -> One {
    let pod = json!({
        "metadata": {},
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
        "status": {
            "phase": "Running",
            "startTime": at(0).to_string(),
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at(5).to_string() }],
        },
    });
    One { pod, used: Some(used) }
}

fn silent() -> One {
    One { used: None, ..busy(0) }
}

fn with(mut one: One, patch: Value) -> One {
    merge(&mut one.pod, patch);
    one
}

fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

fn pods(all: &[One]) -> (Vec<Arc<Pod>>, Samples) {
    let mut samples = Samples::new();
    let mut pods = Vec::new();
    for (place, one) in all.iter().enumerate() {
        let name = format!("p{place}");
        let mut pod = one.pod.clone();
        pod["metadata"]["name"] = name.clone().into();
        pods.push(Arc::new(typed::from_value(pod).unwrap()));
        if let Some(value) = one.used {
            let window = SignedDuration::from_secs(15);
            samples.insert(name, Sample { value, at: at(995), window });
        }
    }
    (pods, samples)
}

fn proposed(all: &[One], target: i32) -> Result<i32, String> {
    let (pods, samples) = pods(all);
    let current = i32::try_from(pods.len()).unwrap();
    let scaled =
        ScaleTarget { current, pods: &pods, tolerance: Tolerance::default(), now: at(1000) };
    by_utilization(&scaled, &samples, "cpu", None, target).map(|proposal| proposal.replicas)
}

/// C-132: the ratio of current to target value decides.
#[test]
fn c_132_the_ratio_to_the_target_decides_outside_the_tolerance() {
    for (used, target, expected) in [
        (vec![500, 500], 50, 2),
        (vec![550, 550], 50, 2), // 1.1 is within 0.1
        (vec![560, 560], 50, 3),
        (vec![450, 450], 50, 2),
        (vec![440, 440, 440], 50, 3),
        (vec![440, 440, 440, 440, 440, 440, 440, 440, 440], 50, 8),
        (vec![1000], 50, 2),
        (vec![2000, 2000], 50, 8),
        (vec![0, 0], 50, 0),
        (vec![559, 559], 50, 2), // 55 % after cutting off: 1.1
        (vec![900, 100], 50, 2),
    ] {
        let all: Vec<One> = used.iter().map(|used| busy(*used)).collect();
        assert_eq!(proposed(&all, target), Ok(expected), "{used:?} at {target} %");
    }
}

/// C-132: the ratio of current to target value decides.
#[test]
fn c_132_utilization_is_truncated_and_the_average_reported() {
    let (pods, samples) = pods(&[busy(333), busy(336)]);
    let scaled =
        ScaleTarget { current: 2, pods: &pods, tolerance: Tolerance::default(), now: at(1000) };
    let found = by_utilization(&scaled, &samples, "cpu", None, 50).unwrap();
    assert_eq!(found, Proposal { replicas: 2, utilization: Some(33), average: 334 });
    let found = by_average(&scaled, &samples, "cpu", 100).unwrap();
    assert_eq!(found, Proposal { replicas: 7, utilization: None, average: 334 });
}

/// C-132: the ratio of current to target value decides.
#[test]
fn c_132_each_direction_can_have_its_own_tolerance() {
    let (pods, samples) = pods(&[busy(560), busy(560)]);
    for (tolerance, expected) in [
        (Tolerance { up: 0.1, down: 0.1 }, 3),
        (Tolerance { up: 0.2, down: 0.0 }, 2),
        (Tolerance { up: 0.0, down: 0.5 }, 3),
    ] {
        let scaled = ScaleTarget { current: 2, pods: &pods, tolerance, now: at(1000) };
        let found = by_utilization(&scaled, &samples, "cpu", None, 50).unwrap();
        assert_eq!(found.replicas, expected, "{tolerance:?}");
    }
}

/// C-132: the ratio of current to target value decides.
#[test]
fn c_132_a_container_without_a_request_is_an_error() {
    let none = with(busy(500), json!({ "spec": { "containers": [{ "name": "c" }] } }));
    let error = "missing request for cpu in container c of Pod p1".to_owned();
    assert_eq!(proposed(&[busy(500), none], 50), Err(error));
    assert_eq!(
        proposed(&[], 50),
        Err("no pods returned by selector while calculating replica count".to_owned())
    );
    // A request of the whole pod is enough.
    let whole = with(
        busy(500),
        json!({ "spec": { "containers": [{ "name": "c" }], "resources": { "requests": { "cpu": "500m" } } } }),
    );
    assert_eq!(proposed(&[whole], 50), Ok(2));
}

/// C-133: pods without samples and unready pods.
#[test]
fn c_133_pods_without_samples_only_reduce_a_change() {
    let pending = || with(silent(), json!({ "status": { "phase": "Pending" } }));
    let failed = || with(busy(9000), json!({ "status": { "phase": "Failed" } }));
    let ending =
        || with(busy(9000), json!({ "metadata": { "deletionTimestamp": at(900).to_string() } }));
    let nothing = "did not receive metrics for targeted pods (pods might be unready)";
    for (case, all, target, expected) in [
        ("up: a missing one is idle", vec![busy(1000), busy(1000), silent()], 50, Ok(4)),
        ("up: so that nothing is done", vec![busy(560), silent()], 50, Ok(2)),
        ("down: a missing one is busy", vec![busy(100), busy(100), busy(100), silent()], 50, Ok(3)),
        ("down: so that nothing is done", vec![busy(300), silent()], 50, Ok(2)),
        ("down: as the target if that is above", vec![busy(1000), silent(), silent()], 150, Ok(3)),
        ("up: a pending one is idle", vec![busy(1000), busy(1000), pending()], 50, Ok(4)),
        ("down: a pending one does not count", vec![busy(100), busy(100), pending()], 50, Ok(1)),
        ("a terminating one does not count", vec![busy(1000), ending()], 50, Ok(2)),
        ("nor one that failed", vec![busy(1000), failed()], 50, Ok(2)),
        ("no pod has a sample", vec![pending(), silent()], 50, Err(nothing.to_owned())),
    ] {
        assert_eq!(proposed(&all, target), expected, "{case}");
    }
}

/// C-133: pods without samples and unready pods.
#[test]
fn c_133_cpu_usage_during_startup_does_not_count() {
    let ready = |started: i64, status: &str, since: i64| {
        let ready = json!([{ "type": "Ready", "status": status, "lastTransitionTime": at(since).to_string() }]);
        json!({ "status": { "startTime": at(started).to_string(), "conditions": ready } })
    };
    for (case, patch, counts) in [
        ("ready for long", ready(0, "True", 5), true),
        ("no Ready condition", json!({ "status": { "conditions": null } }), false),
        ("no start time", json!({ "status": { "startTime": null } }), false),
        ("young and not ready", ready(900, "False", 900), false),
        ("young and ready, the sample is of that time", ready(900, "True", 980), true),
        ("young and ready, the sample began before", ready(900, "True", 981), false),
        ("old and never ready", ready(0, "False", 29), false),
        ("old and no longer ready", ready(0, "False", 31), true),
        ("five minutes are over", ready(700, "False", 731), true),
        ("five minutes are not over", ready(701, "False", 732), false),
    ] {
        // A single pod gives a proposal or an error.
        let found = proposed(&[with(busy(2000), patch)], 50);
        assert_eq!(found.is_ok(), counts, "{case}: {found:?}");
    }
    // Memory usage during startup counts.
    let (pods, samples) = pods(&[with(busy(2000), ready(900, "False", 900))]);
    let scaled =
        ScaleTarget { current: 1, pods: &pods, tolerance: Tolerance::default(), now: at(1000) };
    assert_eq!(by_average(&scaled, &samples, "memory", 1000).unwrap().replicas, 2);
}

#[test]
fn c_133_extreme_times_do_not_overflow() {
    for (started, turned) in [(Timestamp::MAX, Timestamp::MIN), (at(900), Timestamp::MAX)] {
        let ready = json!([{ "type": "Ready", "status": "True",
                             "lastTransitionTime": turned.to_string() }]);
        let times = json!({ "startTime": started.to_string(), "conditions": ready });
        let odd = with(busy(2000), json!({ "status": times }));
        assert!(proposed(&[busy(2000), odd], 100).is_ok(), "{started} {turned}");
    }
}
