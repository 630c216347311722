//! The loop that all controllers share: take a key, reconcile it, and if that failed, later again.
//!
//! A reconcile is never told what changed. It observes, decides, acts; it may be called at any time,
//! for any reason, twice. Never twice at once for one key: the queue sees to that.

use crate::Queue;
use crate::queue::Key;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::any::Any;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

/// When a key that went well is to be looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When something changes.
    Change,
    /// After this time, or when something changes.
    After(Duration),
}

impl From<()> for Next {
    fn from((): ()) -> Self {
        Next::Change
    }
}

impl From<Option<Duration>> for Next {
    fn from(delay: Option<Duration>) -> Self {
        delay.map_or(Next::Change, Next::After)
    }
}

/// Reconciles what comes out of `queue`, up to `workers` keys at once, until the queue is shut down
/// and the last reconcile has ended.
///
/// An error is logged and the key retried with back-off. A panic is an error of that one key. What a
/// reconcile returns may be `()`, an `Option<Duration>`, or a [`Next`].
pub async fn run_controller<K, F, R, N, E>(
    name: &str,
    queue: &Queue<K>,
    workers: usize,
    reconcile: F,
) where
    K: Key,
    F: Fn(K) -> R + Sync,
    R: Future<Output = Result<N, E>> + Send,
    N: Into<Next>,
    E: Display,
{
    let reconcile = &reconcile;
    let turn = |key: K| -> Turn<'_> {
        // The call itself is in there too, so that its panic is caught as well.
        let turn = async move {
            let ended = reconcile(key).await;
            ended.map(Into::into).map_err(|error| error.to_string())
        };
        Box::pin(turn)
    };
    run(name, queue, workers, &turn).await;
}

/// One reconcile. Boxed, so that the loop below is compiled once for all controllers.
type Turn<'a> = Pin<Box<dyn Future<Output = Result<Next, String>> + Send + 'a>>;

async fn run<'a, K: Key>(
    name: &str,
    queue: &Queue<K>,
    workers: usize,
    reconcile: &(dyn Fn(K) -> Turn<'a> + Sync),
) {
    tracing::debug!(controller = name, workers, "started");
    let turn = |key: K| async move {
        let ended = AssertUnwindSafe(reconcile(key.clone())).catch_unwind().await;
        settle(name, queue, key, ended);
    };
    // Of those under way only who has something to do is looked at, and one waits for the queue, not all.
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = under_way.next() => (),
            key = queue.get(), if under_way.len() < workers.max(1) => match key {
                Some(key) => under_way.push(turn(key)),
                None => break,
            },
        }
    }
    while under_way.next().await.is_some() {}
    tracing::debug!(controller = name, "stopped");
}

fn settle<K: Key>(
    name: &str,
    queue: &Queue<K>,
    key: K,
    ended: Result<Result<Next, String>, Box<dyn Any + Send>>,
) {
    match ended {
        Ok(Ok(next)) => {
            queue.forget(&key);
            if let Next::After(delay) = next {
                queue.add_after(key.clone(), delay);
            }
        }
        Ok(Err(error)) => {
            let again_in = queue.retry(key.clone());
            tracing::warn!(controller = name, ?key, %error, ?again_in, "reconcile failed");
        }
        Err(panic) => {
            let again_in = queue.retry(key.clone());
            let panic = message(panic.as_ref());
            tracing::error!(controller = name, ?key, panic, ?again_in, "reconcile panicked");
        }
    }
    queue.done(&key);
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::time::{Instant, sleep};

    /// Runs a controller until `seconds` have passed, then shuts it down.
    async fn run_for<R, N>(
        seconds: u64,
        queue: &Queue<u8>,
        workers: usize,
        f: impl Fn(u8) -> R + Sync,
    ) where
        R: Future<Output = Result<N, String>> + Send,
        N: Into<Next>,
    {
        let stop = async {
            sleep(Duration::from_secs(seconds)).await;
            queue.shut_down();
        };
        tokio::join!(run_controller("test", queue, workers, f), stop);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_is_tried_until_it_works_and_others_do_not_wait() {
        let queue = Queue::new();
        queue.add(1);
        queue.add(2);
        let seen = Mutex::new(Vec::new());
        run_for(10, &queue, 1, async |key| {
            let mut seen = seen.lock().unwrap();
            seen.push(key);
            let tries = seen.iter().filter(|k| **k == 1).count();
            if key == 1 && tries < 3 { Err("not yet".to_owned()) } else { Ok(()) }
        })
        .await;
        assert_eq!(*seen.lock().unwrap(), [1, 2, 1, 1]);
        assert_eq!(queue.counts().retried, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_stays_with_its_key() {
        let queue = Queue::new();
        queue.add(1);
        queue.add(2);
        let worked = AtomicUsize::new(0);
        run_for(1, &queue, 1, async |key| {
            assert_ne!(key, 1, "one is bad");
            worked.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .await;
        assert_eq!(worked.load(Ordering::Relaxed), 1);
        assert!(queue.counts().retried > 3, "{queue:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn workers_work_at_the_same_time_but_never_on_the_same_key() {
        let queue = Queue::new();
        (0..6).for_each(|key| queue.add(key));
        let start = Instant::now();
        let last = Mutex::new(start);
        run_for(60, &queue, 3, async |_| {
            sleep(Duration::from_secs(5)).await;
            *last.lock().unwrap() = Instant::now();
            Ok(())
        })
        .await;
        assert_eq!(*last.lock().unwrap() - start, Duration::from_secs(10));
    }

    /// Many wait for answers: one that comes concerns one of them.
    #[tokio::test(start_paused = true)]
    async fn who_has_nothing_to_do_is_not_looked_at() {
        let queue = Queue::new();
        (0..20).for_each(|key| queue.add(key));
        let looks = AtomicUsize::new(0);
        run_for(60, &queue, 20, |key| {
            let mut waiting = Box::pin(sleep(Duration::from_secs(1 + u64::from(key))));
            let looks = &looks;
            std::future::poll_fn(move |context| {
                looks.fetch_add(1, Ordering::Relaxed);
                waiting.as_mut().poll(context).map(Ok)
            })
        })
        .await;
        assert_eq!(looks.load(Ordering::Relaxed), 2 * 20, "one to begin, one to end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_can_be_a_task_of_its_own() {
        let queue = Queue::new();
        let controller = tokio::spawn({
            let queue = queue.clone();
            async move {
                run_controller("test", &queue, 2, |key: u8| {
                    let queue = &queue;
                    async move {
                        sleep(Duration::from_secs(1)).await;
                        if key == 2 {
                            queue.shut_down();
                        }
                        Ok::<_, String>(())
                    }
                })
                .await;
            }
        });
        queue.add(1);
        queue.add(2);
        controller.await.unwrap();
        assert_eq!(queue.counts().handed_out, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_can_ask_to_be_looked_at_again() {
        let queue = Queue::new();
        queue.add(1);
        let turns = AtomicUsize::new(0);
        run_for(35, &queue, 2, async |_| {
            turns.fetch_add(1, Ordering::Relaxed);
            Ok(Some(Duration::from_secs(10)))
        })
        .await;
        assert_eq!(turns.load(Ordering::Relaxed), 4);
    }
}
