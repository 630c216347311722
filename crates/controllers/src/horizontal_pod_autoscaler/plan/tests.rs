//! Whole reconciles: the new size, conditions and events.

use super::*;
use client::PodMetrics;
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::new(1_800_000_000 + second, 0).unwrap()
}

fn cpu(target: i32) -> Value {
    let target = json!({ "type": "Utilization", "averageUtilization": target });
    json!({ "type": "Resource", "resource": { "name": "cpu", "target": target } })
}

fn memory(target: &str) -> Value {
    let target = json!({ "type": "AverageValue", "averageValue": target });
    json!({ "type": "Resource", "resource": { "name": "memory", "target": target } })
}

fn container(name: &str, target: i32) -> Value {
    let target = json!({ "type": "Utilization", "averageUtilization": target });
    json!({ "type": "ContainerResource",
            "containerResource": { "name": "cpu", "container": name, "target": target } })
}

fn scaler(metrics: Value) -> HorizontalPodAutoscaler {
    typed::from_value(json!({
        "metadata": { "name": "h", "namespace": "n" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "minReplicas": 2, "maxReplicas": 6, "metrics": metrics,
        },
        "status": { "desiredReplicas": 3 },
    }))
    .unwrap()
}

fn scale(replicas: i32) -> Scale {
    typed::from_value(json!({
        "metadata": { "name": "web", "namespace": "n" },
        "spec": { "replicas": replicas }, "status": { "replicas": replicas, "selector": "app=web" },
    }))
    .unwrap()
}

/// Pods that have run for long, with a request of 100m for each of their two containers, and the usage of each.
fn used(pods: i32, cpu: &str, memory: &str) -> (Vec<Arc<Pod>>, Vec<PodMetrics>) {
    let one = |name: &str| json!({ "name": name, "resources": { "requests": { "cpu": "100m" } } });
    let pod = |place: i32| {
        let ready =
            json!([{ "type": "Ready", "status": "True", "lastTransitionTime": at(5).to_string() }]);
        let pod = json!({
            "metadata": { "name": format!("p{place}") },
            "spec": { "containers": [one("a"), one("b")] },
            "status": { "phase": "Running", "startTime": at(0).to_string(), "conditions": ready },
        });
        Arc::new(typed::from_value(pod).unwrap())
    };
    let metrics_of = |place: i32| {
        let usage = json!({ "cpu": cpu, "memory": memory });
        let metrics = json!({
            "metadata": { "name": format!("p{place}"), "namespace": "n" },
            "timestamp": at(995).to_string(), "window": "15s",
            "containers": [{ "name": "a", "usage": usage }, { "name": "b", "usage": usage }],
        });
        typed::from_value(metrics).unwrap()
    };
    ((0..pods).map(pod).collect(), (0..pods).map(metrics_of).collect())
}

fn decided(metrics: Value, replicas: i32, cpu: &str, memory: &str) -> Plan {
    let (pods, usage) = used(replicas, cpu, memory);
    decide_on(&scaler(metrics), replicas, Ok(pods), Ok(usage))
}

fn decide_on(
    scaler: &HorizontalPodAutoscaler,
    replicas: i32,
    pods: Result<Vec<Arc<Pod>>, SelectorError>,
    usage: Usage,
) -> Plan {
    let scale = scale(replicas);
    let input = Input { scaler, scale: &scale, pods, usage, now: at(1000) };
    // So long ago that no window applies.
    let mut history = History::starting_at(replicas, at(0));
    decide(&input, &mut history)
}

/// `AbleToScale=True/ReadyForNewScale …`
fn conditions(status: &HorizontalPodAutoscalerStatus) -> String {
    let all = status.conditions.iter().flatten();
    let text = |one: &HorizontalPodAutoscalerCondition| {
        format!("{}={}/{}", one.type_, one.status, one.reason.as_deref().unwrap_or_default())
    };
    all.map(text).collect::<Vec<_>>().join(" ")
}

