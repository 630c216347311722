//! Runs containers with a CRI runtime such as containerd or CRI-O, over its socket.
//!
//! The CRI runtime creates the network (CNI) and stores the images. `request` builds CRI messages, `observe` parses
//! answers, `changes` detects changes, `stream` copies the stdio of exec and attach.
//! Not here: landfall's own runtime (`native`).

mod calls;
mod changes;
mod connect;
mod images;

mod observe;
mod request;
mod stored;
mod stream;

use crate::cgroup::{Cgroup, Level, limit_group};
use crate::{
    Change, Container, ContainerSpec, ContainerUsage, Error, Exec, Features, Images, Resources,
    Result, Runtime, Sandbox, SandboxSpec, Session, User, Version,
};
use async_trait::async_trait;
use calls::{Calls, SANDBOX_TIMEOUT, TIMEOUT};
use changes::Watcher;
use futures::future::BoxFuture;
use images::CriImages;
use k8s_cri::v1;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;

/// Maximum number of entries in each cache of container details.
const CACHED_MAX: usize = 4096;

/// CRI does not report when it has sent the stop signal, only when the container has stopped. If the call has not
/// failed after this time, the signal was sent.
const SIGNAL_SENT_AFTER: Duration = Duration::from_millis(100);

/// Seconds that the CRI runtime waits longer than the grace period before it kills a container. The agent kills it at
/// the end of the grace period and records why; the runtime's timer is for the case that the agent has died. (With a
/// timeout of 0, the runtime would kill at once.)
const EXTRA_SECONDS: i64 = 5;
const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// A CRI runtime behind a socket.
pub struct Cri {
    calls: Calls,
    images: CriImages,
    watcher: Watcher,
    features: Features,
    /// Status of exited containers, which does not change any more.
    exited: Mutex<HashMap<String, v1::ContainerStatus>>,
    /// Limits that were changed after the container was created.
    updated: Mutex<HashMap<String, Resources>>,
    /// Users of containers whose status does not contain it.
    users: Mutex<HashMap<String, ProcessUser>>,
}

