//! Waiting until a log file, or the directory in which it is replaced, changes.

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;

/// Where the kernel cannot tell (its watches are counted, and may be used up), files are looked at
/// this often. Also the longest wait with the kernel's help, in case it missed something.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Without the kernel's help people still want to see lines as they come.
const LOOK_AGAIN_UNAIDED: Duration = Duration::from_millis(250);

/// Tells of changes in one directory.
pub(super) struct Changes(Option<Receiver>);

impl Changes {
    pub(super) fn of(directory: &Path) -> Changes {
        let watch = || -> Result<Receiver, Box<dyn std::error::Error>> {
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            let what =
                AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
            inotify.add_watch(directory, what)?;
            // Read like a pipe, which it resembles: readable or not, and never seekable.
            Ok(Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?)
        };
        let watched = watch();
        if let Err(error) = &watched {
            tracing::debug!(%error, directory = %directory.display(), "logs are looked at by the clock");
        }
        Changes(watched.ok())
    }

    /// Returns when something may have changed; true if it certainly has.
    pub(super) async fn next(&mut self) -> bool {
        let Some(watched) = &self.0 else {
            tokio::time::sleep(LOOK_AGAIN_UNAIDED).await;
            return false;
        };
        let Ok(Ok(())) = tokio::time::timeout(LOOK_AGAIN, watched.readable()).await else {
            return false;
        };
        // What exactly changed does not matter; everything told so far is taken at once.
        let mut told = [0; 4096];
        while matches!(watched.try_read(&mut told), Ok(1..)) {}
        true
    }
}
