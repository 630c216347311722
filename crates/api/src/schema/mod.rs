//! The types of the API, as data: what fields an object may have and how lists and maps merge.
//!
//! `make schema` generates the built-in types from `k8s-openapi`; they are checked in (`structure.txt`,
//! `descriptions.gz`), and a test fails if they are out of date. `merge_rules.rs` adds how lists merge,
//! which the generated types do not contain. Custom resources bring their own types at run time (`crd`).
//! Decoding, patching, applying, pruning and OpenAPI all use this form.
//!
//! Not here: defaults and validation (the crate `rules`), and how objects are stored.

mod built_in;
pub mod docs;
mod merge_rules;
mod omit_rules;

use std::collections::BTreeMap;

/// A set of types that refer to each other.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    types: Vec<Type>,
    names: BTreeMap<String, TypeId>,
}

/// The index of a type in its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeId(u32);

#[derive(Debug, Clone)]
pub struct Type {
    /// `io.k8s.api.core.v1.Pod`; inline types have none.
    pub name: Option<String>,
    pub shape: Shape,
}

#[derive(Debug, Clone)]
pub enum Shape {
    /// Any JSON: `RawExtension`, `JSON`, untyped fields of custom resources.
    Any,
    Bool,
    Integer {
        bits: u8,
    },
    Number,
    String,
    /// Base64 in JSON, raw bytes in protobuf.
    Bytes,
    Time,
    MicroTime,
    /// `metav1.Duration`: a Go duration in JSON.
    Duration,
    Quantity,
    IntOrString,
    /// `metav1.FieldsV1`: JSON kept as it was sent.
    FieldsV1,
    Object(Object),
    Map {
        values: TypeId,
        /// Owned as one leaf by server-side apply.
        atomic: bool,
    },
    List {
        items: TypeId,
        merge: ListMerge,
    },
}

#[derive(Debug, Clone, Default)]
pub struct Object {
    pub fields: BTreeMap<String, Field>,
    /// Undeclared fields are kept (custom resources only).
    pub preserve_unknown: bool,
    /// Owned as one leaf by server-side apply.
    pub atomic: bool,
    /// A whole object with kind, apiVersion and metadata inside another (custom resources only).
    pub embedded: bool,
}

#[derive(Debug, Clone)]
pub struct Field {
    pub ty: TypeId,
    pub required: bool,
    /// How strategic merge patches treat it.
    pub patch: PatchRule,
    /// Which values mean "not set" (`omit_rules.rs`).
    pub omit: Omit,
}

impl Field {
    /// An optional field without a merge rule, kept as it is sent.
    pub fn new(ty: TypeId) -> Self {
        Field { ty, required: false, patch: PatchRule::default(), omit: Omit::Never }
    }
}

/// Which values of a field mean "not set", so that the object omits them.
///
/// Upstream decodes objects into Go structs, whose optional fields cannot represent the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omit {
    /// Kept as sent: required fields, custom resources.
    Never,
    /// `""`, `[]` and `{}` (but not an empty struct).
    Empty,
    /// Also `0` and `false`.
    Zero,
}

/// How server-side apply merges a list (`x-kubernetes-list-type`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListMerge {
    Atomic,
    Set,
    /// These keys identify an element.
    Map(Vec<MapKey>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct MapKey {
    pub field: String,
    /// The value of an absent key (`protocol` of a container port is `TCP`).
    pub default: Option<serde_json::Value>,
}

impl Eq for MapKey {}

/// How a strategic merge patch treats a field (`x-kubernetes-patch-strategy`, `…-merge-key`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PatchRule {
    /// Lists: merge by key, or as a set if there is no key. Otherwise: replace.
    pub merge: bool,
    pub merge_key: Option<String>,
    /// The patch's `$retainKeys` decides which keys stay.
    pub retain_keys: bool,
    /// A struct that a patch replaces as a whole.
    pub replace: bool,
}

impl Schema {
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }

    pub fn shape(&self, id: TypeId) -> &Shape {
        &self.get(id).shape
    }

    /// The type of that name, e.g. `io.k8s.api.core.v1.Pod`.
    pub fn named(&self, name: &str) -> Option<TypeId> {
        self.names.get(name).copied()
    }

    pub fn names(&self) -> impl Iterator<Item = (&str, TypeId)> {
        self.names.iter().map(|(name, id)| (name.as_str(), *id))
    }

    pub fn add(&mut self, ty: Type) -> TypeId {
        let id = TypeId(self.types.len() as u32);
        if let Some(name) = &ty.name {
            self.names.insert(name.clone(), id);
        }
        self.types.push(ty);
        id
    }

    /// Sets the final shape of a type that was added before its parts were known.
    pub fn replace(&mut self, id: TypeId, shape: Shape) {
        self.types[id.0 as usize].shape = shape;
    }

    /// The declared field of an object type.
    pub fn field(&self, id: TypeId, name: &str) -> Option<&Field> {
        match self.shape(id) {
            Shape::Object(object) => object.fields.get(name),
            _ => None,
        }
    }
}
