//! A cache of all stored definitions, so that the cost of an update depends only on the definitions that have changed.
//!
//! A definition is read again only if it was written since, or if it waits for a name that may have become free. Reading one
//! is expensive: schemas have tens of kilobytes, and kinds are built from them.

use super::names::{self, Taken};
use super::{is_terminating, overlaps};
use crate::object::{Object, Stored};
use api::value::ValueExt;
use api::{Kind, Registry};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Known {
    definitions: BTreeMap<String, Entry>,
    /// Definitions read so far, for tests.
    #[cfg(test)]
    read: usize,
}

struct Entry {
    /// The stored object that this was read from.
    stored: Arc<Object>,
    /// Its status is not written yet, so it is read again.
    again: bool,
    terminating: bool,
    group: String,
    /// Its accepted names.
    names: Value,
    /// Whether it wants names that another definition has.
    refused: bool,
    /// Empty until its kinds are served.
    basis: Option<Basis>,
    kinds: Vec<Arc<Kind>>,
}

/// The parts of a definition that determine its kinds.
#[derive(PartialEq)]
struct Basis {
    uid: String,
    generation: Value,
    names: Value,
    terminating: bool,
}

/// A stored definition, and how it should be.
pub(super) struct Definition {
    pub(super) stored: Arc<Object>,
    /// The stored object; none if it cannot be decoded completely.
    pub(super) old: Option<Value>,
    /// With accepted names and conditions.
    pub(super) value: Value,
}

/// The result of an update.
pub(super) struct Changes {
    /// Definitions whose status may have to be written.
    pub(super) definitions: Vec<Definition>,
    /// Uids of definitions that are no longer served or whose kinds have changed.
    pub(super) served: Vec<(String, Vec<String>)>,
}

impl Known {
    /// Updates the cache from the stored definitions, which are sorted by name.
    pub(super) fn update(
        &mut self,
        built_in: &Registry,
        stored: Vec<Arc<Object>>,
        now: &str,
    ) -> Changes {
        let mut served = Vec::new();
        let mut groups = self.forget_missing(&stored, &mut served);
        let mut waiting = self.read_changed(stored, &mut groups);
        self.reread_refused(&groups, &mut waiting);
        // The older definition gets the name.
        waiting.sort_by_key(|definition| definition.stored.created());
        for definition in &mut waiting {
            self.settle(built_in, definition, now, &mut served);
        }
        Changes { definitions: waiting, served }
    }

    /// Drops deleted definitions, and returns the groups in which names became free.
    fn forget_missing(
        &mut self,
        stored: &[Arc<Object>],
        served: &mut Vec<(String, Vec<String>)>,
    ) -> BTreeSet<String> {
        let mut groups = BTreeSet::new();
        let mut stored = stored.iter().map(|object| object.name()).peekable();
        self.definitions.retain(|name, entry| {
            while stored.next_if(|stored| *stored < name.as_str()).is_some() {}
            let kept = stored.next_if_eq(&name.as_str()).is_some();
            if !kept {
                groups.insert(entry.group.clone());
                served.extend(entry.basis.take().map(|basis| (basis.uid, Vec::new())));
            }
            kept
        });
        groups
    }

    fn read_changed(
        &mut self,
        stored: Vec<Arc<Object>>,
        groups: &mut BTreeSet<String>,
    ) -> Vec<Definition> {
        let mut changed = Vec::new();
        for object in stored {
            let entry = self.definitions.get(object.name());
            let same = |entry: &Entry| !entry.again && entry.stored.revision() == object.revision();
            if entry.is_some_and(same) {
                continue;
            }
            let definition = self.read(object);
            let group = definition.value.text(&["spec", "group"]).to_owned();
            let names = definition.value["status"]["acceptedNames"].clone();
            groups.insert(group.clone());
            let name = definition.stored.name().to_owned();
            let entry = self.definitions.entry(name).or_insert_with(|| Entry {
                stored: definition.stored.clone(),
                again: false,
                terminating: false,
                group: String::new(),
                names: Value::Null,
                refused: false,
                basis: None,
                kinds: Vec::new(),
            });
            entry.stored = definition.stored.clone();
            (entry.group, entry.names) = (group, names);
            changed.push(definition);
        }
        changed
    }

