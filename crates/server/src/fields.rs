//! What field selectors ask of a stored object, read without building the rest of it: every event of a
//! pod is held against the `spec.nodeName` of every node's watch.

use api::Kind;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt::Formatter;

/// `spec.nodeName` is `(spec, nodeName)`.
type Name<'a> = (&'a str, &'a str);

/// The parts of an object that the selectable fields of its kind are named after (`spec` and `status`, say):
/// of each the plain values, and what is named. Other lists and maps are left out.
pub(crate) fn named(kind: &Kind, stored: &[u8]) -> Option<Value> {
    let fields = kind.rules.fields.iter();
    let names: Vec<Name> =
        fields.map(|(name, _)| name.split_once('.').unwrap_or((name, ""))).collect();
    let mut parser = serde_json::Deserializer::from_slice(stored);
    Wanted::Parts(&names).deserialize(&mut parser).ok().filter(Value::is_object)
}

/// What is wanted of the value that comes next.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// The parts that these are in.
    Parts(&'a [Name<'a>]),
    /// Of the part of this name, what is plain and what is named.
    Part(&'a [Name<'a>], &'a str),
    /// Only if it is plain. Lists and maps become null.
    Plain,
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
                Wanted::Part(..) => entries.next_value_seed(Wanted::Plain)?,
                Wanted::Parts(_) | Wanted::Plain => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            kept.insert(key, value);
        }
        match self {
            Wanted::Plain => Ok(Value::Null),
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

    /// A-35
    #[test]
    fn every_field_reads_the_same_from_its_parts_as_from_the_whole() {
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
        for kind in registry.kinds().iter().filter(|kind| !kind.rules.fields.is_empty()) {
            let sample = samples.iter().find(|(group, version, plural, _)| {
                (*group, *version, *plural) == (&*kind.group, &*kind.version, &*kind.plural)
            });
            if !api::convert::is_identity(kind) {
                continue; // read from the whole
            }
            let (.., object) = sample.unwrap_or_else(|| panic!("no sample of {}", kind.plural));
            let text = serde_json::to_vec(object).unwrap();
            let parts = named(kind, &text).unwrap();
            for (name, read) in kind.rules.fields {
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
    fn what_is_no_object_has_no_fields() {
        let registry = api::Registry::built_in();
        let kind = registry.resource("", "v1", "pods").unwrap();
        assert_eq!(named(kind, b"[]"), None);
        assert_eq!(named(kind, br#"{"spec""#), None);
    }
}
