//! Resource usage of a cgroup, and its count of OOM kills.

use super::{Cgroup, layout};
use std::fs;
use std::path::Path;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu_nanoseconds: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) working_set_bytes: u64,
    pub(crate) rss_bytes: u64,
    pub(crate) page_faults: u64,
    pub(crate) major_page_faults: u64,
    pub(crate) processes: u64,
}

impl Cgroup {
    /// `None` if the cgroup does not exist.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let memory = self.directory("memory")?;
        let stat = fs::read_to_string(memory.join("memory.stat")).ok()?;
        let mut usage = Usage::default();
        let inactive;
        if layout().is_v2() {
            let cpu = fs::read_to_string(memory.join("cpu.stat")).unwrap_or_default();
            usage.cpu_nanoseconds = value(&cpu, "usage_usec").saturating_mul(1000);
            usage.memory_bytes = number(&memory.join("memory.current"));
            usage.rss_bytes = value(&stat, "anon");
            usage.page_faults = value(&stat, "pgfault");
            usage.major_page_faults = value(&stat, "pgmajfault");
            inactive = value(&stat, "inactive_file");
        } else {
            let cpu = self.directory("cpuacct");
            usage.cpu_nanoseconds = cpu.map_or(0, |cpu| number(&cpu.join("cpuacct.usage")));
            usage.memory_bytes = number(&memory.join("memory.usage_in_bytes"));
            usage.rss_bytes = value(&stat, "total_rss");
            usage.page_faults = value(&stat, "total_pgfault");
            usage.major_page_faults = value(&stat, "total_pgmajfault");
            inactive = value(&stat, "total_inactive_file");
        }
        let pids = self.directory("pids");
        usage.processes = pids.map_or(0, |pids| number(&pids.join("pids.current")));
        usage.working_set_bytes = usage.memory_bytes.saturating_sub(inactive);
        Some(usage)
    }

    /// How many processes of this cgroup the OOM killer has killed (N-108).
    pub(crate) fn oom_kills(&self) -> u64 {
        let Some(directory) = self.directory("memory") else { return 0 };
        let file = if layout().is_v2() { "memory.events" } else { "memory.oom_control" };
        value(&fs::read_to_string(directory.join(file)).unwrap_or_default(), "oom_kill")
    }
}

fn number(path: &Path) -> u64 {
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// A value in a file with lines of the form `<name> <number>`.
fn value(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_full_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(value(text, "oom_kill"), 3);
        assert_eq!(value(text, "oom"), 0);
    }
}
