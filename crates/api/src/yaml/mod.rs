//! Decodes bodies in YAML into JSON.
//!
//! Scalars have the same meaning as in upstream's parser, which follows YAML 1.1: `yes` and a plain `y`
//! are true, `010` is eight. Only the first document of a body is read. Aliases are resolved within a
//! budget, so that a small body cannot become a huge object.
//!
//! Not here: what fields the object may have (`decode`).

mod scalar;

use crate::decode::{DecodeError, MAX_DEPTH};
use granit_parser::{Event, Options, Parser, ScalarStyle};
use scalar::Scalar;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// How much aliases may add to a document: number of values plus bytes of text.
const ALIAS_BUDGET: usize = 1 << 20;

/// The value of a document, and its duplicate keys (the last one counts).
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub value: Value,
    pub duplicates: Duplicates,
}

/// Duplicate keys, with the lines of the later values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Duplicates(Vec<(usize, String)>);

impl Duplicates {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// As upstream's parser lists them (A-143): a heading, then one line each.
impl std::fmt::Display for Duplicates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("yaml: unmarshal errors:")?;
        for (line, key) in &self.0 {
            write!(f, "\n  line {line}: key {key:?} already set in map")?;
        }
        Ok(())
    }
}

/// Reads the first document of a body.
pub fn to_json(bytes: &[u8]) -> Result<Document, DecodeError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| DecodeError::malformed("yaml: invalid leading UTF-8 octet"))?;
    let mut options = Options::default();
    options.emit_comments = false;
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let mut reader = Reader::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let line = error.marker().line();
            DecodeError::malformed(format!("yaml: line {line}: {}", error.info()))
        })?;
        if matches!(event, Event::DocumentEnd) {
            break;
        }
        reader.take(event, span.start.line())?;
    }
    Ok(Document { value: reader.root, duplicates: reader.duplicates })
}

/// An object in YAML, for clients that ask for it.
pub fn from_json(value: &Value) -> String {
    // Writing to a string fails only for keys that are not strings, which JSON does not have.
    serde_saphyr::to_string(value).unwrap_or_default()
}

/// Builds the value from the parser's events; unfinished collections are on a stack.
#[derive(Default)]
struct Reader {
    stack: Vec<Open>,
    root: Value,
    /// Anchored values with their weight against the budget.
    anchors: HashMap<usize, (Value, usize)>,
    aliased: usize,
    duplicates: Duplicates,
}

struct Open {
    anchor: usize,
    line: usize,
    /// The weight of this collection if it is aliased.
    weight: usize,
    what: Collection,
}

enum Collection {
    List(Vec<Value>),
    Map {
        map: Map<String, Value>,
        key: Option<Key>,
        /// The content of `<<`; the map's own keys override it.
        merged: Vec<Value>,
    },
}

enum Key {
    Merge,
    Name(String),
}

