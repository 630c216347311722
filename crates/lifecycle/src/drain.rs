//! What happens while a terminating pod waits until nothing sends it new connections. `traffic` finds it out, and the agent
//! tells `termination` when the pod is drained.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainUpdate {
    /// What is still missing, for people: `node n2`, the name of a load balancer, `another endpoint of default/web`.
    Waiting(Vec<String>),
    /// This node or load balancer sends no new connections to the pod any more.
    Acknowledged(String),
    /// Nothing sends new connections. The last update.
    Drained,
    /// The pod's own limit of the wait is over. The last update.
    TimedOut,
}
