//! The objects of a cache and the indexes over them. No I/O.

use crate::ObjectKey;
use crate::object::{AnyObject, controller_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The index that every cache has: the UID of the owner that controls the object.
pub(super) const CONTROLLER: &str = "controller";

type IndexKeys = Box<dyn Fn(&dyn AnyObject) -> Vec<String> + Send + Sync>;

pub(super) struct Contents {
    objects: BTreeMap<ObjectKey, Arc<dyn AnyObject>>,
    indexes: BTreeMap<&'static str, Index>,
}

struct Index {
    keys: IndexKeys,
    entries: BTreeMap<String, BTreeSet<ObjectKey>>,
}

pub(super) struct Change {
    pub(super) key: ObjectKey,
    pub(super) before: Option<Arc<dyn AnyObject>>,
    pub(super) after: Option<Arc<dyn AnyObject>>,
}

impl Contents {
    pub(super) fn new() -> Self {
        let mut contents = Contents { objects: BTreeMap::new(), indexes: BTreeMap::new() };
        contents.add_index(
            CONTROLLER,
            Box::new(|object| {
                let owner = controller_of(object.metadata());
                owner.map(|owner| owner.uid.clone()).into_iter().collect()
            }),
        );
        contents
    }

    pub(super) fn add_index(&mut self, name: &'static str, keys: IndexKeys) {
        self.indexes.insert(name, Index { keys, entries: BTreeMap::new() });
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<dyn AnyObject>> {
        self.objects.get(key).cloned()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<dyn AnyObject>> {
        self.objects.values()
    }

    pub(super) fn in_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<dyn AnyObject>> {
        // The empty name sorts before all others, so the namespace begins here.
        let run = self.objects.range(ObjectKey::new(namespace, "")..);
        run.take_while(move |(key, _)| key.namespace() == namespace).map(|(_, object)| object)
    }

    pub(super) fn by_index(&self, name: &str, key: &str) -> Vec<Arc<dyn AnyObject>> {
        let found = self.indexes.get(name).and_then(|index| index.entries.get(key));
        found.into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    pub(super) fn count(&self, name: &str, key: &str) -> usize {
        let found = self.indexes.get(name).and_then(|index| index.entries.get(key));
        found.map_or(0, BTreeSet::len)
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Replaces all objects. Objects that stay the same are not reported as changes.
    pub(super) fn replace(&mut self, objects: Vec<Arc<dyn AnyObject>>) -> Vec<Change> {
        let listed: BTreeSet<ObjectKey> =
            objects.iter().map(|object| ObjectKey::from_meta(object.metadata())).collect();
        let gone: Vec<ObjectKey> =
            self.objects.keys().filter(|key| !listed.contains(key)).cloned().collect();
        let mut changes: Vec<_> = gone.iter().filter_map(|key| self.remove(key)).collect();
        changes.extend(objects.into_iter().filter_map(|object| self.put(object)));
        changes
    }

    /// `None` if the cache already has this version of this object.
    pub(super) fn put(&mut self, object: Arc<dyn AnyObject>) -> Option<Change> {
        let key = ObjectKey::from_meta(object.metadata());
        let before = self.get(&key);
        let same_version = |before: &Arc<dyn AnyObject>| {
            let (before, now) = (before.metadata(), object.metadata());
            before.uid == now.uid && before.resource_version == now.resource_version
        };
        if before.as_ref().is_some_and(same_version) {
            return None;
        }
        if let Some(before) = &before {
            self.indexes.values_mut().for_each(|index| index.remove(&key, before.as_ref()));
        }
        self.indexes.values_mut().for_each(|index| index.add(&key, object.as_ref()));
        self.objects.insert(key.clone(), object.clone());
        Some(Change { key, before, after: Some(object) })
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Change> {
        let (key, before) = self.objects.remove_entry(key)?;
        self.indexes.values_mut().for_each(|index| index.remove(&key, before.as_ref()));
        Some(Change { key, before: Some(before), after: None })
    }
}

impl Index {
    fn add(&mut self, key: &ObjectKey, object: &dyn AnyObject) {
        for entry in (self.keys)(object) {
            self.entries.entry(entry).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, object: &dyn AnyObject) {
        for entry in (self.keys)(object) {
            if let Some(keys) = self.entries.get_mut(&entry) {
                keys.remove(key);
                if keys.is_empty() {
                    self.entries.remove(&entry);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::downcast_ref;
    use k8s_openapi::api::core::v1::Pod;
    use proptest::prelude::*;
    use serde_json::json;

    const NODE: &str = "node";

    fn pod(
        namespace: &str,
        name: &str,
        version: u32,
        node: &str,
        owner: Option<&str>,
    ) -> Arc<dyn AnyObject> {
        let owners = owner.map(|uid| {
            json!([
                { "apiVersion": "v1", "kind": "Other", "name": "x", "uid": "other" },
                { "apiVersion": "v1", "kind": "O", "name": "o", "uid": uid, "controller": true },
            ])
        });
        let pod: Pod = typed::from_value(json!({
            "metadata": {
                "namespace": namespace, "name": name, "uid": name,
                "resourceVersion": version.to_string(), "ownerReferences": owners,
            },
            "spec": { "nodeName": node, "containers": [] },
        }))
        .unwrap();
        Arc::new(pod)
    }

    fn contents() -> Contents {
        let mut contents = Contents::new();
        let node = |pod: &dyn AnyObject| node_of(pod).into_iter().map(str::to_owned).collect();
        contents.add_index(NODE, Box::new(node));
        contents
    }

    fn node_of(pod: &dyn AnyObject) -> Option<&str> {
        downcast_ref::<Pod>(pod).spec.as_ref()?.node_name.as_deref()
    }

    fn names<'a>(pods: impl IntoIterator<Item = &'a Arc<dyn AnyObject>>) -> Vec<String> {
        pods.into_iter().map(|pod| ObjectKey::from_meta(pod.metadata()).to_string()).collect()
    }

    #[test]
    fn objects_are_found_by_namespace_controller_and_index() {
        let mut contents = contents();
        contents.put(pod("a", "x", 1, "n1", Some("rs")));
        contents.put(pod("a-b", "y", 2, "n1", None));
        contents.put(pod("a", "w", 3, "n2", Some("rs")));
        assert_eq!(names(contents.in_namespace("a")), ["a/w", "a/x"]);
        assert_eq!(names(&contents.by_index(CONTROLLER, "rs")), ["a/w", "a/x"]);
        assert!(
            contents.by_index(CONTROLLER, "other").is_empty(),
            "an owner that is not the controller"
        );
        assert_eq!(names(&contents.by_index(NODE, "n1")), ["a/x", "a-b/y"]);
        assert!(contents.by_index("none", "n1").is_empty());
    }

    #[test]
    fn changed_object_is_removed_from_its_old_index_entry() {
        let mut contents = contents();
        contents.put(pod("a", "x", 1, "n1", None));
        contents.put(pod("a", "x", 2, "n2", None));
        assert!(contents.by_index(NODE, "n1").is_empty());
        assert_eq!(names(&contents.by_index(NODE, "n2")), ["a/x"]);
    }

    #[test]
    fn replace_reports_added_changed_and_deleted_objects() {
        let mut contents = contents();
        for (name, version) in [("same", 1), ("changed", 2), ("gone", 3)] {
            contents.put(pod("a", name, version, "n", None));
        }
        let list = [("same", 1), ("changed", 9), ("new", 8)];
        let list = list.map(|(name, version)| pod("a", name, version, "n", None));
        let mut changes: Vec<String> = contents
            .replace(list.into())
            .iter()
            .map(|c| format!("{} {} {}", c.key, c.before.is_some(), c.after.is_some()))
            .collect();
        changes.sort();
        assert_eq!(changes, ["a/changed true true", "a/gone true false", "a/new false true"]);
        assert_eq!(names(contents.all()), ["a/changed", "a/new", "a/same"]);
    }

    proptest! {
        /// After any sequence of changes, an index returns what a search over all objects finds.
        #[test]
        fn index_agrees_with_a_full_search(
            steps in prop::collection::vec((0u8..5, 0u8..3, any::<bool>()), 0..50),
        ) {
            let mut contents = contents();
            for (version, (name, node, put)) in steps.into_iter().enumerate() {
                let pod = pod("a", &format!("p{name}"), version as u32, &format!("n{node}"), None);
                match put {
                    true => drop(contents.put(pod)),
                    false => drop(contents.remove(&ObjectKey::from_meta(pod.metadata()))),
                }
            }
            for node in ["n0", "n1", "n2"] {
                let on_node = |pod: &&Arc<dyn AnyObject>| node_of(pod.as_ref()) == Some(node);
                let searched = names(contents.all().filter(on_node));
                prop_assert_eq!(contents.count(NODE, node), searched.len());
                prop_assert_eq!(names(&contents.by_index(NODE, node)), searched);
            }
        }
    }
}
