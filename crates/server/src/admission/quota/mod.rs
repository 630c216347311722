//! ResourceQuota: limits the total use of a namespace. Always the last plugin.
//!
//! Usage is reserved in the quota's status by a conditional write before the object is stored, so two creations at the
//! same time cannot both get the last unit, not even through different servers. If the object is not stored after all,
//! the quota controller corrects the usage when it counts again.

use super::refuse;
use crate::object::{Object, Stored, store_name};
use crate::request::call::{Call, name_of};
use crate::response::error::{ApiError, Result};
use crate::verbs::write::{self, Failed};
use api::Kind;
use api::pod::json::amounts;
use api::pod::resources::Amounts;
use api::quota::{scope, usage};
use api::value::ValueExt;
use serde_json::Value;
use std::sync::Arc;
use store::Expect;

/// Attempts to write a quota. Each time one of the competing requests succeeds, and there are no more requests in flight
/// than this.
const ATTEMPTS: usize = 512;

pub(super) async fn check(
    call: &Call,
    object: &Value,
    old: Option<&Value>,
    dry_run: bool,
) -> Result<()> {
    if !is_counted(call, object, old) {
        return Ok(());
    }
    let prefix = format!("{}/", call.target.namespace);
    let (_, quotas) = call.store().list("resourcequotas", &prefix, None);
    if quotas.is_empty() {
        return Ok(());
    }
    let refuse = |why: String| refuse(call, object, why);
    let mut matching = Vec::new();
    for stored in quotas {
        let quota = stored.value();
        if applies(&call.kind, &quota, object).map_err(refuse)? {
            let growth = growth(&call.kind, &quota, object, old).map_err(refuse)?;
            with_growth(&quota, &growth).map_err(refuse)?;
            matching.push((stored, growth));
        }
    }
    if dry_run || (old.is_none() && exists(call, object)) {
        return Ok(());
    }
    let mut reserved = Vec::new();
    for (stored, growth) in matching {
        match reserve(call, stored.clone(), &growth).await? {
            Ok(()) => reserved.push((stored, growth)),
            Err(why) => {
                for (stored, growth) in reserved {
                    release(call, stored, &growth).await;
                }
                return Err(refuse(why));
            }
        }
    }
    Ok(())
}

/// By how much the usage grows: the whole object if the quota did not count it before, else what the update adds.
fn growth(
    kind: &Kind,
    quota: &Value,
    object: &Value,
    old: Option<&Value>,
) -> std::result::Result<Amounts, String> {
    let counted_before = old.filter(|old| scope::matches(kind.into(), quota, old));
    usage::growth(kind.into(), object, counted_before)
}

/// Creations of namespaced objects, and updates that can increase usage or move the object to another quota.
fn is_counted(call: &Call, object: &Value, old: Option<&Value>) -> bool {
    let kind = &call.kind;
    let core = |plural: &str| kind.group.is_empty() && kind.plural == plural;
    let subresource = call.target.subresource.as_str();
    if let Some(old) = old {
        return match subresource {
            "" if core("pods") => scope::is_terminating(object) != scope::is_terminating(old),
            "" => core("services") || core("persistentvolumeclaims"),
            "resize" => core("pods"),
            _ => false,
        };
    }
    // Events expire by themselves.
    kind.namespaced && subresource.is_empty() && kind.plural != "events"
}

/// Whether the name is taken. Then the write will fail, and nothing needs to be reserved.
fn exists(call: &Call, object: &Value) -> bool {
    let key = store_name(&call.target.namespace_of(&call.kind), name_of(object));
    call.store().get(&call.kind.storage.collection, &key).is_some()
}

