//! Finds owners and dependents among the objects of all kinds.
//!
//! Each kind has a cache of metadata with indexes by UID and by the UIDs of owners, so a query costs one lookup per
//! kind, no matter how many objects there are. New and removed kinds are discovered every 30 s.

use super::verdict::{Owner, blocked_by, is_relevant_change, is_waiting};
use client::{
    ApiResource, Cache, Client, DeleteOptions, ObjectKey, PartialObject, Queue, Recorder,
    ServedKind,
};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

/// How often kinds are discovered, and how long the first list of a new one may take.
const DISCOVER_EVERY: Duration = Duration::from_secs(30);

/// Entries of each set of recently seen owners and references.
const RECENT_MAX: usize = 500;

const BY_UID: &str = "uid";
const BY_OWNER: &str = "owner";
/// As by owner, but only objects that block the deletion of the owner.
const BLOCKING: &str = "blocking";

/// Identifies an object: its kind (`plural.group`) and its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Item {
    kind: Arc<str>,
    key: ObjectKey,
}

#[derive(Debug, Clone)]
pub(super) struct Dependent {
    pub(super) item: Item,
    pub(super) object: Arc<PartialObject>,
}

/// The states of the owners of an object.
pub(super) enum Owners {
    /// In the order of the references.
    Known(Vec<Owner>),
    /// A reference is invalid: a cluster-scoped object cannot have a namespaced owner.
    Invalid,
    /// The server does not serve the kind of an owner.
    UnknownKind,
}

pub(super) struct Graph {
    client: Client,
    recorder: Recorder,
    queue: Queue<Item>,
    /// Gets the namespace of every deleted object.
    namespaces_to_recount: Queue<String>,
    kinds: RwLock<Kinds>,
    /// Owners that do not exist, as references name them.
    absent: Mutex<Recent<OwnerName>>,
    /// The UIDs of waiting objects whose dependents were queued.
    waiting: Mutex<Recent<String>>,
    /// Reported references to another namespace: (UID of the dependent, UID of the owner).
    reported: Mutex<Recent<(String, String)>>,
}

/// An owner with all fields of a reference. A reference with the right UID and a wrong name does not mean that the
/// owner itself is absent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OwnerName {
    namespace: String,
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

impl OwnerName {
    fn by(reference: &OwnerReference, namespace: &str) -> OwnerName {
        let OwnerReference { api_version, kind, name, uid, .. } = reference.clone();
        OwnerName { namespace: namespace.to_owned(), api_version, kind, name, uid }
    }
}

#[derive(Default)]
struct Kinds {
    watched: BTreeMap<Arc<str>, WatchedKind>,
    /// Kinds by `apiVersion` and `kind`.
    named: BTreeMap<(String, String), ServedKind>,
}

#[derive(Clone)]
struct WatchedKind {
    kind: ServedKind,
    objects: Cache<PartialObject>,
}

impl Graph {
    /// Returns when the caches of all kinds are complete. Before that, an object might seem to have no dependents.
    pub(super) async fn start(
        client: &Client,
        recorder: Recorder,
        namespaces_to_recount: Queue<String>,
    ) -> Arc<Graph> {
        let graph = Arc::new(Graph {
            client: client.clone(),
            recorder,
            queue: Queue::new(),
            namespaces_to_recount,
            kinds: RwLock::default(),
            absent: Mutex::default(),
            waiting: Mutex::default(),
            reported: Mutex::default(),
        });
        graph.discover(&mut BTreeMap::new()).await;
        graph
    }

    pub(super) fn queue(&self) -> &Queue<Item> {
        &self.queue
    }

    /// Discovers new and removed kinds periodically. Does not return.
    pub(super) async fn rediscover(self: &Arc<Self>) {
        let mut syncing = BTreeMap::new();
        loop {
            tokio::time::sleep(DISCOVER_EVERY).await;
            self.discover(&mut syncing).await;
        }
    }