fn message<'a>(status: &'a HorizontalPodAutoscalerStatus, type_: &str) -> &'a str {
    let mut all = status.conditions.iter().flatten();
    let found = all.find(|condition| condition.type_ == type_).unwrap();
    found.message.as_deref().unwrap_or_default()
}

fn to(plan: &Plan) -> Option<(i32, &str)> {
    plan.rescale.as_ref().map(|rescale| (rescale.to, rescale.reason.as_str()))
}

/// C-131: a size outside of min and max is corrected.
#[test]
fn c_131_outside_its_bounds_no_metric_is_evaluated() {
    let nothing = || decide_on(&scaler(json!([cpu(50)])), 0, Ok(vec![]), Ok(vec![]));
    assert_eq!(to(&nothing()), None);
    assert_eq!(
        conditions(&nothing().status),
        "AbleToScale=True/SucceededGetScale ScalingActive=False/ScalingDisabled"
    );
    assert_eq!(nothing().status.desired_replicas, 0);
    for (replicas, expected) in [
        (1, Some((2, "Current number of replicas below Spec.MinReplicas"))),
        (7, Some((6, "Current number of replicas above Spec.MaxReplicas"))),
    ] {
        let plan = decide_on(&scaler(json!([cpu(50)])), replicas, Ok(vec![]), Ok(vec![]));
        assert_eq!(to(&plan), expected);
        assert_eq!(conditions(&plan.status), "AbleToScale=True/SucceededGetScale");
        assert!(plan.warnings.is_empty());
    }
}

/// C-131, C-132, C-134, C-137: each metric is compared with its target, and the event names the deciding one.
#[test]
fn c_131_the_highest_recommendation_decides() {
    const CPU: &str = "cpu resource utilization (percentage of request) above target";
    for (case, metrics, used_cpu, used_memory, expected) in [
        ("at its target", json!([cpu(50)]), "50m", "1Mi", None),
        ("twice its target", json!([cpu(50)]), "75m", "1Mi", Some((5, CPU))),
        (
            "memory recommends more",
            json!([cpu(50), memory("1Mi")]),
            "60m",
            "1Mi",
            Some((6, "memory resource above target")),
        ),
        ("cpu recommends more", json!([cpu(50), memory("2Mi")]), "75m", "1Mi", Some((5, CPU))),
        ("one container", json!([container("b", 50)]), "75m", "1Mi", Some((5, CPU))),
        (
            "all below",
            json!([cpu(50), memory("8Mi")]),
            "20m",
            "1Mi",
            Some((2, "All metrics below target")),
        ),
        ("one not below", json!([cpu(50), memory("2Mi")]), "20m", "1Mi", None),
    ] {
        assert_eq!(to(&decided(metrics, 3, used_cpu, used_memory)), expected, "{case}");
    }
}

/// C-136: the conditions of an autoscaler.
#[test]
fn c_136_success_sets_conditions_and_current_metrics() {
    let plan = decided(json!([cpu(50), memory("1Mi")]), 3, "50m", "512Ki");
    assert_eq!(
        conditions(&plan.status),
        "AbleToScale=True/ReadyForNewScale ScalingActive=True/ValidMetricFound \
         ScalingLimited=False/DesiredWithinRange"
    );
    assert_eq!(
        message(&plan.status, "ScalingActive"),
        "the HPA was able to successfully calculate a replica count from cpu resource utilization \
         (percentage of request)"
    );
    let HorizontalPodAutoscalerStatus { current_replicas, desired_replicas, .. } = plan.status;
    assert_eq!((current_replicas, desired_replicas), (Some(3), 3));
    assert_eq!(
        serde_json::to_value(&plan.status.current_metrics).unwrap(),
        json!([
            { "type": "Resource", "resource": { "name": "cpu",
                "current": { "averageUtilization": 50, "averageValue": "100m" } } },
            { "type": "Resource", "resource": { "name": "memory",
                "current": { "averageValue": "1048576" } } },
        ])
    );
}

