//! What the kernel has for one Service address, and the elements that turn it into something else.

use super::affinity::identifiers;
use super::layout::{Layout, Pick, Scope, ScopeMaps};
use super::slots::reassign;
use super::stored::{EndpointList, StoredEntry};
use super::{Frontend, Unserved};
use crate::Cidr;
use crate::nft::{Batch, Element, Key, Set, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// The state of one Service address in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Installed {
    pub(super) any: Choice,
    pub(super) outside: Choice,
    pub(super) external_local: bool,
    pub(super) masquerade: bool,
    pub(super) unserved: Unserved,
    pub(super) sources: Option<Arc<[Cidr]>>,
}

/// The endpoints of one scope, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) endpoints: EndpointList,
    /// Seconds for which a client is remembered.
    pub(super) affinity: Option<u32>,
}

impl Choice {
    pub(super) fn pick(&self) -> Option<Pick> {
        let count = self.endpoints.len() as u32;
        (count > 0).then_some(Pick { count, affinity: self.affinity })
    }
}

impl Installed {
    pub(super) fn choice(&self, scope: Scope) -> &Choice {
        match scope {
            Scope::Any => &self.any,
            Scope::Outside => &self.outside,
        }
    }

    /// What `entry` looks like in the kernel, with as few changes from `before` as possible.
    pub(super) fn of(frontend: &Frontend, entry: &StoredEntry, before: &Installed) -> Installed {
        let choice = |scope, wanted: &EndpointList| {
            let before: Vec<SocketAddr> = before.choice(scope).endpoints.iter().collect();
            let used: Vec<SocketAddr> = wanted.iter().take(Pick::COUNT_MAX).collect();
            let numbered = reassign(&before, &used);
            let endpoints = EndpointList::new(frontend.address.is_ipv4(), &numbered);
            let affinity = entry.affinity_seconds.filter(|_| !endpoints.is_empty());
            Choice { endpoints, affinity }
        };
        let outside = entry.outside.as_ref();
        Installed {
            any: choice(Scope::Any, &entry.endpoints),
            outside: outside.map(|list| choice(Scope::Outside, list)).unwrap_or_default(),
            external_local: outside.is_some(),
            masquerade: entry.masquerade,
            unserved: entry.unserved,
            sources: entry.sources.clone(),
        }
    }
}

/// Elements to delete and to add, for one IP family. All deletions come first.
#[derive(Default)]
pub(super) struct Elements<'a> {
    deleted: BTreeMap<&'a str, (&'a Set, Vec<Element>)>,
    added: BTreeMap<&'a str, (&'a Set, Vec<Element>)>,
}

impl<'a> Elements<'a> {
    pub(super) fn add(&mut self, set: &'a Set, element: Element) {
        self.added.entry(&set.name).or_insert_with(|| (set, Vec::new())).1.push(element);
    }

    pub(super) fn delete(&mut self, set: &'a Set, key: Key) {
        let element = Element::key(key);
        self.deleted.entry(&set.name).or_insert_with(|| (set, Vec::new())).1.push(element);
    }

    /// Replaces the value of `key`. `None`: there is no element.
    fn replace(&mut self, set: &'a Set, key: &Key, before: Option<Key>, after: Option<Key>) {
        if before == after {
            return;
        }
        if before.is_some() {
            self.delete(set, key.clone());
        }
        if let Some(value) = after {
            self.add(set, Element::value(key.clone(), value));
        }
    }

    fn member(&mut self, set: &'a Set, key: &Key, before: bool, after: bool) {
        match (before, after) {
            (true, false) => self.delete(set, key.clone()),
            (false, true) => self.add(set, Element::key(key.clone())),
            (true, true) | (false, false) => {}
        }
    }

    pub(super) fn count(&self) -> usize {
        self.deleted.values().chain(self.added.values()).map(|(_, elements)| elements.len()).sum()
    }

    pub(super) fn write(&self, batch: &mut Batch, layout: &Layout) {
        for (set, elements) in self.deleted.values() {
            batch.delete_elements(&layout.table, set, elements);
        }
        for (set, elements) in self.added.values() {
            batch.add_elements(&layout.table, set, elements);
        }
    }
}

/// Numbered endpoints that no rule selects any more. They are deleted in a later transaction: a packet that is
/// being processed when the rules change may have drawn the number just before.
pub(super) type Stale = BTreeMap<(Scope, Frontend, u32), SocketAddr>;

