//! The five conditions of a namespace that is being deleted; status True means a problem (T-CTRL-55). The counts are
//! also there while pods remain (T-EDGE-21).

use super::content::Found;
use k8s_openapi::api::core::v1::{NamespaceCondition, NamespaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;

/// Type, reason and message if there is no problem. Upstream: `okMessages`, `okReasons`.
const WITHOUT_PROBLEM: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    (
        "NamespaceFinalizersRemaining",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];

/// The new status, if it differs.
pub(super) fn status(
    before: NamespaceStatus,
    found: &Found,
    now: jiff::Timestamp,
) -> Option<NamespaceStatus> {
    let mut status = before.clone();
    let conditions = status.conditions.get_or_insert_default();
    for (type_, reason, message) in WITHOUT_PROBLEM {
        let (status, reason, message) = match problem(type_, found) {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", reason, message.to_owned()),
        };
        let wanted = NamespaceCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        };
        match conditions.iter_mut().find(|condition| condition.type_ == type_) {
            None => conditions.push(wanted),
            Some(there) => {
                let unmoved = there.status == wanted.status;
                let since = there.last_transition_time.clone().filter(|_| unmoved);
                let since = since.or(wanted.last_transition_time.clone());
                *there = NamespaceCondition { last_transition_time: since, ..wanted };
            }
        }
    }
    (status != before).then_some(status)
}

fn problem(type_: &str, found: &Found) -> Option<(&'static str, String)> {
    match type_ {
        "NamespaceDeletionDiscoveryFailure" if !found.unavailable.is_empty() => {
            let each = found.unavailable.iter();
            let each: Vec<String> = each
                .map(|group| format!("{group}: stale GroupVersion discovery: {group}"))
                .collect();
            Some((
                "DiscoveryFailed",
                format!(
                    "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
                    each.len(),
                    each.join(", ")
                ),
            ))
        }
        "NamespaceDeletionContentFailure" if !found.errors.is_empty() => Some((
            "ContentDeletionFailed",
            format!(
                "Failed to delete all resource types, {} remaining: {}",
                found.errors.len(),
                found.errors.join(", ")
            ),
        )),
        "NamespaceContentRemaining" if !found.remaining.is_empty() => Some((
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", counted(&found.remaining, "has")),
        )),
        "NamespaceFinalizersRemaining" if !found.finalizers.is_empty() => Some((
            "SomeFinalizersRemain",
            format!(
                "Some content in the namespace has finalizers remaining: {}",
                counted(&found.finalizers, "in")
            ),
        )),
        _ => None,
    }
}

fn counted(counts: &BTreeMap<String, usize>, word: &str) -> String {
    let each = counts.iter();
    let each: Vec<String> =
        each.map(|(what, count)| format!("{what} {word} {count} resource instances")).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(&str, usize)]) -> BTreeMap<String, usize> {
        all.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect()
    }

    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(second).unwrap()
    }

    fn condition_text(status: &NamespaceStatus, type_: &str) -> String {
        let found = status.conditions.iter().flatten().find(|condition| condition.type_ == type_);
        let found = found.unwrap();
        let text = |text: &Option<String>| text.clone().unwrap();
        format!("{} {}: {}", found.status, text(&found.reason), text(&found.message))
    }

    #[test]
    fn t_ctrl_55_t_edge_21_conditions_name_remaining_content() {
        let found = Found {
            held: Vec::new(),
            remaining: counts(&[("pods.", 2), ("widgets.example.com", 1)]),
            finalizers: counts(&[("a.com/x", 1), ("b.com/y", 2)]),
            unavailable: vec!["metrics.k8s.io/v1beta1".into()],
            errors: vec!["no".into(), "never".into()],
            estimate: 30,
        };
        let status = status(NamespaceStatus::default(), &found, at(0)).unwrap();
        let types: Vec<&str> = WITHOUT_PROBLEM.iter().map(|row| row.0).collect();
        let there: Vec<&str> =
            status.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
        assert_eq!(there, types);
        for (type_, expected) in [
            (
                types[0],
                "True DiscoveryFailed: Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: stale GroupVersion discovery: metrics.k8s.io/v1beta1",
            ),
            (types[1], "False ParsedGroupVersions: All legacy kube types successfully parsed"),
            (
                types[2],
                "True ContentDeletionFailed: Failed to delete all resource types, 2 remaining: no, never",
            ),
            (
                types[3],
                "True SomeResourcesRemain: Some resources are remaining: pods. has 2 resource instances, widgets.example.com has 1 resource instances",
            ),
            (
                types[4],
                "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: a.com/x in 1 resource instances, b.com/y in 2 resource instances",
            ),
        ] {
            assert_eq!(condition_text(&status, type_), expected);
        }
    }

    #[test]
    fn unchanged_conditions_are_not_written_and_keep_their_time() {
        let two = Found { remaining: counts(&[("pods.", 2)]), ..Found::default() };
        let first = status(NamespaceStatus::default(), &two, at(0)).unwrap();
        assert_eq!(status(first.clone(), &two, at(9)), None);
        let one = Found { remaining: counts(&[("pods.", 1)]), ..Found::default() };
        let second = status(first, &one, at(9)).unwrap();
        assert!(
            condition_text(&second, "NamespaceContentRemaining").contains("pods. has 1 resource")
        );
        assert!(
            second
                .conditions
                .iter()
                .flatten()
                .all(|condition| { condition.last_transition_time.as_ref().unwrap().0 == at(0) })
        );
        let none = status(second, &Found::default(), at(20)).unwrap();
        assert_eq!(
            condition_text(&none, "NamespaceContentRemaining"),
            "False ContentRemoved: All content successfully removed"
        );
    }
}
