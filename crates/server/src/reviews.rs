//! Kinds that are asked and answered but never stored: reviews, and `POST bindings`.

use crate::answer::{self, Answer};
use crate::authz::reviews;
use crate::call::{Call, name_of};
use crate::decode;
use crate::error::{ApiError, Result};
use crate::negotiate::Offer;
use crate::subresource::binding;
use crate::views;
use http::StatusCode;

pub(crate) async fn create(call: &Call) -> Result<Answer> {
    if call.kind.kind == "Binding" {
        return bind(call).await;
    }
    let form = call.form(Offer::Plain)?;
    let body = decode::object(call)?;
    let policy = call.server.policy();
    let now = clock::now();
    let lookup =
        |resource: &str, namespace: &str, name: &str| call.server.bound(resource, namespace, name);
    let answered = match call.kind.kind.as_str() {
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
    let answered = answered.map_err(ApiError::Said)?;
    Ok(answer::bytes(StatusCode::CREATED, form, views::encode(&answered, form)))
}

/// The old way of binding: the pod is named in the body.
async fn bind(call: &Call) -> Result<Answer> {
    let body = decode::object(call)?;
    let registry = call.server.registry();
    let pods = registry.resource("", "v1", "pods").ok_or(ApiError::NoSuchPath)?;
    let mut pod = call.beside(pods, name_of(&body));
    pod.body = call.body.clone();
    pod.query = call.query.clone(); // It may be a dry run.
    binding::create(&pod).await
}
