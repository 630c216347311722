//! DELETE of an object and of a collection (T-API-1 to T-API-57, A-78 to A-83).
//!
//! `lifecycle::deletion` decides; here the object is read, marked, and removed when it may go.

use crate::admission;
use crate::answer::{self, Answer};
use crate::call::{Call, dry_run, invalid_options};
use crate::error::{ApiError, Result};
use crate::negotiate::{Form, Offer};
use crate::object::{Object, Stored, store_name};
use crate::services;
use crate::terminations::{self, Asked, Removal};
use crate::verbs::create::Made;
use crate::verbs::list::{self, Filter};
use crate::verbs::write::{self, ATTEMPTS, Failed};
use crate::views::{self, IncludeObject};
use crate::{body, decode};
use api::value::ValueExt;
use api::{At, Errors};
use http::StatusCode;
use lifecycle::deletion::{Mark, Pod, may_go};
use serde_json::{Value, json};
use std::sync::Arc;
use store::Expect;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// What becomes of the objects this one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) propagation: Option<Propagation>,
    orphan_dependents: Option<bool>,
    pub(crate) dry_run: bool,
}

impl Options {
    /// From the body or, only if that is empty, from the query (T-API-23).
    pub(crate) fn of(call: &Call) -> Result<Options> {
        let asked = if call.body.is_empty() {
            from_query(call)?
        } else {
            let mut asked =
                decode::other(call, "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")?;
            let kind = asked.text(&["kind"]);
            if !kind.is_empty() && kind != "DeleteOptions" {
                return Err(ApiError::bad_request(format!(
                    "decoded object cannot be converted to DeleteOptions: it is a {kind}"
                )));
            }
            // The query's dryRun counts beside a body's.
            let query: Vec<Value> = call.query.all("dryRun").map(Value::from).collect();
            if !query.is_empty() && asked.at(&["dryRun"]).is_none() {
                asked["dryRun"] = query.into();
            }
            asked
        };
        Options::parse(&asked)
    }

