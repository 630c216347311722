//! One line of a watch.

use crate::decoded;
use crate::object::{AnyObject, Decoder};
use kube::core::Status;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;
use std::sync::Arc;

pub(super) enum Event {
    /// New, or changed.
    There(Arc<dyn AnyObject>),
    Gone(Arc<dyn AnyObject>),
    /// Nothing happened up to this version.
    Bookmark(String),
    /// The server ends the watch, and says why.
    Refused(Box<Status>),
}

/// How a line begins that tells of an object. Servers write it so; if one does not, it is still read.
const TELLS: [(&str, bool); 3] = [
    ("{\"type\":\"ADDED\",\"object\":", true),
    ("{\"type\":\"MODIFIED\",\"object\":", true),
    ("{\"type\":\"DELETED\",\"object\":", false),
];

/// A line of any layout.
#[derive(Deserialize)]
struct Line<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// All that matters of a bookmark.
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
        for (start, there) in TELLS {
            let text = line.strip_prefix(start).and_then(|rest| rest.strip_suffix('}'));
            if let Some(text) = text {
                let object = decoded::object(text, decoder)?;
                return Ok(if there { Event::There(object) } else { Event::Gone(object) });
            }
        }
        match serde_json::from_str(line) {
            Ok(line) => Event::read_parts(&line, decoder),
            // Some say it without an event around it.
            Err(error) => match serde_json::from_str::<Status>(line) {
                Ok(status) => Ok(Event::Refused(status.boxed())),
                Err(_) => Err(error),
            },
        }
    }

    fn read_parts(line: &Line<'_>, decoder: Decoder) -> serde_json::Result<Event> {
        let text = line.object.get();
        match line.r#type {
            "ADDED" | "MODIFIED" => decoded::object(text, decoder).map(Event::There),
            "DELETED" => decoded::object(text, decoder).map(Event::Gone),
            "BOOKMARK" => {
                let bookmark: Bookmark = serde_json::from_str(text)?;
                Ok(Event::Bookmark(bookmark.metadata.resource_version))
            }
            "ERROR" => Ok(Event::Refused(serde_json::from_str::<Status>(text)?.boxed())),
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
            Ok(Event::There(map)) => format!("there {}", name(map)),
            Ok(Event::Gone(map)) => format!("gone {}", name(map)),
            Ok(Event::Bookmark(version)) => format!("up to {version}"),
            Ok(Event::Refused(status)) => format!("refused {}", status.code),
            Err(_) => "no event".into(),
        }
    }

    #[test]
    fn a_line_is_read_however_it_is_laid_out() {
        let map = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#;
        let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":410}"#;
        let bookmark =
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"7"}}"#;
        for (line, expected) in [
            (format!(r#"{{"type":"ADDED","object":{map}}}"#), "there a"),
            (format!(r#"{{"type":"MODIFIED","object":{map}}}"#), "there a"),
            (format!(r#"{{"type":"DELETED","object":{map}}}"#), "gone a"),
            (format!(r#"{{ "type": "DELETED", "object": {map} }}"#), "gone a"),
            (format!(r#"{{"object":{map},"type":"ADDED"}}"#), "there a"),
            (format!(r#"{{"type":"BOOKMARK","object":{bookmark}}}"#), "up to 7"),
            (format!(r#"{{"type":"ERROR","object":{status}}}"#), "refused 410"),
            (status.to_owned(), "refused 410"),
            (format!(r#"{{"type":"ADDED","object":{map}"#), "no event"),
            (r#"{"type":"ADDED","object":{}}}"#.to_owned(), "no event"),
            ("garbage".to_owned(), "no event"),
            (format!(r#"{{"type":"RENAMED","object":{map}}}"#), "no event"),
        ] {
            assert_eq!(read(&line), expected, "{line}");
        }
    }
}
