//! Waits until something changes in the directory of a log file.

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;

/// Longest wait for an inotify event, in case one was lost.
const POLL: Duration = Duration::from_secs(1);

/// Polling interval without inotify, whose watches are limited and may be used up.
const POLL_WITHOUT_INOTIFY: Duration = Duration::from_millis(250);

/// Changes in one directory; None without inotify.
pub(super) struct Changes(Option<Receiver>);

impl Changes {
    pub(super) fn of(directory: &Path) -> Changes {
        let watch = || -> Result<Receiver, Box<dyn std::error::Error>> {
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            let events =
                AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
            inotify.add_watch(directory, events)?;
            // Tokio has no type for inotify; a pipe has the same readiness.
            Ok(Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?)
        };
        let watched = watch();
        if let Err(error) = &watched {
            tracing::debug!(%error, directory = %directory.display(), "inotify is not available; polling the log instead");
        }
        Changes(watched.ok())
    }

    /// Waits for a change. Returns true if there was one, false after the polling interval.
    pub(super) async fn next(&mut self) -> bool {
        let Some(watched) = &self.0 else {
            tokio::time::sleep(POLL_WITHOUT_INOTIFY).await;
            return false;
        };
        let Ok(Ok(())) = tokio::time::timeout(POLL, watched.readable()).await else {
            return false;
        };
        // It does not matter what changed: discard all queued events.
        let mut events = [0; 4096];
        while matches!(watched.try_read(&mut events), Ok(1..)) {}
        true
    }
}
