//! Containers by way of a CRI runtime such as containerd or CRI-O, over its socket.
//!
//! The runtime brings the network (CNI) and keeps the images. `request` says what we want in CRI's
//! words, `observe` reads what it answers, `changes` finds out that something happened, `stream`
//! carries the stdio of exec and attach.
//! Not here: how containers are made when there is no such runtime (`native`).

mod calls;
mod changes;
mod images;
mod notes;
mod observe;
mod request;
mod spdy;
mod stream;
mod tunnel;

use crate::cgroup::{Cgroup, Level, limit_group};
use crate::{
    Change, Container, ContainerSpec, ContainerUsage, Error, Exec, Features, Images, Resources,
    Result, Runtime, Sandbox, SandboxSpec, Session, User, Version,
};
use async_trait::async_trait;
use calls::{Calls, RUN_MAX, SHORT};
use changes::Watcher;
use images::CriImages;
use k8s_cri::v1;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;

/// Records of containers kept in memory, so that they need not be asked for again.
const KNOWN_MAX: usize = 4096;

/// CRI does not say when a signal was sent, only when the container has stopped. A call that was not
/// refused for so long has come far enough.
const SENT_AFTER: Duration = Duration::from_millis(100);

/// Whoever asks for a stop also kills in time and tells why. The runtime's own timer is for the case
/// that nobody is left to do so: it runs out some seconds later. (With no time at all the runtime
/// would kill without asking.)
const KILLS_LATER: i64 = 5;

/// A CRI runtime behind a socket.
pub struct Cri {
    calls: Calls,
    images: CriImages,
    watcher: Watcher,
    features: Features,
    /// What ended containers were like: that does not change any more.
    ended: Mutex<HashMap<String, v1::ContainerStatus>>,
    /// Limits that were changed since the container was made.
    updated: Mutex<HashMap<String, Resources>>,
    /// As whom containers run, where their status does not say it.
    users: Mutex<HashMap<String, Identified>>,
}

