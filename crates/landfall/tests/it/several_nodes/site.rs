//! A server and three agents, each in the network namespace of its machine.

use super::network::{MACHINES, Machine, Network};
use crate::harness::{
    Background, Kubectl, LANDFALL, down, image_archive, import, pod_range, service_range, signal,
};
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
    pub(crate) network: Network,
    agents: [Option<Background>; 3],
    options: Vec<String>,
    server: Background,
    url: String,
    token: String,
    kernel: KernelState,
    dir: TempDir,
}

impl Site {
    /// With these images and these further options of all agents. Returns when all nodes are ready.
    pub(crate) fn start_with(images: &[&str], options: &[&str]) -> Site {
        let kernel = KernelState::capture();
        let dir = tempfile::tempdir().expect("a directory for the site");
        std::thread::scope(|scope| {
            for machine in MACHINES {
                let data_dir = data_dir(&dir, machine);
                scope.spawn(move || {
                    images.iter().for_each(|image| import(&data_dir, &image_archive(image)));
                });
            }
        });
        let network = Network::create();
        let server = start_server(&dir, &network);
        let ready = server.line("ready", START_MAX);
        let url = ready.split_whitespace().nth(1).expect("the line contains the URL").to_owned();
        let kubeconfig = server_dir(&dir).join("kubeconfig");
        let kubectl = Kubectl::first(dir.path().join("kubectl"), &kubeconfig);
        let token = token(&dir);
        let agents = [None, None, None];
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut site = Site { kubectl, network, agents, options, server, url, token, kernel, dir };
        for machine in MACHINES {
            site.start_agent(machine, &site.network.address(machine));
        }
        for machine in MACHINES {
            site.wait_until_ready(machine);
        }
        site
    }

    pub(crate) fn start_agent(&mut self, machine: Machine, address: &str) {
        let mut command = self.network.on(machine);
        command.arg(LANDFALL).arg("node").arg("--data-dir").arg(self.data_dir(machine));
        command.args(["--server", &self.url, "--token", &self.token]);
        command.args(["--name", machine.name(), "--node-ip", address]);
        command.args(["--node-lease-duration", LEASE, "--eviction-hard", ""]);
        command.args(["--pod-link", &self.link(machine)]).args(&self.options);
        self.agents[machine as usize] = Some(Background::spawn(command.stdin(Stdio::null())));
    }

    pub(crate) fn wait_until_ready(&self, machine: Machine) {
        let agent = self.agents[machine as usize].as_ref().expect("the agent was started");
        agent.line("ready: node", START_MAX);
    }

    /// The id of the agent's process.
    pub(crate) fn agent_id(&self, machine: Machine) -> u32 {
        self.agents[machine as usize].as_ref().expect("the agent runs").id()
    }

    /// Stops the agent with SIGTERM. Its pods keep running.
    pub(crate) fn stop_agent(&mut self, machine: Machine) {
        let mut agent = self.agents[machine as usize].take().expect("the agent runs");
        signal(agent.id(), "TERM");
        assert_eq!(agent.exit(START_MAX), Some(0), "{}", agent.stderr());
    }

    /// Runs `landfall down` for the machine's node.
    pub(crate) fn down(&mut self, machine: Machine) {
        down(&self.data_dir(machine));
        if let Some(mut agent) = self.agents[machine as usize].take() {
            assert_eq!(agent.exit(START_MAX), Some(0), "{}", agent.stderr());
        }
    }

    /// The device of the machine's pod network. Contains the id of this process, as `kernel_state` expects.
    pub(crate) fn link(&self, machine: Machine) -> String {
        format!("t{:x}{}", std::process::id() % 0x10_0000, machine.name())
    }

    /// The pod range of a machine's node.
    pub(crate) fn range(&self, machine: Machine) -> String {
        let name = machine.name();
        let range =
            self.kubectl.ok(&format!("kubectl get node {name} -o jsonpath='{{.spec.podCIDR}}'"));
        range.trim().to_owned()
    }

    /// Ends everything and checks that nothing is left.
    pub(crate) fn end(mut self) {
        self.kubectl.ok("kubectl delete pods --all --timeout=40s --grace-period=1");
        for machine in MACHINES {
            if self.agents[machine as usize].is_some() {
                self.down(machine);
            }
            let rules = self.network.run(machine, "nft list tables");
            assert!(!rules.contains(&self.link(machine)), "{rules}");
            let links = self.network.run(machine, "ip -o link");
            assert!(!links.contains(&self.link(machine)), "{links}");
        }
        down(&server_dir(&self.dir));
        assert_eq!(self.server.exit(START_MAX), Some(0), "{}", self.server.stderr());
        for machine in MACHINES {
            self.kernel.assert_unchanged(&self.data_dir(machine));
        }
    }

    fn data_dir(&self, machine: Machine) -> PathBuf {
        data_dir(&self.dir, machine)
    }
}

impl Drop for Site {
    /// Ends the pods of a test that fails.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for machine in MACHINES {
                drop(self.agents[machine as usize].take());
                // In the namespace of the machine, whose devices it removes.
                let mut command = self.network.on(machine);
                command.arg(LANDFALL).arg("down").arg("--data-dir").arg(self.data_dir(machine));
                let _ = command.output();
            }
        }
    }
}

fn data_dir(dir: &TempDir, machine: Machine) -> PathBuf {
    dir.path().join(machine.name()).join("data")
}

fn start_server(dir: &TempDir, network: &Network) -> Background {
    let mut command = Command::new(LANDFALL);
    command.arg("server").arg("--data-dir").arg(server_dir(dir));
    command.args(["--listen", &format!("{}:0", network.server())]);
    command.args(["--pod-cidr", &pod_range(), "--service-cidr", &service_range()]);
    command.args(["--node-monitor-grace-period", MISSED_AFTER]);
    Background::spawn(command.stdin(Stdio::null()))
}

fn server_dir(dir: &TempDir) -> PathBuf {
    dir.path().join("server")
}

fn token(dir: &TempDir) -> String {
    let mut command = Command::new(LANDFALL);
    command.args(["token", "create", "--data-dir"]).arg(server_dir(dir));
    let made = command.output().expect("landfall can be run");
    let output = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    output.split_whitespace().last().expect("the token").to_owned()
}
