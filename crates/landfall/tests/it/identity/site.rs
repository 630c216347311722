//! A server, two agents that joined it, and the faults that tests inject.

use super::network::{MACHINES, Network};
use crate::harness::{Background, Kubectl, LANDFALL, down, image_archive, import, signal};
use crate::kernel_state::KernelState;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How long joining may take on a busy machine.
const START_MAX: Duration = Duration::from_secs(90);

/// After this time a lost node becomes Unknown; the default is 50 s.
const MISSED_AFTER: &str = "6s";
/// Lease duration of a node; it renews the lease every second.
const LEASE: &str = "4s";

pub(crate) struct Site {
    pub(crate) kubectl: Kubectl,
    network: Network,
    server: Option<Background>,
    agents: [Option<Background>; 2],
    /// Contains the port once it is known.
    listen: String,
    token: String,
    kernel: KernelState,
    dir: TempDir,
}

impl Site {
    pub(crate) fn start() -> Site {
        let kernel = KernelState::capture();
        let dir = tempfile::tempdir().expect("a directory for the site");
        let network = Network::create();
        let listen = format!("{}:0", network.server());
        let server = start_server(&dir, &listen);
        let ready = server.line("ready", START_MAX);
        let url = ready.split_whitespace().nth(1).expect("the line contains the URL");
        let listen = url.trim_start_matches("https://").to_owned();
        let kubeconfig = dir.path().join("server/kubeconfig");
        let kubectl = Kubectl::first(dir.path().join("kubectl"), &kubeconfig);
        std::fs::create_dir_all(dir.path().join("out")).expect("a directory for the reports");
        let token = token(&dir);
        let agents = [None, None];
        let server = Some(server);
        let mut site = Site { kubectl, network, server, agents, listen, token, kernel, dir };
        for machine in 0..MACHINES.len() {
            import(&site.data(machine), &image_archive("python"));
            site.start_agent(machine);
        }
        for agent in &site.agents {
            agent.as_ref().expect("it was started").line("ready: node", START_MAX);
        }
        site
    }

    /// The directory that pods see as `/out`.
    pub(crate) fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    pub(crate) fn cut(&self, machine: usize) {
        self.network.cut(machine);
    }

    pub(crate) fn heal(&self, machine: usize) {
        self.network.heal(machine);
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill_agent(&mut self, machine: usize) {
        kill(self.agents[machine].take());
    }

    /// Starts it unless it runs.
    pub(crate) fn start_agent(&mut self, machine: usize) {
        if self.agents[machine].is_some() {
            return;
        }
        let mut command = self.network.on(machine);
        command.arg(LANDFALL).arg("node").arg("--data-dir").arg(self.data(machine));
        command.args(["--server", &format!("https://{}", self.listen), "--token", &self.token]);
        command.args(["--name", MACHINES[machine], "--node-ip", &self.network.address(machine)]);
        command.args(["--node-lease-duration", LEASE, "--eviction-hard", ""]);
        // Contains the id of this process, as `kernel_state` expects.
        let link = format!("t{:x}{}", std::process::id() % 0x10_0000, MACHINES[machine]);
        command.args(["--pod-link", &link]);
        self.agents[machine] = Some(Background::spawn(command.stdin(Stdio::null())));
    }

    pub(crate) fn kill_server(&mut self) {
        kill(self.server.take());
    }

    /// Starts it unless it runs, and waits until it is ready.
    pub(crate) fn start_server(&mut self) {
        if self.server.is_none() {
            let server = start_server(&self.dir, &self.listen);
            server.line("ready", START_MAX);
            self.server = Some(server);
        }
    }

    /// The number of the machine that this pod is on.
    pub(crate) fn machine_of(&self, pod: &str) -> usize {
        let node =
            self.kubectl.ok(&format!("kubectl get pod {pod} -o jsonpath='{{.spec.nodeName}}'"));
        MACHINES.iter().position(|machine| *machine == node.trim()).expect("it has a node")
    }

    /// Ends everything and checks that nothing is left.
    pub(crate) fn end(mut self) {
        self.kubectl.ok("kubectl delete statefulset --all
                         kubectl delete pods --all --timeout=40s");
        for machine in 0..MACHINES.len() {
            down(&self.data(machine));
        }
        down(&self.dir.path().join("server"));
        self.server = None;
        self.agents = [None, None];
        for machine in 0..MACHINES.len() {
            self.kernel.assert_unchanged(&self.data(machine));
        }
    }

    fn data(&self, machine: usize) -> PathBuf {
        self.dir.path().join(MACHINES[machine]).join("data")
    }
}

impl Drop for Site {
    /// Ends the pods of a test that fails.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for machine in 0..MACHINES.len() {
                self.kill_agent(machine);
                let mut command = Command::new(LANDFALL);
                let _ = command.arg("down").arg("--data-dir").arg(self.data(machine)).output();
            }
        }
    }
}

fn start_server(dir: &TempDir, listen: &str) -> Background {
    let mut command = Command::new(LANDFALL);
    command.arg("server").arg("--data-dir").arg(dir.path().join("server"));
    command.args(["--listen", listen, "--node-monitor-grace-period", MISSED_AFTER]);
    Background::spawn(command.stdin(Stdio::null()))
}

fn token(dir: &TempDir) -> String {
    let mut command = Command::new(LANDFALL);
    command.args(["token", "create", "--data-dir"]).arg(dir.path().join("server"));
    let made = command.output().expect("landfall can be run");
    let output = String::from_utf8_lossy(&made.stdout).into_owned();
    output.split_whitespace().last().expect("the token").to_owned()
}

fn kill(process: Option<Background>) {
    if let Some(mut process) = process {
        signal(process.id(), "KILL");
        process.exit(START_MAX);
    }
}
