//! Starting containers: image, configuration, create, start, postStart, one after another (N-41, N-45).

use super::Worker;
use super::bringup::Performed;
use crate::config::{self, Inputs, PodContainer};
use crate::logs;
use crate::probes::run_hook;
use crate::volumes::{Mounted, subpath};
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use lifecycle::bringup::{Plan, Start};
use lifecycle::observed::{Observed, Sandbox, StartFailure, State};
use std::path::Path;
use std::sync::Arc;

/// An attempt that did not lead to a running container.
enum Stopped {
    Failed(StartFailure),
    /// The pod is to end; nothing was started.
    Ending,
}

impl Worker {
    /// Each in its turn. One that fails does not stop the others, except an init container (N-40, N-41).
    pub(super) async fn start_all(
        &mut self,
        plan: &Plan,
        sandbox: Sandbox,
        mut volumes: Mounted,
        observed: &Observed,
    ) -> Result<Performed, String> {
        let mut performed = match plan.sandbox {
            Some(_) => Performed::Something,
            None => Performed::Nothing,
        };
        for start in &plan.start {
            match self.start(start, &sandbox, &mut volumes, observed).await {
                Ok(()) => {
                    self.failures.remove(&start.name);
                    if !matches!(performed, Performed::Failed) {
                        performed = Performed::Something;
                    }
                    let observed = self.observe().await?;
                    self.publish(&observed);
                }
                Err(Stopped::Ending) => return Ok(Performed::Something),
                Err(Stopped::Failed(failure)) => {
                    self.failures.insert(start.name.clone(), failure);
                    let observed = self.observe().await?;
                    self.publish(&observed);
                    performed = Performed::Failed;
                    if start.failure_ends_pass() {
                        break;
                    }
                }
            }
        }
        Ok(performed)
    }

    async fn start(
        &mut self,
        start: &Start,
        sandbox: &Sandbox,
        volumes: &mut Mounted,
        observed: &Observed,
    ) -> Result<(), Stopped> {
        let pod = self.pod.clone();
        let containers = config::containers(&pod);
        let found = containers.iter().find(|container| container.name == start.name);
        let Some(container) = found else { return Err(Stopped::Ending) };
        let on = client::part(&self.reference(), &container.field_path());
        let image = self.image(container, &on).await?;
        self.image_volumes(container, volumes).await?;
        start.note(&mut self.backoffs, clock::now());
        let addresses = &sandbox.addresses;
        let target = container.target.and_then(|name| observed.latest(name));
        if container.target.is_some() && !target.is_some_and(|target| target.is_running()) {
            let name = container.target.unwrap_or_default();
            return Err(self.failed(
                &on,
                CONFIG,
                format!("unable to find target container {name}"),
            ));
        }
        let spec = config::container(Inputs {
            pod: &pod,
            container,
            attempt: start.attempt,
            image: &image,
            pod_ips: addresses,
            facts: &self.parts.facts,
            objects: &self.parts.objects,
            volumes,
            target: target.map(|target| target.id.as_str()),
        });
        let spec = spec.await.map_err(|error| self.failed(&on, CONFIG, error.message))?;
        let sort = container.kind.metric();
        let cleared = self.clear_unstarted(observed, start).await;
        cleared.map_err(|error| self.failed(&on, CREATE, error.to_string()))?;
        let created = self.parts.runtime.create_container(&sandbox.id, &spec).await;
        let created = created.map_err(|error| {
            self.not_started(sort, CREATE);
            self.failed(&on, CREATE, error.to_string())
        })?;
        self.parts.recorder.normal(&on, "Created", "Container created");
        if self.cause().is_some() || self.orders.borrow().pod.metadata.deletion_timestamp.is_some()
        {
            return Err(Stopped::Ending);
        }
        let started = self.parts.runtime.start_container(&created.id).await;
        started.map_err(|error| {
            self.not_started(sort, RUN);
            let text = error.to_string().replace(&created.id, &container.name);
            self.failed(&on, RUN, text)
        })?;
        self.parts.recorder.normal(&on, "Started", "Container started");
        self.link_log(&created);
        self.parts.metrics.add("kubelet_started_containers_total", &[("container_type", sort)], 1);
        self.forget_older(observed, start).await;
        self.after_start(container, &created.id, &on, addresses).await
    }

    async fn image(
        &mut self,
        container: &PodContainer<'_>,
        on: &ObjectReference,
    ) -> Result<runtime::Image, Stopped> {
        let secrets = self.pull_secrets().await;
        let policy = container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        let mut orders = self.orders.clone();
        let ensured =
            self.parts.images.ensure(&self.pod, on, container.image_name(), policy, &secrets);
        let ensured = tokio::select! {
            biased;
            () = Worker::ending(&mut orders) => return Err(Stopped::Ending),
            ensured = ensured => ensured,
        };
        ensured.map_err(|error| {
            Stopped::Failed(StartFailure {
                reason: error.reason.to_owned(),
                message: error.message,
            })
        })
    }

