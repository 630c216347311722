//! Which node has a pod that refers to what: kept as an index, never searched for.
//!
//!     pods of the store ──events──▶ references by node ◀── may node n read secret s?
//!
//! Every question first takes in what the store has said since the last one, so a node that was just
//! told of a pod may read that pod's secrets. Everything besides pods (claims, volumes, attachments)
//! is looked up by name when it is asked about.

use super::references::{self, CLAIMS, Reference, SECRETS};
use crate::object::{Event, Object, Store, Stored, store_name};
use api::value::ValueExt as _;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use store::{EventKind, Watcher};

/// Events taken in at once.
const BATCH: usize = 1024;

pub(crate) struct Relations {
    store: Store,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    index: Index,
    /// None before the first look, and after the store could not wait for us.
    watcher: Option<Watcher<crate::object::Index>>,
}

impl Relations {
    pub(crate) fn of(store: &Store) -> Relations {
        Relations { store: store.clone(), state: Mutex::default() }
    }

    /// Takes in what has happened, so that the next question finds little to do.
    pub(crate) fn catch_up(&self) {
        self.with_index(|_| ());
    }

    /// Does a pod of this node refer to that object? `resource` as the API names it; the namespace of
    /// what is not in one is empty.
    pub(super) fn hold(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let text = |collection: &str, path: &[&str]| {
            let found = self.store.get(collection, name)?;
            Some(found.value().text(path).to_owned())
        };
        match resource {
            "pods" => {
                let pod = self.store.get("pods", &store_name(namespace, name));
                pod.is_some_and(|pod| pod.value().text(&["spec", "nodeName"]) == node)
            }
            "persistentvolumes" => self.volume(name).is_some_and(|volume| {
                let (namespace, claim) = claim_of(&volume);
                self.refers(node, CLAIMS, namespace, claim)
            }),
            "volumeattachments" => {
                text("storage.k8s.io/volumeattachments", &["spec", "nodeName"]).as_deref()
                    == Some(node)
            }
            SECRETS => {
                self.refers(node, SECRETS, namespace, name)
                    || self.secret_of_a_volume(node, namespace, name)
            }
            resource => self.refers(node, resource, namespace, name),
        }
    }

    fn refers(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
        self.with_index(|index| index.has(node, resource, namespace, name))
    }

    /// Volumes are mounted with secrets that no pod names. Looked for among the claims of the node.
    fn secret_of_a_volume(&self, node: &str, namespace: &str, name: &str) -> bool {
        let claims = self.with_index(|index| index.claims(node));
        let wanted = (namespace.to_owned(), name.to_owned());
        claims.into_iter().any(|claim| {
            let stored = self.store.get(CLAIMS, &store_name(&claim.0, &claim.1));
            let bound =
                stored.map(|stored| stored.value().text(&["spec", "volumeName"]).to_owned());
            let volume = bound.and_then(|name| self.volume(&name));
            volume.is_some_and(|volume| {
                // The volume must be for this claim, not only the claim for this volume.
                claim_of(&volume) == (claim.0.as_str(), claim.1.as_str())
                    && references::secrets_of_volume(&volume).contains(&wanted)
            })
        })
    }

    fn volume(&self, name: &str) -> Option<Value> {
        Some(self.store.get("persistentvolumes", name)?.value())
    }

    fn with_index<T>(&self, ask: impl FnOnce(&Index) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.catch_up(&self.store);
        ask(&state.index)
    }
}

impl State {
    fn catch_up(&mut self, store: &Store) {
        while let Some(watcher) = &mut self.watcher {
            match watcher.try_next(BATCH) {
                Ok(events) if events.is_empty() => return,
                Ok(events) => self.index.take_in(&events),
                // So much has happened that it is quicker to look at everything.
                Err(_) => self.watcher = None,
            }
        }
        let (_, pods, watcher) = store.list_and_watch("pods", "");
        self.index = Index::default();
        pods.iter().for_each(|pod| self.index.set(pod));
        self.watcher = Some(watcher);
    }
}

