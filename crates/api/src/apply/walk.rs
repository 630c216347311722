//! Walking objects by their schema: which fields there are, and how two objects differ.
//!
//! Leaves are scalars and everything that the schema calls atomic. Keys or values identify the elements
//! of list maps and list sets. Where the schema has no type, maps are walked field by field and lists
//! are leaves.

use super::element;
use super::field_set::{FieldSet, Part};
use crate::schema::{Field, ListMerge, Object, Schema, Shape, TypeId};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::LazyLock;

/// A type, or `None` where the schema has no type.
pub(super) type Ty = Option<TypeId>;

/// How a value is taken apart.
pub(super) enum Form<'s> {
    Leaf,
    Struct(&'s Object),
    Map(Ty),
    List(TypeId, &'s ListMerge),
}

/// Fields that nobody owns.
static NEVER_OWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

/// The fields of an object of this type, without those that nobody owns.
pub fn fields_of(schema: &Schema, ty: TypeId, object: &Value) -> FieldSet {
    let mut set = Walk::new(schema, ty).fields(object);
    strip(&mut set);
    set
}

pub(super) fn strip(set: &mut FieldSet) {
    set.subtract(&NEVER_OWNED);
}

/// How one object became another.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// Added, or with another value than before.
    pub changed: FieldSet,
    pub removed: FieldSet,
}

#[derive(Default)]
struct Parts {
    changed: Part,
    removed: Part,
}

impl Parts {
    fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    fn insert(&mut self, element: String, parts: Parts) {
        if parts.removed.is_empty() {
            self.changed.insert(element, parts.changed);
        } else {
            self.changed.insert(element.clone(), parts.changed);
            self.removed.insert(element, parts.removed);
        }
    }
}

/// One side of a comparison.
#[derive(Clone, Copy)]
struct Side<'v> {
    /// None if absent; null counts as present.
    value: Option<&'v Value>,
    /// Absent, but upstream's Go struct holds the zero value here.
    zero: bool,
}

impl<'v> Side<'v> {
    fn of(value: Option<&'v Value>) -> Self {
        Side { value, zero: false }
    }

    fn is_empty(&self) -> bool {
        match self.value {
            None | Some(Value::Null) => true,
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(_) => false,
        }
    }

    fn map(&self) -> Option<&'v Map<String, Value>> {
        self.value.and_then(Value::as_object)
    }

    fn list(&self) -> &'v [Value] {
        self.value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
}

pub(super) struct Walk<'s> {
    pub schema: &'s Schema,
    pub ty: TypeId,
    /// Built-in objects are structs upstream, where some fields exist even when they are unset.
    pub built_in: bool,
}

impl<'s> Walk<'s> {
    pub(super) fn new(schema: &'s Schema, ty: TypeId) -> Self {
        let name = schema.get(ty).name.as_deref();
        Walk { schema, ty, built_in: name.is_some_and(|name| name.starts_with("io.k8s.")) }
    }

