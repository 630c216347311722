//! Logs the progress of long pulls. Upstream logs nothing until the end, which is hard to tell from
//! a hanging pull.

use runtime::PullProgress;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(5);

pub(super) struct Progress<'a> {
    image: &'a str,
    /// When progress was last logged, or the pull started.
    logged_at: Mutex<Instant>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(image: &'a str) -> Progress<'a> {
        Progress { image, logged_at: Mutex::new(Instant::now()) }
    }

    pub(super) fn report(&self, progress: PullProgress) {
        if let Some(line) = self.line(progress) {
            tracing::info!("{line}");
        }
    }

    /// None if the last line is less than [`EVERY`] ago.
    fn line(&self, PullProgress { done, total }: PullProgress) -> Option<String> {
        let mut logged_at = self.logged_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if logged_at.elapsed() < EVERY {
            return None;
        }
        *logged_at = Instant::now();
        let image = self.image;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        Some(match total.filter(|total| *total > 0) {
            Some(total) => {
                let percent = done.saturating_mul(100) / total;
                format!("pulling {image}: {:.1} of {:.1} MB ({percent} %)", mb(done), mb(total))
            }
            None => format!("pulling {image}: {:.1} MB", mb(done)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_progress_of_a_long_pull_is_logged_every_five_seconds() {
        let progress = Progress::new("nginx:1");
        let mut lines = Vec::new();
        for second in 0..12u64 {
            let total = (second > 7).then_some(50_000_000);
            lines.extend(progress.line(PullProgress { done: second * 4_000_000, total }));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let expected = ["pulling nginx:1: 20.0 MB", "pulling nginx:1: 40.0 of 50.0 MB (80 %)"];
        assert_eq!(lines, expected);
    }
}
