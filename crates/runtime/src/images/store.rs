//! The image store: its files, and garbage collection of layers.
//!
//!     images.json      the list of images (`records`)
//!     layers/          unpacked layers (`layer_store`)
//!     holds/<id>       the layers that a container uses
//!     downloads/       incomplete downloads, which can be resumed
//!     tmp/, locks/     temporary files, removed when no task adds images
//!     work.lock        shared lock of tasks that add images, exclusive lock of garbage collection
//!
//! A layer is stored and synced to disk before a record refers to it. So if no task is adding images, a layer
//! without a record was left by a crash and can be removed.

use super::digest::Digest;
use super::image_name::ImageName;
use super::layer_store::LayerStore;
use super::locks::Lock;
use super::manifest::{Configuration, ImageConfig};
use super::records::{self, Record, Records, replace};
use super::registries::Registries;
use super::{import, inherit_directories};
use crate::{Error, Image, ImageReference, PullProgress, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An incomplete download is removed after this time.
const DOWNLOAD_KEPT: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);

/// Images in a directory. Cheap to clone; several processes may use one directory.
///
/// Its own methods block the calling thread. Those of the `Images` trait do not.
#[derive(Debug, Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    records: Records,
    layer_store: LayerStore,
}

/// Held while layers are added. It prevents garbage collection.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    _lock: Arc<Lock>,
}

/// An image whose layers are stored, to be added to the list.
pub(crate) struct NewImage {
    pub(crate) id: Digest,
    pub(crate) configuration: Configuration,
    pub(crate) manifest: Option<Digest>,
    pub(crate) tags: Vec<String>,
    pub(crate) digests: Vec<String>,
}

