//! TLS for the server's calls to nodes.

use super::authority::{Authority, Purpose};
use super::{Error, Identity, LEAF_LIFETIME, Pki};
use rustls::ClientConfig;

/// The user name of the server at nodes, as upstream's.
const USER: &str = "kube-apiserver-kubelet-client";

/// In `system:masters`, so that nodes allow everything.
pub(super) fn issue(authority: &Authority) -> Result<Identity, Error> {
    authority.issue(&Purpose::client(USER, &[crate::authn::MASTERS]), LEAF_LIFETIME)
}

impl Pki {
    /// For calls to nodes: their certificates must be signed by our CA.
    pub fn node_client_config(&self) -> Result<ClientConfig, Error> {
        Ok(tls::client_config(self.node_client.clone(), self.authority.pem())?)
    }
}
