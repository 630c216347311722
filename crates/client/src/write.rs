//! Writing: create, update, patch, apply, delete, evict, bind; one object, or many at once.
//!
//! Not here: when to try again. A controller returns the error, and its queue waits.

use crate::{Client, Error, Object, ObjectKey, Result};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Binding, Pod};
use k8s_openapi::api::policy::v1::Eviction;
use kube::core::Request;
use kube::core::params::{
    DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;

/// How many requests [`Client::create_all`] and [`Client::delete_all`] have in flight at most.
pub const CONCURRENT_MAX: usize = 64;

/// The first batch of [`Client::create_all`]. Upstream: `SlowStartInitialBatchSize`.
const SLOW_START: usize = 1;

/// How to delete. The default asks for nothing in particular: the kind decides.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeleteOptions {
    pub grace_seconds: Option<u32>,
    /// Only this very object, not another one that has got its name since.
    pub uid: Option<String>,
    /// Only if it is still as it was read.
    pub resource_version: Option<String>,
    pub propagation: Option<Propagation>,
}

/// What becomes of the objects that the deleted one owns.
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

    /// Only the very object that was looked at.
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
        let asked = uid.is_some() || resource_version.is_some();
        DeleteParams {
            grace_period_seconds: self.grace_seconds,
            preconditions: asked.then_some(Preconditions { uid, resource_version }),
            propagation_policy: self.propagation.map(|propagation| match propagation {
                Propagation::Orphan => PropagationPolicy::Orphan,
                Propagation::Background => PropagationPolicy::Background,
                Propagation::Foreground => PropagationPolicy::Foreground,
            }),
            ..DeleteParams::default()
        }
    }
}

