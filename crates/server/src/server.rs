//! The server as a whole: what it holds, and the way of a request through it.
//!
//!     request ▸ limits ▸ authn ▸ impersonation ▸ authz ▸ verb ▸ store
//!
//! A [`Server`] is a handle; clones share everything. `listen` feeds it connections, `service`
//! lets clients in the same process call it without any.

use crate::answer::{self, Answer};
use crate::audit::Audit;
use crate::authn::{Authenticator, User};
use crate::authz::{Attributes, Policy, Relations, forbidden_status};
use crate::call::{Call, Wire};
use crate::customs::Customs;
use crate::deadline::Deadline;
use crate::documents::Documents;
use crate::error::{ApiError, Result};
use crate::metrics::Metrics;
use crate::object::{Store, Stored, store_name};
use crate::request::{self, Query, Route, Target};
use crate::terminations::retention::Retention;
use crate::usage::Usage;
use crate::{body, dispatch};
use api::{Kind, Registry, Schema};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// Requests that may be under way at once, watches and other long ones not counted. Beyond it
/// clients are asked to come back.
const IN_FLIGHT_MAX: usize = 400;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    store: Store,
    built_in: Arc<Registry>,
    registry: ArcSwap<Registry>,
    /// Told whenever the registry changes.
    served: watch::Sender<()>,
    customs: Customs,
    terminations: Retention,
    usage: Usage,
    policy: ArcSwap<Policy>,
    policy_turn: Mutex<()>,
    relations: Arc<Relations>,
    authenticator: Authenticator,
    documents: Documents,
    in_flight: Arc<Semaphore>,
    closing: watch::Sender<bool>,
    metrics: Metrics,
    audit: Option<Audit>,
    /// `127.0.0.1:6443`, for discovery.
    address: String,
    ca_certificate: String,
    /// How nodes are met: who we are, and that they are ours.
    nodes: Arc<rustls::ClientConfig>,
    /// Namespaces get their first objects from this server, not from a controller elsewhere.
    furnishes: std::sync::atomic::AtomicBool,
}

/// What the server is made of.
pub(crate) struct Parts {
    pub(crate) store: Store,
    pub(crate) authenticator: Authenticator,
    pub(crate) address: String,
    pub(crate) ca_certificate: String,
    pub(crate) nodes: Arc<rustls::ClientConfig>,
    pub(crate) audit: Option<Audit>,
    pub(crate) built_in: Arc<Registry>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// The user its verified client certificate names.
    pub(crate) user: Option<Arc<User>>,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn new(parts: Parts) -> Server {
        let built_in = parts.built_in;
        Server(Arc::new(Inner {
            relations: Arc::new(Relations::of(&parts.store)),
            store: parts.store,
            registry: ArcSwap::from(built_in.clone()),
            served: watch::Sender::new(()),
            customs: Customs::default(),
            terminations: Retention::default(),
            usage: Usage::default(),
            documents: Documents::of(built_in.clone()),
            built_in,
            policy: ArcSwap::default(),
            policy_turn: Mutex::new(()),
            authenticator: parts.authenticator,
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            closing: watch::Sender::new(false),
            metrics: Metrics::default(),
            audit: parts.audit,
            address: parts.address,
            ca_certificate: parts.ca_certificate,
            nodes: parts.nodes,
            furnishes: false.into(),
        }))
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.registry.load_full()
    }

    pub(crate) fn set_registry(&self, registry: Registry) {
        let registry = Arc::new(registry);
        self.0.registry.store(registry.clone());
        self.0.documents.forget(registry);
        self.0.served.send_replace(());
    }

    /// Hears of every change to what is served.
    pub(crate) fn served(&self) -> watch::Receiver<()> {
        self.0.served.subscribe()
    }

