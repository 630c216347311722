//! How an object is laid out at rest, and what is read from it without decoding it whole.
//!
//! The stored bytes are what a GET returns: `{"kind":…,"apiVersion":…,"metadata":{"resourceVersion":
//! "…",…},…}` with every other key sorted. Kind and apiVersion stand first so that a list, whose
//! items do not repeat them, can take everything behind them; the resource version stands at
//! a known place because only the store knows it (decision 3 of the design).

use crate::fields;
use api::Kind;
use serde_json::{Value, json};
use std::sync::OnceLock;
use store::{Draft, Envelope};

pub(crate) type Store = store::Store<Index>;
pub(crate) type Object = store::Object<Index>;
pub(crate) type Event = store::Event<Index>;

/// An event on the wire is the object between these.
pub(crate) const ENVELOPE: Envelope = Envelope {
    created: b"{\"type\":\"ADDED\",\"object\":",
    updated: b"{\"type\":\"MODIFIED\",\"object\":",
    deleted: b"{\"type\":\"DELETED\",\"object\":",
    end: b"}\n",
};

/// What selectors and lists want to know of an object; read from its bytes when first asked for.
pub(crate) struct Index {
    meta: OnceLock<Meta>,
    /// The values of the kind's selectable fields. A resource with two views (events) has two
    /// lists of fields: the stored view's and the other's.
    fields: [OnceLock<Vec<String>>; 2],
}

#[derive(serde::Deserialize, Default)]
struct Head {
    #[serde(default)]
    metadata: Meta,
}

#[derive(serde::Deserialize, Default, Clone)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) uid: String,
    pub(crate) labels: std::collections::BTreeMap<String, String>,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) creation_timestamp: String,
}

impl store::Index for Index {
    fn read(_collection: &str, _name: &str, _bytes: &[u8]) -> Self {
        Index { meta: OnceLock::new(), fields: [const { OnceLock::new() }; 2] }
    }
}

/// The questions asked of stored objects.
pub(crate) trait Stored {
    fn meta(&self) -> &Meta;
    /// The decoded object. Of one that nests too deep to be read, what says which it is and whether it
    /// may go: who looks through many objects is not stopped by one.
    fn value(&self) -> Value;
    /// The decoded object, if all of it can be read.
    fn whole(&self) -> Option<Value>;
    fn label(&self, key: &str) -> Option<&str>;
    /// The value of a field selector's field.
    fn field(&self, kind: &Kind, field: &str) -> Option<&str>;
    /// `(namespace, name)`; the namespace is empty for cluster-scoped objects.
    fn place(&self) -> (&str, &str);
}

impl Stored for Object {
    fn meta(&self) -> &Meta {
        self.index().meta.get_or_init(|| {
            serde_json::from_slice::<Head>(&self.bytes()).unwrap_or_default().metadata
        })
    }

    fn value(&self) -> Value {
        self.whole().unwrap_or_else(|| outline(self))
    }

    fn whole(&self) -> Option<Value> {
        let read = serde_json::from_slice(&self.bytes());
        read.inspect_err(
            |error| tracing::error!(name = self.name(), %error, "an object cannot be read"),
        )
        .ok()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.meta().labels.get(key).map(String::as_str)
    }

    fn field(&self, kind: &Kind, field: &str) -> Option<&str> {
        let (namespace, name) = self.place();
        match field {
            "metadata.name" => Some(name),
            "metadata.namespace" => Some(namespace),
            _ => {
                let at = kind.rules.fields.iter().position(|(known, _)| *known == field)?;
                let same = api::convert::is_identity(kind);
                let values = self.index().fields[usize::from(!same)].get_or_init(|| {
                    let parts = same.then(|| fields::named(kind, &self.bytes())).flatten();
                    let object =
                        parts.unwrap_or_else(|| api::convert::from_storage(kind, &self.value()));
                    kind.rules.fields.iter().map(|(_, read)| read(&object)).collect()
                });
                values.get(at).map(String::as_str)
            }
        }
    }

    fn place(&self) -> (&str, &str) {
        self.name().split_once('/').unwrap_or(("", self.name()))
    }
}

/// Deeper objects are not stored: what stands in them stands deeper still in a list, in a table's row
/// or in an event, and who reads JSON with serde reads 127 levels.
pub(crate) const DEPTH_MAX: usize = 120;

pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Kind and metadata. Earlier versions stored objects deeper than they could read.
fn outline(object: &Object) -> Value {
    #[derive(serde::Deserialize)]
    struct Outline {
        kind: Value,
        #[serde(rename = "apiVersion")]
        api_version: Value,
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    struct Metadata {
        #[serde(rename = "managedFields", default)]
        _managed: serde::de::IgnoredAny,
        #[serde(flatten)]
        rest: serde_json::Map<String, Value>,
    }
    match serde_json::from_slice::<Outline>(&object.bytes()) {
        Ok(Outline { kind, api_version, metadata }) => {
            json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata.rest })
        }
        Err(_) => {
            let (namespace, name) = object.place();
            json!({ "metadata": { "namespace": namespace, "name": name } })
        }
    }
}

/// The name under which the store keeps an object.
pub(crate) fn store_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// The object with its type in front and a gap where the resource version will be.
pub(crate) fn draft(kind: &Kind, object: &Value) -> Draft {
    let mut bytes = Vec::with_capacity(2048);
    bytes.extend_from_slice(b"{\"kind\":");
    write(&mut bytes, &kind.kind);
    bytes.extend_from_slice(b",\"apiVersion\":");
    write(&mut bytes, &stored_version(kind));
    bytes.extend_from_slice(b",\"metadata\":{\"resourceVersion\":\"");
    let revision_at = bytes.len();
    bytes.push(b'"');
    if let Some(Value::Object(metadata)) = object.get("metadata") {
        for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
            write_field(&mut bytes, key, value);
        }
    }
    bytes.push(b'}');
    if let Value::Object(fields) = object {
        let own = |key: &str| matches!(key, "kind" | "apiVersion" | "metadata");
        for (key, value) in fields.iter().filter(|(key, _)| !own(key)) {
            write_field(&mut bytes, key, value);
        }
    }
    bytes.push(b'}');
    Draft { bytes, revision_at }
}

fn stored_version(kind: &Kind) -> String {
    if kind.storage.group.is_empty() {
        kind.storage.version.clone()
    } else {
        format!("{}/{}", kind.storage.group, kind.storage.version)
    }
}

fn write(bytes: &mut Vec<u8>, value: &impl serde::Serialize) {
    serde_json::to_writer(bytes, value).expect("writing JSON to memory");
}

fn write_field(bytes: &mut Vec<u8>, key: &str, value: &Value) {
    bytes.push(b',');
    write(bytes, &key);
    bytes.push(b':');
    write(bytes, value);
}

/// `{"kind":"Pod","apiVersion":"v1",`: how the stored bytes of a kind begin. Names of kinds and
/// versions need no escapes.
pub(crate) fn type_prefix(kind: &Kind) -> String {
    format!("{{\"kind\":\"{}\",\"apiVersion\":\"{}\",", kind.kind, kind.api_version())
}

/// The text of a stored object's metadata.
pub(crate) fn metadata(stored: &[u8]) -> Option<&[u8]> {
    const KEY: &[u8] = b",\"metadata\":";
    let at = stored.windows(KEY.len()).position(|text| text == KEY)? + KEY.len();
    let rest = &stored[at..];
    let mut values =
        serde_json::Deserializer::from_slice(rest).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    rest.get(..values.byte_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod_kind() -> std::sync::Arc<Kind> {
        api::Registry::built_in().resource("", "v1", "pods").unwrap().clone()
    }

    #[test]
    fn the_resource_version_fits_into_its_gap() {
        let kind = pod_kind();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "resourceVersion": "7"}, "spec": {}});
        let Draft { mut bytes, revision_at } = draft(&kind, &pod);
        bytes.splice(revision_at..revision_at, *b"42");
        let read: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read["metadata"], json!({"name": "a", "resourceVersion": "42"}));
        assert_eq!(read["kind"], "Pod");
    }

    #[test]
    fn a_27_what_follows_the_type_is_an_item_of_a_list() {
        let kind = pod_kind();
        let Draft { bytes, .. } = draft(&kind, &json!({"metadata": {"name": "a"}, "spec": {}}));
        let item = bytes.strip_prefix(type_prefix(&kind).as_bytes()).unwrap();
        let read: Value = serde_json::from_slice(&[b"{", item].concat()).unwrap();
        assert_eq!(read, json!({"metadata": {"name": "a", "resourceVersion": ""}, "spec": {}}));
    }

    /// A-21, for watches
    #[test]
    fn the_metadata_is_cut_out_whole_whatever_its_strings_look_like() {
        let metadata = json!({
            "annotations": {"a": "}],\\\"metadata\\\":{"},
            "name": "a",
            "resourceVersion": "",
        });
        let pod = json!({"metadata": metadata, "spec": {"metadata": {"name": "b"}}});
        let Draft { bytes, .. } = draft(&pod_kind(), &pod);
        let cut: Value = serde_json::from_slice(super::metadata(&bytes).unwrap()).unwrap();
        assert_eq!(cut, metadata);
        assert_eq!(super::metadata(b"{}"), None);
    }
}
