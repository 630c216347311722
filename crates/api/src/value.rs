//! Access to fields of JSON objects for code that changes them.
//!
//! Validation uses [`crate::At`], which also knows the path. These methods are for defaulting and similar
//! code: get a field, create it if it is absent, set it only if it is unset.

use serde_json::{Map, Value};

pub trait ValueExt {
    /// The object's map; replaces null (or anything that is not an object) by an empty object first.
    fn map(&mut self) -> &mut Map<String, Value>;
    /// The field as an object, created if absent.
    fn object(&mut self, field: &str) -> &mut Value;
    /// Sets the field unless it already has a value other than null.
    fn set_default(&mut self, field: &str, value: impl Into<Value>);
    /// The elements of the list in this field; none if absent.
    fn list_mut(&mut self, field: &str) -> std::slice::IterMut<'_, Value>;
    fn remove(&mut self, field: &str) -> Option<Value>;
    /// The string at a path of fields, or "".
    fn text(&self, path: &[&str]) -> &str;
    /// The value at a path of fields, if it is present and not null.
    fn at(&self, path: &[&str]) -> Option<&Value>;
}

impl ValueExt for Value {
    fn map(&mut self) -> &mut Map<String, Value> {
        if !self.is_object() {
            *self = Value::Object(Map::new());
        }
        self.as_object_mut().expect("just made one")
    }

    fn object(&mut self, field: &str) -> &mut Value {
        let entry = self.map().entry(field).or_insert(Value::Null);
        entry.map();
        entry
    }

    fn set_default(&mut self, field: &str, value: impl Into<Value>) {
        let entry = self.map().entry(field).or_insert(Value::Null);
        if entry.is_null() {
            *entry = value.into();
        }
    }

    fn list_mut(&mut self, field: &str) -> std::slice::IterMut<'_, Value> {
        match self.get_mut(field) {
            Some(Value::Array(list)) => list.iter_mut(),
            _ => [].iter_mut(),
        }
    }

    fn remove(&mut self, field: &str) -> Option<Value> {
        self.as_object_mut().and_then(|map| map.remove(field))
    }

    fn text(&self, path: &[&str]) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn at(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(self, |value, field| value.get(field)).filter(|value| !value.is_null())
    }
}
