//! Who owns whom, among all objects of all kinds.
//!
//! Each kind is followed by a cache of outlines with two indexes: by uid, and by the uids of owners.
//! A question about an object is then one look per kind, however many objects there are. Kinds that
//! come and go (custom ones) are noticed every half minute.

use super::verdict::{Owner, blocked_by, concerns_us, is_waiting};
use client::{
    ApiResource, Cache, Client, DeleteOptions, ObjectKey, Outline, Queue, Recorder, ServedKind,
};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

/// How often kinds are discovered, and how long the first list of a new one may take.
const DISCOVER_EVERY: Duration = Duration::from_secs(30);

/// Owners that are remembered to be gone, and wrong references that were spoken of.
const REMEMBERED_MAX: usize = 500;

const BY_UID: &str = "uid";
const BY_OWNER: &str = "owner";
/// As by owner, of those that must go first.
const BLOCKING: &str = "blocking";

/// One object: which kind (`plural.group`), and which of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Item {
    kind: Arc<str>,
    key: ObjectKey,
}

#[derive(Debug, Clone)]
pub(super) struct Dependent {
    pub(super) item: Item,
    pub(super) object: Arc<Outline>,
}

/// How the owners of an object are.
pub(super) enum Owners {
    /// In the order of the references.
    Known(Vec<Owner>),
    /// The reference can never be right, and nothing is done about it.
    NotOurs,
    /// There is an owner of a kind that the server does not have.
    UnknownKind,
}

pub(super) struct Graph {
    client: Client,
    recorder: Recorder,
    queue: Queue<Item>,
    /// Told of every namespace that an object has left.
    left: Queue<String>,
    kinds: RwLock<Kinds>,
    absent: Mutex<Remembered<Named>>,
    /// The uids of those that wait, and whose dependents know.
    told: Mutex<Remembered<String>>,
    /// (uid of the dependent, uid of the owner)
    spoken_of: Mutex<Remembered<(String, String)>>,
}

/// An owner as a reference names it, all of it: one with the right uid and a wrong name says nothing about
/// the owner itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    namespace: String,
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

impl Named {
    fn by(reference: &OwnerReference, namespace: &str) -> Named {
        let OwnerReference { api_version, kind, name, uid, .. } = reference.clone();
        Named { namespace: namespace.to_owned(), api_version, kind, name, uid }
    }
}

#[derive(Default)]
struct Kinds {
    followed: BTreeMap<Arc<str>, Followed>,
    /// What `apiVersion` and `kind` of a reference mean.
    named: BTreeMap<(String, String), ServedKind>,
}

#[derive(Clone)]
struct Followed {
    kind: ServedKind,
    objects: Cache<Outline>,
}

impl Graph {
    /// Returns when every kind that can be listed is known as a whole: before that, an object might
    /// seem to have no dependents.
    pub(super) async fn start(
        client: &Client,
        recorder: Recorder,
        left: Queue<String>,
    ) -> Arc<Graph> {
        let graph = Arc::new(Graph {
            client: client.clone(),
            recorder,
            queue: Queue::new(),
            left,
            kinds: RwLock::default(),
            absent: Mutex::default(),
            told: Mutex::default(),
            spoken_of: Mutex::default(),
        });
        graph.discover(&mut BTreeMap::new()).await;
        graph
    }

    pub(super) fn queue(&self) -> &Queue<Item> {
        &self.queue
    }

    /// Follows kinds as they come and go. Does not return.
    pub(super) async fn keep_up(self: &Arc<Self>) {
        let mut coming = BTreeMap::new();
        loop {
            tokio::time::sleep(DISCOVER_EVERY).await;
            self.discover(&mut coming).await;
        }
    }