    pub(crate) fn customs(&self) -> &Customs {
        &self.0.customs
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

    pub(crate) fn relations(&self) -> &Relations {
        &self.0.relations
    }

    /// Held from reading the rules to setting the policy made of them.
    pub(crate) fn refreshing_policy(&self) -> MutexGuard<'_, ()> {
        self.0.policy_turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.0.policy.store(Arc::new(policy.knowing(self.0.relations.clone())));
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

    /// Shows the numbers of another part of this process at `/metrics`.
    pub fn also_show(&self, metrics: Arc<::metrics::Registry>) {
        self.metrics().also(metrics);
    }

    pub(crate) fn address(&self) -> &str {
        &self.0.address
    }

    pub(crate) fn ca_certificate(&self) -> &str {
        &self.0.ca_certificate
    }

    pub(crate) fn nodes(&self) -> &Arc<rustls::ClientConfig> {
        &self.0.nodes
    }

    pub(crate) fn furnish_namespaces(&self) {
        self.0.furnishes.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn furnishes_namespaces(&self) -> bool {
        self.0.furnishes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Turns true when watches should end.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.0.closing.subscribe()
    }

    /// Ends all watches; ordinary requests go on.
    pub(crate) fn close_watches(&self) {
        self.0.closing.send_replace(true);
    }

    /// Reads after this see every write acknowledged before it, by whichever server.
    pub(crate) async fn barrier(&self) -> Result<()> {
        let seen = self.store().barrier().await;
        seen.map(drop).map_err(|error| ApiError::store("reading the store's revision", &error))
    }

    /// Answers a request, whatever it is. Never fails: errors are answers too.
    pub(crate) async fn handle<B>(&self, request: Request<B>, peer: &Peer) -> Answer
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let started = Instant::now();
        let audit_id = request.headers().get(AUDIT_ID).cloned();
        let method = request.method().clone();
        let uri = request.uri().clone();
        let mut seen = Seen::default();
        let served = unpanicked(self.serve(request, peer, &mut seen)).await;
        let mut answer = served.unwrap_or_else(Answer::from);
        let headers = answer.headers_mut();
        let audit_id = audit_id.unwrap_or_else(|| {
            HeaderValue::from_str(&clock::uuid()).unwrap_or(HeaderValue::from_static("-"))
        });
        headers
            .entry(header::CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        if let Some(audit) = &self.0.audit {
            audit.record(&audit_id, &method, &uri, peer, &seen, answer.status());
        }
        answer.headers_mut().insert(AUDIT_ID, audit_id);
        self.metrics().request(&seen, answer.status(), started.elapsed());
        answer
    }

    async fn serve<B>(&self, request: Request<B>, peer: &Peer, seen: &mut Seen) -> Result<Answer>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let started = Instant::now();
        let (mut parts, request_body) = request.into_parts();
        let route = Route::of(parts.uri.path());
        let query = Query::parse(parts.uri.query());
        if let Route::Other(path) = &route
            && dispatch::is_open(path)
        {
            return dispatch::health(self, path, &query);
        }
        let user = self.who(&parts.headers, peer, seen)?;
        match route {
            Route::Other(path) => {
                self.authorize_path(&user, &parts.method, &path)?;
                Deadline::of("get", &query, started)?; // Never met here, but it has to make sense.
                // Whatever its body is, it is not read: nothing here takes one.
                dispatch::path(self, &parts.method, &path, &query, &parts.headers).await
            }
            Route::Resource(mut target) => {
                let verb = request::verb(&parts.method, &target, &query);
                seen.target(verb, &target);
                seen.served = self.serves(&target);
                self.authorize(&user, verb, &target, &query)?;
                let kind = self.kind(&mut target)?;
                let long = dispatch::is_long_running(verb, &target.subresource);
                let deadline = match long {
                    true => None,
                    false => Some(Deadline::of(verb, &query, started)?),
                };
                let permit = if long { None } else { Some(self.permit()?) };
                let body = body::read(request_body).await?;
                let wire = Wire {
                    method: parts.method.clone(),
                    uri: parts.uri,
                    upgrade: Mutex::new(parts.extensions.remove()),
                };
                let mut call =
                    Call::new(self.clone(), kind, target, query, parts.headers, user, body);
                call.wire = wire;
                if let Some(told) = call.kind.custom.as_ref().and_then(|c| c.deprecation.as_ref()) {
                    call.warn(told);
                }
                // In a box from the start: futures hold all that they may wait for, and this one would be
                // in there three times.
                let work = Box::pin(async move {
                    // Work that nobody waits for any longer counts until it is done.
                    let _permit = permit;
                    let answered = dispatch::resource(&call, &parts.method, verb).await;
                    let mut answer = answered.unwrap_or_else(Answer::from);
                    answer::add_warnings(&mut answer, &call.take_warnings());
                    Ok(crate::gzip::maybe(&call.headers, answer))
                });
                match deadline {
                    None => work.await,
                    Some(deadline) => deadline.bounds(work, dispatch::finishes(verb)).await,
                }
            }
        }
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit> {
        self.0.in_flight.clone().try_acquire_owned().map_err(|_| ApiError::Overloaded)
    }

    fn serves(&self, target: &Target) -> bool {
        let registry = self.0.registry.load();
        registry.resource(&target.group, &target.version, &target.resource).is_some()
    }

    fn kind(&self, target: &mut Target) -> Result<Arc<Kind>> {
        let registry = self.0.registry.load();
        let kind = registry.resource(&target.group, &target.version, &target.resource);
        let kind = kind.ok_or(ApiError::NoSuchPath)?.clone();
        // A cluster-scoped resource under a namespace, or a named one without, is no path at all;
        // Namespace objects name themselves.
        let own = kind.plural == "namespaces" && kind.group.is_empty();
        let misplaced = !kind.namespaced && !target.namespace.is_empty() && !own;
        let lost = kind.namespaced && target.namespace.is_empty() && !target.name.is_empty();
        if misplaced || lost {
            return Err(ApiError::NoSuchPath);
        }
        Ok(kind)
    }

    /// Who the request is answered as: who it comes from, or who they may act as.
    fn who(&self, headers: &http::HeaderMap, peer: &Peer, seen: &mut Seen) -> Result<Arc<User>> {
        let user = match &peer.user {
            Some(user) => user.clone(),
            None => {
                let lookup = |resource: &str, namespace: &str, name: &str| {
                    self.bound(resource, namespace, name)
                };
                let user = self.0.authenticator.authenticate(headers, None, clock::now(), &lookup);
                Arc::new(user.map_err(|refusal| {
                    tracing::debug!(reason = refusal.reason, "a credential was refused");
                    ApiError::Unauthorized
                })?)
            }
        };
        seen.user.clone_from(&user.name);
        let wanted = crate::authn::impersonation::requested(headers)
            .map_err(|refusal| ApiError::BadRequest(refusal.0))?;
        let Some(impersonation) = wanted else { return Ok(user) };
        for check in impersonation.checks(&user) {
            self.allow(&check)?;
        }
        let user = impersonation.user();
        seen.acts_as.clone_from(&user.name);
        Ok(Arc::new(user))
    }

    /// What a service account token is bound to, if it still exists.
    pub(crate) fn bound(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Option<crate::authn::Bound> {
        let object = self.store().get(resource, &store_name(namespace, name))?;
        let meta = object.meta();
        Some(crate::authn::Bound {
            uid: meta.uid.clone(),
            deleted_since: meta.deletion_timestamp.as_ref().and_then(|at| at.parse().ok()),
        })
    }

    fn allow(&self, wanted: &Attributes) -> Result<()> {
        let decision = self.0.policy.load().allows(wanted);
        if decision.allowed {
            return Ok(());
        }
        Err(ApiError::Said(Box::new(forbidden_status(wanted, &decision.reason))))
    }

    fn authorize_path(&self, user: &User, method: &Method, path: &str) -> Result<()> {
        let verb = method.as_str().to_ascii_lowercase();
        let verb = if verb == "head" { "get" } else { &verb };
        self.allow(&Attributes::path(user, verb, path))
    }

    fn authorize(&self, user: &User, verb: &str, target: &Target, query: &Query) -> Result<()> {
        // A list of one name counts as that name, so that `resourceNames` can grant it.
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

    /// Another verb on the very object that a request names.
    pub(crate) fn authorize_here(&self, call: &Call, verb: &str) -> Result<()> {
        self.authorize(&call.user, verb, &call.target, &Query::default())
    }

    /// Another right that a request turned out to need.
    pub(crate) fn authorize_also(&self, call: &Call, verb: &str) -> Result<()> {
        let target = Target { name: String::new(), ..call.target.clone() };
        self.authorize(&call.user, verb, &target, &Query::default())
    }
}

/// A mistake of ours costs one request its answer, not a connection and all that is on it.
async fn unpanicked(serving: impl Future<Output = Result<Answer>>) -> Result<Answer> {
    AssertUnwindSafe(serving).catch_unwind().await.unwrap_or_else(|_| {
        Err(ApiError::Said(Box::new(api::Status::failure(
            500,
            "InternalError",
            "This request caused apiserver to panic. Look in the logs for details.",
        ))))
    })
}

/// What is noted of a request for the audit log and the metrics.
#[derive(Default)]
pub(crate) struct Seen {
    /// Who it came from.
    pub(crate) user: String,
    /// Who they acted as, if that was somebody else.
    pub(crate) acts_as: String,
    pub(crate) verb: &'static str,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    /// There is such a resource; otherwise its name is whatever somebody typed.
    pub(crate) served: bool,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Seen {
    fn target(&mut self, verb: &'static str, target: &Target) {
        self.verb = verb;
        self.group.clone_from(&target.group);
        self.version.clone_from(&target.version);
        self.resource.clone_from(&target.resource);
        self.subresource.clone_from(&target.subresource);
        self.namespace.clone_from(&target.namespace);
        self.name.clone_from(&target.name);
    }
}

/// 429 in plain text, as upstream's limit answers.
pub(crate) fn overloaded() -> Answer {
    let mut answer =
        answer::text(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.\n");
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_answered_and_goes_no_further() {
        let answered = unpanicked(async { panic!("on purpose") }).await;
        let answer = answered.unwrap_or_else(Answer::from);
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
