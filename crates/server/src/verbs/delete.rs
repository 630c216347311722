//! DELETE of an object and of a collection (T-API-1 to T-API-57, A-78 to A-83).
//!
//! `lifecycle::deletion` decides; this module reads the object, marks it for deletion, and removes it when nothing holds
//! it.

use crate::object::{Object, Stored, store_name};
use crate::request::call::{Call, dry_run, invalid_options};
use crate::request::decode;
use crate::request::negotiate::{Form, Offer};
use crate::response::body;
use crate::response::error::{ApiError, Result};
use crate::response::views::{self, IncludeObject};
use crate::response::{self, ApiResponse};
use crate::terminations::{self, DeleteRequest, Removal};
use crate::verbs::create::Made;
use crate::verbs::list::{self, Filter};
use crate::verbs::removal::{Removed, remove};
use crate::verbs::write::{self, ATTEMPTS, Failed};
use crate::{admission, custom_resources};
use api::value::ValueExt;
use api::{At, Errors};
use http::StatusCode;
use lifecycle::deletion::{Mark, Pod, may_go};
use serde_json::{Value, json};
use std::sync::Arc;
use store::Expect;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// What happens to the objects that this one owns.
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
        let given = if call.body.is_empty() {
            from_query(call)?
        } else {
            let mut given =
                decode::other(call, "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")?;
            let kind = given.text(&["kind"]);
            if !kind.is_empty() && kind != "DeleteOptions" {
                return Err(ApiError::bad_request(format!(
                    "decoded object cannot be converted to DeleteOptions: it is a {kind}"
                )));
            }
            // dryRun in the query counts even if there is a body.
            let query: Vec<Value> = call.query.all("dryRun").map(Value::from).collect();
            if !query.is_empty() && given.at(&["dryRun"]).is_none() {
                given["dryRun"] = query.into();
            }
            given
        };
        Options::parse(&given)
    }

    pub(crate) fn parse(options: &Value) -> Result<Options> {
        let root = At::root(options);
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
            options["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let text = |path: &[&str]| options.at(path).and_then(Value::as_str).map(str::to_owned);
        Ok(Options {
            grace: options["gracePeriodSeconds"].as_i64(),
            uid: text(&["preconditions", "uid"]),
            version: text(&["preconditions", "resourceVersion"]),
            propagation,
            orphan_dependents: orphan.bool(),
            dry_run: dry_run(&dry, "DeleteOptions")?,
        })
    }
}

fn from_query(call: &Call) -> Result<Value> {
    let mut options = json!({});
    if let Some(grace) = call.query.number("gracePeriodSeconds").map_err(ApiError::bad_request)? {
        options["gracePeriodSeconds"] = grace.into();
    }
    if let Some(policy) = call.query.text("propagationPolicy") {
        options["propagationPolicy"] = policy.into();
    }
    if call.query.get("orphanDependents").is_some() {
        options["orphanDependents"] = call.query.flag("orphanDependents").into();
    }
    let dry: Vec<Value> = call.query.all("dryRun").map(Value::from).collect();
    options["dryRun"] = dry.into();
    Ok(options)
}

/// The result of a deletion, with the last state of the object.
pub(crate) enum Outcome {
    /// Marked for deletion, now or before, and not removed.
    Kept(Made),
    Removed(Made),
}

pub(crate) async fn delete(call: &Call) -> Result<ApiResponse> {
    let options = Options::of(call)?;
    let form = call.form(Offer::Object)?;
    admission::check_delete(call, &call.target.name).await?;
    let outcome = delete_one(call, &call.target.name, &options).await?;
    Ok(shown(call, form, &options, outcome))
}

