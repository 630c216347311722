//! Asks the machine and the runtime what is so: for the registration, and for its health.

use super::machine::filesystem_size;
use super::{Addresses, Facts, FactsProvider, Hardware, Health, Machine, RuntimeTrouble, Settings};
use runtime::{Image, Runtime, Version};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

/// Listing images is work; the list behind the status may be this old (N-12).
const IMAGES_FRESH: Duration = Duration::from_secs(30);
/// A name server that does not answer must not keep the node from being ready.
const ADDRESSES_PATIENCE: Duration = Duration::from_millis(200);
const ADDRESSES_FRESH: Duration = Duration::from_secs(60);

/// How often the runtime is asked (N-16), and how long it may be silent (N-15).
const POLL: Duration = Duration::from_secs(5);
const POLL_FIRST: Duration = Duration::from_millis(100);
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Remembered {
    images: Option<(Instant, Vec<Image>)>,
    addresses: Option<(Instant, Addresses)>,
    runtime: Option<Version>,
}

/// The provider for [`super::Registration::start`].
pub(crate) fn facts_of(settings: &Settings, runtime: Arc<dyn Runtime>) -> FactsProvider {
    let remembered = Arc::new(Mutex::new(Remembered::default()));
    let (name, directory) = (settings.name.clone(), settings.directory.clone());
    Arc::new(move || {
        let (remembered, runtime) = (remembered.clone(), runtime.clone());
        let (name, directory) = (name.clone(), directory.clone());
        Box::pin(async move {
            let mut remembered = remembered.lock().await;
            remembered.refresh(&name, &*runtime).await;
            Facts {
                machine: Machine::read(),
                addresses: remembered.addresses.as_ref().map(|a| a.1.clone()).unwrap_or_default(),
                storage: filesystem_size(&directory),
                runtime: remembered.runtime.clone(),
                images: remembered.images.as_ref().map(|i| i.1.clone()).unwrap_or_default(),
            }
        })
    })
}

/// For a node without a machine: always the same.
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

impl Remembered {
    async fn refresh(&mut self, name: &str, runtime: &dyn Runtime) {
        if self.runtime.is_none() {
            self.runtime = runtime.version().await.ok();
        }
        if self.images.as_ref().is_none_or(|(at, _)| at.elapsed() >= IMAGES_FRESH) {
            // An old list is better than none.
            if let Ok(images) = runtime.images().list().await {
                self.images = Some((Instant::now(), images));
            }
        }
        if self.addresses.as_ref().is_none_or(|(at, _)| at.elapsed() >= ADDRESSES_FRESH) {
            let found = timeout(ADDRESSES_PATIENCE, Addresses::read(name)).await;
            let found = found.unwrap_or_else(|_| Addresses::unnamed());
            self.addresses = Some((Instant::now(), found));
        }
    }
}

/// Keeps `health.runtime` true to what the runtime says, for as long as it is polled.
pub(crate) async fn watch_runtime(runtime: Arc<dyn Runtime>, health: watch::Sender<Health>) {
    let mut heard: Option<Instant> = None;
    loop {
        let now = match timeout(SILENCE_MAX, runtime.ready()).await {
            Ok(Ok(())) => Some(Ok(())),
            Ok(Err(error)) if !matches!(error, runtime::Error::Unavailable(_)) => {
                Some(Err(RuntimeTrouble::NotReady(error.to_string())))
            }
            Ok(Err(_)) | Err(_) => None,
        };
        if now.is_some() {
            heard = Some(Instant::now());
        }
        let silent = heard.is_some_and(|at| at.elapsed() >= SILENCE_MAX);
        let now = now.or(silent.then_some(Err(RuntimeTrouble::Down)));
        let well = now == Some(Ok(()));
        // Silence that is not long enough leaves things as they are.
        health.send_if_modified(|health| match now {
            Some(now) if health.runtime.as_ref() != Some(&now) => {
                health.runtime = Some(now);
                true
            }
            _ => false,
        });
        sleep(if well || heard.is_some() { POLL } else { POLL_FIRST }).await;
    }
}
