//! Caches can decode every object that the API server accepts.

use api::decode;
use api::schema::{Schema, Shape, TypeId};
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use serde_json::{Map, Value, json};

/// Maximum nesting, because types can be recursive (JSON schemas of custom resources).
const DEPTH_MAX: usize = 9;
/// The only listed kind that is not stored, so no cache reads it.
const SUBRESOURCE: &str = "Scale";

/// Makes objects of a type with fields left out, null, empty and filled.
struct Generator<'a> {
    schema: &'a Schema,
    rng: TestRng,
}

impl Generator<'_> {
    fn one_of(&mut self, values: &[Value]) -> Value {
        values[self.below(values.len())].clone()
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.next_u64() as usize % bound
    }

    fn value(&mut self, ty: TypeId, depth: usize) -> Value {
        if let Some(value) = self.either(ty) {
            return value;
        }
        match self.schema.shape(ty) {
            Shape::Bool => self.one_of(&[json!(true), json!(false)]),
            Shape::Integer { bits: 32 } => self.one_of(&[json!(0), json!(-1), json!(i32::MAX)]),
            Shape::Integer { .. } => self.one_of(&[json!(0), json!(-1), json!(i64::MAX)]),
            Shape::Number => self.one_of(&[json!(0), json!(1.5), json!(-2), json!(1e300)]),
            Shape::String => self.one_of(&[json!(""), json!("x"), json!("\u{2028}\"é\\")]),
            Shape::Bytes => self.one_of(&[json!(""), json!("aGk="), json!("aG\nk=")]),
            Shape::Time => self.one_of(&[
                json!("0001-01-01T00:00:00Z"),
                json!("2026-01-02T03:04:05.999+02:00"),
                json!("9999-12-30T00:00:00Z"),
                json!("2016-12-31T23:59:60Z"),
            ]),
            Shape::MicroTime => self.one_of(&[
                json!("0001-01-01T00:00:00.000000Z"),
                json!("2026-01-02T03:04:05.000006Z"),
            ]),
            Shape::Duration => self.one_of(&[json!("0s"), json!("1h30m"), json!("-5ms")]),
            Shape::Quantity => self.one_of(&[
                json!(1),
                json!(0.5),
                json!("1e3"),
                json!("100m"),
                json!("5Gi"),
                json!(-3),
            ]),
            Shape::IntOrString => {
                self.one_of(&[json!(80), json!("80%"), json!(""), json!(i32::MIN)])
            }
            Shape::Any | Shape::FieldsV1 => self.one_of(&[
                json!({}),
                json!({ "conditions": [null, {}], "a": null }),
                json!([]),
                json!(7),
                json!("s"),
            ]),
            Shape::Object(_) | Shape::Map { .. } if depth >= DEPTH_MAX => json!({}),
            Shape::List { .. } if depth >= DEPTH_MAX => json!([]),
            Shape::List { items, .. } => {
                let items = *items;
                (0..self.below(3)).map(|_| self.maybe_null(items, depth + 1)).collect()
            }
            Shape::Map { values, .. } => {
                let values = *values;
                let keys = ["k", "a.b/c", ""];
                let count = self.below(3);
                keys[..count]
                    .iter()
                    .map(|key| ((*key).to_owned(), self.maybe_null(values, depth + 1)))
                    .collect::<Map<_, _>>()
                    .into()
            }
            Shape::Object(object) => {
                let mut out = Map::new();
                for (name, field) in &object.fields {
                    // Half of the fields are left out, so that objects stay small.
                    if self.below(2) == 0 && !matches!(name.as_str(), "apiVersion" | "kind") {
                        out.insert(name.clone(), self.maybe_null(field.ty, depth + 1));
                    }
                }
                out.into()
            }
        }
    }

    /// Types of JSON schemas that have one of two forms. The schema allows anything, but Go accepts only these.
    fn either(&mut self, ty: TypeId) -> Option<Value> {
        let name = self.schema.get(ty).name.as_deref()?;
        let two = match name.rsplit('.').next()? {
            "JSONSchemaPropsOrArray" => [json!({}), json!([{}])],
            "JSONSchemaPropsOrBool" => [json!({}), json!(true)],
            "JSONSchemaPropsOrStringArray" => [json!({}), json!(["a"])],
            _ => return None,
        };
        Some(self.one_of(&two))
    }

    fn maybe_null(&mut self, ty: TypeId, depth: usize) -> Value {
        // Validation refuses all that could hold a null of these types: `dependencies` of JSON schemas.
        if let Some(value) = self.either(ty) {
            return value;
        }
        if self.below(8) == 0 { Value::Null } else { self.value(ty, depth) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Decoding accepts more than validation lets through, so this is the stronger statement.
    #[test]
    fn every_object_that_the_server_decodes_can_be_read_by_caches(rng in any::<u64>().prop_perturb(|_, rng| rng)) {
        let registry = api::Registry::built_in();
        let mut generator = Generator { schema: &Schema::built_in(), rng };
        for (api_version, kind, read) in typed::LISTED {
            if *kind == SUBRESOURCE {
                continue;
            }
            let known = registry.kinds().iter().find(|k| k.kind == *kind && k.api_version() == *api_version);
            prop_assert!(known.is_some(), "the server has no {kind} of {api_version}");
            let Some(known) = known else { continue };
            let mut accepted_any = false;
            for _ in 0..8 {
                let sent = generator.value(known.ty, 0);
                let Ok(accepted) = decode::value(&known.schema, known.ty, sent.clone()) else { continue };
                accepted_any = true;
                let stored = accepted.value.to_string();
                prop_assert!(read(&stored).is_ok(), "{kind}: {:?}\nof {stored}\nfrom {sent}", read(&stored));
                // The garbage collector reads the metadata of every kind.
                let partial = <client::PartialObject as typed::Typed>::decode(&stored);
                prop_assert!(partial.is_ok(), "metadata of {kind}: {partial:?}\nof {stored}\nfrom {sent}");
            }
            prop_assert!(accepted_any, "no generated {kind} was accepted");
        }
    }
}
