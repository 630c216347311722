//! Device access of a cgroup: lines in the `devices` hierarchy of v1, an eBPF program on v2.

use super::{Cgroup, Layout, device_filter, layout, write};
use std::io;

/// All devices, or only those that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Devices {
    All,
    Only(Vec<Rule>),
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Rule {
    /// `c`, `b` or `a`.
    pub(crate) kind: char,
    pub(crate) major: Option<u64>,
    pub(crate) minor: Option<u64>,
    /// Some of `r`, `w` and `m`.
    pub(crate) access: String,
}

impl Devices {
    /// The rules of every container: it may create any device node, but open only these devices.
    pub(crate) fn default_rules() -> Vec<Rule> {
        let any =
            |kind, access: &str| Rule { kind, major: None, minor: None, access: access.into() };
        let one =
            |major, minor| Rule { kind: 'c', major: Some(major), minor, access: "rwm".into() };
        vec![
            any('c', "m"),
            any('b', "m"),
            one(1, Some(3)), // null
            one(1, Some(5)), // zero
            one(1, Some(7)), // full
            one(1, Some(8)), // random
            one(1, Some(9)), // urandom
            one(5, Some(0)), // tty
            one(5, Some(1)), // console
            one(5, Some(2)), // ptmx
            one(136, None),  // pts/*
        ]
    }
}

impl Cgroup {
    pub(crate) fn allow_devices(&self, devices: &Devices) -> io::Result<()> {
        let Devices::Only(rules) = devices else { return Ok(()) };
        if let Layout::V2 { root } = layout() {
            return device_filter::attach(&root.join(&self.path), rules);
        }
        let Some(directory) = self.directory("devices") else { return Ok(()) };
        write(&directory.join("devices.deny"), "a")?;
        for rule in rules {
            write(&directory.join("devices.allow"), &line(rule))?;
        }
        Ok(())
    }
}

fn line(rule: &Rule) -> String {
    let number = |n: Option<u64>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
    format!("{} {}:{} {}", rule.kind, number(rule.major), number(rule.minor), rule.access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_in_the_kernels_format() {
        let lines: Vec<String> = Devices::default_rules().iter().map(line).collect();
        assert_eq!(lines[0], "c *:* m");
        assert_eq!(lines[2], "c 1:3 rwm");
        assert_eq!(lines.last().unwrap(), "c 136:* rwm");
    }
}
