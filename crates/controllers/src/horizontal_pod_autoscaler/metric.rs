//! Evaluates one metric of an autoscaler: the number of replicas, or an error (C-134, C-136). Pure.

use super::replicas::{self, Proposal, Sample, Samples, ScaleTarget, milli};
use api::quantity::Quantity;
use client::PodMetrics;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
    ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// The usage of the selected pods, or why it is unknown.
pub(super) type Usage = Result<Vec<PodMetrics>, String>;

#[derive(Debug, PartialEq)]
pub(super) struct MetricResult {
    pub(super) replicas: i32,
    /// The name of the metric in conditions and events.
    pub(super) name: String,
    pub(super) status: MetricStatus,
}

#[derive(Debug, PartialEq)]
pub(super) struct Failure {
    /// The reason of the event and of the condition ScalingActive.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// The error of the autoscaler as a whole.
    pub(super) error: String,
}

pub(super) fn evaluate(
    spec: &MetricSpec,
    scaled: &ScaleTarget<'_>,
    usage: &Usage,
    namespace: &str,
) -> Result<MetricResult, Failure> {
    match spec.type_.as_str() {
        "Resource" if spec.resource.is_some() => resource(spec, scaled, usage),
        "ContainerResource" if spec.container_resource.is_some() => container(spec, scaled, usage),
        _ => Err(unserved(spec, namespace)),
    }
}

fn resource(
    spec: &MetricSpec,
    scaled: &ScaleTarget<'_>,
    usage: &Usage,
) -> Result<MetricResult, Failure> {
    let source = spec.resource.clone().unwrap_or_default();
    let found = of_resource(scaled, usage, &source.name, None, &source.target);
    let (proposal, name) = found.map_err(|message| Failure {
        reason: "FailedGetResourceMetric",
        error: format!("failed to get {} resource metric value: {message}", source.name),
        message,
    })?;
    let status = MetricStatus {
        type_: spec.type_.clone(),
        resource: Some(ResourceMetricStatus { name: source.name, current: current(&proposal) }),
        ..MetricStatus::default()
    };
    Ok(MetricResult { replicas: proposal.replicas, name, status })
}

fn container(
    spec: &MetricSpec,
    scaled: &ScaleTarget<'_>,
    usage: &Usage,
) -> Result<MetricResult, Failure> {
    let source = spec.container_resource.clone().unwrap_or_default();
    let container = source.container.as_str();
    let found = of_resource(scaled, usage, &source.name, Some(container), &source.target);
    let (proposal, name) = found.map_err(|message| Failure {
        reason: "FailedGetContainerResourceMetric",
        error: format!("failed to get {container} container metric value: {message}"),
        message,
    })?;
    let status = MetricStatus {
        type_: spec.type_.clone(),
        container_resource: Some(ContainerResourceMetricStatus {
            name: source.name,
            container: container.to_owned(),
            current: current(&proposal),
        }),
        ..MetricStatus::default()
    };
    Ok(MetricResult { replicas: proposal.replicas, name, status })
}

fn current(proposal: &Proposal) -> MetricValueStatus {
    let average = Quantity::milli(proposal.average).to_string();
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity(average)),
        value: None,
    }
}

fn of_resource(
    scaled: &ScaleTarget<'_>,
    usage: &Usage,
    resource: &str,
    container: Option<&str>,
    target: &MetricTarget,
) -> Result<(Proposal, String), String> {
    let samples = samples(usage, resource, container)
        .map_err(|why| format!("unable to get metrics for resource {resource}: {why}"));
    if let Some(average) = &target.average_value {
        let found = samples
            .and_then(|all| replicas::by_average(scaled, &all, resource, milli(&average.0)))
            .map_err(|why| format!("failed to get {resource} usage: {why}"))?;
        return Ok((found, format!("{resource} resource")));
    }
    let Some(share) = target.average_utilization else {
        return Err(
            "invalid resource metric source: neither an average utilization target nor an \
                    average value (usage) target was set"
                .to_owned(),
        );
    };
    let found = samples
        .and_then(|all| replicas::by_utilization(scaled, &all, resource, container, share))
        .map_err(|why| format!("failed to get {resource} utilization: {why}"))?;
    Ok((found, format!("{resource} resource utilization (percentage of request)")))
}

fn samples(usage: &Usage, resource: &str, only: Option<&str>) -> Result<Samples, String> {
    let all = usage
        .as_ref()
        .map_err(|why| format!("unable to fetch metrics from resource metrics API: {why}"))?;
    if all.is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    let mut samples = Samples::new();
    for pod in all {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if let Some(only) = only
            && !pod.containers.iter().any(|container| container.name == only)
        {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            return Err(format!(
                "failed to get container metrics: container {only} not present in metrics for pod \
                 {namespace}/{name}"
            ));
        }
        let wanted = pod.containers.iter().filter(|one| only.is_none_or(|only| only == one.name));
        let amounts = wanted.map(|one| one.usage.get(resource).map(|amount| milli(&amount.0)));
        // A pod without a value for one of its containers has no sample.
        let Some(value) = amounts.sum::<Option<i64>>() else { continue };
        samples.insert(name, Sample { value, at: pod.at(), window: pod.window() });
    }
    Ok(samples)
}

const NO_CUSTOM: &str = "unable to fetch metrics from custom metrics API: no custom metrics API \
                         (custom.metrics.k8s.io) registered";

/// Custom and external metrics would come from aggregated API servers. There are none; the error is upstream's.
fn unserved(spec: &MetricSpec, namespace: &str) -> Failure {
    if let ("Pods", Some(pods)) = (spec.type_.as_str(), &spec.pods) {
        let message = format!("unable to get metric {}: {NO_CUSTOM}", pods.metric.name);
        let error = format!("failed to get pods metric value: {message}");
        return Failure { reason: "FailedGetPodsMetric", message, error };
    }
    if let ("Object", Some(object)) = (spec.type_.as_str(), &spec.object) {
        let (metric, on) = (&object.metric.name, &object.described_object);
        // The order of the arguments is upstream's.
        let message = format!(
            "unable to get metric {metric}: {} on {namespace} {}/{NO_CUSTOM}",
            on.kind, on.name
        );
        let inner = match object.target.type_.as_str() {
            "AverageValue" => format!("failed to get {metric} object metric: {message}"),
            _ => message.clone(),
        };
        let error = format!("failed to get object metric value: {inner}");
        return Failure { reason: "FailedGetObjectMetric", message, error };
    }
    if let ("External", Some(external)) = (spec.type_.as_str(), &spec.external) {
        let metric = &external.metric.name;
        let message = format!(
            "unable to get external metric {namespace}/{metric}/{}: unable to fetch metrics from \
             external metrics API: the server could not find the requested resource (get \
             {metric}.external.metrics.k8s.io)",
            selector_text(external.metric.selector.as_ref())
        );
        let inner = match external.target.average_value {
            Some(_) => format!("failed to get {metric} external metric: {message}"),
            None => format!("failed to get external metric {metric}: {message}"),
        };
        let error = format!("failed to get {metric} external metric value: {inner}");
        return Failure { reason: "FailedGetExternalMetric", message, error };
    }
    let message = format!("unknown metric source type {:?}", spec.type_);
    Failure { reason: "InvalidMetricSourceType", error: message.clone(), message }
}

/// As Go prints it.
fn selector_text(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions = selector.match_expressions.iter().flatten();
    let expressions: String = expressions
        .map(|one| {
            let values = one.values.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
            let (key, operator) = (&one.key, &one.operator);
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}
