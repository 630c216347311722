//! Calls the function for each verb, subresource or path, after authentication and authorization.

use crate::documents::discovery;
use crate::request::Query;
use crate::request::call::Call;
use crate::request::negotiate::{self, Offer, View};
use crate::response::error::{ApiError, Result};
use crate::response::views::{self, IncludeObject};
use crate::response::warnings;
use crate::response::{self, ApiResponse, JSON};
use crate::server::Server;
use crate::subresource::{binding, eviction, finalize, log, proxy, scale, stream, token};
use crate::verbs::write::Endpoint;
use crate::verbs::{create, delete, get, list, patch, update, watch};
use crate::{reviews, service_allocation, terminations, usage};
use api::kind::Verbs;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

/// Long-running requests have no deadline and do not count as requests in flight.
pub(crate) fn is_long_running(verb: &str, subresource: &str) -> bool {
    verb == "watch" || matches!(subresource, "attach" | "exec" | "proxy" | "log" | "portforward")
}

/// Requests that change nothing have their own seats in flow control.
pub(crate) fn is_read(verb: &str) -> bool {
    matches!(verb, "get" | "list" | "watch")
}

/// Requests that write one object, in one or two steps.
pub(crate) fn writes_one(verb: &str) -> bool {
    matches!(verb, "create" | "update" | "patch" | "delete")
}

/// Requests that continue after their deadline: a delete that stops between its two steps would leave an object that
/// nobody removes (T-API-14, T-API-15).
pub(crate) fn finishes(verb: &str) -> bool {
    writes_one(verb) || verb == "deletecollection"
}

/// Paths that need no authentication.
pub(crate) fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/readyz")
}

/// A request on a resource.
pub(crate) async fn resource(call: &Call, method: &Method, verb: &str) -> Result<ApiResponse> {
    warnings::deprecated(call);
    if !call.target.subresource.is_empty() {
        return subresource(call, method).await;
    }
    if call.kind.verbs == Verbs::Create {
        return match verb {
            "create" if call.target.name.is_empty() => reviews::create(call).await,
            _ => Err(ApiError::MethodNotAllowed),
        };
    }
    if call.kind.verbs == Verbs::GetAndList {
        return match call.kind.group.as_str() {
            usage::GROUP => usage::answer(call, verb).await,
            _ => component_status(call, verb),
        };
    }
    if call.kind.verbs == Verbs::ReadOnly && !matches!(verb, "get" | "list" | "watch") {
        return Err(read_only(call));
    }
    let named = !call.target.name.is_empty();
    let all_namespaces = call.kind.namespaced && call.target.namespace.is_empty();
    match verb {
        "get" => get::get(call).await,
        "list" => list::list(call).await,
        "watch" => watch::watch(call).await,
        "create" if !named && !all_namespaces => create::create(call).await,
        "update" if named => update::update(call, Endpoint::Main).await,
        "patch" if named => patch::patch(call, Endpoint::Main).await,
        "delete" => delete::delete(call).await,
        "deletecollection" if call.kind.verbs == Verbs::All && !all_namespaces => {
            delete::delete_collection(call).await
        }
        _ => Err(ApiError::MethodNotAllowed),
    }
}

/// Not even administrators may write these.
fn read_only(call: &Call) -> ApiError {
    let what = call.kind.resource_group();
    ApiError::Status(Box::new(api::Status::failure(
        405,
        "MethodNotAllowed",
        format!(
            "{what} are read-only: the components that terminate pods write them, and they are deleted automatically"
        ),
    )))
}

async fn subresource(call: &Call, method: &Method) -> Result<ApiResponse> {
    let name = call.target.subresource.as_str();
    if !call.kind.has_subresource(name) {
        return Err(ApiError::NoSuchPath);
    }
    let is = |wanted: &Method| method == wanted;
    let read = is(&Method::GET) || is(&Method::HEAD);
    match name {
        "status" | "approval" | "ephemeralcontainers" | "resize" if read => get::get(call).await,
        "status" if is(&Method::PUT) => update::update(call, Endpoint::Status).await,
        "status" if is(&Method::PATCH) => patch::patch(call, Endpoint::Status).await,
        "approval" | "ephemeralcontainers" | "resize" if is(&Method::PUT) => {
            update::update(call, Endpoint::named(name)).await
        }
        "approval" | "ephemeralcontainers" | "resize" if is(&Method::PATCH) => {
            patch::patch(call, Endpoint::named(name)).await
        }
        "scale" if read || is(&Method::PUT) || is(&Method::PATCH) => {
            scale::scale(call, method).await
        }
        "finalize" if is(&Method::PUT) => finalize::update(call).await,
        "binding" if is(&Method::POST) => binding::create(call).await,
        "eviction" if is(&Method::POST) => eviction::create(call).await,
        "token" if is(&Method::POST) => token::create(call).await,
        "steps" if is(&Method::POST) => terminations::posted_steps::create(call).await,
        "log" if read => log::read(call).await,
        "exec" | "attach" | "portforward" if is(&Method::GET) || is(&Method::POST) => {
            stream::open(call).await
        }
        "proxy" => proxy::pass(call).await,
        _ => Err(ApiError::MethodNotAllowed),
    }
}

