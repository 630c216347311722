//! Writing: create, update, patch, apply, delete, evict, bind; one object, or many at once.
//!
//! Not here: when to try again. A controller returns the error, and its queue waits.

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

/// Where a write goes, without the Rust type of the kind: what is compiled once does not need it.
struct Place {
    plural: Cow<'static, str>,
    path: String,
    key: ObjectKey,
}

impl Place {
    fn of<K: Object<DynamicType = ()>>(key: ObjectKey) -> Place {
        Place { plural: K::plural(&()), path: K::url_path(&(), key.place()), key }
    }

    fn request(&self) -> Request {
        Request::new(&self.path)
    }

    fn name(&self) -> &str {
        self.key.name()
    }

    /// `plural namespace/name`, as errors have it.
    fn described(&self) -> String {
        format!("{} {}", self.plural, self.key)
    }
}

/// One object at a time.
impl Client {
    pub async fn create<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let place = Place::of::<K>(ObjectKey::of(object));
        let answer = self.create_at(&place, object.encode()).await?;
        decode(&|| creating(&place), &answer)
    }

    /// The same for an object that was never anything but JSON, and of which nothing needs to be known
    /// after that.
    pub(crate) async fn create_plain<K>(&self, key: &ObjectKey, mut object: Value) -> Result<()>
    where
        K: Object<DynamicType = ()>,
    {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let place = Place::of::<K>(key.clone());
        self.create_at(&place, serde_json::to_vec(&object)).await.map(drop)
    }

    async fn create_at(&self, place: &Place, body: serde_json::Result<Vec<u8>>) -> Result<String> {
        let doing = || creating(place);
        let body = sendable(&doing, body)?;
        self.send(&doing, place.request().create(&self.params(), body)).await
    }

    /// Replaces the object as a whole, except its status. Fails with a conflict if it has changed.
    pub async fn update<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let place = Place::of::<K>(ObjectKey::of(object));
        let doing = || format!("update {}", place.described());
        let body = sendable(&doing, object.encode())?;
        let request = place.request().replace(place.name(), &self.params(), body);
        decode(&doing, &self.send(&doing, request).await?)
    }

    /// Writes `status` into the object that was observed; a conflict if it has changed since.
    /// Writes nothing if that is its status already, so that a reconcile may always end with this.
    pub async fn update_status<K, S>(&self, observed: &K, status: S) -> Result<()>
    where
        K: Object<DynamicType = ()>,
        S: Serialize,
    {
        let place = Place::of::<K>(ObjectKey::of(observed));
        let object = typed::to_value(observed);
        self.update_status_at(&place, object, serde_json::to_value(status)).await
    }

    async fn update_status_at(
        &self,
        place: &Place,
        observed: serde_json::Result<Value>,
        status: serde_json::Result<Value>,
    ) -> Result<()> {
        let doing = || format!("update the status of {}", place.described());
        let mut object = sendable(&doing, observed)?;
        let status = sendable(&doing, status)?;
        if object.get("status").unwrap_or(&Value::Null) == &status {
            return Ok(());
        }
        object["status"] = status;
        self.replace_at(&doing, place, "status", serde_json::to_vec(&object)).await.map(drop)
    }

    /// Writes the object's status, and what a status write takes of its metadata, as it is in
    /// `object`. A conflict if it has changed since it was read.
    pub async fn replace_status<K: Object<DynamicType = ()>>(&self, object: &K) -> Result<K> {
        let place = Place::of::<K>(ObjectKey::of(object));
        let doing = || format!("update the status of {}", place.described());
        decode(&doing, &self.replace_at(&doing, &place, "status", object.encode()).await?)
    }

    /// Replaces what a subresource stands for, such as `namespaces/finalize`.
    pub async fn update_subresource<K>(&self, object: &K, subresource: &str) -> Result<K>
    where
        K: Object<DynamicType = ()>,
    {
        let place = Place::of::<K>(ObjectKey::of(object));
        let doing = || format!("update {}/{subresource} {}", place.plural, place.key);
        decode(&doing, &self.replace_at(&doing, &place, subresource, object.encode()).await?)
    }

    async fn replace_at(
        &self,
        doing: &Doing<'_>,
        place: &Place,
        subresource: &str,
        body: serde_json::Result<Vec<u8>>,
    ) -> Result<String> {
        let body = sendable(doing, body)?;
        let params = self.params();
        self.send(
            doing,
            place.request().replace_subresource(subresource, place.name(), &params, body),
        )
        .await
    }

    /// A JSON merge patch: `null` removes.
    pub async fn patch_merge<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<K> {
        let place = Place::of::<K>(key.clone());
        let doing = || format!("patch {}", place.described());
        decode(&doing, &self.patch_at(&doing, &place, &Patch::Merge(patch)).await?)
    }

    /// A strategic merge patch: lists with keys are merged, and `$patch` directives are followed.
    pub async fn patch_strategic<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<K> {
        let place = Place::of::<K>(key.clone());
        let doing = || format!("patch {}", place.described());
        decode(&doing, &self.patch_at(&doing, &place, &Patch::Strategic(patch)).await?)
    }

    async fn patch_at(
        &self,
        doing: &Doing<'_>,
        place: &Place,
        patch: &Patch<&Value>,
    ) -> Result<String> {
        self.send(doing, place.request().patch(place.name(), &self.patch_params(), patch)).await
    }

    /// A strategic merge patch of the status: lists with keys, such as conditions, are merged.
    pub async fn patch_status<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<Arc<K>> {
        let place = Place::of::<K>(key.clone());
        let doing = || format!("patch the status of {}", place.described());
        decode_shared(&doing, &self.patch_status_at(&doing, &place, patch).await?)
    }

    async fn patch_status_at(
        &self,
        doing: &Doing<'_>,
        place: &Place,
        patch: &Value,
    ) -> Result<String> {
        let (params, patch) = (self.patch_params(), Patch::Strategic(patch));
        self.send(doing, place.request().patch_subresource("status", place.name(), &params, &patch))
            .await
    }

    /// Server-side apply, taking ownership of fields from other managers. `object` contains only
    /// the fields to set.
    pub async fn apply<K>(&self, mut object: Value) -> Result<K>
    where
        K: Object<DynamicType = ()>,
    {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let meta = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let place = Place::of::<K>(ObjectKey::new(meta("namespace"), meta("name")));
        let doing = || format!("apply {}", place.described());
        decode(&doing, &self.apply_at(&doing, &place, &object).await?)
    }

    async fn apply_at(&self, doing: &Doing<'_>, place: &Place, object: &Value) -> Result<String> {
        let params = PatchParams {
            field_manager: Some(self.manager().unwrap_or("landfall").to_owned()),
            force: true,
            ..PatchParams::default()
        };
        self.send(doing, place.request().patch(place.name(), &params, &Patch::Apply(object))).await
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
        let path = K::url_path(kind, key.place());
        match self.delete_at(&doing, path, key.name(), options).await? {
            Some(object) => decode(&doing, &object).map(Some),
            None => Ok(None),
        }
    }

    /// The text of the object if it is still there.
    async fn delete_at(
        &self,
        doing: &Doing<'_>,
        path: String,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Option<String>> {
        #[derive(Deserialize)]
        struct Answer<'a> {
            #[serde(borrow)]
            kind: Option<Cow<'a, str>>,
        }
        let answer = self.send(doing, Request::new(path).delete(name, &options.params())).await?;
        let is_status = read::<Answer<'_>>(doing, &answer)?.kind.as_deref() == Some("Status");
        Ok((!is_status).then_some(answer))
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
        let body = serde_json::to_vec(&eviction);
        self.post_at(&doing, &Place::of::<Pod>(pod.clone()), "eviction", body).await.map(drop)
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
        let body = serde_json::to_vec(&binding);
        self.post_at(&doing, &Place::of::<Pod>(pod.clone()), "binding", body).await.map(drop)
    }

    /// Posts to a subresource of an object, which need not be there: the server knows what it means.
    pub async fn post<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        subresource: &str,
        body: &impl Serialize,
    ) -> Result<Value> {
        let place = Place::of::<K>(key.clone());
        let doing = || format!("post to {}/{subresource} of {key}", place.plural);
        self.post_at(&doing, &place, subresource, serde_json::to_vec(body)).await
    }

    async fn post_at(
        &self,
        doing: &Doing<'_>,
        place: &Place,
        subresource: &str,
        body: serde_json::Result<Vec<u8>>,
    ) -> Result<Value> {
        let body = sendable(doing, body)?;
        let params = self.params();
        let request = place.request().create_subresource(subresource, place.name(), &params, body);
        read(doing, &self.send(doing, request).await?)
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

fn creating(place: &Place) -> String {
    match place.name() {
        "" => format!("create one of {} in {:?}", place.plural, place.key.namespace()),
        _ => format!("create {}", place.described()),
    }
}

fn api_version<K: k8s_openapi::Resource>() -> &'static str {
    K::API_VERSION
}

/// What was encoded, or that it cannot be sent.
pub(crate) fn sendable<T>(doing: &Doing<'_>, encoded: serde_json::Result<T>) -> Result<T> {
    encoded.map_err(|error| Error::Unsendable { doing: doing(), why: error.to_string() })
}
