//! `metadata.managedFields`: the field sets of everybody who wrote the object.

use super::FieldSet;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

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

/// What one manager owns. Update entries are told apart by manager, version and subresource,
/// Apply entries by manager and subresource.
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
    fn is(&self, other: &Entry) -> bool {
        self.operation == other.operation
            && self.manager == other.manager
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
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
            api_version: text("apiVersion")?,
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

/// Everybody who owns a field.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Managers {
    entries: Vec<Entry>,
}

impl Managers {
    /// Reads `managedFields` as a client sent it; none if any entry cannot be read.
    pub fn parse(managed_fields: &Value) -> Option<Self> {
        Self::read(managed_fields, false)
    }

    /// Reads what this server stored.
    pub(super) fn stored(object: &Value) -> Self {
        let managed_fields = object.get("metadata").and_then(|meta| meta.get("managedFields"));
        managed_fields.and_then(|fields| Self::read(fields, true)).unwrap_or_default()
    }

    fn read(managed_fields: &Value, trusted: bool) -> Option<Self> {
        let mut managers = Managers::default();
        for entry in managed_fields.as_array()? {
            let entry = Entry::parse(entry, trusted)?;
            managers.take(&entry);
            managers.entries.push(entry);
        }
        Some(managers)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Entry> {
        self.entries.iter()
    }

    /// Adds to the entry of the same identity, or makes it.
    pub fn add(&mut self, entry: Entry) {
        match self.entries.iter_mut().find(|known| known.is(&entry)) {
            Some(known) => {
                known.fields.unite(entry.fields);
                known.time = entry.time;
            }
            None => self.entries.push(entry),
        }
    }

    /// Takes out the entry with the identity of this one.
    pub(super) fn take(&mut self, like: &Entry) -> Option<Entry> {
        let place = self.entries.iter().position(|known| known.is(like))?;
        Some(self.entries.swap_remove(place))
    }

    /// Takes these fields from everybody. Entries that own nothing any more are dropped.
    pub fn subtract(&mut self, fields: &FieldSet) {
        if fields.is_empty() {
            return;
        }
        for entry in &mut self.entries {
            entry.fields.subtract(fields);
        }
        self.entries.retain(|entry| !entry.fields.is_empty());
    }

    /// The whole list, in upstream's order.
    pub fn into_json(mut self) -> Value {
        self.cap();
        let order = |a: &Entry, b: &Entry| {
            a.operation
                .cmp(&b.operation)
                .then_with(|| a.time.cmp(&b.time))
                .then_with(|| a.manager.cmp(&b.manager))
                .then_with(|| a.api_version.cmp(&b.api_version))
                .then_with(|| a.subresource.cmp(&b.subresource))
        };
        self.entries.sort_by(order);
        Value::Array(self.entries.into_iter().map(Entry::into_json).collect())
    }

    /// Merges the oldest Update entries of one version until there are few enough.
    fn cap(&mut self) {
        let is_update = |entry: &Entry| entry.operation == Operation::Update;
        let mut updates = self.entries.iter().filter(|entry| is_update(entry)).count();
        if updates <= MAX_UPDATE_ENTRIES {
            return;
        }
        let mut oldest_first: Vec<Entry> =
            self.entries.extract_if(.., |entry| is_update(entry)).collect();
        oldest_first.sort_by(|a, b| a.time.cmp(&b.time).then_with(|| a.manager.cmp(&b.manager)));
        // The oldest entry of each version waits for a second one to be merged with.
        let mut waiting: BTreeMap<String, Entry> = BTreeMap::new();
        for entry in oldest_first {
            if updates <= MAX_UPDATE_ENTRIES {
                self.add(entry);
                continue;
            }
            match waiting.remove(&entry.api_version) {
                None => {
                    waiting.insert(entry.api_version.clone(), entry);
                }
                Some(first) => {
                    updates -= 1;
                    let mut bucket = first;
                    bucket.manager = ANCIENT.into();
                    bucket.subresource = String::new();
                    bucket.fields.unite(entry.fields);
                    bucket.time = entry.time;
                    waiting.insert(entry.api_version, bucket);
                }
            }
        }
        for (_, entry) in waiting {
            self.add(entry);
        }
    }
}

/// Takes `metadata.managedFields` out of an object.
pub(super) fn remove_from(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// Writes the managers into an object; nothing if there are none.
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
