//! Brings in the images of an archive: what is in it, which layers are missing, in they go.

use super::archive::Archive;
use super::digest::Digest;
use super::limits::{DOCUMENT_BYTES_MAX, IMAGES_MAX, INDEX_DEPTH_MAX};
use super::manifest::{Configuration, Descriptor, Document, choose, no_platform};
use super::reference::Name;
use super::shelf::Packed;
use super::store::{ImageStore, NewImage};
use crate::{Error, Image, PullProgress, Result};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Names in the annotations of an index, the fuller one first.
const NAME_ANNOTATIONS: [&str; 2] =
    ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// An image in the archive, and where its layers are, the lowest first.
struct Plan {
    image: NewImage,
    layers: Vec<Piece>,
}

struct Piece {
    layer: Digest,
    file: String,
    digest: Option<Digest>,
    size: u64,
}

/// Each with the names that the archive has for it; it may have had others before.
pub(crate) fn import(
    store: &ImageStore,
    file: &Path,
    progress: &(dyn Fn(PullProgress) + Send + Sync),
) -> Result<Vec<Image>> {
    let work = store.begin()?;
    let archive = Archive::open(file, &store.scratch())?;
    let plans = if archive.find("index.json")?.is_some() {
        plans_of_layout(&archive)?
    } else if archive.find("manifest.json")?.is_some() {
        plans_of_docker(&archive)?
    } else {
        let path = file.display();
        return Err(Error::Refused(format!(
            "{path} is neither an OCI layout nor a docker archive"
        )));
    };
    let total = plans.iter().flat_map(|plan| &plan.layers).map(|piece| piece.size).sum();
    let mut done = 0;
    progress(PullProgress { done, total: Some(total) });
    let mut images = Vec::new();
    for plan in plans {
        for piece in &plan.layers {
            let before = done;
            let mut told =
                |read| progress(PullProgress { done: before + read, total: Some(total) });
            add(store, &archive, piece, &mut told)?;
            done += piece.size;
            progress(PullProgress { done, total: Some(total) });
        }
        let tags = plan.image.tags.clone();
        images.push(Image { tags, ..store.commit(&work, plan.image)? });
    }
    Ok(images)
}

fn add(
    store: &ImageStore,
    archive: &Archive,
    piece: &Piece,
    told: &mut dyn FnMut(u64),
) -> Result<()> {
    let _lock = store.shelf().lock(&piece.layer)?;
    if store.shelf().has(&piece.layer) {
        return Ok(());
    }
    let part = archive.get(&piece.file)?;
    let size = part.size();
    let archive = Counted { inner: part, read: 0, told };
    let packed = Packed { archive, digest: piece.digest.clone(), size: piece.size };
    if piece.digest.is_some() && size != piece.size {
        let (digest, said) = (&piece.file, piece.size);
        return Err(Error::Refused(format!("{digest} has {size} bytes, not {said}")));
    }
    store.shelf().add(&piece.layer, packed)
}

struct Counted<'a, R> {
    inner: R,
    read: u64,
    told: &'a mut dyn FnMut(u64),
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read += read as u64;
        (self.told)(self.read);
        Ok(read)
    }
}

fn plans_of_layout(archive: &Archive) -> Result<Vec<Plan>> {
    let Document::Index(entries) = Document::read(&archive.document("index.json")?)? else {
        return Err(Error::Refused("index.json in the archive is not an index".to_owned()));
    };
    if entries.len() > IMAGES_MAX {
        return Err(Error::Refused(format!("the archive has more than {IMAGES_MAX} images")));
    }
    // One name for several kinds of machines is one image.
    let mut by_name: BTreeMap<Option<String>, Vec<Descriptor>> = BTreeMap::new();
    for entry in entries {
        let name = NAME_ANNOTATIONS.iter().find_map(|key| entry.annotations.get(*key));
        by_name.entry(name.cloned()).or_default().push(entry);
    }
    let mut plans = Vec::new();
    for (name, entries) in by_name {
        let name = name.as_deref().and_then(full_name).transpose()?;
        let suited = choose(&entries);
        let several = name.is_none() && entries.iter().all(|entry| entry.platform.is_none());
        for entry in suited.into_iter().take(if several { IMAGES_MAX } else { 1 }) {
            let mut plan = plan_of_entry(archive, entry, 0)?;
            if let Some(name) = &name {
                plan.image.tags.extend(name.tagged());
                plan.image.digests.push(name.with_digest(&entry.digest));
            }
            plans.push(plan);
        }
    }
    if plans.is_empty() { Err(no_platform()) } else { Ok(plans) }
}

