//! The sets of peers, ports and ranges that rules refer to. Rules with equal selectors share a set.
//!
//! A pod is compared only with the sets whose namespaces include its own, and only the sets whose members change are
//! written.

use super::compile::SetKey;
use super::contents::Contents;
use super::pod::Instance;
use super::selector::{Labels, Scope};
use network::policies::{Member, SetKind};
use std::collections::{BTreeMap, BTreeSet};

/// All pods, by namespace.
#[derive(Default)]
pub(super) struct Population {
    pub(super) instances: BTreeMap<String, Instance>,
    by_namespace: BTreeMap<String, BTreeSet<String>>,
    /// Labels of the namespaces that exist.
    namespaces: BTreeMap<String, Labels>,
}

impl Population {
    pub(super) fn put(&mut self, uid: &str, instance: Option<Instance>) -> Option<Instance> {
        let before = match &instance {
            Some(new) => {
                let members = self.by_namespace.entry(new.namespace.clone()).or_default();
                members.insert(uid.to_owned());
                self.instances.insert(uid.to_owned(), new.clone())
            }
            None => self.instances.remove(uid),
        };
        if let (Some(before), None) = (&before, &instance)
            && let Some(members) = self.by_namespace.get_mut(&before.namespace)
        {
            members.remove(uid);
            if members.is_empty() {
                self.by_namespace.remove(&before.namespace);
            }
        }
        before
    }

    pub(super) fn in_namespace(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&String, &Instance)> {
        let uids = self.by_namespace.get(namespace).into_iter().flatten();
        uids.filter_map(|uid| self.instances.get_key_value(uid))
    }

    /// A namespace that this node does not know yet matches no selector: its labels might forbid it.
    fn matches(&self, scope: &Scope, namespace: &str) -> bool {
        match scope {
            Scope::One(name) => name == namespace,
            Scope::Matching(selector) => {
                self.namespaces.get(namespace).is_some_and(|labels| selector.matches(labels))
            }
        }
    }
}

#[derive(Default)]
pub(super) struct SharedSets {
    sets: BTreeMap<SetId, SharedSet>,
    ids: BTreeMap<SetKey, SetId>,
    /// Sets of pods by each namespace whose pods they may contain.
    in_scope: BTreeMap<String, BTreeSet<SetId>>,
    last_id: SetId,
}

type SetId = u64;

struct SharedSet {
    key: SetKey,
    name: String,
    /// Rules that refer to it.
    users: usize,
    /// How many pods contribute a member: two can list the same address for a moment.
    counts: BTreeMap<Member, usize>,
}

impl SharedSets {
    /// Returns the name of the set, which exists until it was released as often as acquired.
    pub(super) fn acquire(&mut self, key: &SetKey, pods: &Population, to: &mut Contents) -> String {
        let known = self.ids.get(key).and_then(|id| self.sets.get_mut(id));
        if let Some(set) = known {
            set.users += 1;
            return set.name.clone();
        }
        self.last_id += 1;
        let id = self.last_id;
        let (prefix, kind) = match key {
            SetKey::Pods(_) => ("pods", SetKind::Addresses),
            SetKey::NamedPort(..) => ("named-ports", SetKind::NamedPorts),
            SetKey::AddressRanges(_) => ("blocks", SetKind::AddressRanges),
            SetKey::PortRanges(_) => ("ports", SetKind::PortRanges),
        };
        let name = format!("{prefix}-{id}");
        let (key, counts) = (key.clone(), BTreeMap::new());
        self.ids.insert(key.clone(), id);
        to.add_set(&name, kind);
        let set = SharedSet { key: key.clone(), name: name.clone(), users: 1, counts };
        self.sets.insert(id, set);
        self.fill(id, &key, pods, to);
        name
    }

    fn fill(&mut self, id: SetId, key: &SetKey, pods: &Population, to: &mut Contents) {
        match key {
            SetKey::Pods(peers) => {
                let names: Vec<&String> = match &peers.scope {
                    Scope::One(namespace) => vec![namespace],
                    scope @ Scope::Matching(_) => {
                        let all = pods.namespaces.keys();
                        all.filter(|namespace| pods.matches(scope, namespace)).collect()
                    }
                };
                for namespace in names {
                    self.in_scope.entry(namespace.clone()).or_default().insert(id);
                    for (_, instance) in pods.in_namespace(namespace) {
                        self.count(id, instance, true, to);
                    }
                }
            }
            SetKey::NamedPort(..) => {
                for instance in pods.instances.values() {
                    self.count(id, instance, true, to);
                }
            }
            SetKey::AddressRanges(_) | SetKey::PortRanges(_) => {
                let Some(set) = self.sets.get(&id) else { return };
                for member in ranges(key) {
                    to.add_member(&set.name, member);
                }
            }
        }
    }

