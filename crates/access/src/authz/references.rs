//! The objects that a pod refers to, which its node needs to run it.
//!
//! Pure. Upstream: `Graph.AddPod` and `VisitPodSecretNames` and their like.

use api::value::ValueExt as _;
use serde_json::Value;
use std::collections::BTreeSet;

/// An object in the pod's namespace, by resource and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub(crate) resource: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

pub(crate) const SECRETS: &str = "secrets";
pub(crate) const CONFIG_MAPS: &str = "configmaps";
pub(crate) const CLAIMS: &str = "persistentvolumeclaims";
pub(crate) const ACCOUNTS: &str = "serviceaccounts";
pub(crate) const RESOURCE_CLAIMS: &str = "resourceclaims";

/// Everything that a pod refers to. A mirror pod refers to nothing: otherwise a node could read any
/// object by naming it in a manifest.
pub(super) fn of_pod(pod: &Value) -> BTreeSet<Reference> {
    let mut found = Found { namespace: pod.text(&["metadata", "namespace"]), all: BTreeSet::new() };
    if is_mirror_pod(pod) {
        return found.all;
    }
    let Some(spec) = pod.get("spec") else { return found.all };
    found.add(ACCOUNTS, spec.text(&["serviceAccountName"]));
    for secret in items(spec, "imagePullSecrets") {
        found.add(SECRETS, secret.text(&["name"]));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        items(spec, list).for_each(|container| found.environment(container));
    }
    let name = pod.text(&["metadata", "name"]);
    items(spec, "volumes").for_each(|volume| found.volume(name, volume));
    for claim in items(spec, "resourceClaims") {
        found.add(RESOURCE_CLAIMS, claim.text(&["resourceClaimName"]));
    }
    if let Some(status) = pod.get("status") {
        for claim in items(status, "resourceClaimStatuses") {
            found.add(RESOURCE_CLAIMS, claim.text(&["resourceClaimName"]));
        }
    }
    found.all
}

/// `(namespace, name)` of the secrets that are needed to mount this PersistentVolume. Those without a namespace are
/// in the claim's namespace.
pub(super) fn secrets_of_volume(volume: &Value) -> BTreeSet<(String, String)> {
    let home = volume.text(&["spec", "claimRef", "namespace"]);
    let mut found = BTreeSet::new();
    let sources = volume.get("spec").and_then(Value::as_object);
    for source in sources.into_iter().flatten().map(|(_, source)| source) {
        for (field, secret) in source.as_object().into_iter().flatten() {
            let (namespace, name) = match field.as_str() {
                "secretName" => (source.text(&["secretNamespace"]), source.text(&["secretName"])),
                field if field.ends_with("ecretRef") => {
                    (secret.text(&["namespace"]), secret.text(&["name"]))
                }
                _ => continue,
            };
            if !name.is_empty() {
                let namespace = if namespace.is_empty() { home } else { namespace };
                found.insert((namespace.to_owned(), name.to_owned()));
            }
        }
    }
    found
}

/// The annotation of a mirror pod: a pod in the API that stands for a static pod of a node.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Whether a node wrote this pod to show a static pod of its own.
pub fn is_mirror_pod(pod: &Value) -> bool {
    pod.at(&["metadata", "annotations", MIRROR_ANNOTATION]).is_some()
}

struct Found<'a> {
    namespace: &'a str,
    all: BTreeSet<Reference>,
}