    pub(super) fn form(&self, ty: Ty, value: &Value) -> Form<'s> {
        let open = || if value.is_object() { Form::Map(None) } else { Form::Leaf };
        let Some(ty) = ty else { return open() };
        let fits = |form, ok: bool| if ok || value.is_null() { form } else { Form::Leaf };
        match self.schema.shape(ty) {
            Shape::Any | Shape::FieldsV1 => open(),
            Shape::Object(object) if !object.atomic => {
                fits(Form::Struct(object), value.is_object())
            }
            Shape::Map { values, atomic: false } => {
                fits(Form::Map(Some(*values)), value.is_object())
            }
            Shape::List { items, merge } if *merge != ListMerge::Atomic => {
                fits(Form::List(*items, merge), value.is_array())
            }
            _ => Form::Leaf,
        }
    }

    pub(super) fn fields(&self, object: &Value) -> FieldSet {
        FieldSet::from_root(self.part(Some(self.ty), object).children)
    }

    fn part(&self, ty: Ty, value: &Value) -> Part {
        let mut part = Part::default();
        match self.form(ty, value) {
            Form::Leaf => part.owned = true,
            Form::Struct(object) => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    let field = object.fields.get(name);
                    let mut child = self.part(field.map(|field| field.ty), value);
                    let bare = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                    child.owned |= bare || field.is_none();
                    part.insert(element::field(name), child);
                }
            }
            Form::Map(values) => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    let mut child = self.part(values, value);
                    child.owned = true;
                    part.insert(element::field(name), child);
                }
            }
            Form::List(items, merge) => {
                let list = value.as_array().map_or(&[][..], Vec::as_slice);
                let Some(index) = Index::of(list, merge) else {
                    part.owned = true;
                    return part;
                };
                for (element, item) in index.items {
                    // Elements with the same key are owned as one.
                    let mut child = match index.doubles.contains(&element) {
                        true => Part::default(),
                        false => self.part(Some(items), item),
                    };
                    child.owned = true;
                    part.insert(element, child);
                }
            }
        }
        part
    }

    /// Compares two objects. Without an old object, everything in the new one is added.
    pub(super) fn compare(&self, old: Option<&Value>, new: &Value) -> Difference {
        let old = Side::of(Some(old.unwrap_or(&Value::Null)));
        let parts = self.differ(Some(self.ty), old, Side::of(Some(new)));
        Difference {
            changed: FieldSet::from_root(parts.changed.children),
            removed: FieldSet::from_root(parts.removed.children),
        }
    }

    fn differ(&self, ty: Ty, old: Side, new: Side) -> Parts {
        let Some(sample) = [new.value, old.value]
            .into_iter()
            .flatten()
            .find(|v| !v.is_null())
            .or(new.value.or(old.value))
        else {
            return Parts::default();
        };
        let form = self.form(ty, sample);
        let nested = !matches!(form, Form::Leaf);
        let mut parts = match form {
            _ if nested && old.is_empty() && new.is_empty() => return leaf(old, new),
            Form::Leaf => self.differ_as_leaf(ty, old, new),
            Form::Struct(object) => self.differ_in_fields(Some(object), None, old, new),
            Form::Map(values) => self.differ_in_fields(None, values, old, new),
            Form::List(items, merge) => match self.differ_in_items(items, merge, old, new) {
                Some(parts) => parts,
                None => return leaf(old, new),
            },
        };
        if nested {
            parts.changed.owned |= old.value.is_none();
            parts.removed.owned |= new.value.is_none();
        }
        parts
    }

    /// If the old value was a map, all fields in it are removed.
    fn differ_as_leaf(&self, ty: Ty, old: Side, new: Side) -> Parts {
        let mut parts = leaf(old, new);
        if let Some(old) = old.value.filter(|old| parts.changed.owned && old.is_object())
            && !matches!(self.form(ty, old), Form::Leaf)
        {
            parts.removed.children = self.part(ty, old).children;
        }
        parts
    }

    fn differ_in_fields(&self, object: Option<&Object>, values: Ty, old: Side, new: Side) -> Parts {
        let mut parts = Parts::default();
        let empty = Map::new();
        let mut left = old.map().unwrap_or(&empty).iter().peekable();
        let mut right = new.map().unwrap_or(&empty).iter().peekable();
        loop {
            // Both maps are sorted: take the smaller name, or both if they are the same.
            let (name, mut a, mut b) = match (left.peek(), right.peek()) {
                (None, None) => return parts,
                (Some((l, _)), Some((r, _))) if l == r => {
                    let name = l.as_str();
                    (name, Side::of(left.next().map(|e| e.1)), Side::of(right.next().map(|e| e.1)))
                }
                (Some((l, _)), r) if r.is_none_or(|(r, _)| l < r) => {
                    (l.as_str(), Side::of(left.next().map(|e| e.1)), Side::of(None))
                }
                (_, Some((r, _))) => {
                    (r.as_str(), Side::of(None), Side::of(right.next().map(|e| e.1)))
                }
                (Some(_), None) => return parts, // handled by the arm before the last
            };
            let field = object.and_then(|object| object.fields.get(name));
            let one_sided = a.value.is_none() || b.value.is_none();
            if one_sided && field.is_some_and(|field| self.exists_unset(name, field)) {
                a.fill(old);
                b.fill(new);
            }
            let ty = field.map(|field| field.ty).or(values);
            let child = self.differ(ty, a, b);
            if !child.is_empty() {
                parts.insert(element::field(name), child);
            }
        }
    }

    /// `None` if the elements have no distinct keys, so that the list is one leaf.
    fn differ_in_items<'v>(
        &self,
        items: TypeId,
        merge: &ListMerge,
        old: Side<'v>,
        new: Side<'v>,
    ) -> Option<Parts> {
        let mut parts = Parts::default();
        if old.value == new.value {
            return Some(parts);
        }
        let left = Index::of(old.list(), merge)?;
        let right = Index::of(new.list(), merge)?;
        if left.items.is_empty() && right.doubles.is_empty() {
            for (element, item) in right.items {
                let child = self.differ(Some(items), Side::of(None), Side::of(Some(item)));
                parts.insert(element, child);
            }
            return Some(parts);
        }
        let (in_left, in_right) = (left.groups(), right.groups());
        let only_right = in_right.keys().filter(|element| !in_left.contains_key(*element));
        for element in in_left.keys().chain(only_right) {
            let group = |side: &HashMap<&str, Vec<&'v Value>>| side.get(element).cloned();
            let (a, b) = (group(&in_left), group(&in_right));
            let child = match (a.as_deref(), b.as_deref()) {
                (Some([_, _, ..]), _) | (_, Some([_, _, ..])) => {
                    let mut child = Parts::default();
                    child.removed.owned = b.is_none();
                    child.changed.owned = b.is_some() && a != b;
                    child
                }
                (a, b) => {
                    let one = |side: Option<&[&'v Value]>| side.and_then(|s| s.first().copied());
                    self.differ(Some(items), Side::of(one(a)), Side::of(one(b)))
                }
            };
            if !child.is_empty() {
                parts.insert((*element).to_owned(), child);
            }
        }
        Some(parts)
    }

    /// Whether upstream's Go struct holds this field even when it is unset, so that setting it does
    /// not add it: required fields, and structs that are not pointers.
    fn exists_unset(&self, name: &str, field: &Field) -> bool {
        const HELD_BY_VALUE: [&str; 14] = [
            "metadata",
            "spec",
            "status",
            "template",
            "jobTemplate",
            "strategy",
            "updateStrategy",
            "loadBalancer",
            "resources",
            "daemonEndpoints",
            "kubeletEndpoint",
            "nodeInfo",
            "source",
            "acceptedNames",
        ];
        let by_value = || {
            matches!(self.schema.shape(field.ty), Shape::Object(_)) && HELD_BY_VALUE.contains(&name)
        };
        self.built_in && (field.required || by_value())
    }
}

