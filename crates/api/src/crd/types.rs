//! The types of a custom kind, in the form that decoding, pruning and applying read.
//!
//! A custom schema does not describe metadata: every root and every embedded object gets the built-in
//! ObjectMeta, copied with all types that it refers to into the kind's own schema.

use super::node::{Additional, ListType, Node};
use crate::schema::{Field, ListMerge, MapKey, Object, Schema, Shape, Type, TypeId};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The schema of a kind, and its type in it, from an openAPIV3Schema.
pub fn schema_of(open_api: &Value) -> (Arc<Schema>, TypeId) {
    of(&Node::read(open_api))
}

pub(super) fn of(root: &Node) -> (Arc<Schema>, TypeId) {
    let mut builder = Builder::new();
    let mut object = builder.fields(root);
    builder.add_type_and_metadata(&mut object);
    let root = builder.add(Shape::Object(object));
    (Arc::new(builder.schema), root)
}

struct Builder {
    schema: Schema,
    string: TypeId,
    any: TypeId,
    metadata: TypeId,
}

impl Builder {
    fn new() -> Self {
        let mut schema = Schema::default();
        let string = schema.add(Type { name: None, shape: Shape::String });
        let any = schema.add(Type { name: None, shape: Shape::Any });
        let built_in = Schema::built_in();
        let metadata = match built_in.named(OBJECT_META) {
            Some(id) => copy(&built_in, id, &mut schema, &mut HashMap::new()),
            None => any,
        };
        Builder { schema, string, any, metadata }
    }

    fn add(&mut self, shape: Shape) -> TypeId {
        self.schema.add(Type { name: None, shape })
    }

    /// Recursion is bounded by the depth of the node.
    fn ty(&mut self, node: &Node) -> TypeId {
        if node.int_or_string {
            return self.add(Shape::IntOrString);
        }
        match node.types.first().map(String::as_str) {
            Some("string") => self.string,
            Some("boolean") => self.add(Shape::Bool),
            Some("integer") => self.add(Shape::Integer { bits: 64 }),
            Some("number") => self.add(Shape::Number),
            Some("array") => self.list(node),
            Some("object") => self.object(node),
            _ if node.embedded || !node.properties.is_empty() => self.object(node),
            _ => self.any,
        }
    }

    fn list(&mut self, node: &Node) -> TypeId {
        let items = node.items.as_deref();
        let merge = match &node.list {
            ListType::Atomic => ListMerge::Atomic,
            ListType::Set => ListMerge::Set,
            ListType::Map(keys) => {
                ListMerge::Map(keys.iter().map(|key| map_key(items, key)).collect())
            }
        };
        let items = items.map_or(self.any, |items| self.ty(items));
        self.add(Shape::List { items, merge })
    }

    fn object(&mut self, node: &Node) -> TypeId {
        let values = match &node.additional {
            Additional::Of(values) => Some(self.ty(values)),
            // Upstream keeps these fields but prunes everything inside them.
            Additional::Allowed => Some(self.add(Shape::Object(Object::default()))),
            Additional::Unsaid | Additional::Refused => None,
        };
        if let (Some(values), false) = (values, node.embedded)
            && node.properties.is_empty()
        {
            return self.add(Shape::Map { values, atomic: node.atomic_map });
        }
        let mut object = self.fields(node);
        if node.embedded {
            self.add_type_and_metadata(&mut object);
        }
        self.add(Shape::Object(object))
    }

    fn fields(&mut self, node: &Node) -> Object {
        let fields = node.properties.iter().map(|(name, property)| {
            let field =
                Field { required: node.required.contains(name), ..Field::new(self.ty(property)) };
            (name.clone(), field)
        });
        Object {
            fields: fields.collect(),
            preserve_unknown: node.preserve_unknown,
            atomic: node.atomic_map,
            embedded: node.embedded,
        }
    }

    /// These three fields are the same in all kinds, whatever the schema says about them.
    fn add_type_and_metadata(&self, object: &mut Object) {
        for (name, ty) in
            [("apiVersion", self.string), ("kind", self.string), ("metadata", self.metadata)]
        {
            object.fields.insert(name.into(), Field::new(ty));
        }
    }
}

fn map_key(items: Option<&Node>, key: &str) -> MapKey {
    let node = items.and_then(|items| items.properties.get(key));
    MapKey { field: key.into(), default: node.and_then(|node| node.default.clone()) }
}

/// Copies a type and all it refers to from one schema into another.
fn copy(
    from: &Schema,
    id: TypeId,
    to: &mut Schema,
    copied: &mut HashMap<TypeId, TypeId>,
) -> TypeId {
    if let Some(done) = copied.get(&id) {
        return *done;
    }
    let ty = from.get(id);
    // Added before its parts, so that a recursive type finds itself.
    let place = to.add(Type { name: ty.name.clone(), shape: Shape::Any });
    copied.insert(id, place);
    let shape = match &ty.shape {
        Shape::Object(object) => {
            let mut object = object.clone();
            for field in object.fields.values_mut() {
                field.ty = copy(from, field.ty, to, copied);
            }
            Shape::Object(object)
        }
        Shape::Map { values, atomic } => {
            Shape::Map { values: copy(from, *values, to, copied), atomic: *atomic }
        }
        Shape::List { items, merge } => {
            Shape::List { items: copy(from, *items, to, copied), merge: merge.clone() }
        }
        scalar => scalar.clone(),
    };
    to.replace(place, shape);
    place
}