/// The deprecated view of the control plane's health.
fn component_status(call: &Call, verb: &str) -> Result<ApiResponse> {
    call.warn("v1 ComponentStatus is deprecated in v1.19+");
    let component = |name: &str| {
        json!({
            "metadata": { "name": name },
            "conditions": [{ "type": "Healthy", "status": "True", "message": "ok" }],
        })
    };
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    match verb {
        "list" => {
            let form = call.form(Offer::List)?;
            let items = vec![component("etcd-0")];
            let shown = views::list(&call.kind, items, json!({}), form, include);
            Ok(response::bytes(StatusCode::OK, form, views::encode(&shown, form)))
        }
        "get" if call.target.name == "etcd-0" => {
            let form = call.form(Offer::Object)?;
            let item = views::convert(&call.kind, &component("etcd-0"));
            let bytes = views::single(&call.kind, item, form, include);
            Ok(response::bytes(StatusCode::OK, form, bytes))
        }
        "get" => Err(ApiError::not_found(&call.kind, &call.target.name)),
        _ => Err(ApiError::MethodNotAllowed),
    }
}

/// A request that is not about a resource.
pub(crate) async fn path(
    server: &Server,
    method: &Method,
    path: &str,
    query: &Query,
    headers: &HeaderMap,
) -> Result<ApiResponse> {
    let read = matches!(*method, Method::GET | Method::HEAD);
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    if let [check, ..] = segments.as_slice()
        && matches!(*check, "healthz" | "livez" | "readyz")
    {
        return health(server, path, query);
    }
    let registry = server.registry();
    let found = match segments.as_slice() {
        [] => Some(root(server)),
        ["version"] => Some(discovery::version()),
        ["api"] => return groups(server, headers, true),
        ["apis"] => return groups(server, headers, false),
        ["api", version] => discovery::resource_list(&registry, "", version),
        ["apis", group] => discovery::group(&registry, group),
        ["apis", group, version] => discovery::resource_list(&registry, group, version),
        ["openapi", rest @ ..] => {
            return server.documents().open_api(&registry, rest, query, headers);
        }
        ["metrics"] => {
            service_allocation::measure(server.store(), server.allocator_metrics());
            return Ok(server.metrics().expose(server.store()));
        }
        [".well-known", "openid-configuration"] => {
            return Ok(key_document(
                JSON,
                &server.authenticator().service_accounts.openid_configuration(),
            ));
        }
        ["openid", "v1", "jwks"] => {
            return Ok(key_document(
                "application/jwk-set+json",
                &server.authenticator().service_accounts.jwks(),
            ));
        }
        _ => None,
    };
    match found {
        None => Err(ApiError::NoSuchPath),
        Some(_) if !read => Err(ApiError::MethodNotAllowed),
        Some(document) => {
            let form = negotiate::form(headers, Offer::Plain)?;
            let bytes = views::encode(&document, form);
            Ok(response::gzip::maybe(headers, response::bytes(StatusCode::OK, form, bytes)))
        }
    }
}

fn key_document(content_type: &'static str, document: &Value) -> ApiResponse {
    let body = serde_json::to_vec(document).unwrap_or_default();
    let mut response = response::build(StatusCode::OK, content_type, body);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}

fn root(server: &Server) -> Value {
    let mut paths: Vec<String> =
        ["/.well-known/openid-configuration", "/api", "/api/v1", "/apis", "/apis/"]
            .map(str::to_owned)
            .to_vec();
    for (group, versions) in server.registry().groups() {
        if !group.is_empty() {
            paths.push(format!("/apis/{group}"));
            paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
        }
    }
    paths.extend(
        [
            "/healthz",
            "/livez",
            "/metrics",
            "/openapi/v2",
            "/openapi/v3",
            "/openid/v1/jwks",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned),
    );
    json!({ "paths": paths })
}

/// `/api` and `/apis`: the legacy form, or the aggregated form for clients that accept it.
fn groups(server: &Server, headers: &HeaderMap, core: bool) -> Result<ApiResponse> {
    let registry = server.registry();
    let form = negotiate::form(headers, Offer::Discovery)?;
    if form.view == View::Discovery {
        return Ok(server.documents().aggregated(&registry, headers, core));
    }
    let document = if core {
        discovery::api_versions(server.address())
    } else {
        discovery::group_list(&registry)
    };
    Ok(response::bytes(StatusCode::OK, form, views::encode(&document, form)))
}

/// `/healthz`, `/livez`, `/readyz` and the single checks below them.
pub(crate) fn health(server: &Server, path: &str, query: &Query) -> Result<ApiResponse> {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    let endpoint = segments.next().unwrap_or_default();
    let only = segments.next();
    let checks: Vec<(&str, std::result::Result<(), String>)> =
        vec![("ping", Ok(())), ("store", server.store().health())];
    if let Some(only) = only {
        return match checks.iter().find(|(name, _)| *name == only) {
            None => Err(ApiError::NoSuchPath),
            Some((_, Ok(()))) => Ok(response::text(StatusCode::OK, "ok")),
            Some((_, Err(_))) => Ok(response::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal server error: reason withheld",
            )),
        };
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut failed = false;
    let mut lines = String::new();
    for (name, result) in &checks {
        let line = match result {
            _ if excluded.contains(name) => format!("[+]{name} excluded: ok\n"),
            Ok(()) => format!("[+]{name} ok\n"),
            Err(why) => {
                tracing::warn!(check = name, why, "health check failed");
                failed = true;
                format!("[-]{name} failed: reason withheld\n")
            }
        };
        lines.push_str(&line);
    }
    if failed {
        return Ok(response::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{lines}{endpoint} check failed\n"),
        ));
    }
    if query.get("verbose").is_some() {
        return Ok(response::text(StatusCode::OK, format!("{lines}{endpoint} check passed\n")));
    }
    Ok(response::text(StatusCode::OK, "ok"))
}