/// A bare word is a tag of something the archive does not name.
fn full_name(text: &str) -> Option<Result<Name>> {
    text.contains(['/', ':']).then(|| Name::parse(text))
}

fn plan_of_entry(archive: &Archive, entry: &Descriptor, depth: usize) -> Result<Plan> {
    let bytes = blob(archive, entry)?;
    match Document::read(&bytes)? {
        Document::Index(_) if depth >= INDEX_DEPTH_MAX => {
            Err(Error::Refused("indexes within indexes, and no end".to_owned()))
        }
        Document::Index(entries) => {
            let best = choose(&entries).into_iter().next().ok_or_else(no_platform)?;
            plan_of_entry(archive, best, depth + 1)
        }
        Document::Manifest { config, layers } => {
            let configuration = Configuration::read(&blob(archive, &config)?)?;
            let layers = pair(&configuration, &layers)?.into_iter().map(|(layer, packed)| Piece {
                layer,
                file: blob_name(&packed.digest),
                digest: Some(packed.digest.clone()),
                size: packed.size,
            });
            let layers = layers.collect();
            Ok(Plan {
                image: NewImage::new(config.digest, configuration, Some(&entry.digest)),
                layers,
            })
        }
    }
}

/// Layers by their two digests: unpacked and packed.
pub(crate) fn pair<'a>(
    configuration: &Configuration,
    packed: &'a [Descriptor],
) -> Result<Vec<(Digest, &'a Descriptor)>> {
    if configuration.layers.len() != packed.len() {
        let (named, there) = (configuration.layers.len(), packed.len());
        return Err(Error::Refused(format!(
            "the image's configuration names {named} layers, its manifest {there}"
        )));
    }
    Ok(configuration.layers.iter().cloned().zip(packed).collect())
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

/// A small blob, checked.
fn blob(archive: &Archive, descriptor: &Descriptor) -> Result<Vec<u8>> {
    let name = blob_name(&descriptor.digest);
    if descriptor.size > DOCUMENT_BYTES_MAX {
        return Err(Error::Refused(format!("{name:?} in the archive is too large")));
    }
    let bytes = archive.document(&name)?;
    let mut context = descriptor.digest.context();
    context.update(&bytes);
    descriptor.digest.matches(context)?;
    Ok(bytes)
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

fn plans_of_docker(archive: &Archive) -> Result<Vec<Plan>> {
    let saved: Vec<Saved> = serde_json::from_slice(&archive.document("manifest.json")?)
        .map_err(|e| Error::Refused(format!("manifest.json in the archive cannot be read: {e}")))?;
    if saved.len() > IMAGES_MAX {
        return Err(Error::Refused(format!("the archive has more than {IMAGES_MAX} images")));
    }
    saved.into_iter().map(|saved| plan_of_saved(archive, saved)).collect()
}

fn plan_of_saved(archive: &Archive, saved: Saved) -> Result<Plan> {
    let bytes = archive.document(&saved.config)?;
    let configuration = Configuration::read(&bytes)?;
    let files = saved.layers.unwrap_or_default();
    if configuration.layers.len() != files.len() {
        return Err(Error::Refused("the image's configuration names other layers".to_owned()));
    }
    let mut layers = Vec::new();
    for (layer, file) in configuration.layers.iter().cloned().zip(files) {
        let size = archive.get(&file)?.size();
        layers.push(Piece { layer, file, digest: None, size });
    }
    let mut image = NewImage::new(Digest::of(&bytes), configuration, None);
    for tag in saved.repo_tags.unwrap_or_default() {
        image.tags.extend(Name::parse(&tag)?.tagged());
    }
    Ok(Plan { image, layers })
}
