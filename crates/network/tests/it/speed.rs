//! Limits for the time that attaching a pod takes, because every pod start includes it. And for routes.

use crate::isolated::{cidr, ip, isolated, open, run};
use futures::future::join_all;
use network::{NextHop, Overlay, OverlayState, Reach, Routes, Tunnel};
use std::collections::BTreeSet;
use tokio::time::{Duration, Instant};

/// It takes 3 ms on an idle machine; test machines are often busy.
const ONE: Duration = Duration::from_millis(100);
const THIRTY: Duration = Duration::from_secs(2);

#[test]
fn attaching_takes_milliseconds_and_thirty_pods_attach_in_parallel() {
    isolated(|directory| async move {
        let pods = open(&directory).await;
        pods.attach("warm", &[]).await.unwrap();
        let mut times = Vec::new();
        for i in 0..10 {
            let start = Instant::now();
            pods.attach(&format!("one-{i}"), &[]).await.unwrap();
            times.push(start.elapsed());
        }
        times.sort();
        let start = Instant::now();
        let keys: Vec<String> = (0..30).map(|i| format!("many-{i}")).collect();
        let all = join_all(keys.iter().map(|key| pods.attach(key, &[]))).await;
        let thirty = start.elapsed();
        let addresses: BTreeSet<_> =
            all.into_iter().map(|attached| attached.unwrap().addresses[0]).collect();
        assert_eq!(addresses.len(), 30, "two pods have the same address");
        let start = Instant::now();
        join_all(keys.iter().map(|key| pods.detach(key))).await;
        let gone = start.elapsed();
        let (median, slowest) = (times[5], times[9]);
        eprintln!("one: {median:?} (slowest {slowest:?}); thirty: {thirty:?}, detached {gone:?}");
        assert!(median < ONE, "{median:?}");
        assert!(thirty < THIRTY, "{thirty:?}");
    });
}

/// Routes to this many nodes take 60 ms on an idle machine, and a comparison without a change 20 ms.
const NODES: u32 = 2000;
const ALL_ROUTES: Duration = Duration::from_secs(3);

#[test]
fn two_thousand_nodes_are_routed_and_compared_quickly() {
    isolated(|directory| async move {
        run("ip link add eth0 type veth peer name wire; ip link set wire up; ip link set eth0 up");
        run("ip address add 172.16.0.1/16 dev eth0");
        let pods = open(&directory).await;
        let overlay = Overlay { vni: 1, port: 8472, address: ip("172.16.0.1") };
        let mut routes = Routes { overlay: Some(overlay), ..Routes::default() };
        let neighbours: Vec<_> =
            (0..NODES).map(|i| ip(&format!("172.16.{}.{}", i / 200 + 1, i % 200 + 1))).collect();
        let start = Instant::now();
        let reach = pods.reach(&neighbours).await.unwrap();
        let looked_up = start.elapsed();
        for (i, address) in neighbours.into_iter().enumerate() {
            let Reach::Neighbour { device } = reach[&address] else { panic!("{address}") };
            let range = cidr(&format!("10.{}.{}.0/24", 100 + i / 250, i % 250));
            // Every second node is behind a router.
            let direct = i % 2 == 0;
            if direct {
                routes.direct.insert(range, NextHop { address, device });
            }
            let ranges = if direct { vec![] } else { vec![range] };
            routes.tunnels.push(Tunnel { address, first_range: range, ranges });
        }
        let start = Instant::now();
        assert_eq!(pods.set_routes(&routes).await.unwrap(), OverlayState::Ready);
        let set = start.elapsed();
        let start = Instant::now();
        pods.set_routes(&routes).await.unwrap();
        let compared = start.elapsed();
        assert_eq!(run("ip route show proto 108").lines().count(), NODES as usize);
        assert_eq!(run("bridge fdb show dev lf0v").lines().count(), NODES as usize);
        let start = Instant::now();
        pods.set_routes(&Routes::default()).await.unwrap();
        let removed = start.elapsed();
        assert_eq!(run("ip route show proto 108"), "");
        eprintln!(
            "looked up {looked_up:?}, set {set:?}, compared {compared:?}, removed {removed:?}"
        );
        assert!(looked_up + set + compared + removed < ALL_ROUTES, "{looked_up:?} {set:?}");
    });
}
