//! Sets and maps, and the elements that come and go in them while rules stay.

use super::batch::Table;
use super::expression::{Direction, Verdict, write_value, write_verdict};
use super::rule::octets;
use crate::netlink::Message;
use std::net::IpAddr;

/// A part of a packet that can be part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Source4,
    Destination4,
    Source6,
    Destination6,
    /// TCP, UDP, …
    Protocol,
    SourcePort,
    DestinationPort,
    Mark,
    /// Not of the packet: a number below `modulus`, new for each.
    Random {
        modulus: u32,
    },
}

impl Field {
    pub fn address(ipv4: bool, direction: Direction) -> Field {
        match (ipv4, direction) {
            (true, Direction::Source) => Field::Source4,
            (true, Direction::Destination) => Field::Destination4,
            (false, Direction::Source) => Field::Source6,
            (false, Direction::Destination) => Field::Destination6,
        }
    }

    pub(super) fn words(self) -> u32 {
        match self {
            Field::Source6 | Field::Destination6 => 4,
            _ => 1,
        }
    }
}

/// What a part of a key or value is. The numbers are those the `nft` program prints by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Address4,
    Address6,
    Protocol,
    Port,
    Mark,
    /// A number in the machine's own order.
    Number,
    /// An interface's name.
    Interface,
}

impl Kind {
    pub fn address(ipv4: bool) -> Kind {
        if ipv4 { Kind::Address4 } else { Kind::Address6 }
    }

    fn number(self) -> u32 {
        match self {
            Kind::Number => 4,
            Kind::Address4 => 7,
            Kind::Address6 => 8,
            Kind::Protocol => 12,
            Kind::Port => 13,
            Kind::Mark => 19,
            Kind::Interface => 41,
        }
    }

    /// Each part of a concatenation takes whole words.
    fn bytes(self) -> u32 {
        match self {
            Kind::Address6 | Kind::Interface => 16,
            _ => 4,
        }
    }
}

/// The types of a concatenation are written six bits each.
fn concatenated(kinds: &[Kind]) -> u32 {
    kinds.iter().fold(0, |number, kind| number << 6 | kind.number())
}

/// What a lone value takes: ports and protocols are then not filled up to words.
fn length(kinds: &[Kind]) -> u32 {
    match kinds {
        [Kind::Port] => 2,
        [Kind::Protocol] => 1,
        _ => kinds.iter().map(|kind| kind.bytes()).sum(),
    }
}

/// What a map's keys lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    Values(Vec<Kind>),
    Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    pub key: Vec<Kind>,
    /// None: a set, else a map.
    pub data: Option<Data>,
    /// Keys are ranges ([`Element::range`]). Only with a key of one kind.
    pub interval: bool,
    /// Rules may add to it; elements leave after this many milliseconds.
    pub timeout_ms: Option<u64>,
}

impl Set {
    pub fn new(name: impl Into<String>, key: &[Kind]) -> Set {
        Set { name: name.into(), key: key.to_vec(), data: None, interval: false, timeout_ms: None }
    }

    pub fn map(name: impl Into<String>, key: &[Kind], values: &[Kind]) -> Set {
        Set { data: Some(Data::Values(values.to_vec())), ..Set::new(name, key) }
    }

    pub fn verdict_map(name: impl Into<String>, key: &[Kind]) -> Set {
        Set { data: Some(Data::Verdict), ..Set::new(name, key) }
    }

    pub fn with_intervals(self) -> Set {
        Set { interval: true, ..self }
    }

    pub fn with_timeout(self, milliseconds: u64) -> Set {
        Set { timeout_ms: Some(milliseconds), ..self }
    }

    /// The numbers are those of `NFTA_SET_*`.
    pub(super) fn write(&self, message: &mut Message, table: &Table, id: u32) {
        let mut flags = 0;
        message.text(1, &table.name).text(2, &self.name);
        message.be32(4, concatenated(&self.key)).be32(5, length(&self.key)).be32(10, id);
        match &self.data {
            Some(Data::Verdict) => {
                flags |= libc::NFT_SET_MAP;
                message.be32(6, libc::NFT_DATA_VERDICT).be32(7, 0);
            }
            Some(Data::Values(kinds)) => {
                flags |= libc::NFT_SET_MAP;
                message.be32(6, concatenated(kinds)).be32(7, length(kinds));
            }
            None => {}
        }
        if self.interval {
            flags |= libc::NFT_SET_INTERVAL;
        }
        if let Some(timeout) = self.timeout_ms {
            flags |= libc::NFT_SET_TIMEOUT | libc::NFT_SET_EVAL;
            message.be64(11, timeout);
        }
        message.be32(3, flags as u32);
    }
}

/// A key or value, part by part, each filled up to whole words.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Vec<u8>);

impl Key {
    pub fn new() -> Key {
        Key::default()
    }

    pub fn address(self, address: IpAddr) -> Key {
        self.bytes(&octets(address))
    }

    pub fn protocol(self, protocol: u8) -> Key {
        self.bytes(&[protocol])
    }

    pub fn port(self, port: u16) -> Key {
        self.bytes(&port.to_be_bytes())
    }

    /// In the machine's own order.
    pub fn number(self, number: u32) -> Key {
        self.bytes(&number.to_ne_bytes())
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Key {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// As the kernel wants it for a key of these kinds: a lone short value is not filled up.
    fn cut(&self, kinds: &[Kind]) -> &[u8] {
        &self.0[..self.0.len().min(length(kinds) as usize)]
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    key: Key,
    value: Option<Value>,
    /// The first key after the range, when the set holds ranges. None: up to the largest key.
    until: Option<Option<Key>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Data(Key),
    Verdict(Verdict),
}

impl Element {
    /// Of a set, or of a map when it is to be deleted.
    pub fn key(key: Key) -> Element {
        Element { key, value: None, until: None }
    }

    pub fn value(key: Key, value: Key) -> Element {
        Element { key, value: Some(Value::Data(value)), until: None }
    }

    pub fn verdict(key: Key, verdict: Verdict) -> Element {
        Element { key, value: Some(Value::Verdict(verdict)), until: None }
    }

    /// All keys from `from` up to, not including, `until`; None: up to the largest.
    pub fn range(from: Key, until: Option<Key>) -> Element {
        Element { key: from, value: None, until: Some(until) }
    }

    /// The numbers are those of `NFTA_SET_ELEM_*`.
    pub(super) fn write(&self, message: &mut Message, set: &Set) {
        const LIST_ELEMENT: u16 = 1;
        message.nest(LIST_ELEMENT, |element| {
            write_value(element, 1, self.key.cut(&set.key));
            match (&self.value, &set.data) {
                (Some(Value::Data(value)), Some(Data::Values(kinds))) => {
                    write_value(element, 2, value.cut(kinds));
                }
                (Some(Value::Data(value)), _) => write_value(element, 2, &value.0),
                (Some(Value::Verdict(verdict)), _) => write_verdict(element, 2, verdict),
                (None, _) => {}
            }
        });
        if let Some(Some(until)) = &self.until {
            message.nest(LIST_ELEMENT, |element| {
                write_value(element, 1, until.cut(&set.key));
                element.be32(3, libc::NFT_SET_ELEM_INTERVAL_END as u32);
            });
        }
    }
}
