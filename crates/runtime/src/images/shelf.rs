//! Unpacked layers by the digest of what they were unpacked from.
//!
//!     layers/sha256-…/fs          what overlayfs sees
//!     layers/sha256-…/layer.json  how large it is
//!
//! A layer is unpacked elsewhere and appears here by one rename, after both its digests were found
//! right. Two that want the same one wait for each other, also from different processes.

use super::digest::{Checked, Digest};
use super::limits::{LAYER_BYTES_FREE, LAYER_BYTES_MAX, RATIO_MAX, ZSTD_WINDOW_LOG_MAX};
use super::locks::Lock;
use super::records::replace;
use super::tape::Tape;
use super::unpack::unpack;
use crate::{Error, Result};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub(crate) struct Shelf {
    directory: PathBuf,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct LayerNote {
    pub(crate) bytes: u64,
    /// Directories that wait to be told their owner and mode by the layers below.
    #[serde(default)]
    pub(crate) implied: Vec<PathBuf>,
}

/// Where a layer's archive comes from and what is known of it.
pub(crate) struct Packed<R> {
    pub(crate) archive: R,
    /// Of the archive as it is; None where nobody said.
    pub(crate) digest: Option<Digest>,
    pub(crate) size: u64,
}

impl Shelf {
    pub(crate) fn new(directory: &Path) -> Shelf {
        Shelf { directory: directory.to_owned() }
    }

    fn place(&self, layer: &Digest) -> PathBuf {
        self.directory.join("layers").join(layer.file_name())
    }

    pub(crate) fn path(&self, layer: &Digest) -> PathBuf {
        self.place(layer).join("fs")
    }

    pub(crate) fn has(&self, layer: &Digest) -> bool {
        self.place(layer).is_dir()
    }

    pub(crate) fn note(&self, layer: &Digest) -> Result<LayerNote> {
        let path = self.place(layer).join("layer.json");
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        serde_json::from_slice(&bytes)
            .map_err(|e| Error::io("read", path)(std::io::Error::other(e)))
    }

    pub(crate) fn set_note(&self, layer: &Digest, note: &LayerNote) -> Result<()> {
        write_note(&self.place(layer), note)
    }

    /// Held while a layer is fetched and unpacked. Whoever waited finds it there.
    pub(crate) fn lock(&self, layer: &Digest) -> Result<Lock> {
        Lock::exclusive(&self.directory.join("locks").join(layer.file_name()))
    }

    /// Call with the layer's lock held.
    pub(crate) fn add<R: Read>(&self, layer: &Digest, packed: Packed<R>) -> Result<()> {
        if self.has(layer) {
            return Ok(());
        }
        let staging = tempfile::tempdir_in(self.directory.join("tmp"))
            .map_err(Error::io("make", self.directory.join("tmp")))?;
        let root = staging.path().join("fs");
        make_root(&root)?;
        let (bytes, implied) = unpack_checked(layer, packed, &root)?;
        write_note(staging.path(), &LayerNote { bytes, implied })?;
        let place = self.place(layer);
        std::fs::rename(staging.path(), &place).map_err(Error::io("make", &place))?;
        let _ = staging.keep(); // It has moved.
        Ok(())
    }
}

fn write_note(place: &Path, note: &LayerNote) -> Result<()> {
    let bytes = serde_json::to_vec(note)
        .map_err(|e| Error::io("write", place)(std::io::Error::other(e)))?;
    replace(&place.join("layer.json"), &bytes)
}

/// What an image does not say about its root is this.
fn make_root(root: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir(root).map_err(Error::io("make", root))?;
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))
        .map_err(Error::io("make", root))
}

fn unpack_checked<R: Read>(
    layer: &Digest,
    packed: Packed<R>,
    root: &Path,
) -> Result<(u64, Vec<PathBuf>)> {
    // Without a digest of its own the archive is known by what it unpacks to.
    let outer = packed.digest.clone().unwrap_or_else(|| layer.clone());
    let mut blob = Checked::new(packed.archive, &outer);
    let unpacked = {
        let (plain, bound) = decompress(&mut blob, packed.size)?;
        let mut tape = Tape::new(Checked::new(Bounded { inner: plain, left: bound }, layer));
        let unpacked = unpack(&mut tape, root)?;
        tape.into_inner().finish()?;
        unpacked
    };
    if packed.digest.is_some() {
        let size = blob.finish()?;
        if size != packed.size {
            return Err(Error::Refused(format!("{outer} has {size} bytes, not {}", packed.size)));
        }
    }
    Ok((unpacked.bytes, unpacked.implied))
}

/// By what the bytes are, not by what a media type claims; and how much may come out.
pub(crate) fn decompress<'a>(
    packed: impl Read + 'a,
    size: u64,
) -> Result<(Box<dyn Read + 'a>, u64)> {
    let mut packed = BufReader::with_capacity(128 * 1024, packed);
    let unreadable = |e: std::io::Error| Error::Refused(format!("the layer cannot be read: {e}"));
    let start = packed.fill_buf().map_err(unreadable)?;
    let allowed = LAYER_BYTES_FREE.max(size.saturating_mul(RATIO_MAX)).min(LAYER_BYTES_MAX);
    if start.starts_with(&[0x1f, 0x8b]) {
        return Ok((Box::new(flate2::bufread::MultiGzDecoder::new(packed)), allowed));
    }
    if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut zstd = zstd::stream::read::Decoder::with_buffer(packed).map_err(unreadable)?;
        zstd.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(unreadable)?;
        return Ok((Box::new(zstd), allowed));
    }
    Ok((Box::new(packed), LAYER_BYTES_MAX))
}

/// Says no when more comes than may.
pub(crate) struct Bounded<R> {
    pub(crate) inner: R,
    pub(crate) left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            std::io::Error::new(ErrorKind::InvalidData, "it unpacks to far more than it should")
        })?;
        Ok(read)
    }
}
