//! Issues service account tokens: `serviceaccounts/{name}/token` and tokens in Secrets.

use super::service_account::{Claims, Kubernetes, Reference, ServiceAccountTokens};
use api::status::Details;
use api::value::ValueExt as _;
use api::{At, Errors, Status};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const GROUP: &str = "authentication.k8s.io";
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// The lifetime that the ServiceAccount admission plugin requests. Upstream: `WarnOnlyBoundTokenExpirationPeriod`.
const EXTENDED_IF_SECONDS: i64 = 3607;
const EXTENDED_TO_SECONDS: i64 = 365 * 24 * 3600;

/// A token in a Secret never expires in practice; it becomes invalid when the Secret is deleted.
const SECRET_TOKEN_SECONDS: i64 = 100 * 365 * 24 * 3600;

/// Finds an object by plural resource, namespace ("" for nodes) and name.
pub type ObjectLookup<'a> = &'a dyn Fn(&str, &str, &str) -> Option<Value>;

/// The service account that a token is for. The caller has checked that it exists.
#[derive(Debug, Clone, Copy)]
pub struct Account<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// Answers a TokenRequest: returns it with defaults, and with the token in its status.
pub fn request(
    body: &Value,
    account: Account,
    tokens: &ServiceAccountTokens,
    now: Timestamp,
    lookup: ObjectLookup,
) -> Result<Value, Box<Status>> {
    let mut answer = body.clone();
    answer["apiVersion"] = format!("{GROUP}/v1").into();
    answer["kind"] = "TokenRequest".into();
    set_name(&mut answer, account, now)?;
    let spec = answer.object("spec");
    if spec.get("audiences").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec["audiences"] = json!(tokens.audiences());
    }
    spec.set_default("expirationSeconds", DEFAULT_SECONDS);
    spec.set_default("boundObjectRef", Value::Null);
    validate(&answer)?;

    let spec = &answer["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    let audiences = strings(&spec["audiences"]);
    let mut kubernetes = Kubernetes {
        namespace: account.namespace.to_owned(),
        serviceaccount: Reference { name: account.name.to_owned(), uid: account.uid.to_owned() },
        ..Kubernetes::default()
    };
    if let Some(reference) = spec.at(&["boundObjectRef"]) {
        bind(&mut kubernetes, reference, lookup)?;
    }
    let mut lifetime = seconds;
    let ours = audiences.iter().all(|audience| tokens.audiences().contains(audience));
    if kubernetes.pod.is_some() && seconds == EXTENDED_IF_SECONDS && ours {
        // Old clients read their token only once. Their token stays valid for a year, and its use is reported.
        kubernetes.warnafter = Some(now.as_second() + seconds);
        lifetime = EXTENDED_TO_SECONDS;
    }
    let claims = claims(kubernetes, audiences, lifetime, tokens, now);
    answer["status"] = json!({
        "token": tokens.sign(&claims),
        "expirationTimestamp": clock::rfc3339(now + SignedDuration::from_secs(seconds)),
    });
    Ok(answer)
}

/// The token that goes into a Secret of type `kubernetes.io/service-account-token`.
pub fn for_secret(
    account: Account,
    secret: Reference,
    tokens: &ServiceAccountTokens,
    now: Timestamp,
) -> String {
    let kubernetes = Kubernetes {
        namespace: account.namespace.to_owned(),
        serviceaccount: Reference { name: account.name.to_owned(), uid: account.uid.to_owned() },
        secret: Some(secret),
        ..Kubernetes::default()
    };
    let audiences = tokens.audiences().to_vec();
    tokens.sign(&claims(kubernetes, audiences, SECRET_TOKEN_SECONDS, tokens, now))
}

fn claims(
    kubernetes: Kubernetes,
    aud: Vec<String>,
    lifetime: i64,
    tokens: &ServiceAccountTokens,
    now: Timestamp,
) -> Claims {
    let Kubernetes { namespace, serviceaccount, .. } = &kubernetes;
    let sub = format!("system:serviceaccount:{namespace}:{}", serviceaccount.name);
    let now = now.as_second();
    Claims {
        aud,
        exp: now + lifetime,
        iat: now,
        iss: tokens.issuer().to_owned(),
        jti: clock::uuid(),
        kubernetes,
        nbf: now,
        sub,
    }
}

