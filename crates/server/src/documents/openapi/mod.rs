//! OpenAPI documents, for `kubectl explain`, validation and generated clients (A-46 to A-54).
//!
//! ```text
//! Registry ─▶ operations ─┬▶ v3   one document per group and version, JSON
//! Schema ──▶ types ───────┤
//! CRDs ────▶ custom ──────┴▶ v2   one document for all, JSON or (gnostic) protobuf
//! ```
//!
//! Documents have several megabytes, so they are written in pieces, never built as a tree, and only on demand. They can be
//! cached: a document of built-in kinds never changes, one of custom kinds changes with the registry.
//!
//! Not here: caching, `Accept`, `If-None-Match` and redirects (`documents`).

mod custom;
#[cfg(test)]
mod fixtures;
pub mod gnostic;
mod names;
mod operations;
mod parameters;
mod types;
pub mod v2;
pub mod v3;
mod write;

use ring::digest::{SHA512, digest};
use std::fmt::Write as _;

/// A hash of a document, as hexadecimal digits: the `hash` of A-46 and, in quotes, the ETag.
pub fn hash(bytes: &[u8]) -> String {
    hex(digest(&SHA512, bytes).as_ref())
}

/// The value of the `ETag` header for a document: a hash in quotes.
pub fn etag(bytes: &[u8]) -> String {
    format!("\"{}\"", hash(bytes))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02X}");
        text
    })
}
