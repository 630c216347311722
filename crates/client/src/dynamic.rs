//! Kinds that are known only at run time: discovery, and requests for objects of any kind by their metadata.

use crate::client::decode;
use crate::read::Selection;
use crate::write::sendable;
use crate::{Client, DeleteOptions, Error, ObjectKey, Result};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::discovery::v2::{APIGroupDiscovery, APIResourceDiscovery};
use kube::core::params::{GetParams, Patch};
use kube::core::{ApiResource, DynamicResourceScope, Request};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use typed::Typed;

/// The metadata of an object of any kind: identity, owners, deletion and finalizers. Labels, annotations and
/// `managedFields` are left out, because the garbage collector keeps one of these for every object in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PartialObject {
    pub metadata: ObjectMeta,
}

impl<'de> Deserialize<'de> for PartialObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            #[serde(default)]
            metadata: ObjectMeta,
        }
        let mut metadata = Whole::deserialize(deserializer)?.metadata;
        (metadata.labels, metadata.annotations, metadata.managed_fields) = (None, None, None);
        Ok(PartialObject { metadata })
    }
}

typed::codec!(PartialObject);

impl kube::Resource for PartialObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        kind.kind.as_str().into()
    }

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        kind.group.as_str().into()
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        kind.version.as_str().into()
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        kind.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A kind that the server serves.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedKind {
    pub resource: ApiResource,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub subresources: Vec<String>,
    /// The server's preferred version of this kind.
    pub preferred: bool,
}

impl ServedKind {
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }
}

/// The kinds that the server serves, and the groups whose kinds it could not determine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Discovery {
    pub kinds: Vec<ServedKind>,
    /// `group/version` of aggregated APIs that do not respond at the moment.
    pub unavailable: Vec<String>,
}

impl Discovery {
    fn add(&mut self, group: &APIGroupDiscovery) {
        let name = group.metadata.as_ref().and_then(|meta| meta.name.as_deref());
        let name = name.unwrap_or_default();
        let mut seen: Vec<&str> = Vec::new();
        for version in &group.versions {
            let known = version.version.as_deref().unwrap_or_default();
            if version.freshness.as_deref() == Some("Stale") {
                self.unavailable.push(api_version(name, known));
            }
            for resource in &version.resources {
                let Some(mut kind) = served_kind(name, known, resource) else { continue };
                let plural = resource.resource.as_deref().unwrap_or_default();
                kind.preferred = !seen.contains(&plural);
                seen.push(plural);
                self.kinds.push(kind);
            }
        }
    }
}

fn served_kind(group: &str, version: &str, resource: &APIResourceDiscovery) -> Option<ServedKind> {
    let kind = resource.response_kind.as_ref()?.kind.clone()?;
    let plural = resource.resource.clone()?;
    let names = resource.subresources.iter().filter_map(|sub| sub.subresource.clone());
    Some(ServedKind {
        resource: ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version(group, version),
            kind,
            plural,
        },
        namespaced: resource.scope.as_deref() == Some("Namespaced"),
        verbs: resource.verbs.clone(),
        subresources: names.collect(),
        preferred: true,
    })
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

impl Client {
    /// All kinds that the server serves now, including custom resources.
    pub async fn discover(&self) -> Result<Discovery> {
        let failed = |error| Error::from_kube("discover the kinds of the server".into(), error);
        let core = self.kube().list_core_api_versions_aggregated();
        let groups = self.kube().list_api_groups_aggregated();
        let (core, groups) = futures::try_join!(core, groups).map_err(failed)?;
        let mut discovery = Discovery::default();
        core.items.iter().chain(&groups.items).for_each(|group| discovery.add(group));
        Ok(discovery)
    }

    /// `None` if there is no such object.
    pub async fn get_partial(
        &self,
        kind: &ApiResource,
        key: &ObjectKey,
    ) -> Result<Option<PartialObject>> {
        let doing = || format!("get {} {key}", kind.plural);
        let found = request_at(kind, key).get_metadata(key.name(), &GetParams::default());
        match self.send(&doing, found).await {
            Err(error) if error.is_not_found() => Ok(None),
            found => decode(&doing, &found?).map(Some),
        }
    }

    pub async fn list_partial(
        &self,
        kind: &ApiResource,
        which: &Selection,
    ) -> Result<Vec<PartialObject>> {
        self.list_of(kind, which, true).await
    }

