//! A containerd for each test, with an image that contains busybox, in network, mount and PID namespaces that end
//! with the test.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use runtime::{
    Container, ContainerSpec, ContainerState, Cri, Exit, Identity, ImageReference, Namespace,
    PodNetwork, Resources, Runtime, Sandbox, SandboxSpec, Security, User,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const BOX: &str = "landfall.test/box:1";
const PAUSE: &str = "landfall.test/pause:1";
/// After this time a test fails. Every step takes less than a second on an idle machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

const APPLETS: &[&str] =
    &["sh", "sleep", "cat", "echo", "httpd", "ls", "id", "true", "stty", "touch", "printenv", "wc"];

pub(crate) struct Fixture {
    pub(crate) cri: Cri,
    pub(crate) directory: PathBuf,
    pub(crate) socket: String,
    /// The parent of all cgroups of the test.
    cgroup: String,
    _containerd: Containerd,
}

/// Runs `test` with its own containerd.
pub(crate) fn with_containerd<F: Future<Output = ()>>(
    test: impl FnOnce(Arc<Fixture>) -> F + Send + 'static,
) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("this test needs root: run `make test` as root");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        for path in ["/run", "/var/lib"] {
            mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            // Shared, so that the test sees containerd's mounts, such as network namespaces.
            mount(none, path, none, MsFlags::MS_SHARED, none).unwrap();
        }
        run("ip", &["link", "set", "lo", "up"]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move { test(Arc::new(Fixture::start().await)).await });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

impl Fixture {
    async fn start() -> Fixture {
        let containerd = Containerd::start();
        let directory = containerd.directory.path().to_path_buf();
        let socket = format!("unix://{}", directory.join("c.sock").display());
        let connect = async || Cri::connect(&socket).await.ok();
        let cri = until("containerd answers", connect).await;
        for (name, entrypoint) in [(PAUSE, &["/bin/sleep", "999999"][..]), (BOX, &["/bin/sh"])] {
            let archive = directory.join("image.tar");
            fs::write(&archive, image(name, entrypoint)).unwrap();
            let address = directory.join("c.sock").display().to_string();
            let archive = archive.display().to_string();
            run("ctr", &["-a", &address, "-n", "k8s.io", "images", "import", &archive]);
        }
        let cgroup = containerd.cgroup.clone();
        let ready = async || cri.ready().await.ok();
        until("the runtime is ready", ready).await;
        Fixture { cri, directory, socket, cgroup, _containerd: containerd }
    }

    pub(crate) fn sandbox(&self, name: &str) -> SandboxSpec {
        SandboxSpec {
            pod: Identity {
                uid: format!("uid-{name}"),
                namespace: "default".into(),
                name: name.into(),
            },
            attempt: 0,
            hostname: Some(name.into()),
            network: PodNetwork::Runtime,
            ipc: Namespace::Pod,
            pid: Namespace::Container,
            sysctls: BTreeMap::new(),
            users: None,
            cgroup: format!("/{}/pod{name}", self.cgroup),
            resources: Resources::default(),
            log_directory: self.directory.join("logs").join(name),
            dns: None,
            ports: Vec::new(),
            labels: BTreeMap::from([("app".into(), name.into())]),
            annotations: BTreeMap::from([("note".into(), "kept".into())]),
            handler: String::new(),
        }
    }

    /// A container that runs `script`.
    pub(crate) async fn container(&self, script: &str) -> ContainerSpec {
        let image = self.cri.images().find(&ImageReference(BOX.into())).await.unwrap().unwrap();
        ContainerSpec {
            name: "main".into(),
            attempt: 0,
            image: image.id,
            image_name: BOX.into(),
            command: Some(["/bin/sh", "-c", script].map(String::from).to_vec()),
            args: None,
            env: vec![("GREETING".into(), "hello".into())],
            working_dir: None,
            mounts: Vec::new(),
            devices: Vec::new(),
            security: Security { user: User::Uid(0), ..Security::default() },
            resources: Resources::default(),
            stdin: false,
            stdin_once: false,
            tty: false,
            log_path: "main/0.log".into(),
            pid_of: None,
            stop_signal: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::from([("count".into(), "1".into())]),
        }
    }

    /// A pod that runs one container.
    pub(crate) async fn run(&self, name: &str, script: &str) -> (Sandbox, Container) {
        let sandbox = self.cri.run_sandbox(&self.sandbox(name)).await.unwrap();
        let spec = self.container(script).await;
        let container = self.cri.create_container(&sandbox.id, &spec).await.unwrap();
        self.cri.start_container(&container.id).await.unwrap();
        (sandbox, container)
    }

    pub(crate) async fn observe(&self, pod: &str, container: &str) -> Container {
        let all = self.cri.sandboxes_of(&format!("uid-{pod}")).await.unwrap();
        let mut inside = all.into_iter().flat_map(|sandbox| sandbox.containers);
        inside.find(|one| one.id == container).unwrap()
    }

