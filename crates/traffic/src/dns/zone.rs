//! Answers to questions about the cluster's names, straight from the caches (NET-96 to NET-102).
//!
//! A lookup costs what its own Service costs, whatever the size of the cluster, and shows the change of an endpoint as
//! soon as the cache has it. No I/O: a question about a name outside the zone is returned as one to forward.

mod lookup;
#[cfg(test)]
pub(super) mod tests;

use super::name::{Subject, reverse_zone, subject_of};
use crate::Watched;
use hickory_proto::rr::rdata::{CNAME, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use lookup::Lookup;
use std::net::IpAddr;

/// How long clients may keep an answer, positive or negative, in seconds (NET-102).
pub(crate) const TTL: u32 = 5;

/// How many aliases (ExternalName) one answer follows inside the zone (NET-99).
const ALIASES_MAX: usize = 10;

pub(crate) struct Zone {
    watched: Watched,
    domain: Name,
    /// A random number; several records are rotated by it (NET-103).
    random: fn() -> u64,
}

/// What to do about a question.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// The zone has the complete answer.
    Complete(Sections),
    /// Not our name: ask upstream.
    Forward,
    /// These aliases lead to a name outside the zone: ask upstream for `target` and append what it answers.
    Continue { aliases: Vec<Record>, target: Name },
    /// The caches are not complete yet, so nobody can say that a name does not exist (NET-101).
    NotReady,
}

/// The parts of an authoritative answer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Sections {
    /// NXDOMAIN: no record of any type has the name.
    pub(crate) no_such_name: bool,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
}

impl Zone {
    pub(crate) fn new(watched: Watched, domain: Name, random: fn() -> u64) -> Zone {
        Zone { watched, domain, random }
    }

    pub(crate) fn domain(&self) -> &Name {
        &self.domain
    }

    /// Answers a question of class IN. Records have exactly the name that was asked for, including its case.
    pub(crate) fn answer(&self, name: &Name, kind: RecordType) -> Answer {
        let mut sections = Sections::default();
        let mut owner = name.clone();
        loop {
            let subject = subject_of(&owner, &self.domain);
            if !self.is_complete_for(&subject) {
                return Answer::NotReady;
            }
            let soa_owner = match &subject {
                Subject::Reverse(address) => reverse_zone(*address),
                _ => self.domain.clone(),
            };
            match self.lookup(&subject, kind) {
                Lookup::Outside if sections.answers.is_empty() => return Answer::Forward,
                Lookup::Outside => {
                    return Answer::Continue { aliases: sections.answers, target: owner };
                }
                Lookup::Alias(target) => {
                    sections.answers.push(record(&owner, RData::CNAME(CNAME(target.clone()))));
                    let known = sections.answers.iter().any(|alias| alias.name == target);
                    let enough = sections.answers.len() >= ALIASES_MAX;
                    if matches!(kind, RecordType::CNAME | RecordType::ANY) || known || enough {
                        return Answer::Complete(sections);
                    }
                    owner = target;
                }
                Lookup::Records { data, additionals } => {
                    let records = data.into_iter().map(|data| record(&owner, data));
                    sections.answers.extend(records);
                    sections.additionals = additionals;
                    return Answer::Complete(sections);
                }
                Lookup::NoData => {
                    sections.authorities.push(self.soa_of(&soa_owner));
                    return Answer::Complete(sections);
                }
                Lookup::NoName => {
                    sections.no_such_name = true;
                    sections.authorities.push(self.soa_of(&soa_owner));
                    return Answer::Complete(sections);
                }
            }
        }
    }

    /// Whether the caches that decide about `subject` hold their first complete list.
    fn is_complete_for(&self, subject: &Subject) -> bool {
        let watched = &self.watched;
        match subject {
            Subject::Outside | Subject::Version | Subject::Zone => true,
            _ => {
                watched.services.is_synced()
                    && watched.slices.is_synced()
                    && watched.namespaces.is_synced()
            }
        }
    }

    /// Starts at a random record, so that clients that take the first one spread over all.
    fn rotate<T>(&self, records: &mut [T]) {
        if records.len() > 1 {
            let by = (self.random)() % records.len() as u64;
            records.rotate_left(by as usize);
        }
    }

    fn soa(&self) -> RData {
        let below = |label: &[u8]| self.domain.prepend_label(label);
        let server = below(b"dns").and_then(|name| name.prepend_label(&b"ns"[..]));
        let server = server.unwrap_or_else(|_| self.domain.clone());
        let mailbox = below(b"hostmaster").unwrap_or_else(|_| self.domain.clone());
        RData::SOA(SOA::new(server, mailbox, 1, 7200, 1800, 86400, TTL))
    }

    fn soa_of(&self, owner: &Name) -> Record {
        record(owner, self.soa())
    }
}

fn record(owner: &Name, data: RData) -> Record {
    Record::from_rdata(owner.clone(), TTL, data)
}

fn address_data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(address.into()),
        IpAddr::V6(address) => RData::AAAA(address.into()),
    }
}
