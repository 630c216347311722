//! The system call filter of a container, as an OCI seccomp profile.

use crate::{Error, Result, Seccomp, Security};
use serde_json::Value;

/// None: no filter. A privileged container never has one (N-127).
pub(crate) fn profile(security: &Security) -> Result<Option<Value>> {
    match &security.seccomp {
        _ if security.privileged => Ok(None),
        Seccomp::Unconfined => Ok(None),
        Seccomp::RuntimeDefault => Ok(None),
        Seccomp::Localhost(path) => {
            let text = std::fs::read(path).map_err(Error::io("read the seccomp profile", path))?;
            serde_json::from_slice(&text).map(Some).map_err(|error| {
                Error::Refused(format!("cannot read the seccomp profile {}: {error}", path.display()))
            })
        }
    }
}
