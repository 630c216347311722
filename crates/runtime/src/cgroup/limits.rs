//! Sets limits of CPU, memory, processes and huge pages (N-106…N-114).

use super::{Cgroup, Layout, layout, write};
use crate::Resources;
use std::io::{self, ErrorKind};
use std::path::Path;

/// The period of CPU quotas in microseconds (N-107).
const PERIOD: u64 = 100_000;
const SHARES_MIN: u64 = 2;
const SHARES_MAX: u64 = 262_144;
const WEIGHT_MAX: u64 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Pod,
    Container,
}

impl Cgroup {
    /// Sets the limits that are not `None`. May be called again while containers run.
    pub(crate) fn limit(&self, resources: &Resources, level: Level) -> io::Result<()> {
        match layout() {
            Layout::V2 { root } => limit_v2(&root.join(&self.path), resources, level),
            Layout::V1 { .. } => self.limit_v1(resources),
        }
    }

    fn limit_v1(&self, resources: &Resources) -> io::Result<()> {
        if let Some(cpu) = self.directory("cpu") {
            if let Some(shares) = resources.cpu_shares {
                write(&cpu.join("cpu.shares"), &shares.max(SHARES_MIN).to_string())?;
            }
            if let Some(quota) = resources.cpu_quota {
                write(&cpu.join("cpu.cfs_period_us"), &PERIOD.to_string())?;
                write(&cpu.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
        }
        if let Some(memory) = self.directory("memory") {
            memory_v1(&memory, resources)?;
        }
        if let (Some(pids), Some(limit)) = (self.directory("pids"), resources.pids_limit) {
            write(&pids.join("pids.max"), &bound(limit))?;
        }
        if let Some(huge) = self.directory("hugetlb") {
            for (size, bytes) in &resources.hugepage_limits {
                let file = huge.join(format!("hugetlb.{size}.limit_in_bytes"));
                tolerate_missing(write(&file, &bytes.to_string()))?;
            }
        }
        Ok(())
    }
}

/// The kernel requires that the limit of memory with swap is never below that of memory, so the order matters.
fn memory_v1(directory: &Path, resources: &Resources) -> io::Result<()> {
    let Some(limit) = resources.memory_limit else { return Ok(()) };
    let alone = directory.join("memory.limit_in_bytes");
    let with_swap = directory.join("memory.memsw.limit_in_bytes");
    let swap = resources.swap_limit.filter(|_| with_swap.exists()).map(|swap| swap.max(limit));
    let Some(swap) = swap else { return write(&alone, &limit.to_string()) };
    if write(&alone, &limit.to_string()).is_ok() {
        return write(&with_swap, &swap.to_string());
    }
    write(&with_swap, &swap.to_string())?;
    write(&alone, &limit.to_string())
}

fn limit_v2(directory: &Path, resources: &Resources, level: Level) -> io::Result<()> {
    if let Some(shares) = resources.cpu_shares {
        write(&directory.join("cpu.weight"), &weight(shares, level).to_string())?;
    }
    if let Some(quota) = resources.cpu_quota {
        write(&directory.join("cpu.max"), &format!("{} {PERIOD}", bound(quota)))?;
    }
    if let Some(limit) = resources.memory_limit {
        write(&directory.join("memory.max"), &bound(limit))?;
    }
    if let Some(total) = resources.swap_limit {
        let swap = (total - resources.memory_limit.unwrap_or(0)).max(0);
        tolerate_missing(write(&directory.join("memory.swap.max"), &swap.to_string()))?;
    }
    if let Some(limit) = resources.pids_limit {
        write(&directory.join("pids.max"), &bound(limit))?;
    }
    for (size, bytes) in &resources.hugepage_limits {
        let file = directory.join(format!("hugetlb.{size}.max"));
        tolerate_missing(write(&file, &bytes.to_string()))?;
    }
    if level == Level::Container {
        // N-108: if the container exceeds its memory limit, all its processes are killed.
        tolerate_missing(write(&directory.join("memory.oom.group"), "1"))?;
    }
    Ok(())
}

/// Formats a limit; no limit is `max` on v2, and for pids on v1.
fn bound(limit: i64) -> String {
    if limit < 0 { "max".to_owned() } else { limit.to_string() }
}

fn tolerate_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Converts v1 shares to `cpu.weight` (N-106), with a linear formula for pods and a quadratic one for containers,
/// as upstream and runc do.
fn weight(shares: u64, level: Level) -> u64 {
    let shares = shares.clamp(SHARES_MIN, SHARES_MAX);
    match level {
        Level::Pod => 1 + (shares - SHARES_MIN) * (WEIGHT_MAX - 1) / (SHARES_MAX - SHARES_MIN),
        Level::Container if shares <= SHARES_MIN => 1,
        Level::Container if shares >= SHARES_MAX => WEIGHT_MAX,
        Level::Container => {
            let l = (shares as f64).log2();
            let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
            10f64.powf(exponent).ceil() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-106: both formulas at their ends and in the middle.
    #[test]
    fn n_106_shares_are_converted_to_weights() {
        for (shares, pod, container) in
            [(2, 1, 1), (102, 4, 17), (1024, 39, 100), (262_144, 10_000, 10_000), (0, 1, 1)]
        {
            assert_eq!(weight(shares, Level::Pod), pod, "{shares} in a pod");
            assert_eq!(weight(shares, Level::Container), container, "{shares} in a container");
        }
    }
}
