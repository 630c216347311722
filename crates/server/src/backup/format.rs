//! The file format of a backup. Pure: bytes in, contents out.
//!
//!     "landfall backup\n" · format u32
//!     'H' header   length u32 · JSON
//!     'F' file     length u32 · name u16+text · bytes
//!     'O' object   length u32 · created u64 · revision_at u32 · collection u16+text · name u16+text · bytes
//!     'E' end      length u32 · files u64 · objects u64
//!     SHA-256 of all of the above
//!
//! Numbers are little-endian. The checksum is verified before anything else, except for the format number: a newer format may
//! have its checksum elsewhere.

use crate::object::Object;
use ring::digest::{self, Context, SHA256, SHA256_OUTPUT_LEN};
use serde::de::IgnoredAny;
use std::collections::HashSet;
use std::sync::Arc;
use store::{Draft, Entry};

const MAGIC: &[u8] = b"landfall backup\n";
pub(super) const FORMAT_KNOWN: u32 = 1;

/// The files that identify the cluster. Everything else in the data directory is created again at the next start, or belongs
/// to the node.
pub(super) const FILES: [&str; 4] = ["pki/ca.crt", "pki/ca.key", "pki/sa.key", "admin.token"];

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// The revision of all objects.
    pub revision: u64,
    /// RFC 3339.
    pub taken_at: String,
    /// The version of landfall that created the backup.
    pub version: String,
}

/// An object, and the revision at which it was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) created: u64,
    pub(super) entry: Entry,
}

/// A verified backup.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents {
    pub header: Header,
    /// Name and content of [`FILES`], in that order.
    pub(super) files: Vec<(String, Vec<u8>)>,
    pub(super) objects: Vec<Kept>,
}

impl Contents {
    pub fn objects(&self) -> usize {
        self.objects.len()
    }
}

/// Why a file cannot be restored.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("it is not a landfall backup")]
    Foreign,
    #[error(
        "it was made by a newer landfall (format {found}; this one reads {FORMAT_KNOWN}): restore it \
         with that version"
    )]
    Newer { found: u32 },
    #[error("it is damaged or cut short: its checksum is wrong")]
    Checksum,
    #[error("it is damaged: {0}")]
    Content(String),
}

/// Encodes the pieces of a backup one after another; together they are the file.
pub(super) struct Encoder {
    hash: Context,
    files: u64,
    objects: u64,
}

impl Encoder {
    pub(super) fn start(header: &Header) -> (Encoder, Vec<u8>) {
        let mut encoder = Encoder { hash: Context::new(&SHA256), files: 0, objects: 0 };
        let mut start = [MAGIC, &FORMAT_KNOWN.to_le_bytes()].concat();
        let json = serde_json::json!(header).to_string();
        piece(&mut start, b'H', &[json.as_bytes()]);
        encoder.hash.update(&start);
        (encoder, start)
    }

    pub(super) fn file(&mut self, name: &str, bytes: &[u8]) -> Vec<u8> {
        self.files += 1;
        self.hashed(b'F', &[&length(name), name.as_bytes(), bytes])
    }

    pub(super) fn object(&mut self, collection: &str, object: &Object) -> Vec<u8> {
        self.objects += 1;
        let Draft { bytes, revision_at } = object.draft();
        let name = object.name();
        let parts: [&[u8]; 7] = [
            &object.created().to_le_bytes(),
            &(revision_at as u32).to_le_bytes(),
            &length(collection),
            collection.as_bytes(),
            &length(name),
            name.as_bytes(),
            &bytes,
        ];
        self.hashed(b'O', &parts)
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        let counts = [self.files.to_le_bytes(), self.objects.to_le_bytes()].concat();
        let mut end = self.hashed(b'E', &[&counts]);
        end.extend_from_slice(self.hash.finish().as_ref());
        end
    }

    fn hashed(&mut self, kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(5 + parts.iter().map(|part| part.len()).sum::<usize>());
        piece(&mut bytes, kind, parts);
        self.hash.update(&bytes);
        bytes
    }
}

