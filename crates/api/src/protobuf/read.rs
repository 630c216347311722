//! Decodes a message into a value by the schema.

use super::numbers::{self, Slot, Slots};
use super::wire::{self, Reader, Wire};
use crate::decode::{self, DecodeError, MAX_DEPTH};
use crate::quantity::Quantity;
use crate::schema::{Object, Schema, Shape, TypeId};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Number, Value};

/// Reads the message of an object type.
pub(super) fn message(
    schema: &Schema,
    ty: TypeId,
    bytes: &[u8],
) -> Result<Map<String, Value>, DecodeError> {
    Messages { schema, depth: 0 }.object(ty, bytes)
}

struct Messages<'s> {
    schema: &'s Schema,
    depth: usize,
}

impl<'s> Messages<'s> {
    fn object(&mut self, ty: TypeId, bytes: &[u8]) -> Result<Map<String, Value>, DecodeError> {
        if self.depth >= MAX_DEPTH {
            return Err(DecodeError::malformed("exceeded max depth"));
        }
        let mut out = Map::new();
        let slots = self.schema.get(ty).name.as_deref().and_then(numbers::of);
        if let (Some(slots), Shape::Object(object)) = (slots, self.schema.shape(ty)) {
            self.depth += 1;
            self.fields(object, slots, bytes, &mut out)?;
            self.depth -= 1;
            out.retain(|name, value| {
                object.fields.get(name).is_none_or(|f| !decode::is_nothing(f, self.schema, value))
            });
        }
        Ok(out)
    }

