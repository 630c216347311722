//! NodeUnschedulable and TaintToleration: taints of nodes and tolerations of pods (N-190).

use super::{Plugin, Rejection};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use k8s_openapi::api::core::v1::{Taint, Toleration};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(super) fn check_unschedulable(pod: &PodInfo, info: &NodeInfo) -> Result<(), Rejection> {
    if !info.unschedulable {
        return Ok(());
    }
    let taint =
        Taint { key: UNSCHEDULABLE.into(), effect: "NoSchedule".into(), ..Taint::default() };
    match tolerates(pod, &taint) {
        true => Ok(()),
        false => Err(Rejection::hard(Plugin::NodeUnschedulable, "node(s) were unschedulable")),
    }
}

pub(super) fn check(pod: &PodInfo, info: &NodeInfo) -> Result<(), Rejection> {
    let keeps_off = |taint: &&Taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute");
    let mut taints = info.taints.iter().filter(keeps_off);
    match taints.all(|taint| tolerates(pod, taint)) {
        true => Ok(()),
        false => Err(Rejection::hard(Plugin::TaintToleration, "node(s) had untolerated taint(s)")),
    }
}

pub(crate) fn tolerates(pod: &PodInfo, taint: &Taint) -> bool {
    let tolerations = pod.pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.into_iter().any(|toleration| covers(toleration, taint))
}

fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let nonempty = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let operator = nonempty(&toleration.operator).unwrap_or_else(|| "Equal".into());
    let key = nonempty(&toleration.key);
    let effect_fits = nonempty(&toleration.effect).is_none_or(|effect| effect == taint.effect);
    let key_fits = match &key {
        Some(key) => *key == taint.key,
        None => operator == "Exists",
    };
    let value = toleration.value.as_deref().unwrap_or_default();
    let value_fits = match operator.as_str() {
        "Exists" => true,
        "Equal" => value == taint.value.as_deref().unwrap_or_default(),
        _ => false,
    };
    effect_fits && key_fits && value_fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters::check_single_node;
    use crate::filters::tests::reasons;
    use crate::node::tests::node;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    #[test]
    fn n_190_tolerations_match_taints() {
        let taint = json!({ "key": "k", "value": "v", "effect": "NoSchedule" });
        let cases = [
            (
                json!({ "key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule" }),
                true,
            ),
            (json!({ "key": "k", "value": "v" }), true),
            (json!({ "key": "k", "operator": "Exists" }), true),
            (json!({ "operator": "Exists" }), true),
            (json!({ "operator": "Exists", "effect": "NoExecute" }), false),
            (json!({ "key": "k", "operator": "Equal", "value": "w" }), false),
            (json!({ "key": "other", "operator": "Exists" }), false),
            (json!({ "key": "", "value": "v" }), false),
            (json!({ "key": "k", "operator": "Gt", "value": "v" }), false),
        ];
        for (toleration, covered) in cases {
            let taint: Taint = serde_json::from_value(taint.clone()).unwrap();
            let read: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(covers(&read, &taint), covered, "{toleration}");
        }
    }

    #[test]
    fn n_189_prefer_no_schedule_taints_do_not_reject() {
        let check = |taints: Value, tolerations: Value| {
            let node = node("n", json!({ "spec": { "taints": taints } }));
            reasons(check_single_node(&pod("p", json!({ "tolerations": tolerations })), &node))
        };
        let no = "node(s) had untolerated taint(s) (hard)";
        assert_eq!(check(json!([{ "key": "a", "effect": "NoSchedule" }]), json!([])), no);
        assert_eq!(check(json!([{ "key": "a", "effect": "NoExecute" }]), json!([])), no);
        assert_eq!(check(json!([{ "key": "a", "effect": "PreferNoSchedule" }]), json!([])), "fits");
        let all = json!([{ "operator": "Exists" }]);
        assert_eq!(check(json!([{ "key": "a", "effect": "NoSchedule" }]), all), "fits");
    }

    #[test]
    fn n_189_a_cordoned_node_accepts_only_tolerating_pods() {
        let cordoned = node("n", json!({ "spec": { "unschedulable": true } }));
        let check = |tolerations: Value| {
            reasons(check_single_node(&pod("p", json!({ "tolerations": tolerations })), &cordoned))
        };
        assert_eq!(check(json!([])), "node(s) were unschedulable (hard)");
        assert_eq!(check(json!([{ "key": UNSCHEDULABLE, "operator": "Exists" }])), "fits");
    }
}
