//! An openAPIV3Schema, parsed once. The definition was validated when it was written, so anything that
//! cannot be parsed here is ignored.

use super::format::Format;
use super::pattern::Pattern;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Schema nodes below this depth are ignored. The JSON of a definition cannot be half as deep.
const DEPTH_MAX: usize = 128;

/// One place in the schema.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    /// None, one, or `integer` and `string`.
    pub(super) types: Vec<String>,
    pub(super) nullable: bool,
    pub(super) int_or_string: bool,
    pub(super) preserve_unknown: bool,
    pub(super) embedded: bool,
    pub(super) format: Option<Format>,
    pub(super) properties: BTreeMap<String, Node>,
    pub(super) additional: Additional,
    pub(super) items: Option<Box<Node>>,
    pub(super) list: ListType,
    pub(super) atomic_map: bool,
    pub(super) required: Vec<String>,
    pub(super) allowed: Vec<Value>,
    pub(super) default: Option<Value>,
    pub(super) maximum: Option<Bound>,
    pub(super) minimum: Option<Bound>,
    pub(super) multiple_of: Option<f64>,
    pub(super) length: Range,
    pub(super) count: Range,
    pub(super) size: Range,
    pub(super) pattern: Option<Pattern>,
    pub(super) all_of: Vec<Node>,
    pub(super) any_of: Vec<Node>,
    pub(super) one_of: Vec<Node>,
    pub(super) not: Option<Box<Node>>,
    /// Has CEL rules.
    ruled: bool,
}

/// Fields besides the declared ones.
#[derive(Debug, Clone, Default)]
pub(super) enum Additional {
    #[default]
    Unsaid,
    Allowed,
    Refused,
    Of(Box<Node>),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bound {
    pub(super) at: f64,
    pub(super) exclusive: bool,
}

/// How many characters, items or fields there may be.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Range {
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
}

impl Node {
    pub(super) fn read(schema: &Value) -> Node {
        read(schema, 0)
    }

    /// The schema of the field with this name, if there is one.
    pub(super) fn field(&self, name: &str) -> Option<&Node> {
        self.properties.get(name).or(match &self.additional {
            Additional::Of(values) => Some(values),
            Additional::Unsaid | Additional::Allowed | Additional::Refused => None,
        })
    }

    /// Collects notes about unsupported features in this node and below.
    pub(super) fn unsupported(&self, path: &str, notes: &mut Vec<String>) {
        let place = if path.is_empty() { "schema" } else { path };
        if self.ruled {
            notes.push(format!("{place}: x-kubernetes-validations are not evaluated"));
        }
        if self.pattern.as_ref().is_some_and(|pattern| !pattern.is_compiled()) {
            notes.push(format!("{place}: the pattern cannot be compiled, so nothing matches it"));
        }
        for (name, node) in &self.properties {
            let dot = if path.is_empty() { "" } else { "." };
            node.unsupported(&format!("{path}{dot}{name}"), notes);
        }
        if let Additional::Of(values) = &self.additional {
            values.unsupported(&format!("{path}[*]"), notes);
        }
        if let Some(items) = &self.items {
            items.unsupported(&format!("{path}[*]"), notes);
        }
        let parts = self.all_of.iter().chain(&self.any_of).chain(&self.one_of);
        for part in parts.chain(self.not.as_deref()) {
            part.unsupported(path, notes);
        }
    }
}

fn read(schema: &Value, depth: usize) -> Node {
    let Value::Object(schema) = schema else { return Node::default() };
    if depth >= DEPTH_MAX {
        return Node { preserve_unknown: true, ..Node::default() };
    }
    let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
    let flag = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or(false);
    let inner = |key: &str| schema.get(key).map(|schema| Box::new(read(schema, depth + 1)));
    let parts = |key: &str| {
        let list = schema.get(key).and_then(Value::as_array);
        list.into_iter().flatten().map(|schema| read(schema, depth + 1)).collect()
    };
    let int_or_string = flag("x-kubernetes-int-or-string");
    let types = if int_or_string {
        vec!["integer".into(), "string".into()]
    } else {
        Some(text("type")).filter(|ty| !ty.is_empty()).map(str::to_owned).into_iter().collect()
    };
    let pattern = Some(text("pattern")).filter(|pattern| !pattern.is_empty());
    let properties = schema.get("properties").and_then(Value::as_object);
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    Node {
        format: Format::named(&types, text("format")),
        types,
        nullable: flag("nullable"),
        int_or_string,
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        embedded: flag("x-kubernetes-embedded-resource"),
        properties: properties
            .into_iter()
            .flatten()
            .map(|(name, schema)| (name.clone(), read(schema, depth + 1)))
            .collect(),
        additional: match schema.get("additionalProperties") {
            None | Some(Value::Null) => Additional::Unsaid,
            Some(Value::Bool(true)) => Additional::Allowed,
            Some(Value::Bool(false)) => Additional::Refused,
            Some(values) => Additional::Of(Box::new(read(values, depth + 1))),
        },
        items: inner("items"),
        list: list_type(schema),
        atomic_map: text("x-kubernetes-map-type") == "atomic",
        required: strings(schema.get("required")),
        allowed: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
        default: schema.get("default").filter(|default| !default.is_null()).cloned(),
        maximum: bound(schema, "maximum", "exclusiveMaximum"),
        minimum: bound(schema, "minimum", "exclusiveMinimum"),
        multiple_of: schema.get("multipleOf").and_then(Value::as_f64),
        length: range(schema, "minLength", "maxLength"),
        count: range(schema, "minItems", "maxItems"),
        size: range(schema, "minProperties", "maxProperties"),
        pattern: pattern.map(Pattern::new),
        all_of: parts("allOf"),
        any_of: parts("anyOf"),
        one_of: parts("oneOf"),
        not: inner("not"),
        ruled: rules.is_some_and(|rules| !rules.is_empty()),
    }
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn list_type(schema: &Map<String, Value>) -> ListType {
    match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(strings(schema.get("x-kubernetes-list-map-keys"))),
        _ => ListType::Atomic,
    }
}

fn bound(schema: &Map<String, Value>, key: &str, exclusive: &str) -> Option<Bound> {
    let at = schema.get(key)?.as_f64()?;
    let exclusive = schema.get(exclusive).and_then(Value::as_bool).unwrap_or(false);
    Some(Bound { at, exclusive })
}

fn range(schema: &Map<String, Value>, min: &str, max: &str) -> Range {
    let number = |key: &str| schema.get(key).and_then(Value::as_u64);
    Range { min: number(min), max: number(max) }
}
