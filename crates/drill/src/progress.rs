//! What a drill reports while it runs.

use crate::rollout::Setting;
use crate::search::Tally;

#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// The pods are replaced by ones with these values, before a run.
    Installing {
        setting: Setting,
    },
    /// A run with these values begins; further attempts follow discarded ones.
    RunStarted {
        setting: Setting,
        attempt: usize,
    },
    /// Several times per second.
    Tick {
        restart: u32,
        failed: usize,
        ended: usize,
        state: &'a str,
    },
    RunDone {
        setting: Setting,
        tally: Tally,
    },
    /// The run does not count.
    Discarded {
        why: &'a str,
    },
    /// The search ends before all answers are known.
    TimeOver,
    Restoring,
    Restored,
}

/// Receives progress. Must not block.
pub type Report = dyn Fn(Progress<'_>) + Send + Sync;
