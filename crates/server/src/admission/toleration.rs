//! DefaultTolerationSeconds: pods stay for five minutes on a node that is not ready or unreachable, unless their own
//! tolerations say otherwise.

use api::value::ValueExt;
use serde_json::{Value, json};

const SECONDS: u32 = 300;
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

pub(super) fn admit(pod: &mut Value) {
    let spec = pod.object("spec");
    for taint in TAINTS {
        let own = spec.get("tolerations").and_then(Value::as_array);
        if own.into_iter().flatten().any(|toleration| tolerates(toleration, taint)) {
            continue;
        }
        spec.set_default("tolerations", json!([]));
        if let Some(Value::Array(tolerations)) = spec.get_mut("tolerations") {
            tolerations.push(json!({
                "key": taint,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": SECONDS,
            }));
        }
    }
}

fn tolerates(toleration: &Value, taint: &str) -> bool {
    let key = toleration.text(&["key"]);
    let effect = toleration.text(&["effect"]);
    (key.is_empty() || key == taint) && (effect.is_empty() || effect == "NoExecute")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_154_the_two_tolerations_are_added_unless_the_pod_has_its_own() {
        for (own, keys) in [
            (json!([]), vec![TAINTS[0], TAINTS[1]]),
            (json!([{"operator": "Exists"}]), vec![""]),
            (
                json!([{"key": TAINTS[0], "operator": "Exists", "tolerationSeconds": 5}]),
                vec![TAINTS[0], TAINTS[1]],
            ),
            (
                json!([{"key": TAINTS[0], "operator": "Exists", "effect": "NoSchedule"}]),
                vec![TAINTS[0], TAINTS[0], TAINTS[1]],
            ),
        ] {
            let mut pod = json!({"spec": {"tolerations": own}});
            admit(&mut pod);
            let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
            let got: Vec<_> = tolerations.iter().map(|t| t.text(&["key"])).collect();
            assert_eq!(got, keys);
        }
    }
}
