//! A running landfall, and the clients that people have, for tests that look from outside.
//!
//! `Cluster` is the binary in a process of its own with a directory of its own; `Kubectl` runs
//! commands as they are typed, with a home of its own. Nothing sleeps: waits are on output lines,
//! on exits, or inside `kubectl wait`, and each has a bound.
//! Not here: what must be true (the tests).

pub(crate) mod etcd;
mod kubectl;
mod process;

pub(crate) use kubectl::{Kubectl, kubectls};
pub(crate) use process::{Background, signal};

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A start takes a fraction of a second; a crowded machine may need more.
const START_MAX: Duration = Duration::from_secs(60);
/// Stopping waits for open requests, but not for long.
const STOP_MAX: Duration = Duration::from_secs(30);

pub(crate) const LANDFALL: &str = env!("CARGO_BIN_EXE_landfall");

pub(crate) struct Cluster {
    /// First, so that it goes first.
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
        // What only the API decides: nobody else writes to pods here.
        command.args(["--no-node", "--no-scheduler"]);
        Cluster::run(command, dir, args)
    }

    /// The same, with a scheduler.
    pub(crate) fn scheduling_in(dir: TempDir, args: &[&str]) -> Cluster {
        let mut command = up(&dir.path().join("data"));
        command.arg("--no-node");
        Cluster::run(command, dir, args)
    }

    /// A cluster that waits for nodes from elsewhere.
    pub(crate) fn without_node(args: &[&str]) -> Cluster {
        Cluster::scheduling_in(tempfile::tempdir().expect("a directory for the cluster"), args)
    }

    /// A cluster that runs pods, with these images of `scripts/images`.
    pub(crate) fn with_node(images: &[&str], args: &[&str]) -> Cluster {
        let dir = tempfile::tempdir().expect("a directory for the cluster");
        import_all(dir.path(), images);
        Cluster::with_node_in(dir, args)
    }

    /// The same where another program leads: on this message bus of a host.
    pub(crate) fn with_node_inside(
        entrance: &[String],
        bus: &str,
        dir: TempDir,
        args: &[&str],
    ) -> Cluster {
        let inner = up(&dir.path().join("data"));
        let mut command = Command::new(&entrance[0]);
        command.args(&entrance[1..]).arg(inner.get_program()).args(inner.get_args());
        command.args(node_args(std::process::id())).env("DBUS_SYSTEM_BUS_ADDRESS", bus);
        command.stdin(Stdio::null());
        let ends = Ends(dir.path().join("data"));
        Cluster { _ends: Some(ends), ..Cluster::run(command, dir, args) }
    }

    /// The same, on what an earlier cluster left behind.
    pub(crate) fn with_node_in(dir: TempDir, args: &[&str]) -> Cluster {
        let mut command = up(&dir.path().join("data"));
        command.args(node_args(std::process::id()));
        let ends = Ends(dir.path().join("data"));
        Cluster { _ends: Some(ends), ..Cluster::run(command, dir, args) }
    }

    /// The same, started beside its data directory and told of it from there.
    pub(crate) fn with_node_beside(dir: TempDir, args: &[&str]) -> Cluster {
        let mut command = up(Path::new("data"));
        command.current_dir(dir.path()).args(node_args(std::process::id()));
        let ends = Ends(dir.path().join("data"));
        Cluster { _ends: Some(ends), ..Cluster::run(command, dir, args) }
    }

    fn run(mut command: Command, dir: TempDir, args: &[&str]) -> Cluster {
        let process = Background::spawn(command.args(args));
        let ready = process.line("ready", START_MAX);
        let url = ready.split_whitespace().nth(1).expect("it says where").to_owned();
        Cluster { _ends: None, process, dir, url }
    }

    /// Scratch space that goes when the cluster goes.
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
        let (version, path) = kubectls().remove(0);
        Kubectl::new(self, &version, &path, "default")
    }

    /// Asks it to stop as `kill` does; it must do so, and without complaint.
    pub(crate) fn stop(self) -> TempDir {
        let Cluster { mut process, dir, .. } = self;
        signal(process.id(), "TERM");
        let code = process.exit(STOP_MAX);
        assert_eq!(code, Some(0), "SIGTERM is a proper way to stop; it said: {}", process.stderr());
        dir
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// After somebody else asked it to end: it must do so without complaint.
    pub(crate) fn ended(self) -> TempDir {
        let Cluster { mut process, dir, .. } = self;
        assert_eq!(process.exit(STOP_MAX), Some(0), "it said: {}", process.stderr());
        dir
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(self) -> TempDir {
        let Cluster { mut process, dir, .. } = self;
        signal(process.id(), "KILL");
        assert_eq!(process.exit(STOP_MAX), None, "a signal ended it");
        dir
    }
}

pub(crate) fn up(data_dir: &Path) -> Command {
    let mut command = Command::new(LANDFALL);
    command.arg("up").arg("--data-dir").arg(data_dir).args(["--listen", "127.0.0.1:0"]);
    command.stdin(Stdio::null());
    command
}

/// A test that fails ends its pods all the same.
struct Ends(PathBuf);

impl Drop for Ends {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut command = Command::new(LANDFALL);
            let _ = command.arg("down").arg("--data-dir").arg(&self.0).output();
        }
    }
}

