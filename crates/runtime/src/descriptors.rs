//! Raises the limit of open files (`RLIMIT_NOFILE`) for this process, not for containers.
//!
//! A server with a thousand watches needs more than the usual 1024. Containers get the limit with which landfall
//! was started, because some programs are slow with a high limit: they iterate over all possible descriptors.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::OnceLock;

/// The soft limit before it was raised.
static INHERITED: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit to the hard limit and returns the new limit.
pub fn raise_descriptor_limit() -> std::io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let _ = INHERITED.set(soft);
    }
    Ok(soft.max(hard))
}

/// The original limit, for processes of pods; `None` if the limit was not raised.
pub(crate) fn inherited() -> Option<u64> {
    INHERITED.get().copied()
}

/// Restores the original limit in a new process of a pod.
pub(crate) fn restore(soft: u64) -> std::io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// nextest runs each test in its own process, so the limit of other tests does not change.
    #[test]
    fn the_limit_is_raised_and_restored() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
        assert_eq!(raise_descriptor_limit().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
        restore(inherited().unwrap()).unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (256, hard));
    }
}