    /// Waits for a container's exit.
    pub(crate) async fn exit(&self, pod: &str, container: &str) -> Exit {
        until("the container exits", async || match self.observe(pod, container).await.state {
            ContainerState::Exited(exit) => Some(exit),
            _ => None,
        })
        .await
    }
}

/// Polls until there is a result.
pub(crate) async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        loop {
            if let Some(answer) = poll().await {
                return answer;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(TIMEOUT, polling).await {
        Ok(answer) => answer,
        Err(_) => panic!("timed out: {what}"),
    }
}

pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("this test needs {program}: {error}; run `scripts/install all`")
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
}

struct Containerd {
    directory: TempDir,
    cgroup: String,
    child: Child,
}

impl Containerd {
    fn start() -> Containerd {
        // Fails if containerd is not installed; `unshare` below would hide that.
        run("containerd", &["--version"]);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::create_dir(path.join("cni")).unwrap();
        let replace = |text: &str| text.replace("DIRECTORY", &path.display().to_string());
        fs::write(path.join("config.toml"), replace(CONFIG)).unwrap();
        fs::write(path.join("cni/10-test.conflist"), replace(CNI)).unwrap();
        let log = fs::File::create(path.join("containerd.log")).unwrap();
        // When process 1 of a PID namespace dies, the kernel kills all others.
        let child = Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "--propagation", "unchanged", "--kill-child"])
            .args(["containerd", "--config"])
            .arg(path.join("config.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("this test needs unshare");
        let cgroup = format!("landfall-test-{}", std::process::id());
        let cgroup = format!("{cgroup}-{}", path.file_name().unwrap().to_string_lossy());
        Containerd { cgroup: cgroup.replace('.', ""), directory, child }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.directory.path().join("containerd.log");
            let log = fs::read_to_string(log).unwrap_or_default();
            let problems = log.lines().filter(|line| line.contains("level=error"));
            eprintln!("containerd: {:#?}", problems.collect::<Vec<_>>());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for root in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_cgroups(&root.path().join(&self.cgroup));
        }
        remove_cgroups(&Path::new("/sys/fs/cgroup").join(&self.cgroup));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for mount_point in mounts.lines().filter_map(|line| line.split(' ').nth(4)).rev() {
            if Path::new(mount_point).starts_with(self.directory.path()) {
                let _ = umount2(mount_point, MntFlags::MNT_DETACH);
            }
        }
    }
}

/// Retries, because killed processes may take a moment to disappear.
fn remove_cgroups(path: &Path) {
    for _ in 0..1000 {
        for inside in fs::read_dir(path).into_iter().flatten().flatten() {
            if inside.path().is_dir() {
                remove_cgroups(&inside.path());
            }
        }
        if fs::remove_dir(path).is_ok() || !path.exists() {
            return;
        }
        std::thread::yield_now();
    }
}

/// An image in the format of `docker save`.
fn image(name: &str, entrypoint: &[&str]) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    let mut binary = fs::File::open("/bin/busybox")
        .expect("this test needs /bin/busybox: run `scripts/install all`");
    layer.append_file("bin/busybox", &mut binary).unwrap();
    for applet in APPLETS {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        layer.append_link(&mut header, format!("bin/{applet}"), "busybox").unwrap();
    }
    for (path, text) in [
        ("etc/passwd", "root:x:0:0::/:/bin/sh\nnina:x:1234:1234::/:/bin/sh\n"),
        ("etc/group", "root:x:0:\nnina:x:1234:\n"),
    ] {
        append(&mut layer, path, text.as_bytes());
    }
    let layer = layer.into_inner().unwrap();
    let config = serde_json::json!({
        "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" },
        "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Entrypoint": entrypoint },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))] },
    });
    let config = config.to_string();
    let file = format!("{}.json", digest(config.as_bytes()));
    let manifest =
        serde_json::json!([{ "Config": file, "RepoTags": [name], "Layers": ["layer.tar"] }]);
    let mut archive = tar::Builder::new(Vec::new());
    append(&mut archive, &file, config.as_bytes());
    append(&mut archive, "layer.tar", &layer);
    append(&mut archive, "manifest.json", manifest.to_string().as_bytes());
    archive.into_inner().unwrap()
}

fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, bytes: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, path, bytes).unwrap();
}

fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

const CONFIG: &str = r#"
version = 2
root = "DIRECTORY/root"
state = "DIRECTORY/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "DIRECTORY/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
sandbox_image = "landfall.test/pause:1"
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "DIRECTORY/cni"
"#;

const CNI: &str = r#"
{ "cniVersion": "0.4.0", "name": "test", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true,
  "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.5.0/24" }]],
            "dataDir": "DIRECTORY/ipam", "routes": [{ "dst": "0.0.0.0/0" }] } }] }
"#;