/// C-136, C-137: the conditions of an autoscaler; the scale is written and an event recorded.
#[test]
fn c_136_the_result_of_scaling_is_in_the_conditions() {
    let before = decided(json!([cpu(50)]), 3, "75m", "1Mi").status;
    assert_eq!((before.desired_replicas, &before.last_scale_time), (5, &None));
    let mut done = before.clone();
    rescaled(&mut done, 5, at(1000));
    assert_eq!(
        conditions(&done),
        "AbleToScale=True/SucceededRescale ScalingActive=True/ValidMetricFound \
         ScalingLimited=False/DesiredWithinRange"
    );
    assert_eq!(
        message(&done, "AbleToScale"),
        "the HPA controller was able to update the target scale to 5"
    );
    assert_eq!(done.last_scale_time, Some(Time(at(1000))));
    let mut not = before.clone();
    refused(&mut not, scaler(json!([])).status.as_ref(), "no", at(1000));
    assert!(conditions(&not).starts_with("AbleToScale=False/FailedUpdateScale "));
    assert_eq!((not.desired_replicas, not.last_scale_time), (3, None));
    let unknown = scale_unknown(None, "deployments.apps \"web\" not found", at(1000));
    assert_eq!(conditions(&unknown), "AbleToScale=False/FailedGetScale");
    assert_eq!(
        message(&unknown, "AbleToScale"),
        "the HPA controller was unable to get the target's current scale: \
         deployments.apps \"web\" not found"
    );
}

/// C-136: the conditions of an autoscaler.
#[test]
fn c_136_transition_time_changes_with_the_status() {
    let mut status = scale_unknown(None, "a", at(1));
    set(&mut status, ABLE, false, ("FailedGetScale", "b"), at(2));
    assert_eq!(status.conditions.as_ref().unwrap()[0].last_transition_time, Some(Time(at(1))));
    set(&mut status, ABLE, true, ("SucceededGetScale", "c"), at(3));
    assert_eq!(status.conditions.as_ref().unwrap()[0].last_transition_time, Some(Time(at(3))));
}

/// C-134, C-136: the metric types; the conditions of an autoscaler.
#[test]
fn c_134_unavailable_metrics_are_named_with_the_reason() {
    let target = json!({ "type": "AverageValue", "averageValue": "10" });
    let metric = json!({ "name": "rps" });
    let on = json!({ "kind": "Service", "name": "s" });
    let labelled = json!({ "name": "rps", "selector": { "matchLabels": { "q": "w" } } });
    let custom = "unable to fetch metrics from custom metrics API: no custom metrics API \
                  (custom.metrics.k8s.io) registered";
    let external = "unable to fetch metrics from external metrics API: the server could not find \
                    the requested resource (get rps.external.metrics.k8s.io)";
    for (spec, reason, why) in [
        (
            json!({ "type": "Pods", "pods": { "metric": metric, "target": target } }),
            "FailedGetPodsMetric",
            format!("unable to get metric rps: {custom}"),
        ),
        (
            json!({ "type": "Object", "object": { "metric": metric, "target": target, "describedObject": on } }),
            "FailedGetObjectMetric",
            format!("unable to get metric rps: Service on n s/{custom}"),
        ),
        (
            json!({ "type": "External", "external": { "metric": metric, "target": target } }),
            "FailedGetExternalMetric",
            format!("unable to get external metric n/rps/nil: {external}"),
        ),
        (
            json!({ "type": "External", "external": { "metric": labelled, "target": target } }),
            "FailedGetExternalMetric",
            format!(
                "unable to get external metric n/rps/&LabelSelector{{MatchLabels:map[string]string\
                 {{q: w,}},MatchExpressions:[]LabelSelectorRequirement{{}},}}: {external}"
            ),
        ),
        (
            json!({ "type": "Other" }),
            "InvalidMetricSourceType",
            "unknown metric source type \"Other\"".to_owned(),
        ),
    ] {
        let plan = decided(json!([spec]), 3, "75m", "1Mi");
        assert_eq!(to(&plan), None);
        assert_eq!(plan.warnings[0], (reason, why.clone()));
        assert_eq!(plan.warnings[1].0, "FailedComputeMetricsReplicas");
        assert!(
            plan.warnings[1]
                .1
                .starts_with("invalid metrics (1 invalid out of 1), first error is: ")
        );
        let active = format!("ScalingActive=False/{reason}");
        assert_eq!(
            conditions(&plan.status),
            format!("AbleToScale=True/SucceededGetScale {active}")
        );
        assert_eq!(
            message(&plan.status, "ScalingActive"),
            format!("the HPA was unable to compute the replica count: {why}")
        );
        assert_eq!(plan.status.desired_replicas, 3, "unchanged");
    }
}

