//! The store itself: what is on disk, who uses it, and what may go.
//!
//!     images.json      which images are here (`records`)
//!     layers/          unpacked (`shelf`)
//!     holds/<id>       which layers a container stands on
//!     downloads/       layers not wholly here yet, to go on with
//!     tmp/, locks/     of no worth once nobody works
//!     work.lock        shared by whoever adds; alone for whoever takes away what nobody needs
//!
//! A layer is on the shelf before a record names it, and the disk has it all before the record is
//! written. So whatever is there without a record, and nobody at work, was left by a crash.

use super::digest::Digest;
use super::locks::Lock;
use super::manifest::{Configuration, ImageConfig};
use super::records::{self, Record, Records, replace};
use super::reference::Name;
use super::registries::Registries;
use super::shelf::Shelf;
use super::{adopt, import};
use crate::{Error, Image, ImageReference, PullProgress, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A download nobody went on with for this long is given up.
const DOWNLOAD_KEPT: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);

/// Images in a directory. Cheap to clone; several processes may use one directory.
///
/// Its own functions do file I/O on the caller's thread. The `Images` trait does not.
#[derive(Debug, Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    records: Records,
    shelf: Shelf,
}

/// Held by whoever adds layers: until it is dropped nothing is taken away.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    _lock: Arc<Lock>,
}

