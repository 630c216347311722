//! Why a request failed, and how that becomes a `metav1.Status`.

use api::status::{Cause, Details, Status};
use api::{Errors, Kind};

/// One variant per `reason` that clients branch on.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    BadRequest(String),
    #[error("Unauthorized")]
    Unauthorized,
    #[error("{message}")]
    Forbidden { resource: String, group: String, name: String, message: String, causes: Vec<Cause> },
    #[error("{resource} \"{name}\" not found")]
    NotFound { resource: String, group: String, name: String },
    /// The path does not exist: plain text, as upstream responds.
    #[error("404 page not found")]
    NoSuchPath,
    /// Too many requests at once: also plain text.
    #[error("Too many requests, please try again later.")]
    Overloaded,
    #[error("the server does not allow this method on the requested resource")]
    MethodNotAllowed,
    #[error("406: Not Acceptable\n\nAvailable representations: {0}")]
    NotAcceptable(&'static str),
    #[error("{prefix}{resource} \"{name}\" already exists")]
    AlreadyExists { resource: String, group: String, name: String, prefix: &'static str },
    #[error("Operation cannot be fulfilled on {resource} \"{name}\": {why}")]
    Conflict { resource: String, group: String, name: String, why: String },
    #[error("{message}")]
    Expired { message: String, continue_token: String },
    #[error("Request entity too large: limit is {0}")]
    TooLarge(usize),
    #[error("the body of the request was in an unknown format - accepted media types include: {0}")]
    UnsupportedMediaType(&'static str),
    #[error("{} is invalid", .0.message)]
    Invalid(Box<Status>),
    #[error("Internal error occurred: {0}")]
    Internal(String),
    #[error("{message}")]
    Timeout { message: String, causes: Vec<Cause>, retry_after: u32 },
    /// A complete Status from another module.
    #[error("{}", .0.message)]
    Status(Box<Status>),
}

pub(crate) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        ApiError::BadRequest(message.into())
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        ApiError::NotFound {
            resource: kind.resource_group(),
            group: kind.group.clone(),
            name: name.into(),
        }
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: impl Into<String>) -> Self {
        ApiError::Conflict {
            resource: kind.resource_group(),
            group: kind.group.clone(),
            name: name.into(),
            why: why.into(),
        }
    }

    /// The object has changed since the client read it.
    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, errors: Errors) -> Self {
        ApiError::Invalid(Box::new(Status::invalid(&kind.kind, &kind.group, name, errors)))
    }

    /// A denial by admission: `pods "x" is forbidden: why`.
    pub(crate) fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        ApiError::Forbidden {
            resource: kind.plural.clone(),
            group: kind.group.clone(),
            name: name.into(),
            message: format!("{} \"{name}\" is forbidden: {why}", kind.resource_group()),
            causes: Vec::new(),
        }
    }

    pub(crate) fn store(doing: &str, error: &dyn std::error::Error) -> Self {
        let mut message = format!("failed {doing}: {error}");
        let mut source = error.source();
        while let Some(error) = source {
            message.push_str(": ");
            message.push_str(&error.to_string());
            source = error.source();
        }
        ApiError::Internal(message)
    }

    /// The one place where an error becomes a Status. Code and reason are contract.
    pub(crate) fn status(&self) -> Status {
        let message = self.to_string();
        let of = |code, reason| Status::failure(code, reason, message.clone());
        let object = |resource: &str, group: &str, name: &str| Details {
            // The message says `deployments.apps`, the details have the group apart.
            kind: resource.split('.').next().unwrap_or(resource).into(),
            group: group.into(),
            name: name.into(),
            ..Details::default()
        };
        match self {
            ApiError::BadRequest(_) => of(400, "BadRequest"),
            ApiError::Unauthorized => of(401, "Unauthorized"),
            ApiError::Forbidden { resource, group, name, causes, .. } => of(403, "Forbidden")
                .with_details(Details { causes: causes.clone(), ..object(resource, group, name) }),
            ApiError::NotFound { resource, group, name } => {
                of(404, "NotFound").with_details(object(resource, group, name))
            }
            ApiError::NoSuchPath => of(404, "NotFound"),
            ApiError::Overloaded => of(429, "TooManyRequests"),
            ApiError::MethodNotAllowed => {
                of(405, "MethodNotAllowed").with_details(Details::default())
            }
            ApiError::NotAcceptable(_) => of(406, "NotAcceptable").with_details(Details::default()),
            ApiError::AlreadyExists { resource, group, name, .. } => {
                of(409, "AlreadyExists").with_details(object(resource, group, name))
            }
            ApiError::Conflict { resource, group, name, .. } => {
                of(409, "Conflict").with_details(object(resource, group, name))
            }
            ApiError::Expired { continue_token, .. } => {
                let mut status = of(410, "Expired");
                status.metadata.continue_token.clone_from(continue_token);
                status
            }
            ApiError::TooLarge(_) => of(413, "RequestEntityTooLarge"),
            ApiError::UnsupportedMediaType(_) => of(415, "UnsupportedMediaType"),
            ApiError::Invalid(status) | ApiError::Status(status) => (**status).clone(),
            ApiError::Internal(why) => of(500, "InternalError").with_details(Details {
                causes: vec![Cause { message: why.clone(), ..Cause::default() }],
                ..Details::default()
            }),
            ApiError::Timeout { causes, retry_after, .. } => {
                of(504, "Timeout").with_details(Details {
                    causes: causes.clone(),
                    retry_after_seconds: *retry_after,
                    ..Details::default()
                })
            }
        }
    }
}