    /// Adds definitions that may now get the names that they want.
    fn reread_refused(&mut self, groups: &BTreeSet<String>, waiting: &mut Vec<Definition>) {
        let known = |name: &str| waiting.iter().any(|one| one.stored.name() == name);
        let again: Vec<Arc<Object>> = self
            .definitions
            .values()
            .filter(|entry| entry.refused && groups.contains(&entry.group))
            .filter(|entry| !known(entry.stored.name()))
            .map(|entry| entry.stored.clone())
            .collect();
        waiting.extend(again.into_iter().map(|object| self.read(object)).collect::<Vec<_>>());
    }

    fn read(&mut self, stored: Arc<Object>) -> Definition {
        #[cfg(test)]
        {
            self.read += 1;
        }
        let old = stored.whole();
        let value = old.clone().unwrap_or_else(|| stored.value());
        Definition { stored, old, value }
    }

    /// Decides about names and conditions, and builds the kinds if their definition has changed.
    fn settle(
        &mut self,
        built_in: &Registry,
        definition: &mut Definition,
        now: &str,
        served: &mut Vec<(String, Vec<String>)>,
    ) {
        let value = &mut definition.value;
        let own = definition.stored.name();
        let group = value.text(&["spec", "group"]);
        let others = self
            .definitions
            .iter()
            .filter(|(name, other)| other.group == group && name.as_str() != own);
        let taken = Taken::of(others.map(|(_, other)| &other.names));
        let refused = names::settle(value, &taken, now);
        if is_terminating(value) {
            let condition = [
                "Terminating",
                "True",
                "InstanceDeletionInProgress",
                "CustomResource deletion is in progress",
            ];
            names::set_condition(value, condition, now);
        }
        let Some(entry) = self.definitions.get_mut(own) else { return };
        entry.refused = refused;
        // Until the status is written, because this task may be cancelled before.
        let old = definition.old.as_ref();
        entry.again = old.is_some_and(|old| old.get("status") != value.get("status"));
        entry.terminating = is_terminating(value);
        entry.names = value["status"]["acceptedNames"].clone();
        let basis = names::is_accepted(value).then(|| Basis {
            uid: value.text(&["metadata", "uid"]).into(),
            generation: value["metadata"]["generation"].clone(),
            names: entry.names.clone(),
            terminating: entry.terminating,
        });
        if basis == entry.basis {
            return;
        }
        entry.kinds.clear();
        if basis.is_some() {
            let kinds = api::crd::kinds(value).into_iter();
            entry.kinds.extend(kinds.filter(|kind| !overlaps(built_in, kind)));
        }
        let uid = |basis: &Option<Basis>| basis.as_ref().map(|basis| basis.uid.clone());
        let (before, after) = (uid(&entry.basis), uid(&basis));
        if before != after {
            served.extend(before.map(|uid| (uid, Vec::new())));
        }
        let versions = entry.kinds.iter().map(|kind| kind.version.clone()).collect();
        served.extend(after.map(|uid| (uid, versions)));
        entry.basis = basis;
    }

    /// Its status was written; the cached result is valid for the new version too.
    pub(super) fn written(&mut self, stored: Arc<Object>) {
        if let Some(entry) = self.definitions.get_mut(stored.name()) {
            entry.stored = stored;
            entry.again = false;
        }
    }

    /// Definitions that are being deleted.
    pub(super) fn terminating(&self) -> Vec<Arc<Object>> {
        let entries = self.definitions.values().filter(|entry| entry.terminating);
        entries.map(|entry| entry.stored.clone()).collect()
    }

