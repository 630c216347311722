//! Writing limits: shares, quota, memory, processes, huge pages (N-106…N-114).

use super::{Cgroup, Layout, layout, write};
use crate::Resources;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Quotas are of this many microseconds (N-107).
const PERIOD: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Pod,
    Container,
}

impl Cgroup {
    /// Applies what is given; what is None stays as it is. Safe to repeat on a running group.
    pub(crate) fn limit(&self, resources: &Resources, level: Level) -> io::Result<()> {
        match layout() {
            Layout::V2 { root } => limit_v2(&root.join(&self.path), resources, level),
            Layout::V1 { .. } => self.limit_v1(resources),
        }
    }

    fn limit_v1(&self, resources: &Resources) -> io::Result<()> {
        if let Some(cpu) = self.directory("cpu") {
            if let Some(shares) = resources.cpu_shares {
                write(&cpu.join("cpu.shares"), &shares.max(2).to_string())?;
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

/// Memory with swap can never be below memory alone: the one that grows is written first.
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
        // N-108: when memory runs out, all processes of the container die together.
        tolerate_missing(write(&directory.join("memory.oom.group"), "1"))?;
    }
    Ok(())
}

/// `max` is how v2 (and pids on v1) spell no limit.
fn bound(limit: i64) -> String {
    if limit < 0 { "max".to_owned() } else { limit.to_string() }
}

fn tolerate_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// cpu.weight from v1 shares (N-106): linear for pods, along a curve for containers.
fn weight(shares: u64, level: Level) -> u64 {
    let shares = shares.clamp(2, 262_144);
    match level {
        Level::Pod => 1 + (shares - 2) * 9_999 / 262_142,
        Level::Container if shares <= 2 => 1,
        Level::Container if shares >= 262_144 => 10_000,
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
    fn n_106_shares_become_weights() {
        for (shares, pod, container) in
            [(2, 1, 1), (102, 4, 17), (1024, 39, 100), (262_144, 10_000, 10_000), (0, 1, 1)]
        {
            assert_eq!(weight(shares, Level::Pod), pod, "{shares} in a pod");
            assert_eq!(weight(shares, Level::Container), container, "{shares} in a container");
        }
    }
}