fn piece(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.push(kind);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn length(text: &str) -> [u8; 2] {
    // The store does not accept longer names.
    (text.len() as u16).to_le_bytes()
}

/// Decodes and verifies everything: checksum, counts, and every object.
pub(super) fn decode(bytes: &[u8]) -> Result<Contents, Flaw> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Flaw::Foreign)?;
    let (format, _) = rest.split_first_chunk::<4>().ok_or(Flaw::Checksum)?;
    let found = u32::from_le_bytes(*format);
    if found > FORMAT_KNOWN {
        return Err(Flaw::Newer { found });
    }
    let (content, sum) = bytes.split_last_chunk::<SHA256_OUTPUT_LEN>().ok_or(Flaw::Checksum)?;
    if digest::digest(&SHA256, content).as_ref() != sum {
        return Err(Flaw::Checksum);
    }
    let mut pieces = Pieces(content.get(MAGIC.len() + 4..).ok_or(Flaw::Checksum)?);
    let (kind, header) = pieces.next()?;
    let header = (kind == b'H').then(|| serde_json::from_slice(header).ok()).flatten();
    let header = header.ok_or_else(|| content_flaw("its header cannot be read"))?;
    let mut contents = Contents { header, files: Vec::new(), objects: Vec::new() };
    loop {
        match pieces.next()? {
            (b'F', piece) => contents.files.push(file(piece)?),
            (b'O', piece) => contents.objects.push(object(piece)?),
            (b'E', piece) => {
                contents.check(piece)?;
                return match pieces.0 {
                    [] => Ok(contents),
                    _ => Err(content_flaw("something follows its end")),
                };
            }
            (kind, _) => return Err(content_flaw(&format!("it has a piece of kind {kind}"))),
        }
    }
}

fn content_flaw(what: &str) -> Flaw {
    Flaw::Content(what.to_owned())
}

impl Contents {
    fn check(&self, end: &[u8]) -> Result<(), Flaw> {
        let counts = [self.files.len() as u64, self.objects.len() as u64].map(u64::to_le_bytes);
        if end != counts.concat() {
            return Err(content_flaw("objects or files are missing"));
        }
        if !self.files.iter().map(|(name, _)| name.as_str()).eq(FILES) {
            return Err(content_flaw("it has other files than a backup has"));
        }
        let mut seen = HashSet::new();
        for Kept { entry, .. } in &self.objects {
            if !seen.insert((&entry.collection, &entry.name)) {
                let Entry { collection, name, .. } = entry;
                return Err(content_flaw(&format!("{collection} {name:?} is in it twice")));
            }
        }
        Ok(())
    }
}

struct Pieces<'a>(&'a [u8]);

impl<'a> Pieces<'a> {
    fn next(&mut self) -> Result<(u8, &'a [u8]), Flaw> {
        let mut read = || {
            let (&[kind], rest) = self.0.split_first_chunk::<1>()?;
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let (piece, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            self.0 = rest;
            Some((kind, piece))
        };
        read().ok_or_else(|| content_flaw("it has no end"))
    }
}

fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

fn file(piece: &[u8]) -> Result<(String, Vec<u8>), Flaw> {
    let (name, bytes) = text(piece).ok_or_else(|| content_flaw("a file cannot be read"))?;
    Ok((name.to_owned(), bytes.to_vec()))
}

fn object(piece: &[u8]) -> Result<Kept, Flaw> {
    let read = || {
        let (created, rest) = piece.split_first_chunk::<8>()?;
        let (revision_at, rest) = rest.split_first_chunk::<4>()?;
        let (collection, rest) = text(rest)?;
        let (name, bytes) = text(rest)?;
        let revision_at = u32::from_le_bytes(*revision_at) as usize;
        let draft = Draft { bytes: bytes.to_vec(), revision_at };
        let entry = Entry { collection: Arc::from(collection), name: name.to_owned(), draft };
        Some(Kept { created: u64::from_le_bytes(*created), entry })
    };
    let kept = read().ok_or_else(|| content_flaw("an object cannot be read"))?;
    check(&kept.entry).map_err(|what| {
        let Entry { collection, name, .. } = &kept.entry;
        content_flaw(&format!("{collection} {name:?} {what}"))
    })?;
    Ok(kept)
}

/// Stored like an object, but not part of the API.
const INTERNAL: &str = "internal/";

/// The common parts of every stored object, and the position of its revision. Reads the whole object at any nesting depth.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Whole<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    kind: Option<IgnoredAny>,
    api_version: Option<IgnoredAny>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow, default)]
    name: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: std::borrow::Cow<'a, str>,
    resource_version: String,
}

fn check(entry: &Entry) -> Result<(), &'static str> {
    /// A placeholder for the revision.
    const REVISION: &str = "18446744073709551615";
    let Draft { bytes, revision_at } = &entry.draft;
    let (before, after) = bytes.split_at_checked(*revision_at).ok_or("has no revision")?;
    let whole = [before, REVISION.as_bytes(), after].concat();
    let Whole { metadata, kind, api_version } =
        serde_json::from_slice(&whole).map_err(|_| "cannot be read")?;
    if metadata.resource_version != REVISION {
        return Err("has no revision");
    }
    if entry.collection.starts_with(INTERNAL) {
        return Ok(());
    }
    kind.zip(api_version).ok_or("is no object of the API")?;
    match crate::object::store_name(&metadata.namespace, &metadata.name) == entry.name {
        true => Ok(()),
        false => Err("has another name inside"),
    }
}
