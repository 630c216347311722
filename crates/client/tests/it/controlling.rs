//! A small controller on a real server, on a paused clock: all parts together, and no time passes.

use crate::cluster::{Cluster, PATIENCE, config_map};
use client::{Cache, Client, Error, ObjectKey, Queue, Selection, run_controller};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Keeps as many children as `data.value` of their parent says.
struct Nursery {
    client: Client,
    parents: Cache<ConfigMap>,
    children: Cache<ConfigMap>,
    born: AtomicUsize,
    deleted: AtomicUsize,
}

impl Nursery {
    fn new(client: Client) -> Self {
        let parents = Cache::builder(&client).labels("role=parent").start();
        let children = Cache::builder(&client).labels("role=child").start();
        Nursery { client, parents, children, born: 0.into(), deleted: 0.into() }
    }

    async fn run(&self, queue: &Queue<ObjectKey>) {
        self.parents.feed_keys(queue);
        self.children.feed(queue, |child| {
            let owners = child.metadata.owner_references.iter().flatten();
            owners.map(|owner| ObjectKey::new("default", &owner.name)).collect()
        });
        self.parents.synced().await;
        self.children.synced().await;
        run_controller("nursery", queue, 4, |key| self.reconcile(key)).await;
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<(), Error> {
        let Some(parent) = self.parents.get(&key) else {
            return Ok(());
        };
        let children = self.children.controlled_by(&*parent);
        let wanted: usize = parent.data.as_ref().unwrap()["value"].parse().unwrap();

        let missing = (children.len()..wanted).map(|_| child_of(&parent));
        let surplus: Vec<_> = children.iter().skip(wanted).cloned().collect();

        let born = self.client.create_all(missing).await?;
        self.client.delete_all(surplus.iter().cloned()).await?;

        self.born.fetch_add(born.len(), Ordering::Relaxed);
        self.deleted.fetch_add(surplus.len(), Ordering::Relaxed);
        assert!(self.children.caught_up_with_all(&born).await);
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
async fn grown_to(nursery: &Nursery, parent: &ConfigMap, wanted: usize) {
    let mut changes = nursery.children.subscribe();
    let grown = async {
        while nursery.children.controlled_by(parent).len() != wanted {
            changes.next().await;
        }
    };
    timeout(PATIENCE, grown).await.unwrap_or_else(|_| panic!("never {wanted}"));
}

#[tokio::test(start_paused = true)]
async fn a_controller_brings_about_what_is_wanted_and_no_more() {
    let cluster = Cluster::start().await;
    let client = cluster.in_process().named("nursery");
    let nursery = Arc::new(Nursery::new(client.clone()));
    let queue = Queue::new();
    let controller = tokio::spawn({
        let (nursery, queue) = (Arc::clone(&nursery), queue.clone());
        async move { nursery.run(&queue).await }
    });
    let start = Instant::now();

    let first = client.create(&parent("first", 40)).await.unwrap();
    let second = client.create(&parent("second", 3)).await.unwrap();
    grown_to(&nursery, &first, 40).await;
    grown_to(&nursery, &second, 3).await;

    // One dies, and is replaced.
    let victim = nursery.children.controlled_by(&second)[0].clone();
    client.delete_all([victim.clone()]).await.unwrap();
    while nursery.children.get(&ObjectKey::of(&*victim)).is_some() {
        tokio::task::yield_now().await;
    }
    grown_to(&nursery, &second, 3).await;

    // Fewer are wanted.
    let fewer = json!({ "data": { "value": "2" } });
    client.patch_merge::<ConfigMap>(&ObjectKey::of(&first), &fewer).await.unwrap();
    grown_to(&nursery, &first, 2).await;

    // Nobody was born or deleted twice, though every birth and death called for a reconcile.
    assert_eq!(nursery.born.load(Ordering::Relaxed), 40 + 3 + 1);
    assert_eq!(nursery.deleted.load(Ordering::Relaxed), 38);
    assert_eq!(queue.counts().retried, 0);
    let all: Vec<ConfigMap> =
        client.list(&Selection::namespace("default").labels("role=child")).await.unwrap();
    assert_eq!(all.len(), 2 + 3);
    assert!(start.elapsed() < Duration::from_secs(1), "nothing here waits");

    queue.shut_down();
    controller.await.unwrap();
    cluster.stop().await;
}
