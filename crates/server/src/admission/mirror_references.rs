//! References of a mirror pod to API objects. A node may create only mirror pods without references: otherwise it could
//! read any object that it names in one. Upstream: `HasAPIObjectReference`.

use api::value::ValueExt;
use serde_json::Value;

/// Volume types without references to API objects.
const PLAIN_VOLUMES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

const API_VOLUMES: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];

const API_SOURCES: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// Why a mirror pod is refused.
#[derive(Debug, PartialEq)]
pub(super) enum Problem {
    /// It refers to an object of this resource.
    Refers(&'static str),
    /// It has a volume of an unknown type, which may refer to something.
    Unknown(String),
}

/// The first problem of a pod.
pub(super) fn first(pod: &Value) -> Option<Problem> {
    let spec = pod.get("spec")?;
    if !spec.text(&["serviceAccountName"]).is_empty() {
        return Some(Problem::Refers("serviceaccounts"));
    }
    for (fields, resource) in [(&SECRET, "secrets"), (&CONFIG_MAP, "configmaps")] {
        if refers_to(spec, fields) {
            return Some(Problem::Refers(resource));
        }
    }
    if items(spec, "resourceClaims").next().is_some() {
        return Some(Problem::Refers("resourceclaims"));
    }
    items(spec, "volumes").find_map(of_volume)
}

/// The fields that name Secrets, or ConfigMaps.
struct Fields {
    pull: &'static str,
    key: &'static str,
    from: &'static str,
    projected: &'static str,
    /// In the source of a volume: the name, or an object that contains it.
    volume: &'static [&'static str],
}

const SECRET: Fields = Fields {
    pull: "imagePullSecrets",
    key: "secretKeyRef",
    from: "secretRef",
    projected: "secret",
    volume: &["secretName", "secretRef", "nodePublishSecretRef"],
};

const CONFIG_MAP: Fields = Fields {
    pull: "",
    key: "configMapKeyRef",
    from: "configMapRef",
    projected: "configMap",
    volume: &[],
};

fn refers_to(spec: &Value, fields: &Fields) -> bool {
    let names = |value: &Value, field: &str| !value.text(&[field, "name"]).is_empty();
    let in_container = |container: &Value| {
        items(container, "env").any(|one| names(&one["valueFrom"], fields.key))
            || items(container, "envFrom").any(|one| names(one, fields.from))
    };
    let in_source = |source: &Value| {
        let mut volume = fields.volume.iter();
        volume.any(|field| !source.text(&[*field]).is_empty() || names(source, field))
    };
    let in_volume = |volume: &Value| {
        let mut sources = volume.as_object().into_iter().flatten();
        names(volume, fields.projected)
            || sources.any(|(_, source)| in_source(source))
            || items(&volume["projected"], "sources").any(|one| names(one, fields.projected))
    };
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    items(spec, fields.pull).any(|one| !one.text(&["name"]).is_empty())
        || lists.iter().any(|list| items(spec, list).any(in_container))
        || items(spec, "volumes").any(in_volume)
}

fn of_volume(volume: &Value) -> Option<Problem> {
    let has = |holder: &Value, field: &str| holder.at(&[field]).is_some();
    if PLAIN_VOLUMES.iter().any(|field| has(volume, field)) {
        return None;
    }
    if let Some((_, resource)) = API_VOLUMES.iter().find(|(field, _)| has(volume, field)) {
        return Some(Problem::Refers(resource));
    }
    let name = volume.text(&["name"]);
    let Some(projected) = volume.at(&["projected"]) else {
        return Some(Problem::Unknown(format!("unknown volume type for volume  {name:?}")));
    };
    items(projected, "sources").find_map(|source| {
        let found = API_SOURCES.iter().find(|(field, _)| has(source, field));
        match found {
            Some((_, resource)) => Some(Problem::Refers(resource)),
            None if has(source, "downwardAPI") => None,
            None => {
                let why = format!("unknown source for projected volume {name:?}");
                Some(Problem::Unknown(why))
            }
        }
    })
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_154_a_mirror_pod_must_not_refer_to_api_objects() {
        let volume = |source: Value| {
            let mut volume = source;
            volume["name"] = "v".into();
            json!({ "volumes": [volume] })
        };
        let projected = |source: Value| volume(json!({"projected": {"sources": [source]}}));
        let env =
            |source: Value| json!({"containers": [{"env": [{"name": "A", "valueFrom": source}]}]});
        let from = |source: Value| json!({"initContainers": [{"envFrom": [source]}]});
        let refers = |resource| Some(Problem::Refers(resource));
        for (spec, expected) in [
            (json!({}), None),
            (volume(json!({"hostPath": {"path": "/"}})), None),
            (volume(json!({"emptyDir": {}})), None),
            (projected(json!({"downwardAPI": {}})), None),
            (env(json!({"fieldRef": {"fieldPath": "metadata.name"}})), None),
            (json!({"serviceAccountName": "a"}), refers("serviceaccounts")),
            (json!({"imagePullSecrets": [{"name": "a"}]}), refers("secrets")),
            (env(json!({"secretKeyRef": {"name": "a", "key": "k"}})), refers("secrets")),
            (from(json!({"secretRef": {"name": "a"}})), refers("secrets")),
            (volume(json!({"secret": {"secretName": "a"}})), refers("secrets")),
            (projected(json!({"secret": {"name": "a"}})), refers("secrets")),
            (volume(json!({"rbd": {"secretRef": {"name": "a"}}})), refers("secrets")),
            (env(json!({"configMapKeyRef": {"name": "a", "key": "k"}})), refers("configmaps")),
            (from(json!({"configMapRef": {"name": "a"}})), refers("configmaps")),
            (volume(json!({"configMap": {"name": "a"}})), refers("configmaps")),
            (projected(json!({"configMap": {"name": "a"}})), refers("configmaps")),
            (json!({"resourceClaims": [{"name": "a"}]}), refers("resourceclaims")),
            (
                volume(json!({"persistentVolumeClaim": {"claimName": "a"}})),
                refers("persistentvolumeclaims"),
            ),
            (
                volume(json!({"ephemeral": {"volumeClaimTemplate": {}}})),
                refers("persistentvolumeclaims (via ephemeral volumes)"),
            ),
            (volume(json!({"csi": {"driver": "d"}})), refers("csidrivers (via CSI volumes)")),
            (
                projected(json!({"serviceAccountToken": {"path": "t"}})),
                refers("serviceaccounts (via projected volumes)"),
            ),
            (projected(json!({"clusterTrustBundle": {}})), refers("clustertrustbundles")),
            (
                volume(json!({"new": {}})),
                Some(Problem::Unknown("unknown volume type for volume  \"v\"".into())),
            ),
        ] {
            let pod = json!({ "spec": spec });
            assert_eq!(first(&pod), expected, "{pod}");
        }
    }
}
