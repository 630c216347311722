//! Capabilities of a container: the default set with additions and removals (N-129).

use crate::{Error, Result, Security};

/// The index is the kernel's number of the capability.
const NAMES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The default set of containerd.
const DEFAULT: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Names (with `CAP_`) of the container's bounding set, without those that this process does not have.
pub(crate) fn bounding(security: &Security) -> Result<Vec<String>> {
    let held = held(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    choose(security, held)
}

fn choose(security: &Security, held: u64) -> Result<Vec<String>> {
    let mut set = mask(DEFAULT);
    if security.privileged {
        set = u64::MAX;
    }
    let (add, drop) = (parse(&security.capabilities.add)?, parse(&security.capabilities.drop)?);
    let has_all = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
    // ALL comes before single names: "drop ALL, add NET_BIND_SERVICE" leaves exactly NET_BIND_SERVICE.
    if has_all(&security.capabilities.add) {
        set = u64::MAX;
    }
    if has_all(&security.capabilities.drop) {
        set = 0;
    }
    set = (set | add) & !drop;
    let names = NAMES.iter().enumerate().filter(|(bit, _)| set & held & (1 << bit) != 0);
    Ok(names.map(|(_, name)| format!("CAP_{name}")).collect())
}

fn mask(names: &[&str]) -> u64 {
    names.iter().filter_map(|name| bit(name)).fold(0, |mask, bit| mask | 1 << bit)
}

fn parse(names: &[String]) -> Result<u64> {
    let mut mask = 0;
    for name in names.iter().filter(|name| !name.eq_ignore_ascii_case("ALL")) {
        let plain = name.to_ascii_uppercase();
        let plain = plain.strip_prefix("CAP_").unwrap_or(&plain);
        let bit =
            bit(plain).ok_or_else(|| Error::Refused(format!("unknown capability {name:?}")))?;
        mask |= 1 << bit;
    }
    Ok(mask)
}

fn bit(name: &str) -> Option<usize> {
    NAMES.iter().position(|known| *known == name)
}

/// The capabilities of this process. Even root may lack some, for example inside a container.
fn held(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapPrm:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Capabilities;

    fn chosen(add: &[&str], drop: &[&str], privileged: bool) -> Vec<String> {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let capabilities = Capabilities { add: list(add), drop: list(drop) };
        let security = Security { capabilities, privileged, ..Security::default() };
        choose(&security, u64::MAX).unwrap()
    }

    /// N-129: the default set, and add and drop applied to it.
    #[test]
    fn n_129_capabilities_are_added_to_and_dropped_from_the_default_set() {
        assert_eq!(chosen(&[], &[], false).len(), 14);
        assert!(!chosen(&[], &[], false).contains(&"CAP_NET_ADMIN".to_owned()));
        assert!(chosen(&["NET_ADMIN"], &[], false).contains(&"CAP_NET_ADMIN".to_owned()));
        assert_eq!(chosen(&["NET_BIND_SERVICE"], &["ALL"], false), ["CAP_NET_BIND_SERVICE"]);
        assert_eq!(chosen(&["ALL"], &["CHOWN"], false).len(), NAMES.len() - 1);
        assert_eq!(chosen(&[], &[], true).len(), NAMES.len());
        assert_eq!(chosen(&[], &["KILL"], false).len(), 13);
    }

    #[test]
    fn capabilities_that_this_process_lacks_are_left_out() {
        let status = "Name:\tx\nCapPrm:\t0000000000000001\n";
        assert_eq!(choose(&Security::default(), held(status)).unwrap(), ["CAP_CHOWN"]);
    }
}