fn set_name(answer: &mut Value, account: Account, now: Timestamp) -> Result<(), Box<Status>> {
    let metadata = answer.object("metadata");
    for (field, own) in [("name", account.name), ("namespace", account.namespace)] {
        let given = metadata.text(&[field]);
        if !given.is_empty() && given != own {
            let message = format!(
                "the {field} of the provided object does not match the {field} sent on the request"
            );
            return Err(bad_request(message));
        }
        metadata[field] = own.into();
    }
    metadata["creationTimestamp"] = clock::rfc3339(now).into();
    Ok(())
}

fn validate(request: &Value) -> Result<(), Box<Status>> {
    let root = At::root(request);
    let spec = root.field("spec");
    let seconds = spec.field("expirationSeconds");
    let mut errors = Errors::default();
    match seconds.int() {
        Some(given) if given < MIN_SECONDS => {
            errors.invalid(&seconds, "may not specify a duration less than 10 minutes");
        }
        Some(given) if given > MAX_SECONDS => {
            errors.invalid(&seconds, "may not specify a duration larger than 2^32 seconds");
        }
        _ => {}
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid("TokenRequest", GROUP, "", errors).into())
    }
}

/// Binds the token to a pod (and its node), a secret or a node, which must exist.
fn bind(claims: &mut Kubernetes, wanted: &Value, lookup: ObjectLookup) -> Result<(), Box<Status>> {
    let (api_version, kind) = (wanted.text(&["apiVersion"]), wanted.text(&["kind"]));
    let name = wanted.text(&["name"]);
    let namespace = claims.namespace.clone();
    let (resource, namespace) = match (api_version, kind) {
        ("v1", "Pod") => ("pods", namespace.as_str()),
        ("v1", "Secret") => ("secrets", namespace.as_str()),
        ("v1", "Node") => ("nodes", ""),
        _ => {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let message =
                format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(bad_request(message));
        }
    };
    let object = lookup(resource, namespace, name).ok_or_else(|| not_found(resource, name))?;
    let uid = object.text(&["metadata", "uid"]);
    if kind == "Pod" {
        let account = &claims.serviceaccount.name;
        if object.text(&["spec", "serviceAccountName"]) != account {
            let message = format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different \
                 serviceaccount name."
            );
            return Err(bad_request(message));
        }
        claims.node = node_of(&object, lookup);
    }
    let wanted_uid = wanted.text(&["uid"]);
    if !wanted_uid.is_empty() && wanted_uid != uid {
        return Err(uid_conflict(kind, name, wanted_uid));
    }
    let bound = Some(Reference { name: name.to_owned(), uid: uid.to_owned() });
    match kind {
        "Pod" => claims.pod = bound,
        "Secret" => claims.secret = bound,
        _ => claims.node = bound,
    }
    Ok(())
}

fn node_of(pod: &Value, lookup: ObjectLookup) -> Option<Reference> {
    let name = pod.text(&["spec", "nodeName"]);
    if name.is_empty() {
        return None;
    }
    let node = lookup("nodes", "", name);
    let uid = node.as_ref().map_or("", |node| node.text(&["metadata", "uid"]));
    Some(Reference { name: name.to_owned(), uid: uid.to_owned() })
}

fn not_found(resource: &str, name: &str) -> Box<Status> {
    let details =
        Details { name: name.to_owned(), kind: resource.to_owned(), ..Details::default() };
    let message = format!("{resource} {name:?} not found");
    Status::failure(404, "NotFound", message).with_details(details).into()
}

fn uid_conflict(kind: &str, name: &str, uid: &str) -> Box<Status> {
    let message = format!(
        "Operation cannot be fulfilled on {kind} {name:?}: the UID in the bound object reference \
         ({uid}) does not match the UID in record. The object might have been deleted and then \
         recreated"
    );
    let details = Details { name: name.to_owned(), kind: kind.to_owned(), ..Details::default() };
    Status::failure(409, "Conflict", message).with_details(details).into()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn bad_request(message: impl Into<String>) -> Box<Status> {
    Status::failure(400, "BadRequest", message).into()
}
