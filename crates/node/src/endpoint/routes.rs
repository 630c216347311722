//! Which function answers which path, and which right it needs (N-168).

use super::access::{Refusal, User};
use super::answer::{self, Answer};
use super::query::Query;
use super::upgrade::Upgrade;
use super::{State, container_logs, exec, files, forward, scrape, stats};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;

/// One request, once its caller may.
pub(super) struct Call {
    pub(super) state: Arc<State>,
    pub(super) query: Query,
    /// Some if the caller wants to speak something else on this connection.
    pub(super) upgrade: Option<Upgrade>,
}

/// Subresources of the Node of which one must be allowed.
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

pub(super) async fn handle(
    state: Arc<State>,
    certificate: Option<Arc<User>>,
    mut request: Request<Incoming>,
) -> Answer {
    let started = tokio::time::Instant::now();
    let upgrade = Upgrade::wanted(&mut request);
    let (parts, _) = request.into_parts();
    let path = parts.uri.path();
    let may = state.access.check(certificate, &parts.headers, &parts.method, subresources(path));
    let metrics = state.endpoint.metrics.clone();
    let answer = match may.await {
        Err(Refusal::Unknown) => answer::text(StatusCode::UNAUTHORIZED, "Unauthorized"),
        Err(Refusal::Forbidden(why)) => answer::text(StatusCode::FORBIDDEN, why),
        Err(Refusal::Unanswered(why)) => answer::text(StatusCode::INTERNAL_SERVER_ERROR, why),
        Ok(()) => {
            let query = Query::parse(parts.uri.query());
            route(Call { state, query, upgrade }, &parts.method, path).await
        }
    };
    metrics.request(&parts.method, path, started.elapsed());
    answer
}

async fn route(call: Call, method: &Method, path: &str) -> Answer {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let read = matches!(*method, Method::GET | Method::HEAD);
    let streams = matches!(*method, Method::GET | Method::POST);
    match segments.as_slice() {
        ["pods"] if read => stats::pods(&call),
        ["runningpods"] if read => stats::running_pods(&call).await,
        ["healthz"] | ["healthz", "ping" | "log" | "syncloop"] if read => {
            answer::text(StatusCode::OK, "ok")
        }
        ["configz"] if read => {
            answer::json(&serde_json::json!({ "kubeletconfig": call.state.endpoint.config }))
        }
        ["metrics"] if read => scrape::main(&call).await,
        ["metrics", "probes"] if read => scrape::probes(&call),
        ["metrics", "resource"] if read => scrape::resource(&call).await,
        ["metrics", "cadvisor"] if read => scrape::cadvisor(&call).await,
        ["metrics", "slis"] if read => scrape::slis(),
        ["stats", "summary"] if streams => stats::summary(&call).await,
        ["containerLogs", namespace, pod, container] if read => {
            container_logs::answer(call, namespace, pod, container).await
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
            forward::answer(call, namespace, pod, rest.first().copied()).await
        }
        ["logs", rest @ ..] if read => {
            files::answer(&call.state.endpoint.host_logs, rest, path).await
        }
        ["checkpoint", _, _, _] if *method == Method::POST => answer::text(
            StatusCode::NOT_FOUND,
            "the container runtime of this node does not take checkpoints",
        ),
        _ => answer::text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}
