//! Wraps a runtime and records metrics of its operations: number, duration, errors (N-182).
//! Operations have upstream's names of CRI calls.

use async_trait::async_trait;
use endpoint::Metrics;
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

pub(crate) struct InstrumentedRuntime {
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
}

impl InstrumentedRuntime {
    pub(crate) fn wrap(runtime: Arc<dyn Runtime>, metrics: Arc<Metrics>) -> Arc<dyn Runtime> {
        Arc::new(InstrumentedRuntime { runtime, metrics })
    }

    async fn measure<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        measure(&self.metrics, operation, call).await
    }
}

async fn measure<T>(
    metrics: &Metrics,
    operation: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let labels = [("operation_type", operation)];
    let started = Instant::now();
    metrics.add("kubelet_runtime_operations_total", &labels, 1);
    let result = call.await;
    metrics.observe("kubelet_runtime_operations_duration_seconds", &labels, started.elapsed());
    if result.is_err() {
        metrics.add("kubelet_runtime_operations_errors_total", &labels, 1);
    }
    result
}

#[async_trait]
impl Runtime for InstrumentedRuntime {
    async fn version(&self) -> Result<Version> {
        self.measure("version", self.runtime.version()).await
    }

    async fn ready(&self) -> Result<()> {
        self.measure("status", self.runtime.ready()).await
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
        let started = Instant::now();
        let sandbox = self.measure("run_podsandbox", self.runtime.run_sandbox(spec)).await;
        self.metrics.observe("kubelet_run_podsandbox_duration_seconds", &labels, started.elapsed());
        if sandbox.is_err() {
            self.metrics.add("kubelet_run_podsandbox_errors_total", &labels, 1);
        }
        sandbox
    }

    async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        self.measure("stop_podsandbox", self.runtime.stop_sandbox(sandbox)).await
    }

    async fn remove_sandbox(&self, sandbox: &str) -> Result<()> {
        self.measure("remove_podsandbox", self.runtime.remove_sandbox(sandbox)).await
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.measure("list_podsandbox", self.runtime.sandboxes()).await
    }

    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        self.measure("podsandbox_status", self.runtime.sandboxes_of(pod)).await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.runtime.changes()
    }

    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container> {
        self.measure("create_container", self.runtime.create_container(sandbox, spec)).await
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        self.measure("start_container", self.runtime.start_container(container)).await
    }

    async fn stop_container(&self, container: &str, window: Duration) -> Result<()> {
        self.measure("stop_container", self.runtime.stop_container(container, window)).await
    }

    async fn stop_signal(&self, container: &str) -> Option<i32> {
        self.runtime.stop_signal(container).await
    }

    async fn kill_container(&self, container: &str) -> Result<()> {
        self.measure("kill_container", self.runtime.kill_container(container)).await
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        self.measure("remove_container", self.runtime.remove_container(container)).await
    }

    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()> {
        self.measure("update_container", self.runtime.update_container(container, resources)).await
    }

    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()> {
        // Upstream has no metric for it: the kubelet writes cgroups itself.
        self.runtime.limit_group(cgroup, resources).await
    }

    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session> {
        self.measure("exec", self.runtime.exec(container, exec)).await
    }

    async fn attach(&self, container: &str, exec: &Exec) -> Result<Session> {
        self.measure("attach", self.runtime.attach(container, exec)).await
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        self.measure("reopen_container_log", self.runtime.reopen_log(container)).await
    }

    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        self.measure("list_container_stats", self.runtime.usage()).await
    }

    async fn load(&self) -> Result<Vec<ContainerUsage>> {
        self.measure("list_container_stats", self.runtime.load()).await
    }

    async fn connect(&self, sandbox: &str, port: u16) -> Result<tokio::net::TcpStream> {
        self.measure("port_forward", self.runtime.connect(sandbox, port)).await
    }

    fn images(&self) -> &dyn Images {
        self
    }
}

#[async_trait]
impl Images for InstrumentedRuntime {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        self.measure("image_status", self.runtime.images().find(image)).await
    }

    async fn list(&self) -> Result<Vec<Image>> {
        self.measure("list_images", self.runtime.images().list()).await
    }

    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        let started = Instant::now();
        let images = self.runtime.images();
        let pulled = self.measure("pull_image", images.pull(image, credentials, progress)).await?;
        let labels = [("image_size_in_bytes", size_class(pulled.size))];
        self.metrics.observe("kubelet_image_pull_duration_seconds", &labels, started.elapsed());
        Ok(pulled)
    }

    async fn remove(&self, id: &str) -> Result<()> {
        self.measure("remove_image", self.runtime.images().remove(id)).await
    }

    fn directory(&self) -> PathBuf {
        self.runtime.images().directory()
    }

    async fn mount(&self, image: &str, target: &Path) -> Result<()> {
        self.measure("mount_image", self.runtime.images().mount(image, target)).await
    }
}

/// The label that upstream uses for images of this size.
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

    #[test]
    fn n_182_images_are_labelled_by_size() {
        for (bytes, class) in
            [(0, "0-10MB"), (10 << 20, "10MB-100MB"), (1 << 30, "1GB-5GB"), (u64::MAX, "GT100GB")]
        {
            assert_eq!(size_class(bytes), class);
        }
    }

    /// N-182: a failed operation counts as operation and as error.
    #[tokio::test(start_paused = true)]
    async fn n_182_every_operation_is_counted_and_timed() {
        let metrics = Metrics::default();
        let done = measure(&metrics, "version", async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(())
        });
        done.await.unwrap();
        let failure = async { Err::<(), _>(runtime::Error::Pull("no".into())) };
        let failed = measure(&metrics, "version", failure);
        failed.await.unwrap_err();
        let mut page = ::metrics::Page::default();
        metrics.write(&mut page, |name| name.starts_with("kubelet_runtime_operations"));
        let text = page.into_text();
        let samples = ::metrics::parse(&text).unwrap();
        let value = |name: &str| {
            let found =
                samples.iter().find(|one| one.name == format!("kubelet_runtime_operations_{name}"));
            found.unwrap_or_else(|| panic!("{name} is not in\n{text}")).value
        };
        assert_eq!(value("total"), 2.0);
        assert_eq!(value("errors_total"), 1.0);
        assert_eq!(value("duration_seconds_sum"), 2.0);
        assert_eq!(value("duration_seconds_count"), 2.0);
    }
}
