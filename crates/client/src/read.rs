//! Read requests: get and list. For frequent reads use a [`crate::Cache`].

use crate::client::{Doing, decode, read, unreadable};
use crate::{Client, Object, ObjectKey, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::Request;
use kube::core::params::{GetParams, ListParams, WatchParams};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Page size of lists; client-go's default.
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

/// One page of a list. Items stay text, because each is decoded on its own.
#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// Called with the text of each item.
pub(crate) type EachItem<'a> = dyn FnMut(&str) -> serde_json::Result<()> + Send + 'a;

impl Client {
    pub async fn get<K: Object<DynamicType = ()>>(&self, key: &ObjectKey) -> Result<K> {
        let doing = || format!("get {} {key}", K::plural(&()));
        let path = K::url_path(&(), key.scope());
        decode(&doing, &self.get_text(&doing, path, key.name()).await?)
    }

    async fn get_text(&self, doing: &Doing<'_>, path: String, name: &str) -> Result<String> {
        self.send(doing, Request::new(path).get(name, &GetParams::default())).await
    }

    /// `None` if there is no such object.
    pub async fn find<K: Object<DynamicType = ()>>(&self, key: &ObjectKey) -> Result<Option<K>> {
        match self.get(key).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects that match, at one revision.
    pub async fn list<K: Object<DynamicType = ()>>(&self, which: &Selection) -> Result<Vec<K>> {
        self.list_of(&(), which, false).await
    }

    pub(crate) async fn list_of<K: Object>(
        &self,
        kind: &K::DynamicType,
        which: &Selection,
        metadata_only: bool,
    ) -> Result<Vec<K>> {
        let mut objects = Vec::new();
        let mut add = |item: &str| {
            objects.push(K::decode(item)?);
            Ok(())
        };
        let path = K::url_path(kind, which.namespace.as_deref());
        self.list_items(&path, &K::plural(kind), which, metadata_only, &mut add).await?;
        Ok(objects)
    }

    /// Lists page by page and returns the resource version of the list, from which a watch can continue.
    pub(crate) async fn list_items(
        &self,
        path: &str,
        plural: &str,
        which: &Selection,
        metadata_only: bool,
        each: &mut EachItem<'_>,
    ) -> Result<String> {
        let request = Request::new(path);
        let doing = || format!("list {plural}");
        let mut next = None;
        loop {
            let params = which.list_params(next);
            let page = match metadata_only {
                true => request.list_metadata(&params),
                false => request.list(&params),
            };
            let text = self.send_through(self.reader(), &doing, page).await?;
            let page: Page<'_> = read(&doing, &text)?;
            for item in page.items.into_iter().flatten() {
                each(item.get()).map_err(|error| unreadable(&doing, error))?;
            }
            next = page.metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(page.metadata.resource_version.unwrap_or_default());
            }
        }
    }
}