impl Cri {
    /// Connects to a socket such as `unix:///run/containerd/containerd.sock`. Fails if there is no CRI v1 runtime.
    ///
    /// The future is boxed so that the code behind it is compiled in this crate, not in every program that awaits it.
    pub fn connect(endpoint: &str) -> BoxFuture<'_, Result<Cri>> {
        Box::pin(Cri::connect_to(endpoint))
    }

    async fn connect_to(endpoint: &str) -> Result<Cri> {
        let calls = Calls::connect(endpoint).await?;
        calls.version().await?;
        let images = CriImages::open(calls.clone()).await?;
        let features = observe::features(&calls.status().await?);
        let watcher = Watcher::start(calls.clone());
        let (exited, updated, users) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Cri { calls, images, watcher, features, exited, updated, users })
    }

    async fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        let call = async |mut to: calls::Client| to.pod_sandbox_status(request).await;
        let status = self.calls.runtime("sandbox", id, TIMEOUT, call).await?.status;
        status.ok_or_else(|| Error::NotFound { what: "sandbox", id: id.into() })
    }

    /// The spec that a sandbox was created with.
    async fn spec_of(&self, id: &str) -> Result<SandboxSpec> {
        let status = self.sandbox_status(id).await?;
        stored::sandbox(&status.annotations)
            .ok_or_else(|| Error::Refused(format!("sandbox {id:?} was not created by landfall")))
    }

    async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus> {
        if let Some(status) = lock(&self.exited).get(id) {
            return Ok(status.clone());
        }
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        let call = async |mut to: calls::Client| to.container_status(request).await;
        let status = self.calls.runtime("container", id, TIMEOUT, call).await?.status;
        let status = status.ok_or_else(|| Error::NotFound { what: "container", id: id.into() })?;
        if status.state() == v1::ContainerState::ContainerExited {
            let mut exited = lock(&self.exited);
            if exited.len() >= CACHED_MAX {
                exited.clear();
            }
            exited.insert(id.into(), status.clone());
        }
        Ok(status)
    }

    async fn container(&self, id: &str, sandbox: &str) -> Result<Container> {
        let status = self.container_status(id).await?;
        let mut container = observe::container(&status, sandbox);
        if let Some(resources) = lock(&self.updated).get(id) {
            container.resources = resources.clone();
        }
        if container.user.is_none() {
            container.user = self.user_of(id).await?;
        }
        Ok(container)
    }

    /// Older CRI runtimes return the user only in the verbose information.
    async fn user_of(&self, id: &str) -> Result<Option<ProcessUser>> {
        if let Some(user) = lock(&self.users).get(id) {
            return Ok(Some(user.clone()));
        }
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: true };
        let call = async |mut to: calls::Client| to.container_status(request).await;
        let info = self.calls.runtime("container", id, TIMEOUT, call).await?.info;
        let user = observe::user(&info);
        if let Some(user) = &user {
            let mut users = lock(&self.users);
            if users.len() >= CACHED_MAX {
                users.clear();
            }
            users.insert(id.into(), user.clone());
        }
        Ok(user)
    }

    /// Sandboxes with these labels, newest first.
    async fn list(&self, labels: HashMap<String, String>) -> Result<Vec<Sandbox>> {
        let (sandboxes, containers) = self.calls.list(labels).await?;
        let mut found = Vec::with_capacity(sandboxes.len());
        for sandbox in sandboxes {
            let mut inside = Vec::new();
            for container in containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id) {
                match self.container(&container.id, &sandbox.id).await {
                    Ok(container) => inside.push(container),
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
            crate::newest_first(&mut inside);
            match self.sandbox_status(&sandbox.id).await {
                Ok(status) => found.push(observe::sandbox(&status, inside)),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        crate::newest_sandbox_first(&mut found);
        Ok(found)
    }

    /// CRI needs the user. If the pod does not set it, it is the image's.
    async fn set_user(&self, spec: &ContainerSpec, config: &mut v1::ContainerConfig) -> Result<()> {
        let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
        if let (User::Image, Some(security)) = (&spec.security.user, security) {
            let image = crate::ImageReference(spec.image.clone());
            let image = self
                .images
                .find(&image)
                .await?
                .ok_or_else(|| Error::NotFound { what: "image", id: spec.image.clone() })?;
            match image.uid {
                Some(uid) => security.run_as_user = Some(v1::Int64Value { value: uid.into() }),
                None => security.run_as_username = image.username,
            }
        }
        Ok(())
    }

    /// Removes a pod's cgroup if this is its last sandbox. The CRI runtime only removes the cgroups below it. This
    /// happens before the sandbox is removed: if the agent is killed in between, the next agent finds the sandbox.
    async fn remove_pod_cgroup(&self, sandbox: &str, spec: &SandboxSpec) -> Result<()> {
        let labels = HashMap::from([(request::POD_UID.to_string(), spec.pod.uid.clone())]);
        let (left, _) = self.calls.list(labels).await?;
        if left.iter().all(|other| other.id == sandbox) && !spec.cgroup.is_empty() {
            let cgroup = Cgroup::new(&spec.cgroup);
            // If it is busy, it stays. Pod UIDs are unique, so nothing else uses it.
            let _ = tokio::task::spawn_blocking(move || cgroup.remove_everywhere()).await;
            clock::crash_point("cri: pod cgroup removed");
        }
        Ok(())
    }

    /// Stops a container and waits until it has stopped. No error if it does not exist.
    async fn stop_within(calls: &Calls, id: &str, seconds: i64) -> Result<()> {
        let request = v1::StopContainerRequest { container_id: id.into(), timeout: seconds };
        let timeout = TIMEOUT + Duration::from_secs(seconds.unsigned_abs());
        let call = async |mut to: calls::Client| to.stop_container(request).await;
        ignore_not_found(calls.runtime("container", id, timeout, call).await.map(drop))
    }
}

#[async_trait]
impl Runtime for Cri {
    async fn version(&self) -> Result<Version> {
        let answer = self.calls.version().await?;
        Ok(Version { name: answer.runtime_name, version: answer.runtime_version })
    }

    async fn ready(&self) -> Result<()> {
        let answer = self.calls.status().await?;
        observe::readiness(&answer.status.unwrap_or_default()).map_err(Error::Unavailable)
    }

    fn features(&self) -> Features {
        self.features
    }

    fn brings_network(&self) -> bool {
        true
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        let config = Some(request::sandbox(spec)?);
        create_directory(&spec.log_directory).await?;
        create_pod_cgroup(spec).await?;
        clock::crash_point("cri: pod cgroup made");
        let request = v1::RunPodSandboxRequest { config, runtime_handler: spec.handler.clone() };
        let call = async |mut to: calls::Client| to.run_pod_sandbox(request).await;
        let id = self.calls.runtime("sandbox", "", SANDBOX_TIMEOUT, call).await?.pod_sandbox_id;
        clock::crash_point("cri: sandbox made");
        self.watcher.relist();
        Ok(observe::sandbox(&self.sandbox_status(&id).await?, Vec::new()))
    }

    async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.into() };
        let call = async |mut to: calls::Client| to.stop_pod_sandbox(request).await;
        let stopped = self.calls.runtime("sandbox", sandbox, SANDBOX_TIMEOUT, call).await;
        clock::crash_point("cri: sandbox stopped");
        self.watcher.relist();
        ignore_not_found(stopped.map(drop))
    }

    async fn remove_sandbox(&self, sandbox: &str) -> Result<()> {
        self.stop_sandbox(sandbox).await?;
        if let Ok(spec) = self.spec_of(sandbox).await {
            self.remove_pod_cgroup(sandbox, &spec).await?;
        }
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.into() };
        let call = async |mut to: calls::Client| to.remove_pod_sandbox(request).await;
        let removed = self.calls.runtime("sandbox", sandbox, SANDBOX_TIMEOUT, call).await;
        clock::crash_point("cri: sandbox removed");
        self.watcher.relist();
        ignore_not_found(removed.map(drop))
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.list(HashMap::new()).await
    }

    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        self.list(HashMap::from([(request::POD_UID.to_string(), pod.to_string())])).await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.watcher.subscribe()
    }

    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container> {
        let sandbox_spec = self.spec_of(sandbox).await?;
        let mut config = request::container(&sandbox_spec, spec)?;
        self.set_user(spec, &mut config).await?;
        if let Some(directory) = sandbox_spec.log_directory.join(&config.log_path).parent() {
            create_directory(&directory.to_path_buf()).await?;
        }
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(request::sandbox_for(&sandbox_spec, spec)?),
        };
        let call = async |mut to: calls::Client| to.create_container(request).await;
        let id = self.calls.runtime("sandbox", sandbox, TIMEOUT, call).await?.container_id;
        clock::crash_point("cri: container made");
        self.watcher.relist();
        self.container(&id, sandbox).await
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        let request = v1::StartContainerRequest { container_id: container.into() };
        let call = async |mut to: calls::Client| to.start_container(request).await;
        let started = self.calls.runtime("container", container, TIMEOUT, call).await;
        clock::crash_point("cri: container started");
        self.watcher.relist();
        match started {
            Err(Error::Refused(message)) => Err(Error::Start(message)),
            other => other.map(drop),
        }
    }

    async fn stop_container(&self, container: &str, window: Duration) -> Result<()> {
        let seconds = stop_timeout(window);
        let (calls, id) = (self.calls.clone(), container.to_string());
        let watcher = self.watcher.handle();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let stopped = Cri::stop_within(&calls, &id, seconds).await;
            clock::crash_point("cri: container stopped");
            watcher.relist();
            if let Err(Err(error)) = sender.send(stopped) {
                tracing::warn!(container = id, %error, "the container runtime failed to stop a container");
            }
        });
        match tokio::time::timeout(SIGNAL_SENT_AFTER, receiver).await {
            Ok(stopped) => stopped.unwrap_or(Ok(())),
            Err(_) => Ok(()),
        }
    }

    /// The image's stop signal. CRI does not support another one.
    async fn stop_signal(&self, container: &str) -> Option<i32> {
        let status = self.container_status(container).await.ok()?;
        self.images.stop_signal(&status.image_ref).await
    }

    async fn kill_container(&self, container: &str) -> Result<()> {
        let killed = Cri::stop_within(&self.calls, container, 0).await;
        self.watcher.relist();
        killed
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        let request = v1::RemoveContainerRequest { container_id: container.into() };
        let call = async |mut to: calls::Client| to.remove_container(request).await;
        let removed = self.calls.runtime("container", container, TIMEOUT, call).await;
        lock(&self.exited).remove(container);
        lock(&self.updated).remove(container);
        lock(&self.users).remove(container);
        self.watcher.relist();
        ignore_not_found(removed.map(drop))
    }

    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()> {
        let status = self.container_status(container).await?;
        let score = stored::container(&status.annotations).map_or(0, |stored| stored.oom_score_adj);
        let request = v1::UpdateContainerResourcesRequest {
            container_id: container.into(),
            linux: Some(request::resources(resources, score)),
            ..Default::default()
        };
        let call = async |mut to: calls::Client| to.update_container_resources(request).await;
        self.calls.runtime("container", container, TIMEOUT, call).await?;
        let mut applied = lock(&self.updated).get(container).cloned();
        let applied = applied.get_or_insert_with(|| observe::container(&status, "").resources);
        applied.change(resources);
        lock(&self.updated).insert(container.into(), applied.clone());
        self.watcher.relist();
        Ok(())
    }

    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()> {
        limit_group(cgroup, resources).map_err(Error::io("set limits of the cgroup", cgroup))
    }

    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session> {
        stream::exec(&self.calls, container, exec).await
    }

    async fn attach(&self, container: &str, exec: &Exec) -> Result<Session> {
        stream::attach(&self.calls, container, exec).await
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        let request = v1::ReopenContainerLogRequest { container_id: container.into() };
        let call = async |mut to: calls::Client| to.reopen_container_log(request).await;
        self.calls.runtime("container", container, TIMEOUT, call).await.map(drop)
    }

    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        let request = v1::ListContainerStatsRequest { filter: None };
        let call = async |mut to: calls::Client| to.list_container_stats(request).await;
        let answer = self.calls.runtime("runtime", "", TIMEOUT, call).await?;
        Ok(answer.stats.iter().map(observe::usage).collect())
    }

    async fn connect(&self, sandbox: &str, port: u16) -> Result<tokio::net::TcpStream> {
        connect::connect(&self.calls, sandbox, port).await
    }

    fn images(&self) -> &dyn Images {
        &self.images
    }
}