    pub(super) fn release(&mut self, key: &SetKey, to: &mut Contents) {
        let Some(id) = self.ids.get(key).copied() else { return };
        let Some(set) = self.sets.get_mut(&id) else { return };
        set.users -= 1;
        if set.users > 0 {
            return;
        }
        to.remove_set(&set.name);
        self.sets.remove(&id);
        self.ids.remove(key);
        self.in_scope.retain(|_, sets| {
            sets.remove(&id);
            !sets.is_empty()
        });
    }

    pub(super) fn pod_changed(
        &mut self,
        before: Option<&Instance>,
        after: Option<&Instance>,
        to: &mut Contents,
    ) {
        let mut affected = BTreeSet::new();
        for instance in [before, after].into_iter().flatten() {
            let in_scope = self.in_scope.get(&instance.namespace);
            affected.extend(in_scope.into_iter().flatten().copied());
            for (name, protocol, _) in &instance.ports {
                affected.extend(self.ids.get(&SetKey::NamedPort(*protocol, name.clone())));
            }
        }
        for id in affected {
            // Add first, so that members which stay are never removed.
            if let Some(after) = after {
                self.count(id, after, true, to);
            }
            if let Some(before) = before {
                self.count(id, before, false, to);
            }
        }
    }

    /// `labels` is `None` if the namespace is gone.
    pub(super) fn namespace_changed(
        &mut self,
        name: &str,
        labels: Option<Labels>,
        pods: &mut Population,
        to: &mut Contents,
    ) {
        if pods.namespaces.get(name) == labels.as_ref() {
            return;
        }
        match labels {
            Some(labels) => drop(pods.namespaces.insert(name.to_owned(), labels)),
            None => drop(pods.namespaces.remove(name)),
        }
        let mut sets = self.in_scope.remove(name).unwrap_or_default();
        let changed = self.sets.iter().filter(|(id, set)| match &set.key {
            SetKey::Pods(peers) => sets.contains(id) != pods.matches(&peers.scope, name),
            SetKey::NamedPort(..) | SetKey::AddressRanges(_) | SetKey::PortRanges(_) => false,
        });
        for id in changed.map(|(id, _)| *id).collect::<Vec<SetId>>() {
            let now = sets.insert(id);
            if !now {
                sets.remove(&id);
            }
            for (_, instance) in pods.in_namespace(name) {
                self.count(id, instance, now, to);
            }
        }
        if !sets.is_empty() {
            self.in_scope.insert(name.to_owned(), sets);
        }
    }

    /// Adds or removes what the pod contributes to the set.
    fn count(&mut self, id: SetId, instance: &Instance, add: bool, to: &mut Contents) {
        let Some(set) = self.sets.get_mut(&id) else { return };
        for member in contribution(&set.key, instance) {
            let count = set.counts.entry(member).or_insert(0);
            if add {
                *count += 1;
                if *count == 1 {
                    to.add_member(&set.name, member);
                }
            } else {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    set.counts.remove(&member);
                    to.remove_member(&set.name, member);
                }
            }
        }
    }
}

/// The members of a set of ranges.
fn ranges(key: &SetKey) -> Vec<Member> {
    match key {
        SetKey::AddressRanges(ranges) => {
            ranges.iter().map(|(from, to)| Member::AddressRange(*from, *to)).collect()
        }
        SetKey::PortRanges(ranges) => {
            ranges.iter().map(|(from, to)| Member::PortRange(*from, *to)).collect()
        }
        SetKey::Pods(_) | SetKey::NamedPort(..) => Vec::new(),
    }
}

/// The members of the set that come from this pod, given that its namespace is in scope.
fn contribution(key: &SetKey, instance: &Instance) -> Vec<Member> {
    if !instance.is_peer {
        return Vec::new();
    }
    match key {
        SetKey::Pods(peers) if peers.pods.matches(&instance.labels) => {
            instance.addresses.iter().map(|address| Member::Address(*address)).collect()
        }
        SetKey::NamedPort(protocol, name) => {
            let ports = instance.ports.iter();
            let ports = ports.filter(|(n, p, _)| n == name && p == protocol);
            let pairs = ports.flat_map(|(_, _, port)| {
                instance.addresses.iter().map(|address| Member::NamedPort(*address, *port))
            });
            pairs.collect::<BTreeSet<Member>>().into_iter().collect()
        }
        SetKey::Pods(_) | SetKey::AddressRanges(_) | SetKey::PortRanges(_) => Vec::new(),
    }
}