/// Whether this quota counts this object. An error if it does and the object does not specify the amount.
fn applies(kind: &Kind, quota: &Value, object: &Value) -> std::result::Result<bool, String> {
    let hard = amounts(quota.at(&["status", "hard"]));
    let counted: Vec<&str> =
        hard.keys().map(String::as_str).filter(|name| usage::counts(kind.into(), name)).collect();
    if counted.is_empty() || !scope::matches(kind.into(), quota, object) {
        return Ok(false);
    }
    let name = name_of(quota);
    if (kind.group.is_empty() && kind.plural == "pods")
        && let Some(missing) = usage::unspecified(&counted, object)
    {
        return Err(format!("failed quota: {name}: must specify {missing}"));
    }
    let used = quota.at(&["status", "used"]);
    if counted.iter().any(|counted| used.and_then(|used| used.get(*counted)).is_none()) {
        return Err(format!("status unknown for quota: {name}, resources: {}", counted.join(",")));
    }
    Ok(true)
}

/// The new usage, or why it exceeds the quota.
fn with_growth(quota: &Value, growth: &Amounts) -> std::result::Result<Amounts, String> {
    let hard = amounts(quota.at(&["status", "hard"]));
    let used = amounts(quota.at(&["status", "used"]));
    let mut grown = Amounts::new();
    let mut exceeded = Vec::new();
    for (name, more) in growth {
        let Some(most) = hard.get(name) else { continue };
        let before = used.get(name).copied().unwrap_or(api::quantity::Quantity::ZERO);
        let after = before + *more;
        if after > *most {
            exceeded.push((name, more, before, most));
        }
        grown.insert(name.clone(), after);
    }
    if exceeded.is_empty() {
        return Ok(grown);
    }
    let join = |parts: Vec<String>| parts.join(",");
    Err(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        name_of(quota),
        join(exceeded.iter().map(|(name, more, ..)| format!("{name}={more}")).collect()),
        join(exceeded.iter().map(|(name, _, used, _)| format!("{name}={used}")).collect()),
        join(exceeded.iter().map(|(name, .., most)| format!("{name}={most}")).collect()),
    ))
}

/// Writes the growth into the quota's status. The inner error says that the quota is exceeded.
async fn reserve(
    call: &Call,
    stored: Arc<Object>,
    growth: &Amounts,
) -> Result<std::result::Result<(), String>> {
    change_used(call, stored, |quota| with_growth(quota, growth)).await
}

/// Releases a reservation in one quota after another quota was exceeded.
async fn release(call: &Call, stored: Arc<Object>, growth: &Amounts) {
    let less = |quota: &Value| {
        let used = amounts(quota.at(&["status", "used"]));
        let less = growth.iter().filter_map(|(name, amount)| {
            let left = *used.get(name)? - *amount;
            Some((name.clone(), left))
        });
        Ok(less.filter(|(_, left)| !left.is_negative()).collect())
    };
    // If this fails, the controller's next count corrects it.
    let _ = change_used(call, stored, less).await;
}

async fn change_used(
    call: &Call,
    stored: Arc<Object>,
    change: impl Fn(&Value) -> std::result::Result<Amounts, String>,
) -> Result<std::result::Result<(), String>> {
    let kind = call.server.built_in().resource("", "v1", "resourcequotas").cloned();
    let kind = kind.ok_or_else(|| ApiError::Internal("ResourceQuota is not served".into()))?;
    let (_, name) = stored.place();
    let beside = call.on_other(&kind, name);
    let mut current = stored.clone();
    for _ in 0..ATTEMPTS {
        let mut quota = current.value();
        let changed = match change(&quota) {
            Ok(changed) if changed.is_empty() => return Ok(Ok(())),
            Ok(changed) => changed,
            Err(why) => return Ok(Err(why)),
        };
        let used = quota.object("status").object("used");
        for (name, amount) in changed {
            used[name] = amount.to_string().into();
        }
        let expect = Expect::Revision(current.revision());
        match write::write(&beside, name, expect, Some(&quota)).await {
            Ok(_) => return Ok(Ok(())),
            // A deleted quota limits nothing.
            Err(Failed::Conflict(None)) => return Ok(Ok(())),
            Err(Failed::Conflict(Some(newer))) => current = newer,
            Err(Failed::Api(error)) => return Err(error),
        }
    }
    Err(ApiError::modified(&kind, name))
}

#[cfg(test)]
mod tests;
