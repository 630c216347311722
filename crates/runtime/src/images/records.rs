//! The list of local images, in one small file.
//!
//! Several processes use it, so it is not cached in memory. Changes need a lock and replace the file atomically.

use super::digest::Digest;
use super::image_name::ImageName;
use super::locks::Lock;
use super::manifest::ImageConfig;
use crate::{Error, Image, ImageReference, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub(crate) struct Records {
    directory: PathBuf,
}

/// All records, by image id, which is the digest of the configuration.
pub(crate) type Known = BTreeMap<Digest, Record>;

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Record {
    pub(crate) config: ImageConfig,
    /// Digests of uncompressed layers, the lowest first.
    pub(crate) layers: Vec<Digest>,
    /// `docker.io/library/busybox:latest`. A tag belongs to one record only.
    pub(crate) tags: BTreeSet<String>,
    /// `docker.io/library/busybox@sha256:…`: the manifest or index that the name stands for (N-178).
    pub(crate) digests: BTreeSet<String>,
    /// Manifests that were found through an index.
    #[serde(default)]
    pub(crate) manifests: BTreeSet<Digest>,
    /// Size of the unpacked layers.
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) pinned: bool,
}

impl Records {
    pub(crate) fn new(directory: &Path) -> Records {
        Records { directory: directory.to_owned() }
    }

    pub(crate) fn read(&self) -> Result<Known> {
        self.known(self.bytes()?.as_deref())
    }

    /// Reads the records, applies `change` and writes them. Does not write if nothing has changed, which is the usual
    /// case when a container holds its image.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Known) -> Result<T>) -> Result<T> {
        let _lock = Lock::exclusive(&self.directory.join("records.lock"))?;
        let before = self.bytes()?;
        let mut known = self.known(before.as_deref())?;
        let outcome = change(&mut known)?;
        let bytes = serde_json::to_vec_pretty(&known)
            .map_err(|e| Error::io("write", self.directory.clone())(std::io::Error::other(e)))?;
        if before.is_none_or(|before| before != bytes) {
            replace(&self.file(), &bytes)?;
        }
        Ok(outcome)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("images.json")
    }

    /// `None` if there is no file yet.
    fn bytes(&self) -> Result<Option<Vec<u8>>> {
        match std::fs::read(self.file()) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", self.file())(error)),
        }
    }

    fn known(&self, bytes: Option<&[u8]>) -> Result<Known> {
        let Some(bytes) = bytes else { return Ok(Known::new()) };
        serde_json::from_slice(bytes)
            .map_err(|e| Error::io("read", self.file())(std::io::Error::other(e)))
    }
}

/// Replaces a file atomically, even if the machine loses power.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        std::fs::File::open(directory)?.sync_all()
    };
    write().map_err(Error::io("write", path))
}

/// Finds an image by id (with or without `sha256:`), name or digest.
pub(crate) fn find<'a>(known: &'a Known, image: &ImageReference) -> Result<Option<&'a Digest>> {
    let text = image.0.as_str();
    let id = Digest::parse(text).or_else(|| Digest::parse(&format!("sha256:{text}")));
    if let Some((id, _)) = id.and_then(|id| known.get_key_value(&id)) {
        return Ok(Some(id));
    }
    if Digest::parse(text).is_some() {
        return Ok(None); // An id of an unknown image.
    }
    let name = ImageName::parse(text)?;
    let named = |record: &Record| match (&name.digest, name.tagged()) {
        (Some(digest), _) => record.has_digest(&name, digest),
        (None, tag) => tag.is_some_and(|tag| record.tags.contains(&tag)),
    };
    Ok(known.iter().find(|(_, record)| named(record)).map(|(id, _)| id))
}

impl Record {
    fn has_digest(&self, name: &ImageName, digest: &Digest) -> bool {
        let repository = format!("{}@", name.full_repository());
        self.digests.contains(&name.with_digest(digest))
            || (self.manifests.contains(digest)
                && self.digests.iter().any(|known| known.starts_with(&repository)))
    }

    pub(crate) fn image(&self, id: &Digest) -> Image {
        let user = self.config.user.split(':').next().unwrap_or_default();
        let uid = user.parse().ok();
        Image {
            id: id.to_string(),
            tags: self.tags.iter().cloned().collect(),
            digests: self.digests.iter().cloned().collect(),
            size: self.size,
            uid,
            username: if uid.is_some() { String::new() } else { user.to_owned() },
            pinned: self.pinned,
        }
    }
}

/// Adds a record. Tags move to it from other images.
pub(crate) fn merge(known: &mut Known, id: &Digest, new: Record) {
    for (other, record) in known.iter_mut() {
        if other != id {
            record.tags.retain(|tag| !new.tags.contains(tag));
        }
    }
    match known.get_mut(id) {
        Some(old) => {
            old.tags.extend(new.tags);
            old.digests.extend(new.digests);
            old.manifests.extend(new.manifests);
            old.size = new.size;
        }
        None => {
            known.insert(id.clone(), new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tags: &[&str], digests: &[&str]) -> Record {
        Record {
            config: ImageConfig::default(),
            layers: Vec::new(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            digests: digests.iter().map(|digest| (*digest).to_owned()).collect(),
            manifests: BTreeSet::new(),
            size: 1,
            pinned: false,
        }
    }

    #[test]
    fn a_tag_belongs_to_one_image_only() {
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        let mut known = Known::new();
        merge(&mut known, &old, record(&["docker.io/library/a:1"], &["docker.io/library/a@x"]));
        merge(&mut known, &new, record(&["docker.io/library/a:1"], &[]));
        let found = find(&known, &ImageReference("a:1".into())).unwrap();
        assert_eq!(found, Some(&new));
        assert!(known[&old].tags.is_empty());
        assert!(known.contains_key(&old), "it is still known by its digest");
    }

    #[test]
    fn unchanged_records_are_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new(directory.path());
        let file = || {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata(directory.path().join("images.json")).unwrap().ino()
        };
        let add = |name: &'static str| {
            records.change(|known| {
                merge(known, &Digest::of(b"it"), record(&[name], &[]));
                Ok(())
            })
        };
        add("docker.io/library/a:1").unwrap();
        // Keep it open, so that its inode number is not reused.
        let _first = std::fs::File::open(directory.path().join("images.json")).unwrap();
        let before = file();
        add("docker.io/library/a:1").unwrap();
        assert_eq!(file(), before);
        add("docker.io/library/a:2").unwrap();
        assert_ne!(file(), before);
        assert_eq!(records.read().unwrap()[&Digest::of(b"it")].tags.len(), 2);
    }

    #[test]
    fn images_are_found_by_id_name_and_digest() {
        let id = Digest::of(b"it");
        let manifest = Digest::of(b"manifest");
        let by_digest = format!("docker.io/library/a@{manifest}");
        let mut known = Known::new();
        merge(&mut known, &id, record(&["docker.io/library/a:latest"], &[&by_digest]));
        let names = [
            id.to_string(),
            id.hex().to_owned(),
            "a".into(),
            "docker.io/a".into(),
            by_digest,
            format!("a:2@{manifest}"), // The digest decides (N-172).
        ];
        for name in names {
            assert_eq!(find(&known, &ImageReference(name.clone())).unwrap(), Some(&id), "{name}");
        }
        for name in ["a:2", "b", &manifest.to_string(), &format!("b@{manifest}")] {
            assert_eq!(find(&known, &ImageReference(name.to_owned())).unwrap(), None, "{name}");
        }
        assert!(find(&known, &ImageReference("A".into())).is_err());
    }
}
