//! The API objects that pods refer to: read once, then followed while a pod uses them (N-135).
//!
//! ConfigMaps and Secrets are followed one by one, so that the node sees those of its pods and no
//! others; Services all of them, because each pod of a namespace is told of all of its services.

mod followed;

use super::{containers, env, identity};
use client::{Cache, Client, ObjectKey};
use followed::{Followed, Wanted};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, Volume};
use k8s_openapi::api::node::v1::RuntimeClass;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) struct Objects {
    client: Client,
    config_maps: Followed<ConfigMap>,
    secrets: Followed<Secret>,
    services: Cache<Service>,
    wanted: Arc<Wanted>,
}

impl Objects {
    /// Needs a tokio runtime.
    pub(crate) fn new(client: &Client) -> Arc<Objects> {
        let wanted = Arc::new(Wanted::default());
        Arc::new(Objects {
            client: client.clone(),
            config_maps: Followed::new(client, &wanted),
            secrets: Followed::new(client, &wanted),
            services: Cache::start(client),
            wanted,
        })
    }

    /// Follows what the pod refers to from now on; call at every pass, before volumes and containers.
    pub(crate) fn register(&self, pod: &Pod) {
        let uid = identity::uid(pod);
        let References { config_maps, secrets } = references(pod);
        self.config_maps.register(uid, config_maps);
        self.secrets.register(uid, secrets);
    }

    /// The pod is gone and needs nothing any more. Idempotent.
    pub(crate) fn unregister(&self, uid: &str) {
        self.config_maps.register(uid, BTreeSet::new());
        self.secrets.register(uid, BTreeSet::new());
        self.wanted.forget(uid);
    }

    /// The uid of a pod that uses something that changed since it was told last: look again.
    /// For one caller in a loop.
    pub(crate) async fn changed(&self) -> String {
        self.wanted.next().await
    }

    /// None if there is no such object. The error is the text for people.
    pub(crate) async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, String> {
        self.config_maps.get(&ObjectKey::new(namespace, name)).await
    }

    pub(crate) async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, String> {
        self.secrets.get(&ObjectKey::new(namespace, name)).await
    }

    /// Those of the namespace, and the API's own. None until they were listed once (N-58).
    pub(crate) fn services(&self, namespace: &str) -> Option<Vec<Arc<Service>>> {
        if !self.services.is_synced() {
            return None;
        }
        let mut services = self.services.in_namespace(namespace);
        if namespace != "default" {
            services.extend(self.services.get(&ObjectKey::new("default", "kubernetes")));
        }
        Some(services)
    }

    /// The runtime handler of the pod's RuntimeClass; empty without one (N-125).
    pub(crate) async fn handler(&self, pod: &Pod) -> Result<String, String> {
        let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
        let Some(class) = class.filter(|class| !class.is_empty()) else { return Ok(String::new()) };
        match self.client.find::<RuntimeClass>(&ObjectKey::cluster(class)).await {
            Ok(Some(found)) => Ok(found.handler),
            Ok(None) => Err(format!("runtimeclass.node.k8s.io {class:?} not found")),
            Err(error) => Err(format!("failed to lookup RuntimeClass {class}: {error}")),
        }
    }
}

#[derive(Default)]
struct References {
    config_maps: BTreeSet<ObjectKey>,
    secrets: BTreeSet<ObjectKey>,
}

/// All ConfigMaps and Secrets that the pod's spec names.
fn references(pod: &Pod) -> References {
    let mut references = References::default();
    let Some(spec) = &pod.spec else { return references };
    let namespace = identity::namespace(pod);
    let mut add = |kind: &str, name: &str| {
        let key = ObjectKey::new(namespace, name);
        match kind {
            _ if name.is_empty() => false,
            "configmap" => references.config_maps.insert(key),
            _ => references.secrets.insert(key),
        };
    };
    for container in containers(pod) {
        env::references(&container).for_each(|(kind, name)| add(kind, name));
    }
    for secret in spec.image_pull_secrets.iter().flatten() {
        add("secret", &secret.name);
    }
    spec.volumes.iter().flatten().for_each(|volume| in_volume(volume, &mut add));
    references
}

fn in_volume(volume: &Volume, add: &mut impl FnMut(&str, &str)) {
    if let Some(source) = &volume.config_map {
        add("configmap", &source.name);
    }
    if let Some(name) = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref()) {
        add("secret", name);
    }
    let projected = volume.projected.iter().flat_map(|volume| volume.sources.iter().flatten());
    for source in projected {
        if let Some(source) = &source.config_map {
            add("configmap", &source.name);
        }
        if let Some(source) = &source.secret {
            add("secret", &source.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// N-135
    #[test]
    fn everything_that_a_spec_names_is_followed() {
        let pod: Pod = typed::from_value(json!({
            "metadata": { "namespace": "ns" },
            "spec": {
                "containers": [{ "name": "c", "env": [
                    { "name": "A", "valueFrom": { "configMapKeyRef": { "name": "cm1", "key": "k" } } },
                ] }],
                "initContainers": [{ "name": "i", "envFrom": [{ "secretRef": { "name": "s1" } }] }],
                "ephemeralContainers": [{ "name": "e", "envFrom": [{ "configMapRef": { "name": "cm2" } }] }],
                "imagePullSecrets": [{ "name": "s2" }],
                "volumes": [
                    { "name": "a", "configMap": { "name": "cm3" } },
                    { "name": "b", "secret": { "secretName": "s3" } },
                    { "name": "c", "projected": { "sources": [
                        { "configMap": { "name": "cm4" } }, { "secret": { "name": "s4" } },
                    ] } },
                ],
            },
        }))
        .unwrap();
        let found = references(&pod);
        let names = |keys: BTreeSet<ObjectKey>| {
            keys.iter().map(|k| k.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(found.config_maps), ["cm1", "cm2", "cm3", "cm4"]);
        assert_eq!(names(found.secrets), ["s1", "s2", "s3", "s4"]);
    }
}