    pub(crate) fn parse(asked: &Value) -> Result<Options> {
        let root = At::root(asked);
        let mut errors = Errors::default();
        let policy = root.field("propagationPolicy");
        let orphan = root.field("orphanDependents");
        if policy.is_set() && orphan.is_set() {
            errors.invalid(&policy, "orphanDependents and deletionPropagation cannot be both set");
        }
        let propagation = match policy.str() {
            None => orphan
                .bool()
                .map(|orphan| if orphan { Propagation::Orphan } else { Propagation::Background }),
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(_) => {
                errors.not_supported(&policy, &["Foreground", "Background", "Orphan", "nil"]);
                None
            }
        };
        if !errors.is_empty() {
            return Err(invalid_options("DeleteOptions", errors));
        }
        let dry: Vec<&str> =
            asked["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let text = |path: &[&str]| asked.at(path).and_then(Value::as_str).map(str::to_owned);
        Ok(Options {
            grace: asked["gracePeriodSeconds"].as_i64(),
            uid: text(&["preconditions", "uid"]),
            version: text(&["preconditions", "resourceVersion"]),
            propagation,
            orphan_dependents: orphan.bool(),
            dry_run: dry_run(&dry, "DeleteOptions")?,
        })
    }
}

fn from_query(call: &Call) -> Result<Value> {
    let mut asked = json!({});
    if let Some(grace) = call.query.number("gracePeriodSeconds").map_err(ApiError::bad_request)? {
        asked["gracePeriodSeconds"] = grace.into();
    }
    if let Some(policy) = call.query.text("propagationPolicy") {
        asked["propagationPolicy"] = policy.into();
    }
    if call.query.get("orphanDependents").is_some() {
        asked["orphanDependents"] = call.query.flag("orphanDependents").into();
    }
    let dry: Vec<Value> = call.query.all("dryRun").map(Value::from).collect();
    asked["dryRun"] = dry.into();
    Ok(asked)
}

/// How a deletion ended, and the object as it was last.
pub(crate) enum Outcome {
    /// Marked, or already marked; still there.
    Kept(Made),
    Removed(Made),
}

pub(crate) async fn delete(call: &Call) -> Result<Answer> {
    let options = Options::of(call)?;
    let form = call.form(Offer::Object)?;
    admission::check_delete(call, &call.target.name).await?;
    let outcome = delete_one(call, &call.target.name, &options).await?;
    Ok(shown(call, form, &options, outcome))
}

fn shown(call: &Call, form: Form, options: &Options, outcome: Outcome) -> Answer {
    let code = match &outcome {
        // The one case that is not 200 (T-API-29).
        Outcome::Kept(_) if options.orphan_dependents == Some(false) => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    match outcome {
        Outcome::Removed(made) if !call.kind.rules.returns_deleted => {
            let object = made.value(call);
            let uid = object.text(&["metadata", "uid"]);
            let name = object.text(&["metadata", "name"]);
            let receipt = write::receipt(&call.kind, name, uid);
            answer::bytes(code, form, views::encode(&receipt, form))
        }
        Outcome::Kept(made) | Outcome::Removed(made) => {
            answer::bytes(code, form, made.bytes(call, form, IncludeObject::default()))
        }
    }
}

/// Deletes the object of that name in the call's collection and namespace.
pub(crate) async fn delete_one(call: &Call, name: &str, options: &Options) -> Result<Outcome> {
    let key = store_name(&call.target.namespace_of(&call.kind), name);
    let not_found = || ApiError::not_found(&call.kind, name);
    let mut stored = call.store().get(&call.kind.storage.collection, &key).ok_or_else(not_found)?;
    for _ in 0..ATTEMPTS {
        let old = views::value(&call.kind, &stored);
        check_preconditions(call, name, &old, options)?;
        match plan(call, &old, options) {
            Plan::Nothing => return Ok(Outcome::Kept(Made::Stored(stored))),
            Plan::Remove => match remove(call, name, &stored, &old, options).await? {
                Ok(outcome) => return Ok(outcome),
                Err(newer) => stored = newer,
            },
            Plan::Mark { object, then_remove } => {
                if options.dry_run {
                    let made = Made::Only(object);
                    return Ok(if then_remove {
                        Outcome::Removed(made)
                    } else {
                        Outcome::Kept(made)
                    });
                }
                let expect = Expect::Revision(stored.revision());
                let asked = Asked::now(options.grace);
                match write::write(call, name, expect, Some(&object)).await {
                    Ok(marked) if then_remove => {
                        // The record is on the disk before our removal. Should a write of the node come
                        // first and remove it, or the server die here, it is called unsafe all the
                        // same: by whom is told here, if it lives (`terminations::removing`).
                        terminations::marked(call, &old, &object, asked).await;
                        return second_write(call, name, marked, &object, options).await;
                    }
                    Ok(marked) => {
                        terminations::marked(call, &old, &object, asked).await;
                        call.server.written(&call.kind, name).await;
                        return Ok(Outcome::Kept(Made::Stored(marked)));
                    }
                    Err(Failed::Conflict(Some(newer))) => stored = newer,
                    Err(Failed::Conflict(None)) => return Err(not_found()),
                    Err(Failed::Api(error)) => return Err(error),
                }
            }
        }
    }
    Err(ApiError::modified(&call.kind, name))
}

/// The removal that follows a mark with no grace (T-API-14). Somebody else removing it first is fine.
async fn second_write(
    call: &Call,
    name: &str,
    marked: Arc<Object>,
    object: &Value,
    options: &Options,
) -> Result<Outcome> {
    let mut marked = marked;
    for _ in 0..ATTEMPTS {
        match remove(call, name, &marked, object, options).await? {
            Ok(outcome) => return Ok(outcome),
            Err(newer) if newer.meta().uid != marked.meta().uid => {
                // Another object under the same name, deleted or not: ours is gone.
                return Ok(Outcome::Removed(Made::Stored(marked)));
            }
            Err(newer) => marked = newer,
        }
    }
    Err(ApiError::modified(&call.kind, name))
}

/// Removes what is stored, or answers what is stored instead by now.
async fn remove(
    call: &Call,
    name: &str,
    stored: &Arc<Object>,
    object: &Value,
    options: &Options,
) -> Result<std::result::Result<Outcome, Arc<Object>>> {
    if options.dry_run {
        return Ok(Ok(Outcome::Removed(Made::Stored(stored.clone()))));
    }
    terminations::removing(call, object, Removal::Wish).await;
    match write::write(call, name, Expect::Revision(stored.revision()), None).await {
        Ok(removed) => {
            services::release(call, object).await;
            terminations::removed(call, object).await;
            call.server.written(&call.kind, name).await;
            Ok(Ok(Outcome::Removed(Made::Stored(removed))))
        }
        Err(Failed::Conflict(Some(newer))) => Ok(Err(newer)),
        Err(Failed::Conflict(None)) => {
            terminations::removed(call, object).await;
            Ok(Ok(Outcome::Removed(Made::Stored(stored.clone()))))
        }
        Err(Failed::Api(error)) => Err(error),
    }
}

/// T-API-31, T-API-32. Upstream names the Kind here where other conflicts name the resource.
pub(crate) fn check_preconditions(
    call: &Call,
    name: &str,
    old: &Value,
    options: &Options,
) -> Result<()> {
    let conflict = |why: String| ApiError::Conflict {
        resource: call.kind.kind.clone(),
        group: call.kind.group.clone(),
        name: name.into(),
        why,
    };
    let uid = old.text(&["metadata", "uid"]);
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return Err(conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        )));
    }
    let version = old.text(&["metadata", "resourceVersion"]);
    if let Some(wanted) = options.version.as_deref().filter(|wanted| *wanted != version) {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        )));
    }
    Ok(())
}

