//! A running landfall and its clients, for tests from outside.
//!
//! `Cluster` is the binary in a separate process with a temporary directory; `Kubectl` runs shell commands with its own
//! home directory. Nothing sleeps: tests wait for output lines, for exits, or inside `kubectl wait`, and each wait has a
//! limit. Not here: assertions about behaviour (the tests).

pub(crate) mod etcd;

pub(crate) use testbed::tools::{image_archive, tool};
pub(crate) use testbed::{Background, Kubectl, installed_kubectls, signal};

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use tempfile::TempDir;
use testbed::kubectl::InstalledKubectl;

/// A start takes a fraction of a second; on a busy machine it may take longer.
const START_MAX: Duration = Duration::from_secs(60);
/// Stopping waits for open requests, but not for long.
const STOP_MAX: Duration = Duration::from_secs(30);

/// How many ranges of 4,096 addresses there are for tests: 10.100.0.0 to 10.199.255.255 for pods, 10.0.0.0 to
/// 10.99.255.255 for Services.
const RANGES: u32 = 1600;

pub(crate) const LANDFALL: &str = env!("CARGO_BIN_EXE_landfall");

pub(crate) struct Cluster {
    /// The first field, so that it is dropped first.
    _ends: Option<Ends>,
    process: Background,
    dir: TempDir,
    pub(crate) url: String,
}

impl Cluster {
    /// Starts `landfall up` on an empty directory and any free port, and waits until it is ready.
    pub(crate) fn start(args: &[&str]) -> Cluster {
        Cluster::start_in(tempfile::tempdir().expect("a directory for the cluster"), args)
    }

    /// The same, on what an earlier cluster left behind.
    pub(crate) fn start_in(dir: TempDir, args: &[&str]) -> Cluster {
        let mut command = up(&dir.path().join("data"));
        // Without a node and a scheduler, no component writes to pods.
        command.args(["--no-node", "--no-scheduler"]);
        Cluster::run(command, dir, args)
    }

    /// The same, with a scheduler.
    pub(crate) fn scheduling_in(dir: TempDir, args: &[&str]) -> Cluster {
        let mut command = up(&dir.path().join("data"));
        command.arg("--no-node");
        Cluster::run(command, dir, args)
    }

    /// A cluster without a node, for nodes that join it.
    pub(crate) fn without_node(args: &[&str]) -> Cluster {
        Cluster::scheduling_in(tempfile::tempdir().expect("a directory for the cluster"), args)
    }

    /// A cluster that runs pods, with these images of `scripts/images`.
    pub(crate) fn with_node(images: &[&str], args: &[&str]) -> Cluster {
        let dir = tempfile::tempdir().expect("a directory for the cluster");
        import_all(dir.path(), images);
        Cluster::with_node_in(dir, args)
    }

    /// The same, started by another program (`entrance`) and with this message bus as the system bus.
    pub(crate) fn with_node_inside(
        entrance: &[String],
        bus: &str,
        dir: TempDir,
        args: &[&str],
    ) -> Cluster {
        let inner = up(&dir.path().join("data"));
        let mut command = Command::new(&entrance[0]);
        command.args(&entrance[1..]).arg(inner.get_program()).args(inner.get_args());
        command.args(node_args()).env("DBUS_SYSTEM_BUS_ADDRESS", bus);
        command.stdin(Stdio::null());
        let ends = Ends(dir.path().join("data"));
        Cluster { _ends: Some(ends), ..Cluster::run(command, dir, args) }
    }

    /// The same, on what an earlier cluster left behind.
    pub(crate) fn with_node_in(dir: TempDir, args: &[&str]) -> Cluster {
        let mut command = up(&dir.path().join("data"));
        command.args(node_args());
        let ends = Ends(dir.path().join("data"));
        Cluster { _ends: Some(ends), ..Cluster::run(command, dir, args) }
    }

    /// The same, with pod and Service addresses of both IP families.
    pub(crate) fn with_both_families(images: &[&str]) -> Cluster {
        let dir = tempfile::tempdir().expect("a directory for the cluster");
        import_all(dir.path(), images);
        let mut command = up(&dir.path().join("data"));
        let pods = format!("{},{}", pod_range(), pod_range_v6());
        let services = format!("{},{}", service_range(), service_range_v6());
        command.args(node_args_with(pods, services));
        let ends = Ends(dir.path().join("data"));
        Cluster { _ends: Some(ends), ..Cluster::run(command, dir, &[]) }
    }

