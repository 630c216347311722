//! Imports the images of an archive.

use super::archive::Archive;
use super::digest::Digest;
use super::image_name::ImageName;
use super::layer_store::Packed;
use super::limits::{DOCUMENT_BYTES_MAX, IMAGES_MAX, INDEX_DEPTH_MAX};
use super::manifest::{Configuration, Descriptor, Document, choose, no_platform};
use super::store::{ImageStore, NewImage};
use crate::{Error, Image, PullProgress, Result};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Annotations of an index that contain the image's name, the more complete one first.
const NAME_ANNOTATIONS: [&str; 2] =
    ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// An image in the archive, with its layers, the lowest first.
struct Plan {
    image: NewImage,
    layers: Vec<LayerFile>,
}

struct LayerFile {
    /// Digest of the uncompressed layer.
    layer: Digest,
    file: String,
    /// Digest of the file, if the archive has it.
    digest: Option<Digest>,
    size: u64,
}

/// Returns the images with their names in the archive. The store may know more names of them.
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
    let total = plans.iter().flat_map(|plan| &plan.layers).map(|file| file.size).sum();
    let mut done = 0;
    progress(PullProgress { done, total: Some(total) });
    let mut images = Vec::new();
    for plan in plans {
        for file in &plan.layers {
            let before = done;
            let mut report =
                |read| progress(PullProgress { done: before + read, total: Some(total) });
            add(store, &archive, file, &mut report)?;
            done += file.size;
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
    file: &LayerFile,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let _lock = store.layer_store().lock(&file.layer)?;
    if store.layer_store().has(&file.layer) {
        return Ok(());
    }
    let range = archive.get(&file.file)?;
    let size = range.size();
    let archive = Counted { inner: range, read: 0, progress };
    let packed = Packed { archive, digest: file.digest.clone(), size: file.size };
    if file.digest.is_some() && size != file.size {
        let (name, expected) = (&file.file, file.size);
        return Err(Error::Refused(format!("{name} has {size} bytes, not {expected}")));
    }
    store.layer_store().add(&file.layer, packed)
}

/// A reader that reports the number of bytes.
struct Counted<'a, R> {
    inner: R,
    read: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read += read as u64;
        (self.progress)(self.read);
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
    // Entries of the same name are one image for several platforms.
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

/// Without slash and colon it is only a tag, and the repository is unknown.
fn full_name(text: &str) -> Option<Result<ImageName>> {
    text.contains(['/', ':']).then(|| ImageName::parse(text))
}

fn plan_of_entry(archive: &Archive, entry: &Descriptor, depth: usize) -> Result<Plan> {
    let bytes = blob(archive, entry)?;
    match Document::read(&bytes)? {
        Document::Index(_) if depth >= INDEX_DEPTH_MAX => {
            Err(Error::Refused("image indexes are nested too deeply".to_owned()))
        }
        Document::Index(entries) => {
            let best = choose(&entries).into_iter().next().ok_or_else(no_platform)?;
            plan_of_entry(archive, best, depth + 1)
        }
        Document::Manifest { config, layers } => {
            let configuration = Configuration::read(&blob(archive, &config)?)?;
            let layers =
                pair(&configuration, &layers)?.into_iter().map(|(layer, packed)| LayerFile {
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

/// Pairs the digest of each uncompressed layer with its compressed file.
pub(crate) fn pair<'a>(
    configuration: &Configuration,
    packed: &'a [Descriptor],
) -> Result<Vec<(Digest, &'a Descriptor)>> {
    if configuration.layers.len() != packed.len() {
        let (configured, listed) = (configuration.layers.len(), packed.len());
        return Err(Error::Refused(format!(
            "the image's configuration has {configured} layers, but its manifest {listed}"
        )));
    }
    Ok(configuration.layers.iter().cloned().zip(packed).collect())
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

/// Reads a small blob and checks its digest.
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

/// An entry of `manifest.json` in the output of `docker save`.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

fn plans_of_docker(archive: &Archive) -> Result<Vec<Plan>> {
    let images: Vec<DockerImage> = serde_json::from_slice(&archive.document("manifest.json")?)
        .map_err(|e| Error::Refused(format!("cannot parse manifest.json in the archive: {e}")))?;
    if images.len() > IMAGES_MAX {
        return Err(Error::Refused(format!("the archive has more than {IMAGES_MAX} images")));
    }
    images.into_iter().map(|image| plan_of_docker_image(archive, image)).collect()
}

fn plan_of_docker_image(archive: &Archive, saved: DockerImage) -> Result<Plan> {
    let bytes = archive.document(&saved.config)?;
    let configuration = Configuration::read(&bytes)?;
    let files = saved.layers.unwrap_or_default();
    if configuration.layers.len() != files.len() {
        return Err(Error::Refused(
            "the image's configuration and manifest.json have different layers".to_owned(),
        ));
    }
    let mut layers = Vec::new();
    for (layer, file) in configuration.layers.iter().cloned().zip(files) {
        let size = archive.get(&file)?.size();
        layers.push(LayerFile { layer, file, digest: None, size });
    }
    let mut image = NewImage::new(Digest::of(&bytes), configuration, None);
    for tag in saved.repo_tags.unwrap_or_default() {
        image.tags.extend(ImageName::parse(&tag)?.tagged());
    }
    Ok(Plan { image, layers })
}