    fn fields(
        &mut self,
        object: &'s Object,
        slots: &Slots,
        bytes: &[u8],
        out: &mut Map<String, Value>,
    ) -> Result<(), DecodeError> {
        for field in Reader::new(bytes) {
            let (number, wire) = field?;
            match (slots.get(&number), wire) {
                (Some(Slot::Inline(inner)), Wire::Bytes(bytes)) => {
                    self.fields(object, inner, bytes, out)?;
                }
                (Some(Slot::Field(name)), wire) => {
                    if let Some(field) = object.fields.get(name) {
                        self.field(name, field.ty, wire, out)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds one occurrence of a field to the object; lists and maps have several.
    fn field(
        &mut self,
        name: &str,
        ty: TypeId,
        wire: Wire,
        out: &mut Map<String, Value>,
    ) -> Result<(), DecodeError> {
        match self.schema.shape(ty) {
            Shape::List { items, .. } => {
                let entry = out.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = entry {
                    self.items(*items, wire, list)?;
                }
            }
            Shape::Map { values, .. } => {
                let (key, value) = self.entry(*values, bytes(wire)?)?;
                let entry = out.entry(name).or_insert_with(|| Map::new().into());
                if let Value::Object(map) = entry {
                    map.insert(key, value);
                }
            }
            _ => match self.value(ty, wire)? {
                Value::Null => {}
                value => {
                    out.insert(name.to_owned(), value);
                }
            },
        }
        Ok(())
    }

    fn items(&mut self, ty: TypeId, wire: Wire, list: &mut Vec<Value>) -> Result<(), DecodeError> {
        match (self.schema.shape(ty), wire) {
            (Shape::Integer { .. } | Shape::Bool, Wire::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    let number = wire::varint(&mut packed)?;
                    list.push(self.value(ty, Wire::Varint(number))?);
                }
            }
            _ => list.push(self.value(ty, wire)?),
        }
        Ok(())
    }

    /// One entry of a map: a message of key and value.
    fn entry(&mut self, values: TypeId, bytes: &[u8]) -> Result<(String, Value), DecodeError> {
        let mut key = String::new();
        let mut value = None;
        for field in Reader::new(bytes) {
            match field? {
                (1, Wire::Bytes(text)) => key = wire::text(text)?.to_owned(),
                (2, wire) => value = Some(self.value(values, wire)?),
                _ => {}
            }
        }
        let value = match value {
            Some(value) => value,
            None if matches!(self.schema.shape(values), Shape::Object(_)) => Map::new().into(),
            None => self.value(values, Wire::Bytes(&[])).unwrap_or_default(),
        };
        Ok((key, value))
    }

    /// Null means unset.
    fn value(&mut self, ty: TypeId, wire: Wire) -> Result<Value, DecodeError> {
        Ok(match self.schema.shape(ty) {
            Shape::Bool => (varint(wire)? != 0).into(),
            Shape::Integer { bits: 32 } => (varint(wire)? as i32).into(),
            Shape::Integer { .. } => (varint(wire)? as i64).into(),
            Shape::Number => match wire {
                Wire::Fixed64(bits) => float(f64::from_bits(bits)),
                _ => return Err(wrong_wire()),
            },
            Shape::String => wire::text(bytes(wire)?)?.into(),
            Shape::Bytes => STANDARD.encode(bytes(wire)?).into(),
            Shape::Time => time(bytes(wire)?, false)?,
            Shape::MicroTime => time(bytes(wire)?, true)?,
            Shape::Duration => format!("{}ns", first_varint(bytes(wire)?)? as i64).into(),
            Shape::Quantity => quantity(bytes(wire)?)?,
            Shape::IntOrString => int_or_string(bytes(wire)?)?,
            Shape::FieldsV1 => raw(bytes(wire)?)?,
            Shape::Any => self.any(ty, bytes(wire)?)?,
            Shape::Object(_) => self.object(ty, bytes(wire)?)?.into(),
            // A list inside a map or a list is encoded as a message that contains the list.
            Shape::List { items, .. } => {
                let mut list = Vec::new();
                for field in Reader::new(bytes(wire)?) {
                    if let (1, wire) = field? {
                        self.items(*items, wire, &mut list)?;
                    }
                }
                list.into()
            }
            Shape::Map { .. } => return Err(wrong_wire()),
        })
    }

    /// Types that allow any JSON: raw JSON, or one of the union types of a JSON schema.
    fn any(&mut self, ty: TypeId, bytes: &[u8]) -> Result<Value, DecodeError> {
        let name = self.schema.get(ty).name.as_deref().unwrap_or_default();
        let Some(alternative) =
            name.rsplit('.').next().and_then(|n| n.strip_prefix("JSONSchemaPropsOr"))
        else {
            return raw(bytes);
        };
        let Some(props) = self.schema.named(&name.replace(&format!("Or{alternative}"), "")) else {
            return Ok(Value::Null);
        };
        let (schema_number, other_number) = if alternative == "Bool" { (2, 1) } else { (1, 2) };
        let mut schema = None;
        let mut allowed = false;
        let mut list: Vec<Value> = Vec::new();
        for field in Reader::new(bytes) {
            match field? {
                (number, Wire::Bytes(bytes)) if number == schema_number => {
                    schema = Some(self.object(props, bytes)?.into());
                }
                (number, Wire::Varint(value)) if number == other_number => allowed = value != 0,
                (number, Wire::Bytes(bytes)) if number == other_number => {
                    list.push(match alternative {
                        "Array" => self.object(props, bytes)?.into(),
                        _ => wire::text(bytes)?.into(),
                    });
                }
                _ => {}
            }
        }
        Ok(match alternative {
            "Bool" => schema.unwrap_or(allowed.into()),
            _ if !list.is_empty() => list.into(),
            _ => schema.unwrap_or(Value::Null),
        })
    }
}

fn bytes(wire: Wire<'_>) -> Result<&[u8], DecodeError> {
    match wire {
        Wire::Bytes(bytes) => Ok(bytes),
        _ => Err(wrong_wire()),
    }
}

fn varint(wire: Wire) -> Result<u64, DecodeError> {
    match wire {
        Wire::Varint(value) => Ok(value),
        _ => Err(wrong_wire()),
    }
}

fn wrong_wire() -> DecodeError {
    DecodeError::malformed("proto: wrong wireType")
}

fn float(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return (value as i64).into();
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn first_varint(bytes: &[u8]) -> Result<u64, DecodeError> {
    for field in Reader::new(bytes) {
        if let (1, Wire::Varint(value)) = field? {
            return Ok(value);
        }
    }
    Ok(0)
}

/// `{seconds, nanos}`; an empty message means "not set".
fn time(bytes: &[u8], micro: bool) -> Result<Value, DecodeError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    for field in Reader::new(bytes) {
        match field? {
            (1, Wire::Varint(value)) => seconds = value as i64,
            (2, Wire::Varint(value)) => nanos = value as i32,
            _ => {}
        }
    }
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    let time = Timestamp::new(seconds, if micro { nanos } else { 0 })
        .map_err(|_| DecodeError::malformed("proto: time out of range"))?;
    Ok(time.strftime(format).to_string().into())
}

fn quantity(bytes: &[u8]) -> Result<Value, DecodeError> {
    for field in Reader::new(bytes) {
        if let (1, Wire::Bytes(text)) = field? {
            let quantity = Quantity::parse(wire::text(text)?).map_err(DecodeError::new)?;
            return Ok(quantity.to_string().into());
        }
    }
    Ok("0".into())
}

/// `{type, intVal, strVal}`
fn int_or_string(bytes: &[u8]) -> Result<Value, DecodeError> {
    let (mut is_string, mut number, mut text) = (false, 0, "");
    for field in Reader::new(bytes) {
        match field? {
            (1, Wire::Varint(value)) => is_string = value == 1,
            (2, Wire::Varint(value)) => number = value as i32,
            (3, Wire::Bytes(value)) => text = wire::text(value)?,
            _ => {}
        }
    }
    Ok(if is_string { text.into() } else { number.into() })
}

/// `{raw}`: JSON in bytes.
fn raw(bytes: &[u8]) -> Result<Value, DecodeError> {
    for field in Reader::new(bytes) {
        if let (1, Wire::Bytes(json)) = field? {
            return match json {
                [] => Ok(Value::Null),
                json => Ok(decode::json_any(json)?.0),
            };
        }
    }
    Ok(Value::Null)
}