impl Side<'_> {
    /// If the surrounding struct exists, this field's zero value exists too.
    fn fill(&mut self, around: Side) {
        if self.value.is_none() && around.value.is_some() {
            *self = Side { value: Some(&Value::Null), zero: true };
        }
    }
}

fn leaf(old: Side, new: Side) -> Parts {
    let mut parts = Parts::default();
    let same = match (old.value, new.value) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some(_), None) => {
            parts.removed.owned = true;
            return parts;
        }
        (Some(a), Some(b)) => a == b || (old.zero && is_zero(b)) || (new.zero && is_zero(a)),
    };
    parts.changed.owned = !same;
    parts
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// The elements of a list with their path elements.
pub(super) struct Index<'v> {
    pub items: Vec<(String, &'v Value)>,
    /// Path elements that several items share.
    pub doubles: std::collections::BTreeSet<String>,
}

impl<'v> Index<'v> {
    /// `None` if an item lacks a key.
    pub(super) fn of(list: &'v [Value], merge: &ListMerge) -> Option<Self> {
        let mut items = Vec::with_capacity(list.len());
        for item in list {
            let element = match merge {
                ListMerge::Atomic => return None,
                ListMerge::Set if item.is_null() => return None,
                ListMerge::Set => element::value(item),
                ListMerge::Map(_) if !item.is_object() => return None,
                ListMerge::Map(keys) => element::keyed(item, keys).ok()?,
            };
            items.push((element, item));
        }
        let mut names: Vec<&str> = items.iter().map(|(element, _)| element.as_str()).collect();
        names.sort_unstable();
        let doubles = names.windows(2).filter(|pair| pair[0] == pair[1]);
        let doubles = doubles.map(|pair| pair[0].to_owned()).collect();
        Some(Index { items, doubles })
    }

    /// The items by path element; several items if they share it.
    fn groups(&self) -> HashMap<&str, Vec<&'v Value>> {
        let mut groups: HashMap<&str, Vec<&'v Value>> = HashMap::with_capacity(self.items.len());
        for (element, item) in &self.items {
            groups.entry(element).or_default().push(item);
        }
        groups
    }
}
