//! Prevents privilege escalation: passes writes of roles and bindings to `authz::escalation`.

use crate::request::call::Call;
use crate::response::error::{ApiError, Result};
use access::authz;
use serde_json::Value;

pub(super) fn check(call: &Call, new: &Value, old: Option<&Value>) -> Result<()> {
    if call.kind.group != "rbac.authorization.k8s.io" {
        return Ok(());
    }
    let policy = call.server.policy();
    let allowed = match call.kind.plural.as_str() {
        "roles" | "clusterroles" => authz::may_write_role(&policy, &call.user, new, old),
        _ => authz::may_write_binding(&policy, &call.user, new, old),
    };
    allowed.map_err(ApiError::Status)
}
