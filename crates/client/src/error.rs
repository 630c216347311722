//! What can go wrong when the API is asked for something, and what we were asking.

use kube::core::Status;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered, and the answer was no.
    #[error("failed to {doing}: {}", status.message)]
    Refused { doing: String, status: Box<Status> },
    /// There was no answer, or one that cannot be read. It may have been done nevertheless.
    #[error("failed to {doing}")]
    Unanswered {
        doing: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// As `Unanswered`, but we stopped waiting.
    #[error("failed to {doing}: no answer in {} s", crate::client::ANSWER_MAX.as_secs())]
    Timeout { doing: String },
    /// The object at hand cannot be sent: it has no name, or does not serialise.
    #[error("failed to {doing}: {why}")]
    Unsendable { doing: String, why: String },
    #[error("the server's address or credentials cannot be used: {why}")]
    Config { why: String },
}

impl Error {
    pub(crate) fn from_kube(doing: String, error: kube::Error) -> Error {
        match error {
            kube::Error::Api(status) => Error::Refused { doing, status },
            error => Error::Unanswered { doing, source: Box::new(error) },
        }
    }

    /// What the server said, if it was the server that said no.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Error::Refused { status, .. } => Some(status),
            _ => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.has_reason("NotFound")
    }

    /// Somebody else was faster: the version is old, or the uid is another's. Not `AlreadyExists`.
    pub fn is_conflict(&self) -> bool {
        self.has_reason("Conflict")
    }

    pub fn is_already_exists(&self) -> bool {
        self.has_reason("AlreadyExists")
    }

    /// Not now: the server is busy, or a disruption budget forbids an eviction.
    pub fn is_too_many_requests(&self) -> bool {
        self.has_reason("TooManyRequests")
    }

    pub fn is_forbidden(&self) -> bool {
        self.has_reason("Forbidden")
    }

    pub fn is_invalid(&self) -> bool {
        self.has_reason("Invalid")
    }

    /// The request itself is wrong: it will be refused as long as it stays as it is.
    pub fn is_bad_request(&self) -> bool {
        self.has_reason("BadRequest") || self.has_reason("RequestEntityTooLarge")
    }

    /// The namespace goes away and takes no new objects. Trying again is of no use.
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

/// The error and what it came from, in one line. Some sources repeat what was said already.
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
    fn an_error_says_what_we_were_doing() {
        let said = refused(404, "NotFound").to_string();
        assert_eq!(said, "failed to create pods default/web: no");
    }

    #[test]
    fn the_two_meanings_of_409_are_told_apart() {
        assert!(refused(409, "Conflict").is_conflict());
        assert!(!refused(409, "Conflict").is_already_exists());
        assert!(refused(409, "AlreadyExists").is_already_exists());
        assert!(!refused(409, "AlreadyExists").is_conflict());
    }
}
