//! Discovery and OpenAPI documents: large, the same for everybody, and made only when asked for.
//!
//! They are kept encoded, and compressed as most clients want them, until a custom resource definition
//! changes what is served.

use crate::answer::{self, Answer, JSON};
use crate::body::Body;
use crate::error::{ApiError, Result};
use crate::openapi::{self, gnostic, v2, v3};
use crate::request::Query;
use crate::{discovery, gzip};
use api::Registry;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const GNOSTIC: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const GNOSTIC_ACCEPTED: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

pub(crate) struct Documents {
    kept: Mutex<Kept>,
}

struct Kept {
    /// What the documents are about. Who began to make one when something else was served keeps it to
    /// themselves.
    of: Arc<Registry>,
    made: HashMap<String, Made>,
}

/// An encoded document.
#[derive(Clone)]
struct Made {
    bytes: Bytes,
    /// The bytes are compressed.
    packed: bool,
    /// Of the document as it is.
    tag: String,
}

impl Made {
    fn of(document: Vec<u8>) -> Self {
        let tag = openapi::etag(&document);
        let packed = gzip::packed(&document);
        Made { packed: packed.is_some(), bytes: packed.unwrap_or(document).into(), tag }
    }

    fn hash(&self) -> &str {
        self.tag.trim_matches('"')
    }
}

impl Documents {
    pub(crate) fn of(registry: Arc<Registry>) -> Self {
        Documents { kept: Mutex::new(Kept { of: registry, made: HashMap::new() }) }
    }

