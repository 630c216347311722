//! Reads the selectable fields of a stored object without decoding the rest: a list with a field selector reads them from
//! every object of the collection.

use api::Kind;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt::Formatter;

/// `spec.nodeName` is `(spec, nodeName)`.
type Name<'a> = (&'a str, &'a str);

/// The top-level parts of an object that contain selectable fields of its kind (such as `spec` and `status`), with their
/// scalar values and the selectable fields. Other lists and maps are omitted.
pub(crate) fn named(kind: &Kind, stored: &[u8]) -> Option<Value> {
    let fields = rules::of(kind).fields.iter();
    let names: Vec<Name> =
        fields.map(|(name, _)| name.split_once('.').unwrap_or((name, ""))).collect();
    let mut parser = serde_json::Deserializer::from_slice(stored);
    Wanted::Parts(&names).deserialize(&mut parser).ok().filter(Value::is_object)
}

/// What to read from the next value.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// The parts that contain these fields.
    Parts(&'a [Name<'a>]),
    /// The scalars and selectable fields of the part with this name.
    Part(&'a [Name<'a>], &'a str),
    /// A scalar. Lists and maps become null.
    Scalar,
}

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = match self {
                Wanted::Parts(names) if names.iter().any(|(part, _)| *part == key) => {
                    entries.next_value_seed(Wanted::Part(names, &key))?
                }
                Wanted::Part(names, part) if names.contains(&(part, &key)) => {
                    entries.next_value()?
                }
                Wanted::Part(..) => entries.next_value_seed(Wanted::Scalar)?,
                Wanted::Parts(_) | Wanted::Scalar => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            kept.insert(key, value);
        }
        match self {
            Wanted::Scalar => Ok(Value::Null),
            Wanted::Parts(_) | Wanted::Part(..) => Ok(Value::Object(kept)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A-103: a field selector sees the same values whether an object is decoded partly or completely.
    #[test]
    fn every_selectable_field_reads_the_same_from_parts_as_from_the_whole_object() {
        let samples = [
            (
                "",
                "v1",
                "pods",
                json!({
                    "spec": {"nodeName": "n1", "restartPolicy": "Never", "schedulerName": "s", "hostNetwork": true,
                             "serviceAccountName": "a", "containers": [{"name": "c"}]},
                    "status": {"phase": "Running", "podIP": "10.0.0.1", "nominatedNodeName": "n2",
                               "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "conditions": [{}]},
                }),
            ),
            ("", "v1", "nodes", json!({"spec": {"unschedulable": true, "taints": [{}]}})),
            ("", "v1", "namespaces", json!({"status": {"phase": "Active", "conditions": []}})),
            ("", "v1", "secrets", json!({"type": "Opaque", "data": {"a": "b"}})),
            (
                "",
                "v1",
                "services",
                json!({"spec": {"clusterIP": "10.1.0.1", "type": "NodePort", "ports": [{}]}}),
            ),
            (
                "",
                "v1",
                "replicationcontrollers",
                json!({"spec": {"replicas": 9}, "status": {"replicas": 3}}),
            ),
            ("batch", "v1", "jobs", json!({"status": {"succeeded": 2, "conditions": [{}]}})),
            (
                "certificates.k8s.io",
                "v1",
                "certificatesigningrequests",
                json!({"spec": {"signerName": "x"}}),
            ),
            (
                "resource.k8s.io",
                "v1",
                "resourceslices",
                json!({"spec": {"nodeName": "n1", "driver": "d"}}),
            ),
            (
                "landfall.dev",
                "v1",
                "terminations",
                json!({"outcome": "Ending", "pod": {"name": "a", "uid": "b", "node": "c"}, "steps": [{}]}),
            ),
            (
                "",
                "v1",
                "events",
                json!({
                    "involvedObject": {"kind": "Pod", "namespace": "d", "name": "a", "uid": "b", "apiVersion": "v1",
                                       "resourceVersion": "7", "fieldPath": "spec"},
                    "reason": "Killing", "type": "Normal", "source": {"component": "kubelet"},
                "reportingComponent": "kubelet",
                }),
            ),
        ];
        let registry = api::Registry::built_in();
        for kind in registry.kinds().iter().filter(|kind| !rules::of(kind).fields.is_empty()) {
            let sample = samples.iter().find(|(group, version, plural, _)| {
                (*group, *version, *plural) == (&*kind.group, &*kind.version, &*kind.plural)
            });
            if !rules::convert::is_identity(kind) {
                continue; // read from the whole
            }
            let (.., object) = sample.unwrap_or_else(|| panic!("no sample of {}", kind.plural));
            let text = serde_json::to_vec(object).unwrap();
            let parts = named(kind, &text).unwrap();
            for (name, read) in rules::of(kind).fields {
                assert_eq!(read(&parts), read(object), "{} {name}", kind.plural);
                assert_ne!(
                    read(object),
                    read(&json!({})),
                    "the sample of {} has {name}",
                    kind.plural
                );
            }
        }
    }

    #[test]
    fn a_value_that_is_not_an_object_has_no_fields() {
        let registry = api::Registry::built_in();
        let kind = registry.resource("", "v1", "pods").unwrap();
        assert_eq!(named(kind, b"[]"), None);
        assert_eq!(named(kind, br#"{"spec""#), None);
    }
}
