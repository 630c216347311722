//! What a drill is asked to do. The command line fills this in.

use crate::outcome::ConnectionKind;
use crate::workload::WorkloadRef;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Options {
    pub workload: WorkloadRef,
    /// The wanted share of answered requests, 0 to 1.
    pub target: f64,
    /// Restarts per measured value.
    pub restarts: u32,
    /// Requests per second.
    pub rate: f64,
    pub connections: Vec<ConnectionKind>,
    pub path: String,
    /// Path of slow requests.
    pub slow_path: Option<String>,
    /// A request without an answer fails after this time.
    pub timeout: Duration,
    /// The Service, if the one that selects the pods is not wanted.
    pub service: Option<String>,
    /// Name or number of the Service's port.
    pub port: Option<String>,
    /// Instead of the Service's addresses.
    pub url: Option<String>,
    /// Value of the nodes' annotation that delays their packet rules.
    pub proxy_delay: Option<ProxyDelay>,
    /// The drill ends the search when it has taken this long.
    pub time_limit: Duration,
    /// Vary the preStop hook. False: only restart and measure.
    pub search: bool,
    /// The longest preStop sleep to try, in seconds.
    pub pre_stop_max: u32,
}

/// A delay of packet rules: as the annotation has it, and the longest that it can mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyDelay {
    pub text: String,
    pub longest: Duration,
}

/// Levels of success that are reported besides the target.
pub const LEVELS: [f64; 3] = [0.99, 0.999, 1.0];

impl Options {
    /// All levels, the target among them, lowest first.
    pub(crate) fn levels(&self) -> Vec<f64> {
        let mut levels = LEVELS.to_vec();
        if !levels.iter().any(|level| (level - self.target).abs() < 1e-12) {
            levels.push(self.target);
        }
        levels.sort_by(f64::total_cmp);
        levels
    }
}
