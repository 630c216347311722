//! Removes unused images when the disk is full (N-177).

use super::messages;
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
    /// An image that is unused for this long is removed however much space there is. None means never.
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

/// The filesystem of `path`.
pub(super) fn disk(path: &Path) -> Result<Disk, String> {
    let found = nix::sys::statvfs::statvfs(path)
        .map_err(|error| format!("failed to get imageFs stats: {error}"))?;
    let block = found.fragment_size();
    Ok(Disk { capacity: found.blocks() * block, available: found.blocks_available() * block })
}

pub(super) struct Collector {
    recorder: Recorder,
    policy: Policy,
    usage: Mutex<BTreeMap<String, ImageUsage>>,
    /// The last collection failed. Only the second failure in a row is reported.
    failed_before: Mutex<bool>,
}

/// When an image was first seen, and last used.
#[derive(Debug, Clone, Copy)]
struct ImageUsage {
    first_seen: Instant,
    last_used: Option<Instant>,
}

impl Collector {
    pub(super) fn new(recorder: Recorder, policy: Policy) -> Collector {
        let (usage, failed_before) = (Mutex::default(), Mutex::new(false));
        Collector { recorder, policy, usage, failed_before }
    }

    /// One collection. `used` has the ids and names of images in use.
    pub(super) async fn collect(
        &self,
        images: &dyn Images,
        node: &ObjectReference,
        used: &BTreeSet<String>,
        disk: Result<Disk, String>,
    ) -> Result<(), String> {
        let failed = |error: runtime::Error| messages::causes(&error);
        if let Some(max_age) = self.policy.max_age {
            self.remove_old(images, used, max_age).await.map_err(failed)?;
        } else {
            self.unused(images, used).await.map_err(failed)?;
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
        let goal = share(capacity, 100 - self.policy.low_percent.min(100));
        let goal = goal.saturating_sub(available);
        let freed = self.free(images, used, goal).await.map_err(failed)?;
        if freed >= goal {
            return Ok(());
        }
        let message = format!(
            "Insufficient free disk space on the node's image filesystem ({percent}% of {} used). \
             Failed to free sufficient space by deleting unused images (freed {freed} bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
            messages::size(capacity)
        );
        self.recorder.warning(node, "FreeDiskSpaceFailed", message.clone());
        Err(message)
    }

    /// Logs a failure; creates an event for the second failure in a row.
    pub(super) fn report(&self, node: &ObjectReference, collected: Result<(), String>) {
        let mut before = self.failed_before.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Err(why) = &collected {
            tracing::warn!(why, "collecting unused images failed");
            if *before {
                self.recorder.warning(node, "ImageGCFailed", why.clone());
            }
        }
        *before = collected.is_err();
    }

    /// Removes unused images until `goal` bytes are freed. Returns how many were.
    pub(super) async fn free(
        &self,
        images: &dyn Images,
        used: &BTreeSet<String>,
        goal: u64,
    ) -> runtime::Result<u64> {
        let unused = self.unused(images, used).await?;
        let mut freed = 0;
        let mut failures = Vec::new();
        for (image, _) in unused {
            if freed >= goal {
                break;
            }
            match images.remove(&image.id).await {
                Ok(()) => freed += image.size,
                Err(error) if error.is_not_found() => {}
                Err(error) => failures.push(error),
            }
        }
        if failures.is_empty() { Ok(freed) } else { Err(messages::joined(failures)) }
    }

    async fn remove_old(
        &self,
        images: &dyn Images,
        used: &BTreeSet<String>,
        max_age: Duration,
    ) -> runtime::Result<()> {
        for (image, usage) in self.unused(images, used).await? {
            // An image that was never used counts from when it was first seen.
            if usage.last_used.unwrap_or(usage.first_seen).elapsed() > max_age {
                images.remove(&image.id).await?;
            }
        }
        Ok(())
    }

    /// Records which images are present and used. Returns those that may be removed, in the order
    /// of removal.
    async fn unused(
        &self,
        images: &dyn Images,
        used: &BTreeSet<String>,
    ) -> runtime::Result<Vec<(Image, ImageUsage)>> {
        let present = images.list().await?;
        let now = Instant::now();
        let mut all = self.usage.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|id, _| present.iter().any(|image| image.id == *id));
        let mut unused = Vec::new();
        for image in present {
            let new = ImageUsage { first_seen: now, last_used: None };
            let usage = all.entry(image.id.clone()).or_insert(new);
            let names = image.tags.iter().chain(&image.digests).chain([&image.id]);
            if names.into_iter().any(|name| used.contains(name)) {
                usage.last_used = Some(now);
            } else if !image.pinned && now - usage.first_seen >= self.policy.min_age {
                unused.push((image, *usage));
            }
        }
        unused.sort_by_key(|(_, usage)| (usage.last_used, usage.first_seen));
        Ok(unused)
    }
}

fn percent_of(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 100 / u128::from(whole)).unwrap_or(100)
}

fn share(whole: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(percent) / 100).unwrap_or(whole)
}
