//! Label selectors of policies, and which pods of the cluster a peer means.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::cmp::Ordering;
use std::collections::BTreeMap;

pub(super) type Labels = BTreeMap<String, String>;

/// A parsed selector. Selectors with the same text are equal.
#[derive(Debug, Clone)]
pub(super) struct Selector {
    text: String,
    /// `None` selects nothing.
    parsed: Option<api::selector::LabelSelector>,
}

impl Selector {
    /// A missing selector selects everything; one that cannot be parsed selects nothing.
    pub(super) fn new(selector: Option<&LabelSelector>) -> Selector {
        let parse = api::selector::LabelSelector::from_object;
        let parsed = match selector {
            None => Ok(api::selector::LabelSelector::default()),
            Some(selector) => {
                typed::to_value(selector).map_err(|e| e.to_string()).and_then(|v| parse(&v))
            }
        };
        match parsed {
            Ok(parsed) => Selector { text: parsed.to_string(), parsed: Some(parsed) },
            // The text is no valid selector, so no other selector has it.
            Err(error) => Selector { text: format!("!{error}"), parsed: None },
        }
    }

    pub(super) fn matches(&self, labels: &Labels) -> bool {
        let parsed = self.parsed.as_ref();
        parsed.is_some_and(|parsed| parsed.matches(|key| labels.get(key).map(String::as_str)))
    }
}

impl PartialEq for Selector {
    fn eq(&self, other: &Selector) -> bool {
        self.text == other.text
    }
}

impl Eq for Selector {}

impl PartialOrd for Selector {
    fn partial_cmp(&self, other: &Selector) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Selector {
    fn cmp(&self, other: &Selector) -> Ordering {
        self.text.cmp(&other.text)
    }
}

/// The namespaces of a peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    One(String),
    Matching(Selector),
}

/// A peer that is not an ipBlock: pods by their labels and the labels of their namespace (NET-128).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodPeers {
    pub(super) scope: Scope,
    pub(super) pods: Selector,
}
