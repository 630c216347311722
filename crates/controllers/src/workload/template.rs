//! Pod templates: comparing and hashing them.

use api::quantity;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::Serialize;
use serde_json::{Map, Value};

/// The label that distinguishes the pods of different templates.
pub(crate) const HASH_LABEL: &str = "pod-template-hash";

/// Characters that cannot form words by accident. Upstream: `rand.SafeEncodeString`.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Whether two templates are equal apart from the hash label. Empty fields count as absent, and quantities are
/// compared by value (C-28).
pub(crate) fn same_template(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    // Fast paths: most different templates differ in an image, and equal ones are compared quickly.
    images(a).eq(images(b)) && (a == b || plain_template(a) == plain_template(b))
}

fn images(template: &PodTemplateSpec) -> impl Iterator<Item = Option<&str>> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    containers.map(|container| container.image.as_deref())
}

fn plain_template(template: &PodTemplateSpec) -> Value {
    let mut value = typed::to_value(template).unwrap_or_default();
    let labels = value.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
    if let Some(labels) = labels {
        labels.remove(HASH_LABEL);
    }
    plain(value)
}

fn plain(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, mut value)| {
                if matches!(key.as_str(), "limits" | "requests") {
                    quantity::canonicalize_list(Some(&mut value));
                }
                (key, plain(value))
            });
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(plain).collect()),
        value => value,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// A stable hash of a template in upstream's format. The value differs from upstream's, which hashes Go's printed
/// structures (C-27). `collisions` gives the same template another hash.
pub(crate) fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    short_name(&plain_template(template), collisions)
}

/// As [`hash`], of any value.
pub(crate) fn short_name(value: &impl Serialize, collisions: Option<i32>) -> String {
    // serde_json sorts map keys, so equal values give equal text.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    if let Some(collisions) = collisions {
        text.extend(collisions.to_string().bytes());
    }
    let number = fnv(&text).to_string();
    number.bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

/// FNV-1a, 32 bits.
fn fnv(text: &[u8]) -> u32 {
    text.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(value: Value) -> PodTemplateSpec {
        typed::from_value(value).unwrap()
    }

    fn web(extra: Value, cpu: &str) -> PodTemplateSpec {
        let mut spec = json!({ "containers": [{
            "name": "c", "image": "i", "resources": { "limits": { "cpu": cpu } } }] });
        if let (Some(spec), Some(extra)) = (spec.as_object_mut(), extra.as_object()) {
            spec.extend(extra.clone());
        }
        template(json!({ "metadata": { "labels": { "app": "web" } }, "spec": spec }))
    }

    /// C-215: templates are compared by meaning.
    #[test]
    fn c_28_templates_are_compared_by_meaning() {
        let plain = web(json!({}), "1");
        let mut labelled = plain.clone();
        let labels = labelled.metadata.as_mut().unwrap().labels.as_mut().unwrap();
        labels.insert(HASH_LABEL.into(), "x".into());
        let cases = [
            ("itself", plain.clone(), true),
            ("with our label", labelled, true),
            ("another spelling", web(json!({}), "1000m"), true),
            ("an empty list", web(json!({ "tolerations": [] }), "1"), true),
            ("another amount", web(json!({}), "2"), false),
            ("one more field", web(json!({ "hostNetwork": true }), "1"), false),
        ];
        for (what, other, same) in cases {
            assert_eq!(same_template(&plain, &other), same, "{what}");
            assert_eq!(hash(&plain, None) == hash(&other, None), same, "{what}");
        }
    }

    #[test]
    fn c_27_hash_has_upstreams_format_and_changes_with_collisions() {
        let plain = web(json!({}), "1");
        for collisions in [None, Some(1), Some(2)] {
            let hash = hash(&plain, collisions);
            assert!((1..=10).contains(&hash.len()), "{hash}");
            assert!(hash.bytes().all(|byte| ALPHABET.contains(&byte)), "{hash}");
        }
        assert_ne!(hash(&plain, None), hash(&plain, Some(1)));
    }
}
