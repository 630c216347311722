//! How an object is laid out at rest, and what is read from it without decoding it whole.
//!
//! The stored bytes are what a GET returns: `{"kind":…,"apiVersion":…,"metadata":{"resourceVersion":
//! "…",…},…}` with every other key sorted. Kind and apiVersion stand first so that a list, whose
//! items do not repeat them (A-27), can take everything behind them; the resource version stands at
//! a known place because only the store knows it (decision 3 of the design).

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

/// What selectors and lists want to know of an object; read from its bytes when first asked for.
pub(crate) struct Index {
    meta: OnceLock<Meta>,
    /// Of a pod: the node that it is on, or nothing. Every node follows its own pods, so this is read at
    /// once and is what pods are kept by.
    node: Option<Arc<str>>,
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
    fn read(collection: &str, _name: &str, bytes: &[u8]) -> Self {
        let node = (collection == PODS).then(|| node_of(bytes));
        Index { meta: OnceLock::new(), node, fields: [const { OnceLock::new() }; 2] }
    }

    fn topic(&self) -> Option<&Arc<str>> {
        self.node.as_ref().filter(|node| !node.is_empty())
    }
}

const PODS: &str = "pods";
const NODE_FIELD: &str = "spec.nodeName";

/// The topic that has all that a selector can mean, if there is one.
pub(crate) fn topic<'a>(collection: &str, fields: &'a FieldSelector) -> Option<&'a str> {
    let node = fields.exact(NODE_FIELD).filter(|node| !node.is_empty());
    node.filter(|_| collection == PODS)
}

/// Reads as little as can be: everything that is stored of a pod comes by here.
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
            NODE_FIELD if self.index().node.is_some() => self.index().node.as_deref(),
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

/// For bytes that clients compare with what they would have written themselves: `kubectl rollout undo`
/// finds the present revision so (C-89).
fn write_field_as_go(bytes: &mut Vec<u8>, key: &str, value: &Value) {
    bytes.push(b',');
    write(bytes, &key);
    bytes.push(b':');
    let mut writer = serde_json::Serializer::with_formatter(bytes, AsGo);
    serde::Serialize::serialize(value, &mut writer).expect("writing JSON to memory");
}

/// What a page could take for markup or the end of a line is escaped.
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

    /// C-210: `sh -c "a && b"` in a template.
    #[test]
    fn c_89_the_data_of_a_revision_is_written_byte_for_byte_as_go_does() {
        let kind = api::Registry::built_in();
        let kind = kind.resource("apps", "v1", "controllerrevisions").unwrap();
        let data = json!({"<k>": "a && b > c\u{2028}d\u{2029} \"é\" \n", "n": 1});
        let object = json!({"metadata": {"name": "a&b"}, "data": data, "revision": 1});
        let Draft { bytes, .. } = draft(kind, &object);
        let text = String::from_utf8(bytes).unwrap();
        let written =
            r#""data":{"\u003ck\u003e":"a \u0026\u0026 b \u003e c\u2028d\u2029 \"é\" \n","n":1}"#;
        assert!(text.contains(written), "{text}");
        assert!(text.contains(r#""name":"a&b""#), "nothing else is: {text}");
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["data"], data);
    }

    #[test]
    fn a_27_what_follows_the_type_is_an_item_of_a_list() {
        let kind = pod_kind();
        let Draft { bytes, .. } = draft(&kind, &json!({"metadata": {"name": "a"}, "spec": {}}));
        let item = bytes.strip_prefix(type_prefix(&kind).as_bytes()).unwrap();
        let read: Value = serde_json::from_slice(&[b"{", item].concat()).unwrap();
        assert_eq!(read, json!({"metadata": {"name": "a", "resourceVersion": ""}, "spec": {}}));
    }

    #[test]
    fn a_pod_is_found_by_its_node_and_a_selector_of_one_node_looks_there() {
        use store::Index as _;
        let read = |collection, pod: Value| {
            let Draft { bytes, .. } = draft(&pod_kind(), &pod);
            Index::read(collection, "a", &bytes).topic().map(|topic| topic.to_string())
        };
        let on = |node: Value| json!({"metadata": {"name": "a"}, "spec": {"nodeName": node}});
        assert_eq!(read("pods", on(json!("n-1"))), Some("n-1".into()));
        assert_eq!(read("pods", on(json!("n\"1"))), Some("n\"1".into()));
        assert_eq!(read("pods", json!({"metadata": {"name": "a"}})), None);
        assert_eq!(read("pods", on(json!(""))), None);
        assert_eq!(read("deployments", on(json!("n-1"))), None);

        let looks = |collection, selector: &str| {
            topic(collection, &FieldSelector::parse(selector).unwrap()).map(str::to_owned)
        };
        assert_eq!(looks("pods", "status.phase=Running,spec.nodeName=n-1"), Some("n-1".into()));
        for selector in ["", "spec.nodeName=", "spec.nodeName!=n-1", "metadata.name=a"] {
            assert_eq!(looks("pods", selector), None, "{selector}");
        }
        assert_eq!(looks("deployments", "spec.nodeName=n-1"), None);
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
