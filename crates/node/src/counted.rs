//! A runtime whose doings are counted: how often, how long, how many failed (N-182). It adds nothing
//! else; the operations are named as upstream names those of CRI.

use crate::endpoint::Metrics;
use async_trait::async_trait;
use runtime::{
    Change, Container, ContainerSpec, ContainerUsage, Credentials, Exec, Features, Image,
    ImageReference, Images, PullProgress, Resources, Result, Runtime, Sandbox, SandboxSpec,
    Session, Version,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::Instant;

pub(crate) struct Counted {
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
}

impl Counted {
    pub(crate) fn around(runtime: Arc<dyn Runtime>, metrics: Arc<Metrics>) -> Arc<dyn Runtime> {
        Arc::new(Counted { runtime, metrics })
    }

    async fn count<T>(
        &self,
        operation: &'static str,
        doing: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        count(&self.metrics, operation, doing).await
    }
}

async fn count<T>(
    metrics: &Metrics,
    operation: &'static str,
    doing: impl Future<Output = Result<T>>,
) -> Result<T> {
    let labels = [("operation_type", operation)];
    let began = Instant::now();
    metrics.add("kubelet_runtime_operations_total", &labels, 1);
    let done = doing.await;
    metrics.observe("kubelet_runtime_operations_duration_seconds", &labels, began.elapsed());
    if done.is_err() {
        metrics.add("kubelet_runtime_operations_errors_total", &labels, 1);
    }
    done
}

#[async_trait]
impl Runtime for Counted {
    async fn version(&self) -> Result<Version> {
        self.count("version", self.runtime.version()).await
    }

    async fn ready(&self) -> Result<()> {
        self.count("status", self.runtime.ready()).await
    }

    fn features(&self) -> Features {
        self.runtime.features()
    }

    fn brings_network(&self) -> bool {
        self.runtime.brings_network()
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        let handler = spec.handler.clone();
        let labels = [("runtime_handler", handler.as_str())];
        let began = Instant::now();
        let made = self.count("run_podsandbox", self.runtime.run_sandbox(spec)).await;
        self.metrics.observe("kubelet_run_podsandbox_duration_seconds", &labels, began.elapsed());
        if made.is_err() {
            self.metrics.add("kubelet_run_podsandbox_errors_total", &labels, 1);
        }
        made
    }

    async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        self.count("stop_podsandbox", self.runtime.stop_sandbox(sandbox)).await
    }

    async fn remove_sandbox(&self, sandbox: &str) -> Result<()> {
        self.count("remove_podsandbox", self.runtime.remove_sandbox(sandbox)).await
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.count("list_podsandbox", self.runtime.sandboxes()).await
    }

    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        self.count("podsandbox_status", self.runtime.sandboxes_of(pod)).await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.runtime.changes()
    }

    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container> {
        self.count("create_container", self.runtime.create_container(sandbox, spec)).await
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        self.count("start_container", self.runtime.start_container(container)).await
    }

    async fn stop_container(&self, container: &str, window: Duration) -> Result<()> {
        self.count("stop_container", self.runtime.stop_container(container, window)).await
    }

    async fn stop_signal(&self, container: &str) -> Option<i32> {
        self.runtime.stop_signal(container).await
    }

    async fn kill_container(&self, container: &str) -> Result<()> {
        self.count("kill_container", self.runtime.kill_container(container)).await
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        self.count("remove_container", self.runtime.remove_container(container)).await
    }

    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()> {
        self.count("update_container", self.runtime.update_container(container, resources)).await
    }

    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()> {
        // Not one of the runtime's operations in upstream's figures: the node does it itself.
        self.runtime.limit_group(cgroup, resources).await
    }

    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session> {
        self.count("exec", self.runtime.exec(container, exec)).await
    }

    async fn attach(&self, container: &str, exec: &Exec) -> Result<Session> {
        self.count("attach", self.runtime.attach(container, exec)).await
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        self.count("reopen_container_log", self.runtime.reopen_log(container)).await
    }

    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        self.count("list_container_stats", self.runtime.usage()).await
    }

    async fn load(&self) -> Result<Vec<ContainerUsage>> {
        self.count("list_container_stats", self.runtime.load()).await
    }

    async fn connect(&self, sandbox: &str, port: u16) -> Result<tokio::net::TcpStream> {
        self.count("port_forward", self.runtime.connect(sandbox, port)).await
    }

    fn images(&self) -> &dyn Images {
        self
    }
}

