//! Write requests: create, update, patch, apply, delete, evict, bind; for one object or for many at once.
//!
//! Not here: retries. A controller returns the error, and its queue retries the key.

use crate::client::{Doing, decode, decode_shared, read};
use crate::{Client, Error, Object, ObjectKey, Result};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Binding, Pod};
use k8s_openapi::api::policy::v1::Eviction;
use kube::core::Request;
use kube::core::params::{
    DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

/// How many requests [`Client::create_all`] and [`Client::delete_all`] have in flight at most.
pub const CONCURRENT_MAX: usize = 64;

/// The first batch of [`Client::create_all`]. Upstream: `SlowStartInitialBatchSize`.
const SLOW_START: usize = 1;

/// Options of a delete request. By default the kind decides.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeleteOptions {
    pub grace_seconds: Option<u32>,
    /// Delete only the object with this UID, not a newer one of the same name.
    pub uid: Option<String>,
    /// Delete only if the object still has this version.
    pub resource_version: Option<String>,
    pub propagation: Option<Propagation>,
}

/// What happens to objects that the deleted object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl DeleteOptions {
    pub fn of_uid(uid: &str) -> Self {
        DeleteOptions { uid: Some(uid.to_owned()), ..DeleteOptions::default() }
    }

    /// Deletes only `object`, not a newer one of the same name.
    pub fn only<K: kube::Resource>(object: &K) -> Self {
        DeleteOptions { uid: object.meta().uid.clone(), ..DeleteOptions::default() }
    }

    pub fn grace(mut self, seconds: u32) -> Self {
        self.grace_seconds = Some(seconds);
        self
    }

    pub fn propagation(mut self, propagation: Propagation) -> Self {
        self.propagation = Some(propagation);
        self
    }

    pub(crate) fn params(&self) -> DeleteParams {
        let (uid, resource_version) = (self.uid.clone(), self.resource_version.clone());
        let conditional = uid.is_some() || resource_version.is_some();
        DeleteParams {
            grace_period_seconds: self.grace_seconds,
            preconditions: conditional.then_some(Preconditions { uid, resource_version }),
            propagation_policy: self.propagation.map(|propagation| match propagation {
                Propagation::Orphan => PropagationPolicy::Orphan,
                Propagation::Background => PropagationPolicy::Background,
                Propagation::Foreground => PropagationPolicy::Foreground,
            }),
            ..DeleteParams::default()
        }
    }
}

/// The object that a request writes, without its Rust type, so that the code that uses it is compiled once.
struct Target {
    plural: Cow<'static, str>,
    path: String,
    key: ObjectKey,
}

impl Target {
    fn of<K: Object<DynamicType = ()>>(key: ObjectKey) -> Target {
        Target { plural: K::plural(&()), path: K::url_path(&(), key.scope()), key }
    }

    fn request(&self) -> Request {
        Request::new(&self.path)
    }

    fn name(&self) -> &str {
        self.key.name()
    }

    /// `plural namespace/name`, for errors.
    fn described(&self) -> String {
        format!("{} {}", self.plural, self.key)
    }
}

