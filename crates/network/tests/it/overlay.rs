//! The overlay device: MTU, and who may send packets into it.

use crate::isolated::{SHORT, call_tcp, inside, ip, isolated, run, serve_tcp};
use crate::three_nodes::{Node, start_connected};
use network::pod_mtu;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

#[test]
fn pods_leave_room_for_the_overlay() {
    // NET-8: the underlay's MTU minus 50 bytes over IPv4, 70 over IPv6.
    isolated(|_| async move {
        run("ip link add eth0 type veth peer name eth1");
        run("ip address add 192.0.2.1/24 dev eth0; ip address add 2001:db8::1/64 dev eth0 nodad");
        let (v4, v6) = (ip("192.0.2.1"), ip("2001:db8::1"));
        assert_eq!(pod_mtu(&[v4]).unwrap(), 1450);
        assert_eq!(pod_mtu(&[v6, v4]).unwrap(), 1450, "the overlay uses IPv4 if it can");
        assert_eq!(pod_mtu(&[v6]).unwrap(), 1430);
        run("ip link set eth0 mtu 9000");
        assert_eq!(pod_mtu(&[v4]).unwrap(), 8950);
        run("ip link set eth0 mtu 1300");
        assert_eq!(pod_mtu(&[v4]).unwrap(), 1280, "the smallest MTU of IPv6");
        assert_eq!(pod_mtu(&[ip("127.0.0.1")]).unwrap(), 1450, "not that of the loopback device");
        assert_eq!(pod_mtu(&[ip("192.0.2.99")]).unwrap(), 1450, "not an address of this machine");
        assert_eq!(pod_mtu(&[]).unwrap(), 1450);
    });
}

#[test]
fn all_devices_have_the_mtu_of_pods() {
    // NET-8: the same on veth and overlay device.
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        for device in ["lf0", "lf0v", "lf0p2"] {
            let text = nodes[0].run(&format!("ip link show {device}"));
            assert!(text.contains("mtu 1450"), "{text}");
        }
        assert!(inside(&nodes[0].pod.netns, || run("ip link show eth0")).contains("mtu 1450"));
        let overlay = nodes[0].run("ip -d link show lf0v");
        for setting in ["vxlan id 27750", "local 192.0.2.1", "dstport 8472", "nolearning"] {
            assert!(overlay.contains(setting), "{overlay}");
        }
        let filter = nodes[0].run("cat /proc/sys/net/ipv4/conf/lf0v/rp_filter");
        assert_eq!(filter.trim(), "2", "NET-18: loose");
    });
}

/// Sends a megabyte from one pod to another and returns how much arrived.
fn transfer(from: &Node, to: &Node) -> std::io::Result<usize> {
    const SIZE: usize = 1 << 20;
    let listener = inside(&to.pod.netns, || TcpListener::bind("0.0.0.0:9")).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(crate::isolated::PATIENCE)).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map(|_| all.len())
    });
    let address = format!("{}:9", to.pod_ip(true));
    let mut stream = inside(&from.pod.netns, move || TcpStream::connect(address)).unwrap();
    stream.write_all(&vec![1; SIZE])?;
    drop(stream);
    server.join().unwrap()
}

#[test]
fn pods_learn_a_smaller_mtu_from_icmp() {
    // NET-8: "packet too big" reaches the pod.
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        nodes[0].run("ip link set lf0v mtu 1300");
        assert_eq!(transfer(&nodes[0], &nodes[2]).unwrap(), 1 << 20);
        let route = inside(&nodes[0].pod.netns, || run("ip route get 10.77.3.2"));
        assert!(route.contains("mtu 1300"), "{route}");
        // A narrow link on the way: the router fragments overlay packets.
        run("ip link set to-c mtu 1400; ip link set right mtu 1400");
        nodes[2].run("ip link set eth0 mtu 1400");
        assert_eq!(transfer(&nodes[1], &nodes[2]).unwrap(), 1 << 20);
        assert_eq!(transfer(&nodes[2], &nodes[1]).unwrap(), 1 << 20);
    });
}

