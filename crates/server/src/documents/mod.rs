//! A cache of discovery and OpenAPI documents, which are large, the same for all users, and created on demand.
//!
//! Documents are stored encoded, and compressed as most clients accept them. A document about the whole API is kept until any
//! custom resource definition changes, the document of a group and version until its own kinds change.

pub mod discovery;
pub mod openapi;

use crate::request::Query;
use crate::response::body::Body;
use crate::response::error::{ApiError, Result};
use crate::response::gzip;
use crate::response::{self, ApiResponse, JSON};
use api::{Kind, Registry};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use openapi::{gnostic, v2, v3};
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
    /// The registry that the documents describe. A document for an older registry is not kept.
    of: Arc<Registry>,
    made: HashMap<String, Made>,
    /// By group and version.
    versions: HashMap<(String, String), Version>,
}

/// The OpenAPI document of one group and version.
#[derive(Clone)]
struct Version {
    /// The kinds that it describes.
    kinds: Vec<Arc<Kind>>,
    /// The index has the hash of every document, so this is kept even without the document.
    hash: String,
    made: Option<Made>,
}

impl Version {
    fn is_of(&self, kinds: &[&Arc<Kind>]) -> bool {
        self.kinds.len() == kinds.len()
            && self.kinds.iter().zip(kinds).all(|(kept, now)| Arc::ptr_eq(kept, now))
    }
}

/// An encoded document.
#[derive(Clone)]
struct Made {
    bytes: Bytes,
    /// Whether the bytes are compressed.
    packed: bool,
    /// The hash of the uncompressed document.
    tag: String,
}

impl Made {
    fn of(document: Vec<u8>) -> Self {
        let tag = openapi::etag(&document);
        let packed = gzip::compress(&document);
        Made { packed: packed.is_some(), bytes: packed.unwrap_or(document).into(), tag }
    }

    fn hash(&self) -> &str {
        self.tag.trim_matches('"')
    }
}

impl Documents {
    pub(crate) fn of(registry: Arc<Registry>) -> Self {
        let (made, versions) = (HashMap::new(), HashMap::new());
        Documents { kept: Mutex::new(Kept { of: registry, made, versions }) }
    }

