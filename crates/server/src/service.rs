//! A door for clients in this process: the same way as over the network, without one.
//!
//! Components are ordinary API clients (decision 6 of the design). A [`Door`] is a tower service
//! that hands requests to the server as a given user; authorization, admission and everything else
//! happen as for anybody.

use crate::answer::Answer;
use crate::authn::User;
use crate::server::{Peer, Server};
use bytes::Bytes;
use http::Request;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

#[derive(Clone)]
pub struct Door {
    server: Server,
    peer: Arc<Peer>,
}

impl Server {
    /// Lets a component of this process in as `user`.
    pub fn door(&self, user: User) -> Door {
        let peer = Peer { user: Some(Arc::new(user)), address: "in-process".into() };
        Door { server: self.clone(), peer: Arc::new(peer) }
    }
}

impl<B> tower::Service<Request<B>> for Door
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Door { server, peer } = self.clone();
        Box::pin(async move { Ok(server.handle(request, &peer).await) })
    }
}
