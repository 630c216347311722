//! `metadata.managedFields`: the field sets of all managers that wrote the object.

use super::FieldSet;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

/// More Update entries than this are merged, oldest first.
const MAX_UPDATE_ENTRIES: usize = 10;

/// The manager of entries that were merged.
const ANCIENT: &str = "ancient-changes";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// Operation, manager, version (Update only) and subresource.
type Identity = (Operation, String, String, String);

/// What one manager owns. Manager, version and subresource identify an Update entry; manager and
/// subresource identify an Apply entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    pub time: Option<String>,
    pub fields: FieldSet,
}

impl Entry {
    fn identity(&self) -> Identity {
        let version = match self.operation {
            Operation::Apply => String::new(),
            Operation::Update => self.api_version.clone(),
        };
        (self.operation, self.manager.clone(), version, self.subresource.clone())
    }

    fn parse(entry: &Value, trusted: bool) -> Option<Entry> {
        let text = |field: &str| match entry.get(field) {
            None | Some(Value::Null) => Some(String::new()),
            Some(value) => value.as_str().map(str::to_owned),
        };
        let operation = match entry.get("operation")?.as_str()? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if entry.get("fieldsType")?.as_str()? != "FieldsV1" {
            return None;
        }
        let fields = entry.get("fieldsV1").filter(|fields| !fields.is_null()).cloned();
        let fields = fields.unwrap_or_else(|| Value::Object(Map::new()));
        let fields = if trusted { FieldSet::trusted(fields) } else { FieldSet::parse(fields)? };
        Some(Entry {
            manager: text("manager")?,
            operation,
            api_version: text("apiVersion").filter(|version| !version.is_empty())?,
            subresource: text("subresource")?,
            time: entry.get("time").and_then(Value::as_str).map(str::to_owned),
            fields,
        })
    }

    fn into_json(self) -> Value {
        let mut entry = Map::new();
        let mut set = |field: &str, value: Value| entry.insert(field.to_owned(), value);
        if !self.manager.is_empty() {
            set("manager", self.manager.into());
        }
        set("operation", self.operation.as_str().into());
        set("apiVersion", self.api_version.into());
        if let Some(time) = self.time {
            set("time", time.into());
        }
        set("fieldsType", "FieldsV1".into());
        set("fieldsV1", self.fields.into_json());
        if !self.subresource.is_empty() {
            set("subresource", self.subresource.into());
        }
        Value::Object(entry)
    }
}

/// All managers that own a field.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Managers {
    entries: BTreeMap<Identity, Entry>,
}

impl Managers {
    /// Reads `managedFields` as a client sent it; `None` if an entry is malformed.
    pub fn parse(managed_fields: &Value) -> Option<Self> {
        Self::read(managed_fields, false)
    }

    /// Reads what this server stored.
    pub(super) fn stored(object: &Value) -> Self {
        let managed_fields = object.get("metadata").and_then(|meta| meta.get("managedFields"));
        managed_fields.and_then(|fields| Self::read(fields, true)).unwrap_or_default()
    }

    fn read(managed_fields: &Value, trusted: bool) -> Option<Self> {
        let entries = managed_fields.as_array()?.iter().map(|entry| {
            let entry = Entry::parse(entry, trusted)?;
            Some((entry.identity(), entry))
        });
        Some(Managers { entries: entries.collect::<Option<_>>()? })
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, by operation, manager, version and subresource.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub(super) fn sets_mut(&mut self) -> impl Iterator<Item = &mut FieldSet> {
        self.entries.values_mut().map(|entry| &mut entry.fields)
    }

    /// Adds to the entry of the same identity, or creates it.
    pub fn add(&mut self, entry: Entry) {
        match self.entries.entry(entry.identity()) {
            Slot::Occupied(mut known) => {
                let known = known.get_mut();
                known.fields.unite(entry.fields);
                known.time = entry.time;
            }
            Slot::Vacant(slot) => {
                slot.insert(entry);
            }
        }
    }

    /// Removes and returns the entry with the same identity as this one.
    pub(super) fn take(&mut self, like: &Entry) -> Option<Entry> {
        self.entries.remove(&like.identity())
    }

    /// Removes these fields from all managers. Entries that own nothing afterwards are dropped.
    pub fn subtract(&mut self, fields: &FieldSet) {
        if fields.is_empty() {
            return;
        }
        self.entries.retain(|_, entry| {
            entry.fields.subtract(fields);
            !entry.fields.is_empty()
        });
    }

    /// The same managers without the times of their writes.
    pub(super) fn without_times(mut self) -> Self {
        self.entries.values_mut().for_each(|entry| entry.time = None);
        self
    }

    /// The whole list, in upstream's order.
    pub fn into_json(mut self) -> Value {
        self.cap();
        let mut entries: Vec<Entry> = self.entries.into_values().collect();
        // Stable, so that equal times leave manager, version and subresource in order.
        entries.sort_by(|a, b| a.operation.cmp(&b.operation).then_with(|| a.time.cmp(&b.time)));
        Value::Array(entries.into_iter().map(Entry::into_json).collect())
    }

    /// Merges the oldest Update entries of one version until there are few enough.
    fn cap(&mut self) {
        let updates = self.iter().filter(|entry| entry.operation == Operation::Update);
        let mut oldest_first: Vec<(Option<String>, Identity)> =
            updates.map(|entry| (entry.time.clone(), entry.identity())).collect();
        let mut count = oldest_first.len();
        if count <= MAX_UPDATE_ENTRIES {
            return;
        }
        oldest_first.sort();
        // The oldest entry of each version so far, to merge the next one of that version into.
        let mut waiting: BTreeMap<String, Identity> = BTreeMap::new();
        for (_, identity) in oldest_first {
            if count <= MAX_UPDATE_ENTRIES {
                return;
            }
            let Some(entry) = self.entries.get(&identity) else { continue };
            let version = entry.api_version.clone();
            let Some(first) = waiting.get(&version).cloned() else {
                waiting.insert(version, identity);
                continue;
            };
            for merged in [first, identity] {
                if let Some(entry) = self.entries.remove(&merged) {
                    let (manager, subresource) = (ANCIENT.into(), String::new());
                    self.add(Entry { manager, subresource, ..entry });
                }
            }
            count -= 1;
            let bucket = (Operation::Update, ANCIENT.into(), version.clone(), String::new());
            waiting.insert(version, bucket);
        }
    }
}

/// Removes `metadata.managedFields` from an object.
pub(super) fn remove_from(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// Writes the managers into an object, unless there are none.
pub(super) fn write_into(object: &mut Value, managers: Managers) {
    if managers.is_empty() {
        remove_from(object);
        return;
    }
    write_json_into(object, managers.into_json());
}

pub(super) fn write_json_into(object: &mut Value, managed_fields: Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("managedFields".into(), managed_fields);
    }
}