    /// `syncing` are kinds whose first list is not complete yet.
    async fn discover(self: &Arc<Self>, syncing: &mut BTreeMap<Arc<str>, WatchedKind>) {
        let discovery = match self.client.discover().await {
            Ok(discovery) => discovery,
            Err(error) => {
                tracing::warn!(%error, "garbage collector: discovery failed; keeping the known kinds");
                return;
            }
        };
        let wanted: BTreeMap<Arc<str>, &ServedKind> =
            discovery.kinds.iter().filter(|kind| is_watched(kind)).map(|k| (name(k), k)).collect();
        syncing.retain(|name, _| wanted.contains_key(name));
        for (name, kind) in &wanted {
            let same = |watched: &WatchedKind| watched.kind.resource == kind.resource;
            if !self.kinds().watched.get(name).is_some_and(same) {
                syncing.entry(name.clone()).or_insert_with(|| self.watch(kind));
            }
        }
        let synced = futures::future::join_all(syncing.values().map(|kind| kind.objects.synced()));
        let _ = tokio::time::timeout(DISCOVER_EVERY, synced).await;
        let ready: Vec<Arc<str>> = syncing
            .iter()
            .filter(|(_, kind)| kind.objects.is_synced())
            .map(|k| k.0.clone())
            .collect();
        let ready: BTreeMap<Arc<str>, WatchedKind> =
            ready.into_iter().filter_map(|name| syncing.remove_entry(&name)).collect();
        self.install(ready.clone(), |name| wanted.contains_key(name), &discovery.kinds);
        // After the lock is released, because `feed` reads the kinds.
        for (name, watched) in ready {
            self.feed(name, &watched.objects);
        }
    }

    fn install(
        &self,
        ready: BTreeMap<Arc<str>, WatchedKind>,
        is_wanted: impl Fn(&Arc<str>) -> bool,
        all: &[ServedKind],
    ) {
        let mut kinds = self.kinds.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        kinds.watched.retain(|name, _| is_wanted(name));
        kinds.watched.extend(ready);
        kinds.named = all
            .iter()
            .map(|kind| {
                ((kind.resource.api_version.clone(), kind.resource.kind.clone()), kind.clone())
            })
            .collect();
    }

    fn watch(&self, kind: &ServedKind) -> WatchedKind {
        let objects = Cache::<PartialObject>::builder_of(&self.client, kind.resource.clone())
            .metadata_only()
            .index(BY_UID, |object| object.metadata.uid.iter().cloned().collect())
            .index(BY_OWNER, |object| {
                let owners = object.metadata.owner_references.iter().flatten();
                owners.map(|owner| owner.uid.clone()).collect()
            })
            .index(BLOCKING, |object| blocked_by(&object.metadata).cloned().collect())
            .start();
        WatchedKind { kind: kind.clone(), objects }
    }

    /// Queues an object when its owners, finalizers or deletion change, when one of its owners is deleted, and when a
    /// dependent is deleted or removes its owner reference.
    fn feed(self: &Arc<Self>, kind: Arc<str>, objects: &Cache<PartialObject>) {
        let graph: Weak<Graph> = Arc::downgrade(self);
        objects.feed_changes(&self.queue, move |before, after| {
            let Some(graph) = graph.upgrade() else { return Vec::new() };
            let mut items = Vec::new();
            let same = |(before, after): (&PartialObject, &PartialObject)| {
                !is_relevant_change(&before.metadata, &after.metadata)
            };
            if before.zip(after).is_some_and(same) {
                return Vec::new();
            }
            if let Some(after) = after {
                items.push(Item { kind: kind.clone(), key: ObjectKey::of(after) });
            }
            let uid = |object: &PartialObject| object.metadata.uid.clone();
            if let Some(before) = before {
                if after.is_none()
                    && let Some(namespace) = &before.metadata.namespace
                {
                    graph.namespaces_to_recount.add(namespace.clone());
                }
                if after.map(uid) != Some(uid(before)) {
                    let dependents = graph.dependents(&before.metadata);
                    items.extend(dependents.into_iter().map(|dependent| dependent.item));
                }
                let owners = |object: &PartialObject| object.metadata.owner_references.clone();
                if after.is_none_or(|after| owners(after) != owners(before)) {
                    items.extend(graph.cached_owners(&before.metadata));
                }
            }
            items
        });
    }

    fn kinds(&self) -> RwLockReadGuard<'_, Kinds> {
        self.kinds.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn get(&self, item: &Item) -> Option<Arc<PartialObject>> {
        self.kinds().watched.get(&item.kind)?.objects.get(&item.key)
    }