/// C-134: the metric types.
#[test]
fn c_134_no_scale_down_while_a_metric_fails() {
    let broken = container("nosuch", 50);
    let up = decided(json!([broken, cpu(50)]), 3, "75m", "1Mi");
    assert_eq!(to(&up).map(|(to, _)| to), Some(5));
    assert_eq!(up.status.current_metrics.as_ref().map(Vec::len), Some(2));
    assert!(conditions(&up.status).contains("ScalingActive=True/ValidMetricFound"));
    let down = decided(json!([broken, cpu(50)]), 3, "20m", "1Mi");
    assert_eq!(to(&down), None);
    assert!(
        conditions(&down.status).contains("ScalingActive=False/FailedGetContainerResourceMetric")
    );
    assert_eq!(
        down.warnings[1].1,
        "invalid metrics (1 invalid out of 2), first error is: failed to get nosuch container metric \
         value: failed to get cpu utilization: unable to get metrics for resource cpu: failed to get \
         container metrics: container nosuch not present in metrics for pod n/p0"
    );
}

/// C-133, C-136: users see this first after `kubectl autoscale`.
#[test]
fn c_136_missing_usage_is_reported() {
    let (pods, _) = used(3, "75m", "1Mi");
    for (usage, expected) in [
        (
            Ok(vec![]),
            "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics \
             returned from resource metrics API",
        ),
        (
            Err("the server is busy".to_owned()),
            "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch \
             metrics from resource metrics API: the server is busy",
        ),
    ] {
        let plan = decide_on(&scaler(json!([cpu(50)])), 3, Ok(pods.clone()), usage);
        assert_eq!(to(&plan), None);
        assert_eq!(plan.warnings[0], ("FailedGetResourceMetric", expected.to_owned()));
    }
}

/// C-136: the conditions of an autoscaler.
#[test]
fn c_136_selector_errors_are_reported() {
    let why = SelectorError {
        event: "SelectorRequired",
        reason: "InvalidSelector",
        message: "the HPA target's scale is missing a selector".to_owned(),
        error: "selector is required".to_owned(),
    };
    let plan = decide_on(&scaler(json!([cpu(50)])), 3, Err(why), Ok(vec![]));
    assert!(conditions(&plan.status).contains("ScalingActive=False/InvalidSelector"));
    let reasons: Vec<&str> = plan.warnings.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(reasons, ["SelectorRequired", "FailedComputeMetricsReplicas"]);
}

/// C-135: recent recommendations delay scaling down.
#[test]
fn c_135_the_first_reconcile_counts_the_current_size_as_recommended() {
    let (pods, usage) = used(4, "20m", "1Mi");
    let (scaler, scale) = (scaler(json!([cpu(50)])), scale(4));
    let mut history = History::starting_at(4, at(700));
    let mut plan = |second: i64| {
        let (pods, usage) = (Ok(pods.clone()), Ok(usage.clone()));
        let input = Input { scaler: &scaler, scale: &scale, pods, usage, now: at(second) };
        decide(&input, &mut history)
    };
    let held = plan(1000);
    assert_eq!(to(&held), None);
    assert!(conditions(&held.status).starts_with("AbleToScale=True/ScaleDownStabilized "));
    assert_eq!(to(&plan(1001)), Some((2, "All metrics below target")));
}
