//! One layer on its way: fetched into a file that a later attempt goes on with, then unpacked.

use super::digest::Digest;
use super::limits::LAYER_BYTES_MAX;
use super::locks::Lock;
use super::manifest::Descriptor;
use super::registry::{Failure, Repository, broken};
use super::shelf::Packed;
use super::store::{ImageStore, Work};
use crate::{Error, Result};
use reqwest::StatusCode;
use reqwest::header::CONTENT_RANGE;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// Attempts that bring nothing before it is given up. Progress starts the count anew.
const TRIES_MAX: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(500);

pub(crate) struct Download {
    /// Unpacked.
    pub(crate) layer: Digest,
    pub(crate) packed: Descriptor,
}

/// Nobody else unpacks this layer, and nothing is taken away.
#[derive(Clone)]
struct Held {
    _work: Work,
    _layer: Arc<Lock>,
}

/// On return the layer is on the shelf. `told` hears how many bytes came, or were for nothing.
pub(crate) async fn fetch(
    store: &ImageStore,
    work: &Work,
    from: &Repository,
    download: Download,
    told: &(dyn Fn(i64) + Send + Sync),
) -> Result<(), Failure> {
    if download.packed.size > LAYER_BYTES_MAX {
        return Err(Failure::Bad(Error::Refused("a layer of the image is too large".to_owned())));
    }
    let layer = download.layer.clone();
    let lock = store.aside(move |store| store.shelf().lock(&layer)).await.map_err(Failure::Bad)?;
    let held = Held { _work: work.clone(), _layer: Arc::new(lock) };
    if store.shelf().has(&download.layer) {
        told(download.packed.size as i64); // Somebody else brought it.
        return Ok(());
    }
    let (layer, packed) = (download.layer, download.packed);
    let name = format!("{}.{}", layer.file_name(), packed.digest.file_name());
    let path = store.downloads().join(name);
    let resumed = bring(from, &packed, &path, told).await?;
    match unpack(store, &held, &layer, &packed, &path).await {
        // What an earlier attempt left may have been bad: once more, all of it.
        Err(Error::Refused(_)) if resumed => {
            told(-(packed.size as i64));
            bring(from, &packed, &path, told).await?;
            unpack(store, &held, &layer, &packed, &path).await
        }
        done => done,
    }
    .map_err(Failure::Bad)
}

/// The whole file, whatever it takes. True if there was a part of it before.
async fn bring(
    from: &Repository,
    packed: &Descriptor,
    path: &Path,
    told: &(dyn Fn(i64) + Send + Sync),
) -> Result<bool, Failure> {
    let mut have = tokio::fs::metadata(path).await.map_or(0, |metadata| metadata.len());
    if have > packed.size {
        have = 0;
    }
    let resumed = have > 0;
    told(have as i64);
    let (mut tries, mut wait) = (0, FIRST_WAIT);
    // An empty layer has to be asked for, too.
    while have < packed.size || tries == 0 {
        let before = have;
        match go_on(from, packed, path, &mut have, told).await {
            Ok(()) => {}
            Err(failure @ Failure::Bad(_)) => return Err(failure),
            Err(failure) => {
                if have > before {
                    (tries, wait) = (0, FIRST_WAIT);
                }
                tries += 1;
                if tries >= TRIES_MAX {
                    return Err(failure);
                }
                tracing::debug!(digest = %packed.digest, %failure, "a download broke off");
                tokio::time::sleep(wait).await;
                wait *= 2;
                continue;
            }
        }
        tries += 1;
    }
    Ok(resumed)
}

/// One request, from where we are.
async fn go_on(
    from: &Repository,
    packed: &Descriptor,
    path: &Path,
    have: &mut u64,
    told: &(dyn Fn(i64) + Send + Sync),
) -> Result<(), Failure> {
    let mut response = from.blob(&packed.digest, *have).await?;
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let goes_on = response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&format!("bytes {have}-")));
    if !goes_on && *have > 0 {
        told(-(*have as i64));
        *have = 0;
    }
    let failed = |e: std::io::Error| Failure::Bad(Error::io("write", path)(e));
    let mut options = tokio::fs::OpenOptions::new();
    let mut file =
        options.create(true).write(true).truncate(false).open(path).await.map_err(failed)?;
    file.set_len(*have).await.map_err(failed)?;
    tokio::io::AsyncSeekExt::seek(&mut file, std::io::SeekFrom::Start(*have))
        .await
        .map_err(failed)?;
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) => {
                file.flush().await.map_err(failed)?;
                return Err(broken("failed to copy", error));
            }
        };
        if *have + chunk.len() as u64 > packed.size {
            let why = format!("{} is longer than its manifest says", packed.digest);
            drop(tokio::fs::remove_file(path).await);
            return Err(Failure::Bad(Error::Refused(why)));
        }
        file.write_all(&chunk).await.map_err(failed)?;
        *have += chunk.len() as u64;
        told(chunk.len() as i64);
    }
    file.flush().await.map_err(failed)?;
    if *have < packed.size {
        return Err(Failure::Refused(format!("{} broke off: unexpected EOF", packed.digest)));
    }
    Ok(())
}

/// Checks and unpacks; the file is of no use afterwards, either way.
async fn unpack(
    store: &ImageStore,
    held: &Held,
    layer: &Digest,
    packed: &Descriptor,
    path: &Path,
) -> Result<()> {
    let (layer, packed, path) = (layer.clone(), packed.clone(), path.to_owned());
    let held = held.clone();
    store
        .aside(move |store| {
            let _held = held; // Until this is done, even if nobody waits for it any more.
            let added = add(store, &layer, packed, &path);
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            added
        })
        .await
}

fn add(store: &ImageStore, layer: &Digest, packed: Descriptor, path: &PathBuf) -> Result<()> {
    let archive = std::fs::File::open(path).map_err(Error::io("open", path))?;
    store.shelf().add(layer, Packed { archive, digest: Some(packed.digest), size: packed.size })
}
