//! The chain of admission plugins, in upstream's order.
//!
//! Mutating plugins run before an object is prepared and validated, checking ones after. Each is a
//! function in its own file that looks at the call and the object and either changes it, refuses
//! it, or lets it pass. Webhooks and policies will stand between the two halves.

mod namespace;

use crate::call::Call;
use crate::error::Result;
use serde_json::Value;

pub(crate) use namespace::check_namespace;

/// The mutating half for a new object.
pub(crate) async fn admit_create(call: &Call, object: &mut Value) -> Result<()> {
    let _ = object;
    namespace::check_create(call, object)?;
    Ok(())
}

/// The checking half for a new object; quota is always last.
pub(crate) async fn check_create(call: &Call, object: &Value, dry_run: bool) -> Result<()> {
    let _ = (call, object, dry_run);
    Ok(())
}

pub(crate) async fn admit_update(call: &Call, new: &mut Value, old: &Value) -> Result<()> {
    let _ = (call, new, old);
    Ok(())
}

pub(crate) async fn check_update(
    call: &Call,
    new: &Value,
    old: &Value,
    dry_run: bool,
) -> Result<()> {
    let _ = (call, new, old, dry_run);
    Ok(())
}

pub(crate) async fn check_delete(call: &Call, name: &str) -> Result<()> {
    namespace::check_delete(call, name)
}
