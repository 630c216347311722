//! What the agent needs from the parts that route traffic to its pods. The binary joins it with the crate `traffic`.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use std::net::IpAddr;
use std::sync::Arc;

/// The network of this node, once it is open.
#[derive(Clone)]
pub struct NodeNetwork {
    /// None if the runtime provides the network of pods.
    pub pods: Option<Arc<network::Pods>>,
    /// The node's addresses.
    pub addresses: Vec<IpAddr>,
}

/// The traffic of this node: Services, names, routes, policies.
#[async_trait]
pub trait Traffic: Send + Sync {
    /// The network is open. Returns when Services and names work, before the first pod starts.
    async fn start(&self, network: NodeNetwork) -> Result<(), String>;

    /// A pod has its addresses. Returns when its policies are in force, before its first container starts.
    async fn pod_attached(&self, pod: &Pod, addresses: &[IpAddr]);

    /// A pod's addresses are about to be released.
    async fn pod_detached(&self, uid: &str);

    /// Ends all traffic, after the last pod has terminated, and removes what it has in the kernel.
    async fn remove(&self);
}
