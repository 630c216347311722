//! Attaching is part of every pod's start, so it has a bound.

use crate::world::{alone, open};
use futures::future::join_all;
use std::collections::BTreeSet;
use tokio::time::{Duration, Instant};

/// Measured: 3 ms on an idle machine. Others may be busy on this one.
const ONE: Duration = Duration::from_millis(100);
const THIRTY: Duration = Duration::from_secs(2);

#[test]
fn a_pod_is_attached_in_milliseconds_and_thirty_do_not_queue_up() {
    alone(|directory| async move {
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
        assert_eq!(addresses.len(), 30, "an address was given twice");
        let start = Instant::now();
        join_all(keys.iter().map(|key| pods.detach(key))).await;
        let gone = start.elapsed();
        let (median, slowest) = (times[5], times[9]);
        eprintln!("one: {median:?} (slowest {slowest:?}); thirty: {thirty:?}, detached {gone:?}");
        assert!(median < ONE, "{median:?}");
        assert!(thirty < THIRTY, "{thirty:?}");
    });
}
