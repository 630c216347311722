//! One line of a watch.

use crate::{Object, decoded};
use kube::core::{Status, WatchEvent};
use std::sync::Arc;

pub(super) enum Event<K> {
    /// New, or changed.
    There(Arc<K>),
    Gone(Arc<K>),
    /// Nothing happened up to this version.
    Bookmark(String),
    /// The server ends the watch, and says why.
    Refused(Box<Status>),
}

/// How a line begins that tells of an object. Servers write it so; if one does not, it is still read.
const TELLS: [(&[u8], bool); 3] = [
    (b"{\"type\":\"ADDED\",\"object\":", true),
    (b"{\"type\":\"MODIFIED\",\"object\":", true),
    (b"{\"type\":\"DELETED\",\"object\":", false),
];

impl<K: Object> Event<K> {
    pub(super) fn read(line: &[u8]) -> serde_json::Result<Event<K>> {
        for (start, there) in TELLS {
            let text = line.strip_prefix(start).and_then(|rest| rest.strip_suffix(b"}"));
            if let Some(text) = text {
                let object = decoded::object(text)?;
                return Ok(if there { Event::There(object) } else { Event::Gone(object) });
            }
        }
        match serde_json::from_slice::<WatchEvent<K>>(line) {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                Ok(Event::There(kept(object)))
            }
            Ok(WatchEvent::Deleted(object)) => Ok(Event::Gone(kept(object))),
            Ok(WatchEvent::Bookmark(bookmark)) => {
                Ok(Event::Bookmark(bookmark.metadata.resource_version))
            }
            Ok(WatchEvent::Error(status)) => Ok(Event::Refused(status)),
            // Some say it without an event around it.
            Err(error) => match serde_json::from_slice::<Status>(line) {
                Ok(status) => Ok(Event::Refused(status.boxed())),
                Err(_) => Err(error),
            },
        }
    }
}

fn kept<K: Object>(mut object: K) -> Arc<K> {
    decoded::forget_managers(&mut object);
    Arc::new(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;

    fn read(line: &str) -> String {
        match Event::<ConfigMap>::read(line.as_bytes()) {
            Ok(Event::There(map)) => format!("there {}", map.name_any()),
            Ok(Event::Gone(map)) => format!("gone {}", map.name_any()),
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
        ] {
            assert_eq!(read(&line), expected, "{line}");
        }
    }
}
