//! Removes fields that a manager applied before and no longer applies.

use super::FieldSet;
use super::field_set::{self, Node, Part};
use super::walk::{Form, Index, Ty, Walk};
use serde_json::{Map, Value};

impl Walk<'_> {
    /// Removes the fields in the manager's `last` set from the merged object, except those in `managed`
    /// (its new set and those of all others).
    pub(super) fn prune(&self, merged: Value, last: &FieldSet, managed: &FieldSet) -> Value {
        if last.is_empty() {
            return merged;
        }
        let with_parents = |set: &FieldSet| self.with_parents(set);
        let all = with_parents(&self.fields(&merged));
        let last = with_parents(last);

        // Remove everything applied before that no manager still claims.
        let bare = self.without(merged.clone(), &last);
        let mut unclaimed = all.clone();
        unclaimed.subtract(&with_parents(&self.fields(&bare)));
        unclaimed.subtract(&with_parents(managed));
        let claimed = self.without(merged.clone(), &unclaimed);

        // This manager may remove only what it applied itself.
        let mut removed = all;
        removed.subtract(&with_parents(&self.fields(&claimed)));
        self.without(merged, &removed.intersection(&last))
    }

    /// The object without the fields of the set.
    pub(super) fn without(&self, object: Value, set: &FieldSet) -> Value {
        if set.is_empty() {
            return object;
        }
        self.remaining(Some(self.ty), object, set.root())
            .unwrap_or_else(|| Value::Object(Map::new()))
    }

    fn remaining(&self, ty: Ty, value: Value, set: &Node) -> Option<Value> {
        match (self.form(ty, &value), value) {
            (Form::Struct(object), Value::Object(map)) => self
                .remaining_fields(map, set, |name| object.fields.get(name).map(|field| field.ty)),
            (Form::Map(values), Value::Object(map)) => self.remaining_fields(map, set, |_| values),
            (Form::List(items, merge), Value::Array(list)) => {
                let Some(index) = Index::of(&list, merge) else { return Some(Value::Array(list)) };
                let names: Vec<String> = index.items.into_iter().map(|(name, _)| name).collect();
                let left: Vec<Value> = names
                    .iter()
                    .zip(list)
                    .filter_map(|(name, item)| match field_set::child(set, name) {
                        Some(node) if field_set::owned(node) => None,
                        Some(node) => self.remaining(Some(items), item, node),
                        None => Some(item),
                    })
                    .collect();
                (!left.is_empty()).then_some(Value::Array(left))
            }
            // The set names something below an atomic value: remove the whole value.
            (Form::Leaf, Value::Object(_) | Value::Array(_)) => None,
            (_, value) => Some(value),
        }
    }

    fn remaining_fields(
        &self,
        map: Map<String, Value>,
        set: &Node,
        ty: impl Fn(&str) -> Ty,
    ) -> Option<Value> {
        let mut left = Map::new();
        for (name, value) in map {
            let value = match field_set::child(set, &super::element::field(&name)) {
                Some(node) if field_set::owned(node) => None,
                Some(node) => self.remaining(ty(&name), value, node),
                None => Some(value),
            };
            left.extend(value.map(|value| (name, value)));
        }
        (!left.is_empty()).then_some(Value::Object(left))
    }

    /// The set plus all declared parent fields of its members, so that a struct is removed when
    /// no manager claims anything in it.
    fn with_parents(&self, set: &FieldSet) -> FieldSet {
        FieldSet::from_root(self.parents(Some(self.ty), set.root()).children)
    }

    fn parents(&self, ty: Ty, node: &Node) -> Part {
        use crate::schema::Shape;
        let mut part = Part { owned: field_set::owned(node), children: Node::new() };
        let shape = ty.map(|ty| self.schema.shape(ty));
        for (element, below) in field_set::children(node) {
            let declared = match (shape, element.strip_prefix("f:")) {
                (Some(Shape::Object(object)), Some(name)) => object.fields.get(name),
                _ => None,
            };
            let ty = match shape {
                Some(Shape::Object(_)) => declared.map(|field| field.ty),
                Some(Shape::Map { values, .. }) => Some(*values),
                Some(Shape::List { items, .. }) => Some(*items),
                _ => None,
            };
            let mut child = self.parents(ty, below);
            child.owned |= declared.is_some();
            part.insert(element.clone(), child);
        }
        part
    }
}
