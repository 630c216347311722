//! Maps the field numbers of protobuf messages to the fields of types.
//!
//! `numbers.txt` (written by `scripts/protobuf_numbers.py`) has the messages' own field names,
//! which differ from the JSON names in case and separators only. Where a Go type embeds another struct,
//! the message has a nested message, while JSON has the fields inline: `Volume.volumeSource.hostPath` in
//! the message is `hostPath` of the volume in JSON.

use crate::schema::{Schema, Shape, TypeId};
use std::collections::HashMap;
use std::sync::LazyLock;

const NUMBERS: &str = include_str!("numbers.txt");

/// The fields of a message by number.
pub(super) type Slots = HashMap<u32, Slot>;

#[derive(Debug, PartialEq)]
pub(super) enum Slot {
    /// A field of the type, by its JSON name.
    Field(String),
    /// A nested message whose fields are fields of the same type.
    Inline(Slots),
}

static BY_TYPE: LazyLock<HashMap<String, Slots>> = LazyLock::new(|| {
    let messages = messages();
    let schema = Schema::built_in();
    schema
        .names()
        .filter(|(_, ty)| matches!(schema.shape(*ty), Shape::Object(_)))
        .filter_map(|(name, ty)| {
            let message = name.to_lowercase();
            messages
                .contains_key(message.as_str())
                .then(|| (name.to_owned(), slots(&schema, ty, &message, &messages)))
        })
        .collect()
});

/// The numbers of a built-in type, by its full name.
pub(super) fn of(name: &str) -> Option<&'static Slots> {
    BY_TYPE.get(name)
}

struct Entry {
    name: String,
    number: u32,
    /// The full name of the field's message type, if it has one.
    message: Option<String>,
}

/// By full name in lower case.
fn messages() -> HashMap<String, Vec<Entry>> {
    NUMBERS
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default().to_lowercase();
            let package = name.rsplit_once('.').map_or("", |(package, _)| package);
            let entries = words.filter_map(|word| entry(word, package)).collect();
            (name, entries)
        })
        .collect()
}

/// `volume_source=2:VolumeSource`
fn entry(word: &str, package: &str) -> Option<Entry> {
    let (name, rest) = word.split_once('=')?;
    let (number, message) = match rest.split_once(':') {
        Some((number, message)) => (number, Some(format!("{package}.{}", message.to_lowercase()))),
        None => (rest, None),
    };
    Some(Entry { name: plain(name), number: number.parse().ok()?, message })
}

/// A name without case and separators, for comparison.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn slots(
    schema: &Schema,
    ty: TypeId,
    message: &str,
    messages: &HashMap<String, Vec<Entry>>,
) -> Slots {
    let Shape::Object(object) = schema.shape(ty) else { return Slots::new() };
    let mut found = Slots::new();
    for entry in messages.get(message).into_iter().flatten() {
        if let Some(name) = object.fields.keys().find(|name| plain(name) == entry.name) {
            found.insert(entry.number, Slot::Field(name.clone()));
        } else if let Some(nested) = entry.message.as_deref().filter(|nested| *nested != message) {
            // Embedded structs nest two deep at most, so the recursion ends.
            let inline = slots(schema, ty, nested, messages);
            if !inline.is_empty() {
                found.insert(entry.number, Slot::Inline(inline));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(slots: &Slots, out: &mut Vec<String>) {
        for slot in slots.values() {
            match slot {
                Slot::Field(name) => out.push(name.clone()),
                Slot::Inline(inner) => numbers(inner, out),
            }
        }
    }

    /// Fields that are newer than the published numbers; their feature gates are off.
    const WITHOUT_NUMBER: &[&str] = &[
        "io.k8s.api.core.v1.PodSpec schedulingGroup",
        "io.k8s.api.core.v1.PodStatus nodeAllocatableResourceClaimStatuses",
        "io.k8s.api.core.v1.ResourceHealth message",
        "io.k8s.api.core.v1.VolumeMountStatus volumeStatus",
        "io.k8s.api.resource.v1.Device nodeAllocatableResourceMappings",
        "io.k8s.api.resource.v1.DeviceAttribute bools",
        "io.k8s.api.resource.v1.DeviceAttribute ints",
        "io.k8s.api.resource.v1.DeviceAttribute strings",
        "io.k8s.api.resource.v1.DeviceAttribute versions",
        "io.k8s.api.storage.v1.CSIDriverSpec preventPodSchedulingIfMissing",
        "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta shardInfo",
    ];

    #[test]
    fn a_14_every_field_has_a_number() {
        let schema = Schema::built_in();
        let mut missing = Vec::new();
        for (name, ty) in schema.names() {
            let (Some(slots), Shape::Object(object)) = (of(name), schema.shape(ty)) else {
                continue;
            };
            let mut have = Vec::new();
            numbers(slots, &mut have);
            for field in object.fields.keys() {
                if !have.contains(field) && !matches!(field.as_str(), "kind" | "apiVersion") {
                    missing.push(format!("{name} {field}"));
                }
            }
        }
        assert_eq!(missing, WITHOUT_NUMBER);
    }

    #[test]
    fn a_14_only_embedded_structs_are_inline() {
        let mut inline: Vec<&str> = BY_TYPE
            .iter()
            .filter(|(_, slots)| slots.values().any(|slot| matches!(slot, Slot::Inline(_))))
            .map(|(name, _)| name.rsplit('.').next().unwrap_or(name))
            .collect();
        inline.sort_unstable();
        assert_eq!(
            inline,
            [
                "ConfigMapEnvSource",
                "ConfigMapKeySelector",
                "ConfigMapProjection",
                "ConfigMapVolumeSource",
                "DeviceAllocationConfiguration",
                "DeviceClaimConfiguration",
                "DeviceClassConfiguration",
                "EphemeralContainer",
                "IngressRule",
                "NamedRuleWithOperations",
                "PersistentVolumeSpec",
                "Probe",
                "RuleWithOperations",
                "SecretEnvSource",
                "SecretKeySelector",
                "SecretProjection",
                "Volume",
            ]
        );
    }
}
