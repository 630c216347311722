//! The API objects that pods refer to: read once, then followed while a pod uses them (N-135).

use client::Client;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use std::sync::Arc;

/// ConfigMaps and Secrets one by one, Services all of them.
pub(crate) struct Objects {
    client: Client,
}

impl Objects {
    /// Needs a tokio runtime.
    pub(crate) fn new(client: &Client) -> Arc<Objects> {
        Arc::new(Objects { client: client.clone() })
    }

    /// Follows what the pod refers to from now on; call at every pass, before volumes and containers.
    pub(crate) fn register(&self, pod: &Pod) {
        let _ = pod;
    }

    /// The pod is gone and needs nothing any more. Idempotent.
    pub(crate) fn unregister(&self, uid: &str) {
        let _ = uid;
    }

    /// The uid of a pod that uses something that changed since it was told last: look again.
    /// For one caller in a loop.
    pub(crate) async fn changed(&self) -> String {
        std::future::pending().await
    }

    /// None if there is no such object. The error is the text for people.
    pub(crate) async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, String> {
        let _ = (namespace, name, &self.client);
        Ok(None)
    }

    pub(crate) async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, String> {
        let _ = (namespace, name);
        Ok(None)
    }

    /// None until they were listed once (N-58).
    pub(crate) fn services(&self, namespace: &str) -> Option<Vec<Arc<Service>>> {
        let _ = namespace;
        None
    }

    /// The runtime handler of the pod's RuntimeClass; empty without one (N-125).
    pub(crate) async fn handler(&self, pod: &Pod) -> Result<String, String> {
        let _ = pod;
        Ok(String::new())
    }
}
