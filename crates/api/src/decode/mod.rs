//! Decodes a request's body into an object whose types are correct.
//!
//! Decoding follows the schema in one pass. It drops and reports unknown fields, rejects values of the
//! wrong type with upstream's messages, rewrites times and quantities in canonical form, and removes
//! values that mean "not set" (`null`, an empty optional list). After this, no rule has to check whether
//! `replicas` is a number.
//!
//! Not here: YAML (`yaml`) and protobuf (`protobuf`), which produce the same form.

mod error;
mod scalar;
mod walk;

pub use error::{DecodeError, Problem};
pub use scalar::duration;
pub(crate) use walk::is_nothing;

use crate::schema::{Schema, TypeId};
use serde::Deserializer;
use serde::de::DeserializeSeed;
use serde_json::Value;
use walk::{Seed, Walk};

/// Deeper bodies are rejected, as serde_json's parser rejects them: the server must be able to read what
/// it stores.
pub(crate) const MAX_DEPTH: usize = 128;

/// An object and the unknown and duplicate fields of its text, in document order.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub value: Value,
    pub problems: Vec<Problem>,
}

/// Decodes a body of a built-in type.
pub fn json(schema: &Schema, ty: TypeId, bytes: &[u8]) -> Result<Decoded, DecodeError> {
    text(Walk::new(schema), Some(ty), bytes)
}

/// Checks and prunes an object that is already parsed, for example the result of a patch.
pub fn value(schema: &Schema, ty: TypeId, value: Value) -> Result<Decoded, DecodeError> {
    parsed(Walk::new(schema), ty, value)
}

/// Decodes a body of a custom resource. Metadata is decoded as for built-in kinds. In the rest, unknown
/// fields are pruned, but wrong types and nulls remain for validation.
pub fn custom_json(schema: &Schema, ty: TypeId, bytes: &[u8]) -> Result<Decoded, DecodeError> {
    text(Walk::new(schema).custom(), Some(ty), bytes)
}

/// [`custom_json`] for an object that is already parsed.
pub fn custom_value(schema: &Schema, ty: TypeId, value: Value) -> Result<Decoded, DecodeError> {
    parsed(Walk::new(schema).custom(), ty, value)
}

/// Reads JSON of any type; the problems are duplicate fields.
pub fn json_any(bytes: &[u8]) -> Result<(Value, Vec<Problem>), DecodeError> {
    let decoded = text(Walk::new(&Schema::default()), None, bytes)?;
    Ok((decoded.value, decoded.problems))
}

fn text(mut walk: Walk, ty: Option<TypeId>, bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let value = run(&mut walk, ty, &mut parser)
        .and_then(|value| parser.end().map(|()| value))
        .map_err(|error| walk.error.take().unwrap_or_else(|| DecodeError::syntax(&error, bytes)))?;
    Ok(Decoded { value, problems: walk.problems })
}

fn parsed(mut walk: Walk, ty: TypeId, value: Value) -> Result<Decoded, DecodeError> {
    let value = run(&mut walk, Some(ty), value).map_err(|error| {
        walk.error.take().unwrap_or_else(|| DecodeError::new(error.to_string()))
    })?;
    Ok(Decoded { value, problems: walk.problems })
}

fn run<'de, D: Deserializer<'de>>(
    walk: &mut Walk,
    ty: Option<TypeId>,
    source: D,
) -> Result<Value, D::Error> {
    let value = Seed { walk, ty }.deserialize(source)?;
    Ok(if value.is_null() { walk.zero(ty) } else { value })
}

#[cfg(test)]
mod tests;
