//! Says in the log how far a long pull has come. Upstream is silent until it is over; whoever waits for
//! a large image on a thin line wants to know that something happens.

use runtime::PullProgress;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(5);

pub(super) struct Progress<'a> {
    image: &'a str,
    /// When something was said last, or the pull began.
    said: Mutex<Instant>,
}

impl<'a> Progress<'a> {
    pub(super) fn of(image: &'a str) -> Progress<'a> {
        Progress { image, said: Mutex::new(Instant::now()) }
    }

    pub(super) fn told(&self, progress: PullProgress) {
        if let Some(line) = self.line(progress) {
            tracing::info!("{line}");
        }
    }

    /// None: something was said a moment ago.
    fn line(&self, PullProgress { done, total }: PullProgress) -> Option<String> {
        let mut said = self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if said.elapsed() < EVERY {
            return None;
        }
        *said = Instant::now();
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
    async fn a_long_pull_is_heard_of_every_few_seconds_and_a_short_one_never() {
        let progress = Progress::of("nginx:1");
        let mut heard = Vec::new();
        for second in 0..12u64 {
            let total = (second > 7).then_some(50_000_000);
            heard.extend(progress.line(PullProgress { done: second * 4_000_000, total }));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let expected = ["pulling nginx:1: 20.0 MB", "pulling nginx:1: 40.0 of 50.0 MB (80 %)"];
        assert_eq!(heard, expected);
    }
}