#[async_trait]
impl Images for Counted {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        self.count("image_status", self.runtime.images().find(image)).await
    }

    async fn list(&self) -> Result<Vec<Image>> {
        self.count("list_images", self.runtime.images().list()).await
    }

    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        let began = Instant::now();
        let images = self.runtime.images();
        let pulled = self.count("pull_image", images.pull(image, credentials, progress)).await?;
        let labels = [("image_size_in_bytes", size_class(pulled.size))];
        self.metrics.observe("kubelet_image_pull_duration_seconds", &labels, began.elapsed());
        Ok(pulled)
    }

    async fn remove(&self, id: &str) -> Result<()> {
        self.count("remove_image", self.runtime.images().remove(id)).await
    }

    fn directory(&self) -> PathBuf {
        self.runtime.images().directory()
    }

    async fn mount(&self, image: &str, target: &Path) -> Result<()> {
        self.count("mount_image", self.runtime.images().mount(image, target)).await
    }
}

/// As upstream sorts images by size.
fn size_class(bytes: u64) -> &'static str {
    const MB: u64 = 1 << 20;
    match bytes {
        n if n < 10 * MB => "0-10MB",
        n if n < 100 * MB => "10MB-100MB",
        n if n < 500 * MB => "100MB-500MB",
        n if n < 1024 * MB => "500MB-1GB",
        n if n < 5 * 1024 * MB => "1GB-5GB",
        n if n < 10 * 1024 * MB => "5GB-10GB",
        n if n < 20 * 1024 * MB => "10GB-20GB",
        n if n < 30 * 1024 * MB => "20GB-30GB",
        n if n < 40 * 1024 * MB => "30GB-40GB",
        n if n < 60 * 1024 * MB => "40GB-60GB",
        n if n < 100 * 1024 * MB => "60GB-100GB",
        _ => "GT100GB",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-182
    #[test]
    fn images_are_sorted_by_size() {
        for (bytes, class) in
            [(0, "0-10MB"), (10 << 20, "10MB-100MB"), (1 << 30, "1GB-5GB"), (u64::MAX, "GT100GB")]
        {
            assert_eq!(size_class(bytes), class);
        }
    }

    /// N-182: what fails counts as asked and as failed.
    #[tokio::test(start_paused = true)]
    async fn n_182_every_doing_is_counted_and_timed() {
        let metrics = Metrics::default();
        let done = count(&metrics, "version", async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(())
        });
        done.await.unwrap();
        let failure = async { Err::<(), _>(runtime::Error::Pull("no".into())) };
        let failed = count(&metrics, "version", failure);
        failed.await.unwrap_err();
        let mut page = ::metrics::Page::default();
        metrics.write(&mut page, |name| name.starts_with("kubelet_runtime_operations"));
        let text = page.into_text();
        let shown = ::metrics::check(&text).unwrap();
        let value = |name: &str| {
            let found =
                shown.iter().find(|one| one.name == format!("kubelet_runtime_operations_{name}"));
            found.unwrap_or_else(|| panic!("{name} is not in\n{text}")).value
        };
        assert_eq!(value("total"), 2.0);
        assert_eq!(value("errors_total"), 1.0);
        assert_eq!(value("duration_seconds_sum"), 2.0);
        assert_eq!(value("duration_seconds_count"), 2.0);
    }
}