fn claim_of(volume: &Value) -> (&str, &str) {
    let claim = |field| volume.text(&["spec", "claimRef", field]);
    (claim("namespace"), claim("name"))
}

/// What a pod brings to its node.
struct Bound {
    node: String,
    references: BTreeSet<Reference>,
}

/// How many pods of a node refer to an object: by resource, then by its stored name.
type Counts = HashMap<&'static str, HashMap<String, usize>>;

#[derive(Default)]
struct Index {
    pods: HashMap<String, Bound>,
    nodes: HashMap<String, Counts>,
}

impl Index {
    fn has(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let of_resource = self.nodes.get(node).and_then(|counts| counts.get(resource));
        of_resource.is_some_and(|counts| counts.contains_key(&store_name(namespace, name)))
    }

    fn claims(&self, node: &str) -> Vec<(String, String)> {
        let claims = self.nodes.get(node).and_then(|counts| counts.get(CLAIMS));
        let names = claims.into_iter().flat_map(HashMap::keys);
        let split = |name: &String| name.split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned()));
        names.filter_map(split).collect()
    }

    /// Only the last word on each pod counts.
    fn take_in(&mut self, events: &[Arc<Event>]) {
        let mut last: HashMap<&str, &Event> = HashMap::new();
        for event in events {
            last.insert(event.object.name(), event);
        }
        for (name, event) in last {
            match event.kind {
                EventKind::Deleted => self.remove(name),
                EventKind::Created | EventKind::Updated => self.set(&event.object),
            }
        }
    }

    fn set(&mut self, stored: &Object) {
        let pod = stored.value();
        let node = pod.text(&["spec", "nodeName"]);
        if node.is_empty() {
            return self.remove(stored.name());
        }
        let references = references::of_pod(&pod);
        if let Some(known) = self.pods.get(stored.name())
            && known.node == node
            && known.references == references
        {
            return; // The usual case: a status was written.
        }
        self.remove(stored.name());
        let counts = self.nodes.entry(node.to_owned()).or_default();
        for one in &references {
            let name = store_name(&one.namespace, &one.name);
            *counts.entry(one.resource).or_default().entry(name).or_default() += 1;
        }
        self.pods.insert(stored.name().to_owned(), Bound { node: node.to_owned(), references });
    }

    fn remove(&mut self, name: &str) {
        let Some(Bound { node, references }) = self.pods.remove(name) else { return };
        let Some(counts) = self.nodes.get_mut(&node) else { return };
        for one in &references {
            let Some(of_resource) = counts.get_mut(one.resource) else { continue };
            let name = store_name(&one.namespace, &one.name);
            if let Some(count) = of_resource.get_mut(&name) {
                *count -= 1;
                if *count == 0 {
                    of_resource.remove(&name);
                }
            }
            if of_resource.is_empty() {
                counts.remove(one.resource);
            }
        }
        if counts.is_empty() {
            self.nodes.remove(&node);
        }
    }
}