    /// The same, with a data directory that is given as a relative path.
    pub(crate) fn with_node_beside(dir: TempDir, args: &[&str]) -> Cluster {
        let mut command = up(Path::new("data"));
        command.current_dir(dir.path()).args(node_args());
        let ends = Ends(dir.path().join("data"));
        Cluster { _ends: Some(ends), ..Cluster::run(command, dir, args) }
    }

    /// The same; the process crashes at this crash point (`clock::crash_point`), which may be before it is ready.
    pub(crate) fn with_node_that_crashes(dir: TempDir, step: &str) -> Started {
        let mut command = up(&dir.path().join("data"));
        command.args(node_args()).env(clock::CRASH_AFTER, step);
        let process = Background::spawn(&mut command);
        let ends = Ends(dir.path().join("data"));
        loop {
            match process.next(START_MAX) {
                Ok(line) if line.contains("ready") => {
                    let url = line
                        .split_whitespace()
                        .nth(1)
                        .expect("the line contains the URL")
                        .to_owned();
                    return Started::Ready(Cluster { _ends: Some(ends), process, dir, url });
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Started::Died(dir),
                Err(RecvTimeoutError::Timeout) => panic!("not ready: {}", process.stderr()),
            }
        }
    }

    /// Waits until the process crashes. None: it does not within `bound`.
    pub(crate) fn crashed(self, bound: Duration) -> Option<TempDir> {
        let Cluster { mut process, dir, .. } = self;
        match process.exit_within(bound)? {
            None => Some(dir),
            Some(code) => panic!("it exited with {code}: {}", process.stderr()),
        }
    }

    fn run(mut command: Command, dir: TempDir, args: &[&str]) -> Cluster {
        let process = Background::spawn(command.args(args));
        let ready = process.line("ready", START_MAX);
        let url = ready.split_whitespace().nth(1).expect("the line contains the URL").to_owned();
        Cluster { _ends: None, process, dir, url }
    }

    /// A temporary directory that is removed with the cluster.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("kubeconfig")
    }

    /// The first kubectl there is, in the namespace `default`.
    pub(crate) fn kubectl(&self) -> Kubectl {
        self.kubectl_of(&installed_kubectls()[0], "default")
    }

    /// This version of kubectl, in a namespace that it creates.
    pub(crate) fn kubectl_of(&self, installed: &InstalledKubectl, namespace: &str) -> Kubectl {
        let home = self.dir().join(format!("kubectl-{}", installed.version));
        Kubectl::new(home, &self.kubeconfig(), installed, namespace)
    }

    /// Sends SIGTERM; the process must exit with 0.
    pub(crate) fn stop(self) -> TempDir {
        let Cluster { mut process, dir, .. } = self;
        signal(process.id(), "TERM");
        let code = process.exit(STOP_MAX);
        assert_eq!(
            code,
            Some(0),
            "SIGTERM should stop it with exit code 0; stderr: {}",
            process.stderr()
        );
        dir
    }

    /// Presses Ctrl-C. It must exit without complaint; returns the line of its output with these words.
    pub(crate) fn interrupt(self, words: &str) -> (TempDir, String) {
        let Cluster { mut process, dir, .. } = self;
        signal(process.id(), "INT");
        let line = process.line(words, STOP_MAX);
        assert_eq!(process.exit(STOP_MAX), Some(0), "it printed: {}", process.stderr());
        (dir, line)
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the exit that another process requested; the exit code must be 0.
    pub(crate) fn ended(self) -> TempDir {
        let Cluster { mut process, dir, .. } = self;
        assert_eq!(process.exit(STOP_MAX), Some(0), "stderr: {}", process.stderr());
        dir
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(self) -> TempDir {
        let Cluster { mut process, dir, .. } = self;
        signal(process.id(), "KILL");
        assert_eq!(process.exit(STOP_MAX), None, "a signal ended it");
        dir
    }
}

/// Whether a landfall with a crash point became ready.
pub(crate) enum Started {
    Ready(Cluster),
    /// It crashed before it was ready.
    Died(TempDir),
}

pub(crate) fn up(data_dir: &Path) -> Command {
    let mut command = Command::new(LANDFALL);
    command.arg("up").arg("--data-dir").arg(data_dir).args(["--listen", "127.0.0.1:0"]);
    command.stdin(Stdio::null());
    command
}

/// Ends the pods of a test that fails.
struct Ends(PathBuf);

impl Drop for Ends {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut command = Command::new(LANDFALL);
            let _ = command.arg("down").arg("--data-dir").arg(&self.0).output();
        }
    }
}