impl Cri {
    /// Connects to `unix:///run/containerd/containerd.sock` or the like. Fails when nobody answers
    /// there or what answers does not speak CRI v1; later failures are found again by every call.
    pub async fn connect(endpoint: &str) -> Result<Cri> {
        let calls = Calls::connect(endpoint).await?;
        calls.version().await?;
        let images = CriImages::open(calls.clone()).await?;
        let features = observe::features(&calls.status().await?);
        let watcher = Watcher::start(calls.clone());
        let (ended, updated, users) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Cri { calls, images, watcher, features, ended, updated, users })
    }

    async fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        let call = async |mut to: calls::Client| to.pod_sandbox_status(request).await;
        let status = self.calls.runtime("sandbox", id, SHORT, call).await?.status;
        status.ok_or_else(|| Error::NotFound { what: "sandbox", id: id.into() })
    }

    /// What sandbox it is that we made.
    async fn spec_of(&self, id: &str) -> Result<SandboxSpec> {
        let status = self.sandbox_status(id).await?;
        notes::sandbox(&status.annotations)
            .ok_or_else(|| Error::Refused(format!("sandbox {id:?} was made by somebody else")))
    }

    async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus> {
        if let Some(status) = lock(&self.ended).get(id) {
            return Ok(status.clone());
        }
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        let call = async |mut to: calls::Client| to.container_status(request).await;
        let status = self.calls.runtime("container", id, SHORT, call).await?.status;
        let status = status.ok_or_else(|| Error::NotFound { what: "container", id: id.into() })?;
        if status.state() == v1::ContainerState::ContainerExited {
            let mut ended = lock(&self.ended);
            if ended.len() >= KNOWN_MAX {
                ended.clear();
            }
            ended.insert(id.into(), status.clone());
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

    /// Runtimes that are older than this question tell it only among what they tell people.
    async fn user_of(&self, id: &str) -> Result<Option<Identified>> {
        if let Some(user) = lock(&self.users).get(id) {
            return Ok(Some(user.clone()));
        }
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: true };
        let call = async |mut to: calls::Client| to.container_status(request).await;
        let told = self.calls.runtime("container", id, SHORT, call).await?.info;
        let user = observe::user(&told);
        if let Some(user) = &user {
            let mut users = lock(&self.users);
            if users.len() >= KNOWN_MAX {
                users.clear();
            }
            users.insert(id.into(), user.clone());
        }
        Ok(user)
    }

    /// All that the filter lets through, newest first.
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

    /// CRI wants to know the user; when the pod does not say, it is the image's.
    async fn with_user(
        &self,
        spec: &ContainerSpec,
        config: &mut v1::ContainerConfig,
    ) -> Result<()> {
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

    /// With its last sandbox a pod's cgroup goes. It is ours: the runtime only makes those below.
    async fn forget_pod(&self, spec: &SandboxSpec) -> Result<()> {
        let labels = HashMap::from([(request::POD_UID.to_string(), spec.pod.uid.clone())]);
        let (left, _) = self.calls.list(labels).await?;
        if left.is_empty() && !spec.cgroup.is_empty() {
            let cgroup = Cgroup::new(&spec.cgroup);
            // What is still busy is removed with the next pod of that name, or never used again.
            let _ = tokio::task::spawn_blocking(move || cgroup.remove()).await;
        }
        Ok(())
    }

    /// Asks for the container to stop and waits until it has; one that is gone is fine.
    async fn stop_within(calls: &Calls, id: &str, seconds: i64) -> Result<()> {
        let request = v1::StopContainerRequest { container_id: id.into(), timeout: seconds };
        let most = SHORT + Duration::from_secs(seconds.unsigned_abs());
        let call = async |mut to: calls::Client| to.stop_container(request).await;
        gone_is_fine(calls.runtime("container", id, most, call).await.map(drop))
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
        make_directory(&spec.log_directory).await?;
        limit_pod(spec).await?;
        let request = v1::RunPodSandboxRequest { config, runtime_handler: spec.handler.clone() };
        let call = async |mut to: calls::Client| to.run_pod_sandbox(request).await;
        let id = self.calls.runtime("sandbox", "", RUN_MAX, call).await?.pod_sandbox_id;
        self.watcher.look();
        Ok(observe::sandbox(&self.sandbox_status(&id).await?, Vec::new()))
    }

    async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.into() };
        let call = async |mut to: calls::Client| to.stop_pod_sandbox(request).await;
        let stopped = self.calls.runtime("sandbox", sandbox, RUN_MAX, call).await;
        self.watcher.look();
        gone_is_fine(stopped.map(drop))
    }

    async fn remove_sandbox(&self, sandbox: &str) -> Result<()> {
        let spec = self.spec_of(sandbox).await.ok();
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.into() };
        let call = async |mut to: calls::Client| to.remove_pod_sandbox(request).await;
        let removed = self.calls.runtime("sandbox", sandbox, RUN_MAX, call).await;
        self.watcher.look();
        gone_is_fine(removed.map(drop))?;
        match spec {
            Some(spec) => self.forget_pod(&spec).await,
            None => Ok(()),
        }
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
        let around = self.spec_of(sandbox).await?;
        let mut config = request::container(&around, spec)?;
        self.with_user(spec, &mut config).await?;
        if let Some(directory) = around.log_directory.join(&config.log_path).parent() {
            make_directory(&directory.to_path_buf()).await?;
        }
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(request::sandbox_for(&around, spec)?),
        };
        let call = async |mut to: calls::Client| to.create_container(request).await;
        let id = self.calls.runtime("sandbox", sandbox, SHORT, call).await?.container_id;
        self.watcher.look();
        self.container(&id, sandbox).await
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        let request = v1::StartContainerRequest { container_id: container.into() };
        let call = async |mut to: calls::Client| to.start_container(request).await;
        let started = self.calls.runtime("container", container, SHORT, call).await;
        self.watcher.look();
        match started {
            Err(Error::Refused(why)) => Err(Error::Start(why)),
            other => other.map(drop),
        }
    }

    async fn stop_container(&self, container: &str, window: Duration) -> Result<()> {
        let seconds = patience(window);
        let (calls, id) = (self.calls.clone(), container.to_string());
        let watcher = self.watcher.handle();
        let (told, hears) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let stopped = Cri::stop_within(&calls, &id, seconds).await;
            watcher.look();
            if let Err(Err(error)) = told.send(stopped) {
                tracing::warn!(container = id, %error, "a container does not stop");
            }
        });
        match tokio::time::timeout(SENT_AFTER, hears).await {
            Ok(stopped) => stopped.unwrap_or(Ok(())),
            Err(_) => Ok(()),
        }
    }

    /// CRI has no word for another than the image's.
    async fn stop_signal(&self, container: &str) -> Option<i32> {
        let status = self.container_status(container).await.ok()?;
        self.images.stop_signal(&status.image_ref).await
    }

    async fn kill_container(&self, container: &str) -> Result<()> {
        let killed = Cri::stop_within(&self.calls, container, 0).await;
        self.watcher.look();
        killed
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        let request = v1::RemoveContainerRequest { container_id: container.into() };
        let call = async |mut to: calls::Client| to.remove_container(request).await;
        let removed = self.calls.runtime("container", container, SHORT, call).await;
        lock(&self.ended).remove(container);
        lock(&self.updated).remove(container);
        lock(&self.users).remove(container);
        self.watcher.look();
        gone_is_fine(removed.map(drop))
    }

    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()> {
        let status = self.container_status(container).await?;
        let score = notes::container(&status.annotations).map_or(0, |notes| notes.oom_score_adj);
        let request = v1::UpdateContainerResourcesRequest {
            container_id: container.into(),
            linux: Some(request::resources(resources, score)),
            ..Default::default()
        };
        let call = async |mut to: calls::Client| to.update_container_resources(request).await;
        self.calls.runtime("container", container, SHORT, call).await?;
        let mut applied = lock(&self.updated).get(container).cloned();
        let applied = applied.get_or_insert_with(|| observe::container(&status, "").resources);
        applied.change(resources);
        lock(&self.updated).insert(container.into(), applied.clone());
        self.watcher.look();
        Ok(())
    }

    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()> {
        limit_group(cgroup, resources).map_err(Error::io("limit the cgroup", cgroup))
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
        self.calls.runtime("container", container, SHORT, call).await.map(drop)
    }

    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        let request = v1::ListContainerStatsRequest { filter: None };
        let call = async |mut to: calls::Client| to.list_container_stats(request).await;
        let answer = self.calls.runtime("runtime", "", SHORT, call).await?;
        Ok(answer.stats.iter().map(observe::usage).collect())
    }

    async fn connect(&self, sandbox: &str, port: u16) -> Result<tokio::net::TcpStream> {
        tunnel::connect(&self.calls, sandbox, port).await
    }

    fn images(&self) -> &dyn Images {
        &self.images
    }
}

