//! What a node has in the kernel: mounts, links, cgroups, nftables rules, processes. After its end nothing is left.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The names of links and nftables tables at one moment.
pub(crate) struct KernelState {
    links: BTreeSet<String>,
    tables: BTreeSet<String>,
}

impl KernelState {
    pub(crate) fn capture() -> KernelState {
        KernelState { links: links(), tables: tables() }
    }

    /// Fails if anything is left. Other tests run in parallel, so only new names that contain the id of this process count.
    #[track_caller]
    pub(crate) fn assert_unchanged(&self, data_dir: &Path) {
        let ours = format!("t{:x}", std::process::id() % 0x10_0000);
        let new = |now: BTreeSet<String>, before: &BTreeSet<String>| -> Vec<String> {
            now.difference(before).filter(|name| name.contains(&ours)).cloned().collect()
        };
        assert_eq!(new(links(), &self.links), Vec::<String>::new(), "links are left");
        assert_eq!(new(tables(), &self.tables), Vec::<String>::new(), "nftables tables are left");
        assert_eq!(mounts(data_dir), Vec::<String>::new(), "mounts are left");
        assert_eq!(cgroups(&ours), Vec::<String>::new(), "cgroups are left");
        assert_eq!(processes(data_dir), Vec::<String>::new(), "processes are left");
    }
}

fn links() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/sys/class/net").expect("there are links");
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn tables() -> BTreeSet<String> {
    let output = Command::new("nft").args(["list", "tables"]).output();
    let output = output.expect("nft is there: `scripts/install all` installs it");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "this test needs root: run `make test` as root; {why}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

pub(crate) fn mounts(below: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mounts").expect("there is a mount table");
    let below = below.display().to_string();
    table.lines().filter(|line| line.contains(&below)).map(str::to_owned).collect()
}

/// The paths of the cgroups of single pods of the node with this link.
pub(crate) fn groups_of_pods(link: &str) -> Vec<String> {
    let mut found = Vec::new();
    for root in cgroups(link) {
        let classes = ["", "/burstable", "/besteffort"];
        for class in classes.map(|class| format!("{root}{class}")) {
            let entries = std::fs::read_dir(class).into_iter().flatten().flatten();
            let paths = entries.map(|entry| entry.path().display().to_string());
            found.extend(paths.filter(|path| path.contains("/pod")));
        }
    }
    found
}

/// All cgroups of any hierarchy that have this node's name.
fn cgroups(ours: &str) -> Vec<String> {
    let mut found = Vec::new();
    let roots = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let roots = roots.map(|entry| entry.path()).chain(["/sys/fs/cgroup".into()]);
    for root in roots.filter(|root| root.is_dir()) {
        let entries = std::fs::read_dir(&root).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.path().display().to_string());
        found.extend(names.filter(|name| name.contains(&format!("kubepods-{ours}"))));
    }
    found
}

/// The command lines of landfall processes that name this directory.
pub(crate) fn processes(below: &Path) -> Vec<String> {
    let below = below.display().to_string();
    let own = std::process::id().to_string();
    let entries = std::fs::read_dir("/proc").expect("there are processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pids = pids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own);
    let lines = pids.filter_map(|pid| {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
    });
    lines.filter(|line| line.contains("landfall") && line.contains(&below)).collect()
}
