//! A small controller with a real server on a paused clock: all parts of the crate together.

use crate::cluster::{PATIENCE, config_map};
use client::{Cache, Client, Error, ObjectKey, Queue, Selection, run_controller};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testbed::TestServer;
use tokio::time::{Instant, timeout};

/// Keeps as many children as `data.value` of their parent says.
struct ChildController {
    client: Client,
    parents: Cache<ConfigMap>,
    children: Cache<ConfigMap>,
    created: AtomicUsize,
    deleted: AtomicUsize,
}

impl ChildController {
    fn new(client: Client) -> Self {
        let parents = Cache::builder(&client).labels("role=parent").start();
        let children = Cache::builder(&client).labels("role=child").start();
        ChildController { client, parents, children, created: 0.into(), deleted: 0.into() }
    }

    async fn run(&self, queue: &Queue<ObjectKey>) {
        self.parents.feed_keys(queue);
        self.children.feed(queue, |child| {
            let owners = child.metadata.owner_references.iter().flatten();
            owners.map(|owner| ObjectKey::new("default", &owner.name)).collect()
        });
        self.parents.synced().await;
        self.children.synced().await;
        run_controller("controller", queue, 4, |key| self.reconcile(key)).await;
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<(), Error> {
        let Some(parent) = self.parents.get(&key) else {
            return Ok(());
        };
        let children = self.children.controlled_by(&*parent);
        let replicas: usize = parent.data.as_ref().unwrap()["value"].parse().unwrap();

        let missing = (children.len()..replicas).map(|_| child_of(&parent));
        let surplus: Vec<_> = children.iter().skip(replicas).cloned().collect();

        let created = self.client.create_all(missing).await?;
        self.client.delete_all(surplus.iter().cloned()).await?;

        self.created.fetch_add(created.len(), Ordering::Relaxed);
        self.deleted.fetch_add(surplus.len(), Ordering::Relaxed);
        assert!(self.children.caught_up_with_all(&created).await);
        assert!(self.children.caught_up_with_deletes(&surplus).await);
        Ok(())
    }
}

fn parent(name: &str, children: usize) -> ConfigMap {
    let mut parent = config_map(name, &children.to_string());
    parent.metadata.labels = Some([("role".to_owned(), "parent".to_owned())].into());
    parent
}

fn child_of(parent: &ConfigMap) -> ConfigMap {
    typed::from_value(json!({ "metadata": {
        "namespace": "default",
        "generateName": "child-",
        "labels": { "role": "child" },
        "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "controller": true,
            "name": parent.metadata.name, "uid": parent.metadata.uid,
        }],
    } }))
    .unwrap()
}

/// Waits until `parent` has so many children, as the controller sees it.
async fn wait_for_children(controller: &ChildController, parent: &ConfigMap, replicas: usize) {
    let mut changes = controller.children.subscribe();
    let grown = async {
        while controller.children.controlled_by(parent).len() != replicas {
            changes.next().await;
        }
    };
    timeout(PATIENCE, grown).await.unwrap_or_else(|_| panic!("never {replicas}"));
}

#[tokio::test(start_paused = true)]
async fn a_controller_creates_and_deletes_exactly_what_is_needed() {
    let server = TestServer::with_service_account().await;
    let client = server.admin().named("controller");
    let controller = Arc::new(ChildController::new(client.clone()));
    let queue = Queue::new();
    let task = tokio::spawn({
        let (controller, queue) = (Arc::clone(&controller), queue.clone());
        async move { controller.run(&queue).await }
    });
    let start = Instant::now();

    let first = client.create(&parent("first", 40)).await.unwrap();
    let second = client.create(&parent("second", 3)).await.unwrap();
    wait_for_children(&controller, &first, 40).await;
    wait_for_children(&controller, &second, 3).await;

    // A deleted child is replaced.
    let victim = controller.children.controlled_by(&second)[0].clone();
    client.delete_all([victim.clone()]).await.unwrap();
    while controller.children.get(&ObjectKey::of(&*victim)).is_some() {
        tokio::task::yield_now().await;
    }
    wait_for_children(&controller, &second, 3).await;

    // Fewer replicas.
    let fewer = json!({ "data": { "value": "2" } });
    client.patch_merge::<ConfigMap>(&ObjectKey::of(&first), &fewer).await.unwrap();
    wait_for_children(&controller, &first, 2).await;

    // No child was created or deleted twice, though every change queued a reconcile.
    assert_eq!(controller.created.load(Ordering::Relaxed), 40 + 3 + 1);
    assert_eq!(controller.deleted.load(Ordering::Relaxed), 38);
    assert_eq!(queue.counts().retried, 0);
    let all: Vec<ConfigMap> =
        client.list(&Selection::namespace("default").labels("role=child")).await.unwrap();
    assert_eq!(all.len(), 2 + 3);
    assert!(start.elapsed() < Duration::from_secs(1), "no step waits");

    queue.shut_down();
    task.await.unwrap();
    server.stop().await;
}
