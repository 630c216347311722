//! Errors of requests. Each says what the request was for.

use kube::core::Status;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with an error status.
    #[error("failed to {doing}: {}", status.message)]
    Refused { doing: String, status: Box<Status> },
    /// There was no response, or it cannot be read. The server may have done the work nevertheless.
    #[error("failed to {doing}")]
    Unanswered {
        doing: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// There was no response in time. The server may have done the work nevertheless.
    #[error("failed to {doing}: no response within {} s", crate::client::RESPONSE_TIMEOUT.as_secs())]
    Timeout { doing: String },
    /// The request cannot be built: the object has no name or cannot be encoded.
    #[error("failed to {doing}: {why}")]
    Unsendable { doing: String, why: String },
    #[error("cannot use the address or credentials of the API server: {why}")]
    Config { why: String },
}

impl Error {
    pub(crate) fn from_kube(doing: String, error: kube::Error) -> Error {
        match error {
            kube::Error::Api(status) => Error::Refused { doing, status },
            error => Error::Unanswered { doing, source: Box::new(error) },
        }
    }

    /// The status that the server answered with; `None` if there was no response.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Error::Refused { status, .. } => Some(status),
            _ => None,
        }
    }

    /// The server could not be reached, or the connection failed.
    pub(crate) fn is_disconnected(&self) -> bool {
        use kube::Error::{HyperError, ReadEvents, Service};
        let Error::Unanswered { source, .. } = self else { return false };
        matches!(**source, HyperError(_) | Service(_) | ReadEvents(_))
    }

    pub fn is_not_found(&self) -> bool {
        self.has_reason("NotFound")
    }

    /// The server does not serve this kind. It answers that in plain text, without a reason.
    pub fn is_not_served(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404 && status.reason != "NotFound")
    }

    /// The object has changed, or its UID is not the expected one. Not `AlreadyExists`.
    pub fn is_conflict(&self) -> bool {
        self.has_reason("Conflict")
    }

    pub fn is_already_exists(&self) -> bool {
        self.has_reason("AlreadyExists")
    }

    /// The server is busy, or a disruption budget forbids an eviction now.
    pub fn is_too_many_requests(&self) -> bool {
        self.has_reason("TooManyRequests")
    }

    pub fn is_forbidden(&self) -> bool {
        self.has_reason("Forbidden")
    }

    pub fn is_invalid(&self) -> bool {
        self.has_reason("Invalid")
    }

    /// The request itself is wrong; retrying the same request cannot succeed.
    pub fn is_bad_request(&self) -> bool {
        self.has_reason("BadRequest") || self.has_reason("RequestEntityTooLarge")
    }

    /// The namespace is being deleted and accepts no new objects; retrying cannot succeed.
    pub fn is_namespace_terminating(&self) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        details.is_some_and(|details| {
            details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
        })
    }

    fn has_reason(&self, reason: &str) -> bool {
        self.status().is_some_and(|status| status.reason == reason)
    }
}

/// The error and its sources in one line, without sources that only repeat the text before.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str) -> Error {
        let status = Status::failure("no", reason).with_code(code).boxed();
        Error::from_kube("create pods default/web".into(), kube::Error::Api(status))
    }

    #[test]
    fn errors_name_the_failed_request() {
        let message = refused(404, "NotFound").to_string();
        assert_eq!(message, "failed to create pods default/web: no");
    }

    #[test]
    fn conflict_and_already_exists_are_distinguished() {
        assert!(refused(409, "Conflict").is_conflict());
        assert!(!refused(409, "Conflict").is_already_exists());
        assert!(refused(409, "AlreadyExists").is_already_exists());
        assert!(!refused(409, "AlreadyExists").is_conflict());
    }
}
