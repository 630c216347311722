//! How much an image may ask for. Whoever writes an archive decides what is in it; these bounds
//! decide what of that reaches the disk and the memory of the node.

/// Files, directories and links in one layer.
pub(crate) const ENTRIES_MAX: u64 = 2_000_000;
/// Blobs in an archive of images.
pub(crate) const BLOBS_MAX: usize = 100_000;
/// What overlayfs can stack.
pub(crate) const LAYERS_MAX: usize = 500;
/// Of one layer, unpacked.
pub(crate) const LAYER_BYTES_MAX: u64 = 128 << 30;
/// A layer may unpack to this without anybody asking how large it was packed …
pub(crate) const LAYER_BYTES_FREE: u64 = 1 << 30;
/// … and above that, to this many times its packed size. Text packs about tenfold.
pub(crate) const RATIO_MAX: u64 = 100;
/// The kernel's PATH_MAX.
pub(crate) const NAME_BYTES_MAX: usize = 4096;
/// Long names and extended attributes of one entry. A value of an attribute is at most 64 KiB.
pub(crate) const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// Regions of a sparse file.
pub(crate) const REGIONS_MAX: usize = 65_536;
/// Manifests, indexes and configurations. Registries take 4 MiB.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 8 << 20;
/// Indexes within indexes.
pub(crate) const INDEX_DEPTH_MAX: usize = 4;
/// Images in one archive.
pub(crate) const IMAGES_MAX: usize = 1_000;
/// zstd may ask for this much memory (as a power of two) to look back in.
pub(crate) const ZSTD_WINDOW_LOG_MAX: u32 = 27;