    /// Image volumes that this container mounts (N-146): pulled like images, told on the pod.
    async fn image_volumes(
        &mut self,
        container: &PodContainer<'_>,
        volumes: &mut Mounted,
    ) -> Result<(), Stopped> {
        let pod = self.pod.clone();
        let all = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mounted = container.volume_mounts.as_deref().unwrap_or_default();
        let used = |name: &str| mounted.iter().any(|mount| mount.name == name);
        for volume in all.iter().filter(|volume| used(&volume.name)) {
            let Some(source) = &volume.image else { continue };
            let on = self.reference();
            let secrets = self.pull_secrets().await;
            let policy = source.pull_policy.as_deref().unwrap_or("IfNotPresent");
            let name = source.reference.as_deref().unwrap_or_default();
            let mut orders = self.orders.clone();
            let ensured = tokio::select! {
                biased;
                () = Worker::ending(&mut orders) => return Err(Stopped::Ending),
                ensured = self.parts.images.ensure(&pod, &on, name, policy, &secrets) => ensured,
            };
            let image = ensured.map_err(|error| {
                Stopped::Failed(StartFailure {
                    reason: error.reason.to_owned(),
                    message: error.message,
                })
            })?;
            let shown = self.parts.volumes.mount_image(&pod, &volume.name, &image, volumes).await;
            shown.map_err(|error| self.failed(&on, CREATE, error.message))?;
            let root = volumes.volumes.get(&volume.name).map(|volume| volume.path.clone());
            let parts = mounted.iter().filter(|mount| mount.name == volume.name);
            for part in parts.filter_map(|mount| mount.sub_path.as_deref()) {
                // Nothing can be made in an image: what is asked for must be there.
                if root.as_ref().is_some_and(|root| !subpath::exists(root, Path::new(part))) {
                    let message = format!("subPath {part:?} is not in image {name:?}");
                    let on = client::part(&on, &container.field_path());
                    return Err(self.failed(&on, CREATE, message));
                }
            }
        }
        Ok(())
    }

    /// N-174: what is missing is told, and the pull goes on without it.
    async fn pull_secrets(&self) -> Vec<Arc<Secret>> {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        let named = self.pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_deref());
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for reference in named.unwrap_or_default() {
            let name = reference.name.as_str();
            match self.parts.objects.secret(namespace, name).await {
                Ok(Some(secret)) => found.push(secret),
                Ok(None) | Err(_) => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may \
                 not succeed.",
                missing.join(", ")
            );
            let reason = "FailedToRetrieveImagePullSecret";
            self.parts.recorder.warning(&self.reference(), reason, message);
        }
        found
    }

    /// postStart holds up the containers after this one (T-NODE-67).
    async fn after_start(
        &mut self,
        container: &PodContainer<'_>,
        id: &str,
        on: &ObjectReference,
        addresses: &[std::net::IpAddr],
    ) -> Result<(), Stopped> {
        let hooks = container.lifecycle.as_ref();
        let Some(handler) = hooks.and_then(|hooks| hooks.post_start.as_ref()) else {
            return Ok(());
        };
        let mut orders = self.orders.clone();
        let target = self.target(&container.name, id, addresses);
        let ran = run_hook(handler, &target, &self.parts.recorder);
        let ran = tokio::select! {
            biased;
            // T-NODE-7: upstream would wait for the hook; a delete need not.
            () = Worker::ending(&mut orders) => return Err(Stopped::Ending),
            ran = ran => ran,
        };
        let Err(failure) = ran else { return Ok(()) };
        tracing::info!(pod = %self.title(), why = failure.message, "postStart failed");
        self.parts.recorder.warning(on, "FailedPostStartHook", "PostStartHook failed");
        self.end_after_hook(container, id).await;
        Err(Stopped::Failed(StartFailure {
            reason: "PostStartHookError".into(),
            message: failure.message,
        }))
    }

    /// An instance that was made and not started may be about to: the agent before us can have died in
    /// the middle of that. It must not run beside its successor.
    async fn clear_unstarted(&mut self, observed: &Observed, start: &Start) -> runtime::Result<()> {
        let made = observed.instances(&start.name).filter(|made| made.state == State::Created);
        let made: Vec<String> = made.map(|made| made.id.clone()).collect();
        for id in made {
            self.parts.runtime.remove_container(&id).await?;
            self.forget_container(&id);
        }
        Ok(())
    }

    /// Only the last ended instance is kept, for `--previous` (T-NODE-75).
    async fn forget_older(&mut self, observed: &Observed, start: &Start) {
        let ended = observed.instances(&start.name).filter(|instance| !instance.is_running());
        let older: Vec<(String, u32)> = ended.skip(1).map(|c| (c.id.clone(), c.attempt)).collect();
        for (id, attempt) in older {
            if let Err(error) = self.parts.runtime.remove_container(&id).await {
                tracing::warn!(%error, id, "an old container was not removed");
            }
            let log = self.log_dir().join(logs::container_log(&start.name, attempt));
            let _ = logs::remove_instance(&log);
            self.unlink_log(&start.name, &id);
            self.forget_container(&id);
        }
    }

    /// N-157
    fn link_log(&self, container: &runtime::Container) {
        let names = (container.name.as_str(), container.id.as_str());
        let linked = logs::link(&self.parts.log_links, self.names(), names, &container.log_path);
        if let Err(error) = linked {
            tracing::warn!(%error, id = container.id, "the log has no link");
        }
    }

    pub(super) fn unlink_log(&self, container: &str, id: &str) {
        let _ = logs::unlink(&self.parts.log_links, self.names(), (container, id));
    }

    fn not_started(&self, sort: &str, code: &str) {
        let labels = [("code", code), ("container_type", sort)];
        self.parts.metrics.add("kubelet_started_containers_errors_total", &labels, 1);
    }

    fn failed(&self, on: &ObjectReference, reason: &str, message: String) -> Stopped {
        self.parts.recorder.warning(on, "Failed", format!("Error: {message}"));
        Stopped::Failed(StartFailure { reason: reason.into(), message })
    }
}

const CONFIG: &str = "CreateContainerConfigError";
const CREATE: &str = "CreateContainerError";
const RUN: &str = "RunContainerError";
