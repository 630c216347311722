//! Tables of what pods request and what is written into their cgroups.

use super::*;
use crate::fixture::{container, pod};
use api::pod::json;
use proptest::prelude::*;
use serde_json::{Value, json};

/// `cpu=1 memory=1Gi`
fn list(text: &str) -> Option<BTreeMap<String, Text>> {
    let pair = |word: &str| {
        let (name, amount) = word.split_once('=').unwrap();
        (name.to_owned(), Text(amount.into()))
    };
    Some(text.split_whitespace().map(pair).collect::<BTreeMap<_, _>>()).filter(|m| !m.is_empty())
}

fn resources(requests: &str, limits: &str) -> Option<core::ResourceRequirements> {
    let (requests, limits) = (list(requests), list(limits));
    Some(core::ResourceRequirements { requests, limits, claims: None })
}

/// A pod of `spec` with (container, requests, limits).
fn requesting(spec: &str, rows: &[(&str, &str, &str)]) -> core::PodSpec {
    let mut pod = pod("Always", spec);
    for (name, requests, limits) in rows {
        container(&mut pod, name).resources = resources(requests, limits);
    }
    pod.spec.unwrap()
}

fn text(amounts: &Amounts) -> String {
    let words: Vec<_> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    words.join(" ")
}

#[test]
fn n_110_a_pod_needs_the_largest_amount_that_it_uses_at_one_time() {
    for (case, spec, rows, wanted) in [
        (
            "sum",
            "a b",
            vec![("a", "cpu=100m", ""), ("b", "cpu=200m memory=1Gi", "")],
            "cpu=300m memory=1Gi",
        ),
        (
            "a large init container",
            "i:i a",
            vec![("i", "cpu=1", ""), ("a", "cpu=200m", "")],
            "cpu=1",
        ),
        (
            "a small init container",
            "i:i a",
            vec![("i", "cpu=100m", ""), ("a", "cpu=200m", "")],
            "cpu=200m",
        ),
        (
            "only the largest of several init containers",
            "i:i i:j a",
            vec![("i", "cpu=1 memory=1Gi", ""), ("j", "cpu=2", ""), ("a", "cpu=200m", "")],
            "cpu=2 memory=1Gi",
        ),
        ("sidecars stay", "s:s a", vec![("s", "cpu=100m", ""), ("a", "cpu=200m", "")], "cpu=300m"),
        (
            "a sidecar before an init container runs beside it",
            "s:s i:i a",
            vec![("s", "cpu=100m", ""), ("i", "cpu=1", ""), ("a", "cpu=200m", "")],
            "cpu=1100m",
        ),
        (
            "a sidecar after it does not",
            "i:i s:s a",
            vec![("s", "cpu=100m", ""), ("i", "cpu=1", ""), ("a", "cpu=200m", "")],
            "cpu=1",
        ),
    ] {
        let spec = requesting(spec, &rows);
        assert_eq!(text(&pod_requests(&spec)), wanted, "N-110: {case}");
        let swapped: Vec<_> =
            rows.iter().map(|(name, requested, _)| (*name, "", *requested)).collect();
        let limited = requesting_like(&spec, &swapped);
        assert_eq!(text(&pod_limits(&limited)), wanted, "N-110, limits: {case}");
    }
}

/// The same containers with other resources.
fn requesting_like(spec: &core::PodSpec, rows: &[(&str, &str, &str)]) -> core::PodSpec {
    let mut spec = spec.clone();
    let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for container in all {
        let row = rows.iter().find(|(name, ..)| *name == container.name);
        container.resources = row.and_then(|(_, requests, limits)| resources(requests, limits));
    }
    spec
}

#[test]
fn n_110_overhead_is_added_and_pod_level_resources_replace_the_sum() {
    let mut spec = requesting("a", &[("a", "cpu=100m", "memory=1Gi")]);
    spec.overhead = list("cpu=50m memory=16Mi");
    assert_eq!(text(&pod_requests(&spec)), "cpu=150m memory=16Mi");
    assert_eq!(
        text(&pod_limits(&spec)),
        "memory=1040Mi",
        "only limited resources get the overhead"
    );
    spec.resources = resources("cpu=1 example.com/gpu=3", "cpu=2");
    assert_eq!(text(&pod_requests(&spec)), "cpu=1050m memory=16Mi");
    assert_eq!(text(&pod_limits(&spec)), "cpu=2050m memory=1040Mi");
}

