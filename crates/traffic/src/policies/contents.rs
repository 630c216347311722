//! The wanted contents of the policy tables, and what changed in them since the last commit.
//!
//! The first change of an object after a commit records whether the object existed. At the next commit, comparing that
//! with whether it exists then gives the change: steps that cancel each other out are no change.

use network::policies::{
    ChainChange, Change, Direction, Life, Member, PodChange, PolicyRule, SetChange, SetKind,
};
use std::collections::{BTreeMap, BTreeSet};

type Link = (Direction, String);

#[derive(Default)]
pub(super) struct Contents {
    sets: BTreeMap<String, (SetKind, BTreeSet<Member>)>,
    chains: BTreeMap<String, PolicyChain>,
    pods: BTreeMap<Link, Vec<String>>,
    touched: Touched,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyChain {
    pub(super) direction: Direction,
    pub(super) comment: String,
    pub(super) rules: Vec<PolicyRule>,
}

/// Objects that changed since the last commit, and whether they existed then.
#[derive(Default)]
struct Touched {
    sets: BTreeMap<String, (SetKind, bool)>,
    members: BTreeMap<String, BTreeMap<Member, bool>>,
    chains: BTreeMap<String, Option<Direction>>,
    pods: BTreeMap<Link, bool>,
}

impl Contents {
    pub(super) fn add_set(&mut self, name: &str, kind: SetKind) {
        let existed = self.sets.insert(name.to_owned(), (kind, BTreeSet::new())).is_some();
        self.touched.sets.entry(name.to_owned()).or_insert((kind, existed));
    }

    pub(super) fn remove_set(&mut self, name: &str) {
        if let Some((kind, _)) = self.sets.remove(name) {
            self.touched.sets.entry(name.to_owned()).or_insert((kind, true));
            self.touched.members.remove(name);
        }
    }

    pub(super) fn add_member(&mut self, set: &str, member: Member) {
        if let Some((_, members)) = self.sets.get_mut(set)
            && members.insert(member)
        {
            self.touch_member(set, member, false);
        }
    }

    pub(super) fn remove_member(&mut self, set: &str, member: Member) {
        if let Some((_, members)) = self.sets.get_mut(set)
            && members.remove(&member)
        {
            self.touch_member(set, member, true);
        }
    }

    fn touch_member(&mut self, set: &str, member: Member, existed: bool) {
        let touched = self.touched.members.entry(set.to_owned()).or_default();
        touched.entry(member).or_insert(existed);
    }

    pub(super) fn put_chain(&mut self, name: &str, chain: PolicyChain) {
        if self.chains.get(name) == Some(&chain) {
            return;
        }
        let before = self.chains.insert(name.to_owned(), chain).map(|chain| chain.direction);
        self.touched.chains.entry(name.to_owned()).or_insert(before);
    }

    pub(super) fn remove_chain(&mut self, name: &str) {
        if let Some(before) = self.chains.remove(name) {
            self.touched.chains.entry(name.to_owned()).or_insert(Some(before.direction));
        }
    }

    /// Isolates a pod in one direction, with the chains of its policies, or ends its isolation.
    pub(super) fn set_pod(
        &mut self,
        direction: Direction,
        link: &str,
        policies: Option<Vec<String>>,
    ) {
        let key = (direction, link.to_owned());
        if self.pods.get(&key) == policies.as_ref() {
            return;
        }
        self.touched.pods.entry(key.clone()).or_insert(self.pods.contains_key(&key));
        match policies {
            Some(policies) => drop(self.pods.insert(key, policies)),
            None => drop(self.pods.remove(&key)),
        }
    }

    /// The changes since the last call of this or of [`Contents::all`].
    pub(super) fn take_changes(&mut self) -> Change {
        let touched = std::mem::take(&mut self.touched);
        let mut change = Change::default();
        let names: BTreeSet<&String> = touched.sets.keys().chain(touched.members.keys()).collect();
        for name in names {
            change.sets.extend(self.set_change(name, &touched).map(|set| (name.clone(), set)));
        }
        for (name, before) in touched.chains {
            let now = self.chains.get(&name);
            let Some(life) = life(before.is_some(), now.is_some()) else { continue };
            let direction = now.map(|chain| chain.direction).or(before);
            let change_of = direction.map(|direction| ChainChange {
                life,
                direction,
                comment: now.map(|chain| chain.comment.clone()).unwrap_or_default(),
                rules: now.map(|chain| chain.rules.clone()).unwrap_or_default(),
            });
            change.chains.extend(change_of.map(|chain| (name, chain)));
        }
        for (link, before) in touched.pods {
            let now = self.pods.get(&link);
            if let Some(life) = life(before, now.is_some()) {
                let policies = now.cloned().unwrap_or_default();
                change.pods.insert(link, PodChange { life, policies });
            }
        }
        change
    }

    fn set_change(&self, name: &str, touched: &Touched) -> Option<SetChange> {
        let (now, touched_set) = (self.sets.get(name), touched.sets.get(name));
        let kind = now.map(|(kind, _)| *kind).or(touched_set.map(|(kind, _)| *kind))?;
        let before = touched_set.is_none_or(|(_, existed)| *existed);
        let life = life(before, now.is_some())?;
        let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
        if let Some((_, members)) = now {
            for (member, existed) in touched.members.get(name).into_iter().flatten() {
                match (existed, members.contains(member)) {
                    (false, true) => drop(added.insert(*member)),
                    (true, false) => drop(removed.insert(*member)),
                    (true, true) | (false, false) => {}
                }
            }
        }
        let unchanged = life == Life::Kept && added.is_empty() && removed.is_empty();
        (!unchanged).then_some(SetChange { kind, life, added, removed })
    }

    /// Everything, as the change of empty tables.
    pub(super) fn all(&mut self) -> Change {
        self.touched = Touched::default();
        let sets = self.sets.iter().map(|(name, (kind, members))| {
            let added = members.clone();
            let removed = BTreeSet::new();
            (name.clone(), SetChange { kind: *kind, life: Life::New, added, removed })
        });
        let chains = self.chains.iter().map(|(name, chain)| {
            let PolicyChain { direction, comment, rules } = chain.clone();
            (name.clone(), ChainChange { life: Life::New, direction, comment, rules })
        });
        let pods = self.pods.iter().map(|(link, policies)| {
            (link.clone(), PodChange { life: Life::New, policies: policies.clone() })
        });
        Change { sets: sets.collect(), chains: chains.collect(), pods: pods.collect() }
    }
}

/// `None` if there is neither an object before nor after.
fn life(before: bool, now: bool) -> Option<Life> {
    match (before, now) {
        (false, true) => Some(Life::New),
        (true, true) => Some(Life::Kept),
        (true, false) => Some(Life::Deleted),
        (false, false) => None,
    }
}
