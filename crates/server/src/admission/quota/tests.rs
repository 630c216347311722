//! Tables of what quotas count, and the messages of refusals.

use super::*;
use api::Registry;
use serde_json::json;

fn kind(group: &str, version: &str, plural: &str) -> Arc<Kind> {
    Registry::built_in().resource(group, version, plural).unwrap().clone()
}

fn pods() -> Arc<Kind> {
    kind("", "v1", "pods")
}

fn text(amounts: &Amounts) -> String {
    let parts: Vec<_> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    parts.join(",")
}

fn quota(hard: Value, used: Value) -> Value {
    json!({"metadata": {"name": "q"}, "spec": {}, "status": {"hard": hard, "used": used}})
}

#[test]
fn a_157_each_kind_uses_the_resources_that_quotas_count() {
    let pod = json!({"spec": {"containers": [{"resources": {
        "requests": {"cpu": "1", "example.com/gpu": "2"},
        "limits": {"cpu": "2", "memory": "1Gi"},
    }}]}});
    let claim = json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}});
    for (kind, object, used) in [
        (
            pods(),
            pod,
            "count/pods=1,cpu=1,limits.cpu=2,limits.memory=1Gi,pods=1,requests.cpu=1,requests.example.com/gpu=2",
        ),
        (pods(), json!({"status": {"phase": "Failed"}}), "count/pods=1"),
        (
            kind("", "v1", "services"),
            json!({"spec": {"type": "LoadBalancer", "ports": [{}, {}]}}),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=2",
        ),
        (
            kind("", "v1", "services"),
            json!({"spec": {"type": "ClusterIP", "ports": [{}]}}),
            "count/services=1,services=1",
        ),
        (
            kind("", "v1", "persistentvolumeclaims"),
            claim,
            "count/persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/requests.storage=1Gi,persistentvolumeclaims=1,requests.storage=1Gi",
        ),
        (kind("", "v1", "secrets"), json!({}), "count/secrets=1,secrets=1"),
        (kind("apps", "v1", "deployments"), json!({}), "count/deployments.apps=1"),
    ] {
        assert_eq!(text(&usage::growth(kind.as_ref().into(), &object, None).unwrap()), used);
        for name in usage::growth(kind.as_ref().into(), &object, None).unwrap().keys() {
            assert!(usage::counts(kind.as_ref().into(), name), "{name} of {}", kind.plural);
        }
    }
}

#[test]
fn a_157_only_growth_counts_on_update() {
    let kind = kind("", "v1", "services");
    let service = |kind: &str| json!({"spec": {"type": kind, "ports": [{}]}});
    let growth = |new: &str, old: &str| {
        text(&usage::growth(kind.as_ref().into(), &service(new), Some(&service(old))).unwrap())
    };
    assert_eq!(growth("NodePort", "ClusterIP"), "services.nodeports=1");
    assert_eq!(growth("ClusterIP", "NodePort"), "");
    assert_eq!(growth("LoadBalancer", "NodePort"), "services.loadbalancers=1");
}

#[test]
fn a_157_a_refusal_names_request_use_and_limit() {
    let quota = quota(
        json!({"pods": "2", "cpu": "1", "memory": "1Gi"}),
        json!({"pods": "2", "cpu": "500m", "memory": "0"}),
    );
    let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "600m", "memory": "1Mi"}}}]}});
    let growth = usage::growth(pods().as_ref().into(), &pod, None).unwrap();
    assert_eq!(
        with_growth(&quota, &growth).unwrap_err(),
        "exceeded quota: q, requested: cpu=600m,pods=1, used: cpu=500m,pods=2, limited: cpu=1,pods=2"
    );
}

#[test]
fn a_157_an_admitted_request_is_added_to_the_usage() {
    let quota = quota(json!({"pods": "2", "cpu": "1"}), json!({"pods": "1", "cpu": "500m"}));
    let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "500m"}}}]}});
    let growth = usage::growth(pods().as_ref().into(), &pod, None).unwrap();
    assert_eq!(text(&with_growth(&quota, &growth).unwrap()), "cpu=1,pods=2");
}

#[test]
fn a_157_a_pod_must_set_the_resources_that_the_quota_limits() {
    let quota = quota(
        json!({"cpu": "1", "limits.memory": "1Gi", "pods": "5"}),
        json!({"cpu": "0", "limits.memory": "0", "pods": "0"}),
    );
    let pod = |containers: Value| json!({"spec": {"containers": containers}});
    for (containers, outcome) in [
        (
            json!([{"name": "b"}, {"name": "a", "resources": {"requests": {"cpu": "1"}}}]),
            Err("failed quota: q: must specify cpu for: b; limits.memory for: a,b"),
        ),
        (
            json!([{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Mi"}}}]),
            Ok(true),
        ),
    ] {
        let got = applies(&pods(), &quota, &pod(containers));
        assert_eq!(got.as_ref().map_err(String::as_str), outcome.as_ref().map_err(|why| *why));
    }
}

#[test]
fn a_157_a_quota_without_a_status_admits_nothing() {
    let uncounted = quota(json!({"pods": "1", "count/pods": "3"}), json!({}));
    assert_eq!(
        applies(&pods(), &uncounted, &json!({})).unwrap_err(),
        "status unknown for quota: q, resources: count/pods,pods"
    );
    let other = quota(json!({"secrets": "1"}), json!({}));
    assert!(!applies(&pods(), &other, &json!({})).unwrap());
}

#[test]
fn a_157_scopes_select_the_pods_that_a_quota_counts() {
    let plain = json!({"spec": {"containers": [{}]}});
    let deadline = json!({"spec": {"activeDeadlineSeconds": 5, "containers": [{"resources": {"requests": {"cpu": "1"}}}]}});
    let important = json!({"spec": {"priorityClassName": "high", "containers": [{}]}});
    let across = json!({"spec": {"containers": [{}], "affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["other"]}],
    }}}});
    let select = |operator: &str, values: Value| {
        json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": values},
        ]}})
    };
    for (spec, pod, fits) in [
        (json!({"scopes": ["Terminating"]}), &deadline, true),
        (json!({"scopes": ["Terminating"]}), &plain, false),
        (json!({"scopes": ["NotTerminating"]}), &plain, true),
        (json!({"scopes": ["BestEffort"]}), &plain, true),
        (json!({"scopes": ["BestEffort", "Terminating"]}), &plain, false),
        (json!({"scopes": ["NotBestEffort"]}), &deadline, true),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), &across, true),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), &plain, false),
        (json!({"scopes": ["PriorityClass"]}), &important, true),
        (select("In", json!(["high"])), &important, true),
        (select("In", json!(["low"])), &important, false),
        (select("NotIn", json!(["low"])), &plain, true),
        (select("Exists", json!([])), &plain, false),
        (select("DoesNotExist", json!([])), &plain, true),
        (json!({}), &plain, true),
    ] {
        assert_eq!(
            scope::matches(pods().as_ref().into(), &json!({"spec": spec}), pod),
            fits,
            "{spec} {pod}"
        );
    }
    let scoped = json!({"spec": {"scopes": ["BestEffort"]}});
    assert!(!scope::matches(kind("", "v1", "secrets").as_ref().into(), &scoped, &json!({})));
}
