//! A native runtime for each test, with its own directories, cgroup and an image that contains busybox.

use async_trait::async_trait;
use runtime::{
    Container, ContainerSpec, ContainerState, Credentials, Error, Exec, Exit, Identity, Image,
    ImageConfig, ImageReference, Images, Namespace, Native, NativeConfig, PodNetwork, PullProgress,
    Resources, Result, Runtime, Sandbox, SandboxSpec, Security, UnpackedImages,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// After this time a test fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// An image store with one image, which contains the busybox of this machine.
pub(crate) struct OneImage {
    layer: PathBuf,
    pub(crate) config: ImageConfig,
}

#[async_trait]
impl Images for OneImage {
    async fn find(&self, _: &ImageReference) -> Result<Option<Image>> {
        Ok(None)
    }
    async fn list(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }
    async fn pull(
        &self,
        _: &ImageReference,
        _: &[Credentials],
        _: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        Err(Error::Pull("there is no registry".into()))
    }
    async fn remove(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn directory(&self) -> PathBuf {
        self.layer.clone()
    }
    async fn mount(&self, _: &str, _: &Path) -> Result<()> {
        Ok(())
    }
}

impl UnpackedImages for OneImage {
    fn config(&self, id: &str) -> Result<ImageConfig> {
        match id {
            "busybox" => Ok(self.config.clone()),
            _ => Err(Error::NotFound { what: "image", id: id.to_owned() }),
        }
    }
    fn layers(&self, _: &str) -> Result<Vec<PathBuf>> {
        Ok(vec![self.layer.clone()])
    }
    fn hold(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
    fn release(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn holders(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Removes processes, mounts and cgroups even if a test fails.
struct CleanUp {
    directory: PathBuf,
    uid: String,
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        let directory = self.directory.to_str().unwrap_or("/nowhere");
        for pid in shims_of(directory) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
        let group = format!("landfall-test/pod{}", self.uid);
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            let _ = std::fs::write(Path::new(root).join(&group).join("cgroup.kill"), "1");
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if mount.starts_with(directory) {
                let _ = nix::mount::umount2(mount, nix::mount::MntFlags::MNT_DETACH);
            }
        }
        let roots = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        for root in roots.map(|root| root.path()).chain(["/sys/fs/cgroup".into()]) {
            let group = root.join(&group);
            for child in std::fs::read_dir(&group).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(child.path());
            }
            let _ = std::fs::remove_dir(group);
        }
    }
}

pub(crate) struct Fixture {
    clean_up_guard: CleanUp,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) native: Native,
    pub(crate) uid: String,
    image: ImageConfig,
}

/// Fails with a clear message instead of a later error.
pub(crate) fn needs_root() {
    assert!(nix::unistd::geteuid().is_root(), "this test needs root: run `make test` as root");
}

pub(crate) async fn fixture() -> Fixture {
    fixture_with(ImageConfig::default()).await
}

/// A fixture whose shims are in this cgroup.
pub(crate) async fn fixture_with_shims_in(shims: Option<PathBuf>) -> Fixture {
    create_fixture(ImageConfig::default(), shims).await
}

pub(crate) async fn fixture_with(image: ImageConfig) -> Fixture {
    create_fixture(image, None).await
}

async fn create_fixture(image: ImageConfig, shims: Option<PathBuf>) -> Fixture {
    needs_root();
    let directory = tempfile::tempdir().unwrap();
    create_layer(&directory.path().join("layer"));
    let native = open(directory.path(), &image, shims).await;
    Fixture::new(directory, native, clock::uuid(), image)
}

async fn open(directory: &Path, image: &ImageConfig, shims: Option<PathBuf>) -> Native {
    let images = OneImage { layer: directory.join("layer"), config: image.clone() };
    Native::open(NativeConfig {
        state_dir: directory.join("run"),
        images: Arc::new(images),
        executable: env!("CARGO_BIN_EXE_landfall-shim-test").into(),
        shims,
    })
    .await
    .unwrap()
}

fn create_layer(layer: &Path) {
    for name in ["bin", "etc", "tmp", "data"] {
        std::fs::create_dir_all(layer.join(name)).unwrap();
    }
    std::fs::copy("/bin/busybox", layer.join("bin/busybox"))
        .expect("this test needs /bin/busybox: run `scripts/install all`");
    for applet in [
        "sh", "echo", "cat", "sleep", "id", "ls", "mount", "grep", "true", "false", "hostname",
        "wc", "kill", "ps", "env", "pwd", "touch", "head", "dd", "mkdir", "ip", "stty", "nc",
        "seq", "tail", "tr", "yes", "chroot", "unshare", "mknod", "readlink", "stat", "date",
        "printf", "test", "rm",
    ] {
        std::os::unix::fs::symlink("busybox", layer.join("bin").join(applet)).unwrap();
    }
    std::fs::write(
        layer.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n",
    )
    .unwrap();
    std::fs::write(layer.join("etc/group"), "root:x:0:\nalice:x:1000:\nwheel:x:50:alice\n")
        .unwrap();
    std::fs::write(layer.join("data/from-image"), "image").unwrap();
}

impl Fixture {
    fn new(
        directory: tempfile::TempDir,
        native: Native,
        uid: String,
        image: ImageConfig,
    ) -> Fixture {
        let clean_up_guard = CleanUp { directory: directory.path().to_owned(), uid: uid.clone() };
        Fixture { clean_up_guard, directory, native, uid, image }
    }

    /// Replaces the agent's runtime by a new one on the same directory, as after a crash.
    pub(crate) async fn restart(self) -> Fixture {
        let Fixture { clean_up_guard, directory, native, uid, image } = self;
        drop(native);
        let native = open(directory.path(), &image, None).await;
        Fixture { clean_up_guard, directory, native, uid, image }
    }

    pub(crate) fn cgroup(&self) -> String {
        format!("/landfall-test/pod{}", self.uid)
    }

    pub(crate) fn sandbox_spec(&self) -> SandboxSpec {
        SandboxSpec {
            pod: Identity { uid: self.uid.clone(), namespace: "default".into(), name: "p".into() },
            attempt: 0,
            hostname: Some("web-0".into()),
            network: PodNetwork::Host,
            ipc: Namespace::Pod,
            pid: Namespace::Container,
            sysctls: BTreeMap::new(),
            users: None,
            cgroup: self.cgroup(),
            resources: Resources::default(),
            log_directory: self.directory.path().join("logs"),
            dns: None,
            ports: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            handler: String::new(),
        }
    }

    pub(crate) async fn sandbox(&self) -> Sandbox {
        self.native.run_sandbox(&self.sandbox_spec()).await.unwrap()
    }

    pub(crate) async fn created(&self, sandbox: &Sandbox, spec: &ContainerSpec) -> Container {
        self.native.create_container(&sandbox.id, spec).await.unwrap()
    }

    pub(crate) async fn started(&self, sandbox: &Sandbox, spec: &ContainerSpec) -> Container {
        let container = self.created(sandbox, spec).await;
        self.native.start_container(&container.id).await.unwrap();
        container
    }

    /// Runs a container until it exits.
    pub(crate) async fn run(&self, sandbox: &Sandbox, spec: &ContainerSpec) -> (Exit, Log) {
        let container = self.started(sandbox, spec).await;
        let exit = self.exit(&container.id).await;
        (exit, self.log(&container))
    }

    pub(crate) async fn container(&self, id: &str) -> Container {
        let all = self.native.sandboxes().await.unwrap();
        let mut containers = all.into_iter().flat_map(|sandbox| sandbox.containers);
        containers.find(|container| container.id == id).expect("the container exists")
    }

    /// Waits for a container's exit by subscribing to changes.
    pub(crate) async fn exit(&self, id: &str) -> Exit {
        let mut changes = self.native.changes();
        let waiting = async {
            loop {
                if let ContainerState::Exited(exit) = self.container(id).await.state {
                    return exit;
                }
                let _ = changes.recv().await;
            }
        };
        tokio::time::timeout(TIMEOUT, waiting).await.expect("the container does not exit")
    }

    pub(crate) fn log(&self, container: &Container) -> Log {
        Log(std::fs::read_to_string(&container.log_path).unwrap_or_default())
    }

    /// Waits until the log contains a text.
    pub(crate) async fn wait_for_log(&self, container: &Container, text: &str) {
        until(|| self.log(container).0.contains(text)).await;
    }

    pub(crate) async fn exec(&self, container: &str, command: &[&str]) -> (i32, String) {
        let exec = Exec {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            stdout: true,
            stderr: true,
            ..Exec::default()
        };
        let session = self.native.exec(container, &exec).await.unwrap();
        let (code, output) = session.collect(1 << 20).await.unwrap();
        (code, String::from_utf8_lossy(&output).into_owned())
    }

    /// Removes everything and checks that nothing is left (T-NODE-72).
    pub(crate) async fn clean_up(self) {
        for sandbox in self.native.sandboxes().await.unwrap() {
            self.native.remove_sandbox(&sandbox.id).await.unwrap();
        }
        let directory = self.directory.path().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(directory), "a mount is left");
        let left: Vec<_> = std::fs::read_dir(self.directory.path().join("run")).unwrap().collect();
        assert!(left.is_empty(), "a directory is left: {left:?}");
        for root in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let group = format!("{}{}", root.path().display(), self.cgroup());
            assert!(!Path::new(&group).exists(), "a cgroup is left: {group}");
        }
        assert!(shims_of(directory).is_empty(), "a shim is left");
    }
}

