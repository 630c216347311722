//! NodeUnschedulable and TaintToleration: what a node does not want, and who does not mind (N-190).

use super::{Plugin, Rejection};
use crate::node::Offer;
use crate::pod::PodInfo;
use k8s_openapi::api::core::v1::{Taint, Toleration};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(super) fn check_unschedulable(pod: &PodInfo, offer: &Offer) -> Result<(), Rejection> {
    if !offer.unschedulable {
        return Ok(());
    }
    let taint =
        Taint { key: UNSCHEDULABLE.into(), effect: "NoSchedule".into(), ..Taint::default() };
    match tolerates(pod, &taint) {
        true => Ok(()),
        false => Err(Rejection::hard(Plugin::NodeUnschedulable, "node(s) were unschedulable")),
    }
}

pub(super) fn check(pod: &PodInfo, offer: &Offer) -> Result<(), Rejection> {
    let keeps_off = |taint: &&Taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute");
    let mut taints = offer.taints.iter().filter(keeps_off);
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
    let said = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let operator = said(&toleration.operator).unwrap_or_else(|| "Equal".into());
    let key = said(&toleration.key);
    let effect_fits = said(&toleration.effect).is_none_or(|effect| effect == taint.effect);
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
    use crate::filters::check_alone;
    use crate::filters::tests::said;
    use crate::node::tests::node;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    #[test]
    fn n_190_a_toleration_covers_a_taint() {
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
    fn n_189_taints_keep_pods_off_and_preferences_do_not() {
        let check = |taints: Value, tolerations: Value| {
            let node = node("n", json!({ "spec": { "taints": taints } }));
            said(check_alone(&pod("p", json!({ "tolerations": tolerations })), &node))
        };
        let no = "node(s) had untolerated taint(s) (hard)";
        assert_eq!(check(json!([{ "key": "a", "effect": "NoSchedule" }]), json!([])), no);
        assert_eq!(check(json!([{ "key": "a", "effect": "NoExecute" }]), json!([])), no);
        assert_eq!(check(json!([{ "key": "a", "effect": "PreferNoSchedule" }]), json!([])), "fits");
        let all = json!([{ "operator": "Exists" }]);
        assert_eq!(check(json!([{ "key": "a", "effect": "NoSchedule" }]), all), "fits");
    }

    #[test]
    fn n_189_a_cordoned_node_takes_only_who_does_not_mind() {
        let cordoned = node("n", json!({ "spec": { "unschedulable": true } }));
        let check = |tolerations: Value| {
            said(check_alone(&pod("p", json!({ "tolerations": tolerations })), &cordoned))
        };
        assert_eq!(check(json!([])), "node(s) were unschedulable (hard)");
        assert_eq!(check(json!([{ "key": UNSCHEDULABLE, "operator": "Exists" }])), "fits");
    }
}
