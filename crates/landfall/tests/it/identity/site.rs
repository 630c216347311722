//! A server, two agents that joined it, and what can happen to them.

use super::wires::{MACHINES, Wires};
use crate::ground::Ground;
use crate::harness::{Background, Kubectl, LANDFALL, built_image, down, import, signal};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Joining takes two certificates and a report; a crowded machine may need long for it.
const START_MAX: Duration = Duration::from_secs(90);

/// A lost node is missed after this long; the server's default is 50 s.
const MISSED_AFTER: &str = "6s";
/// So that it gives a sign of life every second.
const LEASE: &str = "4s";

pub(crate) struct Site {
    pub(crate) kubectl: Kubectl,
    wires: Wires,
    server: Option<Background>,
    agents: [Option<Background>; 2],
    /// With the port, once it is known.
    listen: String,
    token: String,
    ground: Ground,
    dir: TempDir,
}

impl Site {
    pub(crate) fn start() -> Site {
        let ground = Ground::look();
        let dir = tempfile::tempdir().expect("a directory for the site");
        let wires = Wires::lay();
        let listen = format!("{}:0", wires.server());
        let server = start_server(&dir, &listen);
        let ready = server.line("ready", START_MAX);
        let url = ready.split_whitespace().nth(1).expect("it says where");
        let listen = url.trim_start_matches("https://").to_owned();
        let kubeconfig = dir.path().join("server/kubeconfig");
        let kubectl = Kubectl::of(&kubeconfig, dir.path().join("kubectl"));
        std::fs::create_dir_all(dir.path().join("out")).expect("a directory for what is witnessed");
        let token = token(&dir);
        let agents = [None, None];
        let server = Some(server);
        let mut site = Site { kubectl, wires, server, agents, listen, token, ground, dir };
        for machine in 0..MACHINES.len() {
            import(&site.data(machine), &built_image("python"));
            site.start_agent(machine);
        }
        for agent in &site.agents {
            agent.as_ref().expect("it was started").line("ready: node", START_MAX);
        }
        site
    }

    /// What pods see as `/out`.
    pub(crate) fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    pub(crate) fn cut(&self, machine: usize) {
        self.wires.cut(machine);
    }

    pub(crate) fn heal(&self, machine: usize) {
        self.wires.heal(machine);
    }

    /// As a crash would.
    pub(crate) fn kill_agent(&mut self, machine: usize) {
        kill(self.agents[machine].take());
    }

    /// If it does not run.
    pub(crate) fn start_agent(&mut self, machine: usize) {
        if self.agents[machine].is_some() {
            return;
        }
        let mut command = self.wires.on(machine);
        command.arg(LANDFALL).arg("node").arg("--data-dir").arg(self.data(machine));
        command.args(["--server", &format!("https://{}", self.listen), "--token", &self.token]);
        command.args(["--name", MACHINES[machine], "--node-ip", &self.wires.address(machine)]);
        command.args(["--node-lease-duration", LEASE, "--eviction-hard", ""]);
        // Called after this process, as `ground` expects.
        let link = format!("t{:x}{}", std::process::id() % 0x10_0000, MACHINES[machine]);
        command.args(["--pod-link", &link]);
        self.agents[machine] = Some(Background::spawn(command.stdin(Stdio::null())));
    }

    pub(crate) fn kill_server(&mut self) {
        kill(self.server.take());
    }

    /// If it does not run. Waits until it answers.
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

    /// Ends everything; nothing may be left.
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
            self.ground.is_as_before(&self.data(machine));
        }
    }

    fn data(&self, machine: usize) -> PathBuf {
        self.dir.path().join(MACHINES[machine]).join("data")
    }
}

impl Drop for Site {
    /// A test that fails ends its pods all the same.
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
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    said.split_whitespace().last().expect("the token").to_owned()
}

fn kill(process: Option<Background>) {
    if let Some(mut process) = process {
        signal(process.id(), "KILL");
        process.exit(START_MAX);
    }
}