    /// Called when the registry has changed.
    pub(crate) fn forget(&self, registry: Arc<Registry>) {
        let mut kept = self.lock();
        kept.of = registry;
        kept.made.clear();
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

    /// The hash of the document of one group and version. None if there is no such document.
    fn hash(&self, registry: &Registry, group: &str, version: &str) -> Option<String> {
        let kinds = registry.of_version(group, version);
        if let Some(kept) = self.kept_version(&kinds, group, version) {
            return Some(kept.hash);
        }
        let hash = v3::document_hash(registry, group, version)?;
        self.keep_version(registry, &kinds, group, version, hash.clone(), None);
        Some(hash)
    }

    /// The document of one group and version, if there is one.
    fn version(&self, registry: &Registry, group: &str, version: &str) -> Option<Made> {
        let kinds = registry.of_version(group, version);
        if let Some(made) = self.kept_version(&kinds, group, version).and_then(|kept| kept.made) {
            return Some(made);
        }
        let made = Made::of(v3::document_bytes(registry, group, version)?);
        let hash = made.hash().to_owned();
        self.keep_version(registry, &kinds, group, version, hash, Some(made.clone()));
        Some(made)
    }

    fn kept_version(&self, kinds: &[&Arc<Kind>], group: &str, version: &str) -> Option<Version> {
        let key = (group.to_owned(), version.to_owned());
        self.lock().versions.get(&key).filter(|kept| kept.is_of(kinds)).cloned()
    }

    fn keep_version(
        &self,
        registry: &Registry,
        kinds: &[&Arc<Kind>],
        group: &str,
        version: &str,
        hash: String,
        made: Option<Made>,
    ) {
        let mut kept = self.lock();
        if !std::ptr::eq(&*kept.of, registry) {
            return;
        }
        kept.versions.retain(|(group, version), _| !registry.of_version(group, version).is_empty());
        let kinds = kinds.iter().map(|kind| (*kind).clone()).collect();
        let key = (group.to_owned(), version.to_owned());
        kept.versions.insert(key, Version { kinds, hash, made });
    }

    /// `/api` or `/apis` in the aggregated form.
    pub(crate) fn aggregated(
        &self,
        registry: &Registry,
        headers: &HeaderMap,
        core: bool,
    ) -> ApiResponse {
        let name = if core { "aggregated core" } else { "aggregated" };
        let made = self.get(registry, name, || {
            let document = discovery::aggregated(registry, core);
            [serde_json::to_vec(&document).unwrap_or_default().as_slice(), b"\n"].concat()
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
    ) -> Result<ApiResponse> {
        match path {
            ["v2"] => self.version_2(registry, headers),
            ["v3"] => {
                let made = self.get(registry, "v3", || {
                    let hash = |group: &str, version: &str| self.hash(registry, group, version);
                    serde_json::to_vec(&v3::index_with(registry, hash)).unwrap_or_default()
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

    fn version_2(&self, registry: &Registry, headers: &HeaderMap) -> Result<ApiResponse> {
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
    ) -> Result<ApiResponse> {
        let made = self.version(registry, group, version).ok_or(ApiError::NoSuchPath)?;
        let hash = made.hash();
        let path = if group.is_empty() {
            format!("api/{version}")
        } else {
            format!("apis/{group}/{version}")
        };
        match query.text("hash") {
            Some(requested) if requested != hash => {
                let mut answer = response::text(StatusCode::MOVED_PERMANENTLY, "");
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

/// A time in the format of HTTP headers.
fn in_a_year() -> String {
    let at = clock::now() + jiff::SignedDuration::from_hours(365 * 24);
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// The document, or 304 if the client has it.
fn tagged(headers: &HeaderMap, content_type: &'static str, made: Made) -> ApiResponse {
    let Made { bytes, packed, tag } = made;
    let known = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|known| known.to_str().ok())
        .is_some_and(|known| known.split(',').any(|known| known.trim() == tag));
    let as_packed = packed && gzip::is_accepted(headers);
    let mut answer = if known {
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        answer
    } else if packed && !as_packed {
        response::build(StatusCode::OK, content_type, gzip::decompress(&bytes))
    } else {
        response::build(StatusCode::OK, content_type, bytes)
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    if as_packed && !known {
        gzip::set_headers(answer.headers_mut());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_for_an_older_registry_is_not_kept() {
        let (old, new) = (Arc::new(Registry::built_in()), Arc::new(Registry::built_in()));
        let documents = Documents::of(old.clone());
        // The registry changes while a document is created.
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

    fn custom(group: &str, plural: &str) -> Vec<Arc<Kind>> {
        api::crd::kinds(&json!({
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {"group": group, "names": {"plural": plural, "kind": "Some"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]}
        }))
    }

    #[test]
    fn the_document_of_a_version_is_created_again_only_when_its_own_kinds_change() {
        let built_in = Registry::built_in();
        let (one, two) = (custom("one.example.com", "as"), custom("two.example.com", "as"));
        let serve = |kinds: Vec<Arc<Kind>>| Arc::new(built_in.with_custom(kinds));
        let first = serve([one.clone(), two.clone()].concat());
        let documents = Documents::of(first.clone());
        let made = |registry: &Arc<Registry>, group: &str| {
            documents.version(registry, group, "v1").map(|made| made.bytes)
        };
        let groups = ["apps", "one.example.com", "two.example.com"];
        let before = groups.map(|group| made(&first, group).unwrap());
        let hash = documents.hash(&first, "batch", "v1").unwrap();
        assert_eq!(hash, documents.version(&first, "batch", "v1").unwrap().hash());

        let second = serve([one, custom("two.example.com", "bs")].concat());
        documents.forget(second.clone());
        let after = groups.map(|group| made(&second, group).unwrap());
        let same = |at: usize| before[at].as_ptr() == after[at].as_ptr();
        assert_eq!([same(0), same(1), same(2)], [true, true, false]);

        let third = serve(Vec::new());
        documents.forget(third.clone());
        assert_eq!(made(&third, "one.example.com"), None);
        made(&third, "policy");
        let kept = documents.lock().versions.keys().any(|(group, _)| group.contains("example"));
        assert!(!kept, "documents of groups that are gone take no memory");
    }

    #[test]
    fn a_large_document_is_kept_compressed_and_sent_as_the_client_accepts() {
        let registry = Arc::new(Registry::built_in());
        let documents = Documents::of(registry.clone());
        let large = "abc".repeat(100_000).into_bytes();
        let made = documents.get(&registry, "x", || large.clone());
        assert!(made.packed && made.bytes.len() < large.len() / 10);
        assert_eq!(gzip::decompress(&made.bytes), large);
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
