//! What can be wrong with a body, in the words of upstream's decoder.

use serde_json::error::Category;

/// An unknown or duplicate field. The request decides whether that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The path has the form `spec.containers[0].imagee`.
    Unknown(String),
    Duplicate(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Unknown(path) => write!(f, "unknown field \"{path}\""),
            Problem::Duplicate(path) => write!(f, "duplicate field \"{path}\""),
        }
    }
}

/// The body is not an object of the expected type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    message: String,
    syntax: bool,
}

impl DecodeError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        DecodeError { message: message.into(), syntax: false }
    }

    /// The body is not valid JSON (or YAML, or protobuf); false if only its content is wrong.
    pub fn is_syntax(&self) -> bool {
        self.syntax
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        DecodeError { message: message.into(), syntax: true }
    }

    /// Go's message for an error of serde_json.
    pub(super) fn syntax(error: &serde_json::Error, bytes: &[u8]) -> Self {
        if error.classify() == Category::Eof {
            return Self::malformed("unexpected end of JSON input");
        }
        let message = error.to_string();
        let found = |prefix| message.starts_with(prefix);
        let place = if found("expected value") {
            "looking for beginning of value"
        } else if found("key must be a string") {
            "looking for beginning of object key string"
        } else if found("expected `:`") {
            "after object key"
        } else if found("expected `,` or `}`") {
            "after object key:value pair"
        } else if found("expected `,` or `]`") {
            "after array element"
        } else if found("trailing characters") {
            "after top-level value"
        } else if found("trailing comma") {
            "looking for beginning of value"
        } else if found("recursion limit exceeded") {
            return Self::malformed("exceeded max depth");
        } else {
            return Self::malformed(message);
        };
        match byte_at(bytes, error.line(), error.column()) {
            Some(byte) => Self::malformed(format!("invalid character {} {place}", quoted(byte))),
            None => Self::malformed(message),
        }
    }
}

/// The byte at a line and column, both counted from one.
fn byte_at(bytes: &[u8], line: usize, column: usize) -> Option<u8> {
    let line = bytes.split(|byte| *byte == b'\n').nth(line.checked_sub(1)?)?;
    line.get(column.checked_sub(1)?).copied()
}

fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".into(),
        b'"' => "'\"'".into(),
        b'\t' => "'\\t'".into(),
        0x20..=0x7e => format!("'{}'", byte as char),
        _ => format!("'\\x{byte:02x}'"),
    }
}