#[test]
fn n_110_during_a_resize_the_largest_amount_counts() {
    for (requested, allocated, actual, infeasible, wanted) in [
        ("cpu=100m", "cpu=200m", "cpu=300m", false, "cpu=300m"),
        ("cpu=400m", "cpu=200m", "cpu=300m", false, "cpu=400m"),
        ("cpu=400m", "cpu=200m", "cpu=300m", true, "cpu=300m"),
        ("cpu=400m", "cpu=200m", "", true, "cpu=200m"),
    ] {
        let mut pod = pod("Always", "a");
        container(&mut pod, "a").resources = resources(requested, "");
        let reason = if infeasible { "Infeasible" } else { "Deferred" };
        pod.status = Some(core::PodStatus {
            conditions: Some(vec![core::PodCondition {
                type_: "PodResizePending".into(),
                status: "True".into(),
                reason: Some(reason.into()),
                ..Default::default()
            }]),
            container_statuses: Some(vec![core::ContainerStatus {
                name: "a".into(),
                allocated_resources: list(allocated),
                resources: resources(actual, ""),
                ..Default::default()
            }]),
            ..Default::default()
        });
        assert_eq!(text(&counted_requests(&pod)), wanted, "N-110: {requested} {reason}");
        pod.status = None;
        assert_eq!(text(&counted_requests(&pod)), requested);
    }
}

#[test]
fn n_87_the_class_follows_from_cpu_and_memory_of_all_containers() {
    let full = "cpu=1 memory=1Gi";
    for (case, spec, rows, wanted) in [
        ("nothing", "a", vec![], Qos::BestEffort),
        ("zero is nothing", "a", vec![("a", "cpu=0", "memory=0")], Qos::BestEffort),
        ("other resources", "a", vec![("a", "", "example.com/gpu=1")], Qos::BestEffort),
        ("all limited", "a", vec![("a", full, full)], Qos::Guaranteed),
        ("written otherwise", "a", vec![("a", "cpu=1000m memory=1024Mi", full)], Qos::Guaranteed),
        ("requests below limits", "a", vec![("a", "cpu=500m memory=1Gi", full)], Qos::Burstable),
        ("limits alone", "a", vec![("a", "", full)], Qos::Burstable),
        ("only memory", "a", vec![("a", "memory=1Gi", "memory=1Gi")], Qos::Burstable),
        ("one of two", "a b", vec![("a", full, full)], Qos::Burstable),
        ("an init container without", "i:i a", vec![("a", full, full)], Qos::Burstable),
        (
            "an init container with",
            "i:i a",
            vec![("i", full, full), ("a", full, full)],
            Qos::Guaranteed,
        ),
        ("a request", "a b", vec![("b", "cpu=1m", "")], Qos::Burstable),
    ] {
        assert_eq!(qos_class(&requesting(spec, &rows)), wanted, "N-87: {case}");
    }
    let mut spec = requesting("a b", &[("a", "cpu=1", "")]);
    spec.resources = resources(full, full);
    assert_eq!(qos_class(&spec), Qos::Guaranteed, "N-87: only pod-level resources count");
    spec.resources = resources(full, "");
    assert_eq!(qos_class(&spec), Qos::Burstable);
    assert_eq!(Qos::BestEffort.as_str(), "BestEffort");
}

#[test]
fn n_106_cpu_requests_become_shares_and_weights() {
    for (milli, wanted) in [
        (0, 2),
        (1, 2),
        (2, 2),
        (100, 102),
        (1000, 1024),
        (256_000, 262_144),
        (i64::MAX, 262_144),
        (-5, 2),
    ] {
        assert_eq!(cpu_shares(milli), wanted, "N-106: {milli}m");
    }
    for (shares, pod, container) in
        [(2, 1, 1), (102, 4, 17), (1024, 39, 100), (262_144, 10_000, 10_000), (0, 1, 1)]
    {
        assert_eq!(pod_cpu_weight(shares), pod, "N-106: {shares}");
        assert_eq!(container_cpu_weight(shares), container, "N-106: {shares}");
    }
}

