//! The server as a whole: its state, and the path of a request through it.
//!
//!     request ▸ authenticate ▸ impersonate ▸ authorize ▸ flow control, body ▸ dispatch to a verb ▸ response
//!
//! A [`Server`] is a handle; clones share everything. Requests come from connections (`listen`) or from clients in the
//! same process (`in_process`).

use crate::audit::{self, Audit, Stage};
use crate::custom_resources::CustomResources;
use crate::dispatch;
use crate::documents::Documents;
use crate::flow::{self, Flow, Level, RequestAttributes};
use crate::metrics::Metrics;
use crate::object::{Index, Store, Stored, store_name};
use crate::request::call::{Call, Wire};
use crate::request::deadline::Deadline;
use crate::request::summary::RequestSummary;
use crate::request::{self, Query, Route, Target};
use crate::response::error::{ApiError, Result};
use crate::response::{self, ApiResponse};
use crate::service_allocation::{AllocatorMetrics, ServiceRanges};
use crate::terminations::retention::Retention;
use crate::usage::Usage;
use access::authn::{Authenticator, User};
use access::authz::{Attributes, Policy, StoreNodeGraph, forbidden_status};
use api::{Kind, Registry, Schema};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    store: Store,
    built_in: Arc<Registry>,
    registry: ArcSwap<Registry>,
    custom_resources: CustomResources,
    terminations: Retention,
    usage: Usage,
    policy: ArcSwap<Policy>,
    policy_refresh: Mutex<()>,
    node_graph: Arc<StoreNodeGraph<Index>>,
    authenticator: Authenticator,
    documents: Documents,
    flow: Flow,
    closing: watch::Sender<bool>,
    metrics: Metrics,
    audit: Option<Arc<Audit>>,
    /// `127.0.0.1:6443`, for discovery.
    address: String,
    ca_certificate: String,
    /// The cluster's first range of cluster IPs.
    service_ranges: ServiceRanges,
    allocator_metrics: AllocatorMetrics,
    /// TLS for calls to nodes.
    nodes: Arc<rustls::ClientConfig>,
    /// Whether this server, and not a controller elsewhere, creates the default objects of namespaces.
    creates_namespace_objects: std::sync::atomic::AtomicBool,
}

/// What a server is created from.
pub(crate) struct Parts {
    pub(crate) store: Store,
    pub(crate) authenticator: Authenticator,
    pub(crate) address: String,
    pub(crate) ca_certificate: String,
    pub(crate) service_ranges: ServiceRanges,
    pub(crate) nodes: Arc<rustls::ClientConfig>,
    pub(crate) audit: Option<Audit>,
    pub(crate) built_in: Arc<Registry>,
}

/// The other end of a connection.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// The user of its verified client certificate.
    pub(crate) user: Option<Arc<User>>,
    pub(crate) address: String,
    /// Whether it is a component of this process, without a connection.
    pub(crate) in_process: bool,
}

