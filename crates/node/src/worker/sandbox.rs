//! Before containers: the pod's volumes, its network and its sandbox.

use super::observe::network_key;
use super::{Orders, Worker};
use crate::config;
use crate::node_object::node_reference;
use crate::volumes::Mounted;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::bringup::{NewSandbox, SANDBOX_CHANGED};
use lifecycle::observed::{Observed, Sandbox};
use runtime::{PodNetwork, SandboxState};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A failed volume is tried again after this, doubling, as long as one pass waits for it (N-132).
const MOUNT_RETRY_FIRST: Duration = Duration::from_millis(500);
const MOUNT_WAIT: Duration = Duration::from_secs(123);

impl Worker {
    /// All volumes that containers use, or None when the pod is to end meanwhile.
    pub(super) async fn volumes(&mut self) -> Result<Option<Mounted>, String> {
        let deadline = tokio::time::Instant::now() + MOUNT_WAIT;
        let mut pause = MOUNT_RETRY_FIRST;
        let (mut orders, mut ending) = (self.orders.clone(), self.orders.clone());
        loop {
            let failed = match self.parts.volumes.set_up(&self.pod).await {
                Ok(mounted) => return Ok(Some(mounted)),
                Err(failed) => failed,
            };
            for error in &failed {
                let message = error.event_message();
                self.parts.recorder.warning(&self.reference(), "FailedMount", message);
            }
            if tokio::time::Instant::now() + pause > deadline {
                let message = unmounted(&failed);
                self.parts.recorder.warning(&self.reference(), "FailedMount", message.clone());
                return Err(message);
            }
            tokio::select! {
                biased;
                () = Worker::ending(&mut ending) => return Ok(None),
                // What the volume needs may have come.
                () = self.news.notified() => {}
                () = changed(&mut orders, &self.pod) => {}
                () = tokio::time::sleep(pause) => {}
            }
            let pod = self.orders.borrow().pod.clone();
            self.pod = self.parts.allocations.on(&pod);
            pause = (pause * 2).min(MOUNT_WAIT);
        }
    }

    /// A running pod's configMap, secret, projected and downwardAPI volumes follow their objects (N-134).
    pub(super) async fn keep_volumes_fresh(&mut self) {
        let Err(failed) = self.parts.volumes.set_up(&self.pod).await else { return };
        for error in failed {
            self.parts.recorder.warning(&self.reference(), "FailedMount", error.event_message());
        }
    }

    /// None: the network is not ready, and the pod says so (N-19).
    pub(super) async fn make_sandbox(
        &mut self,
        new: &NewSandbox,
    ) -> Result<Option<Sandbox>, String> {
        if new.changed {
            self.parts.recorder.normal(&self.reference(), "SandboxChanged", SANDBOX_CHANGED);
        }
        let made = self.try_sandbox(new).await;
        let made = made.map_err(|why| {
            self.parts.metrics.add("kubelet_started_pods_errors_total", &[], 1);
            let message = format!("Failed to create pod sandbox: {why}");
            self.parts.recorder.warning(&self.reference(), "FailedCreatePodSandBox", message);
            why
        })?;
        self.parts.metrics.add("kubelet_started_pods_total", &[], 1);
        self.warn_of_dns();
        // PodReadyToStartContainers, before any image is pulled (N-78).
        let observed = self.observe().await?;
        self.publish(&observed);
        Ok(Some(made))
    }

    /// N-60. That the node has no cluster DNS is said once, of the node.
    fn warn_of_dns(&self) {
        for warning in config::dns_warnings(&self.pod, &self.parts.facts) {
            let of_node = warning.reason == config::MISSING_CLUSTER_DNS;
            if of_node && self.parts.dns_told.swap(true, Ordering::Relaxed) {
                continue;
            }
            let on = match of_node {
                true => node_reference(&self.parts.facts.name),
                false => self.reference(),
            };
            self.parts.recorder.warning(&on, warning.reason, warning.message);
        }
    }

