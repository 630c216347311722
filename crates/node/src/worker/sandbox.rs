//! Before containers: the pod's volumes, its network and its sandbox.

use super::Worker;
use super::observe::network_key;
use crate::node_object::node_reference;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::bringup::{NewSandbox, SANDBOX_CHANGED};
use lifecycle::observed::{Observed, Sandbox};

use podconfig::MountedVolumes;
use runtime::{PodNetwork, SandboxState, UserRange};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A failed volume is retried after this time, doubling, for as long as one pass waits for it (N-132).
const MOUNT_RETRY_FIRST: Duration = Duration::from_millis(500);
const MOUNT_WAIT: Duration = Duration::from_secs(123);

impl Worker {
    /// Mounts all volumes that containers use. None: the pod has to terminate meanwhile.
    pub(super) async fn mount_volumes(&mut self) -> Result<Option<MountedVolumes>, String> {
        let deadline = tokio::time::Instant::now() + MOUNT_WAIT;
        let mut pause = MOUNT_RETRY_FIRST;
        let (mut changes, mut desired) = (self.inbox.watch(), self.inbox.watch());
        loop {
            let failed = match self.deps.volumes.set_up(&self.pod).await {
                Ok(mounted) => {
                    clock::crash_point("volumes made");
                    return Ok(Some(mounted));
                }
                Err(failed) => failed,
            };
            for error in &failed {
                let message = error.event_message();
                self.deps.recorder.warning(&self.reference(), "FailedMount", message);
            }
            if tokio::time::Instant::now() + pause > deadline {
                let message = unmounted(&failed);
                self.deps.recorder.warning(&self.reference(), "FailedMount", message.clone());
                return Err(message);
            }
            tokio::select! {
                biased;
                () = desired.termination() => return Ok(None),
                // An object that the volume needs may have appeared.
                () = self.inbox.woken() => {}
                () = changes.other_version(&self.pod) => {}
                () = tokio::time::sleep(pause) => {}
            }
            let pod = self.inbox.current().pod.clone();
            self.pod = self.deps.allocations.with_granted(&pod);
            pause = (pause * 2).min(MOUNT_WAIT);
        }
    }

    /// A running pod's configMap, secret, projected and downwardAPI volumes follow their objects (N-134).
    pub(super) async fn refresh_volumes(&mut self) {
        let Err(failed) = self.deps.volumes.set_up(&self.pod).await else { return };
        for error in failed {
            self.deps.recorder.warning(&self.reference(), "FailedMount", error.event_message());
        }
    }

    /// None: the network is not ready, and an event says so (N-19).
    pub(super) async fn create_sandbox(
        &mut self,
        new: &NewSandbox,
    ) -> Result<Option<Sandbox>, String> {
        if new.changed {
            self.deps.recorder.normal(&self.reference(), "SandboxChanged", SANDBOX_CHANGED);
        }
        let created = self.try_create_sandbox(new).await;
        let created = created.map_err(|why| {
            self.deps.metrics.add("kubelet_started_pods_errors_total", &[], 1);
            let message = format!("Failed to create pod sandbox: {why}");
            self.deps.recorder.warning(&self.reference(), "FailedCreatePodSandBox", message);
            why
        })?;
        self.deps.metrics.add("kubelet_started_pods_total", &[], 1);
        self.warn_of_dns();
        // PodReadyToStartContainers, before any image is pulled (N-78).
        let observed = self.observe().await?;
        self.publish(&observed);
        Ok(Some(created))
    }

    /// Warnings about the pod's DNS settings (N-60). That the node has no cluster DNS is reported once, on the
    /// Node.
    fn warn_of_dns(&self) {
        for warning in podconfig::dns_warnings(&self.pod, &self.deps.facts) {
            let of_node = warning.reason == podconfig::MISSING_CLUSTER_DNS;
            if of_node && self.deps.dns_told.swap(true, Ordering::Relaxed) {
                continue;
            }
            let on = match of_node {
                true => node_reference(&self.deps.facts.name),
                false => self.reference(),
            };
            self.deps.recorder.warning(&on, warning.reason, warning.message);
        }
    }

