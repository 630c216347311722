//! Reading: one object, or many. What is read often is read from a [`crate::Cache`] instead.

use crate::{Client, Object, ObjectKey, Result};
use kube::core::params::{GetParams, ListParams, WatchParams};
use kube::core::{ObjectList, Request};

/// How many objects are asked for at once; client-go's default.
const LIST_PAGE: u32 = 500;

/// Which objects of a kind. The default is all of them, in all namespaces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    pub namespace: Option<String>,
    pub labels: Option<String>,
    pub fields: Option<String>,
}

impl Selection {
    pub fn namespace(namespace: &str) -> Self {
        Selection { namespace: Some(namespace.to_owned()), ..Selection::default() }
    }

    pub fn labels(mut self, selector: &str) -> Self {
        self.labels = Some(selector.to_owned());
        self
    }

    pub fn fields(mut self, selector: &str) -> Self {
        self.fields = Some(selector.to_owned());
        self
    }

    pub(crate) fn list_params(&self, continue_token: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit: Some(LIST_PAGE),
            continue_token,
            ..ListParams::default()
        }
    }

    pub(crate) fn watch_params(&self, seconds: u32) -> WatchParams {
        WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(seconds),
            bookmarks: true,
            ..WatchParams::default()
        }
    }
}

/// What was there at one moment, and which moment: a watch goes on from `version`.
pub(crate) struct Snapshot<K> {
    pub(crate) items: Vec<K>,
    pub(crate) version: String,
}

impl Client {
    pub async fn get<K: Object<DynamicType = ()>>(&self, key: &ObjectKey) -> Result<K> {
        let request = Request::new(K::url_path(&(), key.place()));
        let doing = || format!("get {} {key}", K::plural(&()));
        self.ask(doing, request.get(key.name(), &GetParams::default())).await
    }

    /// `None` if there is no such object.
    pub async fn find<K: Object<DynamicType = ()>>(&self, key: &ObjectKey) -> Result<Option<K>> {
        match self.get(key).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects that match, as of one moment.
    pub async fn list<K: Object<DynamicType = ()>>(&self, which: &Selection) -> Result<Vec<K>> {
        Ok(self.snapshot(&(), which, false).await?.items)
    }

    pub(crate) async fn snapshot<K: Object>(
        &self,
        kind: &K::DynamicType,
        which: &Selection,
        metadata_only: bool,
    ) -> Result<Snapshot<K>> {
        let request = Request::new(K::url_path(kind, which.namespace.as_deref()));
        let doing = || format!("list {}", K::plural(kind));
        let mut items = Vec::new();
        let mut next = None;
        loop {
            let params = which.list_params(next);
            let page = match metadata_only {
                true => request.list_metadata(&params),
                false => request.list(&params),
            };
            let page: ObjectList<K> = self.ask(doing, page).await?;
            items.extend(page.items);
            next = page.metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                let version = page.metadata.resource_version.unwrap_or_default();
                return Ok(Snapshot { items, version });
            }
        }
    }
}