    async fn try_sandbox(&mut self, new: &NewSandbox) -> Result<Sandbox, String> {
        let handler = self.parts.objects.handler(&self.pod).await?;
        let (pod, facts) = (&self.pod, &self.parts.facts);
        let mut spec = config::sandbox(pod, facts, new.attempt, PodNetwork::Runtime)?;
        spec.handler = handler;
        let (network, addresses) = self.network(new.attempt).await?;
        let host_network = network == PodNetwork::Host;
        spec.network = network;
        let made = match self.parts.runtime.run_sandbox(&spec).await {
            Ok(made) => made,
            Err(error) => {
                self.give_back_network(new.attempt).await;
                return Err(error.to_string());
            }
        };
        Ok(Sandbox {
            id: made.id,
            attempt: made.attempt,
            ready: made.state == SandboxState::Ready,
            host_network,
            addresses: if addresses.is_empty() { made.addresses } else { addresses },
        })
    }

    async fn network(&self, attempt: u32) -> Result<(PodNetwork, Vec<std::net::IpAddr>), String> {
        if self.host_network() {
            return Ok((PodNetwork::Host, self.parts.facts.host_ips.clone()));
        }
        let Some(network) = &self.parts.network else {
            return Ok((PodNetwork::Runtime, Vec::new()));
        };
        let key = network_key(&self.uid, attempt);
        let attached = network.attach(&key, &host_ports(&self.pod)).await;
        let attached =
            attached.map_err(|error| format!("failed to set up the pod's network: {error}"))?;
        Ok((PodNetwork::Path(attached.netns), attached.addresses))
    }

    /// Nobody will look for it: there is no sandbox that it belongs to.
    async fn give_back_network(&self, attempt: u32) {
        if let Some(network) = &self.parts.network
            && let Err(error) = network.detach(&network_key(&self.uid, attempt)).await
        {
            tracing::warn!(pod = %self.title(), %error, "an address was not given back");
        }
    }

    /// Ends every sandbox and lets go of its network; containers were ended before.
    pub(super) async fn stop_sandboxes(&mut self, observed: &Observed) -> Result<(), String> {
        for sandbox in &observed.sandboxes {
            let stopped = self.parts.runtime.stop_sandbox(&sandbox.id).await;
            stopped.map_err(|error| error.to_string())?;
            if let Some(network) = &self.parts.network {
                let detached = network.detach(&network_key(&self.uid, sandbox.attempt)).await;
                detached.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// Resolves when the API has another version of the pod.
async fn changed(orders: &mut tokio::sync::watch::Receiver<Orders>, pod: &Pod) {
    let version = pod.metadata.resource_version.clone();
    if orders.wait_for(|orders| orders.pod.metadata.resource_version != version).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// N-133
fn unmounted(failed: &[crate::volumes::VolumeError]) -> String {
    let names: Vec<&str> = failed.iter().map(|error| error.volume.as_str()).collect();
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], \
         failed to process volumes=[]: timed out waiting for the condition",
        names.join(" ")
    )
}

/// Ports of the node that lead to the pod; sidecars' too (N-51).
fn host_ports(pod: &Pod) -> Vec<network::HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let lasting = lifecycle::containers::lasting_containers(spec);
    let ports = lasting.flat_map(|(_, container)| container.ports.iter().flatten());
    let mapped = ports.filter_map(|port| {
        Some(network::HostPort {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => network::Protocol::Udp,
                Some("SCTP") => network::Protocol::Sctp,
                Some(_) | None => network::Protocol::Tcp,
            },
            host_ip: port.host_ip.as_deref().and_then(|ip| ip.parse().ok()),
            host_port: u16::try_from(port.host_port?).ok().filter(|port| *port != 0)?,
            container_port: u16::try_from(port.container_port).ok()?,
        })
    });
    mapped.collect()
}
