//! Messages for unschedulable pods (N-197, N-198). Pure.

use crate::decide::Unschedulable;
use std::collections::BTreeMap;

/// The longest message of an event; a longer one ends in `CUT` (N-196).
const MESSAGE_MAX: usize = 1024;
const CUT: &str = " ...";

pub(crate) const NO_NODES: &str = "no nodes available to schedule pods";

/// Upstream's prefix of the preemption message, from the plugin for resource claims; every pod has it.
const NO_CLAIMS: &str = "no new claims to deallocate, ";

/// `0/3 nodes are available: …`, followed by the message of preemption, if there is one.
pub(crate) fn unschedulable(unschedulable: &Unschedulable, preemption: Option<&str>) -> String {
    if unschedulable.nodes == 0 {
        return NO_NODES.into();
    }
    let items = match &unschedulable.by_all {
        Some(rejection) => rejection.reasons.join(", "),
        None => {
            counted(unschedulable.rejected.iter().flat_map(|(_, rejection)| &rejection.reasons))
        }
    };
    let tail = preemption.map(|text| format!(" {NO_CLAIMS}{text}")).unwrap_or_default();
    format!("0/{} nodes are available: {items}.{tail}", unschedulable.nodes)
}

/// The message of preemption, with one reason per node.
pub(crate) fn preemption<'a>(nodes: usize, reasons: impl Iterator<Item = &'a str>) -> String {
    format!("preemption: 0/{nodes} nodes are available: {}.", counted(reasons))
}

/// `2 Insufficient cpu, 1 …`, sorted as strings.
fn counted(reasons: impl Iterator<Item = impl AsRef<str>>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason.as_ref().to_owned()).or_default() += 1;
    }
    let mut items: Vec<String> =
        counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    items.sort();
    items.join(", ")
}

pub(crate) fn cut(message: &str) -> String {
    if message.len() <= MESSAGE_MAX {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MESSAGE_MAX - CUT.len());
    format!("{}{CUT}", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_197_items_are_counted_and_sorted_as_strings() {
        let reasons = ["b", "a", "b"].iter().chain(std::iter::repeat_n(&"c", 10));
        assert_eq!(counted(reasons), "1 a, 10 c, 2 b");
    }

    #[test]
    fn n_196_a_long_message_is_cut_at_1024() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"x".repeat(1024)).len(), 1024);
        let long = cut(&"é".repeat(600));
        assert!(long.len() <= 1024 && long.ends_with("é ..."), "{}", long.len());
    }
}
