//! The review APIs, which answer questions about rights and identities and store nothing.
//!
//! Each function takes the decoded body and returns it with its `status` filled in, or the error. The response has
//! the code 201.

use super::{Attributes, Decision, Policy};
use crate::authn::{Authenticator, BoundLookup, User};
use api::value::ValueExt as _;
use api::{At, Errors, Status};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

pub fn self_subject_access_review(
    body: &Value,
    caller: &User,
    policy: &Policy,
) -> Result<Value, Box<Status>> {
    let mut errors = Errors::default();
    exactly_one_block(body, &mut errors);
    metadata_is_empty(body, &[], &mut errors);
    refuse_if(errors, "SelfSubjectAccessReview")?;
    Ok(decided(body, "SelfSubjectAccessReview", policy.allows(&attributes(body, caller))))
}

pub fn subject_access_review(body: &Value, policy: &Policy) -> Result<Value, Box<Status>> {
    let mut errors = Errors::default();
    exactly_one_block(body, &mut errors);
    has_subject(body, &mut errors);
    metadata_is_empty(body, &[], &mut errors);
    refuse_if(errors, "SubjectAccessReview")?;
    Ok(decided(body, "SubjectAccessReview", policy.allows(&attributes(body, &subject(body)))))
}

/// `namespace` is the one in the URL.
pub fn local_subject_access_review(
    body: &Value,
    namespace: &str,
    policy: &Policy,
) -> Result<Value, Box<Status>> {
    let mut body = body.clone();
    let metadata = body.object("metadata");
    let given = metadata.text(&["namespace"]);
    if !given.is_empty() && given != namespace {
        let message = "the namespace of the provided object does not match the namespace sent on \
                       the request";
        return Err(bad_request(message));
    }
    metadata["namespace"] = namespace.into();

    let mut errors = Errors::default();
    exactly_one_block(&body, &mut errors);
    has_subject(&body, &mut errors);
    metadata_is_empty(&body, &["namespace"], &mut errors);
    let root = At::root(&body);
    let spec = root.field("spec");
    let resource = spec.field("resourceAttributes");
    if resource.is_set() && resource.field("namespace").text() != namespace {
        let shown = resource.field("namespace").text();
        errors.invalid_value(&resource.field("namespace"), shown, "must match metadata.namespace");
    }
    let path = spec.field("nonResourceAttributes");
    if path.is_set() {
        errors.invalid(&path, "disallowed on this kind of request");
    }
    refuse_if(errors, "LocalSubjectAccessReview")?;
    let decision = policy.allows(&attributes(&body, &subject(&body)));
    Ok(decided(&body, "LocalSubjectAccessReview", decision))
}

pub fn self_subject_rules_review(
    body: &Value,
    caller: &User,
    policy: &Policy,
) -> Result<Value, Box<Status>> {
    let namespace = body.text(&["spec", "namespace"]);
    if namespace.is_empty() {
        return Err(bad_request("no namespace on request"));
    }
    let rules = policy.rules_for(caller, namespace);
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in rules {
        let mut json = rule.to_json();
        if rule.non_resource_urls.is_empty() {
            resources.push(json);
        } else {
            for field in ["apiGroups", "resources", "resourceNames"] {
                json.remove(field);
            }
            paths.push(json);
        }
    }
    let mut status =
        json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    let unresolved = policy.unresolved(caller, namespace);
    if !unresolved.is_empty() {
        status["evaluationError"] = unresolved.join(", ").into();
    }
    Ok(answer(body, AUTHORIZATION, "SelfSubjectRulesReview", status))
}

/// `kubectl auth whoami`
pub fn self_subject_review(
    body: &Value,
    caller: &User,
    now: Timestamp,
) -> Result<Value, Box<Status>> {
    let status = json!({"userInfo": caller.to_json()});
    let mut answer = answer(body, AUTHENTICATION, "SelfSubjectReview", status);
    answer["metadata"] = json!({"creationTimestamp": clock::rfc3339(now)});
    Ok(answer)
}

pub fn token_review(
    body: &Value,
    authenticator: &Authenticator,
    now: Timestamp,
    bound: BoundLookup,
) -> Result<Value, Box<Status>> {
    let token = body.text(&["spec", "token"]);
    if token.is_empty() {
        let message = "token is required for TokenReview in authentication";
        return Err(bad_request(message));
    }
    let audiences = strings(body, &["spec", "audiences"]);
    let status = match authenticator.review_token(token, &audiences, now, bound) {
        Ok((user, audiences)) => {
            json!({"authenticated": true, "user": user.to_json(), "audiences": audiences})
        }
        Err(error) => json!({"user": {}, "error": error.to_string()}),
    };
    Ok(answer(body, AUTHENTICATION, "TokenReview", status))
}