    /// All kinds of all definitions, those of older definitions first.
    pub(super) fn kinds(&self) -> Vec<Arc<Kind>> {
        let mut entries: Vec<&Entry> = self.definitions.values().collect();
        entries.sort_by_key(|entry| entry.stored.created());
        entries.into_iter().flat_map(|entry| entry.kinds.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{COLLECTION, GROUP, PLURAL};
    use super::*;
    use crate::object::{self, ENVELOPE, Store};
    use serde_json::json;
    use store::{Change, Expect, Write};

    struct Stage {
        store: Store,
        known: Known,
        built_in: Registry,
    }

    impl Stage {
        fn new() -> Stage {
            let memory = store::Memory::default();
            let store = Store::open_memory(&memory, store::Options::new(ENVELOPE));
            Stage { store, known: Known::default(), built_in: Registry::built_in() }
        }

        async fn write(&self, plural: &str, change: Option<&Value>) {
            let kind = self.built_in.resource(GROUP, "v1", PLURAL);
            let kind = kind.unwrap();
            let name = format!("{plural}.example.com");
            let stored = self.store.get(COLLECTION, &name);
            let write = Write {
                collection: COLLECTION.into(),
                name,
                expect: stored.map_or(Expect::Absent, |stored| Expect::Revision(stored.revision())),
                change: change
                    .map_or(Change::Delete, |value| Change::Put(object::draft(kind, value))),
            };
            assert!(self.store.write(write).await.is_ok());
        }

        /// The number of definitions read, and the changed served versions by uid.
        async fn update(&mut self) -> (usize, Vec<(String, Vec<String>)>) {
            let before = self.known.read;
            let (_, stored) = self.store.list(COLLECTION, "", None);
            let changes = self.known.update(&self.built_in, stored, "now");
            for Definition { stored, value, .. } in &changes.definitions {
                self.write(value.text(&["spec", "names", "plural"]), Some(value)).await;
                self.known.written(self.store.get(COLLECTION, stored.name()).unwrap());
            }
            (self.known.read - before, changes.served)
        }

        fn plurals(&self) -> Vec<String> {
            self.known.kinds().iter().map(|kind| kind.plural.clone()).collect()
        }
    }

    fn definition(plural: &str, kind: &str) -> Value {
        json!({
            "metadata": {"name": format!("{plural}.example.com"), "uid": plural, "generation": 1},
            "spec": {"group": "example.com",
                "names": {"plural": plural, "singular": plural, "kind": kind,
                          "listKind": format!("{kind}List")},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]},
        })
    }

    fn served(uid: &str, versions: &[&str]) -> (String, Vec<String>) {
        (uid.into(), versions.iter().map(|version| (*version).to_owned()).collect())
    }

    #[tokio::test]
    async fn a_write_reads_only_the_written_definition() {
        let mut stage = Stage::new();
        for number in 0..50 {
            let plural = format!("w{number:02}");
            stage.write(&plural, Some(&definition(&plural, &plural))).await;
            assert_eq!(stage.update().await, (1, vec![served(&plural, &["v1"])]));
            assert_eq!(stage.update().await, (0, vec![]), "nothing was written since");
        }
        let first = stage.known.kinds()[0].clone();
        let mut changed = definition("w07", "w07");
        changed["metadata"]["annotations"] = json!({"a": "b"});
        stage.write("w07", Some(&changed)).await;
        assert_eq!(stage.update().await, (1, vec![]), "its kinds are the same");
        stage.write("w08", None).await;
        assert_eq!(stage.update().await, (0, vec![served("w08", &[])]));
        assert_eq!(stage.plurals().len(), 49);
        assert!(Arc::ptr_eq(&first, &stage.known.kinds()[0]), "not built again");
    }

    #[tokio::test]
    async fn a_definition_that_waits_for_a_name_gets_it_when_it_becomes_free() {
        let mut stage = Stage::new();
        for plural in ["bs", "as", "cs"] {
            stage.write(plural, Some(&definition(plural, "Same"))).await;
            stage.update().await;
        }
        assert_eq!(stage.plurals(), ["bs"]);
        stage.write("bs", None).await;
        let freed = stage.update().await;
        assert_eq!(freed, (2, vec![served("bs", &[]), served("as", &["v1"])]), "older first");
        assert_eq!(stage.plurals(), ["as"]);
    }

    #[tokio::test]
    async fn a_definition_whose_status_was_not_written_is_read_again() {
        let mut stage = Stage::new();
        stage.write("as", Some(&definition("as", "A"))).await;
        let (_, stored) = stage.store.list(COLLECTION, "", None);
        // The task was cancelled before the status was written.
        stage.known.update(&stage.built_in, stored, "now");
        assert_eq!(stage.update().await, (1, vec![]));
        assert_eq!(stage.update().await, (0, vec![]));
    }

    #[tokio::test]
    async fn a_new_definition_of_the_same_name_is_another_kind() {
        let mut stage = Stage::new();
        stage.write("as", Some(&definition("as", "A"))).await;
        stage.update().await;
        stage.write("as", None).await;
        let mut again = definition("as", "A");
        again["metadata"]["uid"] = "other".into();
        stage.write("as", Some(&again)).await;
        let (_, changed) = stage.update().await;
        assert_eq!(changed, [served("as", &[]), served("other", &["v1"])]);
    }
}
