//! Acknowledged drain: no hook and no stop signal while a ready node still sends new connections to the pod, unless the
//! grace period is over.
//!
//! If a Service has no other endpoint, nodes use those that terminate (T-NET-14). The API then declares that the pod is used,
//! and it may be stopped.

use super::services::ServiceTraffic;
use super::{Checker, Container, Pod, SAME, Termination, Verdict, broken};
use crate::event_log::{Agent, Name, Request};
use std::net::IpAddr;
use std::time::Duration;

/// A node that is ready for less than this may not be known as ready everywhere.
const KNOWN_AS_READY: Duration = Duration::from_secs(10);

impl ServiceTraffic {
    /// A slice or node that still sends new connections to the address, although the API says that the pod terminates.
    fn senders(&self, at: Duration, address: IpAddr) -> Option<String> {
        let living = self.slices.iter().find(|(_, (service, slice))| {
            self.services.contains_key(service) && slice.lists_as_living(address)
        });
        if let Some((slice, _)) = living {
            return Some(format!("the slice {slice} does not say that it terminates"));
        }
        for (name, node) in self.nodes.iter().filter(|(name, _)| self.is_ready(at, name)) {
            for (service, commitment) in &node.services {
                let stale = commitment.in_force.use_address(address)
                    && !commitment.newest().use_address(address);
                if stale && self.services.contains_key(service) {
                    return Some(format!("{name} sends requests to it because of {service}"));
                }
            }
        }
        None
    }

    fn is_ready(&self, at: Duration, node: &Name) -> bool {
        self.ready_since.get(node).is_some_and(|since| *since + KNOWN_AS_READY < at)
    }

    pub(super) fn reaches_drained(&self, at: Duration, request: &Request) -> Verdict {
        let drained = request.endpoint.filter(|it| self.drained.contains(&it.ip()));
        match drained.filter(|_| self.is_ready(at, &request.node)) {
            None => Ok(()),
            Some(endpoint) => {
                let why = format!(
                    "a request through {} to {} reaches {endpoint}",
                    request.node, request.service
                );
                broken("no request reaches a drained pod after its stop signal", why)
            }
        }
    }
}

impl Checker {
    /// Before a hook or a stop signal of this container.
    pub(super) fn drained(&mut self, at: Duration, id: &Name, by: &Agent) -> Verdict {
        let Some(container) = self.containers.get(id) else { return Ok(()) };
        let Some(pod) = self.pods.get(&container.uid).filter(|pod| pod.waits()) else {
            return Ok(());
        };
        let agent = self.agents.get(by);
        let Some(termination) = agent.and_then(|known| known.terminations.get(&container.uid))
        else {
            return Ok(());
        };
        if self.is_bound_over(at, container, termination) {
            return Ok(());
        }
        let Some(address) = pod.object.address() else { return Ok(()) };
        if let Some(sender) = self.traffic.senders(at, address) {
            let why = format!("{by} stops {id} at {at:?}, but {sender}");
            return broken("no stop signal before the last acknowledgement", why);
        }
        Ok(())
    }

    /// After its stop signal.
    pub(super) fn stopped_when_drained(&mut self, at: Duration, id: &Name, by: &Agent) {
        let Some(container) = self.containers.get(id) else { return };
        let pod = self.pods.get(&container.uid).filter(|pod| pod.waits());
        let agent = self.agents.get(by);
        let termination = agent.and_then(|known| known.terminations.get(&container.uid));
        let Some((pod, termination)) = pod.zip(termination) else { return };
        let in_time = !self.is_bound_over(at, container, termination);
        if let Some(address) = pod.object.address().filter(|_| in_time)
            && !self.traffic.is_declared(address)
        {
            self.traffic.drained.insert(address);
        }
    }

    fn is_bound_over(&self, at: Duration, container: &Container, it: &Termination) -> bool {
        at + SAME >= self.earliest(&container.uid, it)
    }
}

impl Pod {
    fn waits(&self) -> bool {
        self.object.has_acknowledged_drain() && self.deleted.is_some() && !self.forced
    }
}