/// Requests for one object.
impl Client {
    pub async fn create<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let target = Target::of::<K>(ObjectKey::of(object));
        let response = self.create_at(&target, object.encode()).await?;
        decode(&|| creating(&target), &response)
    }

    /// As [`Client::create`], for JSON, and without decoding the response.
    pub(crate) async fn create_json<K>(&self, key: &ObjectKey, mut object: Value) -> Result<()>
    where
        K: Object<DynamicType = ()>,
    {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let target = Target::of::<K>(key.clone());
        self.create_at(&target, serde_json::to_vec(&object)).await.map(drop)
    }

    async fn create_at(
        &self,
        target: &Target,
        body: serde_json::Result<Vec<u8>>,
    ) -> Result<String> {
        let doing = || creating(target);
        let body = sendable(&doing, body)?;
        self.send(&doing, target.request().create(&self.params(), body)).await
    }

    /// Replaces the object as a whole, except its status. Fails with a conflict if it has changed.
    pub async fn update<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let target = Target::of::<K>(ObjectKey::of(object));
        let doing = || format!("update {}", target.described());
        let body = sendable(&doing, object.encode())?;
        let request = target.request().replace(target.name(), &self.params(), body);
        decode(&doing, &self.send(&doing, request).await?)
    }

    /// Writes `status` to the object. Fails with a conflict if the object has changed since it was observed.
    /// Sends no request if the status is the same, so a reconcile may always end with this call.
    pub async fn update_status<K, S>(&self, observed: &K, status: S) -> Result<()>
    where
        K: Object<DynamicType = ()>,
        S: Serialize,
    {
        let target = Target::of::<K>(ObjectKey::of(observed));
        let object = typed::to_value(observed);
        self.update_status_at(&target, object, serde_json::to_value(status)).await
    }

    async fn update_status_at(
        &self,
        target: &Target,
        observed: serde_json::Result<Value>,
        status: serde_json::Result<Value>,
    ) -> Result<()> {
        let doing = || format!("update the status of {}", target.described());
        let mut object = sendable(&doing, observed)?;
        let status = sendable(&doing, status)?;
        if object.get("status").unwrap_or(&Value::Null) == &status {
            return Ok(());
        }
        object["status"] = status;
        self.replace_at(&doing, target, "status", serde_json::to_vec(&object)).await.map(drop)
    }

    /// Writes the status of `object`, and the metadata that a status write accepts. Fails with a conflict if the
    /// object has changed since it was read.
    pub async fn replace_status<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let target = Target::of::<K>(ObjectKey::of(object));
        let doing = || format!("update the status of {}", target.described());
        decode(&doing, &self.replace_at(&doing, &target, "status", object.encode()).await?)
    }

    /// Updates a subresource, such as `namespaces/finalize`.
    pub async fn update_subresource<K>(&self, object: &K, subresource: &str) -> Result<K>
    where
        K: Object<DynamicType = ()>,
    {
        let target = Target::of::<K>(ObjectKey::of(object));
        let doing = || format!("update {}/{subresource} {}", target.plural, target.key);
        decode(&doing, &self.replace_at(&doing, &target, subresource, object.encode()).await?)
    }

    async fn replace_at(
        &self,
        doing: &Doing<'_>,
        target: &Target,
        subresource: &str,
        body: serde_json::Result<Vec<u8>>,
    ) -> Result<String> {
        let body = sendable(doing, body)?;
        let params = self.params();
        self.send(
            doing,
            target.request().replace_subresource(subresource, target.name(), &params, body),
        )
        .await
    }

    /// A JSON merge patch: `null` removes a field.
    pub async fn patch_merge<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<K> {
        let target = Target::of::<K>(key.clone());
        let doing = || format!("patch {}", target.described());
        decode(&doing, &self.patch_at(&doing, &target, &Patch::Merge(patch)).await?)
    }

    /// A strategic merge patch: lists with keys are merged, and `$patch` directives are followed.
    pub async fn patch_strategic<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<K> {
        let target = Target::of::<K>(key.clone());
        let doing = || format!("patch {}", target.described());
        decode(&doing, &self.patch_at(&doing, &target, &Patch::Strategic(patch)).await?)
    }

    async fn patch_at(
        &self,
        doing: &Doing<'_>,
        target: &Target,
        patch: &Patch<&Value>,
    ) -> Result<String> {
        self.send(doing, target.request().patch(target.name(), &self.patch_params(), patch)).await
    }

    /// A strategic merge patch of the status: lists with keys, such as conditions, are merged.
    pub async fn patch_status<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<Arc<K>> {
        let target = Target::of::<K>(key.clone());
        let doing = || format!("patch the status of {}", target.described());
        decode_shared(&doing, &self.patch_status_at(&doing, &target, patch).await?)
    }

    async fn patch_status_at(
        &self,
        doing: &Doing<'_>,
        target: &Target,
        patch: &Value,
    ) -> Result<String> {
        let (params, patch) = (self.patch_params(), Patch::Strategic(patch));
        self.send(
            doing,
            target.request().patch_subresource("status", target.name(), &params, &patch),
        )
        .await
    }

    /// Server-side apply; takes over fields from other managers. `object` contains only the fields to set.
    pub async fn apply<K>(&self, mut object: Value) -> Result<K>
    where
        K: Object<DynamicType = ()>,
    {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let meta = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let target = Target::of::<K>(ObjectKey::new(meta("namespace"), meta("name")));
        let doing = || format!("apply {}", target.described());
        decode(&doing, &self.apply_at(&doing, &target, &object).await?)
    }

    async fn apply_at(&self, doing: &Doing<'_>, target: &Target, object: &Value) -> Result<String> {
        let params = PatchParams {
            field_manager: Some(self.manager().unwrap_or("landfall").to_owned()),
            force: true,
            ..PatchParams::default()
        };
        self.send(doing, target.request().patch(target.name(), &params, &Patch::Apply(object)))
            .await
    }

    /// Returns the object if it still exists, because of its grace period or its finalizers.
    pub async fn delete<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Option<K>> {
        self.delete_of(&(), key, options).await
    }

    /// As [`Client::delete`], for a kind known only at run time.
    pub async fn delete_of<K: Object>(
        &self,
        kind: &K::DynamicType,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Option<K>> {
        let doing = || format!("delete {} {key}", K::plural(kind));
        let path = K::url_path(kind, key.scope());
        match self.delete_at(&doing, path, key.name(), options).await? {
            Some(object) => decode(&doing, &object).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the text of the object if it still exists.
    async fn delete_at(
        &self,
        doing: &Doing<'_>,
        path: String,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Option<String>> {
        #[derive(Deserialize)]
        struct Response<'a> {
            #[serde(borrow)]
            kind: Option<Cow<'a, str>>,
        }
        let response = self.send(doing, Request::new(path).delete(name, &options.params())).await?;
        let is_status = read::<Response<'_>>(doing, &response)?.kind.as_deref() == Some("Status");
        Ok((!is_status).then_some(response))
    }

    /// Evicts a pod. Fails with `is_too_many_requests` if a disruption budget forbids that now.
    pub async fn evict(&self, pod: &ObjectKey, options: &DeleteOptions) -> Result<()> {
        let doing = || format!("evict pods {pod}");
        // kube's own `evict` misspells `deleteOptions`, so servers ignore it.
        let eviction = json!({
            "apiVersion": api_version::<Eviction>(),
            "kind": "Eviction",
            "metadata": { "namespace": pod.namespace(), "name": pod.name() },
            "deleteOptions": options.params(),
        });
        let body = serde_json::to_vec(&eviction);
        self.post_at(&doing, &Target::of::<Pod>(pod.clone()), "eviction", body).await.map(drop)
    }

    /// Binds a pod to a node. Fails with a conflict if the pod has another UID than `uid`.
    pub async fn bind(&self, pod: &ObjectKey, uid: Option<&str>, node: &str) -> Result<()> {
        let doing = || format!("bind pods {pod} to node {node}");
        let mut binding = json!({
            "apiVersion": api_version::<Binding>(),
            "kind": "Binding",
            "metadata": { "namespace": pod.namespace(), "name": pod.name() },
            "target": { "kind": "Node", "name": node },
        });
        if let Some(uid) = uid {
            binding["metadata"]["uid"] = uid.into();
        }
        let body = serde_json::to_vec(&binding);
        self.post_at(&doing, &Target::of::<Pod>(pod.clone()), "binding", body).await.map(drop)
    }

    /// Posts to a subresource of an object. The object need not exist; that is up to the server.
    pub async fn post<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        subresource: &str,
        body: &impl Serialize,
    ) -> Result<Value> {
        let target = Target::of::<K>(key.clone());
        let doing = || format!("post to {}/{subresource} of {key}", target.plural);
        self.post_at(&doing, &target, subresource, serde_json::to_vec(body)).await
    }

    async fn post_at(
        &self,
        doing: &Doing<'_>,
        target: &Target,
        subresource: &str,
        body: serde_json::Result<Vec<u8>>,
    ) -> Result<Value> {
        let body = sendable(doing, body)?;
        let params = self.params();
        let request =
            target.request().create_subresource(subresource, target.name(), &params, body);
        read(doing, &self.send(doing, request).await?)
    }

    pub(crate) fn params(&self) -> PostParams {
        PostParams { field_manager: self.manager().map(str::to_owned), ..PostParams::default() }
    }

    pub(crate) fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: self.manager().map(str::to_owned), ..PatchParams::default() }
    }
}

