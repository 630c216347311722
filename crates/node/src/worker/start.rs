//! Starting containers: image, configuration, create, start, postStart, one after another (N-41, N-45).

use super::Worker;
use super::sync::Performed;
use crate::probes::run_hook;
use endpoint::logs;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use lifecycle::bringup::{Plan, Start};
use lifecycle::observed::{Observed, Sandbox, StartFailure, State};
use podconfig::{Inputs, MountedVolumes, PodContainer, subpath};
use std::path::Path;
use std::sync::Arc;

/// Why a container was not started.
enum NotStarted {
    Failed(StartFailure),
    /// The pod has to terminate.
    Terminating,
}

impl Worker {
    /// Starts the containers of the plan one after another. A failure does not stop the others, except that
    /// of an init container (N-40, N-41).
    pub(super) async fn start_all(
        &mut self,
        plan: &Plan,
        sandbox: Sandbox,
        mut volumes: MountedVolumes,
        observed: &Observed,
    ) -> Result<Performed, String> {
        let mut performed = match plan.sandbox {
            Some(_) => Performed::Something,
            None => Performed::Nothing,
        };
        for start in &plan.start {
            match self.start(start, &sandbox, &mut volumes, observed).await {
                Ok(()) => {
                    self.attempts.failures.remove(&start.name);
                    if !matches!(performed, Performed::Failed) {
                        performed = Performed::Something;
                    }
                    let observed = self.observe().await?;
                    self.publish(&observed);
                }
                Err(NotStarted::Terminating) => return Ok(Performed::Something),
                Err(NotStarted::Failed(failure)) => {
                    self.attempts.failures.insert(start.name.clone(), failure);
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
        volumes: &mut MountedVolumes,
        observed: &Observed,
    ) -> Result<(), NotStarted> {
        let pod = self.pod.clone();
        let containers = podconfig::containers(&pod);
        let found = containers.iter().find(|container| container.name == start.name);
        let Some(container) = found else { return Err(NotStarted::Terminating) };
        let on = client::field_reference(&self.reference(), &container.field_path());
        let image = self.image(container, &on).await?;
        self.image_volumes(container, volumes).await?;
        start.note(&mut self.attempts.backoffs, clock::now());
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
        let spec = podconfig::container(Inputs {
            pod: &pod,
            container,
            attempt: start.attempt,
            image: &image,
            pod_ips: addresses,
            facts: &self.deps.facts,
            objects: &self.deps.objects,
            volumes,
            target: target.map(|target| target.id.as_str()),
        });
        let spec = spec.await.map_err(|error| self.failed(&on, CONFIG, error.message))?;
        let container_type = container.kind.metric();
        let removed = self.remove_unstarted(observed, start).await;
        removed.map_err(|error| self.failed(&on, CREATE, error.to_string()))?;
        let created = self.deps.runtime.create_container(&sandbox.id, &spec).await;
        let created = created.map_err(|error| {
            self.count_failed_start(container_type, CREATE);
            self.failed(&on, CREATE, error.to_string())
        })?;
        self.deps.recorder.normal(&on, "Created", "Container created");
        let deleted = self.inbox.current().pod.metadata.deletion_timestamp.is_some();
        if deleted || self.termination_cause().is_some() {
            return Err(NotStarted::Terminating);
        }
        let started = self.deps.runtime.start_container(&created.id).await;
        started.map_err(|error| {
            self.count_failed_start(container_type, RUN);
            let text = error.to_string().replace(&created.id, &container.name);
            self.failed(&on, RUN, text)
        })?;
        self.deps.recorder.normal(&on, "Started", "Container started");
        self.link_log(&created);
        self.deps.metrics.add(
            "kubelet_started_containers_total",
            &[("container_type", container_type)],
            1,
        );
        self.remove_older(observed, start).await;
        self.run_post_start(container, &created.id, &on, addresses).await
    }

    async fn image(
        &mut self,
        container: &PodContainer<'_>,
        on: &ObjectReference,
    ) -> Result<runtime::Image, NotStarted> {
        let secrets = self.pull_secrets().await;
        let policy = container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        let mut desired = self.inbox.watch();
        let ensured =
            self.deps.images.ensure(&self.pod, on, container.image_name(), policy, &secrets);
        let ensured = tokio::select! {
            biased;
            () = desired.termination() => return Err(NotStarted::Terminating),
            ensured = ensured => ensured,
        };
        ensured.map_err(|error| {
            NotStarted::Failed(StartFailure {
                reason: error.reason.to_owned(),
                message: error.message,
            })
        })
    }

    /// Image volumes that this container mounts (N-146): pulled like images, with events on the pod.
    async fn image_volumes(
        &mut self,
        container: &PodContainer<'_>,
        volumes: &mut MountedVolumes,
    ) -> Result<(), NotStarted> {
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
            let mut desired = self.inbox.watch();
            let ensured = tokio::select! {
                biased;
                () = desired.termination() => return Err(NotStarted::Terminating),
                ensured = self.deps.images.ensure(&pod, &on, name, policy, &secrets) => ensured,
            };
            let image = ensured.map_err(|error| {
                NotStarted::Failed(StartFailure {
                    reason: error.reason.to_owned(),
                    message: error.message,
                })
            })?;
            let shown = self.deps.volumes.mount_image(&pod, &volume.name, &image, volumes).await;
            shown.map_err(|error| self.failed(&on, CREATE, error.message))?;
            let root = volumes.volumes.get(&volume.name).map(|volume| volume.path.clone());
            let parts = mounted.iter().filter(|mount| mount.name == volume.name);
            for part in parts.filter_map(|mount| mount.sub_path.as_deref()) {
                // An image is read-only: a subPath in it must exist.
                if root.as_ref().is_some_and(|root| !subpath::exists(root, Path::new(part))) {
                    let message = format!("subPath {part:?} is not in image {name:?}");
                    let on = client::field_reference(&on, &container.field_path());
                    return Err(self.failed(&on, CREATE, message));
                }
            }
        }
        Ok(())
    }

    /// Missing pull secrets are reported by an event, and the pull goes on without them (N-174).
    async fn pull_secrets(&self) -> Vec<Arc<Secret>> {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        let named = self.pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_deref());
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for reference in named.unwrap_or_default() {
            let name = reference.name.as_str();
            match self.deps.objects.secret(namespace, name).await {
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
            self.deps.recorder.warning(&self.reference(), reason, message);
        }
        found
    }

    /// Runs the postStart hook; the containers after this one wait for it (T-NODE-67).
    async fn run_post_start(
        &mut self,
        container: &PodContainer<'_>,
        id: &str,
        on: &ObjectReference,
        addresses: &[std::net::IpAddr],
    ) -> Result<(), NotStarted> {
        let hooks = container.lifecycle.as_ref();
        let Some(handler) = hooks.and_then(|hooks| hooks.post_start.as_ref()) else {
            return Ok(());
        };
        let mut desired = self.inbox.watch();
        let target = self.hook_target(&container.name, id, addresses);
        let ran = run_hook(handler, &target, &self.deps.recorder);
        let ran = tokio::select! {
            biased;
            // Upstream would wait for the hook before it terminates the pod; landfall does not (T-NODE-7).
            () = desired.termination() => return Err(NotStarted::Terminating),
            ran = ran => ran,
        };
        let Err(failure) = ran else { return Ok(()) };
        tracing::info!(pod = %self.title(), error = failure.message, "postStart hook failed");
        self.deps.recorder.warning(on, "FailedPostStartHook", "PostStartHook failed");
        self.terminate_after_post_start(container, id).await;
        Err(NotStarted::Failed(StartFailure {
            reason: "PostStartHookError".into(),
            message: failure.message,
        }))
    }

    /// Removes instances that were created but not started. An earlier agent may have died while it started
    /// one, which could then run beside its successor.
    async fn remove_unstarted(
        &mut self,
        observed: &Observed,
        start: &Start,
    ) -> runtime::Result<()> {
        let created = observed.instances(&start.name).filter(|it| it.state == State::Created);
        let created: Vec<String> = created.map(|instance| instance.id.clone()).collect();
        for id in created {
            self.deps.runtime.remove_container(&id).await?;
            self.forget_container(&id);
        }
        Ok(())
    }

    /// Removes ended instances except the last one, which is kept for `kubectl logs --previous` (T-NODE-75).
    async fn remove_older(&mut self, observed: &Observed, start: &Start) {
        let ended = observed.instances(&start.name).filter(|instance| !instance.is_running());
        let older: Vec<(String, u32)> = ended.skip(1).map(|c| (c.id.clone(), c.attempt)).collect();
        for (id, attempt) in older {
            if let Err(error) = self.deps.runtime.remove_container(&id).await {
                tracing::warn!(%error, id, "removing an old container failed");
            }
            let log = self.log_dir().join(logs::container_log(&start.name, attempt));
            let _ = logs::remove_instance(&log);
            self.unlink_log(&start.name, &id);
            self.forget_container(&id);
        }
    }

    /// Every log has a second path with the container's id in it (N-157).
    fn link_log(&self, container: &runtime::Container) {
        let names = (container.name.as_str(), container.id.as_str());
        let linked =
            logs::link(&self.deps.log_links, self.namespace_and_name(), names, &container.log_path);
        if let Err(error) = linked {
            tracing::warn!(%error, id = container.id, "linking the container's log failed");
        }
    }

    pub(super) fn unlink_log(&self, container: &str, id: &str) {
        let _ = logs::unlink(&self.deps.log_links, self.namespace_and_name(), (container, id));
    }

    fn count_failed_start(&self, container_type: &str, code: &str) {
        let labels = [("code", code), ("container_type", container_type)];
        self.deps.metrics.add("kubelet_started_containers_errors_total", &labels, 1);
    }

    fn failed(&self, on: &ObjectReference, reason: &str, message: String) -> NotStarted {
        self.deps.recorder.warning(on, "Failed", format!("Error: {message}"));
        NotStarted::Failed(StartFailure { reason: reason.into(), message })
    }
}

const CONFIG: &str = "CreateContainerConfigError";
const CREATE: &str = "CreateContainerError";
const RUN: &str = "RunContainerError";
