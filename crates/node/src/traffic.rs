//! What the agent needs from the parts that route traffic to its pods. The binary joins it with the crate `traffic`.

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::drain::DrainUpdate;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

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
    /// The network is open. Returns when Services and names work, before the first pod starts: the addresses of the
    /// DNS servers that pods use.
    async fn start(&self, network: NodeNetwork) -> Result<Vec<IpAddr>, String>;

    /// After [`Traffic::start`]: whether this node can reach the pods of all other nodes, now and after every change. The
    /// error is a message for the Node condition NetworkUnavailable. None if the runtime provides the network.
    fn routes(&self) -> Option<BoxStream<'static, Result<(), String>>>;

    /// A pod has its addresses. Returns when its policies are in force, before its first container starts. After an
    /// error no container may start; the call can be repeated.
    async fn pod_attached(&self, pod: &Pod, addresses: &[IpAddr]) -> Result<(), String>;

    /// For a pod that was deleted, before its hooks and stop signals: waits until nothing sends it new connections. None if
    /// the pod need not wait.
    fn drain(&self, pod: &Pod) -> Option<mpsc::Receiver<DrainUpdate>>;

    /// A pod's addresses are about to be released.
    async fn pod_detached(&self, uid: &str);

    /// Ends all traffic, after the last pod has terminated, and removes what it has in the kernel.
    async fn remove(&self);
}