/// Requests for many objects.
impl Client {
    /// Creates all objects, or stops after the first batch with an error and returns that error.
    ///
    /// Batches start small and double, so that few requests are sent if all are refused (for example by a quota).
    /// Upstream: `slowStartBatch`.
    pub async fn create_all<K: Object<DynamicType = ()>>(
        &self,
        objects: impl IntoIterator<Item = K>,
    ) -> Result<Vec<K>> {
        let mut left = objects.into_iter();
        let mut created = Vec::new();
        let mut size = SLOW_START;
        loop {
            let batch: Vec<K> = left.by_ref().take(size).collect();
            if batch.is_empty() {
                return Ok(created);
            }
            for response in join_all(batch.iter().map(|object| self.create(object))).await {
                created.push(response?);
            }
            size = (size * 2).min(CONCURRENT_MAX);
        }
    }

    /// Deletes exactly these objects. Objects that are gone or were replaced by others of the same name are not
    /// errors. Tries all of them and returns the first error.
    pub async fn delete_all<K: Object<DynamicType = ()>>(
        &self,
        objects: impl IntoIterator<Item = Arc<K>>,
    ) -> Result<()> {
        let mut left = objects.into_iter();
        let mut failed = None;
        loop {
            let batch: Vec<Arc<K>> = left.by_ref().take(CONCURRENT_MAX).collect();
            if batch.is_empty() {
                return failed.map_or(Ok(()), Err);
            }
            let deletes = batch.iter().map(|object| self.delete_one(object.as_ref()));
            for response in join_all(deletes).await {
                failed = failed.or(response.err());
            }
        }
    }

    async fn delete_one<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<()> {
        match self.delete::<K>(&ObjectKey::of(object), &DeleteOptions::only(object)).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn creating(target: &Target) -> String {
    match target.name() {
        "" => format!("create one of {} in {:?}", target.plural, target.key.namespace()),
        _ => format!("create {}", target.described()),
    }
}

fn api_version<K: k8s_openapi::Resource>() -> &'static str {
    K::API_VERSION
}

/// Turns an encoding error into [`Error::Unsendable`].
pub(crate) fn sendable<T>(doing: &Doing<'_>, encoded: serde_json::Result<T>) -> Result<T> {
    encoded.map_err(|error| Error::Unsendable { doing: doing(), why: error.to_string() })
}
