//! Parses one line of a watch response.

use super::undecodable::Identity;
use crate::decode_cache;
use crate::object::{AnyObject, Decoder};
use kube::core::Status;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;
use std::sync::Arc;

pub(super) enum Event {
    /// Added or changed.
    Applied(Arc<dyn AnyObject>),
    Deleted(Arc<dyn AnyObject>),
    /// `Applied` or `Deleted` with an object that this program cannot decode.
    Undecodable {
        which: Identity,
        deleted: bool,
        error: serde_json::Error,
    },
    /// There are no other changes up to this version.
    Bookmark(String),
    /// The server ends the watch with this status.
    Error(Box<Status>),
}

/// How a line with an object begins, and whether the object is deleted. This is the layout that servers write;
/// other layouts take a slower path.
const OBJECT_PREFIXES: [(&str, bool); 3] = [
    ("{\"type\":\"ADDED\",\"object\":", false),
    ("{\"type\":\"MODIFIED\",\"object\":", false),
    ("{\"type\":\"DELETED\",\"object\":", true),
];

/// A line in any JSON layout.
#[derive(Deserialize)]
struct Line<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The only part of a bookmark that is used.
#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: String,
}

impl Event {
    pub(super) fn read(line: &[u8], decoder: Decoder) -> serde_json::Result<Event> {
        let line = std::str::from_utf8(line).map_err(serde_json::Error::custom)?;
        for (prefix, deleted) in OBJECT_PREFIXES {
            let text = line.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('}'));
            if let Some(text) = text {
                return Event::of(text, deleted, decoder);
            }
        }
        match serde_json::from_str(line) {
            Ok(line) => Event::read_parts(&line, decoder),
            // Some servers send a status without an event around it.
            Err(error) => match serde_json::from_str::<Status>(line) {
                Ok(status) => Ok(Event::Error(status.boxed())),
                Err(_) => Err(error),
            },
        }
    }

    fn of(text: &str, deleted: bool, decoder: Decoder) -> serde_json::Result<Event> {
        Ok(match decode_cache::decode(text, decoder) {
            Ok(object) if deleted => Event::Deleted(object),
            Ok(object) => Event::Applied(object),
            Err(error) => Event::Undecodable { which: Identity::read(text)?, deleted, error },
        })
    }

    fn read_parts(line: &Line<'_>, decoder: Decoder) -> serde_json::Result<Event> {
        let text = line.object.get();
        match line.r#type {
            "ADDED" | "MODIFIED" => Event::of(text, false, decoder),
            "DELETED" => Event::of(text, true, decoder),
            "BOOKMARK" => {
                let bookmark: Bookmark = serde_json::from_str(text)?;
                Ok(Event::Bookmark(bookmark.metadata.resource_version))
            }
            "ERROR" => Ok(Event::Error(serde_json::from_str::<Status>(text)?.boxed())),
            other => Err(serde_json::Error::custom(format!("unknown type of event {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn read(line: &str) -> String {
        let name = |map: Arc<dyn AnyObject>| map.metadata().name.clone().unwrap_or_default();
        match Event::read(line.as_bytes(), Decoder::of::<ConfigMap>()) {
            Ok(Event::Applied(map)) => format!("applied {}", name(map)),
            Ok(Event::Deleted(map)) => format!("deleted {}", name(map)),
            Ok(Event::Undecodable { which, deleted, .. }) => {
                format!("undecodable {} deleted={deleted}", which.key())
            }
            Ok(Event::Bookmark(version)) => format!("up to {version}"),
            Ok(Event::Error(status)) => format!("error {}", status.code),
            Err(_) => "no event".into(),
        }
    }

    #[test]
    fn lines_are_parsed_in_any_json_layout() {
        let map = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#;
        let odd = r#"{"metadata":{"namespace":"n","name":"odd","labels":7},"data":[]}"#;
        let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":410}"#;
        let bookmark =
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"7"}}"#;
        for (line, expected) in [
            (format!(r#"{{"type":"ADDED","object":{map}}}"#), "applied a"),
            (format!(r#"{{"type":"MODIFIED","object":{map}}}"#), "applied a"),
            (format!(r#"{{"type":"DELETED","object":{map}}}"#), "deleted a"),
            (format!(r#"{{ "type": "DELETED", "object": {map} }}"#), "deleted a"),
            (format!(r#"{{"object":{map},"type":"ADDED"}}"#), "applied a"),
            (format!(r#"{{"type":"ADDED","object":{odd}}}"#), "undecodable n/odd deleted=false"),
            (
                format!(r#"{{ "type": "DELETED", "object": {odd} }}"#),
                "undecodable n/odd deleted=true",
            ),
            (format!(r#"{{"type":"BOOKMARK","object":{bookmark}}}"#), "up to 7"),
            (format!(r#"{{"type":"ERROR","object":{status}}}"#), "error 410"),
            (status.to_owned(), "error 410"),
            (format!(r#"{{"type":"ADDED","object":{map}"#), "no event"),
            (r#"{"type":"ADDED","object":{}}}"#.to_owned(), "no event"),
            ("garbage".to_owned(), "no event"),
            (format!(r#"{{"type":"RENAMED","object":{map}}}"#), "no event"),
        ] {
            assert_eq!(read(&line), expected, "{line}");
        }
    }
}