/// An overlay packet that carries `text` by UDP to the pod of `to`, as if from the address 10.77.9.9.
fn overlay_packet(to: &Node, text: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x08, 0, 0, 0, 0, 0x6c, 0x66, 0];
    let std::net::IpAddr::V4(pod) = to.pod_ip(true) else { panic!() };
    let [.., number, _] = pod.octets();
    packet.extend_from_slice(&[0x02, 0x6c, 10, 77, number, 0]); // To the device of the node.
    packet.extend_from_slice(&[0x02, 0x6c, 10, 77, 9, 0, 0x08, 0x00]);
    let length = 20 + 8 + text.len() as u16;
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 9, 9]);
    header.extend_from_slice(&pod.octets());
    let mut sum: u32 = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet.extend_from_slice(&header);
    packet.extend_from_slice(&[0x30, 0x39, 0x22, 0xb8]); // From port 12345 to port 8888.
    packet.extend_from_slice(&(8 + text.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0]); // No checksum.
    packet.extend_from_slice(text);
    packet
}

#[test]
fn only_nodes_can_send_packets_into_the_overlay() {
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        let (a, c) = (&nodes[0], &nodes[2]);
        let receiver = inside(&a.pod.netns, || UdpSocket::bind("0.0.0.0:8888")).unwrap();
        let packet = |text: &[u8]| overlay_packet(a, text);
        let send = |netns: Option<&std::path::Path>, to: &'static str, bytes: Vec<u8>| {
            let send = move || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                let _ = socket.send_to(&bytes, to);
            };
            match netns {
                Some(netns) => inside(netns, send),
                None => send(),
            }
        };
        // From pods to their own node and to another one, and from a host that is no node.
        send(Some(&a.pod.netns), "192.0.2.1:8472", packet(b"own pod"));
        send(Some(&c.pod.netns), "192.0.2.1:8472", packet(b"other pod"));
        send(None, "192.0.2.1:8472", packet(b"router"));
        // The same packet from a node arrives, after all others.
        send(Some(&c.netns), "192.0.2.1:8472", packet(b"node"));
        receiver.set_read_timeout(Some(crate::isolated::PATIENCE)).unwrap();
        let mut buffer = [0; 100];
        let (length, from) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"node", "from {from}");
        receiver.set_read_timeout(Some(SHORT)).unwrap();
        assert!(receiver.recv_from(&mut buffer).is_err());
        // Without the rules all of them arrive.
        a.run("nft delete table ip landfall-pods-overlay");
        send(None, "192.0.2.1:8472", packet(b"router"));
        receiver.set_read_timeout(Some(crate::isolated::PATIENCE)).unwrap();
        assert_eq!(receiver.recv_from(&mut buffer).unwrap().0, b"router".len());
    });
}

#[test]
fn masqueraded_connections_leave_through_the_overlay_with_a_pod_address() {
    // NET-4: what the node masquerades gets a reply, although the router knows no pods.
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        let a = &nodes[0];
        a.run("ip address add 203.0.113.1/32 dev lo");
        a.run(
            "nft 'add table ip t; add chain ip t p { type nat hook postrouting priority 90; }
               add rule ip t p ip saddr 203.0.113.1 masquerade'",
        );
        let socket = inside(&a.netns, || UdpSocket::bind("203.0.113.1:0")).unwrap();
        socket.set_read_timeout(Some(crate::isolated::PATIENCE)).unwrap();
        socket.send_to(b"x", "10.77.3.2:80").unwrap();
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"c 10.77.1.1");
        serve_tcp(Some(&a.netns), 9000, "node a");
        let answer = call_tcp(Some(&nodes[2].pod.netns), "10.77.1.1:9000");
        assert_eq!(
            answer,
            Ok("node a 10.77.3.2".into()),
            "a pod reaches another node's pod address"
        );
    });
}
