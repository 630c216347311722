//! Tables of resizes.

use super::*;
use crate::fixture::{at, container, pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

/// `cpu=100m memory=1Gi`
fn list(text: &str) -> Option<BTreeMap<String, Text>> {
    let pair = |word: &str| {
        let (name, amount) = word.split_once('=').unwrap();
        (name.to_owned(), Text(amount.to_owned()))
    };
    Some(text.split_whitespace().map(pair).collect())
        .filter(|list: &BTreeMap<_, _>| !list.is_empty())
}

/// Requests, a slash, limits.
fn resources(text: &str) -> core::ResourceRequirements {
    let (requests, limits) = text.split_once('/').unwrap_or((text, ""));
    core::ResourceRequirements { requests: list(requests), limits: list(limits), claims: None }
}

fn spec(text: &str) -> core::PodSpec {
    let mut pod = pod("Always", "a");
    container(&mut pod, "a").resources = Some(resources(text));
    pod.spec.unwrap()
}

#[test]
fn n_118_a_resize_beyond_capacity_is_infeasible_and_one_without_room_is_deferred() {
    let allocatable = amounts(list("cpu=2 memory=1Gi").as_ref());
    let never =
        |what: &str| Decision::Infeasible(format!("Node didn't have enough capacity: {what}"));
    for (requested, short, wanted) in [
        ("cpu=1 memory=1Gi", None, Decision::Granted),
        ("cpu=2", Some("short of cpu"), Decision::Deferred("short of cpu".into())),
        ("cpu=3", Some("short"), never("cpu, requested: 3000, capacity: 2000")),
        ("cpu=3 memory=2Gi", None, never("memory, requested: 2147483648, capacity: 1073741824")),
        ("", None, Decision::Granted),
    ] {
        let decision = decide(&spec(requested), &allocatable, short.map(str::to_owned));
        assert_eq!(decision, wanted, "N-118: {requested}");
    }
    assert_eq!(Decision::Granted.pending(), None);
    assert_eq!(never("x").pending().unwrap().0, "Infeasible");
    assert_eq!(Decision::Deferred(String::new()).pending().unwrap().0, "Deferred");
}

#[test]
fn n_118_resizes_are_ordered_by_shrinking_priority_qos_and_waiting_time() {
    let waiting = |uid: &str, grows: bool, priority: i32, qos: Qos, since: i64| Waiting {
        uid: uid.into(),
        grows,
        priority,
        qos,
        since: at(since),
    };
    let all = vec![
        waiting("late", true, 5, Qos::Burstable, 9),
        waiting("early", true, 5, Qos::Burstable, 3),
        waiting("guaranteed", true, 5, Qos::Guaranteed, 9),
        waiting("important", true, 7, Qos::Burstable, 9),
        waiting("shrinks", false, 0, Qos::Burstable, 9),
    ];
    let order: Vec<String> = in_turn(all).into_iter().map(|one| one.uid).collect();
    assert_eq!(order, ["shrinks", "important", "guaranteed", "early", "late"]);
    let granted = Grant::of(&spec("cpu=1 memory=1Gi"));
    for (requested, wanted) in [
        ("cpu=1 memory=1Gi", false),
        ("cpu=500m memory=1Gi", false),
        ("cpu=500m memory=2Gi", true),
        ("cpu=1001m memory=1Gi", true),
    ] {
        assert_eq!(grows(&spec(requested), &granted), wanted, "{requested}");
        assert_eq!(Waiting::new("u", &spec(requested), &granted, at(0)).grows, wanted);
    }
}

#[test]
fn a_grant_equals_its_spec_in_any_notation_and_can_be_put_back() {
    let granted = Grant::of(&spec("cpu=1/memory=1Gi"));
    assert!(granted.is_of(&spec("cpu=1000m/memory=1024Mi")));
    for other in ["cpu=1", "cpu=2/memory=1Gi", "cpu=1 memory=1/memory=1Gi", ""] {
        assert!(!granted.is_of(&spec(other)), "{other}");
        let mut back = spec(other);
        granted.put_into(&mut back);
        assert!(granted.is_of(&back), "{other}");
    }
    let mut whole = spec("cpu=1/memory=1Gi");
    whole.resources = Some(resources("cpu=1"));
    assert!(!granted.is_of(&whole), "resources of the whole pod count too");
}

#[test]
fn n_120_the_resize_policy_decides_whether_a_change_restarts() {
    use Resource::{Cpu, Memory};
    for (granted, applied, policy, wanted) in [
        ("cpu=1/memory=1Gi", "cpu=1000m/memory=1Gi", "", None),
        ("cpu=2/memory=1Gi", "cpu=1/memory=1Gi", "", Some((vec![Cpu], false))),
        ("cpu=2/memory=1Gi", "cpu=1/memory=1Gi", "memory", Some((vec![Cpu], false))),
        ("cpu=2/memory=1Gi", "cpu=1/memory=1Gi", "cpu", Some((vec![Cpu], true))),
        (
            "cpu=2 memory=2/memory=1Gi",
            "cpu=1/memory=1Gi",
            "memory",
            Some((vec![Memory, Cpu], true)),
        ),
        ("/cpu=1 memory=2Gi", "/cpu=1 memory=1Gi", "", Some((vec![Memory], false))),
        ("gpu=1", "gpu=2", "", None),
    ] {
        let mut pod = pod("Always", "a");
        let of = container(&mut pod, "a");
        of.resources = Some(resources(granted));
        let policies = |names: &str, word: &str| {
            let policy = |name: &str| core::ContainerResizePolicy {
                resource_name: name.into(),
                restart_policy: word.into(),
            };
            names.split_whitespace().map(policy).collect::<Vec<_>>()
        };
        of.resize_policy = Some(policies(policy, "RestartContainer"));
        let wanted = wanted.map(|(resources, restart)| Change { resources, restart });
        assert_eq!(change(of, &resources(applied)), wanted, "{granted} over {applied}, {policy}");
        of.resize_policy = Some(policies("cpu memory", "NotRequired"));
        assert!(!change(of, &resources(applied)).is_some_and(|change| change.restart));
    }
}

/// `100 50000 1000`: shares, quota, memory; `-` is none.
fn group(text: &str) -> Cgroup {
    let mut words = text.split_whitespace();
    let mut next = || words.next().unwrap();
    Cgroup {
        cpu_shares: next().parse().unwrap(),
        cpu_quota: next().parse().ok(),
        memory_limit: next().parse().ok(),
    }
}

fn summary(steps: &[ResizeStep]) -> String {
    let one = |step: &ResizeStep| match step {
        ResizeStep::PodLimit(resource) => format!("pod-{}-limit", resource.name()),
        ResizeStep::PodRequest => "pod-cpu-request".to_owned(),
        ResizeStep::Container { name, resource } => format!("{name}-{}", resource.name()),
    };
    steps.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn n_120_a_pods_cgroup_grows_first_and_shrinks_last() {
    for (pod, a, b, wanted) in [
        (("9 9 9", "9 9 9"), ("4 4 4", "4 4 4"), ("5 5 5", "5 5 5"), ""),
        (
            ("9 9 9", "12 12 12"),
            ("4 4 4", "7 7 7"),
            ("5 5 5", "5 5 5"),
            "pod-memory-limit a-memory pod-cpu-limit pod-cpu-request a-cpu",
        ),
        (
            ("9 9 9", "7 7 7"),
            ("4 4 4", "2 2 2"),
            ("5 5 5", "5 5 5"),
            "a-memory pod-memory-limit a-cpu pod-cpu-request pod-cpu-limit",
        ),
        // One grows as the other shrinks: the pod's cgroup stays, and the shrinking one comes first.
        (
            ("9 9 9", "9 9 9"),
            ("4 4 4", "6 6 6"),
            ("5 5 5", "3 3 3"),
            "b-memory a-memory b-cpu a-cpu",
        ),
        // Only requests: the limit of the pod is left alone.
        (("9 - -", "12 - -"), ("4 - -", "7 - -"), ("5 - -", "5 - -"), "pod-cpu-request a-cpu"),
        // A new limit is less than no limit.
        (("9 9 -", "9 9 9"), ("4 4 -", "4 4 4"), ("5 5 5", "5 5 5"), "a-memory pod-memory-limit"),
        // Memory grows and cpu shrinks: each by its own rule.
        (
            ("9 9 9", "7 7 12"),
            ("4 4 4", "2 2 7"),
            ("5 5 5", "5 5 5"),
            "pod-memory-limit a-memory a-cpu pod-cpu-request pod-cpu-limit",
        ),
    ] {
        let resized = |name: &str, of: (&str, &str)| Resized {
            name: name.into(),
            before: group(of.0),
            after: group(of.1),
        };
        let steps = steps((group(pod.0), group(pod.1)), &[resized("a", a), resized("b", b)]);
        assert_eq!(summary(&steps), wanted, "N-120: {pod:?} {a:?} {b:?}");
    }
}

#[test]
fn n_121_a_memory_limit_is_not_lowered_below_the_usage() {
    let resized = |name: &str, before: &str, after: &str| Resized {
        name: name.into(),
        before: group(before),
        after: group(after),
    };
    let usage = BTreeMap::from([("a".to_owned(), 500), ("b".to_owned(), 70)]);
    let message = |name: &str, limit: i64, used: i64| {
        format!(
            "attempting to set container \"{name}\" memory limit ({limit}) below current usage ({used})"
        )
    };
    let a = |after: &str| resized("a", "2 - 1000", after);
    assert_eq!(too_small(&[a("2 - 501")], &usage), None);
    assert_eq!(
        too_small(&[a("2 - 500")], &usage),
        Some(format!("cannot decrease memory limits: {}", message("a", 500, 500)))
    );
    assert_eq!(too_small(&[resized("a", "2 - 100", "2 - 200")], &usage), None, "it grows");
    assert_eq!(
        too_small(&[resized("x", "2 - 100", "2 - 20")], &usage),
        None,
        "the usage is unknown"
    );
    let both = [a("2 - 400"), resized("b", "2 - -", "2 - 60")];
    let (a, b) = (message("a", 400, 500), message("b", 60, 70));
    assert_eq!(
        too_small(&both, &usage),
        Some(format!("cannot decrease memory limits: [{a}, {b}]"))
    );
}