fn ignore_not_found(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Creates the pod's cgroup and sets its limits, which is the caller's task in CRI.
async fn create_pod_cgroup(spec: &SandboxSpec) -> Result<()> {
    if spec.cgroup.is_empty() {
        return Ok(());
    }
    let (path, resources) = (spec.cgroup.clone(), spec.resources.clone());
    let created = tokio::task::spawn_blocking(move || {
        let cgroup = Cgroup::new(&path);
        cgroup.create().and_then(|()| cgroup.limit(&resources, Level::Pod))
    });
    let created = created.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    created.map_err(Error::io("set limits of the cgroup", &spec.cgroup))
}

/// Seconds until the CRI runtime kills a container by itself. The runtime converts them to nanoseconds without an
/// overflow check.
fn stop_timeout(window: Duration) -> i64 {
    let max = i64::MAX / NANOSECONDS_PER_SECOND - EXTRA_SECONDS;
    i64::try_from(window.as_secs()).unwrap_or(max).min(max) + EXTRA_SECONDS
}

/// The CRI runtime writes logs, but does not create their directories.
async fn create_directory(path: &PathBuf) -> Result<()> {
    tokio::fs::create_dir_all(path).await.map_err(Error::io("create", path))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// UID, GID and groups of a process.
type ProcessUser = (u32, u32, Vec<u32>);

#[cfg(test)]
mod tests {
    use super::*;

    /// T-NODE-5: any grace period may be requested.
    #[test]
    fn a_huge_grace_period_does_not_overflow() {
        assert_eq!(stop_timeout(Duration::from_secs(30)), 35);
        for long in [i64::MAX as u64, u64::MAX] {
            let seconds = stop_timeout(Duration::from_secs(long));
            assert!(seconds.checked_mul(NANOSECONDS_PER_SECOND).is_some());
        }
    }
}
