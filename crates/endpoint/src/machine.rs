//! Resource usage of the whole machine, from `/proc` and the filesystems.

use std::path::Path;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cpu_nanoseconds: u64,
    pub(crate) memory_total: u64,
    pub(crate) memory_used: u64,
    /// Memory in use, without what the kernel could reclaim at once.
    pub(crate) working_set: u64,
    pub(crate) rss: u64,
    pub(crate) page_faults: u64,
    pub(crate) major_page_faults: u64,
    pub(crate) swap_total: u64,
    pub(crate) swap_used: u64,
    pub(crate) processes: u64,
    pub(crate) processes_max: u64,
}

impl Machine {
    pub(crate) fn read() -> Machine {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut machine =
            Machine::parse(&file("/proc/stat"), &file("/proc/meminfo"), &file("/proc/vmstat"));
        machine.processes_max = file("/proc/sys/kernel/pid_max").trim().parse().unwrap_or(0);
        // "0.10 0.20 0.30 2/345 6789": the fourth field is running/all threads.
        let load = file("/proc/loadavg");
        let threads = load.split_whitespace().nth(3).and_then(|part| part.split('/').nth(1));
        machine.processes = threads.and_then(|count| count.parse().ok()).unwrap_or(0);
        machine
    }

    fn parse(stat: &str, meminfo: &str, vmstat: &str) -> Machine {
        // Linux reports ticks of a hundredth of a second on every architecture.
        const TICK: u64 = 10_000_000;
        let ticks: Vec<u64> = stat
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))
            .map(|line| line.split_whitespace().filter_map(|text| text.parse().ok()).collect())
            .unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|index| ticks.get(*index)).sum();
        let kib = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        let counter = |name: &str| {
            let line = vmstat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
        };
        let memory_used = kib("MemTotal:").saturating_sub(kib("MemFree:"));
        Machine {
            cpu_nanoseconds: busy * TICK,
            memory_total: kib("MemTotal:"),
            memory_used,
            working_set: memory_used.saturating_sub(kib("Inactive(file):")),
            rss: kib("AnonPages:"),
            page_faults: counter("pgfault "),
            major_page_faults: counter("pgmajfault "),
            swap_total: kib("SwapTotal:"),
            swap_used: kib("SwapTotal:").saturating_sub(kib("SwapFree:")),
            ..Machine::default()
        }
    }
}

/// Capacity, available and used bytes; inodes, free and used ones.
#[derive(Debug, Default, Clone, Copy, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Filesystem {
    pub(crate) available_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) inodes_free: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_used: u64,
}

impl Filesystem {
    pub(crate) fn of(path: &Path) -> Option<Filesystem> {
        let found = nix::sys::statvfs::statvfs(path).ok()?;
        let block = found.fragment_size();
        let used = found.blocks().saturating_sub(found.blocks_free());
        Some(Filesystem {
            available_bytes: found.blocks_available() * block,
            capacity_bytes: found.blocks() * block,
            used_bytes: used * block,
            inodes_free: found.files_free(),
            inodes: found.files(),
            inodes_used: found.files().saturating_sub(found.files_free()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_parsed_from_proc() {
        let machine = Machine::parse(
            "cpu  100 0 50 1000 20 5 5 0 0 0\ncpu0 1 1 1 1\n",
            "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
            "pgfault 7\npgmajfault 3\n",
        );
        assert_eq!(machine.cpu_nanoseconds, 1_600_000_000);
        assert_eq!((machine.memory_used, machine.working_set), (600 * 1024, 500 * 1024));
        assert_eq!((machine.page_faults, machine.major_page_faults), (7, 3));
        assert_eq!(machine.swap_used, 6 * 1024);
        assert!(Machine::read().memory_total > 0);
    }
}
