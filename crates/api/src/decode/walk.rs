//! The decoding pass: a serde visitor that knows the expected type of every value.

use super::error::{DecodeError, Problem};
use super::{MAX_DEPTH, scalar};
use crate::quantity::Quantity;
use crate::schema::{Field, Object, Omit, Schema, Shape, TypeId};
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt::Write as _;

/// Upstream reports at most this many problems, each once.
const MAX_PROBLEMS: usize = 100;

const ANY: &Shape = &Shape::Any;

/// The path to the current value, and the problems found so far.
pub(super) struct Walk<'s> {
    schema: &'s Schema,
    path: Vec<Step<'s>>,
    pub(super) problems: Vec<Problem>,
    /// Set before an error is returned, because serde would change the text of its error.
    pub(super) error: Option<DecodeError>,
    custom: bool,
}

enum Step<'s> {
    /// A declared field of an object type.
    Field(TypeId, &'s str),
    Key(String),
    Index(usize),
}

impl<'s> Walk<'s> {
    pub(super) fn new(schema: &'s Schema) -> Self {
        Walk { schema, path: Vec::new(), problems: Vec::new(), error: None, custom: false }
    }

    pub(super) fn custom(mut self) -> Self {
        self.custom = true;
        self
    }

    fn shape(&self, ty: Option<TypeId>) -> &'s Shape {
        ty.map_or(ANY, |ty| self.schema.shape(ty))
    }

    /// The value that Go uses for a null where a value is required, such as in a list.
    pub(super) fn zero(&self, ty: Option<TypeId>) -> Value {
        match self.shape(ty) {
            _ if !self.is_typed() => Value::Null,
            Shape::Any | Shape::FieldsV1 | Shape::Time | Shape::MicroTime => Value::Null,
            Shape::Bool => false.into(),
            Shape::Integer { .. } | Shape::Number | Shape::IntOrString => 0.into(),
            Shape::String | Shape::Bytes => "".into(),
            Shape::Quantity => "0".into(),
            Shape::Duration => "0s".into(),
            Shape::Object(_) | Shape::Map { .. } => Map::new().into(),
            Shape::List { .. } => Value::Array(Vec::new()),
        }
    }

    /// Whether upstream decodes this value into a Go type, so that types are checked and nulls are
    /// removed. In custom resources, that is only the metadata.
    fn is_typed(&self) -> bool {
        let inside = || {
            self.path.iter().rev().find_map(|step| match step {
                Step::Field(owner, _) => self.schema.get(*owner).name.as_deref(),
                _ => None,
            })
        };
        !self.custom || inside().is_some_and(|name| name.starts_with("io.k8s.apimachinery."))
    }

    /// `spec.containers[0]`, followed by `name`.
    fn path_to(&self, name: &str) -> String {
        let mut path = String::new();
        for step in &self.path {
            let _ = match step {
                Step::Index(index) => write!(path, "[{index}]"),
                Step::Field(_, name) if path.is_empty() => write!(path, "{name}"),
                Step::Field(_, name) => write!(path, ".{name}"),
                Step::Key(key) if path.is_empty() => write!(path, "{key}"),
                Step::Key(key) => write!(path, ".{key}"),
            };
        }
        if !path.is_empty() {
            path.push('.');
        }
        path + name
    }

    fn report(&mut self, problem: fn(String) -> Problem, name: &str) {
        if self.problems.len() < MAX_PROBLEMS {
            let problem = problem(self.path_to(name));
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
    }

    fn fail<T, E: serde::de::Error>(&mut self, message: impl Into<String>) -> Result<T, E> {
        let message = message.into();
        let error = E::custom(&message);
        self.error = Some(DecodeError::new(message));
        Err(error)
    }

    /// Fails with Go's message for a value of the wrong type.
    fn mismatch<T, E: serde::de::Error>(
        &mut self,
        found: &str,
        ty: Option<TypeId>,
    ) -> Result<T, E> {
        // These types decode themselves in Go, so their errors have no path.
        let own = match self.shape(ty) {
            Shape::Quantity => {
                let error = Quantity::parse(found).err().unwrap_or_default();
                return self.fail(error);
            }
            Shape::Time | Shape::MicroTime | Shape::Duration => Some("string"),
            Shape::IntOrString => Some("int32"),
            _ => None,
        };
        if let Some(own) = own {
            return self
                .fail(format!("json: cannot unmarshal {found} into Go value of type {own}"));
        }
        let expected = ty.map_or_else(|| "interface {}".into(), |ty| self.go_type(ty));
        let mut owner = None;
        let mut fields = Vec::new();
        for step in &self.path {
            if let Step::Field(ty, name) = step {
                owner = Some(*ty);
                fields.push(*name);
            }
        }
        let place = match owner {
            None => "value".into(),
            Some(owner) => {
                let name = self.schema.get(owner).name.as_deref().unwrap_or_default();
                let name = name.rsplit('.').next().unwrap_or_default();
                format!("struct field {name}.{}", fields.join("."))
            }
        };
        self.fail(format!("json: cannot unmarshal {found} into Go {place} of type {expected}"))
    }

    /// `[]v1.Container`
    fn go_type(&self, ty: TypeId) -> String {
        match self.schema.shape(ty) {
            Shape::Any | Shape::FieldsV1 => "interface {}".into(),
            Shape::Bool => "bool".into(),
            Shape::Integer { bits } => format!("int{bits}"),
            Shape::Number => "float64".into(),
            Shape::String | Shape::Time | Shape::MicroTime | Shape::Duration => "string".into(),
            Shape::Bytes => "[]uint8".into(),
            Shape::Quantity => "resource.Quantity".into(),
            Shape::IntOrString => "intstr.IntOrString".into(),
            Shape::List { items, .. } => format!("[]{}", self.go_type(*items)),
            Shape::Map { values, .. } => match self.schema.shape(*values) {
                Shape::Quantity => "v1.ResourceList".into(),
                _ => format!("map[string]{}", self.go_type(*values)),
            },
            Shape::Object(_) => {
                let name = self.schema.get(ty).name.as_deref().unwrap_or_default();
                let mut parts = name.rsplit('.');
                let (name, version) = (parts.next().unwrap_or(""), parts.next().unwrap_or("v1"));
                format!("{version}.{name}")
            }
        }
    }
}