    async fn try_create_sandbox(&mut self, new: &NewSandbox) -> Result<Sandbox, String> {
        let handler = self.deps.objects.handler(&self.pod).await?;
        let (pod, facts) = (&self.pod, &self.deps.facts);
        let mut spec = podconfig::sandbox(pod, facts, new.attempt, PodNetwork::Runtime)?;
        spec.users = self.users(&handler).await?;
        spec.handler = handler;
        let (network, addresses) = self.network(new.attempt, spec.users).await?;
        let host_network = network == PodNetwork::Host;
        spec.network = network;
        let created = match self.deps.runtime.run_sandbox(&spec).await {
            Ok(created) => created,
            Err(error) => {
                self.release_network(new.attempt).await;
                return Err(error.to_string());
            }
        };
        Ok(Sandbox {
            id: created.id,
            attempt: created.attempt,
            ready: created.state == SandboxState::Ready,
            host_network,
            addresses: if addresses.is_empty() { created.addresses } else { addresses },
        })
    }

    /// The user ids of the pod's own user namespace, if it has one (N-124).
    async fn users(&self, handler: &str) -> Result<Option<UserRange>, String> {
        if self.pod.spec.as_ref().and_then(|spec| spec.host_users) != Some(false) {
            return Ok(None);
        }
        if !self.deps.runtime.features().user_namespaces {
            let who = match handler {
                "" => "runtime".to_owned(),
                handler => format!("RuntimeClass handler {handler:?}"),
            };
            return Err(format!(
                "can't set `spec.hostUsers: false`, {who} does not support user namespaces"
            ));
        }
        let (deps, uid) = (self.deps.clone(), self.uid.clone());
        let users = clock::run_blocking(move || deps.users.get_or_allocate(&uid)).await;
        let users = users.map_err(|error| error.to_string())?;
        users.map(Some).map_err(|error| format!("create user namespace: {error}"))
    }

    async fn network(
        &self,
        attempt: u32,
        users: Option<UserRange>,
    ) -> Result<(PodNetwork, Vec<std::net::IpAddr>), String> {
        if self.uses_host_network() {
            return Ok((PodNetwork::Host, self.deps.facts.host_ips.clone()));
        }
        let Some(network) = &self.deps.network else {
            return Ok((PodNetwork::Runtime, Vec::new()));
        };
        let key = network_key(&self.uid, attempt);
        let users = users.map(|it| network::UserRange { first: it.first, count: it.count });
        let attached = network.attach_for(&key, &host_ports(&self.pod), users).await;
        let attached =
            attached.map_err(|error| format!("failed to set up the pod's network: {error}"))?;
        if let Some(traffic) = &self.deps.traffic {
            traffic.pod_attached(&self.pod, &attached.addresses).await;
        }
        Ok((PodNetwork::Path(attached.netns), attached.addresses))
    }

    /// Releases the network of a sandbox that was not created: nothing else would find it.
    async fn release_network(&self, attempt: u32) {
        if let Some(network) = &self.deps.network
            && let Err(error) = network.detach(&network_key(&self.uid, attempt)).await
        {
            tracing::warn!(pod = %self.title(), %error, "releasing the pod's network failed");
        }
    }

    /// Stops every sandbox and detaches its network. The containers have been stopped before.
    pub(super) async fn stop_sandboxes(&mut self, observed: &Observed) -> Result<(), String> {
        for sandbox in &observed.sandboxes {
            let stopped = self.deps.runtime.stop_sandbox(&sandbox.id).await;
            stopped.map_err(|error| error.to_string())?;
            if let Some(traffic) = &self.deps.traffic {
                traffic.pod_detached(&self.uid).await;
            }
            if let Some(network) = &self.deps.network {
                let detached = network.detach(&network_key(&self.uid, sandbox.attempt)).await;
                detached.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// The event of volumes that could not be mounted in time (N-133).
fn unmounted(failed: &[volumes::VolumeError]) -> String {
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
