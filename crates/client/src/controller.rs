//! The loop that all controllers share: take a key, reconcile it, and retry later if that fails.
//!
//! A reconcile is never told what changed. It observes, decides and acts, and must be safe to call at any time. The
//! queue ensures that it never runs twice at once for one key.

use crate::Queue;
use crate::queue::Key;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::any::Any;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

/// When to reconcile a key again after a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When an object changes.
    Change,
    /// After this time, or earlier when an object changes.
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

/// Reconciles the keys of `queue`, up to `workers` at once, until the queue is shut down and the last reconcile has
/// ended.
///
/// An error is logged, and the key is retried with backoff. A panic counts as an error of its key. A reconcile may
/// return `()`, an `Option<Duration>`, or a [`Next`].
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
    let boxed = |key: K| -> Reconcile<'_> {
        // The call itself is inside the future, so that a panic in it is caught too.
        Box::pin(async move {
            let result = reconcile(key).await;
            result.map(Into::into).map_err(|error| error.to_string())
        })
    };
    run(name, queue, workers, &boxed).await;
}

/// One reconcile. Boxed, so that the loop below is compiled once for all controllers.
type Reconcile<'a> = Pin<Box<dyn Future<Output = Result<Next, String>> + Send + 'a>>;

async fn run<'a, K: Key>(
    name: &str,
    queue: &Queue<K>,
    workers: usize,
    reconcile: &(dyn Fn(K) -> Reconcile<'a> + Sync),
) {
    tracing::debug!(controller = name, workers, "started");
    let process = |key: K| async move {
        let result = AssertUnwindSafe(reconcile(key.clone())).catch_unwind().await;
        finish(name, queue, key, result);
    };
    // Polls only those reconciles that were woken, and waits for the queue only once.
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = running.next() => (),
            key = queue.get(), if running.len() < workers.max(1) => match key {
                Some(key) => running.push(process(key)),
                None => break,
            },
        }
    }
    while running.next().await.is_some() {}
    tracing::debug!(controller = name, "stopped");
}

fn finish<K: Key>(
    name: &str,
    queue: &Queue<K>,
    key: K,
    result: Result<Result<Next, String>, Box<dyn Any + Send>>,
) {
    match result {
        Ok(Ok(next)) => {
            queue.forget(&key);
            if let Next::After(delay) = next {
                queue.add_after(key.clone(), delay);
            }
        }
        Ok(Err(error)) => {
            let retry_in = queue.retry(key.clone());
            tracing::warn!(controller = name, ?key, %error, ?retry_in, "reconcile failed");
        }
        Err(panic) => {
            let retry_in = queue.retry(key.clone());
            let panic = message(panic.as_ref());
            tracing::error!(controller = name, ?key, panic, ?retry_in, "reconcile panicked");
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
    async fn a_failing_key_is_retried_without_delaying_others() {
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
    async fn a_panic_affects_only_its_key() {
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
    async fn workers_reconcile_concurrently() {
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

    /// A reconcile that waits for a response is not polled when another one wakes.
    #[tokio::test(start_paused = true)]
    async fn waiting_reconciles_are_not_polled() {
        let queue = Queue::new();
        (0..20).for_each(|key| queue.add(key));
        let polls = AtomicUsize::new(0);
        run_for(60, &queue, 20, |key| {
            let mut waiting = Box::pin(sleep(Duration::from_secs(1 + u64::from(key))));
            let polls = &polls;
            std::future::poll_fn(move |context| {
                polls.fetch_add(1, Ordering::Relaxed);
                waiting.as_mut().poll(context).map(Ok)
            })
        })
        .await;
        assert_eq!(polls.load(Ordering::Relaxed), 2 * 20, "one at the start, one at the end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_can_run_in_a_spawned_task() {
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
    async fn a_reconcile_can_request_to_run_again_after_a_delay() {
        let queue = Queue::new();
        queue.add(1);
        let reconciles = AtomicUsize::new(0);
        run_for(35, &queue, 2, async |_| {
            reconciles.fetch_add(1, Ordering::Relaxed);
            Ok(Some(Duration::from_secs(10)))
        })
        .await;
        assert_eq!(reconciles.load(Ordering::Relaxed), 4);
    }
}
