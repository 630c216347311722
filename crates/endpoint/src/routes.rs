//! Maps paths to handlers, and to the permission that each needs (N-168).

use crate::access::{AccessError, User};
use crate::endpoint::State;
use crate::query::Query;
use crate::response::{self, Response};
use crate::upgrade::Upgrade;
use crate::{container_logs, exec, host_logs, metrics_pages, port_forward, stats};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;

/// An authorized request.
pub(crate) struct Call {
    pub(crate) state: Arc<State>,
    pub(crate) query: Query,
    /// Set if the client asks to upgrade the connection.
    pub(crate) upgrade: Option<Upgrade>,
}

/// The caller needs permission for one of these subresources of the Node.
fn subresources(path: &str) -> &'static [&'static str] {
    match path.split('/').find(|segment| !segment.is_empty()).unwrap_or_default() {
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        "flagz" => &["configz"],
        "statusz" => &["statusz"],
        "metrics" => &["metrics"],
        "stats" => &["stats"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        _ => &["proxy"],
    }
}

pub(crate) async fn handle(
    state: Arc<State>,
    certificate: Option<Arc<User>>,
    mut request: Request<Incoming>,
) -> Response {
    let started = tokio::time::Instant::now();
    let upgrade = Upgrade::from_request(&mut request);
    let (parts, _) = request.into_parts();
    let path = parts.uri.path();
    let access = state.access.check(certificate, &parts.headers, &parts.method, subresources(path));
    let metrics = state.endpoint.metrics.clone();
    let response = match access.await {
        Err(AccessError::Unauthenticated) => {
            response::text(StatusCode::UNAUTHORIZED, "Unauthorized")
        }
        Err(AccessError::Forbidden(why)) => response::text(StatusCode::FORBIDDEN, why),
        Err(AccessError::ReviewFailed(why)) => {
            response::text(StatusCode::INTERNAL_SERVER_ERROR, why)
        }
        Ok(()) => {
            let query = Query::parse(parts.uri.query());
            route(Call { state, query, upgrade }, &parts.method, path).await
        }
    };
    metrics.request(&parts.method, path, started.elapsed());
    response
}

async fn route(call: Call, method: &Method, path: &str) -> Response {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let read = matches!(*method, Method::GET | Method::HEAD);
    let streams = matches!(*method, Method::GET | Method::POST);
    match segments.as_slice() {
        ["pods"] if read => stats::pods(&call),
        ["runningpods"] if read => stats::running_pods(&call).await,
        ["healthz"] | ["healthz", "ping" | "log" | "syncloop"] if read => {
            response::text(StatusCode::OK, "ok")
        }
        ["configz"] if read => {
            response::json(&serde_json::json!({ "kubeletconfig": call.state.endpoint.config }))
        }
        ["metrics"] if read => metrics_pages::main(&call).await,
        ["metrics", "probes"] if read => metrics_pages::probes(&call),
        ["metrics", "resource"] if read => metrics_pages::resource(&call).await,
        ["metrics", "cadvisor"] if read => metrics_pages::cadvisor(&call).await,
        ["metrics", "slis"] if read => metrics_pages::slis(),
        ["stats", "summary"] if streams => stats::summary(&call).await,
        ["containerLogs", namespace, pod, container] if read => {
            container_logs::serve(call, namespace, pod, container).await
        }
        ["exec", namespace, pod, rest @ ..] if streams => {
            exec::exec(call, namespace, pod, rest).await
        }
        ["attach", namespace, pod, rest @ ..] if streams => {
            exec::attach(call, namespace, pod, rest).await
        }
        ["run", namespace, pod, rest @ ..] if *method == Method::POST => {
            exec::run(call, namespace, pod, rest).await
        }
        ["portForward", namespace, pod, rest @ ..] if streams => {
            port_forward::serve(call, namespace, pod, rest.first().copied()).await
        }
        ["logs", rest @ ..] if read => {
            host_logs::serve(&call.state.endpoint.host_logs, rest, path).await
        }
        ["checkpoint", _, _, _] if *method == Method::POST => response::text(
            StatusCode::NOT_FOUND,
            "the container runtime of this node does not take checkpoints",
        ),
        _ => response::text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}
