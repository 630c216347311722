//! Several servers on one etcd, and an etcd with interruptions.

use std::sync::Arc;
use std::time::Duration;

use crate::bed::*;
use store::{Backend, Compacted, EtcdOptions, Expect, WriteError};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[tokio::test]
async fn servers_see_each_others_writes() {
    let bed = Bed::etcd();
    let (one, two) = soon(async { tokio::join!(bed.open(), bed.open()) }).await;
    let mut watcher = two.watch(PODS, two.revision()).unwrap();
    let revision = create(&one, "a", "1").await;
    assert_eq!(described(&soon(watcher.next(1)).await.unwrap()), "+a=1");
    let second = put(&two, "a", Expect::Revision(revision), "2").await.unwrap().revision();

    // The first may not have the write yet, but a conflict brings it up to date.
    let stale = put(&one, "a", Expect::Revision(revision), "3").await;
    let Err(WriteError::Conflict { current: Some(current) }) = stale else { panic!("{stale:?}") };
    assert_eq!((current.revision(), current.created()), (second, revision));
    assert_eq!(one.get(PODS, "a").unwrap().revision(), second);

    for count in 0..20 {
        let written = update(&one, "a", &format!("{count}")).await;
        assert!(two.barrier().await.unwrap() >= written);
        assert_eq!(shown(&two.get(PODS, "a").unwrap()), format!("{count}"));
    }
    let gone = delete(&two, "a").await;
    let late = put(&one, "a", Expect::Revision(gone.revision() - 1), "x").await;
    assert!(matches!(late, Err(WriteError::Conflict { current: None })));
    assert!(one.get(PODS, "a").is_none());
}

#[tokio::test]
async fn foreign_keys_do_not_delay_a_barrier() {
    let mut bed = Bed::etcd();
    let store = bed.open().await;
    let mut etcd = raw(&mut bed).await;
    etcd.put("/somebody/else", "x", None).await.unwrap();
    let revision = create(&store, "a", "1").await;
    let other = etcd.put("/somebody/else", "y", None).await.unwrap();
    let other = other.header().unwrap().revision() as u64;
    assert!(other > revision);
    assert!(soon(store.barrier()).await.unwrap() >= other);
    assert_eq!(listed(&store.list(PODS, "", None).1), "a=1");
}

#[tokio::test]
async fn a_foreign_value_under_our_prefix_is_an_error_with_its_key() {
    let mut bed = Bed::etcd();
    let running = bed.open().await;
    raw(&mut bed).await.put("/landfall/pods//a", "x", None).await.unwrap();
    let last = create(&running, "b", "1").await;
    assert!(running.health().unwrap_err().contains("/landfall/pods//a"));
    let Err(in_history) = bed.try_open().await else { panic!("opened") };
    assert!(in_history.to_string().contains("/landfall/pods//a"), "{in_history}");
    raw(&mut bed).await.compact(last as i64, None).await.unwrap();
    let Err(at_rest) = bed.try_open().await else { panic!("opened") };
    assert!(at_rest.to_string().contains("/landfall/pods//a"), "{at_rest}");
}

#[tokio::test]
async fn after_a_lost_connection_no_event_is_missed() {
    let mut bed = Bed::etcd();
    let store = bed.open().await;
    let mut watcher = store.watch(PODS, store.revision()).unwrap();
    create(&store, "a", "1").await;
    bed.etcd_server().stop();
    assert!(put(&store, "b", Expect::Absent, "1").await.is_err());
    assert_eq!(listed(&store.list(PODS, "", None).1), "a=1", "reads go on");

    bed.etcd_server().start_again();
    soon(async {
        while put(&store, "c", Expect::Absent, "1").await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(described(&soon(watcher.next(1)).await.unwrap()), "+a=1");
    assert_eq!(described(&soon(watcher.next(1)).await.unwrap()), "+c=1");
    assert_eq!(store.health(), Ok(()));
}

#[tokio::test]
async fn a_server_that_was_disconnected_for_too_long_loads_everything_again() {
    let mut bed = Bed::etcd();
    let near = bed.open().await;
    let line = Line::to(&bed.etcd_server().url()).await;
    let options = EtcdOptions { endpoints: vec![line.url()], prefix: "/landfall/".to_owned() };
    let far = Store::open(Backend::Etcd(options), bed.options.clone()).await.unwrap();
    let first = create(&near, "a", "1").await;
    soon(far.wait_for(first)).await;
    let mut slow = far.watch(PODS, first).unwrap();

    line.cut();
    update(&near, "a", "2").await;
    create(&near, "b", "1").await;
    let last = delete(&near, "a").await.revision();
    raw(&mut bed).await.compact(last as i64, None).await.unwrap();
    line.mend();

    soon(far.wait_for(last)).await;
    assert_eq!(listed(&far.list(PODS, "", None).1), "b=1");
    assert!(matches!(soon(slow.next(1)).await, Err(Compacted { oldest }) if oldest == last));
    let mut watcher = far.watch(PODS, last).unwrap();
    create(&near, "c", "1").await;
    assert_eq!(described(&soon(watcher.next(1)).await.unwrap()), "+c=1");

    // The history of a new server starts where etcd's does.
    let fresh = bed.open().await;
    assert_eq!(listed(&fresh.list(PODS, "", None).1), "b=1 c=1");
    assert!(fresh.watch(PODS, last - 1).is_err());
    assert_eq!(described(&fresh.watch(PODS, last).unwrap().next(9).await.unwrap()), "+c=1");
}

#[tokio::test]
async fn history_that_was_dropped_from_the_ring_is_compacted_in_etcd() {
    let mut bed = Bed::etcd();
    bed.options.history_events = 2;
    bed.options.history = Duration::from_millis(500);
    let store = bed.open().await;
    let first = create(&store, "a", "1").await;
    for text in ["2", "3", "4"] {
        update(&store, "a", text).await;
    }
    let mut etcd = raw(&mut bed).await;
    soon(async {
        let at = || Some(etcd_client::GetOptions::new().with_revision(first as i64));
        while etcd.get("/landfall/pods//a", at()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(listed(&store.list(PODS, "", None).1), "a=4");
}

async fn raw(bed: &mut Bed) -> etcd_client::Client {
    etcd_client::Client::connect([bed.etcd_server().url()], None).await.unwrap()
}

/// A connection to etcd that can be cut.
struct Line {
    port: u16,
    open: Arc<watch::Sender<bool>>,
}

impl Line {
    async fn to(url: &str) -> Self {
        let target = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(watch::Sender::new(true));
        let state = open.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, target.clone(), state.subscribe()));
            }
        });
        Line { port, open }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn cut(&self) {
        self.open.send_replace(false);
    }

    fn mend(&self) {
        self.open.send_replace(true);
    }
}

async fn carry(mut near: TcpStream, target: String, mut open: watch::Receiver<bool>) {
    if !*open.borrow() {
        return;
    }
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = open.wait_for(|open| !open) => {}
    }
}
