//! Checks an applied document against its schema: unknown fields and wrong types are rejected before
//! anything is merged.

use super::element;
use super::walk::{Ty, Walk};
use crate::patch::go_format;
use crate::schema::{ListMerge, Shape, TypeId};
use serde_json::Value;
use std::collections::BTreeSet;

/// What does not fit the schema, in upstream's words; `None` if everything fits.
pub(super) fn schema_errors(walk: &Walk, applied: &Value) -> Option<String> {
    let mut check = Check { walk, path: String::new(), found: Vec::new() };
    check.value(Some(walk.ty), applied, true);
    match check.found.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

struct Check<'w, 's> {
    walk: &'w Walk<'s>,
    path: String,
    found: Vec<String>,
}

impl Check<'_, '_> {
    fn value(&mut self, ty: Ty, value: &Value, whole_object: bool) {
        let Some(ty) = ty.filter(|_| !value.is_null()) else { return };
        match self.walk.schema.shape(ty) {
            Shape::Any | Shape::FieldsV1 => {}
            Shape::Bool => self.scalar(value.is_boolean(), "boolean", value),
            Shape::Integer { .. } | Shape::Number => {
                self.scalar(value.is_number(), "numeric (int or float)", value);
            }
            Shape::String | Shape::Bytes | Shape::Time | Shape::MicroTime | Shape::Duration => {
                self.scalar(value.is_string(), "string", value);
            }
            Shape::Quantity | Shape::IntOrString => {
                self.scalar(value.is_string() || value.is_number(), "string", value);
            }
            Shape::Object(object) => {
                let Value::Object(map) = value else { return self.nested("map", value) };
                for (name, value) in map {
                    let field = object.fields.get(name).map(|field| field.ty);
                    let open = object.preserve_unknown
                        || ((whole_object || object.embedded)
                            && ["apiVersion", "kind", "metadata"].contains(&name.as_str()));
                    self.below(&element::field(name), |check| match field {
                        Some(ty) => check.value(Some(ty), value, false),
                        None if open => {}
                        None => check.report("field not declared in schema"),
                    });
                }
            }
            Shape::Map { values, .. } => {
                let Value::Object(map) = value else { return self.nested("map", value) };
                for (name, value) in map {
                    self.below(&element::field(name), |check| {
                        check.value(Some(*values), value, false);
                    });
                }
            }
            Shape::List { items, merge } => {
                let Value::Array(list) = value else { return self.nested("list", value) };
                self.list(*items, merge, list);
            }
        }
    }

    fn list(&mut self, items: TypeId, merge: &ListMerge, list: &[Value]) {
        let mut seen = BTreeSet::new();
        for (place, item) in list.iter().enumerate() {
            let element = match element_of(merge, place, item) {
                Ok(element) => element,
                Err(why) => {
                    self.report(&format!("element {place}: {why}"));
                    continue;
                }
            };
            if !seen.insert(element.clone()) {
                let mut shown = String::new();
                element::show(&element, &mut shown);
                self.report(&format!("duplicate entries for key {shown}"));
            }
            self.below(&element, |check| check.value(Some(items), item, false));
        }
    }

    fn below(&mut self, element: &str, check: impl FnOnce(&mut Self)) {
        let here = self.path.len();
        element::show(element, &mut self.path);
        check(self);
        self.path.truncate(here);
    }

    fn report(&mut self, what: &str) {
        let path = &self.path;
        self.found.push(if path.is_empty() { what.to_owned() } else { format!("{path}: {what}") });
    }

    fn scalar(&mut self, fits: bool, expected: &str, got: &Value) {
        if !fits {
            let got = match got {
                Value::Object(_) | Value::Array(_) => go_format(got),
                other => other.to_string(),
            };
            self.report(&format!(
                "expected {expected}, got &value.valueUnstructured{{Value:{got}}}"
            ));
        }
    }

    fn nested(&mut self, expected: &str, got: &Value) {
        self.report(&format!("expected {expected}, got &{{{}}}", go_format(got)));
    }
}

fn element_of(merge: &ListMerge, place: usize, item: &Value) -> Result<String, String> {
    match merge {
        ListMerge::Atomic => Ok(format!("i:{place}")),
        ListMerge::Set => match item {
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".into())
            }
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".into())
            }
            Value::Array(_) => {
                Err("not supported: associative list with lists as elements".into())
            }
            scalar => Ok(element::value(scalar)),
        },
        ListMerge::Map(keys) => match item {
            Value::Null => Err("associative list with keys may not have a null element".into()),
            Value::Object(_) => element::keyed(item, keys).map_err(|key| {
                format!("associative list with keys has an element that omits key field {key:?} (and doesn't have default value)")
            }),
            _ => Err("associative list with keys may not have non-map elements".into()),
        },
    }
}