impl Reader {
    fn take(&mut self, event: Event, line: usize) -> Result<(), DecodeError> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_ref().filter(|tag| tag.is_yaml_core_schema());
                let string = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                let plain = style == ScalarStyle::Plain || tag.is_some();
                let scalar = if plain && !string {
                    scalar::resolve(&text)
                } else {
                    Scalar::String(text.into_owned())
                };
                self.scalar(scalar, anchor, line)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.open(anchor, line, Collection::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, _) => {
                let (map, merged) = (Map::new(), Vec::new());
                self.open(anchor, line, Collection::Map { map, key: None, merged })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => self.alias(id, line),
            _ => Ok(()),
        }
    }

    fn scalar(&mut self, scalar: Scalar, anchor: usize, line: usize) -> Result<(), DecodeError> {
        if let Some(Open { what: Collection::Map { key: key @ None, .. }, weight, .. }) =
            self.stack.last_mut()
        {
            let name = match scalar {
                Scalar::Merge => Key::Merge,
                other => Key::Name(other.into_key().map_err(DecodeError::malformed)?),
            };
            if let Key::Name(name) = &name {
                *weight += name.len();
                if anchor != 0 {
                    self.anchors.insert(anchor, (name.as_str().into(), 1 + name.len()));
                }
            }
            *key = Some(name);
            return Ok(());
        }
        let value = scalar.into_value().map_err(DecodeError::malformed)?;
        let weight = 1 + value.as_str().map_or(0, str::len);
        self.put(value, anchor, weight, line)
    }

    fn open(&mut self, anchor: usize, line: usize, what: Collection) -> Result<(), DecodeError> {
        if let Some(Open { what: Collection::Map { key: None, .. }, .. }) = self.stack.last() {
            return Err(DecodeError::malformed("yaml: invalid map key: a list or a map"));
        }
        if self.stack.len() >= MAX_DEPTH {
            return Err(DecodeError::malformed("yaml: exceeded max depth"));
        }
        self.stack.push(Open { anchor, line, weight: 1, what });
        Ok(())
    }

    fn close(&mut self) -> Result<(), DecodeError> {
        let Some(open) = self.stack.pop() else { return Ok(()) };
        let value = match open.what {
            Collection::List(list) => list.into(),
            Collection::Map { mut map, merged, .. } => {
                for source in merged {
                    merge(&mut map, source)?;
                }
                map.into()
            }
        };
        self.put(value, open.anchor, open.weight, open.line)
    }

    /// Adds a finished value to the innermost open collection.
    fn put(
        &mut self,
        value: Value,
        anchor: usize,
        weight: usize,
        line: usize,
    ) -> Result<(), DecodeError> {
        if anchor != 0 {
            // The copy for an anchor costs as much of the budget as an alias.
            self.spend(weight)?;
            self.anchors.insert(anchor, (value.clone(), weight));
        }
        let Some(open) = self.stack.last_mut() else {
            self.root = value;
            return Ok(());
        };
        open.weight += weight;
        match &mut open.what {
            Collection::List(list) => list.push(value),
            Collection::Map { map, key, merged } => match key.take() {
                Some(Key::Name(name)) => {
                    if map.contains_key(&name) {
                        self.duplicates.0.push((line, name.clone()));
                    }
                    map.insert(name, value);
                }
                Some(Key::Merge) => merged.push(value),
                None => {}
            },
        }
        Ok(())
    }

    fn alias(&mut self, id: usize, line: usize) -> Result<(), DecodeError> {
        let Some((value, weight)) = self.anchors.get(&id) else {
            return Err(DecodeError::malformed("yaml: anchor value contains itself"));
        };
        if self.stack.len() + depth(value) > MAX_DEPTH {
            return Err(DecodeError::malformed("yaml: exceeded max depth"));
        }
        let (value, weight) = (value.clone(), *weight);
        self.spend(weight)?;
        if let Some(Open { what: Collection::Map { key: key @ None, .. }, .. }) =
            self.stack.last_mut()
        {
            return match value {
                Value::String(name) => {
                    *key = Some(Key::Name(name));
                    Ok(())
                }
                _ => Err(DecodeError::malformed("yaml: invalid map key")),
            };
        }
        self.put(value, 0, weight, line)
    }

    fn spend(&mut self, weight: usize) -> Result<(), DecodeError> {
        self.aliased += weight;
        if self.aliased > ALIAS_BUDGET {
            return Err(DecodeError::malformed("yaml: document contains excessive aliasing"));
        }
        Ok(())
    }
}

/// Adds the content of `<<`: a map, or a list of maps of which the first takes precedence.
fn merge(map: &mut Map<String, Value>, source: Value) -> Result<(), DecodeError> {
    match source {
        Value::Object(source) => {
            for (key, value) in source {
                map.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(list) if list.iter().all(Value::is_object) => {
            list.into_iter().try_for_each(|source| merge(map, source))
        }
        _ => Err(DecodeError::malformed(
            "yaml: map merge requires map or sequence of maps as the value",
        )),
    }
}

/// The recursion is bounded by the depth that the parser allows.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        to_json(text.as_bytes()).unwrap().value
    }

    #[test]
    fn a_manifest_is_decoded_to_json() {
        let text = r#"
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: "1", 2: b}}
spec:
  replicas: 1.0
  on: [yes, ~]
  text: |-
    x
    y
