//! The layout of stored objects, and reading parts of them without decoding the whole.
//!
//! The stored bytes are what a GET returns: `{"kind":…,"apiVersion":…,"metadata":{"resourceVersion":"…",…},…}` with all
//! other keys sorted. Kind and apiVersion come first, so that a list, whose items do not repeat them (A-27), can use the
//! rest. The position of the resource version is known, because the store inserts it (docs/decisions/0003).

use crate::fields;
use api::Kind;
use api::selector::FieldSelector;
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, OnceLock};
use store::{Draft, Envelope};

pub(crate) type Store = store::Store<Index>;
pub(crate) type Object = store::Object<Index>;
pub(crate) type Event = store::Event<Index>;

/// An event on the wire is the object between these (A-30).
pub(crate) const ENVELOPE: Envelope = Envelope {
    created: b"{\"type\":\"ADDED\",\"object\":",
    updated: b"{\"type\":\"MODIFIED\",\"object\":",
    deleted: b"{\"type\":\"DELETED\",\"object\":",
    end: b"}\n",
};

/// What selectors and lists need of an object; read from its bytes when first used.
pub(crate) struct Index {
    meta: OnceLock<Meta>,
    /// The node of a pod, or an empty string. Read at once, because it is the partition key of pods: every node watches
    /// its own pods.
    node: Option<Arc<str>>,
    /// The values of the kind's selectable fields. A resource with two versions (events) has two lists: for the stored
    /// version and the other.
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
    fn read(collection: &str, _name: &str, bytes: &[u8]) -> Self {
        let node = (collection == PODS).then(|| node_of(bytes));
        Index { meta: OnceLock::new(), node, fields: [const { OnceLock::new() }; 2] }
    }

    fn partition_key(&self) -> Option<&Arc<str>> {
        self.node.as_ref().filter(|node| !node.is_empty())
    }

    fn is_leaving(bytes: &[u8]) -> bool {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Leaving {
            deletion_timestamp: Option<serde::de::IgnoredAny>,
        }
        let read = metadata(bytes).and_then(|text| serde_json::from_slice::<Leaving>(text).ok());
        read.is_some_and(|read| read.deletion_timestamp.is_some())
    }
}

const PODS: &str = "pods";
const NODE_FIELD: &str = "spec.nodeName";

/// The key of the partition that contains everything that a selector can match, if there is one.
pub(crate) fn partition_key<'a>(collection: &str, fields: &'a FieldSelector) -> Option<&'a str> {
    let node = fields.exact(NODE_FIELD).filter(|node| !node.is_empty());
    node.filter(|_| collection == PODS)
}

/// Reads as little as possible, because this runs for every stored version of a pod.
fn node_of(bytes: &[u8]) -> Arc<str> {
    #[derive(serde::Deserialize, Default)]
    struct Pod<'a> {
        #[serde(borrow, default)]
        spec: Spec<'a>,
    }
    #[derive(serde::Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec<'a> {
        #[serde(borrow)]
        node_name: std::borrow::Cow<'a, str>,
    }
    serde_json::from_slice::<Pod>(bytes).unwrap_or_default().spec.node_name.into()
}

/// Reads stored objects.
pub(crate) trait Stored {
    fn meta(&self) -> &Meta;
    /// The decoded object. If it is nested too deeply to decode, only kind and metadata, so that one such object does not
    /// stop a task that reads many.
    fn value(&self) -> Value;
    /// The decoded object, if it can be decoded completely.
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
        self.whole().unwrap_or_else(|| partial_object(self))
    }

    fn whole(&self) -> Option<Value> {
        let read = serde_json::from_slice(&self.bytes());
        read.inspect_err(
            |error| tracing::error!(name = self.name(), %error, "decoding a stored object failed"),
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
            NODE_FIELD if self.index().node.is_some() => self.index().node.as_deref(),
            _ => {
                let selectable = rules::of(kind).fields;
                let at = selectable.iter().position(|(known, _)| *known == field)?;
                let same = rules::convert::is_identity(kind);
                let values = self.index().fields[usize::from(!same)].get_or_init(|| {
                    let parts = same.then(|| fields::named(kind, &self.bytes())).flatten();
                    let object =
                        parts.unwrap_or_else(|| rules::convert::from_storage(kind, &self.value()));
                    selectable.iter().map(|(_, read)| read(&object)).collect()
                });
                values.get(at).map(String::as_str)
            }
        }
    }

    fn place(&self) -> (&str, &str) {
        self.name().split_once('/').unwrap_or(("", self.name()))
    }
}

/// The maximum nesting of stored objects. In a list, a table row or an event they are nested a few levels deeper, and serde
/// reads 127 levels.
pub(crate) const DEPTH_MAX: usize = 120;

pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Kind and metadata. Earlier versions of landfall stored objects that were nested too deeply to decode.
fn partial_object(object: &Object) -> Value {
    #[derive(serde::Deserialize)]
    struct PartialObject {
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
    match serde_json::from_slice::<PartialObject>(&object.bytes()) {
        Ok(PartialObject { kind, api_version, metadata }) => {
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

/// Encodes the object, with its type first and a gap for the resource version.
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
        let revision = kind.kind == "ControllerRevision";
        for (key, value) in fields.iter().filter(|(key, _)| !own(key)) {
            match revision && key == "data" {
                true => write_field_as_go(&mut bytes, key, value),
                false => write_field(&mut bytes, key, value),
            }
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

/// Encodes as Go does, for bytes that clients compare with their own encoding: `kubectl rollout undo` finds the current
/// revision this way (C-89).
fn write_field_as_go(bytes: &mut Vec<u8>, key: &str, value: &Value) {
    bytes.push(b',');
    write(bytes, &key);
    bytes.push(b':');
    let mut writer = serde_json::Serializer::with_formatter(bytes, AsGo);
    serde::Serialize::serialize(value, &mut writer).expect("writing JSON to memory");
}

/// Escapes characters that could be HTML markup or line ends.
struct AsGo;

impl serde_json::ser::Formatter for AsGo {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (before, found) = rest.split_at(at);
            writer.write_all(before.as_bytes())?;
            let mut after = found.chars();
            if let Some(escaped) = after.next() {
                write!(writer, "\\u{:04x}", u32::from(escaped))?;
            }
            rest = after.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

/// `{"kind":"Pod","apiVersion":"v1",`: the first bytes of stored objects of a kind. Names of kinds and versions need no
/// escapes.
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
    fn the_resource_version_is_inserted_into_its_gap() {
        let kind = pod_kind();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "resourceVersion": "7"}, "spec": {}});
        let Draft { mut bytes, revision_at } = draft(&kind, &pod);
        bytes.splice(revision_at..revision_at, *b"42");
        let read: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read["metadata"], json!({"name": "a", "resourceVersion": "42"}));
        assert_eq!(read["kind"], "Pod");
    }

    /// C-210: `sh -c "a && b"` in a template.
    #[test]
    fn c_89_the_data_of_a_revision_is_encoded_byte_for_byte_as_go_does() {
        let kind = api::Registry::built_in();
        let kind = kind.resource("apps", "v1", "controllerrevisions").unwrap();
        let data = json!({"<k>": "a && b > c\u{2028}d\u{2029} \"é\" \n", "n": 1});
        let object = json!({"metadata": {"name": "a&b"}, "data": data, "revision": 1});
        let Draft { bytes, .. } = draft(kind, &object);
        let text = String::from_utf8(bytes).unwrap();
        let written =
            r#""data":{"\u003ck\u003e":"a \u0026\u0026 b \u003e c\u2028d\u2029 \"é\" \n","n":1}"#;
        assert!(text.contains(written), "{text}");
        assert!(text.contains(r#""name":"a&b""#), "nothing else is escaped: {text}");
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["data"], data);
    }

    #[test]
    fn a_27_the_bytes_after_the_type_are_an_item_of_a_list() {
        let kind = pod_kind();
        let Draft { bytes, .. } = draft(&kind, &json!({"metadata": {"name": "a"}, "spec": {}}));
        let item = bytes.strip_prefix(type_prefix(&kind).as_bytes()).unwrap();
        let read: Value = serde_json::from_slice(&[b"{", item].concat()).unwrap();
        assert_eq!(read, json!({"metadata": {"name": "a", "resourceVersion": ""}, "spec": {}}));
    }

    #[test]
    fn pods_are_partitioned_by_node_and_a_selector_for_one_node_reads_that_partition() {
        use store::Index as _;
        let read = |collection, pod: Value| {
            let Draft { bytes, .. } = draft(&pod_kind(), &pod);
            Index::read(collection, "a", &bytes).partition_key().map(|key| key.to_string())
        };
        let on = |node: Value| json!({"metadata": {"name": "a"}, "spec": {"nodeName": node}});
        assert_eq!(read("pods", on(json!("n-1"))), Some("n-1".into()));
        assert_eq!(read("pods", on(json!("n\"1"))), Some("n\"1".into()));
        assert_eq!(read("pods", json!({"metadata": {"name": "a"}})), None);
        assert_eq!(read("pods", on(json!(""))), None);
        assert_eq!(read("deployments", on(json!("n-1"))), None);

        let key = |collection, selector: &str| {
            partition_key(collection, &FieldSelector::parse(selector).unwrap()).map(str::to_owned)
        };
        assert_eq!(key("pods", "status.phase=Running,spec.nodeName=n-1"), Some("n-1".into()));
        for selector in ["", "spec.nodeName=", "spec.nodeName!=n-1", "metadata.name=a"] {
            assert_eq!(key("pods", selector), None, "{selector}");
        }
        assert_eq!(key("deployments", "spec.nodeName=n-1"), None);
    }

    /// A-21: metadata-only watches cut the metadata out of the stored text.
    #[test]
    fn the_metadata_is_cut_out_completely_whatever_its_strings_contain() {
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
