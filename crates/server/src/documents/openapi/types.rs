//! OpenAPI schemas of the built-in types, one named type at a time.
//!
//! The two versions differ in the location of definitions, in what is allowed beside a `$ref`, and in unions, which v2 cannot
//! express.
//!
//! Not here: custom kinds, whose schema is already OpenAPI (`custom`).

use super::names::{self, Gvk};
use api::Registry;
use api::schema::{ListMerge, Object, PatchRule, Schema, Shape, TypeId, docs};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V2,
    V3,
}

impl Dialect {
    pub(super) fn reference(self, name: &str) -> String {
        match self {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 => format!("#/components/schemas/{name}"),
        }
    }
}

/// A PATCH body: any JSON. There is no such type in the schema, since nothing decodes it.
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

pub(super) struct Types {
    dialect: Dialect,
    schema: Arc<Schema>,
    kinds: BTreeMap<String, Vec<Gvk>>,
    /// What an absent key of a list's element means, by element and field.
    key_defaults: BTreeMap<(String, String), Value>,
}

impl Types {
    pub(super) fn new(registry: &Registry, dialect: Dialect) -> Self {
        let schema = Schema::built_in();
        let key_defaults = key_defaults(&schema);
        Types { dialect, kinds: kinds(registry), schema, key_defaults }
    }

    /// These types and all types that they refer to, in order. Ignores names that are not built in.
    pub(super) fn reachable<'a>(&self, roots: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let mut found = BTreeSet::new();
        let mut open: Vec<TypeId> = Vec::new();
        for name in roots {
            match self.schema.named(name) {
                Some(id) => open.push(id),
                None if name == PATCH => drop(found.insert(name.to_owned())),
                None => {}
            }
        }
        while let Some(id) = open.pop() {
            let ty = self.schema.get(id);
            if let Some(name) = &ty.name
                && !found.insert(name.clone())
            {
                continue;
            }
            match &ty.shape {
                Shape::Object(object) => {
                    // A copy of a named type is written as a reference to it.
                    if ty.name.is_none()
                        && let Some(original) = self.original(object)
                    {
                        open.extend(self.schema.named(original));
                    }
                    open.extend(object.fields.values().map(|field| field.ty));
                }
                Shape::Map { values, .. } => open.push(*values),
                Shape::List { items, .. } => open.push(*items),
                _ => {}
            }
        }
        found.into_iter().collect()
    }

    /// The definition of a named type.
    pub(super) fn definition(&self, name: &str) -> Value {
        let mut body = match self.schema.named(name) {
            Some(id) => match self.schema.shape(id) {
                Shape::Object(object) => self.object(name, object),
                shape => self.scalar(name, shape),
            },
            None => as_map(json!({"type": "object", "description": "Changes to an object."})),
        };
        if let Some(words) = docs::of_type(name) {
            body.insert("description".into(), words.into());
        }
        if let Some(kinds) = self.kinds.get(name) {
            let kinds: Vec<Value> = kinds.iter().map(Gvk::json).collect();
            body.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
        Value::Object(body)
    }

    fn object(&self, owner: &str, object: &Object) -> Map<String, Value> {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, field) in &object.fields {
            let mut property = self.ty(field.ty, field.required || is_top_level(name));
            if let Some(words) = docs::of_field(owner, name) {
                property.insert("description".into(), words.into());
            }
            add_patch_rule(&mut property, &field.patch);
            if self.dialect == Dialect::V3
                && let Some(default) = self.key_defaults.get(&(owner.to_owned(), name.clone()))
            {
                property.insert("default".into(), default.clone());
            }
            properties.insert(name.clone(), Value::Object(property));
            if field.required {
                required.push(Value::from(name.as_str()));
            }
        }
        let mut body = as_map(json!({"type": "object"}));
        if !properties.is_empty() {
            body.insert("properties".into(), properties.into());
        }
        if !required.is_empty() {
            body.insert("required".into(), required.into());
        }
        if object.atomic {
            body.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        body
    }

    /// A type where it is used. `present`: an absent struct means the same as an empty one.
    fn ty(&self, id: TypeId, present: bool) -> Map<String, Value> {
        let ty = self.schema.get(id);
        if let Some(name) = &ty.name {
            return self.reference(name, present && matches!(ty.shape, Shape::Object(_)));
        }
        match &ty.shape {
            Shape::Object(object) => match self.original(object) {
                Some(original) => {
                    let mut body = self.reference(original, false);
                    body.insert("x-kubernetes-map-type".into(), "granular".into());
                    body
                }
                None => self.object("", object),
            },
            Shape::Map { values, atomic } => {
                let values = Value::Object(self.ty(*values, true));
                let mut body = as_map(json!({"type": "object", "additionalProperties": values}));
                if *atomic {
                    body.insert("x-kubernetes-map-type".into(), "atomic".into());
                }
                body
            }
            Shape::List { items, merge } => {
                let items = Value::Object(self.ty(*items, true));
                let mut body = as_map(json!({"type": "array", "items": items}));
                add_list_type(&mut body, merge);
                body
            }
            shape => self.scalar("", shape),
        }
    }

    fn reference(&self, name: &str, present: bool) -> Map<String, Value> {
        let reference = json!({"$ref": self.dialect.reference(name)});
        match self.dialect {
            Dialect::V2 => as_map(reference),
            // Nothing is allowed beside a `$ref`, but there usually is a description.
            Dialect::V3 if present => as_map(json!({"allOf": [reference], "default": {}})),
            Dialect::V3 => as_map(json!({"allOf": [reference]})),
        }
    }

    fn scalar(&self, name: &str, shape: &Shape) -> Map<String, Value> {
        let v3 = self.dialect == Dialect::V3;
        as_map(match shape {
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Integer { bits: 64 } => json!({"type": "integer", "format": "int64"}),
            Shape::Integer { .. } => json!({"type": "integer", "format": "int32"}),
            Shape::Number => json!({"type": "number", "format": "double"}),
            Shape::String | Shape::Duration => json!({"type": "string"}),
            Shape::Bytes => json!({"type": "string", "format": "byte"}),
            Shape::Time | Shape::MicroTime => json!({"type": "string", "format": "date-time"}),
            Shape::Quantity if v3 => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            Shape::Quantity => json!({"type": "string"}),
            Shape::IntOrString if v3 => {
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
            }
            Shape::IntOrString => json!({"type": "string", "format": "int-or-string"}),
            Shape::FieldsV1 => json!({"type": "object"}),
            // Whole objects are objects; the parts of a schema may be anything, `true` included.
            Shape::Any if name.ends_with(".RawExtension") => json!({"type": "object"}),
            Shape::Any | Shape::Object(_) | Shape::Map { .. } | Shape::List { .. } => json!({}),
        })
    }

    /// The atomic type that this nameless one is the granular copy of.
    fn original(&self, copy: &Object) -> Option<&str> {
        let same = |other: &Object| {
            other.atomic
                && other.fields.len() == copy.fields.len()
                && other
                    .fields
                    .iter()
                    .zip(&copy.fields)
                    .all(|(a, b)| a.0 == b.0 && a.1.ty == b.1.ty)
        };
        self.schema.names().map(|(name, id)| (name, self.schema.shape(id))).find_map(
            |(name, shape)| match shape {
                Shape::Object(object) if same(object) => Some(name),
                _ => None,
            },
        )
    }
}

