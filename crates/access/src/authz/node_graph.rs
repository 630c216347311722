//! An index of which node runs pods that refer to which objects.
//!
//!     pods in the store ──events──▶ references by node ◀── may node n read secret s?
//!
//! Every question first applies the store's new events, so a node that has just received a pod may read that
//! pod's secrets at once. Claims, volumes and attachments are not indexed; they are read by name when needed.
//! Upstream: the graph of the node authorizer.

use super::references::{self, CLAIMS, Reference, SECRETS};
use api::value::ValueExt as _;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use store::{Event, EventKind, Object, Store, Watcher};

/// How many events are applied at once.
const BATCH: usize = 1024;

/// Which objects a node needs for its pods.
pub trait NodeGraph: fmt::Debug + Send + Sync {
    /// Whether a pod of this node refers to the object. `resource` is the plural name in the API; `namespace`
    /// is empty for cluster-scoped objects.
    fn node_refers_to(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool;
}

/// The graph of the pods in a store.
pub struct StoreNodeGraph<I: store::Index> {
    store: Store<I>,
    state: Mutex<State<I>>,
}

struct State<I: store::Index> {
    index: PodIndex,
    /// None before the first question, and after the watch has lost events.
    watcher: Option<Watcher<I>>,
}

impl<I: store::Index> StoreNodeGraph<I> {
    pub fn of(store: &Store<I>) -> Self {
        let state = State { index: PodIndex::default(), watcher: None };
        StoreNodeGraph { store: store.clone(), state: Mutex::new(state) }
    }

    /// Applies what has happened, so that the next question finds little to do.
    pub fn catch_up(&self) {
        self.with_index(|_| ());
    }

    fn refers(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
        self.with_index(|index| index.has(node, resource, namespace, name))
    }

    /// A volume may be mounted with secrets that no pod names. They are found through the node's claims.
    fn volume_uses_secret(&self, node: &str, namespace: &str, name: &str) -> bool {
        let claims = self.with_index(|index| index.claims(node));
        let secret = (namespace.to_owned(), name.to_owned());
        claims.into_iter().any(|claim| {
            let stored = self.get(CLAIMS, &store_name(&claim.0, &claim.1));
            let bound = stored.map(|stored| stored.text(&["spec", "volumeName"]).to_owned());
            let volume = bound.and_then(|name| self.get("persistentvolumes", &name));
            volume.is_some_and(|volume| {
                // The volume must be for this claim, not only the claim for this volume.
                claim_of(&volume) == (claim.0.as_str(), claim.1.as_str())
                    && references::secrets_of_volume(&volume).contains(&secret)
            })
        })
    }

    fn get(&self, collection: &str, name: &str) -> Option<Value> {
        self.store.get(collection, name).map(|object| decoded(&object))
    }

    fn with_index<T>(&self, read: impl FnOnce(&PodIndex) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.catch_up(&self.store);
        read(&state.index)
    }
}

impl<I: store::Index> NodeGraph for StoreNodeGraph<I> {
    fn node_refers_to(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let is_on_node = |collection: &str, name: &str| {
            let object = self.get(collection, name);
            object.is_some_and(|object| object.text(&["spec", "nodeName"]) == node)
        };
        match resource {
            "pods" => is_on_node("pods", &store_name(namespace, name)),
            "persistentvolumes" => self.get("persistentvolumes", name).is_some_and(|volume| {
                let (namespace, claim) = claim_of(&volume);
                self.refers(node, CLAIMS, namespace, claim)
            }),
            "volumeattachments" => is_on_node("storage.k8s.io/volumeattachments", name),
            "resourceslices" => is_on_node("resource.k8s.io/resourceslices", name),
            SECRETS => {
                self.refers(node, SECRETS, namespace, name)
                    || self.volume_uses_secret(node, namespace, name)
            }
            resource => self.refers(node, resource, namespace, name),
        }
    }
}

impl<I: store::Index> State<I> {
    fn catch_up(&mut self, store: &Store<I>) {
        while let Some(watcher) = &mut self.watcher {
            match watcher.try_next(BATCH) {
                Ok(events) if events.is_empty() => return,
                Ok(events) => self.index.apply(&events),
                // The watch has lost events: build the index from a new list.
                Err(_) => self.watcher = None,
            }
        }
        let (_, pods, watcher) = store.list_and_watch("pods", "");
        self.index = PodIndex::default();
        pods.iter().for_each(|pod| self.index.set(pod));
        self.watcher = Some(watcher);
    }
}

/// Null if it cannot be decoded: then it refers to nothing.
fn decoded<I: store::Index>(object: &Object<I>) -> Value {
    serde_json::from_slice(&object.bytes()).unwrap_or_default()
}

/// The name under which the store keeps an object.
fn store_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

fn claim_of(volume: &Value) -> (&str, &str) {
    let claim = |field| volume.text(&["spec", "claimRef", field]);
    (claim("namespace"), claim("name"))
}

/// A pod that is bound to a node.
struct BoundPod {
    node: String,
    references: BTreeSet<Reference>,
}

/// How many pods of a node refer to an object: by resource, then by its stored name.
type Counts = HashMap<&'static str, HashMap<String, usize>>;

#[derive(Default)]
struct PodIndex {
    pods: HashMap<String, BoundPod>,
    nodes: HashMap<String, Counts>,
}

impl PodIndex {
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

