//! Compares the rules that we write with what the `nft` program reads back from the kernel.

use crate::isolated::{cidr, config, host_port, ip, isolated, rules, run};
use network::nft::{
    Batch, Chain, ChainKind, Connection, Direction, Element, Expression, Family, Field, Hook, Key,
    Kind, Priority, Register, Reject, Rule, Set, Table, Verdict,
};
use tokio::time::Instant;

fn table() -> Table {
    Table::new(Family::Ipv4, "t")
}

/// Every line without its indentation.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_pod_table_has_the_expected_rules() {
    isolated(|directory| async move {
        let pods = network::Pods::open(config(&directory)).await.unwrap();
        let at = host_port(network::Protocol::Sctp, Some("192.0.2.7"), 99, 100);
        pods.attach("a", &[host_port(network::Protocol::Tcp, None, 8080, 80), at]).await.unwrap();
        let expected = "
table ip landfall-pods {
	map host-ports-at-address {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 192.0.2.7 . sctp . 99 : 10.77.3.2 . 100 }
	}

	map host-ports-at-any {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8080 : 10.77.3.2 . 80 }
	}

	set pods-to-themselves {
		type ipv4_addr . ipv4_addr
		elements = { 10.77.3.2 . 10.77.3.2 }
	}

	chain host-ports {
		dnat ip to ip daddr . meta l4proto . th dport map @host-ports-at-address
		dnat ip to meta l4proto . th dport map @host-ports-at-any
	}

	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local jump host-ports
	}

	chain output {
		type nat hook output priority -100; policy accept;
		fib daddr type local jump host-ports
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ct status dnat ip saddr . ip daddr @pods-to-themselves snat to 10.77.3.1 comment \"a pod that connects to its own host port sees the gateway as the client\"
		ip saddr 127.0.0.0/8 ip daddr 10.77.3.0/24 snat to 10.77.3.1 comment \"from the node's loopback to a pod's host port\"
		ip saddr != 10.77.3.0/24 return
		ip daddr 10.77.0.0/16 return
		ip daddr 10.77.3.0/24 return
		ip daddr 224.0.0.0/4 return
		masquerade fully-random comment \"pods leaving the cluster\"
	}

	chain loopback-guard {
		type filter hook prerouting priority raw; policy accept;
		iifname != \"lo\" ip daddr 127.0.0.0/8 drop
		iifname != \"lo\" ip saddr 127.0.0.0/8 drop
	}
}";
        assert_eq!(lines(&rules()), lines(expected));
    });
}

#[test]
fn nft_prints_every_kind_of_expression() {
    isolated(|_| async move {
        let (table, mut batch) = (table(), Batch::new());
        let service = [Kind::Address4, Kind::Protocol, Kind::Port];
        let fields = [Field::Destination4, Field::Protocol, Field::DestinationPort];
        let verdicts = Set::verdict_map("services", &service);
        let ranges = Set::new("ranges", &[Kind::Address4]).with_intervals();
        let clients = Set::new("clients", &[Kind::Address4]).with_timeout(10_800_000);
        let ports = Set::new("ports", &[Kind::Port]);
        batch.add_table(&table);
        for set in [&verdicts, &ranges, &clients, &ports] {
            batch.add_set(&table, set);
        }
        let forward = Chain::at("forward", ChainKind::Filter, Hook::Forward, Priority::FILTER);
        batch.add_chain(&table, &Chain::new("one")).add_chain(&table, &forward);
        let key = Key::new().address(ip("10.96.0.1")).protocol(6).port(443);
        let dropped = Key::new().address(ip("10.96.0.2")).protocol(17).port(53);
        let elements = [
            Element::verdict(key, Verdict::Goto("one".into())),
            Element::verdict(dropped, Verdict::Drop),
        ];
        batch.add_elements(&table, &verdicts, &elements);
        let (from, until) =
            (Key::new().address(ip("10.0.0.0")), Key::new().address(ip("11.0.0.0")));
        batch.add_elements(&table, &ranges, &[Element::range(from, Some(until))]);
        batch.add_elements(&table, &ports, &[Element::key(Key::new().port(80))]);

        let first = Register::FIRST;
        let touch = Expression::Update {
            set: "clients".into(),
            key: first,
            data: None,
            timeout_ms: 10_800_000,
        };
        let load = Expression::Payload {
            header: network::nft::Header::Network,
            offset: 12,
            length: 4,
            to: first,
        };
        let all = [
            Rule::new().state(Expression::STATE_NEW).verdict_map(&fields, &verdicts),
            Rule::new().state(Expression::STATE_ESTABLISHED | Expression::STATE_RELATED).accept(),
            Rule::new().not_in_set(&[Field::Source4], &ranges).drop(),
            Rule::new().in_set(&[Field::Source4], &clients).goto("one"),
            Rule::new().protocol(6).in_set(&[Field::DestinationPort], &ports).jump("one"),
            Rule::new().set_mark(0x4000),
            Rule::new().marked(0x4000).clear_mark(0x4000).return_from_chain(),
            Rule::new().from_interface("lf0p*").to_interface("eth0").with(Expression::Counter),
            Rule::new().destination_not_in(&cidr("10.0.0.0/12")).reject(Reject::PortUnreachable),
            Rule::new().protocol(6).reject(Reject::TcpReset),
            Rule::new().source_is_local().reject(Reject::Prohibited),
            Rule::new().with(load).with(touch),
        ];
        for rule in &all {
            batch.add_rule(&table, "forward", rule);
        }
        Connection::open().unwrap().commit(batch).unwrap();
        let shown = rules();
        for expected in [
            "type ipv4_addr . inet_proto . inet_service : verdict",
            "10.96.0.1 . tcp . 443 : goto one",
            "10.96.0.2 . udp . 53 : drop",
            "elements = { 10.0.0.0/8 }",
            "elements = { 80 }",
            "type filter hook forward priority filter; policy accept;",
            "ct state new ip daddr . meta l4proto . th dport vmap @services",
            "ct state established,related accept",
            "ip saddr != @ranges drop",
            "ip saddr @clients goto one",
            "tcp dport @ports jump one",
            "meta mark set meta mark | 0x00004000",
            "meta mark set meta mark & 0xffffbfff return",
            "iifname \"lf0p*\" oifname \"eth0\" counter packets 0 bytes 0",
            "ip daddr != 10.0.0.0/12 reject",
            "reject with tcp reset",
            "fib saddr type local reject with icmp admin-prohibited",
            "update @clients { ip saddr timeout 3h }",
        ] {
            assert!(shown.contains(expected), "{expected} is not in {shown}");
        }
    });
}