/// Decodes one value of the given type, or of any type if `ty` is `None`.
pub(super) struct Seed<'w, 's> {
    pub(super) walk: &'w mut Walk<'s>,
    pub(super) ty: Option<TypeId>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de, 's> Visitor<'de> for Seed<'_, 's> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    /// The caller decides what a null means.
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        match self.walk.shape(self.ty) {
            Shape::Bool | Shape::Any | Shape::FieldsV1 => Ok(value.into()),
            _ => self.other("bool", value.into()),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        match self.walk.shape(self.ty) {
            Shape::Integer { bits: 32 } | Shape::IntOrString if i32::try_from(value).is_err() => {
                self.other(&format!("number {value}"), value.into())
            }
            Shape::Any | Shape::FieldsV1 | Shape::Number => Ok(value.into()),
            Shape::Integer { .. } | Shape::IntOrString => Ok(value.into()),
            Shape::Quantity => self.visit_str(&value.to_string()),
            _ => self.other("number", value.into()),
        }
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => match self.walk.shape(self.ty) {
                Shape::Any | Shape::FieldsV1 | Shape::Number => Ok((value as f64).into()),
                Shape::Quantity => self.visit_str(&value.to_string()),
                Shape::Integer { .. } | Shape::IntOrString => {
                    self.other(&format!("number {value}"), value.into())
                }
                _ => self.other("number", value.into()),
            },
        }
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        match self.walk.shape(self.ty) {
            // Go writes a float without a fraction as an integer.
            Shape::Number if value.fract() == 0.0 && value.abs() < 1e15 => {
                Ok((value as i64).into())
            }
            Shape::Any | Shape::FieldsV1 | Shape::Number => {
                Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
            }
            Shape::Quantity => self.visit_str(&value.to_string()),
            Shape::Integer { .. } | Shape::IntOrString => {
                self.other(&format!("number {value:?}"), value.into())
            }
            _ => self.other("number", value.into()),
        }
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        let canonical = match self.walk.shape(self.ty) {
            Shape::Any | Shape::FieldsV1 | Shape::String | Shape::IntOrString => {
                return Ok(value.into());
            }
            Shape::Bytes => scalar::bytes(value),
            Shape::Time => scalar::time(value),
            Shape::MicroTime => scalar::micro_time(value),
            Shape::Duration => scalar::duration(value).map(|_| value.to_owned()),
            Shape::Quantity => Quantity::parse(value.trim()).map(|quantity| quantity.to_string()),
            _ => return self.other("string", value.into()),
        };
        match canonical {
            Ok(text) if scalar::is_zero_time(&text) && self.is_time() => Ok(Value::Null),
            Ok(text) => Ok(text.into()),
            Err(message) => self.walk.fail(message),
        }
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        match self.walk.shape(self.ty) {
            Shape::Any | Shape::String => Ok(value.into()),
            _ => self.visit_str(&value),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        let items = match self.walk.shape(self.ty) {
            Shape::List { items, .. } => Some(*items),
            Shape::Any | Shape::FieldsV1 => None,
            _ if self.walk.is_typed() => return self.walk.mismatch("array", self.ty),
            _ => None,
        };
        let mut out = Vec::new();
        loop {
            self.walk.path.push(Step::Index(out.len()));
            let item = list.next_element_seed(Seed { walk: self.walk, ty: items })?;
            self.walk.path.pop();
            match item {
                None => return Ok(out.into()),
                Some(Value::Null) => out.push(self.walk.zero(items)),
                Some(item) => out.push(item),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, map: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        match (self.walk.shape(self.ty), self.ty) {
            (Shape::Object(object), Some(ty)) => self.object(ty, object, map),
            (Shape::Map { values, .. }, _) => self.entries(Some(*values), map),
            (Shape::Any | Shape::FieldsV1, _) => self.entries(None, map),
            _ if self.walk.is_typed() => self.walk.mismatch("object", self.ty),
            _ => self.entries(None, map),
        }
    }
}

impl<'s> Seed<'_, 's> {
    /// A value of a type that is not allowed here.
    fn other<E: serde::de::Error>(self, found: &str, value: Value) -> Result<Value, E> {
        if self.walk.is_typed() { self.walk.mismatch(found, self.ty) } else { Ok(value) }
    }

    fn is_time(&self) -> bool {
        matches!(self.walk.shape(self.ty), Shape::Time | Shape::MicroTime)
    }

    fn check_depth<E: serde::de::Error>(&mut self) -> Result<(), E> {
        // The path leads to this value; the value itself is one more level.
        if self.walk.path.len() + 1 >= MAX_DEPTH {
            self.walk.error = Some(DecodeError::malformed("exceeded max depth"));
            return Err(E::custom("exceeded max depth"));
        }
        Ok(())
    }

    fn entries<'de, A: MapAccess<'de>>(
        self,
        values: Option<TypeId>,
        mut map: A,
    ) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            self.walk.path.push(Step::Key(key));
            let value = map.next_value_seed(Seed { walk: self.walk, ty: values })?;
            let Some(Step::Key(key)) = self.walk.path.pop() else {
                return Err(A::Error::custom("path out of step"));
            };
            let value = if value.is_null() { self.walk.zero(values) } else { value };
            if out.contains_key(&key) {
                self.walk.report(Problem::Duplicate, &key);
            }
            out.insert(key, value);
        }
        Ok(out.into())
    }

    fn object<'de, A: MapAccess<'de>>(
        mut self,
        ty: TypeId,
        object: &'s Object,
        mut map: A,
    ) -> Result<Value, A::Error> {
        let mut out = Map::new();
        let mut seen: Vec<&'s str> = Vec::new();
        while let Some(key) = map.next_key_seed(KeySeed(object))? {
            let (name, field) = match key {
                Key::Known(name, field) => (name, field),
                Key::Other(name) => {
                    self.unknown(object.preserve_unknown, name, &mut map, &mut out)?;
                    continue;
                }
            };
            if seen.contains(&name) {
                self.walk.report(Problem::Duplicate, name);
            } else {
                seen.push(name);
            }
            self.walk.path.push(Step::Field(ty, name));
            let value = map.next_value_seed(Seed { walk: self.walk, ty: Some(field.ty) })?;
            let keep_null = !self.walk.is_typed();
            self.walk.path.pop();
            if (value.is_null() && !keep_null) || is_nothing(field, self.walk.schema, &value) {
                out.remove(name);
            } else {
                out.insert(name.to_owned(), value);
            }
        }
        Ok(out.into())
    }

    /// A field that the type does not declare: dropped, unless the type preserves unknown fields.
    fn unknown<'de, A: MapAccess<'de>>(
        &mut self,
        keep: bool,
        name: String,
        map: &mut A,
        out: &mut Map<String, Value>,
    ) -> Result<(), A::Error> {
        if !keep {
            self.walk.report(Problem::Unknown, &name);
            return map.next_value::<IgnoredAny>().map(drop);
        }
        if out.contains_key(&name) {
            self.walk.report(Problem::Duplicate, &name);
        }
        self.walk.path.push(Step::Key(name));
        let value = map.next_value_seed(Seed { walk: self.walk, ty: None })?;
        if let Some(Step::Key(name)) = self.walk.path.pop() {
            out.insert(name, value);
        }
        Ok(())
    }
}

