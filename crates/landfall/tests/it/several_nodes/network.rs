//! A network of three machines in network namespaces of their own. Machines `a` and `b` are on one subnet; `c` is behind a
//! router, which has no routes to pods, as routers between real subnets have none.
//!
//!     server (the namespace of the test) ─┐
//!     a ─┐                                │
//!        ├─ left ───────────────────── router ── right ── c
//!     b ─┘

use std::process::Command;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Machine {
    A,
    B,
    C,
}

pub(crate) const MACHINES: [Machine; 3] = [Machine::A, Machine::B, Machine::C];

impl Machine {
    /// The name of the machine and of its node.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Machine::A => "a",
            Machine::B => "b",
            Machine::C => "c",
        }
    }
}

pub(crate) struct Network {
    /// The prefix of all names.
    name: String,
    /// N in 198.18.N.0/24, which has all subnets. The range is reserved for tests of networks.
    net: u32,
}

impl Network {
    pub(crate) fn create() -> Network {
        let id = std::process::id();
        let network = Network { name: format!("n{:x}", id % 0x10_0000), net: id % 250 };
        let (router, uplink) = (network.space("r"), network.uplink());
        let (server, gateway) = (network.server(), network.host(130));
        shell(&format!(
            "ip netns add {router}
             ip -n {router} link set lo up
             nsenter --net=/run/netns/{router} sysctl -q -w net.ipv4.ip_forward=1
             ip link add {uplink} type veth peer name wan netns {router}
             ip addr add {server}/30 dev {uplink}
             ip link set {uplink} up
             ip -n {router} addr add {gateway}/30 dev wan
             ip -n {router} link set wan up"
        ));
        for (subnet, own) in [("left", 1), ("right", 65)] {
            let (own, range) = (network.host(own), network.host(own - 1));
            shell(&format!(
                "ip -n {router} link add {subnet} type bridge
                 ip -n {router} addr add {own}/26 dev {subnet}
                 ip -n {router} link set {subnet} up
                 ip route add {range}/26 via {gateway}"
            ));
        }
        for machine in MACHINES {
            network.connect(machine);
        }
        network
    }

    fn connect(&self, machine: Machine) {
        let (router, space) = (self.space("r"), self.space(machine.name()));
        let (port, address) = (port(machine), self.address(machine));
        let (subnet, gateway) = match machine {
            Machine::A | Machine::B => ("left", self.host(1)),
            Machine::C => ("right", self.host(65)),
        };
        shell(&format!(
            "ip netns add {space}
             ip -n {router} link add {port} type veth peer name eth0 netns {space}
             ip -n {router} link set {port} master {subnet} up
             ip -n {space} link set lo up
             ip -n {space} addr add {address}/26 dev eth0
             ip -n {space} link set eth0 up
             ip -n {space} route add default via {gateway}"
        ));
    }

    /// The address of the server.
    pub(crate) fn server(&self) -> String {
        self.host(129)
    }

    /// The first address of a machine.
    pub(crate) fn address(&self, machine: Machine) -> String {
        match machine {
            Machine::A => self.host(2),
            Machine::B => self.host(3),
            Machine::C => self.host(66),
        }
    }

    /// Machine `a` gets another address instead of its first one. Returns it.
    pub(crate) fn move_a(&self) -> String {
        let (space, new) = (self.space("a"), self.host(4));
        let (old, gateway) = (self.address(Machine::A), self.host(1));
        shell(&format!(
            "ip -n {space} addr del {old}/26 dev eth0
             ip -n {space} addr add {new}/26 dev eth0
             ip -n {space} route add default via {gateway}"
        ));
        new
    }

    /// A command that runs in the network namespace of the machine. `ip netns exec` would also hide the cgroups.
    pub(crate) fn on(&self, machine: Machine) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace(machine))).arg("--");
        command
    }

    /// The path of the machine's network namespace.
    pub(crate) fn namespace(&self, machine: Machine) -> String {
        format!("/run/netns/{}", self.space(machine.name()))
    }

    /// The output of a shell script on the machine, which must succeed.
    pub(crate) fn run(&self, machine: Machine, script: &str) -> String {
        output(self.on(machine).args(["sh", "-ec", script]), script)
    }

    pub(crate) fn cut(&self, machine: Machine) {
        shell(&format!("ip -n {} link set {} down", self.space("r"), port(machine)));
    }

    pub(crate) fn heal(&self, machine: Machine) {
        shell(&format!("ip -n {} link set {} up", self.space("r"), port(machine)));
    }

    fn host(&self, number: u32) -> String {
        format!("198.18.{}.{number}", self.net)
    }

    fn uplink(&self) -> String {
        format!("{}u", self.name)
    }

    fn space(&self, name: &str) -> String {
        format!("{}{name}", self.name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let mut script =
            format!("ip link del {}\nip netns del {}\n", self.uplink(), self.space("r"));
        for machine in MACHINES {
            script += &format!("ip netns del {}\n", self.space(machine.name()));
        }
        let _ = Command::new("sh").args(["-c", &script]).output();
    }
}

/// The router's device that is connected with the machine.
fn port(machine: Machine) -> String {
    format!("to-{}", machine.name())
}

fn shell(script: &str) -> String {
    output(Command::new("sh").args(["-ec", script]), script)
}

fn output(command: &mut Command, script: &str) -> String {
    let output = command.output().expect("a shell can be run");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
