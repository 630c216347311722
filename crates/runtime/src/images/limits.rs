//! Limits for images. Their content is not trusted, so these limits protect the disk and the memory of the node.

/// Files, directories and links in one layer.
pub(crate) const ENTRIES_MAX: u64 = 2_000_000;
/// Blobs in an archive of images.
pub(crate) const BLOBS_MAX: usize = 100_000;
/// The limit of overlayfs.
pub(crate) const LAYERS_MAX: usize = 500;
/// Size of one uncompressed layer.
pub(crate) const LAYER_BYTES_MAX: u64 = 128 << 30;
/// A layer may always unpack to this size …
pub(crate) const LAYER_BYTES_FREE: u64 = 1 << 30;
/// … and beyond that to this multiple of its compressed size. Text compresses about tenfold.
pub(crate) const RATIO_MAX: u64 = 100;
/// The kernel's PATH_MAX.
pub(crate) const NAME_BYTES_MAX: usize = 4096;
/// Size of long names and extended attributes of one entry. The kernel limits an attribute to 64 KiB.
pub(crate) const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// Regions of a sparse file.
pub(crate) const REGIONS_MAX: usize = 65_536;
/// Size of manifests, indexes and configurations. Registries accept 4 MiB.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 8 << 20;
/// Nesting of indexes.
pub(crate) const INDEX_DEPTH_MAX: usize = 4;
/// Images in one archive.
pub(crate) const IMAGES_MAX: usize = 1_000;
/// Window size of zstd, as a power of two. It determines how much memory decompression needs.
pub(crate) const ZSTD_WINDOW_LOG_MAX: u32 = 27;
