//! Parts of a pod's status that others write and the node must keep (N-75).

use super::conditions::{DISRUPTION_TARGET, is_owned};
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

/// The reason of a DisruptionTarget condition that the node itself wrote (T-NODE-58).
pub(super) const BY_NODE: &str = "TerminationByKubelet";

/// Whether the node writes this condition: it owns the type, or it is the node's own DisruptionTarget. All other
/// conditions stay in the API as they are.
pub fn is_written_by_node(condition: &PodCondition) -> bool {
    is_owned(&condition.type_)
        || (condition.type_ == DISRUPTION_TARGET && condition.reason.as_deref() == Some(BY_NODE))
}

/// Copies what others wrote from the status in the API into the one that was published last. The next status is
/// computed from it, so that Ready follows readiness gates (N-79).
pub fn take_over(published: &mut PodStatus, api: &PodStatus) {
    let in_api = |kept: &PodCondition| {
        api.conditions.iter().flatten().any(|condition| condition.type_ == kept.type_)
    };
    let foreign = api.conditions.iter().flatten().filter(|condition| !is_owned(&condition.type_));
    // The node's own DisruptionTarget may not have reached the API yet.
    let own = published.conditions.iter().flatten().filter(|condition| {
        is_owned(&condition.type_) || (is_written_by_node(condition) && !in_api(condition))
    });
    let all: Vec<PodCondition> = foreign.chain(own).cloned().collect();
    published.conditions = Some(all).filter(|all| !all.is_empty());
    published.nominated_node_name.clone_from(&api.nominated_node_name);
    published.resource_claim_statuses.clone_from(&api.resource_claim_statuses);
    published.extended_resource_claim_status.clone_from(&api.extended_resource_claim_status);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn status(conditions: Value) -> PodStatus {
        let mut status: PodStatus = typed::from_value(json!({ "conditions": conditions })).unwrap();
        status.conditions.get_or_insert_default();
        status
    }

    fn words(status: &PodStatus) -> Vec<String> {
        let all = status.conditions.iter().flatten();
        all.map(|c| format!("{}={} {}", c.type_, c.status, c.reason.as_deref().unwrap_or("-")))
            .collect()
    }

    #[test]
    fn n_75_conditions_of_others_come_from_the_api_and_own_ones_from_the_node() {
        let own_status = json!([
            { "type": "Old", "status": "True" },
            { "type": "Gate", "status": "False" },
            { "type": "Ready", "status": "True" },
        ]);
        let api = json!([
            { "type": "Ready", "status": "Unknown" },
            { "type": "Gate", "status": "True" },
            { "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" },
        ]);
        let mut own_status = status(own_status);
        let mut api = status(api);
        api.nominated_node_name = Some("n2".into());
        take_over(&mut own_status, &api);
        let wanted = ["Gate=True -", "DisruptionTarget=True EvictionByEvictionAPI", "Ready=True -"];
        assert_eq!(words(&own_status), wanted);
        assert_eq!(own_status.nominated_node_name.as_deref(), Some("n2"));
    }

    #[test]
    fn t_node_58_the_nodes_disruption_stays_until_the_api_has_one() {
        let own = json!([{ "type": "DisruptionTarget", "status": "True", "reason": BY_NODE }]);
        let mut own_status = status(own);
        take_over(&mut own_status, &status(json!([])));
        assert_eq!(words(&own_status), ["DisruptionTarget=True TerminationByKubelet"]);
        let api = json!([{ "type": "DisruptionTarget", "status": "True", "reason": "Other" }]);
        take_over(&mut own_status, &status(api));
        assert_eq!(words(&own_status), ["DisruptionTarget=True Other"]);
    }
}