impl Found<'_> {
    fn add(&mut self, resource: &'static str, name: &str) {
        if !name.is_empty() {
            let (namespace, name) = (self.namespace.to_owned(), name.to_owned());
            self.all.insert(Reference { resource, namespace, name });
        }
    }

    fn environment(&mut self, container: &Value) {
        for variable in items(container, "env") {
            self.add(SECRETS, variable.text(&["valueFrom", "secretKeyRef", "name"]));
            self.add(CONFIG_MAPS, variable.text(&["valueFrom", "configMapKeyRef", "name"]));
        }
        for source in items(container, "envFrom") {
            self.add(SECRETS, source.text(&["secretRef", "name"]));
            self.add(CONFIG_MAPS, source.text(&["configMapRef", "name"]));
        }
    }

    fn volume(&mut self, pod: &str, volume: &Value) {
        self.add(CONFIG_MAPS, volume.text(&["configMap", "name"]));
        self.add(CLAIMS, volume.text(&["persistentVolumeClaim", "claimName"]));
        if volume.get("ephemeral").is_some() {
            self.add(CLAIMS, &format!("{pod}-{}", volume.text(&["name"])));
        }
        if let Some(projected) = volume.get("projected") {
            for source in items(projected, "sources") {
                self.add(SECRETS, source.text(&["secret", "name"]));
                self.add(CONFIG_MAPS, source.text(&["configMap", "name"]));
            }
        }
        // The volume drivers name the secret that they mount with in one of these fields.
        for (_, source) in volume.as_object().into_iter().flatten() {
            self.add(SECRETS, source.text(&["secretName"]));
            self.add(SECRETS, source.text(&["secretRef", "name"]));
            self.add(SECRETS, source.text(&["nodePublishSecretRef", "name"]));
        }
    }
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_154_a_pod_refers_to_the_objects_that_its_containers_and_volumes_name() {
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {
                "serviceAccountName": "account",
                "imagePullSecrets": [{"name": "pull"}],
                "initContainers": [{"envFrom": [{"secretRef": {"name": "from-secret"}}, {"configMapRef": {"name": "from-map"}}]}],
                "containers": [{"env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "key-secret", "key": "k"}}},
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "key-map", "key": "k"}}},
                    {"name": "C", "value": "v"},
                ]}],
                "ephemeralContainers": [{"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "debug", "key": "k"}}}]}],
                "volumes": [
                    {"name": "a", "secret": {"secretName": "mounted"}},
                    {"name": "b", "configMap": {"name": "map"}},
                    {"name": "c", "projected": {"sources": [{"secret": {"name": "in-one"}}, {"configMap": {"name": "map-in-one"}}, {"serviceAccountToken": {"path": "t"}}]}},
                    {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}},
                    {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}},
                    {"name": "f", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "driver"}}},
                    {"name": "g", "rbd": {"secretRef": {"name": "ceph"}}},
                ],
                "resourceClaims": [{"name": "r", "resourceClaimName": "device"}],
            },
            "status": {"resourceClaimStatuses": [{"name": "r", "resourceClaimName": "made"}]},
        });
        let of = |resource: &str| -> Vec<String> {
            let all = of_pod(&pod).into_iter();
            all.filter(|one| one.resource == resource && one.namespace == "ns")
                .map(|one| one.name)
                .collect()
        };
        assert_eq!(
            of(SECRETS),
            ["ceph", "debug", "driver", "from-secret", "in-one", "key-secret", "mounted", "pull"]
        );
        assert_eq!(of(CONFIG_MAPS), ["from-map", "key-map", "map", "map-in-one"]);
        assert_eq!(of(CLAIMS), ["claim", "p-e"]);
        assert_eq!(of(ACCOUNTS), ["account"]);
        assert_eq!(of(RESOURCE_CLAIMS), ["device", "made"]);
    }

    #[test]
    fn a_154_a_mirror_pod_refers_to_no_secret() {
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}},
            "spec": {"volumes": [{"name": "a", "secret": {"secretName": "mounted"}}]},
        });
        assert_eq!(of_pod(&pod), BTreeSet::new());
    }

    #[test]
    fn a_154_a_volume_refers_to_the_secrets_of_its_driver() {
        let of = |spec: Value| secrets_of_volume(&json!({"spec": spec}));
        let csi = of(json!({
            "claimRef": {"namespace": "ns", "name": "c"},
            "csi": {"driver": "d", "nodePublishSecretRef": {"namespace": "other", "name": "s"}, "nodeStageSecretRef": {"name": "t"}},
        }));
        let all: Vec<(&str, &str)> = csi.iter().map(|(n, s)| (n.as_str(), s.as_str())).collect();
        assert_eq!(all, [("ns", "t"), ("other", "s")]);
        assert_eq!(of(json!({"hostPath": {"path": "/x"}})), BTreeSet::new());
    }
}
