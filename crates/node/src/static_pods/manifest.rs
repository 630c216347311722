//! Reads a manifest: decodes, defaults and validates it as the server does, and makes it a static
//! pod of this node (N-23, N-24).

use super::references::referenced;
use super::{CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE};
use crate::digest::{hex, sha256};
use api::value::ValueExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Bytes of a UUID.
const UID_BYTES: usize = 16;

/// The error is for the log.
pub(super) fn read(bytes: &[u8], file: &Path, node: &str, seen: Timestamp) -> Result<Pod, String> {
    let kind = pod_kind();
    let document = api::yaml::to_json(bytes).map_err(|error| error.to_string())?;
    let kind_name = document.value.text(&["kind"]).to_owned();
    let version = document.value.text(&["apiVersion"]).to_owned();
    if kind_name != "Pod" || version != "v1" {
        return Err(format!("invalid pod: it is a {kind_name:?} of {version:?}"));
    }
    let decoded = api::decode::value(&kind.schema, kind.ty, document.value);
    let mut object = decoded.map_err(|error| error.to_string())?.value;
    let rules = rules::of(&kind);
    (rules.default)(&mut object);
    check_references(&object)?;
    make_static(&mut object, file, node, seen);
    check(&kind, &object)?;
    (rules.prepare_create)(&mut object);
    typed::from_value(object).map_err(|error| error.to_string())
}

/// Built once, because it loads the schema of every kind.
fn pod_kind() -> Arc<api::Kind> {
    static KIND: OnceLock<Arc<api::Kind>> = OnceLock::new();
    let find = || {
        let registry = api::Registry::built_in();
        registry.by_kind("", "v1", "Pod").cloned().expect("pods are built in")
    };
    KIND.get_or_init(find).clone()
}

fn check_references(object: &Value) -> Result<(), String> {
    let pod: Pod = typed::from_value(object.clone()).map_err(|error| error.to_string())?;
    match pod.spec.as_ref().and_then(referenced) {
        Some(kind) => Err(format!("static pods may not reference {kind}")),
        None => Ok(()),
    }
}

fn make_static(object: &mut Value, file: &Path, node: &str, seen: Timestamp) {
    let content = object.to_string();
    let metadata = object.object("metadata");
    if metadata.text(&["uid"]).is_empty() {
        metadata["uid"] = uid(&content, file, node).into();
    }
    let uid = metadata["uid"].clone();
    let name = format!("{}-{}", metadata.text(&["name"]), node.to_lowercase());
    metadata["name"] = name.into();
    if metadata.text(&["namespace"]).is_empty() {
        metadata["namespace"] = "default".into();
    }
    let annotations = metadata.object("annotations");
    annotations[CONFIG_SOURCE] = "file".into();
    annotations[CONFIG_HASH] = uid;
    annotations[CONFIG_SEEN] = seen.to_string().into();
    let spec = object.object("spec");
    spec["nodeName"] = node.into();
    let toleration = json!({ "operator": "Exists", "effect": "NoExecute" });
    match spec.get_mut("tolerations").and_then(Value::as_array_mut) {
        Some(tolerations) => tolerations.push(toleration),
        None => spec["tolerations"] = json!([toleration]),
    }
}

/// The same manifest in the same file on the same node gives the same uid, even after a restart.
fn uid(content: &str, file: &Path, node: &str) -> String {
    let hash = sha256(format!("{content}host:{node}file:{}", file.display()));
    hex(&hash[..UID_BYTES])
}

