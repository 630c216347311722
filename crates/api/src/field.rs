//! The tools of validation: places in an object, and errors about them.
//!
//! [`At`] is a place in an object: a value and the path that leads to it. Moving around is cheap: the
//! path is formatted only for an error. [`Errors`] collects errors with upstream's messages; they
//! become the causes of one `Invalid` status.

use serde_json::Value;
use std::fmt::Write as _;

/// A place in an object, present or not.
#[derive(Clone, Copy)]
pub struct At<'p, 'v> {
    parent: Option<&'p At<'p, 'v>>,
    step: Step<'p>,
    value: Option<&'v Value>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Root,
    Field(&'p str),
    Index(usize),
    Key(&'p str),
}

impl<'p, 'v> At<'p, 'v> {
    pub fn root(value: &'v Value) -> Self {
        At { parent: None, step: Step::Root, value: Some(value) }
    }

    /// The field of that name, which may be absent.
    pub fn field<'s>(&'s self, name: &'s str) -> At<'s, 'v> {
        let value = self.value.and_then(|value| value.get(name));
        At { parent: Some(self), step: Step::Field(name), value }
    }

    /// The elements of a list; none if it is absent.
    pub fn items<'s>(&'s self) -> impl Iterator<Item = At<'s, 'v>> {
        let list = self.value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        list.iter().enumerate().map(move |(index, value)| At {
            parent: Some(self),
            step: Step::Index(index),
            value: Some(value),
        })
    }

    /// The entries of a map, with paths like `requests[cpu]`; none if it is absent.
    pub fn entries<'s>(&'s self) -> impl Iterator<Item = (&'v str, At<'s, 'v>)>
    where
        'v: 's,
    {
        self.value.and_then(Value::as_object).into_iter().flatten().map(move |(key, value)| {
            (key.as_str(), At { parent: Some(self), step: Step::Key(key), value: Some(value) })
        })
    }

    /// The entry of a map under this key, with a path like `requests[cpu]`.
    pub fn key<'s>(&'s self, key: &'s str) -> At<'s, 'v> {
        let value = self.value.and_then(|value| value.get(key));
        At { parent: Some(self), step: Step::Key(key), value }
    }

    pub fn value(&self) -> Option<&'v Value> {
        self.value
    }

    /// Present and not null.
    pub fn is_set(&self) -> bool {
        self.value.is_some_and(|value| !value.is_null())
    }

    pub fn str(&self) -> Option<&'v str> {
        self.value.and_then(Value::as_str)
    }

    /// The string, or "" if there is none.
    pub fn text(&self) -> &'v str {
        self.str().unwrap_or_default()
    }

    pub fn int(&self) -> Option<i64> {
        self.value.and_then(Value::as_i64)
    }

    pub fn bool(&self) -> Option<bool> {
        self.value.and_then(Value::as_bool)
    }

    /// True only if present and true.
    pub fn is_true(&self) -> bool {
        self.bool() == Some(true)
    }

    pub fn len(&self) -> usize {
        match self.value {
            Some(Value::Array(list)) => list.len(),
            Some(Value::Object(map)) => map.len(),
            _ => 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `spec.containers[0].resources.requests[cpu]`
    pub fn path(&self) -> String {
        let mut path = String::new();
        self.write_path(&mut path);
        path
    }

    fn write_path(&self, path: &mut String) {
        if let Some(parent) = self.parent {
            parent.write_path(path);
        }
        match self.step {
            Step::Root => {}
            Step::Field(name) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
            }
            Step::Index(index) => {
                let _ = write!(path, "[{index}]");
            }
            Step::Key(key) => {
                let _ = write!(path, "[{key}]");
            }
        }
    }
}

/// The type of an error; each is a `reason` that clients branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    TooFew,
    TypeInvalid,
    Internal,
}

