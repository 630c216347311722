//! The pod failure policy and the success policy of a Job (C-116, C-118). Pure.

use super::indexes::Indexes;
use crate::workload::{name, namespace};
use k8s_openapi::api::batch::v1::{
    Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// The failure counts towards the limits.
    Count,
    /// The failure does not count.
    Ignore,
    FailIndex,
    FailJob(String),
}

impl Verdict {
    pub(super) fn counts(&self) -> bool {
        *self != Verdict::Ignore
    }
}

/// The action of the first rule that matches.
pub(super) fn verdict(job: &Job, pod: &Pod) -> Verdict {
    let policy = job.spec.as_ref().and_then(|spec| spec.pod_failure_policy.as_ref());
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    for (number, rule) in rules.iter().enumerate() {
        let by_code = rule.on_exit_codes.as_ref().and_then(|wanted| matching_code(pod, wanted));
        let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
        let by_condition = patterns.iter().find(|pattern| has_condition(pod, pattern));
        let (space, pod_name) = (namespace(pod), name(pod));
        let message = match (by_code, by_condition) {
            (Some(status), _) => format!(
                "Container {} for pod {space}/{pod_name} failed with exit code {} matching {} rule \
                 at index {number}",
                status.name,
                exit_code(status).unwrap_or(0),
                rule.action
            ),
            (None, Some(pattern)) => format!(
                "Pod {space}/{pod_name} has condition {} matching {} rule at index {number}",
                pattern.type_, rule.action
            ),
            (None, None) => continue,
        };
        return match rule.action.as_str() {
            "Ignore" => Verdict::Ignore,
            "FailIndex" => Verdict::FailIndex,
            "FailJob" => Verdict::FailJob(message),
            _ => Verdict::Count,
        };
    }
    Verdict::Count
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn matching_code<'a>(
    pod: &'a Pod,
    wanted: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.filter(|status| wanted.container_name.as_ref().is_none_or(|name| *name == status.name))
        .find(|status| {
            let Some(code) = exit_code(status).filter(|code| *code != 0) else { return false };
            match wanted.operator.as_str() {
                "In" => wanted.values.contains(&code),
                "NotIn" => !wanted.values.contains(&code),
                _ => false,
            }
        })
}

fn has_condition(pod: &Pod, pattern: &PodFailurePolicyOnPodConditionsPattern) -> bool {
    let wanted = pattern.status.as_deref().unwrap_or("True");
    let mut all = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    all.any(|condition| condition.type_ == pattern.type_ && condition.status == wanted)
}

/// The message if a rule of the success policy is met.
pub(super) fn success(job: &Job, succeeded: &Indexes) -> Option<String> {
    let spec = job.spec.as_ref()?;
    let completions = spec.completions.unwrap_or(0);
    let rules = spec.success_policy.as_ref()?.rules.iter();
    let met = rules.enumerate().find(|(_, rule)| {
        let wanted = rule.succeeded_indexes.as_deref();
        let wanted = wanted.map(|wanted| Indexes::parse(wanted, completions));
        match (wanted, rule.succeeded_count) {
            (Some(wanted), count) => {
                wanted.shared_with(succeeded) >= count.unwrap_or(wanted.total())
            }
            (None, Some(count)) => succeeded.total() >= count,
            (None, None) => false,
        }
    });
    met.map(|(number, _)| format!("Matched rules at index {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(policy: Value, success: Value) -> Job {
        typed::from_value(json!({ "spec": { "completions": 10, "podFailurePolicy": policy,
            "successPolicy": success, "template": {} } }))
        .unwrap()
    }

    fn pod(code: i32, condition: &str) -> Pod {
        typed::from_value(json!({
            "metadata": { "namespace": "a", "name": "p" },
            "status": {
                "conditions": [{ "type": condition, "status": "True" }],
                "containerStatuses": [{ "name": "main", "image": "", "imageID": "", "ready": false,
                    "restartCount": 0, "state": { "terminated": { "exitCode": code } } }] },
        }))
        .unwrap()
    }

    #[test]
    fn c_116_the_first_rule_that_matches_decides() {
        let policy = json!({ "rules": [
            { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] },
            { "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } },
            { "action": "FailIndex", "onExitCodes": { "containerName": "main", "operator": "In", "values": [7] } },
            { "action": "Count", "onExitCodes": { "operator": "NotIn", "values": [3] } },
            { "action": "FailJob", "onPodConditions": [{ "type": "ConfigIssue", "status": "True" }] },
        ] });
        let by_code =
            "Container main for pod a/p failed with exit code 42 matching FailJob rule at index 1";
        let by_condition = "Pod a/p has condition ConfigIssue matching FailJob rule at index 4";
        let cases = [
            (pod(42, "DisruptionTarget"), Verdict::Ignore),
            (pod(42, "x"), Verdict::FailJob(by_code.into())),
            (pod(7, "x"), Verdict::FailIndex),
            (pod(1, "ConfigIssue"), Verdict::Count),
            (pod(3, "ConfigIssue"), Verdict::FailJob(by_condition.into())),
            (pod(0, "x"), Verdict::Count),
        ];
        for (pod, expected) in cases {
            assert_eq!(verdict(&job(policy.clone(), Value::Null), &pod), expected);
        }
    }

    #[test]
    fn c_118_success_rules_check_indexes_number_or_both() {
        let cases = [
            (json!({ "succeededIndexes": "0,2" }), "0,2", true),
            (json!({ "succeededIndexes": "0,2" }), "0,1", false),
            (json!({ "succeededIndexes": "0-4", "succeededCount": 2 }), "1,3", true),
            (json!({ "succeededIndexes": "0-4", "succeededCount": 2 }), "1,7", false),
            (json!({ "succeededCount": 2 }), "8,9", true),
        ];
        for (rule, done, met) in cases {
            let job = job(Value::Null, json!({ "rules": [rule] }));
            let found = success(&job, &Indexes::parse(done, 10));
            assert_eq!(found.is_some(), met, "{rule} {done}");
        }
    }
}
