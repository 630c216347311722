//! Images nobody uses go when the disk is full (N-177).

use super::words;
use client::Recorder;
use k8s_openapi::api::core::v1::ObjectReference;
use runtime::{Image, Images};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// imageGCHighThresholdPercent, imageGCLowThresholdPercent, imageMinimumGCAge, imageMaximumGCAge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) high_percent: u64,
    pub(crate) low_percent: u64,
    pub(crate) min_age: Duration,
    /// Unused for this long, an image goes however much room there is. None: never.
    pub(crate) max_age: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Policy {
        let min_age = Duration::from_secs(120);
        Policy { high_percent: 85, low_percent: 80, min_age, max_age: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) capacity: u64,
    pub(super) available: u64,
}

/// Of the filesystem below `path`.
pub(super) fn disk(path: &Path) -> Result<Disk, String> {
    let found = nix::sys::statvfs::statvfs(path)
        .map_err(|error| format!("failed to get imageFs stats: {error}"))?;
    let block = found.fragment_size();
    Ok(Disk { capacity: found.blocks() * block, available: found.blocks_available() * block })
}

pub(super) struct Collector {
    recorder: Recorder,
    policy: Policy,
    seen: Mutex<BTreeMap<String, Seen>>,
    /// The first failure is not told: it may pass.
    failed_before: Mutex<bool>,
}

/// When an image was first and last of note.
#[derive(Debug, Clone, Copy)]
struct Seen {
    first: Instant,
    used: Option<Instant>,
}

impl Collector {
    pub(super) fn new(recorder: Recorder, policy: Policy) -> Collector {
        let (seen, failed_before) = (Mutex::default(), Mutex::new(false));
        Collector { recorder, policy, seen, failed_before }
    }

    /// One round. `used` holds ids and names.
    pub(super) async fn collect(
        &self,
        images: &dyn Images,
        node: &ObjectReference,
        used: &BTreeSet<String>,
        disk: Result<Disk, String>,
    ) -> Result<(), String> {
        let failed = |error: runtime::Error| words::causes(&error);
        if let Some(max_age) = self.policy.max_age {
            self.remove_old(images, used, max_age).await.map_err(failed)?;
        } else {
            self.look(images, used).await.map_err(failed)?;
        }
        let Disk { capacity, available } = disk?;
        if capacity == 0 {
            let why = "invalid capacity 0 on image filesystem";
            self.recorder.warning(node, "InvalidDiskCapacity", why);
            return Err(why.to_owned());
        }
        let available = available.min(capacity);
        let percent = 100 - percent_of(available, capacity);
        if percent < self.policy.high_percent {
            return Ok(());
        }
        let wanted = share(capacity, 100 - self.policy.low_percent.min(100));
        let wanted = wanted.saturating_sub(available);
        let freed = self.free(images, used, wanted).await.map_err(failed)?;
        if freed >= wanted {
            return Ok(());
        }
        let message = format!(
            "Insufficient free disk space on the node's image filesystem ({percent}% of {} used). \
             Failed to free sufficient space by deleting unused images (freed {freed} bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
            words::size(capacity)
        );
        self.recorder.warning(node, "FreeDiskSpaceFailed", message.clone());
        Err(message)
    }

    /// Failing twice in a row is worth an event.
    pub(super) fn tell(&self, node: &ObjectReference, collected: Result<(), String>) {
        let mut before = self.failed_before.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Err(why) = &collected {
            tracing::warn!(why, "images could not be collected");
            if *before {
                self.recorder.warning(node, "ImageGCFailed", why.clone());
            }
        }
        *before = collected.is_err();
    }

    /// Removes unused images until `wanted` bytes are freed; says how many were.
    pub(super) async fn free(
        &self,
        images: &dyn Images,
        used: &BTreeSet<String>,
        wanted: u64,
    ) -> runtime::Result<u64> {
        let unused = self.look(images, used).await?;
        let mut freed = 0;
        let mut failures = Vec::new();
        for (image, _) in unused {
            if freed >= wanted {
                break;
            }
            match images.remove(&image.id).await {
                Ok(()) => freed += image.size,
                Err(error) if error.is_not_found() => {}
                Err(error) => failures.push(error),
            }
        }
        if failures.is_empty() { Ok(freed) } else { Err(words::joined(failures)) }
    }

    async fn remove_old(
        &self,
        images: &dyn Images,
        used: &BTreeSet<String>,
        max_age: Duration,
    ) -> runtime::Result<()> {
        for (image, seen) in self.look(images, used).await? {
            // Never used is unused since we first saw it.
            if seen.used.unwrap_or(seen.first).elapsed() > max_age {
                images.remove(&image.id).await?;
            }
        }
        Ok(())
    }

    /// Notes what is there and what is used; gives back what may go, in the order it should.
    async fn look(
        &self,
        images: &dyn Images,
        used: &BTreeSet<String>,
    ) -> runtime::Result<Vec<(Image, Seen)>> {
        let here = images.list().await?;
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        seen.retain(|id, _| here.iter().any(|image| image.id == *id));
        let mut unused = Vec::new();
        for image in here {
            let known = seen.entry(image.id.clone()).or_insert(Seen { first: now, used: None });
            let names = image.tags.iter().chain(&image.digests).chain([&image.id]);
            if names.into_iter().any(|name| used.contains(name)) {
                known.used = Some(now);
            } else if !image.pinned && now - known.first >= self.policy.min_age {
                unused.push((image, *known));
            }
        }
        unused.sort_by_key(|(_, seen)| (seen.used, seen.first));
        Ok(unused)
    }
}

fn percent_of(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 100 / u128::from(whole)).unwrap_or(100)
}

fn share(whole: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(percent) / 100).unwrap_or(whole)
}