    /// Only the last event of each pod counts.
    fn apply<I: store::Index>(&mut self, events: &[Arc<Event<I>>]) {
        let mut last: HashMap<&str, &Event<I>> = HashMap::new();
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

    fn set<I: store::Index>(&mut self, stored: &Object<I>) {
        let pod = decoded(stored);
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
        for reference in &references {
            let name = store_name(&reference.namespace, &reference.name);
            *counts.entry(reference.resource).or_default().entry(name).or_default() += 1;
        }
        self.pods.insert(stored.name().to_owned(), BoundPod { node: node.to_owned(), references });
    }

    fn remove(&mut self, name: &str) {
        let Some(BoundPod { node, references }) = self.pods.remove(name) else { return };
        let Some(counts) = self.nodes.get_mut(&node) else { return };
        for reference in &references {
            let Some(of_resource) = counts.get_mut(reference.resource) else { continue };
            let name = store_name(&reference.namespace, &reference.name);
            if let Some(count) = of_resource.get_mut(&name) {
                *count -= 1;
                if *count == 0 {
                    of_resource.remove(&name);
                }
            }
            if of_resource.is_empty() {
                counts.remove(reference.resource);
            }
        }
        if counts.is_empty() {
            self.nodes.remove(&node);
        }
    }
}

impl<I: store::Index> fmt::Debug for StoreNodeGraph<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreNodeGraph").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;
    use store::{Change, Draft, Envelope, Expect, Memory, Options, Write};

    pub(crate) fn open() -> Store<()> {
        let envelope = Envelope { created: b"", updated: b"", deleted: b"", end: b"" };
        // Short, so that a test can make the watch lose events.
        let options = Options { history_events: 8, ..Options::new(envelope) };
        Store::open_memory(&Memory::default(), options)
    }

    /// Stores an object with a gap for its revision at the start.
    pub(crate) async fn put(store: &Store<()>, collection: &str, name: &str, object: Value) {
        let mut bytes = b"{\"revision\":\"".to_vec();
        let revision_at = bytes.len();
        bytes.extend_from_slice(format!("\",{}", &object.to_string()[1..]).as_bytes());
        write(store, collection, name, Change::Put(Draft { bytes, revision_at })).await;
    }

    async fn delete(store: &Store<()>, collection: &str, name: &str) {
        write(store, collection, name, Change::Delete).await;
    }

    async fn write(store: &Store<()>, collection: &str, name: &str, change: Change) {
        let known = store.get(collection, name);
        let expect = known.map_or(Expect::Absent, |known| Expect::Revision(known.revision()));
        let (collection, name) = (collection.into(), name.to_owned());
        assert!(store.write(Write { collection, name, expect, change }).await.is_ok());
    }

    fn pod(name: &str, node: &str, secret: &str) -> Value {
        json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {"nodeName": node, "volumes": [{"name": "v", "secret": {"secretName": secret}}]},
        })
    }

    /// a node may read a secret from the moment that one of its pods names it, until none does.
    #[tokio::test]
    async fn a_reference_lasts_as_long_as_a_pod_makes_it() {
        let store = open();
        let graph = StoreNodeGraph::of(&store);
        let sees = |node: &str, secret: &str| graph.node_refers_to(node, "secrets", "ns", secret);
        assert!(!sees("n1", "s"));
        put(&store, "pods", "ns/a", pod("a", "n1", "s")).await;
        put(&store, "pods", "ns/b", pod("b", "n1", "s")).await;
        put(&store, "pods", "ns/c", pod("c", "", "other")).await;
        assert!(sees("n1", "s"), "at once");
        assert!(!sees("n2", "s") && !sees("n1", "other") && !sees("", "other"));
        assert!(!graph.node_refers_to("n1", "secrets", "elsewhere", "s"));
        assert!(!graph.node_refers_to("n1", "configmaps", "ns", "s"));
        delete(&store, "pods", "ns/a").await;
        assert!(sees("n1", "s"), "the other pod still names it");
        delete(&store, "pods", "ns/b").await;
        put(&store, "pods", "ns/c", pod("c", "n2", "other")).await;
        assert!(!sees("n1", "s") && sees("n2", "other"));
        let state = graph.state.lock().unwrap();
        assert_eq!((state.index.pods.len(), state.index.nodes.len()), (1, 1), "nothing is kept");
    }

    /// more events than the history holds have happened since the last question.
    #[tokio::test]
    async fn the_index_is_complete_after_the_watch_has_lost_events() {
        let store = open();
        let graph = StoreNodeGraph::of(&store);
        put(&store, "pods", "ns/gone", pod("gone", "n1", "old")).await;
        assert!(graph.node_refers_to("n1", "secrets", "ns", "old"));
        delete(&store, "pods", "ns/gone").await;
        for number in 0..50 {
            let name = format!("p{number}");
            put(&store, "pods", &format!("ns/{name}"), pod(&name, "n1", &name)).await;
        }
        assert!(!graph.node_refers_to("n1", "secrets", "ns", "old"));
        assert!((0..50).all(|at| graph.node_refers_to("n1", "secrets", "ns", &format!("p{at}"))));
    }

    /// from the pod to its claim, to the volume that is bound to it, to the volume's secrets.
    #[tokio::test]
    async fn a_node_may_read_the_volumes_of_its_claims_and_their_secrets() {
        let store = open();
        let graph = StoreNodeGraph::of(&store);
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
            assert_eq!(graph.node_refers_to(node, "persistentvolumeclaims", "ns", "c"), yes);
            assert_eq!(graph.node_refers_to(node, "persistentvolumes", "", "v"), yes);
            assert_eq!(graph.node_refers_to(node, "secrets", "csi", "s"), yes);
            assert_eq!(graph.node_refers_to(node, "pods", "ns", "p"), yes);
        }
        put(&store, "persistentvolumes", "v", volume("another")).await;
        assert!(!graph.node_refers_to("n1", "persistentvolumes", "", "v"));
        assert!(!graph.node_refers_to("n1", "secrets", "csi", "s"));
    }
}