#[test]
fn n_107_cpu_limits_become_microseconds_of_every_100_ms() {
    for (milli, wanted) in
        [(0, None), (1, Some(1000)), (10, Some(1000)), (11, Some(1100)), (1500, Some(150_000))]
    {
        assert_eq!(cpu_quota(milli), wanted, "N-107: {milli}m");
    }
}

#[test]
fn n_106_to_108_without_a_request_the_limit_decides_the_cpu_shares() {
    let of = |requests, limits| container_cgroup(resources(requests, limits).as_ref());
    let cgroup =
        |cpu_shares, cpu_quota, memory_limit| Cgroup { cpu_shares, cpu_quota, memory_limit };
    assert_eq!(of("cpu=500m", "cpu=1 memory=1Mi"), cgroup(512, Some(100_000), Some(1_048_576)));
    assert_eq!(of("", "cpu=2"), cgroup(2048, Some(200_000), None), "N-106");
    assert_eq!(of("cpu=0", "cpu=2"), cgroup(2, Some(200_000), None), "N-106");
    assert_eq!(of("memory=1Gi", ""), cgroup(2, None, None), "N-108: a request writes nothing");
    assert_eq!(container_cgroup(None), cgroup(2, None, None));
}

#[test]
fn n_109_a_pods_cgroup_is_limited_only_if_every_container_is() {
    let cgroup =
        |cpu_shares, cpu_quota, memory_limit| Cgroup { cpu_shares, cpu_quota, memory_limit };
    let full = "cpu=1 memory=1Mi";
    for (case, spec, rows, wanted) in [
        ("BestEffort", "a", vec![], cgroup(2, None, None)),
        ("Guaranteed", "a", vec![("a", full, full)], cgroup(1024, Some(100_000), Some(1 << 20))),
        (
            "all limited",
            "a b",
            vec![("a", "", full), ("b", "", full)],
            cgroup(2, Some(200_000), Some(2 << 20)),
        ),
        (
            "one of two",
            "a b",
            vec![("a", full, full), ("b", "cpu=1", "cpu=1")],
            cgroup(2048, Some(200_000), None),
        ),
        ("not the init container", "i:i a", vec![("a", full, full)], cgroup(1024, None, None)),
    ] {
        assert_eq!(pod_cgroup(&requesting(spec, &rows)), wanted, "N-109: {case}");
    }
    let mut spec = requesting("a b", &[("a", "cpu=1", "")]);
    spec.resources = resources("cpu=2", "cpu=2 memory=1Mi");
    spec.overhead = list("memory=1Mi");
    assert_eq!(
        pod_cgroup(&spec),
        cgroup(2048, Some(200_000), Some(2 << 20)),
        "N-109: the pod's own"
    );
}

#[test]
fn n_111_a_smaller_memory_request_gives_a_higher_oom_score() {
    const NODE: i64 = 4 << 30;
    let full = "cpu=1 memory=1Gi";
    for (case, spec, rows, name, wanted) in [
        ("Guaranteed", "a", vec![("a", full, full)], "a", -997),
        ("BestEffort", "a", vec![], "a", 1000),
        ("Burstable", "a", vec![("a", "memory=1Gi", "")], "a", 750),
        ("no request", "a b", vec![("b", "memory=1Gi", "")], "a", 999),
        ("requests all memory", "a", vec![("a", "memory=4Gi", "")], "a", 3),
        ("requests more than the node has", "a", vec![("a", "memory=40Gi", "")], "a", 3),
        (
            "a sidecar like the smallest",
            "s:s a b",
            vec![("s", "", ""), ("a", "memory=1Gi", ""), ("b", "memory=2Gi", "")],
            "s",
            750,
        ),
        (
            "a large sidecar",
            "s:s a",
            vec![("s", "memory=3Gi", ""), ("a", "memory=1Gi", "")],
            "s",
            250,
        ),
        ("an init container", "i:s a", vec![("s", "", ""), ("a", "memory=1Gi", "")], "s", 999),
    ] {
        let spec = requesting(spec, &rows);
        let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let container = all.find(|container| container.name == name).unwrap();
        assert_eq!(oom_score_adj(&spec, container, NODE), wanted, "N-111: {case}");
    }
    let mut spec = requesting("a", &[]);
    spec.priority_class_name = Some("system-node-critical".into());
    assert_eq!(oom_score_adj(&spec, &spec.containers[0], NODE), -997, "N-111: critical");
    let mut spec = requesting("a b", &[("a", "memory=1Gi", "")]);
    spec.resources = resources("memory=3Gi", "");
    assert_eq!(oom_score_adj(&spec, &spec.containers[1], NODE), 750, "the pod's own, divided");
}