fn gone_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Limits for the pod as a whole, which CRI leaves to its caller.
async fn limit_pod(spec: &SandboxSpec) -> Result<()> {
    if spec.cgroup.is_empty() {
        return Ok(());
    }
    let (path, resources) = (spec.cgroup.clone(), spec.resources.clone());
    let limited = tokio::task::spawn_blocking(move || {
        let cgroup = Cgroup::new(&path);
        cgroup.create().and_then(|()| cgroup.limit(&resources, Level::Pod))
    });
    let limited = limited.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    limited.map_err(Error::io("limit the pod's cgroup", &spec.cgroup))
}

/// How long the runtime waits before it kills by itself, in seconds. It counts in nanoseconds and does not
/// look how many that are.
fn patience(window: Duration) -> i64 {
    let most = i64::MAX / 1_000_000_000 - KILLS_LATER;
    i64::try_from(window.as_secs()).unwrap_or(most).min(most) + KILLS_LATER
}

/// The runtime writes logs, but does not make directories for them.
async fn make_directory(path: &PathBuf) -> Result<()> {
    tokio::fs::create_dir_all(path).await.map_err(Error::io("create", path))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// uid, gid and groups of a process.
type Identified = (u32, u32, Vec<u32>);

/// Shared by whoever may find out that it is time to look.
type Bell = Arc<tokio::sync::Notify>;

#[cfg(test)]
mod tests {
    use super::*;

    /// T-NODE-5: whatever grace was asked for.
    #[test]
    fn no_time_is_too_long_for_a_runtime() {
        assert_eq!(patience(Duration::from_secs(30)), 35);
        for long in [i64::MAX as u64, u64::MAX] {
            assert!(patience(Duration::from_secs(long)).checked_mul(1_000_000_000).is_some());
        }
    }
}