/// The elements that turn `before` into `after`. `stale` has the stale numbers of earlier transactions, and those of
/// this one.
pub(super) fn transition<'a>(
    layout: &'a Layout,
    elements: &mut Elements<'a>,
    mut stale: (&mut Stale, &mut Stale),
    frontend: &Frontend,
    before: &Installed,
    after: &Installed,
) {
    let key = frontend.key();
    for scope in Scope::ALL {
        let (old, new) = (before.choice(scope), after.choice(scope));
        let maps = layout.maps(scope);
        let code = |choice: &Choice| choice.pick().map(|pick| Key::new().number(pick.code()));
        elements.replace(&maps.services, &key, code(old), code(new));
        let (left, gone) = &mut stale;
        numbered(&maps.endpoints, elements, (left, gone), (scope, *frontend), (old, new));
        sticky(maps, elements, frontend, (old, new));
    }
    elements.member(&layout.masquerade, &key, before.masquerade, after.masquerade);
    elements.member(&layout.external_local, &key, before.external_local, after.external_local);
    let is = |state: &Installed, verdict| state.unserved == verdict;
    let (reject, drop) = (Unserved::Reject, Unserved::Drop);
    elements.member(&layout.rejected, &key, is(before, reject), is(after, reject));
    elements.member(&layout.dropped, &key, is(before, drop), is(after, drop));
    if before.sources == after.sources {
        return;
    }
    if before.sources.is_some() {
        elements.delete(&layout.firewall, key.clone());
    }
    if after.sources.is_some() {
        let verdict = Verdict::Goto(firewall_chain(frontend));
        elements.add(&layout.firewall, Element::verdict(key, verdict));
    }
}

/// `left` has the stale numbers of earlier transactions; new ones are added to `gone`.
fn numbered<'a>(
    map: &'a Set,
    elements: &mut Elements<'a>,
    (left, gone): (&mut Stale, &mut Stale),
    (scope, frontend): (Scope, Frontend),
    (old, new): (&Choice, &Choice),
) {
    let count = old.endpoints.len().max(new.endpoints.len()) as u32;
    for number in 0..count {
        let key = || frontend.key().number(number);
        let before = old.endpoints.get(number as usize);
        let after = new.endpoints.get(number as usize);
        match (before, after) {
            (before, Some(after)) if before != Some(after) => {
                let is_left = left.remove(&(scope, frontend, number)).is_some();
                if before.is_some() || is_left {
                    elements.delete(map, key());
                }
                let value = Key::new().address(after.ip()).port(after.port());
                elements.add(map, Element::value(key(), value));
            }
            (Some(before), None) => {
                gone.insert((scope, frontend, number), before);
            }
            (Some(_), Some(_)) | (None, _) => {}
        }
    }
}

/// What session affinity needs to know of the endpoints.
fn sticky<'a>(
    maps: &'a ScopeMaps,
    elements: &mut Elements<'a>,
    frontend: &Frontend,
    (old, new): (&Choice, &Choice),
) {
    if old.affinity.is_none() && new.affinity.is_none() {
        return;
    }
    let ids = |choice: &Choice| match choice.affinity {
        Some(_) => identifiers(&choice.endpoints),
        None => BTreeMap::new(),
    };
    let (old_ids, new_ids) = (ids(old), ids(new));
    let key = |number: u32| frontend.key().number(number);
    let number = |id: &u32| Key::new().number(*id);
    for position in 0..old.endpoints.len().max(new.endpoints.len()) {
        let id = |choice: &Choice, ids: &BTreeMap<SocketAddr, u32>| {
            choice.endpoints.get(position).and_then(|endpoint| ids.get(&endpoint).map(number))
        };
        let (before, after) = (id(old, &old_ids), id(new, &new_ids));
        elements.replace(&maps.sticky_numbers, &key(position as u32), before, after);
    }
    let by_id = |ids: &BTreeMap<SocketAddr, u32>| -> BTreeMap<u32, SocketAddr> {
        ids.iter().map(|(endpoint, id)| (*id, *endpoint)).collect()
    };
    let (old, new) = (by_id(&old_ids), by_id(&new_ids));
    let all: BTreeSet<u32> = old.keys().chain(new.keys()).copied().collect();
    for id in all {
        let (before, after) = (old.get(&id), new.get(&id));
        elements.member(&maps.sticky_ids, &key(id), before.is_some(), after.is_some());
        let value = |endpoint: &SocketAddr| Key::new().address(endpoint.ip()).port(endpoint.port());
        let (before, after) = (before.map(value), after.map(value));
        elements.replace(&maps.sticky_endpoints, &key(id), before, after);
    }
}

/// The chain with the source ranges of this address.
pub(super) fn firewall_chain(frontend: &Frontend) -> String {
    let Frontend { address, protocol, port } = frontend;
    format!("firewall-{address}-{}-{port}", protocol.name())
}
