//! Why an apply was rejected, with upstream's messages.

use super::managers::{Entry, Operation};
use crate::status::{Cause, Details, Status};

/// Why an applied document was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 400: the document cannot be applied.
    #[error("{0}")]
    BadRequest(String),
    /// 500 (upstream's code): the document does not fit its schema.
    #[error("{0}")]
    Schema(String),
    /// 409: other managers own fields that it would change.
    #[error("{}", message(.0))]
    Conflicts(Vec<Conflict>),
}

/// A field that another manager owns with another value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// `"one"`, or `"kubectl-edit" using apps/v1`
    pub manager: String,
    /// `.spec.containers[name="app"].image`
    pub path: String,
}

impl ApplyError {
    pub fn status(&self) -> Status {
        match self {
            ApplyError::BadRequest(why) => Status::failure(400, "BadRequest", why.clone()),
            // Upstream sets no reason for errors that are not API errors.
            ApplyError::Schema(why) => Status::failure(500, "", why.clone()),
            ApplyError::Conflicts(conflicts) => {
                let causes = conflicts.iter().map(|conflict| Cause {
                    reason: "FieldManagerConflict".into(),
                    message: format!("conflict with {}", conflict.manager),
                    field: conflict.path.clone(),
                });
                Status::failure(409, "Conflict", self.to_string())
                    .with_details(Details { causes: causes.collect(), ..Details::default() })
            }
        }
    }
}

/// How the owner of a field is named in a conflict.
pub(super) fn name(entry: &Entry) -> String {
    let mut name = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        name.push_str(&format!(" with subresource {:?}", entry.subresource));
    }
    if entry.operation == Operation::Update {
        name.push_str(&format!(" using {}", entry.api_version));
    }
    name
}

fn message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            only.manager, only.path
        );
    }
    let mut lines = Vec::new();
    for same in conflicts.chunk_by(|a, b| a.manager == b.manager) {
        lines.push(format!("conflicts with {}:", same[0].manager));
        lines.extend(same.iter().map(|conflict| format!("- {}", conflict.path)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}