impl std::fmt::Debug for Relations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relations").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ENVELOPE, draft};
    use serde_json::json;
    use store::{Change, Expect, Write};

    async fn open() -> Store {
        let options = store::Options { history_events: 8, ..store::Options::new(ENVELOPE) };
        Store::open(store::Backend::Memory, options).await.unwrap()
    }

    async fn put(store: &Store, plural: &str, name: &str, object: Value) {
        let registry = api::Registry::built_in();
        let kind = registry.resource("", "v1", plural).unwrap();
        let change = Change::Put(draft(kind, &object));
        let (collection, name) = (plural.into(), name.to_owned());
        let expect = as_it_is(store, plural, &name);
        assert!(store.write(Write { collection, name, expect, change }).await.is_ok());
    }

    fn as_it_is(store: &Store, plural: &str, name: &str) -> Expect {
        store.get(plural, name).map_or(Expect::Absent, |known| Expect::Revision(known.revision()))
    }

    async fn delete(store: &Store, plural: &str, name: &str) {
        let (collection, name) = (plural.into(), name.to_owned());
        let expect = as_it_is(store, plural, &name);
        let write = Write { collection, name, expect, change: Change::Delete };
        assert!(store.write(write).await.is_ok());
    }

    fn pod(name: &str, node: &str, secret: &str) -> Value {
        json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {"nodeName": node, "volumes": [{"name": "v", "secret": {"secretName": secret}}]},
        })
    }

    /// a secret is a node's as long as one of its pods names it, and from the first moment.
    #[tokio::test]
    async fn a_reference_lasts_as_long_as_a_pod_that_makes_it() {
        let store = open().await;
        let relations = Relations::of(&store);
        let sees = |node: &str, secret: &str| relations.hold(node, "secrets", "ns", secret);
        assert!(!sees("n1", "s"));
        put(&store, "pods", "ns/a", pod("a", "n1", "s")).await;
        put(&store, "pods", "ns/b", pod("b", "n1", "s")).await;
        put(&store, "pods", "ns/c", pod("c", "", "other")).await;
        assert!(sees("n1", "s"), "at once");
        assert!(!sees("n2", "s") && !sees("n1", "other") && !sees("", "other"));
        assert!(!relations.hold("n1", "secrets", "elsewhere", "s"));
        assert!(!relations.hold("n1", "configmaps", "ns", "s"));
        delete(&store, "pods", "ns/a").await;
        assert!(sees("n1", "s"), "the other pod still names it");
        delete(&store, "pods", "ns/b").await;
        put(&store, "pods", "ns/c", pod("c", "n2", "other")).await;
        assert!(!sees("n1", "s") && sees("n2", "other"));
        let state = relations.state.lock().unwrap();
        assert_eq!((state.index.pods.len(), state.index.nodes.len()), (1, 1), "nothing is kept");
    }

    /// more than the history holds has happened since the last question.
    #[tokio::test]
    async fn nothing_is_missed_when_the_history_is_too_short() {
        let store = open().await;
        let relations = Relations::of(&store);
        put(&store, "pods", "ns/gone", pod("gone", "n1", "old")).await;
        assert!(relations.hold("n1", "secrets", "ns", "old"));
        delete(&store, "pods", "ns/gone").await;
        for number in 0..50 {
            let name = format!("p{number}");
            put(&store, "pods", &format!("ns/{name}"), pod(&name, "n1", &name)).await;
        }
        assert!(!relations.hold("n1", "secrets", "ns", "old"));
        assert!((0..50).all(|at| relations.hold("n1", "secrets", "ns", &format!("p{at}"))));
    }

    /// from the pod to its claim, to the volume that is bound to it, to the volume's secrets.
    #[tokio::test]
    async fn volumes_and_their_secrets_belong_to_the_node_of_the_claim() {
        let store = open().await;
        let relations = Relations::of(&store);
        let claim =
            json!({"metadata": {"namespace": "ns", "name": "c"}, "spec": {"volumeName": "v"}});
        put(&store, "persistentvolumeclaims", "ns/c", claim).await;
        let volume = |claim: &str| {
            json!({"metadata": {"name": "v"}, "spec": {
                "claimRef": {"namespace": "ns", "name": claim},
                "csi": {"nodePublishSecretRef": {"namespace": "csi", "name": "s"}},
            }})
        };
        put(&store, "persistentvolumes", "v", volume("c")).await;
        let user = json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {"nodeName": "n1", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        });
        put(&store, "pods", "ns/p", user).await;
        for (node, yes) in [("n1", true), ("n2", false)] {
            assert_eq!(relations.hold(node, "persistentvolumeclaims", "ns", "c"), yes);
            assert_eq!(relations.hold(node, "persistentvolumes", "", "v"), yes);
            assert_eq!(relations.hold(node, "secrets", "csi", "s"), yes);
            assert_eq!(relations.hold(node, "pods", "ns", "p"), yes);
        }
        put(&store, "persistentvolumes", "v", volume("another")).await;
        assert!(!relations.hold("n1", "persistentvolumes", "", "v"));
        assert!(!relations.hold("n1", "secrets", "csi", "s"));
    }
}