    /// `coming` are kinds whose first list is not in yet.
    async fn discover(self: &Arc<Self>, coming: &mut BTreeMap<Arc<str>, Followed>) {
        let discovery = match self.client.discover().await {
            Ok(discovery) => discovery,
            Err(error) => {
                tracing::warn!(%error, "the garbage collector keeps the kinds it knows");
                return;
            }
        };
        let wanted: BTreeMap<Arc<str>, &ServedKind> =
            discovery.kinds.iter().filter(|kind| is_followed(kind)).map(|k| (name(k), k)).collect();
        coming.retain(|name, _| wanted.contains_key(name));
        for (name, kind) in &wanted {
            let same = |followed: &Followed| followed.kind.resource == kind.resource;
            if !self.kinds().followed.get(name).is_some_and(same) {
                coming.entry(name.clone()).or_insert_with(|| self.follow(kind));
            }
        }
        let synced = futures::future::join_all(coming.values().map(|kind| kind.objects.synced()));
        let _ = tokio::time::timeout(DISCOVER_EVERY, synced).await;
        let ready: Vec<Arc<str>> = coming
            .iter()
            .filter(|(_, kind)| kind.objects.is_synced())
            .map(|k| k.0.clone())
            .collect();
        let ready: BTreeMap<Arc<str>, Followed> =
            ready.into_iter().filter_map(|name| coming.remove_entry(&name)).collect();
        self.install(ready.clone(), |name| wanted.contains_key(name), &discovery.kinds);
        // Not under the lock: what feeds the queue reads the kinds.
        for (name, followed) in ready {
            self.feed(name, &followed.objects);
        }
    }

    fn install(
        &self,
        ready: BTreeMap<Arc<str>, Followed>,
        is_wanted: impl Fn(&Arc<str>) -> bool,
        all: &[ServedKind],
    ) {
        let mut kinds = self.kinds.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        kinds.followed.retain(|name, _| is_wanted(name));
        kinds.followed.extend(ready);
        kinds.named = all
            .iter()
            .map(|kind| {
                ((kind.resource.api_version.clone(), kind.resource.kind.clone()), kind.clone())
            })
            .collect();
    }

    fn follow(&self, kind: &ServedKind) -> Followed {
        let objects = Cache::<Outline>::builder_of(&self.client, kind.resource.clone())
            .metadata_only()
            .index(BY_UID, |object| object.metadata.uid.iter().cloned().collect())
            .index(BY_OWNER, |object| {
                let owners = object.metadata.owner_references.iter().flatten();
                owners.map(|owner| owner.uid.clone()).collect()
            })
            .index(BLOCKING, |object| blocked_by(&object.metadata).cloned().collect())
            .start();
        Followed { kind: kind.clone(), objects }
    }

    /// An object is looked at when its life or its owners change, when an owner of it goes, and when something it owns
    /// goes or lets go of it.
    fn feed(self: &Arc<Self>, kind: Arc<str>, objects: &Cache<Outline>) {
        let graph: Weak<Graph> = Arc::downgrade(self);
        objects.feed_changes(&self.queue, move |before, after| {
            let Some(graph) = graph.upgrade() else { return Vec::new() };
            let mut items = Vec::new();
            let same = |(before, after): (&Outline, &Outline)| {
                !concerns_us(&before.metadata, &after.metadata)
            };
            if before.zip(after).is_some_and(same) {
                return Vec::new();
            }
            if let Some(after) = after {
                items.push(Item { kind: kind.clone(), key: ObjectKey::of(after) });
            }
            let uid = |object: &Outline| object.metadata.uid.clone();
            if let Some(before) = before {
                if after.is_none()
                    && let Some(namespace) = &before.metadata.namespace
                {
                    graph.left.add(namespace.clone());
                }
                if after.map(uid) != Some(uid(before)) {
                    let dependents = graph.dependents(&before.metadata);
                    items.extend(dependents.into_iter().map(|dependent| dependent.item));
                }
                let owners = |object: &Outline| object.metadata.owner_references.clone();
                if after.is_none_or(|after| owners(after) != owners(before)) {
                    items.extend(graph.owners_there(&before.metadata));
                }
            }
            items
        });
    }

