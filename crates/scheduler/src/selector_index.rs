//! An index that finds the selectors that may match a pod, without checking every selector against every pod.
//!
//! A selector that requires a label value matches only pods with that label. So its entries are stored under namespace
//! and label, and a pod looks only under its own labels.

use crate::pod::PodInfo;
use api::selector::{LabelSelector, Operator};
use std::collections::{BTreeSet, HashMap};

/// Entries by index key.
#[derive(Debug)]
pub(crate) struct SelectorIndex<T>(HashMap<String, BTreeSet<T>>);

impl<T> Default for SelectorIndex<T> {
    fn default() -> Self {
        SelectorIndex(HashMap::new())
    }
}

impl<T: Ord> SelectorIndex<T> {
    pub(crate) fn insert(&mut self, key: String, entry: T) {
        self.0.entry(key).or_default().insert(entry);
    }

    pub(crate) fn remove(&mut self, key: &str, entry: &T) {
        if let Some(entries) = self.0.get_mut(key) {
            entries.remove(entry);
            if entries.is_empty() {
                self.0.remove(key);
            }
        }
    }

    pub(crate) fn get<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a T> + use<'a, T> {
        self.0.get(key).into_iter().flatten()
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }
}

/// One label that all selected objects have.
pub(crate) fn required_label(selector: &LabelSelector) -> Option<(&str, &str)> {
    selector.requirements().iter().find_map(|requirement| {
        let one = matches!(requirement.operator, Operator::Equals | Operator::In);
        match requirement.values.as_slice() {
            [value] if one => Some((requirement.key.as_str(), value.as_str())),
            _ => None,
        }
    })
}

/// The key of a namespace and a label. Neither can contain the separators.
pub(crate) fn index_key(namespace: Option<&str>, label: Option<(&str, &str)>) -> String {
    let namespace = namespace.unwrap_or("*");
    match label {
        Some((key, value)) => format!("{namespace}|{key}={value}"),
        None => namespace.to_owned(),
    }
}

/// The keys of a pod's labels in its namespace.
pub(crate) fn label_keys(pod: &PodInfo) -> impl Iterator<Item = String> {
    labels(pod).map(|label| index_key(Some(pod.namespace()), Some(label)))
}

/// The keys of a pod in its namespace, including that of selectors that require no label.
pub(crate) fn namespace_keys(pod: &PodInfo) -> impl Iterator<Item = String> {
    label_keys(pod).chain([index_key(Some(pod.namespace()), None)])
}

/// All keys under which a selector that matches the pod may be.
pub(crate) fn all_keys(pod: &PodInfo) -> impl Iterator<Item = String> {
    let anywhere = labels(pod).map(Some).chain([None]).map(|label| index_key(None, label));
    namespace_keys(pod).chain(anywhere)
}

fn labels(pod: &PodInfo) -> impl Iterator<Item = (&str, &str)> {
    let labels = pod.pod.metadata.labels.iter().flatten();
    labels.map(|(key, value)| (key.as_str(), value.as_str()))
}
