//! Follows the API and the agent, and commits what changes to the kernel.

use super::compile::compile;
use super::engine::Engine;
use super::pod::PodFacts;
use super::{Announcement, Done};
use client::{Cache, Changes, ObjectKey};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use network::policies::PolicyTables;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Changed objects per transaction. More take several, so that the agent's announcements do not wait for all.
const CHANGES_PER_COMMIT: usize = 1000;

/// The wait after a failed commit; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

pub(super) struct Caches {
    pub(super) pods: Cache<Pod>,
    pub(super) namespaces: Cache<Namespace>,
    pub(super) policies: Cache<NetworkPolicy>,
}

struct Subscriptions {
    pods: Changes,
    namespaces: Changes,
    policies: Changes,
}

/// A changed object.
enum ChangedKey {
    Pod(ObjectKey),
    Namespace(ObjectKey),
    Policy(ObjectKey),
}

struct Driver {
    caches: Caches,
    engine: Engine,
    tables: PolicyTables,
    /// Callers that wait for the next commit.
    waiting: Vec<oneshot::Sender<Done>>,
    /// Addresses of new isolated pods. Flows of earlier pods with them are forgotten after the next commit.
    reused: Vec<IpAddr>,
    /// The kernel's tables are not as the engine assumes: write them as a whole, at this time.
    replace_at: Option<Instant>,
    retry: Duration,
}

pub(super) async fn run(
    caches: Caches,
    engine: Engine,
    tables: PolicyTables,
    mut announcements: mpsc::Receiver<Announcement>,
) {
    let mut changes = Subscriptions {
        pods: caches.pods.subscribe(),
        namespaces: caches.namespaces.subscribe(),
        policies: caches.policies.subscribe(),
    };
    let mut driver = Driver {
        caches,
        engine,
        tables,
        waiting: Vec::new(),
        reused: Vec::new(),
        replace_at: None,
        retry: RETRY_FIRST,
    };
    driver.wait_until_synced(&mut announcements).await;
    while let Some(key) = changes.try_next() {
        driver.changed(&key);
    }
    driver.engine.adopt();
    driver.reused.clear(); // Before all objects were known, pods of an earlier process seemed to be new.
    driver.replace().await;
    loop {
        tokio::select! {
            biased;
            announcement = announcements.recv() => match announcement {
                Some(announcement) => driver.announced(announcement),
                None => return,
            },
            key = changes.next() => driver.changed(&key),
            () = until(driver.replace_at) => {}
        }
        for _ in 0..CHANGES_PER_COMMIT {
            match (announcements.try_recv(), changes.try_next()) {
                (Ok(announcement), key) => {
                    driver.announced(announcement);
                    key.iter().for_each(|key| driver.changed(key));
                }
                (Err(_), Some(key)) => driver.changed(&key),
                (Err(_), None) => break,
            }
        }
        driver.commit().await;
    }
}

/// Never, if there is no time.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl Subscriptions {
    async fn next(&mut self) -> ChangedKey {
        tokio::select! {
            biased;
            key = self.policies.next() => ChangedKey::Policy(key),
            key = self.namespaces.next() => ChangedKey::Namespace(key),
            key = self.pods.next() => ChangedKey::Pod(key),
        }
    }

    fn try_next(&mut self) -> Option<ChangedKey> {
        let policy = self.policies.try_next().map(ChangedKey::Policy);
        let namespace = || self.namespaces.try_next().map(ChangedKey::Namespace);
        policy.or_else(namespace).or_else(|| self.pods.try_next().map(ChangedKey::Pod))
    }
}

impl Driver {
    /// The rules of an earlier process stay in force meanwhile. A pod that terminates does not wait.
    async fn wait_until_synced(&mut self, announcements: &mut mpsc::Receiver<Announcement>) {
        let caches = &self.caches;
        let (pods, namespaces, policies) =
            (caches.pods.clone(), caches.namespaces.clone(), caches.policies.clone());
        let synced = async move {
            pods.synced().await;
            namespaces.synced().await;
            policies.synced().await;
        };
        tokio::pin!(synced);
        loop {
            tokio::select! {
                () = &mut synced => return,
                Some(announcement) = announcements.recv() => match announcement {
                    Announcement::Detached { uid, done } => {
                        self.engine.detached(&uid);
                        // A pod that gets the address next is announced after this and waits for the new rules.
                        let _ = done.send(Ok(()));
                    }
                    attached @ Announcement::Attached { .. } => self.announced(attached),
                },
            }
        }
    }

    fn announced(&mut self, announcement: Announcement) {
        match announcement {
            Announcement::Attached { pod, addresses, done } => {
                self.reused.extend(self.engine.attached(*pod, &addresses));
                self.waiting.push(done);
            }
            Announcement::Detached { uid, done } => {
                self.engine.detached(&uid);
                self.waiting.push(done);
            }
        }
    }

    fn changed(&mut self, key: &ChangedKey) {
        match key {
            ChangedKey::Pod(key) => {
                let pod = self.caches.pods.get(key);
                self.engine.pod_changed(key, pod.map(|pod| PodFacts::of(&pod)));
            }
            ChangedKey::Namespace(key) => {
                let namespace = self.caches.namespaces.get(key);
                let labels = namespace.map(|it| it.metadata.labels.clone().unwrap_or_default());
                self.engine.namespace_changed(key.name(), labels);
            }
            ChangedKey::Policy(key) => {
                let policy = self.caches.policies.get(key);
                self.engine.policy_changed(key, policy.map(|policy| compile(&policy)));
            }
        }
    }

    async fn commit(&mut self) {
        if self.replace_at.is_some() {
            let due = self.replace_at.is_some_and(|time| time <= Instant::now());
            if due || !self.waiting.is_empty() {
                self.replace().await;
            }
            return;
        }
        let change = self.engine.take_changes();
        if change.is_empty() {
            return self.committed().await;
        }
        match self.tables.update(change).await {
            Ok(()) => self.committed().await,
            Err(error) => {
                tracing::warn!(%error, "the policy tables are not as expected and are written again");
                self.replace().await;
            }
        }
    }

    /// Writes the tables as a whole.
    async fn replace(&mut self) {
        match self.tables.replace(self.engine.all()).await {
            Ok(()) => {
                self.replace_at = None;
                self.retry = RETRY_FIRST;
                self.committed().await;
            }
            Err(error) => {
                let retry_in = self.retry;
                tracing::error!(%error, ?retry_in, "writing the policy tables failed");
                self.replace_at = Some(Instant::now() + retry_in);
                self.retry = (retry_in * 2).min(RETRY_MAX);
                self.answer(&Err(error.to_string()));
            }
        }
    }

    async fn committed(&mut self) {
        let mut result = Ok(());
        if !self.reused.is_empty() {
            let addresses = std::mem::take(&mut self.reused);
            let forgotten = self.tables.forget_flows(addresses.clone()).await;
            result = forgotten.map_err(|error| error.to_string());
            if result.is_err() {
                self.reused = addresses; // The next commit tries again.
            }
        }
        self.answer(&result);
    }

    fn answer(&mut self, result: &Done) {
        for done in self.waiting.drain(..) {
            let _ = done.send(result.clone()); // The caller may have given up.
        }
    }
}