/// The parts that every object has: absent is empty.
fn is_top_level(field: &str) -> bool {
    matches!(field, "metadata" | "spec" | "status")
}

fn add_patch_rule(body: &mut Map<String, Value>, rule: &PatchRule) {
    let words =
        [(rule.merge, "merge"), (rule.replace, "replace"), (rule.retain_keys, "retainKeys")];
    let strategy: Vec<&str> = words.iter().filter(|word| word.0).map(|word| word.1).collect();
    if !strategy.is_empty() {
        body.insert("x-kubernetes-patch-strategy".into(), strategy.join(",").into());
    }
    if let Some(key) = &rule.merge_key {
        body.insert("x-kubernetes-patch-merge-key".into(), key.as_str().into());
    }
}

fn add_list_type(body: &mut Map<String, Value>, merge: &ListMerge) {
    let word = match merge {
        ListMerge::Atomic => "atomic",
        ListMerge::Set => "set",
        ListMerge::Map(keys) => {
            let keys: Vec<&str> = keys.iter().map(|key| key.field.as_str()).collect();
            body.insert("x-kubernetes-list-map-keys".into(), json!(keys));
            "map"
        }
    };
    body.insert("x-kubernetes-list-type".into(), word.into());
}

fn key_defaults(schema: &Schema) -> BTreeMap<(String, String), Value> {
    let mut defaults = BTreeMap::new();
    for (_, id) in schema.names() {
        let Shape::Object(object) = schema.shape(id) else { continue };
        for field in object.fields.values() {
            let Shape::List { items, merge: ListMerge::Map(keys) } = schema.shape(field.ty) else {
                continue;
            };
            let Some(element) = &schema.get(*items).name else { continue };
            for key in keys {
                if let Some(default) = &key.default {
                    defaults.insert((element.clone(), key.field.clone()), default.clone());
                }
            }
        }
    }
    defaults
}

/// Which group, version and kind each named type stands for.
fn kinds(registry: &Registry) -> BTreeMap<String, Vec<Gvk>> {
    let mut kinds: BTreeMap<String, Vec<Gvk>> = BTreeMap::new();
    for kind in registry.kinds().iter().filter(|kind| kind.custom.is_none()) {
        let (group, version) = (&kind.group, &kind.version);
        kinds.insert(names::definition(kind), vec![Gvk::new(group, version, &kind.kind)]);
        let list = kind.list_kind();
        kinds.insert(names::list_definition(kind), vec![Gvk::new(group, version, &list)]);
        // Every group and version has its own name for the options of a delete.
        let options = kinds.entry(names::meta("DeleteOptions")).or_default();
        options.push(Gvk::new(group, version, "DeleteOptions"));
        options.sort();
        options.dedup();
    }
    for kind in ["APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "Status"] {
        kinds.insert(names::meta(kind), vec![Gvk::new("", "v1", kind)]);
    }
    for (group, version, kind) in [
        ("autoscaling", "v1", "Scale"),
        ("policy", "v1", "Eviction"),
        ("authentication.k8s.io", "v1", "TokenRequest"),
    ] {
        let name = api::kind::type_name(group, version, kind);
        kinds.insert(name, vec![Gvk::new(group, version, kind)]);
    }
    kinds
}

pub(super) fn as_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
