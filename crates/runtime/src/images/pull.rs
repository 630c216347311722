//! Pulls an image from its registry or a mirror: finds the manifest and downloads missing layers.

use super::digest::Digest;
use super::download::{Download, fetch};
use super::image_name::ImageName;
use super::import::pair;
use super::limits::INDEX_DEPTH_MAX;
use super::manifest::{Configuration, Descriptor, Document, choose, no_platform};
use super::registries::Registries;
use super::registry::{Failure, Repository};
use super::store::{ImageStore, NewImage};
use crate::{Credentials, Error, Image, PullProgress, Result};
use futures::{StreamExt, TryStreamExt};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Parallel downloads per image, as in containerd.
const LAYERS_AT_ONCE: usize = 3;

/// A manifest, and the repository that has it.
struct Found {
    from: Repository,
    /// Digest of the manifest or index that the image name stands for.
    digest: Digest,
    document: Document,
}

pub(crate) async fn pull(
    store: &ImageStore,
    name: &ImageName,
    credentials: &[Credentials],
    progress: &(dyn Fn(PullProgress) + Send + Sync),
) -> Result<Image> {
    let (work, registries) =
        store.spawn_blocking(|store| Ok((store.begin()?, store.registries()?))).await?;
    let found = resolve(&registries, name, credentials).await?;
    let pull_error = |failure| failed(name, failure);
    let (manifest, config, layers) =
        find_manifest(&found.from, found.digest.clone(), found.document)
            .await
            .map_err(pull_error)?;
    let configuration = configuration(store, &found.from, &config).await.map_err(pull_error)?;
    let missing = missing(store, &configuration, &layers).await?;

    let total = missing.values().map(|layer| layer.size).sum();
    let done = AtomicU64::new(0);
    let report = |bytes: i64| {
        let before = done.fetch_add(bytes as u64, Ordering::Relaxed);
        let done = before.wrapping_add(bytes as u64);
        progress(PullProgress { done, total: Some(total) });
    };
    report(0);
    futures::stream::iter(missing)
        .map(|(layer, packed)| {
            let download = Download { layer, packed };
            fetch(store, &work, &found.from, download, &report)
        })
        .buffer_unordered(LAYERS_AT_ONCE)
        .try_collect::<Vec<()>>()
        .await
        .map_err(pull_error)?;

    let mut image = NewImage::new(config.digest, configuration, Some(&manifest));
    image.tags.extend(name.tagged());
    image.digests.push(name.with_digest(&found.digest));
    store.spawn_blocking(move |store| store.commit(&work, image)).await
}

/// Tries mirrors, then the registry, with each of the credentials. Anonymous access is tried only if there are no
/// credentials (N-175).
async fn resolve(
    registries: &Registries,
    name: &ImageName,
    credentials: &[Credentials],
) -> Result<Found> {
    let reference = name.digest().or_else(|| name.tag.clone()).unwrap_or_default();
    let mut failures = Vec::new();
    for endpoint in registries.endpoints(name)? {
        let attempts: Vec<Option<&Credentials>> = match (&endpoint.credentials, credentials) {
            (Some(own), _) => vec![Some(own)],
            (None, all) if !endpoint.is_mirror() && !all.is_empty() => {
                all.iter().map(Some).collect()
            }
            _ => vec![None],
        };
        for credentials in attempts {
            let from = Repository::new(registries, &endpoint, &name.repository, credentials)?;
            match manifest(&from, &reference, name.digest.as_ref()).await {
                Ok((digest, document)) => return Ok(Found { from, digest, document }),
                Err(failure) => {
                    tracing::debug!(host = endpoint.host(), %name, %failure, "no manifest from this registry");
                    failures.push(failure);
                }
            }
        }
    }
    Err(unresolved(name, &failures))
}

async fn manifest(
    from: &Repository,
    reference: &str,
    expected: Option<&Digest>,
) -> Result<(Digest, Document), Failure> {
    let bytes = from.manifest(reference).await?;
    let digest = match expected {
        Some(digest) => {
            let mut context = digest.context();
            context.update(&bytes);
            digest.matches(context).map_err(Failure::Bad)?;
            digest.clone()
        }
        None => Digest::of(&bytes),
    };
    Ok((digest, Document::read(&bytes).map_err(Failure::Bad)?))
}

/// Follows indexes to the manifest for this platform (N-173).
async fn find_manifest(
    from: &Repository,
    mut digest: Digest,
    mut document: Document,
) -> Result<(Digest, Descriptor, Vec<Descriptor>), Failure> {
    for _ in 0..=INDEX_DEPTH_MAX {
        match document {
            Document::Manifest { config, layers } => return Ok((digest, config, layers)),
            Document::Index(entries) => {
                let best = choose(&entries).into_iter().next();
                let best = best.ok_or_else(|| Failure::Bad(no_platform()))?;
                let reference = best.digest.to_string();
                (digest, document) = manifest(from, &reference, Some(&best.digest)).await?;
            }
        }
    }
    Err(Failure::Bad(Error::Refused("image indexes are nested too deeply".to_owned())))
}

/// Reads the configuration from the store if the image is known, otherwise from the registry.
async fn configuration(
    store: &ImageStore,
    from: &Repository,
    config: &Descriptor,
) -> Result<Configuration, Failure> {
    let id = config.digest.clone();
    match store.spawn_blocking(move |store| store.configuration(&id)).await.map_err(Failure::Bad)? {
        Some(known) => Ok(known),
        None => Configuration::read(&from.document(&config.digest).await?).map_err(Failure::Bad),
    }
}

/// Missing layers, by the digest of the uncompressed layer. A layer that occurs twice is downloaded once.
async fn missing(
    store: &ImageStore,
    configuration: &Configuration,
    layers: &[Descriptor],
) -> Result<BTreeMap<Digest, Descriptor>> {
    let pairs = pair(configuration, layers)?.into_iter();
    let pairs: Vec<_> = pairs.map(|(layer, packed)| (layer, packed.clone())).collect();
    store
        .spawn_blocking(move |store| {
            Ok(pairs.into_iter().filter(|(layer, _)| !store.layer_store().has(layer)).collect())
        })
        .await
}

/// The error with all failures.
fn unresolved(name: &ImageName, failures: &[Failure]) -> Error {
    let mut texts: Vec<String> = failures.iter().map(Failure::to_string).collect();
    texts.dedup();
    let texts = texts.join(", ");
    Error::Pull(format!("failed to resolve reference \"{name}\": {name}: {texts}"))
}

fn failed(name: &ImageName, failure: Failure) -> Error {
    let text = format!("failed to pull and unpack image \"{name}\": {failure}");
    match failure {
        Failure::Bad(error @ Error::Io { .. }) => error,
        Failure::Refused(_) | Failure::Bad(_) => Error::Pull(text),
    }
}
