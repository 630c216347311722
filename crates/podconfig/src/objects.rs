//! The API objects that pods refer to, watched while a pod uses them (N-135).
//!
//! Each ConfigMap and Secret has its own watch, because a node may read only those of its pods. All
//! Services are in one cache, because the environment of a pod names every Service of its
//! namespace.

mod watched;

use crate::{containers, env, identity};
use client::{Cache, Client, ObjectKey};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, Volume};
use k8s_openapi::api::node::v1::RuntimeClass;
use std::collections::BTreeSet;
use std::sync::Arc;
use watched::{ChangedPods, WatchedObjects};

pub struct Objects {
    client: Client,
    config_maps: WatchedObjects<ConfigMap>,
    secrets: WatchedObjects<Secret>,
    services: Cache<Service>,
    changed: Arc<ChangedPods>,
}

impl Objects {
    /// Needs a tokio runtime.
    pub fn new(client: &Client) -> Arc<Objects> {
        let changed = Arc::new(ChangedPods::default());
        Arc::new(Objects {
            client: client.clone(),
            config_maps: WatchedObjects::new(client, &changed),
            secrets: WatchedObjects::new(client, &changed),
            services: Cache::start(client),
            changed,
        })
    }

    /// Watches what the pod refers to from now on. Call this at every pass, before volumes and containers.
    pub fn register(&self, pod: &Pod) {
        let uid = identity::uid(pod);
        let References { config_maps, secrets } = references(pod);
        self.config_maps.register(uid, config_maps);
        self.secrets.register(uid, secrets);
    }

    /// The pod is gone: stops the watches that only it needed. Idempotent.
    pub fn unregister(&self, uid: &str) {
        self.config_maps.register(uid, BTreeSet::new());
        self.secrets.register(uid, BTreeSet::new());
        self.changed.remove(uid);
    }

    /// Waits for a change and returns the uid of a pod that uses the changed object. For one caller
    /// in a loop.
    pub async fn changed(&self) -> String {
        self.changed.next().await
    }

    /// None if there is no such object. The error is a message for the pod's status.
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, String> {
        self.config_maps.get(&ObjectKey::new(namespace, name)).await
    }

    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, String> {
        self.secrets.get(&ObjectKey::new(namespace, name)).await
    }

    /// The Services of the namespace and `default/kubernetes`. None until the cache is synced (N-58).
    pub fn services(&self, namespace: &str) -> Option<Vec<Arc<Service>>> {
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
    pub async fn handler(&self, pod: &Pod) -> Result<String, String> {
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

    #[test]
    fn n_135_every_object_that_a_spec_names_is_watched() {
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