    /// What is served has changed.
    pub(crate) fn forget(&self, registry: Arc<Registry>) {
        *self.lock() = Kept { of: registry, made: HashMap::new() };
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn get(&self, registry: &Registry, name: &str, make: impl FnOnce() -> Vec<u8>) -> Made {
        let current = |kept: &Kept| std::ptr::eq(&*kept.of, registry);
        let kept = self.lock();
        if let Some(made) = kept.made.get(name).filter(|_| current(&kept)) {
            return made.clone();
        }
        drop(kept);
        let made = Made::of(make());
        let mut kept = self.lock();
        if current(&kept) {
            kept.made.insert(name.to_owned(), made.clone());
        }
        made
    }

    /// `/api` or `/apis` with everything in it.
    pub(crate) fn aggregated(
        &self,
        registry: &Registry,
        headers: &HeaderMap,
        core: bool,
    ) -> Answer {
        let name = if core { "aggregated core" } else { "aggregated" };
        let made = self.get(registry, name, || {
            serde_json::to_vec(&discovery::aggregated(registry, core)).unwrap_or_default()
        });
        let mut answer = tagged(headers, AGGREGATED, made);
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
        answer
    }

    /// Everything below `/openapi/`.
    pub(crate) fn open_api(
        &self,
        registry: &Registry,
        path: &[&str],
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Answer> {
        match path {
            ["v2"] => self.version_2(registry, headers),
            ["v3"] => {
                let made = self.get(registry, "v3", || {
                    serde_json::to_vec(&v3::index(registry)).unwrap_or_default()
                });
                Ok(tagged(headers, JSON, made))
            }
            ["v3", "api", version] => self.version_3(registry, "", version, query, headers),
            ["v3", "apis", group, version] => {
                self.version_3(registry, group, version, query, headers)
            }
            _ => Err(ApiError::NoSuchPath),
        }
    }

    fn version_2(&self, registry: &Registry, headers: &HeaderMap) -> Result<Answer> {
        let accept: Vec<&str> = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .collect();
        let kind = |clause: &&str| clause.split(';').next().unwrap_or_default().trim().to_owned();
        let wants =
            |types: &[&str]| accept.iter().map(kind).any(|kind| types.contains(&kind.as_str()));
        if wants(&GNOSTIC_ACCEPTED) {
            let made = self.get(registry, "v2 protobuf", || gnostic::document_bytes(registry));
            return Ok(tagged(headers, GNOSTIC, made));
        }
        if accept.is_empty() || wants(&["application/json", "application/*", "*/*"]) {
            let made = self.get(registry, "v2", || v2::document_bytes(registry));
            return Ok(tagged(headers, JSON, made));
        }
        Err(ApiError::NotAcceptable(
            "application/json, application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
        ))
    }

    fn version_3(
        &self,
        registry: &Registry,
        group: &str,
        version: &str,
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Answer> {
        if !registry.groups().iter().any(|(g, versions)| *g == group && versions.contains(&version))
        {
            return Err(ApiError::NoSuchPath);
        }
        let name = format!("v3 {group}/{version}");
        let made = self.get(registry, &name, || {
            v3::document_bytes(registry, group, version).unwrap_or_default()
        });
        let hash = made.hash();
        let path = if group.is_empty() {
            format!("api/{version}")
        } else {
            format!("apis/{group}/{version}")
        };
        match query.text("hash") {
            Some(asked) if asked != hash => {
                let mut answer = answer::text(StatusCode::MOVED_PERMANENTLY, "");
                let place = format!("/openapi/v3/{path}?hash={hash}");
                if let Ok(place) = HeaderValue::from_str(&place) {
                    answer.headers_mut().insert(header::LOCATION, place);
                }
                Ok(answer)
            }
            Some(_) => {
                let mut answer = tagged(headers, JSON, made);
                let for_good = HeaderValue::from_static("public, immutable");
                answer.headers_mut().insert(header::CACHE_CONTROL, for_good);
                if let Ok(expires) = HeaderValue::from_str(&in_a_year()) {
                    answer.headers_mut().insert(header::EXPIRES, expires);
                }
                Ok(answer)
            }
            None => Ok(tagged(headers, JSON, made)),
        }
    }
}

/// As HTTP writes times.
fn in_a_year() -> String {
    let at = clock::now() + jiff::SignedDuration::from_hours(365 * 24);
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// The document, or 304 if the client has it already.
fn tagged(headers: &HeaderMap, content_type: &'static str, made: Made) -> Answer {
    let Made { bytes, packed, tag } = made;
    let known = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|known| known.to_str().ok())
        .is_some_and(|known| known.split(',').any(|known| known.trim() == tag));
    let as_packed = packed && gzip::is_wanted(headers);
    let mut answer = if known {
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        answer
    } else if packed && !as_packed {
        answer::answer(StatusCode::OK, content_type, gzip::unpacked(&bytes))
    } else {
        answer::answer(StatusCode::OK, content_type, bytes)
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    if as_packed && !known {
        gzip::mark(answer.headers_mut());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_what_was_served_before_is_not_kept() {
        let (old, new) = (Arc::new(Registry::built_in()), Arc::new(Registry::built_in()));
        let documents = Documents::of(old.clone());
        // The definition comes while a document is being made.
        let made = documents.get(&old, "x", || {
            documents.forget(new.clone());
            b"old".to_vec()
        });
        assert_eq!(made.bytes, "old");
        assert_eq!(documents.get(&new, "x", || b"new".to_vec()).bytes, "new");
        assert_eq!(documents.get(&new, "x", || b"again".to_vec()).bytes, "new");
        assert_eq!(documents.get(&old, "x", || b"late".to_vec()).bytes, "late");
        assert_eq!(documents.get(&new, "x", || b"again".to_vec()).bytes, "new");
    }

    #[test]
    fn a_large_document_is_kept_packed_and_sent_as_it_is_wanted() {
        let registry = Arc::new(Registry::built_in());
        let documents = Documents::of(registry.clone());
        let large = "abc".repeat(100_000).into_bytes();
        let made = documents.get(&registry, "x", || large.clone());
        assert!(made.packed && made.bytes.len() < large.len() / 10);
        assert_eq!(gzip::unpacked(&made.bytes), large);
        assert_eq!(made.hash(), openapi::hash(&large));
        let mut headers = HeaderMap::new();
        let plain = tagged(&headers, JSON, made.clone());
        assert_eq!(plain.body().size(), Some(large.len() as u64));
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let packed = tagged(&headers, JSON, made.clone());
        assert_eq!(packed.body().size(), Some(made.bytes.len() as u64));
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
    }
}
