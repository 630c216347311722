//! What people read when no node can take a pod (N-197, N-198). Pure.

use crate::decide::Unfit;
use std::collections::BTreeMap;

/// The longest message of an event; a longer one ends in `CUT` (N-196).
const MESSAGE_MAX: usize = 1024;
const CUT: &str = " ...";

pub(crate) const NO_NODES: &str = "no nodes available to schedule pods";

/// Before what preemption says. It is the resource claims' word, and every pod has it.
const NO_CLAIMS: &str = "no new claims to deallocate, ";

/// `0/3 nodes are available: …`, with what preemption said, if it said something.
pub(crate) fn unfit(unfit: &Unfit, preemption: Option<&str>) -> String {
    if unfit.nodes == 0 {
        return NO_NODES.into();
    }
    let items = match &unfit.by_all {
        Some(rejection) => rejection.reasons.join(", "),
        None => counted(unfit.rejected.iter().flat_map(|(_, rejection)| &rejection.reasons)),
    };
    let tail = preemption.map(|said| format!(" {NO_CLAIMS}{said}")).unwrap_or_default();
    format!("0/{} nodes are available: {items}.{tail}", unfit.nodes)
}

/// What preemption says of nodes, each with one reason.
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