    fn kinds(&self) -> RwLockReadGuard<'_, Kinds> {
        self.kinds.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn get(&self, item: &Item) -> Option<Arc<Outline>> {
        self.kinds().followed.get(&item.kind)?.objects.get(&item.key)
    }

    pub(super) fn dependents(&self, owner: &ObjectMeta) -> Vec<Dependent> {
        let uid = owner.uid.as_deref().unwrap_or_default();
        let of_kind = |(kind, followed): (&Arc<str>, &Followed)| {
            let objects = followed.objects.by_index(BY_OWNER, uid);
            let item =
                |object: &Arc<Outline>| Item { kind: kind.clone(), key: super::key_of(object) };
            objects.into_iter().map(|object| Dependent { item: item(&object), object }).collect()
        };
        self.kinds()
            .followed
            .iter()
            .flat_map(|entry| -> Vec<Dependent> { of_kind(entry) })
            .collect()
    }

    /// Whether something else must go before this may. Costs one look per kind, however much it owns.
    pub(super) fn is_blocked(&self, owner: &ObjectMeta) -> bool {
        let uid = owner.uid.as_deref().unwrap_or_default();
        self.kinds().followed.values().any(|kind| kind.objects.count(BLOCKING, uid) > 0)
    }

    /// True the first time that this very object is waited with.
    pub(super) fn tell_once(&self, owner: &ObjectMeta) -> bool {
        locked(&self.told).insert(owner.uid.clone().unwrap_or_default())
    }

    /// Those of its owners that are followed and have not gone.
    fn owners_there(&self, meta: &ObjectMeta) -> Vec<Item> {
        let owners = meta.owner_references.iter().flatten();
        owners
            .filter_map(|owner| self.named(meta, owner).or_else(|| self.find(&owner.uid)))
            .collect()
    }

    /// The owner, if it is where the reference says.
    fn named(&self, meta: &ObjectMeta, reference: &OwnerReference) -> Option<Item> {
        let named = (reference.api_version.clone(), reference.kind.clone());
        let kind = self.kinds().named.get(&named).cloned()?;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::new(if kind.namespaced { namespace } else { "" }, &reference.name);
        self.seen(&kind, &key, &reference.uid).map(|_| Item { kind: name(&kind), key })
    }

    fn find(&self, uid: &str) -> Option<Item> {
        self.kinds().followed.iter().find_map(|(kind, followed)| {
            let object = followed.objects.by_index(BY_UID, uid).pop()?;
            Some(Item { kind: kind.clone(), key: super::key_of(&object) })
        })
    }