/// PIDs of all shim processes of a state directory.
pub(crate) fn shims_of(directory: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let command = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            command.contains(directory).then_some(pid)
        })
        .collect()
}

/// Polls until the condition is true.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("the condition does not become true");
}

pub(crate) struct Log(pub(crate) String);

impl Log {
    /// The content of one stream, with split lines joined.
    pub(crate) fn of(&self, stream: &str) -> String {
        let mut text = String::new();
        for line in self.0.lines() {
            let mut parts = line.splitn(4, ' ');
            let (source, tag) = (parts.nth(1), parts.next());
            if source == Some(stream) {
                text.push_str(parts.next().unwrap_or_default());
                if tag == Some("F") {
                    text.push('\n');
                }
            }
        }
        text
    }

    pub(crate) fn stdout(&self) -> String {
        self.of("stdout")
    }
}

/// A container that runs a shell script.
pub(crate) fn script(text: &str) -> ContainerSpec {
    ContainerSpec {
        name: "c".into(),
        attempt: 0,
        image: "busybox".into(),
        image_name: "busybox:latest".into(),
        command: Some(vec!["/bin/sh".into(), "-c".into(), text.into()]),
        args: None,
        env: Vec::new(),
        working_dir: None,
        mounts: Vec::new(),
        devices: Vec::new(),
        security: Security::default(),
        resources: Resources::default(),
        stdin: false,
        stdin_once: false,
        tty: false,
        log_path: format!("c/{}.log", clock::uuid()).into(),
        pid_of: None,
        stop_signal: None,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

/// A new agent for the same directory.
pub(crate) async fn reopen(directory: tempfile::TempDir, uid: String) -> Fixture {
    let image = ImageConfig::default();
    let native = open(directory.path(), &image, None).await;
    Fixture::new(directory, native, uid, image)
}
