//! Where to look for what a selector may mean, without holding every selector against every pod.
//!
//! A selector that asks for one value of a label means only pods that have it. So whatever belongs to the
//! selector is kept at the place of that label and namespace, and a pod looks at the places of its own.

use crate::pod::PodInfo;
use api::selector::{LabelSelector, Operator};
use std::collections::{BTreeSet, HashMap};

/// Things by their places.
#[derive(Debug)]
pub(crate) struct Places<T>(HashMap<String, BTreeSet<T>>);

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places(HashMap::new())
    }
}

impl<T: Ord> Places<T> {
    pub(crate) fn put(&mut self, place: String, thing: T) {
        self.0.entry(place).or_default().insert(thing);
    }

    pub(crate) fn take(&mut self, place: &str, thing: &T) {
        if let Some(there) = self.0.get_mut(place) {
            there.remove(thing);
            if there.is_empty() {
                self.0.remove(place);
            }
        }
    }

    pub(crate) fn at<'a>(&'a self, place: &str) -> impl Iterator<Item = &'a T> + use<'a, T> {
        self.0.get(place).into_iter().flatten()
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }
}

/// One label that whoever is selected has.
pub(crate) fn demanded(selector: &LabelSelector) -> Option<(&str, &str)> {
    selector.requirements().iter().find_map(|requirement| {
        let one = matches!(requirement.operator, Operator::Equals | Operator::In);
        match requirement.values.as_slice() {
            [value] if one => Some((requirement.key.as_str(), value.as_str())),
            _ => None,
        }
    })
}

/// Neither a namespace nor a label has these characters in it.
pub(crate) fn place(namespace: Option<&str>, label: Option<(&str, &str)>) -> String {
    let namespace = namespace.unwrap_or("*");
    match label {
        Some((key, value)) => format!("{namespace}|{key}={value}"),
        None => namespace.to_owned(),
    }
}

/// A pod's places for its labels, in its own namespace.
pub(crate) fn labelled(pod: &PodInfo) -> impl Iterator<Item = String> {
    labels(pod).map(|label| place(Some(pod.namespace()), Some(label)))
}

/// The places in a pod's own namespace, also for what demands no label.
pub(crate) fn near(pod: &PodInfo) -> impl Iterator<Item = String> {
    labelled(pod).chain([place(Some(pod.namespace()), None)])
}

/// All places where there may be something that means a pod.
pub(crate) fn all(pod: &PodInfo) -> impl Iterator<Item = String> {
    let anywhere = labels(pod).map(Some).chain([None]).map(|label| place(None, label));
    near(pod).chain(anywhere)
}

fn labels(pod: &PodInfo) -> impl Iterator<Item = (&str, &str)> {
    let labels = pod.pod.metadata.labels.iter().flatten();
    labels.map(|(key, value)| (key.as_str(), value.as_str()))
}