impl Wrong {
    pub fn reason(self) -> &'static str {
        match self {
            Wrong::NotFound => "FieldValueNotFound",
            Wrong::Required => "FieldValueRequired",
            Wrong::Duplicate => "FieldValueDuplicate",
            Wrong::Invalid => "FieldValueInvalid",
            Wrong::NotSupported => "FieldValueNotSupported",
            Wrong::Forbidden => "FieldValueForbidden",
            Wrong::TooLong => "FieldValueTooLong",
            Wrong::TooMany => "FieldValueTooMany",
            Wrong::TooFew => "FieldValueTooFew",
            Wrong::TypeInvalid => "FieldValueTypeInvalid",
            Wrong::Internal => "InternalError",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Wrong::NotFound => "Not found",
            Wrong::Required => "Required value",
            Wrong::Duplicate => "Duplicate value",
            Wrong::Invalid | Wrong::TypeInvalid => "Invalid value",
            Wrong::NotSupported => "Unsupported value",
            Wrong::Forbidden => "Forbidden",
            Wrong::TooLong => "Too long",
            Wrong::TooMany => "Too many",
            Wrong::TooFew => "Too few",
            Wrong::Internal => "Internal error",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub wrong: Wrong,
    pub field: String,
    /// `<title>[: <bad value>][: <detail>]`
    pub message: String,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// All errors of an object, in the order in which they were found.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Errors(Vec<FieldError>);

impl Errors {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.0.iter()
    }

    /// For errors that the methods below do not cover.
    pub fn push(&mut self, wrong: Wrong, field: String, value: Option<&Value>, detail: &str) {
        let mut message = wrong.title().to_owned();
        if let Some(value) = value {
            message.push_str(": ");
            message.push_str(&show(value));
        }
        if !detail.is_empty() {
            message.push_str(": ");
            message.push_str(detail);
        }
        self.0.push(FieldError { wrong, field, message });
    }

    pub fn required(&mut self, at: &At, detail: &str) {
        self.push(Wrong::Required, at.path(), None, detail);
    }

    pub fn invalid(&mut self, at: &At, detail: &str) {
        self.push(Wrong::Invalid, at.path(), Some(at.value().unwrap_or(&Value::Null)), detail);
    }

    /// Invalid, with another value in the message than the one in the field.
    pub fn invalid_value(&mut self, at: &At, value: impl Into<Value>, detail: &str) {
        self.push(Wrong::Invalid, at.path(), Some(&value.into()), detail);
    }

    pub fn forbidden(&mut self, at: &At, detail: &str) {
        self.push(Wrong::Forbidden, at.path(), None, detail);
    }

    pub fn duplicate(&mut self, at: &At) {
        self.push(Wrong::Duplicate, at.path(), Some(at.value().unwrap_or(&Value::Null)), "");
    }

    pub fn not_found(&mut self, at: &At) {
        self.push(Wrong::NotFound, at.path(), Some(at.value().unwrap_or(&Value::Null)), "");
    }

    /// Supported values are listed in the given order; upstream sorts some lists and not others.
    pub fn not_supported(&mut self, at: &At, supported: &[&str]) {
        let detail = supported.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
        let detail = format!("supported values: {detail}");
        self.push(
            Wrong::NotSupported,
            at.path(),
            Some(at.value().unwrap_or(&Value::Null)),
            &detail,
        );
    }

    pub fn too_long(&mut self, at: &At, max: usize) {
        let detail = format!("may not be more than {max} bytes");
        self.push(Wrong::TooLong, at.path(), None, &detail);
    }

    pub fn too_many(&mut self, at: &At, max: usize) {
        let detail = format!("must have at most {max} items");
        self.push(Wrong::TooMany, at.path(), Some(&Value::from(at.len())), &detail);
    }
}

impl IntoIterator for Errors {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Strings quoted as Go would (`%q`), everything else as JSON.
fn show(value: &Value) -> String {
    match value {
        // Rust's and JSON's escapes agree with Go's for everything that appears in object fields.
        Value::String(text) => Value::from(text.as_str()).to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_92_paths_and_messages_equal_upstreams() {
        let pod = json!({"spec": {"containers": [{"name": "Bad", "resources": {"requests": {"cpu": "x"}}}]}});
        let root = At::root(&pod);
        let spec = root.field("spec");
        let containers = spec.field("containers");
        let first = containers.items().next().unwrap();
        let mut errors = Errors::default();
        errors.invalid(&first.field("name"), "must be lower case");
        errors.required(&first.field("image"), "");
        errors.not_supported(&first.field("name"), &["a", "b"]);
        let resources = first.field("resources");
        let requests = resources.field("requests");
        let (_, cpu) = requests.entries().next().unwrap();
        errors.invalid(&cpu, "");
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "spec.containers[0].name: Invalid value: \"Bad\": must be lower case",
                "spec.containers[0].image: Required value",
                "spec.containers[0].name: Unsupported value: \"Bad\": supported values: \"a\", \"b\"",
                "spec.containers[0].resources.requests[cpu]: Invalid value: \"x\"",
            ]
        );
    }
}