/// An image whose layers are all there, about to be known.
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
    /// Makes the directory if need be, and takes away what a crash left.
    pub fn open(directory: impl AsRef<Path>) -> Result<ImageStore> {
        use std::os::unix::fs::PermissionsExt;
        let directory = directory.as_ref();
        for part in ["", "layers", "holds", "downloads", "tmp", "locks", "empty"] {
            let path = directory.join(part);
            std::fs::create_dir_all(&path).map_err(Error::io("make", &path))?;
        }
        // Layers hold setuid files of strangers: no other user of the node is to reach them.
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
            .map_err(Error::io("make", directory))?;
        // Lower directories are named in mounts, which happen elsewhere.
        let directory = directory.canonicalize().map_err(Error::io("open", directory))?;
        let (records, shelf) = (Records::new(&directory), Shelf::new(&directory));
        let store = ImageStore { inner: Arc::new(Inner { directory, records, shelf }) };
        store.inner.records.read()?;
        store.clean()?;
        Ok(store)
    }

    /// What the image says of its containers. `image` is an id, a name or a digest.
    pub fn config(&self, image: &str) -> Result<ImageConfig> {
        Ok(self.record(image)?.1.config)
    }

    /// Unpacked layers, topmost first: lower directories for overlayfs, in its order. Never write
    /// to them. Take a [`ImageStore::hold`] first, or they may go away.
    pub fn layers(&self, image: &str) -> Result<Vec<PathBuf>> {
        let (_, record) = self.record(image)?;
        let mut paths: Vec<PathBuf> =
            record.layers.iter().rev().map(|layer| self.inner.shelf.path(layer)).collect();
        if paths.is_empty() {
            paths.push(self.empty());
        }
        Ok(paths)
    }

    /// Brings in every image of an OCI layout (directory or tar) or docker archive that suits this
    /// machine. Already known ones are fine. Blocks.
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

    /// Another name for an image that is here.
    pub fn tag(&self, image: &str, name: &str) -> Result<Image> {
        let tag = Name::parse(name)?.tagged().ok_or_else(|| {
            let why = "a tag was expected, not a digest".to_owned();
            Error::ImageName { name: name.to_owned(), why }
        })?;
        let (id, mut record) = self.record(image)?;
        record.tags.insert(tag);
        self.inner.records.change(|known| {
            records::merge(known, &id, record);
            Ok(known[&id].image(&id))
        })
    }

    /// Keeps the image's layers while a container stands on them, over restarts and even if the
    /// image is removed. To be called before the root filesystem is mounted, with the container's id
    /// (or that of whoever mounts it); again is fine. On disk when it returns.
    pub fn hold(&self, container: &str, image: &str) -> Result<()> {
        let path = self.hold_path(container)?;
        // Under the records' lock, so that the image cannot be removed in between.
        self.inner.records.change(|known| {
            let id = records::find(known, &ImageReference(image.to_owned()))?;
            let id = id.ok_or_else(|| not_found(image))?.clone();
            let layers = known[&id].layers.clone();
            let bytes = serde_json::to_vec(&Hold { image: id, layers })
                .map_err(|e| Error::io("write", &path)(std::io::Error::other(e)))?;
            replace(&path, &bytes)
        })
    }

    /// The container's root filesystem is unmounted for good. Idempotent.
    pub fn release(&self, container: &str) -> Result<()> {
        let path = self.hold_path(container)?;
        let Ok(bytes) = std::fs::read(&path) else { return Ok(()) };
        std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        let known = self.inner.records.read()?;
        match serde_json::from_slice::<Hold>(&bytes) {
            Ok(hold) if known.contains_key(&hold.image) => Ok(()),
            _ => self.clean(), // The image went before its container.
        }
    }

    /// Whose holds there are, to release those of containers that are no more.
    pub fn holders(&self) -> Result<Vec<String>> {
        let path = self.inner.directory.join("holds");
        let entries = std::fs::read_dir(&path).map_err(Error::io("read", &path))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| !name.starts_with('.')).collect())
    }

    /// Mirrors and certificates, as `registries.json` says them now.
    pub fn registries(&self) -> Result<Registries> {
        Registries::read(&self.inner.directory.join("registries.json"))
    }

    pub(crate) fn find_now(&self, image: &ImageReference) -> Result<Option<Image>> {
        let known = self.inner.records.read()?;
        let id = records::find(&known, image)?;
        Ok(id.map(|id| known[id].image(id)))
    }

    /// Of an image that is here.
    pub(crate) fn configuration(&self, id: &Digest) -> Result<Option<Configuration>> {
        let record = self.inner.records.read()?.remove(id);
        Ok(record.map(|record| Configuration { config: record.config, layers: record.layers }))
    }

    pub(crate) fn list_now(&self) -> Result<Vec<Image>> {
        let known = self.inner.records.read()?;
        Ok(known.iter().map(|(id, record)| record.image(id)).collect())
    }

    /// Takes a name from an image that has others, and answers with those. None: it is no name, or the
    /// last one.
    pub fn untag(&self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(tag) = Name::parse(name).ok().and_then(|name| name.tagged()) else {
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

    /// Makes an image known. Its layers are on the shelf.
    pub(crate) fn commit(&self, _work: &Work, new: NewImage) -> Result<Image> {
        let layers = new.configuration.layers;
        adopt::adopt(&self.inner.shelf, &layers)?;
        let mut size = 0;
        for layer in layers.iter().collect::<BTreeSet<_>>() {
            size += self.inner.shelf.note(layer)?.bytes;
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

    /// Everything written so far is on the disk.
    fn sync(&self) -> Result<()> {
        let path = &self.inner.directory;
        let directory = std::fs::File::open(path).map_err(Error::io("open", path))?;
        rustix::fs::syncfs(directory).map_err(|e| Error::io("write", path)(e.into()))
    }

    pub(crate) fn shelf(&self) -> &Shelf {
        &self.inner.shelf
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

    /// A directory with nothing in it.
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
            return Err(Error::Refused(format!("{container:?} is not the id of a container")));
        }
        Ok(self.inner.directory.join("holds").join(container))
    }

    /// Takes away what neither an image nor a container needs. While somebody adds, it does nothing:
    /// whoever removes, fails or opens next will.
    pub(crate) fn clean(&self) -> Result<()> {
        let directory = &self.inner.directory;
        let Some(_alone) = Lock::try_exclusive(&directory.join("work.lock"))? else {
            return Ok(());
        };
        self.inner.records.change(|known| {
            let mut needed: BTreeSet<Digest> =
                known.values().flat_map(|record| record.layers.iter().cloned()).collect();
            needed.extend(self.held()?);
            for name in names(&directory.join("layers"))? {
                if Digest::from_file_name(&name).is_none_or(|layer| !needed.contains(&layer)) {
                    // Out of sight by one rename; half of a layer is never on the shelf.
                    let away = directory.join("tmp").join(format!("{name}-{}", clock::uuid()));
                    let path = directory.join("layers").join(&name);
                    std::fs::rename(&path, away).map_err(Error::io("remove", path))?;
                }
            }
            Ok(())
        })?;
        clear(&directory.join("tmp"))?;
        clear(&directory.join("locks"))?;
        self.give_up_downloads()
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

    fn give_up_downloads(&self) -> Result<()> {
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