    /// A JSON merge patch of an object of any kind.
    pub async fn patch_partial(
        &self,
        kind: &ApiResource,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<PartialObject> {
        let doing = || format!("patch {} {key}", kind.plural);
        let patch = Patch::Merge(patch);
        let request =
            request_at(kind, key).patch_metadata(key.name(), &self.patch_params(), &patch);
        decode(&doing, &self.send(&doing, request).await?)
    }

    /// The UID of the scaled object and its `spec.replicas`; `None` if there is no such object.
    pub async fn scale_of(
        &self,
        kind: &ApiResource,
        key: &ObjectKey,
    ) -> Result<Option<(String, i32)>> {
        match self.scale(kind, key).await {
            Ok(scale) => Ok(Some((
                scale.metadata.uid.unwrap_or_default(),
                scale.spec.and_then(|spec| spec.replicas).unwrap_or_default(),
            ))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn scale(&self, kind: &ApiResource, key: &ObjectKey) -> Result<Scale> {
        let doing = || format!("get the scale of {} {key}", kind.plural);
        let request = request_at(kind, key).get_subresource("scale", key.name());
        decode(&doing, &self.send(&doing, request).await?)
    }

    /// Fails with a conflict if the object has changed since its scale was read.
    pub async fn replace_scale(
        &self,
        kind: &ApiResource,
        key: &ObjectKey,
        scale: &Scale,
    ) -> Result<Scale> {
        let doing = || format!("update the scale of {} {key}", kind.plural);
        let body = sendable(&doing, scale.encode())?;
        let request = request_at(kind, key);
        let request = request.replace_subresource("scale", key.name(), &self.params(), body);
        decode(&doing, &self.send(&doing, request).await?)
    }

    /// Deletes all selected objects. The server may stop at the first error.
    pub async fn delete_collection(
        &self,
        kind: &ApiResource,
        which: &Selection,
        options: &DeleteOptions,
    ) -> Result<()> {
        let doing = || format!("delete all {}", kind.plural);
        let namespace = which.namespace.as_deref();
        let all = Request::new(<PartialObject as kube::Resource>::url_path(kind, namespace));
        let request = all.delete_collection(&options.params(), &which.list_params(None));
        self.send(&doing, request).await.map(drop)
    }
}

fn request_at(kind: &ApiResource, key: &ObjectKey) -> Request {
    Request::new(<PartialObject as kube::Resource>::url_path(kind, key.scope()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn first_version_of_a_kind_is_preferred_and_stale_versions_are_unavailable() {
        let resource = |plural: &str, kind: &str| {
            json!({
                "resource": plural, "responseKind": { "kind": kind }, "scope": "Namespaced",
                "verbs": ["list", "delete"], "subresources": [{ "subresource": "scale" }],
            })
        };
        let group = json!({ "metadata": { "name": "g" }, "versions": [
            { "version": "v2", "resources": [resource("as", "A")] },
            { "version": "v1", "resources": [resource("as", "A"), resource("bs", "B")] },
            { "version": "v0", "freshness": "Stale" },
        ]});
        let mut found = Discovery::default();
        found.add(&serde_json::from_value(group).unwrap());
        let text = |kind: &ServedKind| {
            format!("{} {} {}", kind.resource.api_version, kind.resource.kind, kind.preferred)
        };
        let kinds: Vec<String> = found.kinds.iter().map(text).collect();
        assert_eq!(kinds, ["g/v2 A true", "g/v1 A false", "g/v1 B true"]);
        assert_eq!(found.unavailable, ["g/v0"]);
        assert!(found.kinds[0].namespaced && found.kinds[0].supports("delete"));
        assert!(!found.kinds[0].supports("watch"));
        assert_eq!(found.kinds[0].subresources, ["scale"]);
    }

    #[test]
    fn partial_objects_keep_no_labels_or_annotations() {
        let whole = json!({ "metadata": {
            "name": "n", "uid": "u", "labels": { "a": "b" }, "annotations": { "a": "b" },
            "managedFields": [{ "manager": "m" }], "finalizers": ["f"],
        }, "spec": { "big": true } });
        let partial: PartialObject = typed::from_value(whole).unwrap();
        let kept = json!({ "metadata": { "name": "n", "uid": "u", "finalizers": ["f"] } });
        assert_eq!(serde_json::to_value(partial).unwrap(), kept);
    }
}
