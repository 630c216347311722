//! Three nodes in network namespaces of their own. Nodes `a` and `b` are on one subnet; node `c` is behind a
//! router, which drops packets with pod addresses as a router between real subnets would.
//!
//!     a 192.0.2.1 ─┐
//!                  ├─ router ─ c 198.51.100.3
//!     b 192.0.2.2 ─┘
//!
//! The router is the namespace of the test itself. Every node has one pod with servers on TCP and UDP port 80.

use crate::isolated::{cidr, config, inside, ip, namespace, run, serve_tcp, serve_udp};
use network::{
    Attachment, Cidr, NextHop, Overlay, OverlayState, Pods, PodsConfig, Reach, Routes, Tunnel,
};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) netns: PathBuf,
    pub(crate) config: PodsConfig,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) pods: Pods,
    pub(crate) pod: Attachment,
}

/// What other nodes know of a node.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ranges: Vec<Cidr>,
}

impl Node {
    async fn start(directory: &Path, name: &'static str, number: u8, subnet: &Subnet) -> Node {
        let netns = namespace(directory, name);
        let host = subnet.host(number);
        let link = format!("to-{name}");
        run(&format!("ip link add {link} type veth peer name eth0 netns {}", netns.display()));
        run(&format!("ip link set {link} master {} up", subnet.bridge));
        let (v4, v6) = (subnet.router(true), subnet.router(false));
        let (mine, mine6) = (host[0], host[1]);
        inside(&netns, move || {
            run("ip link set eth0 up");
            run(&format!("ip address add {mine}/24 dev eth0"));
            run(&format!("ip address add {mine6}/64 dev eth0 nodad"));
            run(&format!("ip route add default via {v4}; ip -6 route add default via {v6}"));
        });
        run(&format!("ip link show {link}")); // The kernel updates the state of the link now instead of later.
        let config = PodsConfig {
            cidrs: vec![
                cidr(&format!("10.77.{number}.0/24")),
                cidr(&format!("fd77:{number}::/64")),
            ],
            cluster_cidrs: vec![],
            mtu: 1450,
            ..config(&directory.join(format!("data-{name}")))
        };
        let pods = open_in(&netns, config.clone());
        let pod = pods.attach("pod", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, name);
        serve_udp(&pod.netns, 80, name);
        Node { name, netns, config, addresses: host.to_vec(), pods, pod }
    }

    pub(crate) fn known(&self) -> Known {
        Known { addresses: self.addresses.clone(), ranges: self.config.cidrs.clone() }
    }

    /// Sets the routes to these nodes: direct to neighbours, else through the overlay.
    pub(crate) async fn set_routes(&self, others: &[Known]) -> network::Result<OverlayState> {
        let routes = self.plan(others, true).await;
        let ranges: Vec<Cidr> = others.iter().flat_map(|other| other.ranges.clone()).collect();
        self.pods.set_cluster_ranges(&ranges).await?;
        self.pods.set_routes(&routes).await
    }

    pub(crate) async fn plan(&self, others: &[Known], direct: bool) -> Routes {
        let mut routes = Routes {
            overlay: Some(Overlay {
                vni: Overlay::VNI,
                port: Overlay::PORT,
                address: self.addresses[0],
            }),
            ..Routes::default()
        };
        for other in others {
            let reach = self.pods.reach(&other.addresses).await.unwrap();
            let mut tunnelled = Vec::new();
            for (address, range) in other.addresses.iter().zip(&other.ranges) {
                match reach[address] {
                    Reach::Neighbour { device } if direct => {
                        routes.direct.insert(*range, NextHop { address: *address, device });
                    }
                    _ => tunnelled.push(*range),
                }
            }
            let (address, first_range) = (other.addresses[0], other.ranges[0]);
            routes.tunnels.push(Tunnel { address, first_range, ranges: tunnelled });
        }
        routes
    }

    /// Output of a shell command on this node.
    pub(crate) fn run(&self, line: &str) -> String {
        let line = line.to_owned();
        inside(&self.netns, move || run(&line))
    }

    /// The process is killed and starts again.
    pub(crate) fn restart(&mut self) {
        let after = open_in(&self.netns, self.config.clone());
        std::mem::forget(std::mem::replace(&mut self.pods, after));
    }

    pub(crate) fn pod_ip(&self, ipv4: bool) -> IpAddr {
        self.pod.addresses[usize::from(!ipv4)]
    }
}

/// Two subnets of the underlay.
struct Subnet {
    bridge: &'static str,
    v4: &'static str,
    v6: &'static str,
}

impl Subnet {
    fn host(&self, number: u8) -> [IpAddr; 2] {
        [ip(&format!("{}.{number}", self.v4)), ip(&format!("{}::{number}", self.v6))]
    }

    fn router(&self, ipv4: bool) -> IpAddr {
        self.host(254)[usize::from(!ipv4)]
    }

    fn start(&self) {
        let (bridge, v4, v6) = (self.bridge, self.router(true), self.router(false));
        run(&format!("ip link add {bridge} type bridge && ip link set {bridge} up"));
        run(&format!("ip address add {v4}/24 dev {bridge}"));
        run(&format!("ip address add {v6}/64 dev {bridge} nodad"));
    }
}

/// Starts the nodes, without routes between them.
pub(crate) async fn start(directory: &Path) -> [Node; 3] {
    let left = Subnet { bridge: "left", v4: "192.0.2", v6: "2001:db8:1" };
    let right = Subnet { bridge: "right", v4: "198.51.100", v6: "2001:db8:2" };
    left.start();
    right.start();
    run("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
    // Only for packets between the subnets: with br_netfilter, frames between `a` and `b` pass this hook too.
    run("nft 'add table inet router; add chain inet router f { type filter hook forward priority 0; }
         add chain inet router drop-pods; add rule inet router drop-pods ip saddr 10.77.0.0/16 drop
         add rule inet router drop-pods ip daddr 10.77.0.0/16 drop
         add rule inet router drop-pods ip6 saddr fd77::/16 drop
         add rule inet router drop-pods ip6 daddr fd77::/16 drop
         add rule inet router f iifname left oifname right jump drop-pods
         add rule inet router f iifname right oifname left jump drop-pods'");
    [
        Node::start(directory, "a", 1, &left).await,
        Node::start(directory, "b", 2, &left).await,
        Node::start(directory, "c", 3, &right).await,
    ]
}

/// Starts the nodes with routes between all of them.
pub(crate) async fn start_connected(directory: &Path) -> [Node; 3] {
    let nodes = start(directory).await;
    for node in &nodes {
        connect(node, &nodes).await;
    }
    nodes
}

/// Gives `node` routes to all other nodes.
pub(crate) async fn connect(node: &Node, nodes: &[Node]) {
    let others = nodes.iter().filter(|other| other.name != node.name);
    let others: Vec<Known> = others.map(Node::known).collect();
    assert_eq!(node.set_routes(&others).await.unwrap(), OverlayState::Ready);
}

fn open_in(netns: &Path, config: PodsConfig) -> Pods {
    inside(netns, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(Pods::open(config)).unwrap()
    })
}
