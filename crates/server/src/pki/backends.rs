//! TLS towards the nodes that the server calls.

use super::authority::{Authority, Purpose};
use super::{Error, Identity, LEAF_LIFETIME, Pki};
use rustls::ClientConfig;

/// How nodes know us. Upstream's name for it.
const USER: &str = "kube-apiserver-kubelet-client";

/// Says that we may do everything there.
pub(super) fn caller(authority: &Authority) -> Result<Identity, Error> {
    authority.issue(&Purpose::client(USER, &[crate::authn::MASTERS]), LEAF_LIFETIME)
}

impl Pki {
    /// For calling nodes: their certificates must be of our CA.
    pub(crate) fn node_client_config(&self) -> Result<ClientConfig, Error> {
        Ok(tls::client_config(self.caller.clone(), self.authority.pem())?)
    }
}