    /// How the owners of `meta` are. Asks the server about those that are not where they should be.
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
            if let Some(owner) = self.seen(&kind, &key, &reference.uid) {
                states.push(state_of(&owner.metadata));
                continue;
            }
            self.speak_of_strays(item, meta, reference);
            if kind.namespaced && namespace.is_empty() {
                return Ok(Owners::NotOurs);
            }
            states.push(self.ask(&kind.resource, &key, reference, place).await?);
        }
        Ok(Owners::Known(states))
    }

    fn seen(&self, kind: &ServedKind, key: &ObjectKey, uid: &str) -> Option<Arc<Outline>> {
        let object = self.kinds().followed.get(&name(kind))?.objects.get(key)?;
        (object.metadata.uid.as_deref() == Some(uid)).then_some(object)
    }

    async fn ask(
        &self,
        kind: &ApiResource,
        key: &ObjectKey,
        reference: &OwnerReference,
        place: &str,
    ) -> client::Result<Owner> {
        let known = Named::by(reference, place);
        if locked(&self.absent).contains(&known) {
            return Ok(Owner::Absent);
        }
        let owner = self.client.outline(kind, key).await?;
        let owner = owner.filter(|owner| owner.metadata.uid.as_ref() == Some(&reference.uid));
        Ok(match owner {
            Some(owner) => state_of(&owner.metadata),
            None => {
                locked(&self.absent).insert(known);
                Owner::Absent
            }
        })
    }

    /// C-161: an owner must live where its dependents live.
    fn speak_of_strays(&self, item: &Item, meta: &ObjectMeta, reference: &OwnerReference) {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let Some(owner) = self.find(&reference.uid).and_then(|item| self.get(&item)) else {
            return;
        };
        let theirs = owner.metadata.namespace.as_deref().unwrap_or_default();
        let pair = (meta.uid.clone().unwrap_or_default(), reference.uid.clone());
        if theirs.is_empty() || theirs == namespace || !locked(&self.spoken_of).insert(pair) {
            return;
        }
        let OwnerReference { api_version, kind, name, uid, .. } = reference;
        let message = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace {namespace:?}"
        );
        let Some(dependent) = self.kinds().followed.get(&item.kind).map(|f| f.kind.clone()) else {
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
        self.kinds().followed.get(&item.kind).map(|followed| followed.kind.resource.clone())
    }

    pub(super) async fn patch(&self, item: &Item, patch: &Value) -> client::Result<()> {
        let Some(kind) = self.resource(item) else { return Ok(()) };
        self.client.patch_outline(&kind, &item.key, patch).await.map(drop)
    }

    pub(super) async fn delete(&self, item: &Item, options: &DeleteOptions) -> client::Result<()> {
        let Some(kind) = self.resource(item) else { return Ok(()) };
        self.client.delete_of::<Outline>(&kind, &item.key, options).await.map(drop)
    }
}

fn state_of(owner: &ObjectMeta) -> Owner {
    if is_waiting(owner) { Owner::Waiting } else { Owner::Solid }
}

fn is_followed(kind: &ServedKind) -> bool {
    let needed = ["delete", "list", "watch"].iter().all(|verb| kind.can(verb));
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

/// The last few of something.
struct Remembered<T> {
    all: BTreeSet<T>,
    order: VecDeque<T>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Remembered { all: BTreeSet::new(), order: VecDeque::new() }
    }
}

impl<T: Clone + Ord> Remembered<T> {
    fn contains(&self, what: &T) -> bool {
        self.all.contains(what)
    }

    /// False if it was there.
    fn insert(&mut self, what: T) -> bool {
        if !self.all.insert(what.clone()) {
            return false;
        }
        self.order.push_back(what);
        if self.order.len() > REMEMBERED_MAX
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
    fn only_the_last_few_are_remembered() {
        let mut some = Remembered::default();
        assert!((0..REMEMBERED_MAX).all(|number| some.insert(number)));
        assert!(!some.insert(0), "it is there");
        assert!(some.insert(REMEMBERED_MAX));
        assert!(!some.contains(&0) && some.contains(&1) && some.contains(&REMEMBERED_MAX));
        assert_eq!(some.all.len(), some.order.len());
    }

    /// T-CTRL-44: a child that spells its owner wrongly must not cost the others theirs.
    #[test]
    fn t_ctrl_44_an_owner_is_absent_only_as_it_was_named() {
        let reference = |kind: &str, name: &str| OwnerReference {
            api_version: "v1".into(),
            kind: kind.into(),
            name: name.into(),
            uid: "u".into(),
            ..OwnerReference::default()
        };
        let mut absent = Remembered::default();
        absent.insert(Named::by(&reference("ConfigMap", "wrong"), "a"));
        assert!(absent.contains(&Named::by(&reference("ConfigMap", "wrong"), "a")));
        assert!(!absent.contains(&Named::by(&reference("ConfigMap", "right"), "a")));
        assert!(!absent.contains(&Named::by(&reference("Secret", "wrong"), "a")));
        assert!(!absent.contains(&Named::by(&reference("ConfigMap", "wrong"), "b")));
    }
}