#[test]
fn a_failing_batch_changes_nothing_and_names_the_failing_change() {
    isolated(|_| async move {
        let mut connection = Connection::open().unwrap();
        let mut batch = Batch::new();
        batch.add_table(&table()).add_chain(&table(), &Chain::new("one"));
        batch.add_rule(&table(), "one", &Rule::new().jump("two"));
        batch.add_chain(&table(), &Chain::new("three"));
        let error = connection.commit(batch).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOENT));
        assert_eq!(
            error.to_string(),
            "cannot add rule ip t one : No such file or directory (os error 2)"
        );
        assert_eq!(rules(), "");
    });
}

#[test]
fn twenty_thousand_elements_are_added_and_single_ones_replaced() {
    isolated(|_| async move {
        let map = Set::map("m", &[Kind::Address4, Kind::Port], &[Kind::Address4, Kind::Port]);
        let element = |i: u32| {
            let address = std::net::Ipv4Addr::from(0x0a60_0000 + i);
            let key = Key::new().address(address.into()).port(80);
            Element::value(key, Key::new().address(ip("10.77.3.2")).port(8080))
        };
        let mut connection = Connection::open().unwrap();
        let mut batch = Batch::new();
        batch.add_table(&table()).add_set(&table(), &map);
        let all: Vec<Element> = (0..20_000).map(element).collect();
        batch.add_elements(&table(), &map, &all);
        connection.commit(batch).unwrap();
        assert_eq!(run("nft list map ip t m").matches(" : 10.77.3.2 . 8080").count(), 20_000);

        let before = Instant::now();
        for i in 0..100 {
            let mut batch = Batch::new();
            batch.delete_elements(&table(), &map, &all[i..=i]);
            batch.add_elements(&table(), &map, &[element(30_000 + i as u32)]);
            connection.commit(batch).unwrap();
        }
        let each = before.elapsed() / 100;
        eprintln!("one element replaced in {each:?}");
        let mut twice = Batch::new();
        twice.create_elements(&table(), &map, &[element(30_000)]);
        assert_eq!(connection.commit(twice).unwrap_err().errno(), Some(libc::EEXIST));
    });
}

#[test]
fn keys_of_ipv6_services_fit() {
    isolated(|_| async move {
        let table = Table::new(Family::Ipv6, "t");
        let key = [Kind::Address6, Kind::Protocol, Kind::Port];
        let map = Set::map("m", &key, &[Kind::Address6, Kind::Port]);
        let hook = Chain::at("pre", ChainKind::Nat, Hook::Prerouting, Priority::DESTINATION_NAT);
        let address = Field::address(false, Direction::Destination);
        let fields = [address, Field::Protocol, Field::DestinationPort];
        let mut batch = Batch::new();
        batch.add_table(&table).add_set(&table, &map).add_chain(&table, &hook);
        batch.add_rule(&table, "pre", &Rule::new().redirect_by(&fields, &map, false));
        let from = Key::new().address(ip("fd00::1")).protocol(17).port(53);
        let to = Key::new().address(ip("fd77::2")).port(5353);
        batch.add_elements(&table, &map, &[Element::value(from, to)]);
        Connection::open().unwrap().commit(batch).unwrap();
        let shown = rules();
        assert!(shown.contains("fd00::1 . udp . 53 : fd77::2 . 5353"), "{shown}");
        let rule = "dnat ip6 to ip6 daddr . meta l4proto . th dport map @m";
        assert!(shown.contains(rule), "{shown}");
    });
}
