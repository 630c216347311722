//! Server-side apply: merges the applied document and records the manager's fields.

use super::conflict::{self, ApplyError, Conflict};
use super::last_applied;
use super::managers::{self, Entry, Managers, Operation};
use super::walk::{self, Difference, Walk};
use super::{FieldSet, Manager, check};
use crate::schema::{Schema, TypeId};
use crate::value::ValueExt;
use serde_json::{Map, Value};

/// Manager of the fields that existed before the first apply to an untracked object.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Merges `applied` into `live` and updates `managedFields`. `live` is `None` if the object does not
/// exist yet; `reset` are the fields that this endpoint ignores.
///
/// The caller still has to decode, default and validate the result. The fields that this adds have no
/// owner, so `managedFields` stay as they are.
pub fn apply(
    schema: &Schema,
    ty: TypeId,
    live: Option<&Value>,
    applied: &Value,
    who: &Manager,
    reset: &FieldSet,
    force: bool,
) -> Result<Value, ApplyError> {
    let apply = Apply { walk: Walk::new(schema, ty), who, reset };
    apply.acceptable(applied)?;
    let managers = live.map(|live| apply.known_managers(live)).unwrap_or_default();
    let empty = Value::Object(Map::new());
    let live = live.unwrap_or(&empty);
    let mut bare = live.clone();
    managers::remove_from(&mut bare);

    let mut result = match apply.merge(&bare, applied, managers.clone(), force) {
        Err(ApplyError::Conflicts(conflicts)) if last_applied::manages(who.name) => {
            let explained = last_applied::explained(&apply.walk, &bare);
            let left: Vec<Conflict> = conflicts
                .into_iter()
                .filter(|conflict| !explained.contains(&conflict.path))
                .collect();
            if !left.is_empty() {
                return Err(ApplyError::Conflicts(left));
            }
            apply.merge(&bare, applied, managers, true)?
        }
        other => other?,
    };
    if last_applied::manages(who.name) {
        last_applied::update_annotation(&mut result, applied);
    }
    Ok(result)
}

struct Apply<'a> {
    walk: Walk<'a>,
    who: &'a Manager<'a>,
    reset: &'a FieldSet,
}

impl Apply<'_> {
    fn acceptable(&self, applied: &Value) -> Result<(), ApplyError> {
        let version = applied.text(&["apiVersion"]);
        if version != self.who.api_version {
            return Err(ApplyError::BadRequest(format!(
                "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {}",
                self.who.api_version
            )));
        }
        if applied.at(&["metadata", "managedFields"]).is_some() {
            return Err(ApplyError::BadRequest("metadata.managedFields must be nil".into()));
        }
        if crate::patch::depth(applied) > crate::patch::MAX_DEPTH {
            return Err(ApplyError::BadRequest("error decoding YAML: exceeded max depth".into()));
        }
        match check::schema_errors(&self.walk, applied) {
            None => Ok(()),
            Some(why) => Err(ApplyError::Schema(format!(
                "failed to create typed patch object ({}): {why}",
                full_name(applied)
            ))),
        }
    }

    fn known_managers(&self, live: &Value) -> Managers {
        let mut managers = Managers::stored(live);
        self.walk.reconcile(&mut managers, live);
        if managers.is_empty() {
            let mut bare = live.clone();
            managers::remove_from(&mut bare);
            let mut fields = self.walk.compare(None, &bare).changed;
            fields.subtract_below(self.reset);
            walk::strip(&mut fields);
            if !fields.is_empty() {
                managers.add(Entry {
                    manager: BEFORE_FIRST_APPLY.into(),
                    operation: Operation::Update,
                    ..self.entry(fields)
                });
            }
        }
        managers
    }

    fn merge(
        &self,
        live: &Value,
        applied: &Value,
        mut managers: Managers,
        force: bool,
    ) -> Result<Value, ApplyError> {
        let mut mine = self.entry(self.walk.fields(applied));
        let last = managers.take(&mine);

        let mut managed = mine.fields.clone();
        for entry in managers.iter() {
            managed.unite(entry.fields.clone());
        }
        let merged = self.walk.merge(live, applied);
        let nothing = FieldSet::default();
        let held = last.as_ref().map_or(&nothing, |entry| &entry.fields);
        let mut object = self.walk.prune(merged, held, &managed);

        let mut difference = self.walk.compare(Some(live), &object);
        difference.changed.subtract_below(self.reset);
        difference.removed.subtract_below(self.reset);
        if !force {
            no_conflicts(&managers, &difference)?;
        }
        managers.subtract(&difference.changed);
        managers.subtract(&difference.removed);

        walk::strip(&mut mine.fields);
        mine.fields.subtract_below(self.reset);
        if let Some(last) = last {
            // The same document again has no effect, so its time does not change either.
            if last.fields == mine.fields && *live == object {
                mine.time = last.time;
            }
        }
        if !mine.fields.is_empty() {
            managers.add(mine);
        }
        managers::write_into(&mut object, managers);
        Ok(object)
    }

    fn entry(&self, fields: FieldSet) -> Entry {
        Entry {
            manager: self.who.name.into(),
            operation: Operation::Apply,
            api_version: self.who.api_version.into(),
            subresource: self.who.subresource.into(),
            time: Some(self.who.now.into()),
            fields,
        }
    }
}

fn no_conflicts(managers: &Managers, difference: &Difference) -> Result<(), ApplyError> {
    let mut conflicts = Vec::new();
    let mut entries: Vec<&Entry> = managers.iter().collect();
    entries.sort_by_key(|entry| &entry.manager);
    for entry in entries {
        let manager = conflict::name(entry);
        let fields = entry.fields.intersection(&difference.changed);
        conflicts.extend(
            fields.paths().into_iter().map(|path| Conflict { manager: manager.clone(), path }),
        );
    }
    if conflicts.is_empty() { Ok(()) } else { Err(ApplyError::Conflicts(conflicts)) }
}

/// `default/web; apps/v1, Kind=Deployment`
fn full_name(applied: &Value) -> String {
    let version = applied.text(&["apiVersion"]);
    let slash = if version.contains('/') { "" } else { "/" };
    format!(
        "{}/{}; {slash}{version}, Kind={}",
        applied.text(&["metadata", "namespace"]),
        applied.text(&["metadata", "name"]),
        applied.text(&["kind"]),
    )
}