fn answer(body: &Value, group: &str, kind: &str, status: Value) -> Value {
    let mut answer = body.clone();
    answer.map().insert("apiVersion".into(), format!("{group}/v1").into());
    answer["kind"] = kind.into();
    let metadata = answer.object("metadata").map();
    metadata.retain(|_, value| value.as_str() != Some("") && !value.is_null());
    answer["status"] = status;
    answer
}

fn decided(body: &Value, kind: &str, decision: Decision) -> Value {
    let mut status = Map::new();
    status.insert("allowed".into(), decision.allowed.into());
    if !decision.reason.is_empty() {
        status.insert("reason".into(), decision.reason.into());
    }
    answer(body, AUTHORIZATION, kind, Value::Object(status))
}

fn attributes<'a>(body: &'a Value, user: &'a User) -> Attributes<'a> {
    let spec = |block: &str, field: &str| body.text(&["spec", block, field]);
    if body.at(&["spec", "resourceAttributes"]).is_none() {
        let of = |field| spec("nonResourceAttributes", field);
        // `Attributes` with an empty path would be about a resource.
        let path = match of("path") {
            "" => "/",
            path => path,
        };
        return Attributes::path(user, of("verb"), path);
    }
    let of = |field| spec("resourceAttributes", field);
    Attributes {
        user,
        verb: of("verb"),
        group: of("group"),
        version: of("version"),
        resource: of("resource"),
        subresource: of("subresource"),
        namespace: of("namespace"),
        name: of("name"),
        selector: body.text(&["spec", "resourceAttributes", "fieldSelector", "rawSelector"]),
        path: "",
    }
}

/// The user that a review asks about, exactly as given: no group is added.
fn subject(body: &Value) -> User {
    let extra = body.at(&["spec", "extra"]).and_then(Value::as_object);
    User {
        name: body.text(&["spec", "user"]).to_owned(),
        uid: body.text(&["spec", "uid"]).to_owned(),
        groups: strings(body, &["spec", "groups"]),
        extra: extra
            .into_iter()
            .flat_map(|extra| extra.iter())
            .map(|(key, values)| (key.to_lowercase(), strings(values, &[])))
            .collect(),
    }
}

fn exactly_one_block(body: &Value, errors: &mut Errors) {
    let root = At::root(body);
    let spec = root.field("spec");
    let (resource, path) = (spec.field("resourceAttributes"), spec.field("nonResourceAttributes"));
    match (resource.is_set(), path.is_set()) {
        (true, true) => {
            errors.invalid(&path, "cannot be specified in combination with resourceAttributes");
        }
        (false, false) => {
            let detail =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.invalid_value(&resource, Value::Null, detail);
        }
        _ => {}
    }
    for kind in ["fieldSelector", "labelSelector"] {
        check_selector(&resource.field(kind), errors);
    }
}

fn check_selector(selector: &At, errors: &mut Errors) {
    let (raw, listed) = (selector.field("rawSelector"), selector.field("requirements"));
    if !selector.is_set() {
        return;
    }
    match (raw.text().is_empty(), listed.is_empty()) {
        (false, false) => {
            errors.invalid(&raw, "may not specified at the same time as requirements")
        }
        (true, true) => {
            let place = selector.path();
            let detail =
                format!("when {place} is specified, requirements or rawSelector is required");
            errors.required(&listed, &detail);
        }
        _ => {}
    }
    for requirement in listed.items() {
        let key = requirement.field("key");
        if key.text().is_empty() {
            errors.required(&key, "must be specified");
        }
    }
}

fn has_subject(body: &Value, errors: &mut Errors) {
    let root = At::root(body);
    let spec = root.field("spec");
    if spec.field("user").text().is_empty() && spec.field("groups").is_empty() {
        let detail = "at least one of user or group must be specified";
        errors.invalid_value(&spec.field("user"), "", detail);
    }
}

/// Reviews are not stored, so they have no name.
fn metadata_is_empty(body: &Value, except: &[&str], errors: &mut Errors) {
    let root = At::root(body);
    let metadata = root.field("metadata");
    let set =
        metadata.value().and_then(Value::as_object).into_iter().flatten().any(|(field, value)| {
            let empty = match value {
                Value::Null => true,
                Value::String(text) => text.is_empty(),
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                _ => false,
            };
            !empty && field != "managedFields" && !except.contains(&field.as_str())
        });
    if set {
        errors.invalid(&metadata, "must be empty");
    }
}

fn refuse_if(errors: Errors, kind: &str) -> Result<(), Box<Status>> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid(kind, AUTHORIZATION, "", errors).into())
    }
}

fn strings(value: &Value, path: &[&str]) -> Vec<String> {
    let list = value.at(path).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn bad_request(message: impl Into<String>) -> Box<Status> {
    Status::failure(400, "BadRequest", message).into()
}
