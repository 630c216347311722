//! A network of two machines: a bridge and two network namespaces, each connected by a link that can be set down.

use std::process::Command;

pub(crate) struct Network {
    /// The prefix of all names.
    name: String,
    /// N in the address 10.254.N.1 of the bridge.
    net: u32,
}

pub(crate) const MACHINES: [&str; 2] = ["a", "b"];

impl Network {
    pub(crate) fn create() -> Network {
        let id = std::process::id();
        let network = Network { name: format!("i{:x}", id % 0x10_0000), net: id % 250 };
        let switch = network.switch();
        run(&format!("ip link add {switch} type bridge"));
        run(&format!("ip addr add {}/24 dev {switch}; ip link set {switch} up", network.server()));
        for (number, machine) in MACHINES.iter().enumerate() {
            let (space, cable) = (network.space(machine), network.cable(machine));
            let address = network.address(number);
            run(&format!(
                "ip netns add {space}
                 ip link add {cable} type veth peer name eth0 netns {space}
                 ip link set {cable} master {switch} up
                 ip -n {space} link set lo up
                 ip -n {space} addr add {address}/24 dev eth0
                 ip -n {space} link set eth0 up
                 ip -n {space} route add default via {}",
                network.server()
            ));
        }
        network
    }

    pub(crate) fn server(&self) -> String {
        format!("10.254.{}.1", self.net)
    }

    pub(crate) fn address(&self, machine: usize) -> String {
        format!("10.254.{}.{}", self.net, machine + 2)
    }

    /// A command that runs in the network namespace of the machine. `ip netns exec` would also hide the cgroups.
    pub(crate) fn on(&self, machine: usize) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.space(MACHINES[machine]))).arg("--");
        command
    }

    pub(crate) fn cut(&self, machine: usize) {
        run(&format!("ip link set {} down", self.cable(MACHINES[machine])));
    }

    pub(crate) fn heal(&self, machine: usize) {
        run(&format!("ip link set {} up", self.cable(MACHINES[machine])));
    }

    fn switch(&self) -> String {
        format!("{}s", self.name)
    }

    fn space(&self, machine: &str) -> String {
        format!("{}{machine}", self.name)
    }

    fn cable(&self, machine: &str) -> String {
        format!("{}c{machine}", self.name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let mut script = format!("ip link del {}\n", self.switch());
        for machine in MACHINES {
            script += &format!("ip link del {}\n", self.cable(machine));
            script += &format!("ip netns del {}\n", self.space(machine));
        }
        let _ = Command::new("sh").args(["-c", &script]).output();
    }
}

fn run(script: &str) {
    let output = Command::new("sh").args(["-ec", script]).output().expect("a shell can be run");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}
