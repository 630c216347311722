//! Packets of an endpoint that do not belong to the connection which they pretend to belong to.

use super::changes::{answers, connect, serve_echo};
use super::*;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// A socket that sends TCP headers and receives all TCP packets of a network namespace, with their IP header.
fn raw_tcp(netns: &Path) -> UdpSocket {
    let open = || socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Tcp);
    UdpSocket::from(inside(netns, open).unwrap())
}

fn octets(address: IpAddr) -> [u8; 4] {
    let IpAddr::V4(address) = address else { panic!("{address} is not of IPv4") };
    address.octets()
}

/// An acknowledgement with this sequence number, with a correct checksum.
fn acknowledgement(from: SocketAddr, to: SocketAddr, sequence: u32) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(from.port().to_be_bytes());
    header.extend(to.port().to_be_bytes());
    header.extend(sequence.to_be_bytes());
    header.extend([0, 0, 0, 1]); // Acknowledges this number.
    header.extend([5 << 4, 0x10]); // The length of the header in words, and the flag ACK.
    header.extend([1, 0, 0, 0, 0, 0]); // Window, checksum, urgent pointer.
    let length = [0, libc::IPPROTO_TCP as u8, 0, header.len() as u8];
    let all = [&octets(from.ip())[..], &octets(to.ip())[..], &length[..], &header[..]].concat();
    let words = all.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    header[16..18].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// NET-62: a packet of the endpoint outside of the connection's window is not translated, so it must not reach the
/// client, which would answer it with a reset.
#[test]
fn net_62_packets_outside_of_the_window_do_not_reach_the_client() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, server) = (node.pod("client").await, node.pod("server").await);
        serve_echo(&server, 7);
        let echo = SocketAddr::new(server.addresses[0], 7);
        let entry = ServiceEntry { endpoints: [echo].into(), ..ServiceEntry::default() };
        node.set("d/s", service(&[&server], entry));
        let mut open = connect(&client, "10.96.0.9:80");
        assert!(answers(&mut open));
        let (seen, forged) = (raw_tcp(&client.netns), raw_tcp(&server.netns));
        let client_end = open.local_addr().unwrap();
        let send = || {
            // These are so far apart that at least one of them is outside of the connection's window.
            for sequence in [0x4000_0000, 0xc000_0000] {
                let packet = acknowledgement(echo, client_end, sequence);
                forged.send_to(&packet, client_end).unwrap();
            }
        };
        seen.set_nonblocking(true).unwrap();
        // The sources of the packets that the client has got since the last call.
        let sources = || {
            let mut packet = [0; 100];
            let received = std::iter::from_fn(|| seen.recv_from(&mut packet).ok());
            received.map(|(_, from)| from.ip()).collect::<Vec<IpAddr>>()
        };
        send();
        assert!(answers(&mut open), "packets take the same way, one after another");
        let with_rule = sources();
        assert!(with_rule.contains(&IpAddr::V4(Ipv4Addr::new(10, 96, 0, 9))), "{with_rule:?}");
        assert!(!with_rule.contains(&echo.ip()), "{with_rule:?}");
        // Without the rule they reach the client.
        run(&format!("nft flush chain ip {TABLE} filter-forward"));
        send();
        assert!(answers(&mut open));
        let without_rule = sources();
        assert!(without_rule.contains(&echo.ip()), "{without_rule:?}");
    });
}