/// Tests run in parallel on one machine, so each has its own link and address range.
pub(crate) fn node_args() -> Vec<String> {
    node_args_with(pod_range(), service_range())
}

fn node_args_with(pods: String, services: String) -> Vec<String> {
    let words = ["--node-name", "n1", "--node-listen", "0.0.0.0:0", "--pod-link"];
    let mut args: Vec<String> = words.map(str::to_owned).to_vec();
    args.push(node_link());
    // Several nodes run on one machine.
    args.extend(
        ["--proxy-health-listen", "none", "--proxy-metrics-listen", "none"].map(String::from),
    );
    // A test machine may have little free disk space; that must not evict pods.
    args.extend(["--eviction-hard".into(), String::new()]);
    if let Some(runtime) = other_runtime() {
        args.extend(["--runtime".into(), runtime]);
    }
    args.extend(["--pod-cidr".into(), pods, "--service-cidr".into(), services]);
    args
}

/// The name of the network link of this test's node.
pub(crate) fn node_link() -> String {
    format!("t{:x}", std::process::id() % 0x10_0000)
}

/// The pod addresses of this test process. Other processes have others: each holds the lock of its range until it exits.
pub(crate) fn pod_range() -> String {
    let range = reserved_range();
    format!("10.{}.{}.0/20", 100 + range / 16, range % 16 * 16)
}

/// The Service addresses of this test process: clusters that run at the same time share the host's network.
pub(crate) fn service_range() -> String {
    let range = reserved_range();
    format!("10.{}.{}.0/20", range / 16, range % 16 * 16)
}

fn pod_range_v6() -> String {
    format!("fd6c:66:{:x}::/56", reserved_range())
}

fn service_range_v6() -> String {
    format!("fd6c:67:{:x}::/112", reserved_range())
}

fn reserved_range() -> u32 {
    static RESERVED: OnceLock<(u32, File)> = OnceLock::new();
    RESERVED.get_or_init(|| reserve_range(std::process::id())).0
}

/// The first free range. The search begins at another range in each process, so that a test does not get the addresses
/// that the test before it used a moment ago.
fn reserve_range(first: u32) -> (u32, File) {
    let locks = std::env::temp_dir().join("landfall-test-ranges");
    std::fs::create_dir_all(&locks).expect("a directory for the locks");
    let free = (0..RANGES).find_map(|offset| {
        let range = (first % RANGES + offset) % RANGES;
        let file = File::create(locks.join(range.to_string())).expect("a lock can be opened");
        file.try_lock().is_ok().then_some((range, file))
    });
    free.expect("fewer tests than address ranges run at the same time")
}

/// The CRI runtime under test, if it is not the native one: `scripts/test-containerd` sets it and imports the images.
/// Two nodes cannot share a runtime, so there is one for every test that runs at the same time.
pub(crate) fn other_runtime() -> Option<String> {
    let given = std::env::var("LANDFALL_TEST_RUNTIME").ok()?;
    let slot = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").unwrap_or_else(|_| "0".into());
    Some(given.replace("SLOT", &slot))
}

/// Imports images of `scripts/images` into the cluster of this directory.
pub(crate) fn import_all(dir: &Path, images: &[&str]) {
    for image in images {
        import(&dir.join("data"), &image_archive(image));
    }
}

pub(crate) fn import(data_dir: &Path, archive: &Path) {
    if other_runtime().is_some() {
        return;
    }
    let mut command = Command::new(LANDFALL);
    command.args(["image", "import"]).arg(archive).arg("--data-dir").arg(data_dir);
    let output = command.output().expect("landfall can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `landfall down` and returns its output.
pub(crate) fn down(data_dir: &Path) -> String {
    let mut command = Command::new(LANDFALL);
    let output = command.arg("down").arg("--data-dir").arg(data_dir).output();
    let output = output.expect("landfall can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a test with every installed kubectl, each in its own namespace of one cluster, which must then stop properly.
pub(crate) fn each_kubectl(test: impl Fn(&Kubectl)) {
    let cluster = Cluster::start(&[]);
    for installed in installed_kubectls() {
        let namespace = format!("with-{}", installed.version.replace('.', "-"));
        let kubectl = cluster.kubectl_of(&installed, &namespace);
        eprintln!("--- {installed:?}");
        test(&kubectl);
    }
    cluster.stop();
}
