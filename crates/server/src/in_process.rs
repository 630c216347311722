//! Calls from clients in the same process, without a network connection.
//!
//! Components of landfall are ordinary API clients (docs/decisions/0006). An [`InProcessService`] is a tower
//! service that passes requests to the server as a given user. They take the same path as requests over HTTPS:
//! authorization, admission and everything else.

use crate::response::ApiResponse;
use crate::server::{Peer, Server};
use access::authn::User;
use bytes::Bytes;
use http::Request;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

#[derive(Clone)]
pub struct InProcessService {
    server: Server,
    peer: Arc<Peer>,
}

impl Server {
    /// A service for a component of this process that acts as `user`.
    pub fn in_process(&self, user: User) -> InProcessService {
        let peer =
            Peer { user: Some(Arc::new(user)), address: "in-process".into(), in_process: true };
        InProcessService { server: self.clone(), peer: Arc::new(peer) }
    }
}

impl<B> tower::Service<Request<B>> for InProcessService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = ApiResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<ApiResponse, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let InProcessService { server, peer } = self.clone();
        Box::pin(async move { Ok(server.handle(request, &peer).await) })
    }
}