enum Plan {
    /// Already on its way, and this delete changes nothing.
    Nothing,
    Mark {
        object: Value,
        then_remove: bool,
    },
    /// No grace and nobody holding it: gone in one write (T-API-13).
    Remove,
}

fn plan(call: &Call, old: &Value, options: &Options) -> Plan {
    let now = clock::now();
    let pending = mark_of(old);
    let graceful = call.kind.kind == "Pod" && call.kind.group.is_empty();
    if graceful && let Some(mark) = pending.filter(|mark| mark.grace_seconds > 0) {
        return match mark.again(now, options.grace) {
            None => Plan::Nothing,
            Some(shorter) => marked(old, shorter, finalizers(call, old, options), false),
        };
    }
    let finalizers = finalizers(call, old, options);
    let held = finalizers.len() + spec_finalizers(old);
    match pending {
        // Marked without grace before: only the finalizers can still matter (T-API-21).
        Some(_) if held == 0 => Plan::Remove,
        Some(mark) if finalizers != current_finalizers(old) => marked(old, mark, finalizers, false),
        Some(_) => Plan::Nothing,
        None if graceful => {
            let mark = Mark::first(now, pod(old).grace(options.grace));
            marked(old, mark, finalizers, true)
        }
        None if held == 0 => Plan::Remove,
        None => marked(old, Mark::first(now, 0), finalizers, true),
    }
}

fn marked(old: &Value, mark: Mark, finalizers: Vec<String>, first: bool) -> Plan {
    let mut object = old.clone();
    let held = finalizers.len() + spec_finalizers(old);
    let metadata = object.object("metadata");
    metadata["deletionTimestamp"] = clock::rfc3339(mark.deletion_timestamp).into();
    metadata["deletionGracePeriodSeconds"] = mark.grace_seconds.into();
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata["finalizers"] = finalizers.into();
    }
    // Only the first delete counts as a change of what is wanted (T-API-12, A-72).
    if first && let Some(generation) = metadata["generation"].as_i64().filter(|g| *g > 0) {
        metadata["generation"] = (generation + 1).into();
    } else if metadata["generation"].is_null() {
        metadata.remove("generation");
    }
    if object["kind"] == "Namespace" {
        // Nobody counts its seconds (T-CTRL-50).
        object.object("metadata").remove("deletionGracePeriodSeconds");
        object.object("status")["phase"] = "Terminating".into();
    }
    Plan::Mark { object, then_remove: may_go(Some(mark.grace_seconds), held) }
}

fn mark_of(object: &Value) -> Option<Mark> {
    let at = object.at(&["metadata", "deletionTimestamp"])?.as_str()?.parse().ok()?;
    let grace = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    Some(Mark { deletion_timestamp: at, grace_seconds: grace })
}

fn pod(object: &Value) -> Pod {
    Pod {
        grace: object.at(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64),
        scheduled: !object.text(&["spec", "nodeName"]).is_empty(),
        finished: matches!(object.text(&["status", "phase"]), "Succeeded" | "Failed"),
    }
}

fn current_finalizers(object: &Value) -> Vec<String> {
    let list = object.at(&["metadata", "finalizers"]).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A Namespace is also held by the finalizers in its spec.
fn spec_finalizers(object: &Value) -> usize {
    if object["kind"] != "Namespace" {
        return 0;
    }
    object.at(&["spec", "finalizers"]).and_then(Value::as_array).map_or(0, Vec::len)
}

/// The finalizers after this delete's propagation policy (T-API-44 to T-API-47).
fn finalizers(call: &Call, object: &Value, options: &Options) -> Vec<String> {
    let mut finalizers = current_finalizers(object);
    if call.kind.storage.collection.as_ref() == "events" {
        return finalizers;
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    let policy = match options.propagation {
        Some(policy) => policy,
        None if has(ORPHAN) => Propagation::Orphan,
        None if has(FOREGROUND) => Propagation::Foreground,
        None if call.kind.rules.orphans_by_default => Propagation::Orphan,
        None => Propagation::Background,
    };
    let wanted = match policy {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    };
    let kept = wanted.is_some_and(has);
    finalizers
        .retain(|name| (name != ORPHAN && name != FOREGROUND) || Some(name.as_str()) == wanted);
    if let (Some(wanted), false) = (wanted, kept) {
        finalizers.push(wanted.to_owned());
    }
    finalizers
}

/// DELETE of a collection: what matches, one after another, answering the list as it was (T-API-48).
pub(crate) async fn delete_collection(call: &Call) -> Result<Answer> {
    let options = Options::of(call)?;
    let filter = Filter::of(call)?;
    let page = list::page(call, &filter).await?;
    for object in &page.objects {
        let (_, name) = object.place();
        admission::check_delete(call, name).await?;
        match delete_one(call, name, &options).await {
            Ok(_) | Err(ApiError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let parts = list::parts(&call.kind, &page);
    Ok(answer::answer(StatusCode::OK, answer::JSON, body::Body::parts(parts)))
}
