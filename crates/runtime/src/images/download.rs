//! Downloads one layer into a file, which a later attempt can resume, and unpacks it.

use super::digest::Digest;
use super::layer_store::Packed;
use super::limits::LAYER_BYTES_MAX;
use super::locks::Lock;
use super::manifest::Descriptor;
use super::registry::{Failure, Repository, failed_request};
use super::store::{ImageStore, Work};
use crate::{Error, Result};
use reqwest::StatusCode;
use reqwest::header::CONTENT_RANGE;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// Attempts without progress before the download fails. Progress resets the count.
const ATTEMPTS_MAX: u32 = 4;
const FIRST_BACKOFF: Duration = Duration::from_millis(500);

pub(crate) struct Download {
    /// Digest of the uncompressed layer.
    pub(crate) layer: Digest,
    /// The compressed layer.
    pub(crate) packed: Descriptor,
}

/// The locks of a download: no other task unpacks this layer, and no layer is removed.
#[derive(Clone)]
struct Held {
    _work: Work,
    _layer: Arc<Lock>,
}

/// Downloads and unpacks a layer if the store does not have it. `progress` is called with the number of bytes that
/// arrived, negative if bytes have to be downloaded again.
pub(crate) async fn fetch(
    store: &ImageStore,
    work: &Work,
    from: &Repository,
    download: Download,
    progress: &(dyn Fn(i64) + Send + Sync),
) -> Result<(), Failure> {
    if download.packed.size > LAYER_BYTES_MAX {
        return Err(Failure::Bad(Error::Refused("a layer of the image is too large".to_owned())));
    }
    let layer = download.layer.clone();
    let lock = store
        .spawn_blocking(move |store| store.layer_store().lock(&layer))
        .await
        .map_err(Failure::Bad)?;
    let held = Held { _work: work.clone(), _layer: Arc::new(lock) };
    if store.layer_store().has(&download.layer) {
        progress(download.packed.size as i64); // Another task has downloaded it.
        return Ok(());
    }
    let (layer, packed) = (download.layer, download.packed);
    let name = format!("{}.{}", layer.file_name(), packed.digest.file_name());
    let path = store.downloads().join(name);
    let resumed = download_with_retries(from, &packed, &path, progress).await?;
    match unpack(store, &held, &layer, &packed, &path).await {
        // The part of an earlier attempt may be corrupt. Download everything again.
        Err(Error::Refused(_)) if resumed => {
            progress(-(packed.size as i64));
            download_with_retries(from, &packed, &path, progress).await?;
            unpack(store, &held, &layer, &packed, &path).await
        }
        done => done,
    }
    .map_err(Failure::Bad)
}

/// Downloads the file, with retries. Returns true if it resumed an earlier attempt.
async fn download_with_retries(
    from: &Repository,
    packed: &Descriptor,
    path: &Path,
    progress: &(dyn Fn(i64) + Send + Sync),
) -> Result<bool, Failure> {
    let mut have = tokio::fs::metadata(path).await.map_or(0, |metadata| metadata.len());
    if have > packed.size {
        have = 0;
    }
    let resumed = have > 0;
    progress(have as i64);
    let (mut attempts, mut backoff) = (0, FIRST_BACKOFF);
    // An empty layer needs a request, too.
    while have < packed.size || attempts == 0 {
        let before = have;
        match download_rest(from, packed, path, &mut have, progress).await {
            Ok(()) => {}
            Err(failure @ Failure::Bad(_)) => return Err(failure),
            Err(failure) => {
                if have > before {
                    (attempts, backoff) = (0, FIRST_BACKOFF);
                }
                attempts += 1;
                if attempts >= ATTEMPTS_MAX {
                    return Err(failure);
                }
                tracing::debug!(digest = %packed.digest, %failure, "a download was interrupted; retrying");
                tokio::time::sleep(backoff).await;
                backoff *= 2;
                continue;
            }
        }
        attempts += 1;
    }
    Ok(resumed)
}

/// One request for the bytes from `have` on.
async fn download_rest(
    from: &Repository,
    packed: &Descriptor,
    path: &Path,
    have: &mut u64,
    progress: &(dyn Fn(i64) + Send + Sync),
) -> Result<(), Failure> {
    let mut response = from.blob(&packed.digest, *have).await?;
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let continues = response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&format!("bytes {have}-")));
    if !continues && *have > 0 {
        progress(-(*have as i64));
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
                return Err(failed_request("failed to copy", error));
            }
        };
        if *have + chunk.len() as u64 > packed.size {
            let message = format!("{} is longer than its manifest says", packed.digest);
            drop(tokio::fs::remove_file(path).await);
            return Err(Failure::Bad(Error::Refused(message)));
        }
        file.write_all(&chunk).await.map_err(failed)?;
        *have += chunk.len() as u64;
        progress(chunk.len() as i64);
    }
    file.flush().await.map_err(failed)?;
    if *have < packed.size {
        return Err(Failure::Refused(format!("{} is incomplete: unexpected EOF", packed.digest)));
    }
    Ok(())
}

/// Unpacks the layer and checks its digests. Removes the file in any case.
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
        .spawn_blocking(move |store| {
            let _held = held; // Keep the locks until this is done, even if the caller's future is dropped.
            let added = add(store, &layer, packed, &path);
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            added
        })
        .await
}

fn add(store: &ImageStore, layer: &Digest, packed: Descriptor, path: &PathBuf) -> Result<()> {
    let archive = std::fs::File::open(path).map_err(Error::io("open", path))?;
    store
        .layer_store()
        .add(layer, Packed { archive, digest: Some(packed.digest), size: packed.size })
}