    pub(super) fn dependents(&self, owner: &ObjectMeta) -> Vec<Dependent> {
        let uid = owner.uid.as_deref().unwrap_or_default();
        let of_kind = |(kind, watched): (&Arc<str>, &WatchedKind)| {
            let objects = watched.objects.by_index(BY_OWNER, uid);
            let item = |object: &Arc<PartialObject>| Item {
                kind: kind.clone(),
                key: super::key_of(object),
            };
            objects.into_iter().map(|object| Dependent { item: item(&object), object }).collect()
        };
        self.kinds().watched.iter().flat_map(|entry| -> Vec<Dependent> { of_kind(entry) }).collect()
    }

    /// Whether other objects block its deletion. Costs one lookup per kind, no matter how many dependents there are.
    pub(super) fn is_blocked(&self, owner: &ObjectMeta) -> bool {
        let uid = owner.uid.as_deref().unwrap_or_default();
        self.kinds().watched.values().any(|kind| kind.objects.count(BLOCKING, uid) > 0)
    }

    /// True on the first call for this object.
    pub(super) fn is_first_wait(&self, owner: &ObjectMeta) -> bool {
        locked(&self.waiting).insert(owner.uid.clone().unwrap_or_default())
    }

    /// The owners that are in the caches.
    fn cached_owners(&self, meta: &ObjectMeta) -> Vec<Item> {
        let owners = meta.owner_references.iter().flatten();
        owners
            .filter_map(|owner| self.named(meta, owner).or_else(|| self.find(&owner.uid)))
            .collect()
    }

    /// The owner, if it is in the cache as the reference names it.
    fn named(&self, meta: &ObjectMeta, reference: &OwnerReference) -> Option<Item> {
        let named = (reference.api_version.clone(), reference.kind.clone());
        let kind = self.kinds().named.get(&named).cloned()?;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::new(if kind.namespaced { namespace } else { "" }, &reference.name);
        self.cached(&kind, &key, &reference.uid).map(|_| Item { kind: name(&kind), key })
    }

    fn find(&self, uid: &str) -> Option<Item> {
        self.kinds().watched.iter().find_map(|(kind, watched)| {
            let object = watched.objects.by_index(BY_UID, uid).pop()?;
            Some(Item { kind: kind.clone(), key: super::key_of(&object) })
        })
    }

    /// The states of the owners of `meta`. Asks the server about those that are not in the caches.
    pub(super) async fn owners(&self, item: &Item, meta: &ObjectMeta) -> client::Result<Owners> {
        let mut states = Vec::new();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        for reference in meta.owner_references.iter().flatten() {
            let named = (reference.api_version.clone(), reference.kind.clone());
            let Some(kind) = self.kinds().named.get(&named).cloned() else {
                return Ok(Owners::UnknownKind);
            };
            let place = if kind.namespaced { namespace } else { "" };
            let key = ObjectKey::new(place, &reference.name);
            if let Some(owner) = self.cached(&kind, &key, &reference.uid) {
                states.push(state_of(&owner.metadata));
                continue;
            }
            self.report_other_namespace(item, meta, reference);
            if kind.namespaced && namespace.is_empty() {
                return Ok(Owners::Invalid);
            }
            states.push(self.fetch_state(&kind.resource, &key, reference, place).await?);
        }
        Ok(Owners::Known(states))
    }

    fn cached(&self, kind: &ServedKind, key: &ObjectKey, uid: &str) -> Option<Arc<PartialObject>> {
        let object = self.kinds().watched.get(&name(kind))?.objects.get(key)?;
        (object.metadata.uid.as_deref() == Some(uid)).then_some(object)
    }

    async fn fetch_state(
        &self,
        kind: &ApiResource,
        key: &ObjectKey,
        reference: &OwnerReference,
        place: &str,
    ) -> client::Result<Owner> {
        let known = OwnerName::by(reference, place);
        if locked(&self.absent).contains(&known) {
            return Ok(Owner::Absent);
        }
        let owner = self.client.get_partial(kind, key).await?;
        let owner = owner.filter(|owner| owner.metadata.uid.as_ref() == Some(&reference.uid));
        Ok(match owner {
            Some(owner) => state_of(&owner.metadata),
            None => {
                locked(&self.absent).insert(known);
                Owner::Absent
            }
        })
    }

