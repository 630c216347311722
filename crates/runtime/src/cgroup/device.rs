//! Which devices a group may open: lines in v1's `devices` hierarchy, a program on v2.

use super::{Cgroup, Layout, device_filter, layout, write};
use std::io;

/// A list of rules on top of "nothing is allowed", or everything.
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
    /// Of `r`, `w`, `m`.
    pub(crate) access: String,
}

impl Devices {
    /// What every container may use: any node may be made, the usual ones opened.
    pub(crate) fn usual() -> Vec<Rule> {
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
    fn a_rule_is_written_as_the_kernel_reads_it() {
        let lines: Vec<String> = Devices::usual().iter().map(line).collect();
        assert_eq!(lines[0], "c *:* m");
        assert_eq!(lines[2], "c 1:3 rwm");
        assert_eq!(lines.last().unwrap(), "c 136:* rwm");
    }
}
