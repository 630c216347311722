//! ServiceAccount: every pod gets a service account and a volume with its token.

use super::refuse;
use crate::object::{Object, Stored, store_name};
use crate::request::call::Call;
use crate::response::error::Result;
use access::authz::is_mirror_pod;
use api::value::ValueExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const DEFAULT: &str = "default";
const VOLUME_PREFIX: &str = "kube-api-access-";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The token's lifetime; it is renewed halfway. The extra seconds tell it from a lifetime that a user requested.
const TOKEN_SECONDS: u32 = 3607;
const ROOT_CA: &str = "kube-root-ca.crt";

/// The service account `default` is created shortly after its namespace. A pod that comes earlier waits: number of
/// attempts, and pause.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn admit(call: &Call, pod: &mut Value) -> Result<()> {
    if is_mirror_pod(pod) {
        return match mirror_problem(pod) {
            Some(why) => Err(refuse(call, pod, why)),
            None => Ok(()),
        };
    }
    let spec = pod.object("spec");
    if spec.text(&["serviceAccountName"]).is_empty() {
        spec["serviceAccountName"] = DEFAULT.into();
    }
    let name = spec.text(&["serviceAccountName"]).to_owned();
    // The deprecated field always has the same value.
    spec["serviceAccount"] = name.clone().into();
    let Some(account) = find(call, &name).await else {
        let namespace = &call.target.namespace;
        let why = format!(
            "error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found"
        );
        return Err(refuse(call, pod, why));
    };
    apply(&account.value(), pod.object("spec"), &clock::random_name_suffix());
    Ok(())
}

async fn find(call: &Call, name: &str) -> Option<Arc<Object>> {
    let key = store_name(&call.target.namespace, name);
    for _ in 1..ATTEMPTS {
        match call.store().get("serviceaccounts", &key) {
            None if name == DEFAULT => tokio::time::sleep(PAUSE).await,
            found => return found,
        }
    }
    call.store().get("serviceaccounts", &key)
}

/// Adds the account's token and its image pull secrets to the pod.
fn apply(account: &Value, spec: &mut Value, suffix: &str) {
    let automount = spec.get("automountServiceAccountToken").and_then(Value::as_bool);
    let automount = automount
        .or_else(|| account.get("automountServiceAccountToken").and_then(Value::as_bool))
        .unwrap_or(true);
    if automount {
        mount_token(spec, suffix);
    }
    let is_empty =
        |value: Option<&Value>| value.and_then(Value::as_array).is_none_or(Vec::is_empty);
    if is_empty(spec.get("imagePullSecrets")) && !is_empty(account.get("imagePullSecrets")) {
        spec["imagePullSecrets"] = account["imagePullSecrets"].clone();
    }
}

fn mount_token(spec: &mut Value, suffix: &str) {
    let volumes = spec.get("volumes").and_then(Value::as_array);
    let existing = volumes
        .into_iter()
        .flatten()
        .map(|volume| volume.text(&["name"]))
        .find(|name| name.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let volume = existing.clone().unwrap_or_else(|| format!("{VOLUME_PREFIX}{suffix}"));
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in spec.list_mut(list) {
            container.set_default("volumeMounts", json!([]));
            let Some(Value::Array(mounts)) = container.get_mut("volumeMounts") else { continue };
            if mounts.iter().all(|mount| mount.text(&["mountPath"]) != MOUNT_PATH) {
                mounts.push(json!({ "name": volume, "readOnly": true, "mountPath": MOUNT_PATH }));
                needed = true;
            }
        }
    }
    if needed && existing.is_none() {
        spec.set_default("volumes", json!([]));
        if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
            volumes.push(token_volume(&volume));
        }
    }
}

fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                { "serviceAccountToken": { "path": "token", "expirationSeconds": TOKEN_SECONDS } },
                { "configMap": { "name": ROOT_CA, "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                { "downwardAPI": { "items": [{
                    "path": "namespace",
                    "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" },
                }] } },
            ],
        },
    })
}

