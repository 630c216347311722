//! Reads the built-in types from `structure.txt`. The header of `tests/it/schema.rs`, which writes the file,
//! describes its format.

use super::{
    Field, ListMerge, Object, Omit, PatchRule, Schema, Shape, Type, TypeId, merge_rules, omit_rules,
};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

const STRUCTURE: &str = include_str!("structure.txt");

static BUILT_IN: LazyLock<Arc<Schema>> = LazyLock::new(|| {
    let mut schema = read(STRUCTURE);
    merge_rules::add(&mut schema);
    omit_rules::add(&mut schema);
    Arc::new(schema)
});

impl Schema {
    /// The types of all built-in kinds, with their merge rules. Read once.
    pub fn built_in() -> Arc<Schema> {
        BUILT_IN.clone()
    }
}

/// Panics on malformed text: the file is part of the program.
fn read(text: &str) -> Schema {
    let mut reader = Reader { schema: Schema::default(), scalars: HashMap::new() };
    // Named types first, so that their index in the file is their index in the schema.
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('=') {
            reader.add(Some(name), Shape::Object(Object::default()));
        } else if let Some((name, word)) = line.strip_prefix(':').and_then(|l| l.split_once(' ')) {
            reader.add(Some(name), scalar(word));
        }
    }
    let mut owner = 0;
    let mut object: Option<Object> = None;
    for line in text.lines() {
        if line.starts_with(['=', ':']) {
            reader.finish(owner, object.take());
            owner += 1;
            object = line.starts_with('=').then(Object::default);
        } else if let Some(object) = &mut object {
            let (name, field) = reader.field(line);
            object.fields.insert(name, field);
        }
    }
    reader.finish(owner, object);
    reader.schema
}

struct Reader {
    schema: Schema,
    /// All fields with the same scalar type share one type entry.
    scalars: HashMap<char, TypeId>,
}

impl Reader {
    fn add(&mut self, name: Option<&str>, shape: Shape) -> TypeId {
        self.schema.add(Type { name: name.map(str::to_owned), shape })
    }

    /// Gives the `count`th named type its fields.
    fn finish(&mut self, count: u32, object: Option<Object>) {
        if let Some(object) = object {
            self.schema.replace(TypeId(count - 1), Shape::Object(object));
        }
    }

    /// `containers! [#12`
    fn field(&mut self, line: &str) -> (String, Field) {
        let (name, word) = line.split_once(' ').expect("a field and its type");
        let (name, required) = match name.strip_suffix('!') {
            Some(name) => (name, true),
            None => (name, false),
        };
        let ty = self.ty(word);
        let omit = if required { Omit::Never } else { Omit::Empty };
        (name.into(), Field { ty, required, patch: PatchRule::default(), omit })
    }

    fn ty(&mut self, word: &str) -> TypeId {
        if let Some(place) = word.strip_prefix('#') {
            TypeId(place.parse().expect("a type's place"))
        } else if let Some(items) = word.strip_prefix('[') {
            let items = self.ty(items);
            self.add(None, Shape::List { items, merge: ListMerge::Atomic })
        } else if let Some(values) = word.strip_prefix('{') {
            let values = self.ty(values);
            self.add(None, Shape::Map { values, atomic: false })
        } else {
            let letter = word.chars().next().expect("a type");
            match self.scalars.get(&letter) {
                Some(id) => *id,
                None => {
                    let id = self.add(None, scalar(word));
                    self.scalars.insert(letter, id);
                    id
                }
            }
        }
    }
}

fn scalar(word: &str) -> Shape {
    match word {
        "*" => Shape::Any,
        "b" => Shape::Bool,
        "i" => Shape::Integer { bits: 32 },
        "l" => Shape::Integer { bits: 64 },
        "n" => Shape::Number,
        "s" => Shape::String,
        "y" => Shape::Bytes,
        "t" => Shape::Time,
        "m" => Shape::MicroTime,
        "d" => Shape::Duration,
        "q" => Shape::Quantity,
        "x" => Shape::IntOrString,
        "f" => Shape::FieldsV1,
        other => panic!("{other} is no type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    #[test]
    fn a_203_every_built_in_kind_has_its_type() {
        let registry = Registry::built_in();
        for kind in registry.kinds() {
            let metadata = kind.schema.field(kind.ty, "metadata").expect("metadata");
            let name = kind.schema.get(metadata.ty).name.as_deref();
            assert_eq!(
                name,
                Some("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
                "{}",
                kind.kind
            );
        }
    }

    #[test]
    fn options_scales_and_reviews_have_types_too() {
        let schema = Schema::built_in();
        for name in ["Scale", "Eviction", "TokenRequest", "DeleteOptions", "Status", "PodList"] {
            assert!(schema.names().any(|(full, _)| full.ends_with(&format!(".{name}"))), "{name}");
        }
    }

    #[test]
    fn fields_have_the_shapes_of_the_published_types() {
        let schema = Schema::built_in();
        let shape = |ty: &str, field: &str| {
            let ty = schema.named(ty).unwrap();
            schema.shape(schema.field(ty, field).unwrap().ty)
        };
        let container = "io.k8s.api.core.v1.Container";
        assert!(matches!(shape(container, "name"), Shape::String));
        assert!(matches!(shape(container, "tty"), Shape::Bool));
        assert!(matches!(shape("io.k8s.api.core.v1.Secret", "data"), Shape::Map { values, .. }
            if matches!(schema.shape(*values), Shape::Bytes)));
        let spec = "io.k8s.api.coordination.v1.LeaseSpec";
        assert!(matches!(shape(spec, "renewTime"), Shape::MicroTime));
        let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        assert!(matches!(shape(meta, "creationTimestamp"), Shape::Time));
        assert!(matches!(shape(meta, "generation"), Shape::Integer { bits: 64 }));
        let pod = schema.named("io.k8s.api.core.v1.PodSpec").unwrap();
        assert!(schema.field(pod, "containers").unwrap().required);
    }
}