/// Amounts of a few resources, some of them zero.
fn any_amounts() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["cpu", "memory", "hugepages-2Mi", "example.com/gpu"]);
    let amount = prop::sample::select(vec!["0", "1", "2", "500m", "1Gi"]);
    prop::collection::btree_map(name, amount, 0..4).prop_map(|amounts| json!(amounts))
}

/// Requests and limits, each of which may be absent.
fn any_resources() -> impl Strategy<Value = Value> {
    let side = || prop::option::of(any_amounts());
    (side(), side()).prop_map(|(requests, limits)| {
        let mut resources = json!({});
        for (name, side) in [("requests", requests), ("limits", limits)] {
            if let Some(side) = side {
                resources[name] = side;
            }
        }
        resources
    })
}

/// A container and what its node reports about it.
fn any_container() -> impl Strategy<Value = (Value, Option<Value>)> {
    let status = (any_amounts(), prop::option::of(any_resources()));
    (any_resources(), any::<bool>(), prop::option::of(status)).prop_map(
        |(resources, sidecar, status)| {
            let mut container = json!({"name": "", "resources": resources});
            if sidecar {
                container["restartPolicy"] = "Always".into();
            }
            let status = status.map(|(allocated, resources)| {
                let mut status = json!({"name": "", "image": "", "imageID": "", "ready": true,
                    "restartCount": 0, "allocatedResources": allocated});
                if let Some(resources) = resources {
                    status["resources"] = resources;
                }
                status
            });
            (container, status)
        },
    )
}

fn any_pod() -> impl Strategy<Value = Value> {
    let containers = || prop::collection::vec(any_container(), 0..4);
    let reason = prop::option::of(prop::sample::select(vec!["Infeasible", "Deferred"]));
    let pod_level = prop::option::of(any_resources());
    (containers(), containers(), pod_level, any_amounts(), reason).prop_map(
        |(regular, init, pod_level, overhead, reason)| {
            let mut pod = json!({"metadata": {}, "spec": {"overhead": overhead}, "status": {}});
            for (list, statuses, all) in [
                ("containers", "containerStatuses", regular),
                ("initContainers", "initContainerStatuses", init),
            ] {
                let (mut specs, mut reports) = (Vec::new(), Vec::new());
                for (place, (mut container, status)) in all.into_iter().enumerate() {
                    let name = format!("{list}-{place}");
                    container["name"] = name.clone().into();
                    specs.push(container);
                    reports.extend(status.map(|mut status| {
                        status["name"] = name.into();
                        status
                    }));
                }
                pod["spec"][list] = specs.into();
                pod["status"][statuses] = reports.into();
            }
            if let Some(resources) = pod_level {
                pod["spec"]["resources"] = resources;
            }
            if let Some(reason) = reason {
                let condition =
                    json!({"type": "PodResizePending", "status": "True", "reason": reason});
                pod["status"]["conditions"] = json!([condition]);
            }
            pod
        },
    )
}

proptest! {
    /// The server reads JSON pods, all other components typed ones. Both must see the same amounts.
    #[test]
    fn n_87_n_110_json_and_typed_pods_have_the_same_totals_and_qos_class(pod in any_pod()) {
        let typed: core::Pod = typed::from_value(pod.clone()).unwrap();
        let spec = typed.spec.as_ref().unwrap();
        prop_assert_eq!(pod_requests(spec), json::total_with_overhead(&pod, Side::Requests));
        prop_assert_eq!(pod_limits(spec), json::total_with_overhead(&pod, Side::Limits));
        prop_assert_eq!(counted_requests(&typed), json::total_held(&pod, Side::Requests));
        prop_assert_eq!(qos_class(spec), json::qos_class(&pod));
    }
}
