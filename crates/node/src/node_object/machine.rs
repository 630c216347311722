//! Reads facts about the machine from the kernel.

use std::fs;
use std::path::Path;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cores: u64,
    pub(crate) memory: u64,
    pub(crate) swap: u64,
    /// Page size and number of pages, sorted by size.
    pub(crate) huge_pages: Vec<(u64, u64)>,
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
    pub(crate) boot_id: String,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
    pub(crate) architecture: String,
}

impl Machine {
    pub(crate) fn read() -> Machine {
        let meminfo = text("/proc/meminfo");
        Machine {
            cores: cores(),
            memory: kilobytes(&meminfo, "MemTotal:").unwrap_or_default() * 1024,
            swap: kilobytes(&meminfo, "SwapTotal:").unwrap_or_default() * 1024,
            huge_pages: huge_pages(),
            machine_id: first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]),
            system_uuid: first(&[
                "/sys/class/dmi/id/product_uuid",
                "/proc/device-tree/vm,uuid",
                "/etc/machine-id",
            ]),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            kernel: text("/proc/sys/kernel/osrelease"),
            os_image: os_image(&first(&["/etc/os-release", "/usr/lib/os-release"])),
            architecture: architecture().to_owned(),
        }
    }
}

/// The size of the filesystem of this path.
pub(super) fn filesystem_size(path: &Path) -> Option<u64> {
    let about = nix::sys::statvfs::statvfs(path).ok()?;
    Some(about.blocks() as u64 * about.fragment_size() as u64)
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().trim_end_matches('\0').to_owned()
}

fn first(paths: &[&str]) -> String {
    paths.iter().map(|path| text(path)).find(|text| !text.is_empty()).unwrap_or_default()
}

/// The number after a name in `/proc/meminfo`.
pub(crate) fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cores() -> u64 {
    let online = count(&text("/sys/devices/system/cpu/online"));
    let usable = || std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    if online > 0 { online } else { usable() }
}

/// The number of elements in a list of ranges such as `0-3,6`.
fn count(ranges: &str) -> u64 {
    let one = |range: &str| -> Option<u64> {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        Some(high.trim().parse::<u64>().ok()?.checked_sub(low.trim().parse().ok()?)? + 1)
    };
    ranges.split(',').filter_map(one).sum()
}

fn huge_pages() -> Vec<(u64, u64)> {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let mut pages: Vec<(u64, u64)> = sizes
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()?;
            let pages = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            Some((size * 1024, pages.trim().parse().ok()?))
        })
        .collect();
    pages.sort();
    pages
}

fn os_image(os_release: &str) -> String {
    let pretty = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    pretty.map_or("Linux", |name| name.trim_matches('"')).to_owned()
}

/// Go's name of the architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "loongarch64" => "loong64",
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_11_facts_are_read_from_this_machine() {
        let machine = Machine::read();
        assert!(machine.cores > 0 && machine.memory > 0, "{machine:?}");
        assert!(!machine.boot_id.is_empty() && !machine.kernel.is_empty(), "{machine:?}");
        assert!(filesystem_size(Path::new("/")).unwrap() > 0);
    }

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(["0", "0-3", "0-3,6", "", "x"].map(count), [1, 4, 5, 0, 0]);
        let meminfo = "MemTotal:       16384256 kB\nMemFree:  1 kB\n";
        assert_eq!(kilobytes(meminfo, "MemTotal:"), Some(16_384_256));
        assert_eq!(kilobytes(meminfo, "SwapTotal:"), None);
        assert_eq!(os_image("NAME=x\nPRETTY_NAME=\"Debian 13\"\n"), "Debian 13");
    }
}