/// A mirror pod comes from a file on the node, so it must not use API objects.
fn mirror_problem(pod: &Value) -> Option<&'static str> {
    let spec = pod.get("spec")?;
    if !spec.text(&["serviceAccountName"]).is_empty() {
        return Some("a mirror pod may not reference service accounts");
    }
    let volumes = || spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
    if volumes().any(|volume| volume.at(&["secret"]).is_some()) || env_secrets(spec) {
        return Some("a mirror pod may not reference secrets");
    }
    let sources = |volume: &Value| {
        let sources = volume.at(&["projected", "sources"]).and_then(Value::as_array);
        sources.into_iter().flatten().any(|source| source.at(&["serviceAccountToken"]).is_some())
    };
    volumes().any(sources).then_some("a mirror pod may not use service account token projections")
}

fn env_secrets(spec: &Value) -> bool {
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let list = |from: &Value, field: &str| {
        from.get(field).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    lists.iter().flat_map(|field| list(spec, field)).any(|container| {
        list(&container, "env").iter().any(|env| env.at(&["valueFrom", "secretKeyRef"]).is_some())
            || list(&container, "envFrom").iter().any(|from| from.at(&["secretRef"]).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(mounted: bool) -> Value {
        let mut container = json!({"name": "app"});
        if mounted {
            container["volumeMounts"] = json!([{"name": "own", "mountPath": MOUNT_PATH}]);
        }
        json!({"containers": [container]})
    }

    #[test]
    fn a_156_the_token_volume_is_added_unless_pod_or_account_opts_out() {
        for (why, account, pod, mounted, added) in [
            ("no setting", None, None, false, true),
            ("the account says no", Some(false), None, false, false),
            ("the pod wins over the account", Some(false), Some(true), false, true),
            ("the pod says no", Some(true), Some(false), false, false),
            ("all mount it themselves", None, None, true, false),
        ] {
            let account = json!({"automountServiceAccountToken": account});
            let mut spec = spec(mounted);
            if let Some(automount) = pod {
                spec["automountServiceAccountToken"] = automount.into();
            }
            apply(&account, &mut spec, "abcde");
            assert_eq!(spec.at(&["volumes"]).is_some(), added, "{why}");
        }
    }

    #[test]
    fn a_156_the_token_volume_has_token_ca_certificate_and_namespace() {
        let mut spec = spec(false);
        apply(&json!({}), &mut spec, "abcde");
        assert_eq!(
            spec["containers"][0]["volumeMounts"],
            json!([{"mountPath": MOUNT_PATH, "name": "kube-api-access-abcde", "readOnly": true}])
        );
        assert_eq!(
            spec["volumes"],
            json!([{"name": "kube-api-access-abcde", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}]}},
            ]}}])
        );
    }

    #[test]
    fn a_155_the_accounts_pull_secrets_are_copied_if_the_pod_has_none() {
        let account = json!({"imagePullSecrets": [{"name": "registry"}]});
        let mut without = spec(true);
        apply(&account, &mut without, "x");
        assert_eq!(without["imagePullSecrets"], json!([{"name": "registry"}]));
        let mut with = spec(true);
        with["imagePullSecrets"] = json!([{"name": "own"}]);
        apply(&account, &mut with, "x");
        assert_eq!(with["imagePullSecrets"], json!([{"name": "own"}]));
    }

    #[test]
    fn a_155_a_mirror_pod_must_not_use_api_objects() {
        for (spec, problem) in [
            (json!({}), None),
            (
                json!({"serviceAccountName": "default"}),
                Some("a mirror pod may not reference service accounts"),
            ),
            (
                json!({"volumes": [{"secret": {"secretName": "s"}}]}),
                Some("a mirror pod may not reference secrets"),
            ),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
                Some("a mirror pod may not use service account token projections"),
            ),
        ] {
            assert_eq!(mirror_problem(&json!({"spec": spec})), problem);
        }
    }
}
