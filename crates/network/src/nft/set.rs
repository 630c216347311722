//! Sets and maps. Their elements change while the rules that use them stay.

use super::attribute::{self, LIST_ELEMENT};
use super::batch::Table;
use super::expression::{Direction, Verdict, write_value, write_verdict};
use crate::Cidr;
use crate::cidr::octets;
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
    /// The packet's queueing priority.
    Priority,
    /// A random number below `modulus`, not a part of the packet.
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

    pub(crate) fn registers(self) -> u32 {
        match self {
            Field::Source6 | Field::Destination6 => 4,
            _ => 1,
        }
    }
}

/// The type of a part of a key or value. The numbers are those of the `nft` program, which prints by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Address4,
    Address6,
    Protocol,
    Port,
    Mark,
    /// A number in native byte order.
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

    /// Size in a concatenation, where every part occupies whole registers.
    fn bytes(self) -> u32 {
        match self {
            Kind::Address6 | Kind::Interface => 16,
            _ => 4,
        }
    }
}

/// The type of a concatenation has six bits per part.
fn concatenated(kinds: &[Kind]) -> u32 {
    const BITS_PER_PART: u32 = 6;
    kinds.iter().fold(0, |number, kind| number << BITS_PER_PART | kind.number())
}

/// The size of a key or value. A single port or protocol is not padded.
fn length(kinds: &[Kind]) -> u32 {
    match kinds {
        [Kind::Port] => 2,
        [Kind::Protocol] => 1,
        _ => kinds.iter().map(|kind| kind.bytes()).sum(),
    }
}

/// User data that tells the `nft` program that keys are in native byte order. It then prints names of interfaces.
fn host_byte_order() -> Vec<u8> {
    const KEY_BYTE_ORDER: u8 = 0;
    const HOST: u32 = 1;
    let mut bytes = vec![KEY_BYTE_ORDER, size_of::<u32>() as u8];
    bytes.extend_from_slice(&HOST.to_ne_bytes());
    bytes
}

/// The type of a map's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    Values(Vec<Kind>),
    Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    pub key: Vec<Kind>,
    /// `None` for a set, the type of values for a map.
    pub data: Option<Data>,
    /// Keys are ranges ([`Element::range`]). Only with a key of one kind.
    pub interval: bool,
    /// Rules may add elements; the kernel removes them after this many milliseconds.
    pub timeout_ms: Option<u64>,
    /// At most this many elements. Required if rules add elements.
    pub size: Option<u32>,
}

impl Set {
    pub fn new(name: impl Into<String>, key: &[Kind]) -> Set {
        Set {
            name: name.into(),
            key: key.to_vec(),
            data: None,
            interval: false,
            timeout_ms: None,
            size: None,
        }
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

    pub fn with_size(self, elements: u32) -> Set {
        Set { size: Some(elements), ..self }
    }

    pub(super) fn write(&self, message: &mut Message, table: &Table, id: u32) {
        use attribute::set as to;
        let mut flags = 0;
        message.text(to::TABLE, &table.name).text(to::NAME, &self.name);
        message.be32(to::KEY_TYPE, concatenated(&self.key)).be32(to::KEY_LEN, length(&self.key));
        message.be32(to::ID, id);
        match &self.data {
            Some(Data::Verdict) => {
                flags |= libc::NFT_SET_MAP;
                message.be32(to::DATA_TYPE, libc::NFT_DATA_VERDICT).be32(to::DATA_LEN, 0);
            }
            Some(Data::Values(kinds)) => {
                flags |= libc::NFT_SET_MAP;
                message.be32(to::DATA_TYPE, concatenated(kinds)).be32(to::DATA_LEN, length(kinds));
            }
            None => {}
        }
        if self.interval {
            flags |= libc::NFT_SET_INTERVAL;
        }
        if let Some(timeout) = self.timeout_ms {
            flags |= libc::NFT_SET_TIMEOUT | libc::NFT_SET_EVAL;
            message.be64(to::TIMEOUT, timeout);
        }
        if let Some(size) = self.size {
            message.nest(to::DESCRIPTION, |description| {
                description.be32(attribute::set_description::SIZE, size);
            });
        }
        message.be32(to::FLAGS, flags as u32);
        if self.key == [Kind::Interface] {
            message.attribute(to::USERDATA, &host_byte_order());
        }
    }
}

/// A key or value. Each part is padded to whole registers.
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

    /// In native byte order.
    pub fn number(self, number: u32) -> Key {
        self.bytes(&number.to_ne_bytes())
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Key {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Without the padding that [`length`] does not count.
    fn trimmed(&self, kinds: &[Kind]) -> &[u8] {
        &self.0[..self.0.len().min(length(kinds) as usize)]
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    key: Key,
    value: Option<Value>,
    /// For a range: the first key after it, or `None` if it ends at the largest key.
    until: Option<Option<Key>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Data(Key),
    Verdict(Verdict),
}

impl Element {
    /// An element of a set, or of a map if it is to be deleted.
    pub fn key(key: Key) -> Element {
        Element { key, value: None, until: None }
    }

    pub fn value(key: Key, value: Key) -> Element {
        Element { key, value: Some(Value::Data(value)), until: None }
    }

    pub fn verdict(key: Key, verdict: Verdict) -> Element {
        Element { key, value: Some(Value::Verdict(verdict)), until: None }
    }

    /// All keys from `from` up to but not including `until`, or to the largest key.
    pub fn range(from: Key, until: Option<Key>) -> Element {
        Element { key: from, value: None, until: Some(until) }
    }

    /// All addresses of a range.
    pub fn cidr(range: &Cidr) -> Element {
        let after = range.after().map(|address| Key::new().address(address));
        Element::range(Key::new().address(range.base()), after)
    }

    pub(super) fn write(&self, message: &mut Message, set: &Set) {
        use attribute::element::{DATA, FLAGS, KEY};
        message.nest(LIST_ELEMENT, |element| {
            write_value(element, KEY, self.key.trimmed(&set.key));
            match (&self.value, &set.data) {
                (Some(Value::Data(value)), Some(Data::Values(kinds))) => {
                    write_value(element, DATA, value.trimmed(kinds));
                }
                (Some(Value::Data(value)), _) => write_value(element, DATA, &value.0),
                (Some(Value::Verdict(verdict)), _) => write_verdict(element, DATA, verdict),
                (None, _) => {}
            }
        });
        if let Some(Some(until)) = &self.until {
            message.nest(LIST_ELEMENT, |element| {
                write_value(element, KEY, until.trimmed(&set.key));
                element.be32(FLAGS, libc::NFT_SET_ELEM_INTERVAL_END as u32);
            });
        }
    }
}
