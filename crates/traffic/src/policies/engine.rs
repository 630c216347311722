//! Keeps the wanted contents of the policy tables up to date, one changed object at a time. Pure.
//!
//!     Pods, attachments ──▶ presence ──▶ population ──┬─▶ shared sets ──┐
//!     Namespaces ─────────────────────────────────────┘                 ├─▶ contents ──▶ changes
//!     NetworkPolicies ──▶ compile ──▶ chains of policies and of pods ───┘
//!
//! Only policies that select a pod of this node have chains and sets (NET-136).

use super::compile::{AllowRule, AllowedPorts, CompiledPolicy, SetKey};
use super::contents::{Contents, PolicyChain};
use super::pod::{Instance, PodFacts};
use super::presence::Presence;
use super::selector::Labels;
use super::sets::{Population, SharedSets};
use client::ObjectKey;
use network::policies::{Change, Direction, Peers, PodLinks, PolicyRule, Ports, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Further policies that select a pod isolate it, but their rules allow nothing. One namespace must not make the
/// tables too large for the others.
const POLICIES_PER_POD_MAX: usize = 1000;

/// Packet rules per direction of a policy. What further rules allow stays forbidden.
const RULES_PER_POLICY_MAX: usize = 1000;

pub(super) struct Engine {
    presence: Presence,
    population: Population,
    sets: SharedSets,
    policies: BTreeMap<ObjectKey, Policy>,
    /// Pods of this node that policies can select, by link. One, except while objects are out of date.
    links: BTreeMap<String, BTreeSet<String>>,
    /// Links whose pods have to be compared with the policies before the next commit.
    stale_links: BTreeSet<String>,
    contents: Contents,
    last_number: u64,
}

struct Policy {
    /// Part of the names of its chains.
    number: u64,
    compiled: CompiledPolicy,
    /// Pods of this node.
    selected: BTreeSet<String>,
    chains: BTreeSet<String>,
    sets: Vec<SetKey>,
}

impl Engine {
    pub(super) fn new(node_name: &str, links: PodLinks) -> Engine {
        Engine {
            presence: Presence::new(node_name, links),
            population: Population::default(),
            sets: SharedSets::default(),
            policies: BTreeMap::new(),
            links: BTreeMap::new(),
            stale_links: BTreeSet::new(),
            contents: Contents::default(),
            last_number: 0,
        }
    }

    /// Adds a peer that is not an object of the API and never changes.
    pub(super) fn add_server(&mut self, name: &str, server: Instance) {
        self.set_instance(name, Some(server));
    }

    pub(super) fn pod_changed(&mut self, key: &ObjectKey, pod: Option<PodFacts>) {
        let changed = self.presence.object_changed(key, pod);
        self.refresh(changed);
    }

    /// Returns the addresses that are new for the pod, if policies select it.
    pub(super) fn attached(&mut self, pod: PodFacts, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let (uid, namespace) = (pod.uid.clone(), pod.namespace.clone());
        let is_new = |address: &&IpAddr| self.presence.is_new(&uid, address);
        let new: Vec<IpAddr> = addresses.iter().filter(is_new).copied().collect();
        let changed = self.presence.attached(pod, addresses);
        self.refresh(changed);
        let is_selected = self.policies_of(&namespace).any(|policy| policy.selected.contains(&uid));
        if is_selected { new } else { Vec::new() }
    }

    /// Takes over the pods of an earlier process, once all objects are known.
    pub(super) fn adopt(&mut self) {
        let changed = self.presence.adopt();
        self.refresh(changed);
    }

    pub(super) fn detached(&mut self, uid: &str) {
        let changed = self.presence.detached(uid);
        self.refresh(changed);
    }

    pub(super) fn namespace_changed(&mut self, name: &str, labels: Option<Labels>) {
        let pods = &mut self.population;
        self.sets.namespace_changed(name, labels, pods, &mut self.contents);
    }

    pub(super) fn policy_changed(&mut self, key: &ObjectKey, policy: Option<CompiledPolicy>) {
        let current = self.policies.get(key).map(|current| &current.compiled);
        if current == policy.as_ref() {
            return;
        }
        let affected = match policy {
            Some(compiled) => self.put_policy(key, compiled),
            None => self.remove_policy(key),
        };
        let instances = affected.iter().filter_map(|uid| self.population.instances.get(uid));
        self.stale_links.extend(instances.filter_map(|instance| instance.link.clone()));
    }

    /// Returns the pods that the policy selected before or selects now.
    fn put_policy(&mut self, key: &ObjectKey, compiled: CompiledPolicy) -> BTreeSet<String> {
        let in_namespace = self.population.in_namespace(key.namespace());
        let local = in_namespace.filter(|(_, instance)| instance.link.is_some());
        let selected = local.filter(|(_, instance)| compiled.pods.matches(&instance.labels));
        let selected: BTreeSet<String> = selected.map(|(uid, _)| uid.clone()).collect();
        let mut affected = selected.clone();
        match self.policies.get_mut(key) {
            Some(policy) => {
                policy.compiled = compiled;
                affected.extend(std::mem::replace(&mut policy.selected, selected));
            }
            None => {
                self.last_number += 1;
                let policy = Policy {
                    number: self.last_number,
                    compiled,
                    selected,
                    chains: BTreeSet::new(),
                    sets: Vec::new(),
                };
                self.policies.insert(key.clone(), policy);
            }
        }
        self.write_policy(key);
        affected
    }

    fn remove_policy(&mut self, key: &ObjectKey) -> BTreeSet<String> {
        let Some(policy) = self.policies.get_mut(key) else { return BTreeSet::new() };
        let affected = std::mem::take(&mut policy.selected);
        self.write_policy(key);
        self.policies.remove(key);
        affected
    }

    /// Writes the chains and sets of a policy, or removes them if it selects no pod of this node.
    fn write_policy(&mut self, key: &ObjectKey) {
        let Some(policy) = self.policies.get_mut(key) else { return };
        let (sets, pods, contents) = (&mut self.sets, &self.population, &mut self.contents);
        let (mut chains, mut used) = (BTreeMap::new(), Vec::new());
        if !policy.selected.is_empty() {
            for direction in Direction::BOTH {
                let rules = policy.compiled.rules(direction).unwrap_or_default();
                let used_rules = within_limit(rules);
                if used_rules.len() < rules.len() {
                    tracing::warn!(policy = %key, "too many rules: some of them allow nothing");
                }
                let name = chain_name(policy.number, direction);
                let made = chains_of(&name, used_rules, &mut |key| {
                    used.push(key.clone());
                    sets.acquire(key, pods, contents)
                });
                chains.extend(made.into_iter().map(|(name, rules)| (name, (direction, rules))));
            }
        }
        for old in policy.chains.iter().filter(|name| !chains.contains_key(*name)) {
            contents.remove_chain(old);
        }
        policy.chains = chains.keys().cloned().collect();
        for (name, (direction, rules)) in chains {
            contents.put_chain(&name, PolicyChain { direction, comment: key.to_string(), rules });
        }
        for key in std::mem::replace(&mut policy.sets, used) {
            sets.release(&key, contents);
        }
    }

    fn refresh(&mut self, uids: Vec<String>) {
        for uid in uids {
            let instance = self.presence.instance(&uid);
            self.set_instance(&uid, instance);
        }
    }

    fn set_instance(&mut self, uid: &str, instance: Option<Instance>) {
        if self.population.instances.get(uid) == instance.as_ref() {
            return;
        }
        let before = self.population.put(uid, instance.clone());
        self.sets.pod_changed(before.as_ref(), instance.as_ref(), &mut self.contents);
        self.select(uid, before.as_ref(), instance.as_ref());
    }

    /// Updates which policies select a pod of this node.
    fn select(&mut self, uid: &str, before: Option<&Instance>, after: Option<&Instance>) {
        let namespace = before.or(after).map(|instance| instance.namespace.as_str());
        let Some(namespace) = namespace else { return };
        let link = |instance: Option<&Instance>| instance.and_then(|i| i.link.clone());
        let (old_link, new_link) = (link(before), link(after));
        if old_link.is_none() && new_link.is_none() {
            return;
        }
        let first = ObjectKey::new(namespace, "");
        let mut changed = Vec::new();
        for (key, policy) in self.policies.range_mut(first..) {
            if key.namespace() != namespace {
                break;
            }
            let local = after.filter(|instance| instance.link.is_some());
            let now = local.is_some_and(|instance| policy.compiled.pods.matches(&instance.labels));
            let (was_used, was) = (!policy.selected.is_empty(), policy.selected.contains(uid));
            match now {
                true => drop(policy.selected.insert(uid.to_owned())),
                false => drop(policy.selected.remove(uid)),
            }
            if was != now && was_used == policy.selected.is_empty() {
                changed.push(key.clone());
            }
        }
        for key in changed {
            self.write_policy(&key);
        }
        if let Some(link) = old_link.as_ref().filter(|_| old_link != new_link) {
            self.unlink(link, uid);
        }
        if let Some(link) = &new_link {
            self.links.entry(link.clone()).or_default().insert(uid.to_owned());
        }
        self.stale_links.extend([old_link, new_link].into_iter().flatten());
    }

    fn policies_of(&self, namespace: &str) -> impl Iterator<Item = &Policy> {
        let from = self.policies.range(ObjectKey::new(namespace, "")..);
        from.take_while(move |(key, _)| key.namespace() == namespace).map(|(_, policy)| policy)
    }

    fn unlink(&mut self, link: &str, uid: &str) {
        if let Some(uids) = self.links.get_mut(link) {
            uids.remove(uid);
            if uids.is_empty() {
                self.links.remove(link);
            }
        }
    }

    fn write_stale_pods(&mut self) {
        for link in std::mem::take(&mut self.stale_links) {
            self.write_pod(&link);
        }
    }

    /// A pod is isolated if a policy for the direction selects it (NET-125).
    fn write_pod(&mut self, link: &str) {
        for direction in Direction::BOTH {
            let mut isolated = false;
            let mut chains = Vec::new();
            for uid in self.links.get(link).into_iter().flatten() {
                let Some(instance) = self.population.instances.get(uid) else { continue };
                let policies = self.policies_of(&instance.namespace);
                for policy in policies.filter(|policy| policy.selected.contains(uid)) {
                    let Some(rules) = policy.compiled.rules(direction) else { continue };
                    isolated = true;
                    if !within_limit(rules).is_empty() && chains.len() < POLICIES_PER_POD_MAX {
                        chains.push(chain_name(policy.number, direction));
                    }
                }
            }
            self.contents.set_pod(direction, link, isolated.then_some(chains));
        }
    }

    /// What has to change in the tables since the last call of this or of [`Engine::all`].
    pub(super) fn take_changes(&mut self) -> Change {
        self.write_stale_pods();
        self.contents.take_changes()
    }

    /// Everything that the tables have to contain.
    pub(super) fn all(&mut self) -> Change {
        self.write_stale_pods();
        self.contents.all()
    }
}

fn chain_name(policy: u64, direction: Direction) -> String {
    format!("{}-policy-{policy}", direction.name())
}

/// The first rules of a policy, as many as it may have.
fn within_limit(rules: &[AllowRule]) -> &[AllowRule] {
    let length = |list: Option<usize>| list.unwrap_or(1);
    let mut size = 0;
    let fits = rules.iter().take_while(|rule| {
        let peers = length(rule.peers.as_ref().map(Vec::len));
        let ports = length(rule.ports.as_ref().map(Vec::len));
        size += (peers + ports).max(1);
        size <= RULES_PER_POLICY_MAX
    });
    &rules[..fits.count()]
}

/// The chain of a policy, and chains that it jumps to. A rule with several peers and several ports checks the ports in
/// a chain of their own, so that the number of rules is the sum and not the product.
fn chains_of(
    name: &str,
    rules: &[AllowRule],
    set: &mut dyn FnMut(&SetKey) -> String,
) -> Vec<(String, Vec<PolicyRule>)> {
    let (mut main, mut others) = (Vec::new(), Vec::new());
    for (i, rule) in rules.iter().enumerate() {
        let peers: Vec<Peers> = match &rule.peers {
            None => vec![Peers::Any],
            Some(keys) => keys.iter().map(|key| Peers::In(set(key))).collect(),
        };
        let ports: Vec<Ports> = match &rule.ports {
            None => vec![Ports::Any],
            Some(ports) => ports.iter().map(|ports| to_ports(ports, set)).collect(),
        };
        if peers.len() > 1 && ports.len() > 1 {
            let other = format!("{name}-{i}");
            let jump = |peers| {
                let target = Target::Jump(other.clone());
                PolicyRule { peers, ports: Ports::Any, target }
            };
            main.extend(peers.into_iter().map(jump));
            let accept = |ports| PolicyRule { peers: Peers::Any, ports, target: Target::Accept };
            others.push((other, ports.into_iter().map(accept).collect()));
            continue;
        }
        for peers in &peers {
            main.extend(ports.iter().cloned().map(|ports| PolicyRule {
                peers: peers.clone(),
                ports,
                target: Target::Accept,
            }));
        }
    }
    if !rules.is_empty() {
        others.push((name.to_owned(), main));
    }
    others
}

fn to_ports(ports: &AllowedPorts, set: &mut dyn FnMut(&SetKey) -> String) -> Ports {
    match ports {
        AllowedPorts::All(protocol) => Ports::All(*protocol),
        AllowedPorts::Range(protocol, first, last) => Ports::Range(*protocol, *first, *last),
        AllowedPorts::In(protocol, key) => Ports::In(*protocol, set(key)),
        AllowedPorts::Named(protocol, key) => Ports::Named(*protocol, set(key)),
    }
}
