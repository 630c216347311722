//! Collects the facts for the Node object from machine and runtime, and checks the health of the runtime.

use super::machine::filesystem_size;
use super::{Addresses, Facts, FactsProvider, Hardware, Health, Machine, RuntimeProblem, Settings};
use runtime::{Image, Runtime, Version};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long a list of images is used, because listing is expensive (N-12).
const IMAGES_MAX_AGE: Duration = Duration::from_secs(30);
/// How long to wait for a name server: it must not keep the node from being ready.
const ADDRESSES_TIMEOUT: Duration = Duration::from_millis(200);
const ADDRESSES_MAX_AGE: Duration = Duration::from_secs(60);

/// How often the runtime is checked (N-16), and how long it may not answer (N-15).
const POLL: Duration = Duration::from_secs(5);
const POLL_FIRST: Duration = Duration::from_millis(100);
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[derive(Default)]
struct CachedFacts {
    images: Option<(Instant, Vec<Image>)>,
    addresses: Option<(Instant, Addresses)>,
    runtime: Option<Version>,
}

/// The provider for [`super::Registration::start`].
pub(crate) fn facts_of(settings: &Settings, runtime: Arc<dyn Runtime>) -> FactsProvider {
    let cached = Arc::new(Mutex::new(CachedFacts::default()));
    let (name, directory) = (settings.name.clone(), settings.directory.clone());
    Arc::new(move || {
        let (cached, runtime) = (cached.clone(), runtime.clone());
        let (name, directory) = (name.clone(), directory.clone());
        Box::pin(async move {
            let mut cached = cached.lock().await;
            cached.refresh(&name, &*runtime).await;
            Facts {
                machine: Machine::read(),
                addresses: cached.addresses.as_ref().map(|a| a.1.clone()).unwrap_or_default(),
                storage: filesystem_size(&directory),
                runtime: cached.runtime.clone(),
                images: cached.images.as_ref().map(|i| i.1.clone()).unwrap_or_default(),
            }
        })
    })
}

/// Constant facts, for simulated nodes.
pub(crate) fn given(hardware: Hardware, runtime: Arc<dyn Runtime>) -> FactsProvider {
    Arc::new(move || {
        let runtime = runtime.clone();
        Box::pin(async move {
            Facts {
                machine: Machine {
                    cores: hardware.cores,
                    memory: hardware.memory_bytes,
                    ..Machine::default()
                },
                storage: Some(hardware.storage_bytes),
                runtime: runtime.version().await.ok(),
                ..Facts::default()
            }
        })
    })
}

impl CachedFacts {
    async fn refresh(&mut self, name: &str, runtime: &dyn Runtime) {
        if self.runtime.is_none() {
            self.runtime = runtime.version().await.ok();
        }
        if self.images.as_ref().is_none_or(|(at, _)| at.elapsed() >= IMAGES_MAX_AGE) {
            // On error, keep the old list.
            if let Ok(images) = runtime.images().list().await {
                self.images = Some((Instant::now(), images));
            }
        }
        if self.addresses.as_ref().is_none_or(|(at, _)| at.elapsed() >= ADDRESSES_MAX_AGE) {
            let found = timeout(ADDRESSES_TIMEOUT, Addresses::read(name)).await;
            let found = found.unwrap_or_else(|_| Addresses::unresolved());
            self.addresses = Some((Instant::now(), found));
        }
    }
}

/// Updates `health.runtime` until the future is dropped.
pub(crate) async fn watch_runtime(runtime: Arc<dyn Runtime>, health: watch::Sender<Health>) {
    let mut answered: Option<Instant> = None;
    loop {
        let now = match timeout(SILENCE_MAX, runtime.ready()).await {
            Ok(Ok(())) => Some(Ok(())),
            Ok(Err(error)) if !matches!(error, runtime::Error::Unavailable(_)) => {
                Some(Err(RuntimeProblem::NotReady(error.to_string())))
            }
            Ok(Err(_)) | Err(_) => None,
        };
        if now.is_some() {
            answered = Some(Instant::now());
        }
        let silent = answered.is_some_and(|at| at.elapsed() >= SILENCE_MAX);
        let now = now.or(silent.then_some(Err(RuntimeProblem::Down)));
        let ready = now == Some(Ok(()));
        // A short time without an answer changes nothing.
        health.send_if_modified(|health| match now {
            Some(now) if health.runtime.as_ref() != Some(&now) => {
                health.runtime = Some(now);
                true
            }
            _ => false,
        });
        sleep(if ready || answered.is_some() { POLL } else { POLL_FIRST }).await;
    }
}
