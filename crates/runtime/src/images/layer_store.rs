//! The directory of unpacked layers, by the digest of the uncompressed layer.
//!
//!     layers/sha256-…/fs          the content, for overlayfs
//!     layers/sha256-…/layer.json  its size
//!
//! A layer is unpacked in a temporary directory and renamed to its place after its digests were checked. A lock
//! prevents that two tasks or processes unpack the same layer at the same time.

use super::digest::{Checked, Digest};
use super::limits::{LAYER_BYTES_FREE, LAYER_BYTES_MAX, RATIO_MAX, ZSTD_WINDOW_LOG_MAX};
use super::locks::Lock;
use super::records::replace;
use super::tar_reader::TarReader;
use super::unpack::unpack;
use crate::{Error, Result};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The first bytes of compressed files.
pub(crate) const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
pub(crate) const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const READ_BUFFER: usize = 128 * 1024;

#[derive(Debug, Clone)]
pub(crate) struct LayerStore {
    directory: PathBuf,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) bytes: u64,
    /// Directories whose owner and mode have to come from lower layers (`inherit_directories`).
    #[serde(default)]
    pub(crate) implied: Vec<PathBuf>,
}

/// The archive of a layer.
pub(crate) struct Packed<R> {
    pub(crate) archive: R,
    /// Digest of the archive, if known.
    pub(crate) digest: Option<Digest>,
    pub(crate) size: u64,
}

impl LayerStore {
    pub(crate) fn new(directory: &Path) -> LayerStore {
        LayerStore { directory: directory.to_owned() }
    }

    fn directory_of(&self, layer: &Digest) -> PathBuf {
        self.directory.join("layers").join(layer.file_name())
    }

    pub(crate) fn path(&self, layer: &Digest) -> PathBuf {
        self.directory_of(layer).join("fs")
    }

    pub(crate) fn has(&self, layer: &Digest) -> bool {
        self.directory_of(layer).is_dir()
    }

    pub(crate) fn record(&self, layer: &Digest) -> Result<LayerRecord> {
        let path = self.directory_of(layer).join("layer.json");
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        serde_json::from_slice(&bytes)
            .map_err(|e| Error::io("read", path)(std::io::Error::other(e)))
    }

    pub(crate) fn set_record(&self, layer: &Digest, record: &LayerRecord) -> Result<()> {
        write_record(&self.directory_of(layer), record)
    }

    /// Must be held while a layer is downloaded and unpacked.
    pub(crate) fn lock(&self, layer: &Digest) -> Result<Lock> {
        Lock::exclusive(&self.directory.join("locks").join(layer.file_name()))
    }

    /// The caller must hold the layer's lock.
    pub(crate) fn add<R: Read>(&self, layer: &Digest, packed: Packed<R>) -> Result<()> {
        if self.has(layer) {
            return Ok(());
        }
        let staging = tempfile::tempdir_in(self.directory.join("tmp"))
            .map_err(Error::io("create a directory in", self.directory.join("tmp")))?;
        let root = staging.path().join("fs");
        create_root(&root)?;
        let (bytes, implied) = unpack_checked(layer, packed, &root)?;
        write_record(staging.path(), &LayerRecord { bytes, implied })?;
        let directory = self.directory_of(layer);
        std::fs::rename(staging.path(), &directory).map_err(Error::io("create", &directory))?;
        let _ = staging.keep(); // It was renamed, so there is nothing to remove.
        Ok(())
    }
}

fn write_record(directory: &Path, record: &LayerRecord) -> Result<()> {
    let bytes = serde_json::to_vec(record)
        .map_err(|e| Error::io("write", directory)(std::io::Error::other(e)))?;
    replace(&directory.join("layer.json"), &bytes)
}

/// With the mode of a root directory that the image does not describe.
fn create_root(root: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir(root).map_err(Error::io("create", root))?;
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))
        .map_err(Error::io("set the mode of", root))
}

fn unpack_checked<R: Read>(
    layer: &Digest,
    packed: Packed<R>,
    root: &Path,
) -> Result<(u64, Vec<PathBuf>)> {
    // Without a digest of the archive, only the digest of its content is checked.
    let outer = packed.digest.clone().unwrap_or_else(|| layer.clone());
    let mut blob = Checked::new(packed.archive, &outer);
    let unpacked = {
        let (plain, max) = decompress(&mut blob, packed.size)?;
        let mut tar = TarReader::new(Checked::new(Bounded { inner: plain, left: max }, layer));
        let unpacked = unpack(&mut tar, root)?;
        tar.into_inner().finish()?;
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

/// Decompresses according to the first bytes, not to the media type. Also returns the maximum size of the output.
pub(crate) fn decompress<'a>(
    packed: impl Read + 'a,
    size: u64,
) -> Result<(Box<dyn Read + 'a>, u64)> {
    let mut packed = BufReader::with_capacity(READ_BUFFER, packed);
    let unreadable = |e: std::io::Error| Error::Refused(format!("cannot read the layer: {e}"));
    let start = packed.fill_buf().map_err(unreadable)?;
    let allowed = LAYER_BYTES_FREE.max(size.saturating_mul(RATIO_MAX)).min(LAYER_BYTES_MAX);
    if start.starts_with(GZIP_MAGIC) {
        return Ok((Box::new(flate2::bufread::MultiGzDecoder::new(packed)), allowed));
    }
    if start.starts_with(ZSTD_MAGIC) {
        let mut zstd = zstd::stream::read::Decoder::with_buffer(packed).map_err(unreadable)?;
        zstd.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(unreadable)?;
        return Ok((Box::new(zstd), allowed));
    }
    Ok((Box::new(packed), LAYER_BYTES_MAX))
}

/// A reader that fails if there are more bytes than allowed.
pub(crate) struct Bounded<R> {
    pub(crate) inner: R,
    pub(crate) left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            std::io::Error::new(ErrorKind::InvalidData, "it unpacks to more data than allowed")
        })?;
        Ok(read)
    }
}