fn shown(call: &Call, form: Form, options: &Options, outcome: Outcome) -> ApiResponse {
    let code = match &outcome {
        // The one case that is not 200 (T-API-29).
        Outcome::Kept(_) if options.orphan_dependents == Some(false) => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    match outcome {
        Outcome::Removed(made) if !rules::of(&call.kind).returns_deleted => {
            let object = made.value(call);
            let uid = object.text(&["metadata", "uid"]);
            let name = object.text(&["metadata", "name"]);
            let receipt = write::receipt(&call.kind, name, uid);
            if form.is_plain() {
                return response::bytes(code, form, receipt.to_bytes().into());
            }
            response::bytes(code, form, views::encode(&receipt.to_json(), form))
        }
        Outcome::Kept(made) | Outcome::Removed(made) => {
            response::bytes(code, form, made.bytes(call, form, IncludeObject::default()))
        }
    }
}

/// Deletes the object of that name in the call's collection and namespace.
pub(crate) async fn delete_one(call: &Call, name: &str, options: &Options) -> Result<Outcome> {
    let key = store_name(&call.target.namespace_of(&call.kind), name);
    let not_found = || ApiError::not_found(&call.kind, name);
    let newest = || call.store().get(&call.kind.storage.collection, &key);
    let mut is_newest = false;
    let mut stored = match newest() {
        Some(stored) => stored,
        // Another server may have created it.
        None => {
            call.server.barrier().await?;
            is_newest = true;
            newest().ok_or_else(not_found)?
        }
    };
    for _ in 0..ATTEMPTS {
        let old = views::value(&call.kind, &stored);
        let met = check_preconditions(call, name, &old, options);
        let plan = plan(call, &old, options);
        if !is_newest && (met.is_err() || matches!(plan, Plan::Nothing)) {
            // There will be no write that could detect that this version is outdated.
            call.server.barrier().await?;
            (stored, is_newest) = (newest().ok_or_else(not_found)?, true);
            continue;
        }
        met?;
        match plan {
            Plan::Nothing => return Ok(Outcome::Kept(Made::Stored(stored))),
            Plan::Remove if options.dry_run => return Ok(Outcome::Removed(Made::Stored(stored))),
            Plan::Remove => match remove(call, name, &stored, &old, Removal::Delete).await? {
                Removed::Now(removed) => return Ok(Outcome::Removed(Made::Stored(removed))),
                Removed::Overtaken(newer) => (stored, is_newest) = (newer, true),
                // Of two deletes at the same time, one removes it.
                Removed::Before => return Err(not_found()),
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
                let request = DeleteRequest::now(options.grace);
                match write::write(call, name, expect, Some(&object)).await {
                    Ok(marked) if then_remove => {
                        // The record is stored before the removal. If the node's write removes the object
                        // first, or the server crashes here, the record still says that the removal is
                        // unsafe (`terminations::removing`).
                        terminations::marked(call, &old, &object, request).await;
                        return remove_marked(call, name, marked, &object).await;
                    }
                    Ok(marked) => {
                        terminations::marked(call, &old, &object, request).await;
                        call.server.after_write(&call.kind, name).await;
                        return Ok(Outcome::Kept(Made::Stored(marked)));
                    }
                    Err(Failed::Conflict(Some(newer))) => (stored, is_newest) = (newer, true),
                    Err(Failed::Conflict(None)) => return Err(not_found()),
                    Err(Failed::Api(error)) => return Err(error),
                }
            }
        }
    }
    Err(ApiError::modified(&call.kind, name))
}

/// The removal that follows a mark without grace period (T-API-14). It also succeeds if another request removes the
/// object first.
async fn remove_marked(
    call: &Call,
    name: &str,
    marked: Arc<Object>,
    object: &Value,
) -> Result<Outcome> {
    let mut marked = marked;
    for _ in 0..ATTEMPTS {
        match remove(call, name, &marked, object, Removal::Delete).await? {
            Removed::Now(removed) => return Ok(Outcome::Removed(Made::Stored(removed))),
            Removed::Before => return Ok(Outcome::Removed(Made::Stored(marked))),
            Removed::Overtaken(newer) if newer.meta().uid != marked.meta().uid => {
                // A new object has the name, so ours is gone.
                return Ok(Outcome::Removed(Made::Stored(marked)));
            }
            Removed::Overtaken(newer) => marked = newer,
        }
    }
    Err(ApiError::modified(&call.kind, name))
}

/// A failed precondition is a conflict (T-API-31, T-API-32). Upstream names the kind here, not the resource as in other
/// conflicts.
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
    /// Marked before, and this delete changes nothing.
    Nothing,
    Mark {
        object: Value,
        then_remove: bool,
    },
    /// No grace period and no finalizers: removed in one write (T-API-13).
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
        // Marked before, without grace period: this delete can only change finalizers (T-API-21).
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
    // Only the first delete increments the generation (T-API-12, A-72).
    if first && let Some(generation) = metadata["generation"].as_i64().filter(|g| *g > 0) {
        metadata["generation"] = (generation + 1).into();
    } else if metadata["generation"].is_null() {
        metadata.remove("generation");
    }
    if object["kind"] == "Namespace" {
        // A Namespace has no grace period (T-CTRL-50).
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
        finished: api::pod::is_terminal_phase(object.text(&["status", "phase"])),
    }
}

fn current_finalizers(object: &Value) -> Vec<String> {
    let list = object.at(&["metadata", "finalizers"]).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The finalizers in the spec of a Namespace also prevent its removal.
fn spec_finalizers(object: &Value) -> usize {
    if object["kind"] != "Namespace" {
        return 0;
    }
    object.at(&["spec", "finalizers"]).and_then(Value::as_array).map_or(0, Vec::len)
}

/// The finalizers after applying the propagation policy (T-API-44 to T-API-47).
fn finalizers(call: &Call, object: &Value, options: &Options) -> Vec<String> {
    let mut finalizers = current_finalizers(object);
    if call.kind.storage.collection.as_ref() == "events" {
        return finalizers;
    }
    // Instances are deleted before their definition.
    let cleanup = custom_resources::finalizer(&call.kind).filter(|_| mark_of(object).is_none());
    if let Some(cleanup) = cleanup.filter(|cleanup| !finalizers.iter().any(|f| f == cleanup)) {
        finalizers.push(cleanup.to_owned());
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    let policy = match options.propagation {
        Some(policy) => policy,
        None if has(ORPHAN) => Propagation::Orphan,
        None if has(FOREGROUND) => Propagation::Foreground,
        None if rules::of(&call.kind).orphans_by_default => Propagation::Orphan,
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

/// DELETE of a collection: deletes the matching objects one after another, and returns the list as it was (T-API-48).
pub(crate) async fn delete_collection(call: &Call) -> Result<ApiResponse> {
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
    Ok(response::build(StatusCode::OK, response::JSON, body::Body::parts(parts)))
}