fn check(kind: &api::Kind, object: &Value) -> Result<(), String> {
    let mut errors = api::Errors::default();
    let root = api::At::root(object);
    let rules = rules::of(kind);
    api::metadata::validate(&root, rules.name, kind.namespaced, &mut errors);
    (rules.validate)(&root, &mut errors);
    if errors.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Err(format!("invalid pod: {}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web}
spec:
  containers:
  - name: c
    image: busybox
    ports: [{containerPort: 80}]
";

    fn from(text: &str, file: &str) -> Result<Pod, String> {
        let seen = "2026-01-02T03:04:05.000000006Z".parse().unwrap();
        read(text.as_bytes(), Path::new(file), "node-1", seen)
    }

    #[test]
    fn n_23_a_manifest_becomes_a_defaulted_pod_of_this_node() {
        let pod = from(WEB, "/etc/web.yaml").unwrap();
        let (meta, spec) = (pod.metadata, pod.spec.unwrap());
        assert_eq!(meta.name.as_deref(), Some("web-node-1"));
        assert_eq!(meta.namespace.as_deref(), Some("default"));
        let uid = meta.uid.unwrap();
        assert_eq!(uid.len(), 32);
        let annotations = meta.annotations.unwrap();
        assert_eq!(annotations["kubernetes.io/config.source"], "file");
        assert_eq!(annotations["kubernetes.io/config.hash"], uid);
        assert_eq!(annotations["kubernetes.io/config.seen"], "2026-01-02T03:04:05.000000006Z");
        assert_eq!(spec.node_name.as_deref(), Some("node-1"));
        let toleration = &spec.tolerations.unwrap()[0];
        assert_eq!(toleration.operator.as_deref(), Some("Exists"));
        assert_eq!(toleration.effect.as_deref(), Some("NoExecute"));
        // Defaults of the server.
        assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
        assert_eq!(spec.termination_grace_period_seconds, Some(30));
        assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("Always"));
        assert_eq!(spec.containers[0].ports.as_ref().unwrap()[0].protocol.as_deref(), Some("TCP"));
        let status = pod.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    }

    #[test]
    fn n_23_the_uid_depends_on_content_and_path() {
        let uid = |text: &str, file: &str| from(text, file).unwrap().metadata.uid.unwrap();
        assert_eq!(uid(WEB, "/a.yaml"), uid(WEB, "/a.yaml"));
        assert_ne!(uid(WEB, "/a.yaml"), uid(WEB, "/b.yaml"));
        assert_ne!(uid(WEB, "/a.yaml"), uid(&WEB.replace("busybox", "nginx"), "/a.yaml"));
        assert_eq!(uid(&WEB.replace("name: web\n", "name: web\n  uid: mine\n"), "/a.yaml"), "mine");
    }

    #[test]
    fn n_23_json_is_read_as_well() {
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j","namespace":"sys"},
            "spec":{"containers":[{"name":"c","image":"i"}]}}"#;
        let pod = from(json, "/j.json").unwrap();
        assert_eq!(pod.metadata.namespace.as_deref(), Some("sys"));
    }

    #[test]
    fn n_24_references_to_api_objects_are_errors() {
        let rows = [
            ("  serviceAccountName: x", "serviceaccounts"),
            ("  imagePullSecrets: [{name: x}]", "secrets"),
            ("  volumes: [{name: v, secret: {secretName: x}}]", "secrets"),
            ("  volumes: [{name: v, configMap: {name: x}}]", "configmaps"),
            (
                "  volumes: [{name: v, persistentVolumeClaim: {claimName: x}}]",
                "persistentvolumeclaims",
            ),
            ("  resourceClaims: [{name: r, resourceClaimName: x}]", "resourceclaims"),
            ("  volumes: [{name: v, csi: {driver: d}}]", "csidrivers (via CSI volumes)"),
            (
                "  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]",
                "serviceaccounts (via projected volumes)",
            ),
            (
                "  initContainers: [{name: i, image: i, envFrom: [{secretRef: {name: x}}]}]",
                "secrets",
            ),
        ];
        for (line, kind) in rows {
            let error = from(&format!("{WEB}{line}\n"), "/a.yaml").unwrap_err();
            assert_eq!(error, format!("static pods may not reference {kind}"), "{line}");
        }
        let harmless = format!(
            "{WEB}  volumes: [{{name: v, emptyDir: {{}}}}, {{name: h, hostPath: {{path: /}}}}]\n"
        );
        assert!(from(&harmless, "/a.yaml").is_ok());
    }

    #[test]
    fn an_invalid_pod_is_an_error() {
        assert!(from("kind: [", "/a").is_err());
        assert!(from("apiVersion: v1\nkind: Service\nmetadata: {name: x}\n", "/a").is_err());
        assert!(from(&WEB.replace("image: busybox", "image: ' x'"), "/a").is_err());
        let error = from(&WEB.replace("name: web", "name: Web_"), "/a").unwrap_err();
        assert!(error.starts_with("invalid pod: metadata.name: Invalid value"), "{error}");
    }
}