impl NewImage {
    pub(crate) fn new(
        id: Digest,
        configuration: Configuration,
        manifest: Option<&Digest>,
    ) -> NewImage {
        let manifest = manifest.cloned();
        NewImage { id, configuration, manifest, tags: Vec::new(), digests: Vec::new() }
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Hold {
    image: Digest,
    layers: Vec<Digest>,
}

impl ImageStore {
    /// Creates the directory if needed, and removes leftovers of a crash.
    pub fn open(directory: impl AsRef<Path>) -> Result<ImageStore> {
        use std::os::unix::fs::PermissionsExt;
        let directory = directory.as_ref();
        for part in ["", "layers", "holds", "downloads", "tmp", "locks", "empty"] {
            let path = directory.join(part);
            std::fs::create_dir_all(&path).map_err(Error::io("create", &path))?;
        }
        // Layers contain untrusted setuid files. Other users of the node must not reach them.
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
            .map_err(Error::io("restrict access to", directory))?;
        // Other processes mount layers, so their paths must be absolute.
        let directory = directory.canonicalize().map_err(Error::io("open", directory))?;
        let (records, layer_store) = (Records::new(&directory), LayerStore::new(&directory));
        let store = ImageStore { inner: Arc::new(Inner { directory, records, layer_store }) };
        store.inner.records.read()?;
        store.clean()?;
        Ok(store)
    }

    /// The image's defaults for containers. `image` is an id, a name or a digest.
    pub fn config(&self, image: &str) -> Result<ImageConfig> {
        Ok(self.record(image)?.1.config)
    }

    /// The directories of unpacked layers, topmost first, for overlayfs. Never write to them. Call
    /// [`ImageStore::hold`] first, otherwise garbage collection may remove them.
    pub fn layers(&self, image: &str) -> Result<Vec<PathBuf>> {
        let (_, record) = self.record(image)?;
        let mut paths: Vec<PathBuf> =
            record.layers.iter().rev().map(|layer| self.inner.layer_store.path(layer)).collect();
        if paths.is_empty() {
            paths.push(self.empty());
        }
        Ok(paths)
    }

    /// Imports all images for this platform from an OCI layout (directory or tar) or a docker archive. Blocks.
    pub fn import(
        &self,
        file: impl AsRef<Path>,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Vec<Image>> {
        let imported = import::import(self, file.as_ref(), progress);
        if imported.is_err() {
            self.clean()?;
        }
        imported
    }

    /// Adds a name to a local image.
    pub fn tag(&self, image: &str, name: &str) -> Result<Image> {
        let tag = ImageName::parse(name)?.tagged().ok_or_else(|| {
            let why = "expected a tag, not a digest".to_owned();
            Error::ImageName { name: name.to_owned(), why }
        })?;
        let (id, mut record) = self.record(image)?;
        record.tags.insert(tag);
        self.inner.records.change(|known| {
            records::merge(known, &id, record);
            Ok(known[&id].image(&id))
        })
    }

    /// Keeps the image's layers for a container (or another user of the layers), even if the image is removed. Must
    /// be called before the root filesystem is mounted. Idempotent. The hold is on disk when this returns.
    pub fn hold(&self, container: &str, image: &str) -> Result<()> {
        let path = self.hold_path(container)?;
        // While the records are locked, so that the image cannot be removed meanwhile.
        self.inner.records.change(|known| {
            let id = records::find(known, &ImageReference(image.to_owned()))?;
            let id = id.ok_or_else(|| not_found(image))?.clone();
            let layers = known[&id].layers.clone();
            let bytes = serde_json::to_vec(&Hold { image: id, layers })
                .map_err(|e| Error::io("write", &path)(std::io::Error::other(e)))?;
            replace(&path, &bytes)
        })
    }

    /// Ends a hold, after the root filesystem was unmounted. Idempotent.
    pub fn release(&self, container: &str) -> Result<()> {
        let path = self.hold_path(container)?;
        let Ok(bytes) = std::fs::read(&path) else { return Ok(()) };
        std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        let known = self.inner.records.read()?;
        match serde_json::from_slice::<Hold>(&bytes) {
            Ok(hold) if known.contains_key(&hold.image) => Ok(()),
            _ => self.clean(), // The image was removed before its container.
        }
    }

    /// All holders, to release those whose container does not exist any more.
    pub fn holders(&self) -> Result<Vec<String>> {
        let path = self.inner.directory.join("holds");
        let entries = std::fs::read_dir(&path).map_err(Error::io("read", &path))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| !name.starts_with('.')).collect())
    }

    /// Reads `registries.json`.
    pub fn registries(&self) -> Result<Registries> {
        Registries::read(&self.inner.directory.join("registries.json"))
    }

    pub(crate) fn find_now(&self, image: &ImageReference) -> Result<Option<Image>> {
        let known = self.inner.records.read()?;
        let id = records::find(&known, image)?;
        Ok(id.map(|id| known[id].image(id)))
    }

    /// The configuration of a local image.
    pub(crate) fn configuration(&self, id: &Digest) -> Result<Option<Configuration>> {
        let record = self.inner.records.read()?.remove(id);
        Ok(record.map(|record| Configuration { config: record.config, layers: record.layers }))
    }

    pub(crate) fn list_now(&self) -> Result<Vec<Image>> {
        let known = self.inner.records.read()?;
        Ok(known.iter().map(|(id, record)| record.image(id)).collect())
    }

    /// Removes a name of an image and returns its other names. Returns `None`, without a change, if it is not a name
    /// or the only one.
    pub fn untag(&self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(tag) = ImageName::parse(name).ok().and_then(|name| name.tagged()) else {
            return Ok(None);
        };
        self.inner.records.change(|known| {
            let tagged = known.values_mut().find(|record| record.tags.contains(&tag));
            let Some(record) = tagged.filter(|record| record.tags.len() > 1) else {
                return Ok(None);
            };
            record.tags.remove(&tag);
            Ok(Some(record.tags.iter().cloned().collect()))
        })
    }

    pub(crate) fn remove_now(&self, image: &str) -> Result<()> {
        self.inner.records.change(|known| {
            let id = records::find(known, &ImageReference(image.to_owned()))?;
            let id = id.ok_or_else(|| not_found(image))?.clone();
            known.remove(&id);
            Ok(())
        })?;
        self.clean()
    }

    pub(crate) fn begin(&self) -> Result<Work> {
        let lock = Lock::shared(&self.inner.directory.join("work.lock"))?;
        Ok(Work { _lock: Arc::new(lock) })
    }

    /// Adds an image whose layers are stored.
    pub(crate) fn commit(&self, _work: &Work, new: NewImage) -> Result<Image> {
        let layers = new.configuration.layers;
        inherit_directories::inherit(&self.inner.layer_store, &layers)?;
        let mut size = 0;
        for layer in layers.iter().collect::<BTreeSet<_>>() {
            size += self.inner.layer_store.record(layer)?.bytes;
        }
        self.sync()?;
        let record = Record {
            config: new.configuration.config,
            layers,
            tags: new.tags.into_iter().collect(),
            digests: new.digests.into_iter().collect(),
            manifests: new.manifest.into_iter().collect(),
            size,
            pinned: false,
        };
        self.inner.records.change(|known| {
            records::merge(known, &new.id, record);
            Ok(known[&new.id].image(&new.id))
        })
    }

    /// Waits until everything is on disk.
    fn sync(&self) -> Result<()> {
        let path = &self.inner.directory;
        let directory = std::fs::File::open(path).map_err(Error::io("open", path))?;
        rustix::fs::syncfs(directory).map_err(|e| Error::io("write", path)(e.into()))
    }

    pub(crate) fn layer_store(&self) -> &LayerStore {
        &self.inner.layer_store
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.inner.directory.join("tmp")
    }

    pub(crate) fn downloads(&self) -> PathBuf {
        self.inner.directory.join("downloads")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.inner.directory
    }

    /// An empty directory.
    pub(crate) fn empty(&self) -> PathBuf {
        self.inner.directory.join("empty")
    }

    fn record(&self, image: &str) -> Result<(Digest, Record)> {
        let mut known = self.inner.records.read()?;
        let id = records::find(&known, &ImageReference(image.to_owned()))?.cloned();
        let found = id.and_then(|id| known.remove_entry(&id));
        found.ok_or_else(|| not_found(image))
    }

    fn hold_path(&self, container: &str) -> Result<PathBuf> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if container.is_empty() || container.starts_with('.') || !container.bytes().all(plain) {
            return Err(Error::Refused(format!("{container:?} is not a valid container id")));
        }
        Ok(self.inner.directory.join("holds").join(container))
    }

