//! A switch and two machines on it, as far as the kernel's network is concerned: a bridge, and two
//! network namespaces with a cable each that can be pulled.

use std::process::Command;

pub(crate) struct Wires {
    /// All names here begin with it.
    name: String,
    /// Of the switch: 10.254.N.1.
    net: u32,
}

/// The machines.
pub(crate) const MACHINES: [&str; 2] = ["a", "b"];

impl Wires {
    pub(crate) fn lay() -> Wires {
        let id = std::process::id();
        let wires = Wires { name: format!("i{:x}", id % 0x10_0000), net: id % 250 };
        let switch = wires.switch();
        run(&format!("ip link add {switch} type bridge"));
        run(&format!("ip addr add {}/24 dev {switch}; ip link set {switch} up", wires.server()));
        for (number, machine) in MACHINES.iter().enumerate() {
            let (space, cable) = (wires.space(machine), wires.cable(machine));
            let address = wires.address(number);
            run(&format!(
                "ip netns add {space}
                 ip link add {cable} type veth peer name eth0 netns {space}
                 ip link set {cable} master {switch} up
                 ip -n {space} link set lo up
                 ip -n {space} addr add {address}/24 dev eth0
                 ip -n {space} link set eth0 up
                 ip -n {space} route add default via {}",
                wires.server()
            ));
        }
        wires
    }

    pub(crate) fn server(&self) -> String {
        format!("10.254.{}.1", self.net)
    }

    pub(crate) fn address(&self, machine: usize) -> String {
        format!("10.254.{}.{}", self.net, machine + 2)
    }

    /// A command that will run on the machine. Only the network is its own: `ip netns exec` would also
    /// hide the cgroups.
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

impl Drop for Wires {
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
