//! Which pods exist, and which addresses they have.
//!
//! The addresses of pods on other nodes come from their status. Those of local pods come from the agent, which
//! announces each attachment and each release. The status of local pods counts at the start, for pods that an earlier
//! process attached, and as long as the agent has not announced them. A local pod stays until its address is released,
//! even if its object is deleted before (NET-134).

use super::pod::{Instance, PodFacts};
use client::ObjectKey;
use network::policies::PodLinks;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// Pods whose network was released and whose object may still list the address.
const RELEASED_MAX: usize = 10_000;

pub(super) struct Presence {
    node_name: String,
    links: PodLinks,
    /// The pods of the API by UID, and the UID by key.
    api: BTreeMap<String, PodFacts>,
    uids: BTreeMap<ObjectKey, String>,
    /// Pods of the API on this node.
    local: BTreeSet<String>,
    attached: BTreeMap<String, AttachedPod>,
    /// Who has an address that the agent announced.
    owners: BTreeMap<IpAddr, String>,
    released: VecDeque<String>,
}

struct AttachedPod {
    /// The last known facts, for a pod whose object is gone.
    facts: PodFacts,
    addresses: Vec<IpAddr>,
}

impl Presence {
    pub(super) fn new(node_name: &str, links: PodLinks) -> Presence {
        Presence {
            node_name: node_name.to_owned(),
            links,
            api: BTreeMap::new(),
            uids: BTreeMap::new(),
            local: BTreeSet::new(),
            attached: BTreeMap::new(),
            owners: BTreeMap::new(),
            released: VecDeque::new(),
        }
    }

    /// All changes return the UIDs of the pods that may have changed.
    pub(super) fn object_changed(&mut self, key: &ObjectKey, pod: Option<PodFacts>) -> Vec<String> {
        let mut changed = Vec::new();
        let before = self.uids.remove(key);
        if let Some(uid) = before.filter(|uid| pod.as_ref().is_none_or(|pod| pod.uid != *uid)) {
            self.api.remove(&uid);
            self.local.remove(&uid);
            self.released.retain(|released| *released != uid);
            changed.push(uid);
        }
        if let Some(pod) = pod {
            if let Some(attached) = self.attached.get_mut(&pod.uid) {
                attached.facts = pod.clone();
            }
            if pod.node == self.node_name {
                self.local.insert(pod.uid.clone());
            }
            changed.push(pod.uid.clone());
            self.uids.insert(key.clone(), pod.uid.clone());
            self.api.insert(pod.uid.clone(), pod);
        }
        changed
    }

    /// Whether neither the agent nor the API has connected the pod with the address before.
    pub(super) fn is_new(&self, uid: &str, address: &IpAddr) -> bool {
        let attached = self.attached.get(uid).map(|attached| &attached.addresses);
        let listed = self.api.get(uid).map(|pod| &pod.addresses);
        ![attached, listed].into_iter().flatten().any(|addresses| addresses.contains(address))
    }

    pub(super) fn attached(&mut self, pod: PodFacts, addresses: &[IpAddr]) -> Vec<String> {
        let uid = pod.uid.clone();
        self.released.retain(|released| *released != uid);
        let mut changed = BTreeSet::from([uid.clone()]);
        self.disown(&uid);
        for address in addresses {
            changed.extend(self.owners.insert(*address, uid.clone()));
            // Objects of local pods that list the address are out of date.
            let lists = |uid: &&String| {
                self.api.get(*uid).is_some_and(|pod| pod.addresses.contains(address))
            };
            changed.extend(self.local.iter().filter(lists).cloned());
        }
        let addresses = addresses.to_vec();
        self.attached.insert(uid, AttachedPod { facts: pod, addresses });
        changed.into_iter().collect()
    }

    /// Takes over the local pods of an earlier process, as if the agent had announced them. If one of them is gone
    /// already, its address counts until the agent announces the next pod that has it.
    pub(super) fn adopt(&mut self) -> Vec<String> {
        let mut changed = Vec::new();
        for uid in self.local.clone() {
            let Some(pod) = self.api.get(&uid).cloned() else { continue };
            let free = |address: &&IpAddr| !self.owners.contains_key(address);
            let addresses: Vec<IpAddr> = pod.addresses.iter().filter(free).copied().collect();
            let is_known = self.attached.contains_key(&uid) || self.is_released(&uid);
            if !(is_known || pod.terminal || pod.host_network || addresses.is_empty()) {
                changed.extend(self.attached(pod, &addresses));
            }
        }
        changed
    }

    pub(super) fn detached(&mut self, uid: &str) -> Vec<String> {
        self.disown(uid);
        self.attached.remove(uid);
        self.released.retain(|released| released != uid);
        self.released.push_back(uid.to_owned());
        if self.released.len() > RELEASED_MAX {
            self.released.pop_front();
        }
        vec![uid.to_owned()]
    }

    fn is_released(&self, uid: &str) -> bool {
        self.released.iter().any(|released| released == uid)
    }

    fn disown(&mut self, uid: &str) {
        self.owners.retain(|_, owner| owner != uid);
    }

    /// The pod as policies see it. `None` if it has no address or is not subject to policies: pods in the network of
    /// their node are neither subject nor peer (NET-132).
    pub(super) fn instance(&self, uid: &str) -> Option<Instance> {
        let attached = self.attached.get(uid);
        let facts = self.api.get(uid).or(attached.map(|attached| &attached.facts))?;
        let is_local = attached.is_some() || facts.node == self.node_name;
        let addresses: Vec<IpAddr> = match attached {
            Some(attached) => {
                let own = |a: &&IpAddr| self.owners.get(a).is_some_and(|owner| owner == uid);
                attached.addresses.iter().filter(own).copied().collect()
            }
            None if facts.terminal => return None,
            None if is_local && self.released.iter().any(|released| released == uid) => {
                return None;
            }
            None if is_local => {
                let free = |a: &&IpAddr| !self.owners.contains_key(a);
                facts.addresses.iter().filter(free).copied().collect()
            }
            None => facts.addresses.clone(),
        };
        let first = *addresses.first()?;
        (!facts.host_network).then(|| Instance {
            namespace: facts.namespace.clone(),
            labels: facts.labels.clone(),
            ports: facts.ports.clone(),
            addresses,
            is_peer: !facts.terminal,
            link: if is_local { self.links.of(first) } else { None },
        })
    }
}
