//! What the machine as a whole uses, from `/proc` and the filesystems.

use std::path::Path;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) cpu_nanoseconds: u64,
    pub(super) memory_total: u64,
    pub(super) memory_used: u64,
    /// Used, without what the kernel could give back at once.
    pub(super) working_set: u64,
    pub(super) rss: u64,
    pub(super) page_faults: u64,
    pub(super) major_page_faults: u64,
    pub(super) swap_total: u64,
    pub(super) swap_used: u64,
    pub(super) processes: u64,
    pub(super) processes_max: u64,
}

impl Machine {
    pub(super) fn look() -> Machine {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut machine =
            Machine::of(&file("/proc/stat"), &file("/proc/meminfo"), &file("/proc/vmstat"));
        machine.processes_max = file("/proc/sys/kernel/pid_max").trim().parse().unwrap_or(0);
        // "0.10 0.20 0.30 2/345 6789": running and all threads.
        let load = file("/proc/loadavg");
        let threads = load.split_whitespace().nth(3).and_then(|part| part.split('/').nth(1));
        machine.processes = threads.and_then(|count| count.parse().ok()).unwrap_or(0);
        machine
    }

    fn of(stat: &str, meminfo: &str, vmstat: &str) -> Machine {
        // Ticks are hundredths of a second on every Linux that shows them to programs.
        const TICK: u64 = 10_000_000;
        let ticks: Vec<u64> = stat
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))
            .map(|line| line.split_whitespace().filter_map(|text| text.parse().ok()).collect())
            .unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|place| ticks.get(*place)).sum();
        let kib = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        let counted = |name: &str| {
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
            page_faults: counted("pgfault "),
            major_page_faults: counted("pgmajfault "),
            swap_total: kib("SwapTotal:"),
            swap_used: kib("SwapTotal:").saturating_sub(kib("SwapFree:")),
            ..Machine::default()
        }
    }
}

/// Capacity, available and used bytes; inodes, free and used ones.
#[derive(Debug, Default, Clone, Copy, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Filesystem {
    pub(super) available_bytes: u64,
    pub(super) capacity_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) inodes_free: u64,
    pub(super) inodes: u64,
    pub(super) inodes_used: u64,
}

impl Filesystem {
    pub(super) fn of(path: &Path) -> Option<Filesystem> {
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
    fn the_machine_is_read_from_proc() {
        let machine = Machine::of(
            "cpu  100 0 50 1000 20 5 5 0 0 0\ncpu0 1 1 1 1\n",
            "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
            "pgfault 7\npgmajfault 3\n",
        );
        assert_eq!(machine.cpu_nanoseconds, 1_600_000_000);
        assert_eq!((machine.memory_used, machine.working_set), (600 * 1024, 500 * 1024));
        assert_eq!((machine.page_faults, machine.major_page_faults), (7, 3));
        assert_eq!(machine.swap_used, 6 * 1024);
        assert!(Machine::look().memory_total > 0);
    }
}
