//! The audiences for which a node may request tokens of a pod's service account: those that a volume of the pod names,
//! and those that RBAC grants to the node. Upstream: `validateNodeServiceAccountAudience`.

use crate::object::{Stored, store_name};
use crate::request::call::Call;
use access::authz::Attributes;
use api::value::ValueExt;
use serde_json::Value;

const VERB: &str = "request-serviceaccounts-token-audience";

/// The error says why the token is refused.
pub(super) fn check(call: &Call, pod: &Value, request: &Value) -> Result<(), String> {
    let requested = request.at(&["spec", "audiences"]).and_then(Value::as_array);
    let audience = match requested.map(Vec::as_slice).unwrap_or_default() {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err("node may only request 0 or 1 audiences".into()),
    };
    if volumes(pod)
        .any(|volume| is_projected(volume, audience) || of_driver(call, pod, volume, audience))
    {
        return Ok(());
    }
    let wanted = Attributes {
        version: "v1",
        namespace: &call.target.namespace,
        name: &call.target.name,
        ..Attributes::resource(&call.user, VERB, "", audience)
    };
    if call.server.policy().allows(&wanted).allowed {
        return Ok(());
    }
    Err(format!(
        "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        call.user.name
    ))
}

fn volumes(pod: &Value) -> impl Iterator<Item = &Value> {
    pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten()
}

fn is_projected(volume: &Value, audience: &str) -> bool {
    let sources = volume.at(&["projected", "sources"]).and_then(Value::as_array);
    let mut tokens =
        sources.into_iter().flatten().filter_map(|source| source.at(&["serviceAccountToken"]));
    tokens.any(|token| token.text(&["audience"]) == audience)
}

/// Whether the volume's CSI driver requests tokens for this audience.
fn of_driver(call: &Call, pod: &Value, volume: &Value, audience: &str) -> bool {
    let get = |collection: &str, name: &str| Some(call.store().get(collection, name)?.value());
    let of_claim = |name: &str| {
        let namespace = pod.text(&["metadata", "namespace"]);
        let claim = get("persistentvolumeclaims", &store_name(namespace, name))?;
        let volume = get("persistentvolumes", claim.text(&["spec", "volumeName"]))?;
        Some(volume.text(&["spec", "csi", "driver"]).to_owned())
    };
    let driver = if volume.at(&["ephemeral", "volumeClaimTemplate"]).is_some() {
        of_claim(&format!("{}-{}", pod.text(&["metadata", "name"]), volume.text(&["name"])))
    } else if volume.at(&["persistentVolumeClaim"]).is_some() {
        of_claim(volume.text(&["persistentVolumeClaim", "claimName"]))
    } else {
        Some(volume.text(&["csi", "driver"]).to_owned())
    };
    let driver = driver.filter(|driver| !driver.is_empty());
    let driver = driver.and_then(|driver| get("storage.k8s.io/csidrivers", &driver));
    let requests = driver.as_ref().and_then(|driver| driver.at(&["spec", "tokenRequests"]));
    let mut requests = requests.and_then(Value::as_array).into_iter().flatten();
    requests.any(|request| request.text(&["audience"]) == audience)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_154_a_projected_volume_names_its_audience() {
        let volume = json!({"projected": {"sources": [
            {"configMap": {"name": "a"}},
            {"serviceAccountToken": {"path": "a"}},
            {"serviceAccountToken": {"path": "b", "audience": "vault"}}]}});
        assert!(is_projected(&volume, "") && is_projected(&volume, "vault"));
        assert!(!is_projected(&volume, "other"));
        assert!(!is_projected(&json!({"emptyDir": {}}), ""));
    }
}
