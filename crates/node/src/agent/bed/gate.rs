//! The agent's connection to the server, on which deletes can be refused.

use futures::future::BoxFuture;
use http::{Method, Request};
use kube::client::Body;
use server::InProcessService;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use tower::{BoxError, Service};

#[derive(Clone)]
pub(super) struct Gate {
    pub(super) service: InProcessService,
    /// The number of further deletes to refuse.
    pub(super) refused: Arc<AtomicUsize>,
}

impl Service<Request<Body>> for Gate {
    type Response = <InProcessService as Service<Request<Body>>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let one_less = |left: usize| left.checked_sub(1);
        if request.method() == Method::DELETE
            && self.refused.fetch_update(Relaxed, Relaxed, one_less).is_ok()
        {
            return Box::pin(async { Err("the connection is broken".into()) });
        }
        let response = self.service.call(request);
        Box::pin(async move { response.await.map_err(Into::into) })
    }
}
