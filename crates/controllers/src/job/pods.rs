//! The pods of a Job: creating one, its index, when it finished (C-102, C-103, C-112). Pure.

use crate::workload::{annotation, condition, from_template, is_being_deleted, name, phase};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};

pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
const INDEX_ENV: &str = "JOB_COMPLETION_INDEX";

/// Maximum length of a generated name before its random suffix.
const PREFIX_MAX: usize = 58;

/// How often an index has failed: counted failures, and failures ignored by policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct IndexFailures {
    pub(super) failures: i32,
    pub(super) ignored: i32,
}

pub(super) fn is_indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) == Some("Indexed")
}

pub(super) fn limits_per_index(job: &Job) -> Option<i32> {
    job.spec.as_ref().and_then(|spec| spec.backoff_limit_per_index).filter(|_| is_indexed(job))
}

/// Whether terminating pods are replaced only after they are terminal (T-CTRL-25).
pub(super) fn replaces_only_failed(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.and_then(|spec| spec.pod_replacement_policy.as_deref()) == Some("Failed")
        || spec.is_some_and(|spec| spec.pod_failure_policy.is_some())
}

pub(super) fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING)
}

pub(super) fn index(pod: &Pod) -> Option<i32> {
    annotation(pod, INDEX)?.parse().ok().filter(|index| *index >= 0)
}

pub(super) fn index_failures(pod: &Pod) -> IndexFailures {
    let number = |key: &str| annotation(pod, key).and_then(|n| n.parse().ok()).unwrap_or(0);
    IndexFailures { failures: number(FAILURES), ignored: number(IGNORED_FAILURES) }
}

pub(super) fn succeeded(pod: &Pod) -> bool {
    phase(pod) == "Succeeded"
}

/// Whether a pod counts as failed (C-111).
pub(super) fn failed(job: &Job, pod: &Pod) -> bool {
    if phase(pod) == "Failed" {
        return true;
    }
    !replaces_only_failed(job) && is_being_deleted(pod) && !succeeded(pod)
}

pub(super) fn make(job: &Job, index: Option<i32>, index_failures: Option<IndexFailures>) -> Pod {
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = from_template(job, &template);
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
    let Some(index) = index else { return pod };
    let tail = format!("-{index}-");
    let mut prefix = name(job).to_owned();
    prefix.truncate(PREFIX_MAX.saturating_sub(tail.len()));
    pod.metadata.generate_name = Some(format!("{prefix}{tail}"));
    let number = index.to_string();
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), number.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), number);
    if let Some(index_failures) = index_failures {
        annotations.insert(FAILURES.to_owned(), index_failures.failures.to_string());
        if index_failures.ignored > 0 {
            annotations.insert(IGNORED_FAILURES.to_owned(), index_failures.ignored.to_string());
        }
    }
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{}-{index}", name(job)));
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    containers.for_each(set_index_variable);
    pod
}

fn set_index_variable(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|variable| variable.name == INDEX_ENV) {
        return;
    }
    env.push(EnvVar {
        name: INDEX_ENV.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: format!("metadata.labels['{INDEX}']"),
            }),
            ..EnvVarSource::default()
        }),
    });
}

/// The best known time at which a finished pod finished.
pub(super) fn finished_at(pod: &Pod) -> Timestamp {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ends: Vec<Option<Timestamp>> = statuses
        .map(|status| Some(status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0))
        .collect();
    let all_ended = !ends.is_empty() && ends.iter().all(Option::is_some);
    if let Some(last) = ends.into_iter().flatten().max().filter(|_| all_ended) {
        return last;
    }
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "False");
    if let Some(since) = ready.and_then(|ready| ready.last_transition_time.as_ref()) {
        return since.0;
    }
    let meta = &pod.metadata;
    if let Some(due) = &meta.deletion_timestamp {
        let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0));
        return due.0.checked_sub(grace).unwrap_or(due.0);
    }
    meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |created| created.0)
}

/// Container restarts of a pod that is not terminal (C-114).
pub(super) fn restarts(pod: &Pod) -> i32 {
    if !matches!(phase(pod), "Running" | "Pending") {
        return 0;
    }
    let Some(status) = &pod.status else { return 0 };
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.map(|status| status.restart_count).fold(0, i32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::label;
    use serde_json::{Value, json};

    fn job(name: &str, more: Value) -> Job {
        let mut spec = json!({ "template": {
            "metadata": { "labels": { "job-name": "j" }, "finalizers": ["example.com/own"] },
            "spec": {
                "containers": [{ "name": "a" },
                               { "name": "b", "env": [{ "name": INDEX_ENV, "value": "mine" }] }],
                "initContainers": [{ "name": "i" }],
            },
        } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let meta = json!({ "namespace": "a", "name": name, "uid": "u" });
        typed::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
    }

    #[test]
    fn c_102_a_pod_has_the_labels_of_the_template_and_the_tracking_finalizer() {
        let pod = make(&job("sum", json!({})), None, None);
        assert_eq!(label(&pod, "job-name"), Some("j"));
        assert_eq!(pod.metadata.finalizers.as_deref().unwrap(), ["example.com/own", TRACKING]);
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("sum-"));
        assert_eq!(pod.metadata.name, None);
        assert_eq!(pod.spec.unwrap().hostname, None);
    }

    #[test]
    fn c_102_c_103_long_names_keep_the_index() {
        let indexed = json!({ "completionMode": "Indexed", "completions": 200 });
        let pod = make(&job("sum", indexed.clone()), Some(7), None);
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("sum-7-"));
        assert_eq!((label(&pod, INDEX), annotation(&pod, INDEX)), (Some("7"), Some("7")));
        let spec = pod.spec.unwrap();
        assert_eq!(spec.hostname.as_deref(), Some("sum-7"));
        let env = |container: &Container| serde_json::to_value(&container.env).unwrap();
        let variable = json!([{ "name": INDEX_ENV, "valueFrom": { "fieldRef": {
            "fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']" } } }]);
        assert_eq!(env(&spec.containers[0]), variable);
        assert_eq!(env(&spec.containers[1])[0]["value"], "mine", "an existing variable is kept");
        assert_eq!(env(&spec.init_containers.unwrap()[0]), variable);
        let long = make(&job(&"x".repeat(63), indexed), Some(123), None);
        let prefix = long.metadata.generate_name.unwrap();
        assert_eq!((prefix.len(), &prefix[prefix.len() - 6..]), (58, "x-123-"));
    }

    /// C-111: which pods of a Job count as failed.
    #[test]
    fn c_111_replacement_policy_decides_whether_terminating_pods_count_as_failed() {
        let pod = |phase: &str, terminating: bool| -> Pod {
            let at = terminating.then_some("2026-01-01T00:00:00Z");
            typed::from_value(json!({
                "metadata": { "deletionTimestamp": at }, "status": { "phase": phase } }))
            .unwrap()
        };
        let either = job("j", json!({ "podReplacementPolicy": "TerminatingOrFailed" }));
        let only = job("j", json!({ "podReplacementPolicy": "Failed" }));
        let cases = [
            ("Failed", false, true, true),
            ("Failed", true, true, true),
            ("Running", false, false, false),
            ("Running", true, true, false),
            ("Pending", true, true, false),
            ("Succeeded", true, false, false),
        ];
        for (phase, terminating, by_either, by_only) in cases {
            let pod = pod(phase, terminating);
            assert_eq!(failed(&either, &pod), by_either, "{phase} {terminating}");
            assert_eq!(failed(&only, &pod), by_only, "{phase} {terminating}");
        }
    }
}