/// Tests run side by side on one machine: each has a network of its own.
fn node_args(process: u32) -> Vec<String> {
    let words = ["--node-name", "n1", "--node-listen", "0.0.0.0:0", "--pod-link"];
    let mut args: Vec<String> = words.map(str::to_owned).to_vec();
    args.push(format!("t{:x}", process % 0x10_0000));
    // A test machine may be nearly full; nobody's pods are to be evicted for that.
    args.extend(["--eviction-hard".into(), String::new()]);
    if let Some(runtime) = other_runtime() {
        args.extend(["--runtime".into(), runtime]);
    }
    args.extend(["--pod-cidr".into(), format!("10.{}.0.0/16", 100 + process % 100)]);
    args
}

/// What `scripts/images` built when the tests' tools were installed.
pub(crate) fn built_image(name: &str) -> PathBuf {
    tool(&format!("images/{name}.tar"))
}

/// The runtime under test, if it is not landfall's own: `scripts/test-containerd` sets it. Images are
/// there already then. A node owns its runtime, so there is one for every test that runs at once.
pub(crate) fn other_runtime() -> Option<String> {
    let given = std::env::var("LANDFALL_TEST_RUNTIME").ok()?;
    let slot = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").unwrap_or_else(|_| "0".into());
    Some(given.replace("SLOT", &slot))
}

/// Images of `scripts/images`, for the cluster of this directory.
pub(crate) fn import_all(dir: &Path, images: &[&str]) {
    for image in images {
        import(&dir.join("data"), &built_image(image));
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

/// Ends a cluster with all its pods, and says what it said.
pub(crate) fn down(data_dir: &Path) -> String {
    let mut command = Command::new(LANDFALL);
    let output = command.arg("down").arg("--data-dir").arg(data_dir).output();
    let output = output.expect("landfall can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a test with every kubectl on this machine, each in a namespace of its own, all in one
/// cluster, which must then stop properly.
pub(crate) fn each_kubectl(test: impl Fn(&Kubectl)) {
    let cluster = Cluster::start(&[]);
    for (version, path) in kubectls() {
        let namespace = format!("with-{}", version.replace('.', "-"));
        let kubectl = Kubectl::new(&cluster, &version, &path, &namespace);
        eprintln!("--- kubectl {version} ({})", path.display());
        test(&kubectl);
    }
    cluster.stop();
}

/// What only tests need, where `scripts/install` puts it.
#[track_caller]
pub(crate) fn tool(path: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).expect("two below the root");
    let path = root.join("target/tools").join(path);
    assert!(path.is_file(), "{} is not there: run `scripts/install all`", path.display());
    path
}
