//! Kinds that are answered but never stored: reviews, and `POST bindings`.

use crate::request::call::{Call, name_of};
use crate::request::decode;
use crate::request::negotiate::Offer;
use crate::response::error::{ApiError, Result};
use crate::response::views;
use crate::response::{self, ApiResponse};
use crate::subresource::binding;
use access::authz::reviews;
use http::StatusCode;

pub(crate) async fn create(call: &Call) -> Result<ApiResponse> {
    if call.kind.kind == "Binding" {
        return bind(call).await;
    }
    let form = call.form(Offer::Plain)?;
    let body = decode::object(call)?;
    let policy = call.server.policy();
    let now = clock::now();
    let lookup =
        |resource: &str, namespace: &str, name: &str| call.server.bound(resource, namespace, name);
    let review = match call.kind.kind.as_str() {
        "SelfSubjectAccessReview" => {
            reviews::self_subject_access_review(&body, &call.user, &policy)
        }
        "SubjectAccessReview" => reviews::subject_access_review(&body, &policy),
        "LocalSubjectAccessReview" => {
            reviews::local_subject_access_review(&body, &call.target.namespace, &policy)
        }
        "SelfSubjectRulesReview" => reviews::self_subject_rules_review(&body, &call.user, &policy),
        "SelfSubjectReview" => reviews::self_subject_review(&body, &call.user, now),
        "TokenReview" => reviews::token_review(&body, call.server.authenticator(), now, &lookup),
        _ => return Err(ApiError::MethodNotAllowed),
    };
    let review = review.map_err(ApiError::Status)?;
    Ok(response::bytes(StatusCode::CREATED, form, views::encode(&review, form)))
}

/// The legacy form of a binding: the body names the pod.
async fn bind(call: &Call) -> Result<ApiResponse> {
    let body = decode::object(call)?;
    let registry = call.server.registry();
    let pods = registry.resource("", "v1", "pods").ok_or(ApiError::NoSuchPath)?;
    let mut pod = call.on_other(pods, name_of(&body));
    pod.body = call.body.clone();
    pod.query = call.query.clone(); // It may be a dry run.
    binding::create(&pod).await
}