    /// Records an event if the owner is in another namespace than its dependent (C-161).
    fn report_other_namespace(&self, item: &Item, meta: &ObjectMeta, reference: &OwnerReference) {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let Some(owner) = self.find(&reference.uid).and_then(|item| self.get(&item)) else {
            return;
        };
        let theirs = owner.metadata.namespace.as_deref().unwrap_or_default();
        let pair = (meta.uid.clone().unwrap_or_default(), reference.uid.clone());
        if theirs.is_empty() || theirs == namespace || !locked(&self.reported).insert(pair) {
            return;
        }
        let OwnerReference { api_version, kind, name, uid, .. } = reference;
        let message = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace {namespace:?}"
        );
        let Some(dependent) = self.kinds().watched.get(&item.kind).map(|f| f.kind.clone()) else {
            return;
        };
        let on = ObjectReference {
            api_version: Some(dependent.resource.api_version),
            kind: Some(dependent.resource.kind),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        };
        self.recorder.warning(&on, "OwnerRefInvalidNamespace", message);
    }

    fn resource(&self, item: &Item) -> Option<ApiResource> {
        self.kinds().watched.get(&item.kind).map(|watched| watched.kind.resource.clone())
    }

    pub(super) async fn patch(&self, item: &Item, patch: &Value) -> client::Result<()> {
        let Some(kind) = self.resource(item) else { return Ok(()) };
        self.client.patch_partial(&kind, &item.key, patch).await.map(drop)
    }

    pub(super) async fn delete(&self, item: &Item, options: &DeleteOptions) -> client::Result<()> {
        let Some(kind) = self.resource(item) else { return Ok(()) };
        self.client.delete_of::<PartialObject>(&kind, &item.key, options).await.map(drop)
    }
}

fn state_of(owner: &ObjectMeta) -> Owner {
    if is_waiting(owner) { Owner::Waiting } else { Owner::Solid }
}

fn is_watched(kind: &ServedKind) -> bool {
    let needed = ["delete", "list", "watch"].iter().all(|verb| kind.supports(verb));
    let is_event = kind.resource.plural == "events"
        && matches!(kind.resource.group.as_str(), "" | "events.k8s.io");
    kind.preferred && needed && !is_event
}

fn name(kind: &ServedKind) -> Arc<str> {
    format!("{}.{}", kind.resource.plural, kind.resource.group).into()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A set of the most recent entries.
struct Recent<T> {
    all: BTreeSet<T>,
    order: VecDeque<T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { all: BTreeSet::new(), order: VecDeque::new() }
    }
}

impl<T: Clone + Ord> Recent<T> {
    fn contains(&self, what: &T) -> bool {
        self.all.contains(what)
    }

    /// False if it was there already.
    fn insert(&mut self, what: T) -> bool {
        if !self.all.insert(what.clone()) {
            return false;
        }
        self.order.push_back(what);
        if self.order.len() > RECENT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recent_entries_are_kept() {
        let mut some = Recent::default();
        assert!((0..RECENT_MAX).all(|number| some.insert(number)));
        assert!(!some.insert(0), "it is there");
        assert!(some.insert(RECENT_MAX));
        assert!(!some.contains(&0) && some.contains(&1) && some.contains(&RECENT_MAX));
        assert_eq!(some.all.len(), some.order.len());
    }

    /// T-CTRL-44: a wrong reference in one dependent must not affect other dependents of the same owner.
    #[test]
    fn t_ctrl_44_absence_is_cached_per_full_reference() {
        let reference = |kind: &str, name: &str| OwnerReference {
            api_version: "v1".into(),
            kind: kind.into(),
            name: name.into(),
            uid: "u".into(),
            ..OwnerReference::default()
        };
        let mut absent = Recent::default();
        absent.insert(OwnerName::by(&reference("ConfigMap", "wrong"), "a"));
        assert!(absent.contains(&OwnerName::by(&reference("ConfigMap", "wrong"), "a")));
        assert!(!absent.contains(&OwnerName::by(&reference("ConfigMap", "right"), "a")));
        assert!(!absent.contains(&OwnerName::by(&reference("Secret", "wrong"), "a")));
        assert!(!absent.contains(&OwnerName::by(&reference("ConfigMap", "wrong"), "b")));
    }
}
