//! Field sets that were written under another schema.
//!
//! The type of a custom resource may change: a granular field becomes atomic, or the other way round.
//! Stored sets are converted to the current schema before anything is compared.

use super::field_set::{self, FieldSet, Node, Part};
use super::managers::Managers;
use super::walk::{Ty, Walk};
use crate::schema::{ListMerge, Shape};
use serde_json::Value;

impl Walk<'_> {
    /// Only for custom resources: built-in types do not change while the server runs.
    pub(super) fn reconcile(&self, managers: &mut Managers, live: &Value) {
        if self.built_in {
            return;
        }
        let present = self.fields(live);
        for fields in managers.sets_mut().filter(|fields| !fields.is_empty()) {
            let part = self.reconciled(Some(self.ty), fields.root(), Some(present.root()));
            *fields = FieldSet::from_root(part.children);
        }
    }

    fn reconciled(&self, ty: Ty, node: &Node, present: Option<&Node>) -> Part {
        let mut part = Part { owned: field_set::owned(node), children: Node::new() };
        let below = |element: &str| -> Ty {
            match (self.schema.shape(ty?), element.strip_prefix("f:")) {
                (Shape::Object(object), Some(name)) => object.fields.get(name).map(|f| f.ty),
                (Shape::Map { values, .. }, Some(_)) => Some(*values),
                (Shape::List { items, .. }, None) => Some(*items),
                _ => None,
            }
        };
        let atomic = match ty.map(|ty| self.schema.shape(ty)) {
            Some(Shape::Object(object)) => object.atomic,
            Some(Shape::Map { atomic, .. }) => *atomic,
            Some(Shape::List { merge, .. }) => *merge == ListMerge::Atomic,
            _ => {
                part.children = node.clone();
                return part;
            }
        };
        if atomic {
            part.owned = true;
        } else if node.is_empty() {
            // Owned as one value so far: now the manager owns all fields in it.
            part.children = present.cloned().unwrap_or_default();
        } else {
            for (element, child) in field_set::children(node) {
                let present = present.and_then(|present| field_set::child(present, element));
                part.insert(element.clone(), self.reconciled(below(element), child, present));
            }
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, Operation};
    use super::*;
    use crate::schema::{Field, Object, Schema, Type};
    use serde_json::json;

    fn widget(atomic: bool) -> (Schema, crate::schema::TypeId) {
        let mut schema = Schema::default();
        let mut add = |shape| schema.add(Type { name: None, shape });
        let text = add(Shape::String);
        let map = add(Shape::Map { values: text, atomic });
        let fields = [("conf".to_owned(), Field::new(map))].into();
        let ty = add(Shape::Object(Object { fields, ..Object::default() }));
        (schema, ty)
    }

    #[test]
    fn a_139_stored_sets_are_converted_after_a_schema_change() {
        let granular = json!({"f:conf": {".": {}, "f:a": {}, "f:b": {}}});
        let gone = json!({"f:gone": {"f:x": {}}});
        for (atomic, was, becomes) in [
            (true, granular.clone(), json!({"f:conf": {}})),
            (true, json!({"f:conf": {"f:a": {}}}), json!({"f:conf": {}})),
            (false, json!({"f:conf": {}}), granular.clone()),
            (false, granular.clone(), granular),
            (false, gone.clone(), gone),
        ] {
            let (schema, ty) = widget(atomic);
            let mut managers = Managers::default();
            managers.add(Entry {
                manager: "m".into(),
                operation: Operation::Apply,
                api_version: "e/v1".into(),
                subresource: String::new(),
                time: None,
                fields: FieldSet::parse(was).unwrap(),
            });
            let live = json!({"conf": {"a": "1", "b": "2"}});
            Walk::new(&schema, ty).reconcile(&mut managers, &live);
            let fields = managers.iter().next().unwrap().fields.clone();
            assert_eq!(fields.into_json(), becomes);
        }
    }
}