"#;
        assert_eq!(
            value(text),
            json!({"apiVersion": "v1", "kind": "Pod",
                   "metadata": {"name": "a", "labels": {"app": "1", "2": "b"}},
                   "spec": {"replicas": 1, "true": [true, null], "text": "x\ny"}})
        );
    }

    #[test]
    fn a_plain_y_is_true_and_not_a_string() {
        let schema = crate::Schema::built_in();
        let ty = schema.named("io.k8s.api.core.v1.Pod").unwrap();
        let error = crate::decode::value(&schema, ty, value("metadata:\n  name: y\n")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.name of type string"
        );
    }

    #[test]
    fn json_is_yaml_and_keeps_its_numbers() {
        let text = r#"{"a": [1, 2.5, "3", null, true], "b": {"c": -9007199254740993}}"#;
        assert_eq!(value(text), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_143_duplicate_keys_are_reported_with_their_line() {
        let document = to_json(b"a: 1\nb:\n  c: 1\n  c: 2\na: 3\n").unwrap();
        assert_eq!(document.value, json!({"a": 3, "b": {"c": 2}}));
        assert_eq!(
            document.duplicates.to_string(),
            "yaml: unmarshal errors:\n  line 4: key \"c\" already set in map\n  \
             line 5: key \"a\" already set in map"
        );
    }

    #[test]
    fn only_the_first_document_is_read() {
        assert_eq!(value("a: 1\n---\nb: 2\n"), json!({"a": 1}));
        assert_eq!(value("---\na: 1\n"), json!({"a": 1}));
        assert_eq!(value(""), Value::Null);
    }

    #[test]
    fn anchors_and_merge_keys_are_resolved() {
        let text = "base: &b {x: 1, y1: 2}\nown:\n  <<: *b\n  x: 3\nlist: [*b]\n";
        assert_eq!(
            value(text),
            json!({"base": {"x": 1, "y1": 2}, "own": {"x": 3, "y1": 2}, "list": [{"x": 1, "y1": 2}]})
        );
    }

    #[test]
    fn an_alias_bomb_is_rejected() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..12 {
            let refs = vec![format!("*a{}", n - 1); 10].join(",");
            text += &format!("a{n}: &a{n} [{refs}]\n");
        }
        let error = to_json(text.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "yaml: document contains excessive aliasing");
        assert!(to_json(b"a: &a [*a]\n").is_err());
    }

    #[test]
    fn depth_is_bounded_and_malformed_text_is_rejected() {
        assert!(to_json("[".repeat(100_000).as_bytes()).is_err());
        assert!(to_json("- ".repeat(100_000).as_bytes()).is_err());
        let mut chained = String::from("a0: &a0 [x]\n");
        for n in 1..300 {
            chained += &format!("a{n}: &a{n} [*a{}]\n", n - 1);
        }
        assert!(to_json(chained.as_bytes()).is_err());
        assert!(to_json(b"a: b: c").unwrap_err().to_string().starts_with("yaml: line 1: "));
        assert!(to_json(b"a: \xff").is_err());
    }

    #[test]
    fn written_yaml_decodes_to_the_same_value() {
        let object = json!({"a": "y", "b": ["1", 1, 1.5, null, true, ""], "c": {"d": "x: y\n# z\n"},
                            "e": "010", "f": "null", "g": {}, "h": []});
        assert_eq!(value(&from_json(&object)), object);
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(text in "[-a-z0-9:\\[\\]{}&*!|>#%?'\", \n]{0,80}") {
            let _ = to_json(text.as_bytes());
        }
    }
}