    /// Garbage collection: removes layers that no image and no container uses. Does nothing while a task adds an
    /// image; a later call will remove them.
    pub(crate) fn clean(&self) -> Result<()> {
        let directory = &self.inner.directory;
        let Some(_exclusive) = Lock::try_exclusive(&directory.join("work.lock"))? else {
            return Ok(());
        };
        self.inner.records.change(|known| {
            let mut needed: BTreeSet<Digest> =
                known.values().flat_map(|record| record.layers.iter().cloned()).collect();
            needed.extend(self.held()?);
            for name in names(&directory.join("layers"))? {
                if Digest::from_file_name(&name).is_none_or(|layer| !needed.contains(&layer)) {
                    // Rename first, so that the store never contains a partial layer.
                    let removed = directory.join("tmp").join(format!("{name}-{}", clock::uuid()));
                    let path = directory.join("layers").join(&name);
                    std::fs::rename(&path, removed).map_err(Error::io("remove", path))?;
                }
            }
            Ok(())
        })?;
        clear(&directory.join("tmp"))?;
        clear(&directory.join("locks"))?;
        self.remove_old_downloads()
    }

    fn held(&self) -> Result<BTreeSet<Digest>> {
        let mut held = BTreeSet::new();
        for holder in self.holders()? {
            let path = self.inner.directory.join("holds").join(holder);
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let hold: Hold = serde_json::from_slice(&bytes)
                .map_err(|e| Error::io("read", path)(std::io::Error::other(e)))?;
            held.extend(hold.layers);
        }
        Ok(held)
    }

    fn remove_old_downloads(&self) -> Result<()> {
        let directory = self.downloads();
        for name in names(&directory)? {
            let path = directory.join(&name);
            let Ok(modified) = path.metadata().and_then(|metadata| metadata.modified()) else {
                continue;
            };
            let at = jiff::Timestamp::try_from(modified).unwrap_or_default();
            if clock::now().duration_since(at) > DOWNLOAD_KEPT {
                std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            }
        }
        Ok(())
    }
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(directory).map_err(Error::io("read", directory))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

fn clear(directory: &Path) -> Result<()> {
    for name in names(directory)? {
        let path = directory.join(name);
        let removed = match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(&path),
            Ok(_) => std::fs::remove_file(&path),
            Err(_) => Ok(()),
        };
        removed.map_err(Error::io("remove", &path))?;
    }
    Ok(())
}

fn not_found(image: &str) -> Error {
    Error::NotFound { what: "image", id: image.to_owned() }
}
