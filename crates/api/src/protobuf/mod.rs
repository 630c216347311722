//! Decodes bodies in Kubernetes' protobuf encoding into JSON.
//!
//! A body is the bytes `k8s\0`, then an envelope that names a kind, then the kind's message. The schema has
//! the type of a field, `numbers.txt` its number. Unknown fields are skipped, as in upstream: protobuf has
//! no strict decoding.
//!
//! Not here: encoding protobuf. Every client accepts JSON answers.

mod numbers;
mod read;
mod wire;

use crate::decode::DecodeError;
use crate::schema::{Schema, TypeId};
use serde_json::Value;
use wire::{Reader, Wire};

/// The first bytes of every body.
pub const MAGIC: &[u8] = b"k8s\0";

/// Decodes a body to its apiVersion, its kind and the object. `resolve` returns the type of a kind; it is
/// called with `("", "")` if the body does not name its kind.
pub fn decode(
    schema: &Schema,
    resolve: impl Fn(&str, &str) -> Option<TypeId>,
    bytes: &[u8],
) -> Result<(String, String, Value), DecodeError> {
    let envelope = Envelope::read(bytes)?;
    let Envelope { api_version, kind, raw } = envelope;
    let ty = resolve(&api_version, &kind).ok_or_else(|| {
        DecodeError::new(format!("no kind {kind:?} is registered for version {api_version:?}"))
    })?;
    let mut value = Value::Object(read::message(schema, ty, raw)?);
    if !api_version.is_empty() {
        value["apiVersion"] = api_version.as_str().into();
    }
    if !kind.is_empty() {
        value["kind"] = kind.as_str().into();
    }
    Ok((api_version, kind, value))
}

struct Envelope<'b> {
    api_version: String,
    kind: String,
    raw: &'b [u8],
}

impl<'b> Envelope<'b> {
    fn read(bytes: &'b [u8]) -> Result<Self, DecodeError> {
        let body = bytes.strip_prefix(MAGIC).ok_or_else(|| {
            DecodeError::malformed(
                "provided data does not appear to be a protobuf message, \
                 expected prefix [107 56 115 0]",
            )
        })?;
        let mut envelope = Envelope { api_version: String::new(), kind: String::new(), raw: &[] };
        for field in Reader::new(body) {
            match field? {
                (1, Wire::Bytes(meta)) => envelope.read_type(meta)?,
                (2, Wire::Bytes(raw)) => envelope.raw = raw,
                (3, Wire::Bytes(encoding)) if !encoding.is_empty() => {
                    return Err(DecodeError::malformed("unsupported content encoding"));
                }
                _ => {}
            }
        }
        Ok(envelope)
    }

    fn read_type(&mut self, meta: &[u8]) -> Result<(), DecodeError> {
        for field in Reader::new(meta) {
            match field? {
                (1, Wire::Bytes(text)) => self.api_version = wire::text(text)?.to_owned(),
                (2, Wire::Bytes(text)) => self.kind = wire::text(text)?.to_owned(),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