/// One object at a time.
impl Client {
    pub async fn create<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let key = ObjectKey::of(object);
        let doing = || match key.name() {
            "" => format!("create one of {} in {:?}", K::plural(&()), key.namespace()),
            _ => format!("create {} {key}", K::plural(&())),
        };
        let body = encode(doing, object)?;
        self.ask(doing, at::<K>(&key).create(&self.params(), body)).await
    }

    /// The same for an object that was never anything but JSON, and of which nothing needs to be known
    /// after that.
    pub(crate) async fn create_plain<K>(&self, key: &ObjectKey, mut object: Value) -> Result<()>
    where
        K: Object<DynamicType = ()>,
    {
        let doing = || format!("create {} {key}", K::plural(&()));
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let request = at::<K>(key).create(&self.params(), encode(doing, &object)?);
        self.ask::<IgnoredAny>(doing, request).await.map(drop)
    }

    /// Replaces the object as a whole, except its status. Fails with a conflict if it has changed.
    pub async fn update<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let key = ObjectKey::of(object);
        let doing = || format!("update {} {key}", K::plural(&()));
        let body = encode(doing, object)?;
        self.ask(doing, at::<K>(&key).replace(key.name(), &self.params(), body)).await
    }

    /// Writes `status` into the object that was observed; a conflict if it has changed since.
    /// Writes nothing if that is its status already, so that a reconcile may always end with this.
    pub async fn update_status<K, S>(&self, observed: &K, status: S) -> Result<()>
    where
        K: Object<DynamicType = ()>,
        S: Serialize,
    {
        let key = ObjectKey::of(observed);
        let doing = || format!("update the status of {} {key}", K::plural(&()));
        let unsendable =
            |e: serde_json::Error| Error::Unsendable { doing: doing(), why: e.to_string() };
        let status = serde_json::to_value(status).map_err(unsendable)?;
        let mut object = serde_json::to_value(observed).map_err(unsendable)?;
        if object.get("status").unwrap_or(&Value::Null) == &status {
            return Ok(());
        }
        object["status"] = status;
        let body = encode(doing, &object)?;
        let request = at::<K>(&key).replace_subresource("status", key.name(), &self.params(), body);
        self.ask::<K>(doing, request).await.map(drop)
    }

    /// Writes the object's status, and what a status write takes of its metadata, as it is in
    /// `object`. A conflict if it has changed since it was read.
    pub async fn replace_status<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let key = ObjectKey::of(object);
        let doing = || format!("update the status of {} {key}", K::plural(&()));
        let body = encode(doing, object)?;
        let request = at::<K>(&key).replace_subresource("status", key.name(), &self.params(), body);
        self.ask(doing, request).await
    }

    /// A JSON merge patch: `null` removes.
    pub async fn patch_merge<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<K> {
        let doing = || format!("patch {} {key}", K::plural(&()));
        let request = at::<K>(key).patch(key.name(), &self.patch_params(), &Patch::Merge(patch));
        self.ask(doing, request).await
    }

    /// A strategic merge patch: lists with keys are merged, and `$patch` directives are followed.
    pub async fn patch_strategic<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<K> {
        let doing = || format!("patch {} {key}", K::plural(&()));
        let patch = Patch::Strategic(patch);
        let request = at::<K>(key).patch(key.name(), &self.patch_params(), &patch);
        self.ask(doing, request).await
    }

    /// A strategic merge patch of the status: lists with keys, such as conditions, are merged.
    pub async fn patch_status<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<Arc<K>> {
        let doing = || format!("patch the status of {} {key}", K::plural(&()));
        let patch = Patch::Strategic(patch);
        let request =
            at::<K>(key).patch_subresource("status", key.name(), &self.patch_params(), &patch);
        self.ask_shared(doing, request).await
    }

    /// Server-side apply, taking fields from whoever had them. `object` is what we have an opinion
    /// on: a `Value`, or a typed object with the rest left out.
    pub async fn apply<K>(&self, object: &impl Serialize) -> Result<K>
    where
        K: Object<DynamicType = ()>,
    {
        let doing = || format!("apply one of {}", K::plural(&()));
        let unsendable = |why: String| Error::Unsendable { doing: doing(), why };
        let mut wanted = serde_json::to_value(object).map_err(|e| unsendable(e.to_string()))?;
        let fields = wanted.as_object_mut().ok_or_else(|| unsendable("it is no object".into()))?;
        fields.insert("apiVersion".into(), K::api_version(&()).into());
        fields.insert("kind".into(), K::kind(&()).into());
        let meta = |field: &str| wanted["metadata"][field].as_str().unwrap_or_default();
        let key = ObjectKey::new(meta("namespace"), meta("name"));
        let doing = || format!("apply {} {key}", K::plural(&()));
        let params = PatchParams {
            field_manager: Some(self.manager().unwrap_or("landfall").to_owned()),
            force: true,
            ..PatchParams::default()
        };
        self.ask(doing, at::<K>(&key).patch(key.name(), &params, &Patch::Apply(&wanted))).await
    }

    /// `Some` with the object as it is now if it stays for a while: for its grace period, or for
    /// its finalizers.
    pub async fn delete<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Option<K>> {
        self.delete_of(&(), key, options).await
    }

    /// As [`Client::delete`], of a kind known at run time only.
    pub async fn delete_of<K: Object>(
        &self,
        kind: &K::DynamicType,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Option<K>> {
        let doing = || format!("delete {} {key}", K::plural(kind));
        let request = Request::new(K::url_path(kind, key.place()));
        let answer: Value = self.ask(doing, request.delete(key.name(), &options.params())).await?;
        if answer["kind"] == "Status" && K::kind(kind) != "Status" {
            return Ok(None);
        }
        let object = serde_json::from_value(answer);
        object.map(Some).map_err(|error| Error::from_kube(doing(), kube::Error::SerdeError(error)))
    }

    /// Deletes a pod, unless its disruption budget forbids that now (`is_too_many_requests`).
    pub async fn evict(&self, pod: &ObjectKey, options: &DeleteOptions) -> Result<()> {
        let doing = || format!("evict pods {pod}");
        // kube's own `evict` spells `deleteOptions` in a way that servers do not read.
        let eviction = json!({
            "apiVersion": api_version::<Eviction>(),
            "kind": "Eviction",
            "metadata": { "namespace": pod.namespace(), "name": pod.name() },
            "deleteOptions": options.params(),
        });
        let body = encode(doing, &eviction)?;
        let request =
            at::<Pod>(pod).create_subresource("eviction", pod.name(), &self.params(), body);
        self.ask::<Value>(doing, request).await.map(drop)
    }

    /// Gives a pod to a node, once and for all. `uid`, if given, says which pod was meant.
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
        let body = encode(doing, &binding)?;
        let request =
            at::<Pod>(pod).create_subresource("binding", pod.name(), &self.params(), body);
        self.ask::<Value>(doing, request).await.map(drop)
    }

    /// Posts to a subresource of an object, which need not be there: the server knows what it means.
    pub async fn post<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        subresource: &str,
        body: &impl Serialize,
    ) -> Result<Value> {
        let doing = || format!("post to {}/{subresource} of {key}", K::plural(&()));
        let unsendable =
            |e: serde_json::Error| Error::Unsendable { doing: doing(), why: e.to_string() };
        let body = serde_json::to_vec(body).map_err(unsendable)?;
        let params = self.params();
        let request = at::<K>(key).create_subresource(subresource, key.name(), &params, body);
        self.ask(doing, request).await
    }

    pub(crate) fn params(&self) -> PostParams {
        PostParams { field_manager: self.manager().map(str::to_owned), ..PostParams::default() }
    }

    pub(crate) fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: self.manager().map(str::to_owned), ..PatchParams::default() }
    }
}

/// Many at once.
impl Client {
    /// Creates all of them, or stops after the first batch with an error and returns that.
    ///
    /// Batches start small and double: if every create is refused (by a quota, say), few are tried.
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
            for answer in join_all(batch.iter().map(|object| self.create(object))).await {
                created.push(answer?);
            }
            size = (size * 2).min(CONCURRENT_MAX);
        }
    }

    /// Deletes exactly these objects: gone is fine, and so is a name that another object has now.
    /// Tries all of them, and returns the first error if there was one.
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
            for answer in join_all(deletes).await {
                failed = failed.or(answer.err());
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

fn at<K: Object<DynamicType = ()>>(key: &ObjectKey) -> Request {
    Request::new(K::url_path(&(), key.place()))
}

fn api_version<K: k8s_openapi::Resource>() -> &'static str {
    K::API_VERSION
}

pub(crate) fn encode(
    doing: impl Fn() -> String,
    object: &(impl Serialize + Debug),
) -> Result<Vec<u8>> {
    serde_json::to_vec(object)
        .map_err(|error| Error::Unsendable { doing: doing(), why: error.to_string() })
}