/// Whether this value of the field means the same as "not set".
pub(crate) fn is_nothing(field: &Field, schema: &Schema, value: &Value) -> bool {
    match (field.omit, value) {
        (Omit::Never, _) => false,
        (_, Value::String(text)) => {
            text.is_empty() && matches!(schema.shape(field.ty), Shape::String | Shape::Bytes)
        }
        (_, Value::Array(list)) => {
            list.is_empty() && matches!(schema.shape(field.ty), Shape::List { .. })
        }
        (_, Value::Object(map)) => {
            map.is_empty() && matches!(schema.shape(field.ty), Shape::Map { .. })
        }
        (Omit::Zero, Value::Bool(value)) => !value,
        (Omit::Zero, Value::Number(number)) => number.as_i64() == Some(0),
        _ => false,
    }
}

enum Key<'s> {
    Known(&'s str, &'s Field),
    Other(String),
}

/// Looks a field up without copying its name.
struct KeySeed<'s>(&'s Object);

impl<'de, 's> DeserializeSeed<'de> for KeySeed<'s> {
    type Value = Key<'s>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Key<'s>, D::Error> {
        source.deserialize_str(self)
    }
}

impl<'s> Visitor<'_> for KeySeed<'s> {
    type Value = Key<'s>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Key<'s>, E> {
        Ok(match self.0.fields.get_key_value(name) {
            Some((name, field)) => Key::Known(name, field),
            None => Key::Other(name.to_owned()),
        })
    }
}
