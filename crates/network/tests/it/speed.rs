//! Limits for the time that attaching a pod takes, because every pod start includes it.

use crate::isolated::{isolated, open};
use futures::future::join_all;
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