impl Server {
    pub(crate) fn new(parts: Parts) -> Server {
        let built_in = parts.built_in;
        let (metrics, allocator_metrics) = (Metrics::default(), AllocatorMetrics::default());
        metrics.also(allocator_metrics.registry());
        Server(Arc::new(Inner {
            node_graph: Arc::new(StoreNodeGraph::of(&parts.store)),
            store: parts.store,
            registry: ArcSwap::from(built_in.clone()),
            custom_resources: CustomResources::default(),
            terminations: Retention::default(),
            usage: Usage::default(),
            documents: Documents::of(built_in.clone()),
            built_in,
            policy: ArcSwap::default(),
            policy_refresh: Mutex::new(()),
            authenticator: parts.authenticator,
            flow: Flow::new(tls::connections_max()),
            closing: watch::Sender::new(false),
            metrics,
            audit: parts.audit.map(Arc::new),
            address: parts.address,
            ca_certificate: parts.ca_certificate,
            service_ranges: parts.service_ranges,
            allocator_metrics,
            nodes: parts.nodes,
            creates_namespace_objects: false.into(),
        }))
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// Whether anything is stored. If so, this is not the first start.
    pub(crate) fn has_objects(&self) -> bool {
        self.store().counts().iter().any(|(_, count)| *count > 0)
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.registry.load_full()
    }

    pub(crate) fn set_registry(&self, registry: Registry) {
        let registry = Arc::new(registry);
        self.0.registry.store(registry.clone());
        self.0.documents.forget(registry);
    }

    pub(crate) fn custom_resources(&self) -> &CustomResources {
        &self.0.custom_resources
    }

    pub(crate) fn terminations(&self) -> &Retention {
        &self.0.terminations
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.0.usage
    }

    pub(crate) fn built_in(&self) -> &Registry {
        &self.0.built_in
    }

    pub(crate) fn built_in_schema(&self) -> Arc<Schema> {
        self.0.built_in.kinds()[0].schema.clone()
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.0.policy.load_full()
    }

    pub(crate) fn node_graph(&self) -> &StoreNodeGraph<Index> {
        &self.0.node_graph
    }

    /// Held from reading the RBAC objects to setting the policy compiled from them.
    pub(crate) fn lock_policy_refresh(&self) -> MutexGuard<'_, ()> {
        self.0.policy_refresh.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.0.policy.store(Arc::new(policy.with_node_graph(self.0.node_graph.clone())));
    }

    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.0.authenticator
    }

    pub(crate) fn documents(&self) -> &Documents {
        &self.0.documents
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Adds the metrics of another component of this process to `/metrics`.
    pub fn also_show(&self, metrics: Arc<::metrics::Registry>) {
        self.metrics().also(metrics);
    }

    pub(crate) fn address(&self) -> &str {
        &self.0.address
    }

    /// The port of [`Self::address`].
    pub(crate) fn port(&self) -> u16 {
        self.address().rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn ca_certificate(&self) -> &str {
        &self.0.ca_certificate
    }

    pub(crate) fn service_ranges(&self) -> ServiceRanges {
        self.0.service_ranges
    }

    pub(crate) fn allocator_metrics(&self) -> &AllocatorMetrics {
        &self.0.allocator_metrics
    }

    pub(crate) fn nodes(&self) -> &Arc<rustls::ClientConfig> {
        &self.0.nodes
    }

    pub(crate) fn create_namespace_objects(&self) {
        self.0.creates_namespace_objects.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn creates_namespace_objects(&self) -> bool {
        self.0.creates_namespace_objects.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Becomes true when watches should end.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.0.closing.subscribe()
    }

    /// Ends all watches. Other requests continue.
    pub(crate) fn close_watches(&self) {
        self.0.closing.send_replace(true);
    }

    /// After this, reads see every write that any server has acknowledged before.
    pub(crate) async fn barrier(&self) -> Result<()> {
        let revision = self.store().barrier().await;
        revision.map(drop).map_err(|error| ApiError::store("reading the store's revision", &error))
    }

    /// Handles any request. Errors become responses.
    pub(crate) async fn handle<B>(&self, request: Request<B>, peer: &Peer) -> ApiResponse
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let started = Instant::now();
        let audit_id = request.headers().get(AUDIT_ID).cloned().unwrap_or_else(|| {
            HeaderValue::from_str(&clock::uuid()).unwrap_or(HeaderValue::from_static("-"))
        });
        let mut summary = RequestSummary::default();
        if self.0.audit.is_some() {
            summary.wire = Some(wire(&request, &audit_id, peer));
        }
        let (parts, body) = request.into_parts();
        let mut body = std::pin::pin!(body);
        let served = catch_panic(self.serve(parts, body.as_mut(), peer, &mut summary)).await;
        if matches!(served, Some(Err(_))) {
            response::body::discard_refused(body).await;
        }
        let panicked = served.is_none();
        let mut response =
            served.unwrap_or_else(|| Err(panic_error())).unwrap_or_else(ApiResponse::from);
        let headers = response.headers_mut();
        headers
            .entry(header::CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        headers.insert(AUDIT_ID, audit_id);
        self.metrics().request(&summary, response.status(), started.elapsed());
        match &self.0.audit {
            Some(audit) => audited(audit, &mut summary, response, panicked),
            None => response,
        }
    }

    async fn serve<B>(
        &self,
        mut parts: http::request::Parts,
        body: B,
        peer: &Peer,
        summary: &mut RequestSummary,
    ) -> Result<ApiResponse>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let started = Instant::now();
        let route = Route::of(parts.uri.path());
        let query = Query::parse(parts.uri.query());
        if let Route::Other(path) = &route
            && dispatch::is_open(path)
        {
            return dispatch::health(self, path, &query);
        }
        let user = self.authenticate(&parts.headers, peer, summary)?;
        match route {
            Route::Other(path) => {
                self.begin_audit(summary);
                self.authorize_path(&user, &parts.method, &path, summary)?;
                Deadline::of("get", &query, started)?; // Only checks that the parameter is valid.
                // The body is not read: no such path takes one.
                dispatch::path(self, &parts.method, &path, &query, &parts.headers).await
            }
            Route::Resource(mut target) => {
                let verb = request::verb(&parts.method, &target, &query);
                summary.target(verb, &target);
                summary.served = self.serves(&target);
                self.begin_audit(summary);
                let decided = self.authorize(&user, verb, &target, &query);
                summary.note_decision(&decided);
                decided?;
                let kind = self.kind(&mut target)?;
                let long = dispatch::is_long_running(verb, &target.subresource);
                summary.long_running = long;
                let deadline = match long {
                    true => None,
                    false => Some(Deadline::of(verb, &query, started)?),
                };
                let level = Level::of(RequestAttributes {
                    user: &user,
                    in_process: peer.in_process,
                    verb,
                    group: &target.group,
                    resource: &target.resource,
                });
                let pending = flow::PendingRequest { user: &user, verb, deadline };
                let granted = self.0.flow.admit(level, pending, body).await?;
                summary.note_body(&parts.headers, &granted.body);
                let wire = Wire {
                    method: parts.method.clone(),
                    uri: parts.uri,
                    client: match peer.in_process {
                        true => String::new(),
                        false => peer.address.clone(),
                    },
                    upgrade: Mutex::new(parts.extensions.remove()),
                };
                let mut call =
                    Call::new(self.clone(), kind, target, query, parts.headers, user, granted.body);
                call.wire = wire;
                call.held = granted.long_running;
                call.audit = summary.logged().cloned();
                if let Some(warning) =
                    call.kind.custom.as_ref().and_then(|c| c.deprecation.as_ref())
                {
                    call.warn(warning);
                }
                // Boxed, because this future would otherwise be contained three times in the future of `serve`.
                let work = Box::pin(async move {
                    // The request counts until its work is done, even if the client no longer waits.
                    let _held = granted.held;
                    let result = dispatch::resource(&call, &parts.method, verb).await;
                    let mut response = result.unwrap_or_else(ApiResponse::from);
                    response::add_warnings(&mut response, &call.take_warnings());
                    if let Some(trail) = &call.audit {
                        trail.answered(&response);
                    }
                    Ok(response::gzip::maybe(&call.headers, response))
                });
                match deadline {
                    None => work.await,
                    Some(deadline) => deadline.bounds(work, dispatch::finishes(verb)).await,
                }
            }
        }
    }

    fn serves(&self, target: &Target) -> bool {
        let registry = self.0.registry.load();
        registry.resource(&target.group, &target.version, &target.resource).is_some()
    }

    fn kind(&self, target: &mut Target) -> Result<Arc<Kind>> {
        let registry = self.0.registry.load();
        let kind = registry.resource(&target.group, &target.version, &target.resource);
        let kind = kind.ok_or(ApiError::NoSuchPath)?.clone();
        // A cluster-scoped resource under a namespace, or a named namespaced one without, is not a path. The path
        // of a Namespace object contains its own name.
        let is_namespace = kind.plural == "namespaces" && kind.group.is_empty();
        let surplus = !kind.namespaced && !target.namespace.is_empty() && !is_namespace;
        let missing = kind.namespaced && target.namespace.is_empty() && !target.name.is_empty();
        if surplus || missing {
            return Err(ApiError::NoSuchPath);
        }
        Ok(kind)
    }

    /// The user of the request, after impersonation.
    fn authenticate(
        &self,
        headers: &http::HeaderMap,
        peer: &Peer,
        summary: &mut RequestSummary,
    ) -> Result<Arc<User>> {
        let user = match &peer.user {
            Some(user) => user.clone(),
            None => {
                let lookup = |resource: &str, namespace: &str, name: &str| {
                    self.bound(resource, namespace, name)
                };
                let user = self.0.authenticator.authenticate(headers, None, clock::now(), &lookup);
                Arc::new(user.map_err(|refusal| {
                    tracing::debug!(reason = refusal.reason, "authentication failed");
                    ApiError::Unauthorized
                })?)
            }
        };
        summary.user = Some(user.clone());
        let requested = access::authn::impersonation::requested(headers)
            .map_err(|refusal| ApiError::BadRequest(refusal.0))?;
        let Some(impersonation) = requested else { return Ok(user) };
        for check in impersonation.checks(&user) {
            self.allow(&check)?;
        }
        let user = Arc::new(impersonation.user());
        summary.impersonated = Some(user.clone());
        Ok(user)
    }

    /// An object that a service account token is bound to, if it still exists.
    pub(crate) fn bound(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Option<access::authn::Bound> {
        let object = self.store().get(resource, &store_name(namespace, name))?;
        let meta = object.meta();
        Some(access::authn::Bound {
            uid: meta.uid.clone(),
            deleted_since: meta.deletion_timestamp.as_ref().and_then(|at| at.parse().ok()),
        })
    }

    /// Returns the reason why the request is allowed, or the error if it is not.
    fn allow(&self, wanted: &Attributes) -> Result<String> {
        let decision = self.0.policy.load().allows(wanted);
        if decision.allowed {
            return Ok(decision.reason);
        }
        Err(ApiError::Status(Box::new(forbidden_status(wanted, &decision.reason))))
    }

    fn authorize_path(
        &self,
        user: &User,
        method: &Method,
        path: &str,
        summary: &RequestSummary,
    ) -> Result<()> {
        let verb = method.as_str().to_ascii_lowercase();
        let verb = if verb == "head" { "get" } else { &verb };
        let decided = self.allow(&Attributes::path(user, verb, path));
        summary.note_decision(&decided);
        decided.map(drop)
    }

    /// Logs that the request was received, before it has any effect.
    fn begin_audit(&self, summary: &mut RequestSummary) {
        if let Some(audit) = &self.0.audit {
            summary.trail = Some(audit.trail(summary));
            if let Some(trail) = summary.logged() {
                trail.log(Stage::RequestReceived);
            }
        }
    }

    fn authorize(&self, user: &User, verb: &str, target: &Target, query: &Query) -> Result<String> {
        // A list that selects one name counts as that name, so that `resourceNames` can grant it.
        let selected = match (verb, query.text("fieldSelector")) {
            ("list" | "watch" | "deletecollection", Some(selector)) => {
                selector.split(',').find_map(|term| {
                    let value = term.strip_prefix("metadata.name=")?;
                    Some(value.strip_prefix('=').unwrap_or(value))
                })
            }
            _ => None,
        };
        let name = if target.name.is_empty() { selected.unwrap_or_default() } else { &target.name };
        self.allow(&Attributes {
            version: &target.version,
            subresource: &target.subresource,
            namespace: &target.namespace,
            name,
            selector: query.text("fieldSelector").unwrap_or_default(),
            ..Attributes::resource(user, verb, &target.group, &target.resource)
        })
    }

    /// Authorizes another verb on the object that the request names.
    pub(crate) fn authorize_here(&self, call: &Call, verb: &str) -> Result<()> {
        self.authorize(&call.user, verb, &call.target, &Query::default()).map(drop)
    }

    /// Authorizes another verb on the collection, which the request turned out to need.
    pub(crate) fn authorize_also(&self, call: &Call, verb: &str) -> Result<()> {
        let target = Target { name: String::new(), ..call.target.clone() };
        self.authorize(&call.user, verb, &target, &Query::default()).map(drop)
    }
}

/// A panic fails one request, not the connection with all its requests. None if it panicked.
async fn catch_panic(
    serving: impl Future<Output = Result<ApiResponse>>,
) -> Option<Result<ApiResponse>> {
    AssertUnwindSafe(serving).catch_unwind().await.ok()
}

fn panic_error() -> ApiError {
    ApiError::Status(Box::new(api::Status::failure(
        500,
        "InternalError",
        "This request caused apiserver to panic. Look in the logs for details.",
    )))
}

fn wire<B>(request: &Request<B>, audit_id: &HeaderValue, peer: &Peer) -> audit::Wire {
    let text = |value: Option<&HeaderValue>| {
        value.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    audit::Wire {
        id: text(Some(audit_id)),
        uri: request.uri().to_string(),
        method: request.method().as_str().to_ascii_lowercase(),
        source: peer.address.clone(),
        agent: text(request.headers().get(header::USER_AGENT)),
        received: clock::rfc3339_micros(clock::now()),
    }
}

/// Logs the result of a request.
fn audited(
    audit: &Arc<Audit>,
    summary: &mut RequestSummary,
    response: ApiResponse,
    panicked: bool,
) -> ApiResponse {
    // There is no trail yet if authentication failed or the path needs none.
    let trail = summary.trail.take().unwrap_or_else(|| audit.trail(summary));
    let Some(trail) = trail else { return response };
    trail.answered(&response);
    if panicked {
        trail.log(Stage::Panic);
        return response;
    }
    if summary.long_running {
        trail.log(Stage::ResponseStarted);
    }
    trail.follow(response)
}

/// 429 in plain text, as upstream's limit responds.
pub(crate) fn overloaded() -> ApiResponse {
    let mut response = response::text(
        StatusCode::TOO_MANY_REQUESTS,
        "Too many requests, please try again later.\n",
    );
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_an_internal_server_error() {
        let result = catch_panic(async { panic!("on purpose") }).await;
        let response =
            result.unwrap_or_else(|| Err(panic_error())).unwrap_or_else(ApiResponse::from);
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
