//! What a rule is made of: each expression reads or writes registers, or ends the rule.
//!
//! Registers are words of four bytes; a value that is longer takes as many as it needs, and values in
//! words next to each other are the key of a concatenated set.

use super::batch::Family;
use super::set::Set;
use crate::netlink::Message;

/// A word of the kernel's sixteen. Registers past the last are refused by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(u32);

impl Register {
    pub const FIRST: Register = Register(0);

    /// The register `words` after this one.
    pub fn plus(self, words: u32) -> Register {
        Register(self.0 + words)
    }

    fn number(self) -> u32 {
        libc::NFT_REG32_00 as u32 + self.0
    }
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(String),
    Goto(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaKey {
    Mark,
    InterfaceIn,
    InterfaceOut,
    /// 16 bytes, filled up with zeros.
    InterfaceInName,
    InterfaceOutName,
    /// One byte: TCP, UDP, …
    Layer4Protocol,
    /// One byte: IPv4 or IPv6.
    NetworkProtocol,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    Network,
    Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionKey {
    /// Bits: see [`Expression::STATE_NEW`] and its neighbours.
    State,
    /// Bits: [`Expression::STATUS_DNAT`].
    Status,
    Mark,
    /// One byte.
    Direction,
    /// The destination before translation, IPv4.
    OriginalDestination4,
    OriginalDestination6,
    /// The destination port before translation.
    OriginalDestinationPort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Source,
    Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FibResult {
    /// Of the device that a packet would leave by.
    Index,
    /// `RTN_LOCAL` and its neighbours.
    AddressType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatKind {
    Source,
    Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    TcpReset,
    /// ICMP port unreachable, in whichever family the packet is.
    PortUnreachable,
    /// ICMP administratively prohibited.
    Prohibited,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    Meta {
        key: MetaKey,
        to: Register,
    },
    SetMark {
        from: Register,
    },
    Payload {
        header: Header,
        offset: u32,
        length: u32,
        to: Register,
    },
    /// The rule goes on only if this holds.
    Compare {
        how: Compare,
        register: Register,
        value: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`
    Bitwise {
        from: Register,
        to: Register,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// The rule goes on only if the key is in the set.
    Lookup {
        set: String,
        key: Register,
        invert: bool,
    },
    /// The rule goes on only if the map has the key; the value is then in `to`.
    Map {
        map: String,
        key: Register,
        to: Register,
    },
    /// The map's value is what becomes of the packet.
    VerdictMap {
        map: String,
        key: Register,
    },
    Immediate {
        to: Register,
        value: Vec<u8>,
    },
    Verdict(Verdict),
    /// Rewrites address and, if given, port; both as they are in registers.
    Nat {
        kind: NatKind,
        ipv4: bool,
        address: Register,
        port: Option<Register>,
    },
    /// The address of the device that the packet leaves by, and any free port.
    Masquerade,
    Connection {
        key: ConnectionKey,
        to: Register,
    },
    Fib {
        of: Direction,
        result: FibResult,
        to: Register,
    },
    Reject(Reject),
    Counter,
    /// A number below `modulus`, plus `offset`.
    Random {
        to: Register,
        modulus: u32,
        offset: u32,
    },
    /// Puts the key into a set with timeouts, or makes it young again.
    Update {
        set: String,
        key: Register,
        data: Option<Register>,
        timeout_ms: u64,
    },
}

impl Expression {
    pub const STATE_ESTABLISHED: u32 = 1 << 1;
    pub const STATE_RELATED: u32 = 1 << 2;
    pub const STATE_NEW: u32 = 1 << 3;
    pub const STATE_INVALID: u32 = 1;
    /// The connection's destination was rewritten.
    pub const STATUS_DNAT: u32 = 1 << 5;

    fn name(&self) -> &'static str {
        match self {
            Expression::Meta { .. } | Expression::SetMark { .. } => "meta",
            Expression::Payload { .. } => "payload",
            Expression::Compare { .. } => "cmp",
            Expression::Bitwise { .. } => "bitwise",
            Expression::Lookup { .. } | Expression::Map { .. } | Expression::VerdictMap { .. } => {
                "lookup"
            }
            Expression::Immediate { .. } | Expression::Verdict(_) => "immediate",
            Expression::Nat { .. } => "nat",
            Expression::Masquerade => "masq",
            Expression::Connection { .. } => "ct",
            Expression::Fib { .. } => "fib",
            Expression::Reject(_) => "reject",
            Expression::Counter => "counter",
            Expression::Random { .. } => "numgen",
            Expression::Update { .. } => "dynset",
        }
    }

    /// As an element of a rule's list.
    pub(super) fn write(&self, message: &mut Message, family: Family) {
        const LIST_ELEMENT: u16 = 1;
        message.nest(LIST_ELEMENT, |element| {
            element.text(1, self.name());
            element.nest(2, |data| self.write_data(data, family));
        });
    }

    /// The numbers are those of the kernel's `NFTA_<name>_*`, in the order of its header file.
    fn write_data(&self, data: &mut Message, family: Family) {
        match self {
            Expression::Meta { key, to } => {
                data.be32(1, to.number()).be32(2, key.number());
            }
            Expression::SetMark { from } => {
                data.be32(2, MetaKey::Mark.number()).be32(3, from.number());
            }
            Expression::Payload { header, offset, length, to } => {
                data.be32(1, to.number()).be32(2, header.number());
                data.be32(3, *offset).be32(4, *length);
            }
            Expression::Compare { how, register, value } => {
                data.be32(1, register.number()).be32(2, how.number());
                write_value(data, 3, value);
            }
            Expression::Bitwise { from, to, mask, xor } => {
                data.be32(1, from.number()).be32(2, to.number()).be32(3, mask.len() as u32);
                write_value(data, 4, mask);
                write_value(data, 5, xor);
            }
            Expression::Lookup { set, key, invert } => {
                data.text(1, set).be32(2, key.number());
                if *invert {
                    data.be32(5, libc::NFT_LOOKUP_F_INV as u32);
                }
            }
            Expression::Map { map, key, to } => {
                data.text(1, map).be32(2, key.number()).be32(3, to.number());
            }
            Expression::VerdictMap { map, key } => {
                data.text(1, map).be32(2, key.number()).be32(3, libc::NFT_REG_VERDICT as u32);
            }
            Expression::Immediate { to, value } => {
                data.be32(1, to.number());
                write_value(data, 2, value);
            }
            Expression::Verdict(verdict) => {
                data.be32(1, libc::NFT_REG_VERDICT as u32);
                write_verdict(data, 2, verdict);
            }
            Expression::Nat { kind, ipv4, address, port } => {
                write_nat(data, *kind, *ipv4, *address, *port);
            }
            Expression::Masquerade => {
                const FULLY_RANDOM: u32 = 1 << 4;
                data.be32(1, FULLY_RANDOM);
            }
            Expression::Connection { key, to } => {
                data.be32(1, to.number()).be32(2, key.number());
                if key.needs_direction() {
                    data.attribute(3, &[0]);
                }
            }
            Expression::Fib { of, result, to } => {
                data.be32(1, to.number()).be32(2, result.number()).be32(3, of.flag());
            }
            Expression::Reject(reject) => {
                let (kind, code) = reject.numbers(family);
                data.be32(1, kind).attribute(2, &[code]);
            }
            Expression::Counter => {}
            Expression::Random { to, modulus, offset } => {
                data.be32(1, to.number()).be32(2, *modulus);
                data.be32(3, libc::NFT_NG_RANDOM as u32).be32(4, *offset);
            }
            Expression::Update { set, key, data: value, timeout_ms } => {
                data.text(1, set).be32(3, libc::NFT_DYNSET_OP_UPDATE as u32);
                data.be32(4, key.number());
                if let Some(value) = value {
                    data.be32(5, value.number());
                }
                data.be64(6, *timeout_ms);
            }
        }
    }

    /// Looks a key up in a set, made of whatever was loaded from `Register::FIRST` on.
    pub fn in_set(set: &Set) -> Expression {
        Expression::Lookup { set: set.name.clone(), key: Register::FIRST, invert: false }
    }
}

fn write_nat(
    data: &mut Message,
    kind: NatKind,
    ipv4: bool,
    address: Register,
    port: Option<Register>,
) {
    let kind = match kind {
        NatKind::Source => libc::NFT_NAT_SNAT,
        NatKind::Destination => libc::NFT_NAT_DNAT,
    };
    let family = if ipv4 { libc::NFPROTO_IPV4 } else { libc::NFPROTO_IPV6 };
    data.be32(1, kind as u32).be32(2, family as u32);
    data.be32(3, address.number()).be32(4, address.number());
    if let Some(port) = port {
        data.be32(5, port.number()).be32(6, port.number());
    }
}

pub(super) fn write_value(message: &mut Message, kind: u16, value: &[u8]) {
    message.nest(kind, |data| {
        data.attribute(1, value);
    });
}

pub(super) fn write_verdict(message: &mut Message, kind: u16, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Accept => (1, None),
        Verdict::Drop => (0, None),
        Verdict::Continue => (libc::NFT_CONTINUE, None),
        Verdict::Return => (libc::NFT_RETURN, None),
        Verdict::Jump(chain) => (libc::NFT_JUMP, Some(chain)),
        Verdict::Goto(chain) => (libc::NFT_GOTO, Some(chain)),
    };
    message.nest(kind, |data| {
        data.nest(2, |verdict| {
            verdict.be32(1, code as u32);
            if let Some(chain) = chain {
                verdict.text(2, chain);
            }
        });
    });
}

impl MetaKey {
    fn number(self) -> u32 {
        let number = match self {
            MetaKey::Mark => libc::NFT_META_MARK,
            MetaKey::InterfaceIn => libc::NFT_META_IIF,
            MetaKey::InterfaceOut => libc::NFT_META_OIF,
            MetaKey::InterfaceInName => libc::NFT_META_IIFNAME,
            MetaKey::InterfaceOutName => libc::NFT_META_OIFNAME,
            MetaKey::Layer4Protocol => libc::NFT_META_L4PROTO,
            MetaKey::NetworkProtocol => libc::NFT_META_NFPROTO,
        };
        number as u32
    }
}

impl Header {
    fn number(self) -> u32 {
        match self {
            Header::Network => libc::NFT_PAYLOAD_NETWORK_HEADER as u32,
            Header::Transport => libc::NFT_PAYLOAD_TRANSPORT_HEADER as u32,
        }
    }
}

impl Compare {
    fn number(self) -> u32 {
        let number = match self {
            Compare::Equal => libc::NFT_CMP_EQ,
            Compare::NotEqual => libc::NFT_CMP_NEQ,
            Compare::Less => libc::NFT_CMP_LT,
            Compare::LessOrEqual => libc::NFT_CMP_LTE,
            Compare::Greater => libc::NFT_CMP_GT,
            Compare::GreaterOrEqual => libc::NFT_CMP_GTE,
        };
        number as u32
    }
}

impl ConnectionKey {
    fn number(self) -> u32 {
        let number = match self {
            ConnectionKey::State => libc::NFT_CT_STATE,
            ConnectionKey::Status => libc::NFT_CT_STATUS,
            ConnectionKey::Mark => libc::NFT_CT_MARK,
            ConnectionKey::Direction => libc::NFT_CT_DIRECTION,
            ConnectionKey::OriginalDestination4 => libc::NFT_CT_DST_IP,
            ConnectionKey::OriginalDestination6 => libc::NFT_CT_DST_IP6,
            ConnectionKey::OriginalDestinationPort => libc::NFT_CT_PROTO_DST,
        };
        number as u32
    }

    fn needs_direction(self) -> bool {
        matches!(
            self,
            ConnectionKey::OriginalDestination4
                | ConnectionKey::OriginalDestination6
                | ConnectionKey::OriginalDestinationPort
        )
    }
}

impl Direction {
    fn flag(self) -> u32 {
        match self {
            Direction::Source => 1,
            Direction::Destination => 2,
        }
    }
}

impl FibResult {
    fn number(self) -> u32 {
        match self {
            FibResult::Index => 1,
            FibResult::AddressType => 3,
        }
    }
}

impl Reject {
    /// ICMP has other codes in each family; only a table of both may leave that to the kernel.
    fn numbers(self, family: Family) -> (u32, u8) {
        let icmp = match family {
            Family::Ipv4 | Family::Ipv6 => libc::NFT_REJECT_ICMP_UNREACH,
            Family::Inet => libc::NFT_REJECT_ICMPX_UNREACH,
        };
        let (kind, code) = match (self, family) {
            (Reject::TcpReset, _) => (libc::NFT_REJECT_TCP_RST, 0),
            (Reject::PortUnreachable, Family::Ipv4) => (icmp, 3),
            (Reject::PortUnreachable, Family::Ipv6) => (icmp, 4),
            (Reject::PortUnreachable, Family::Inet) => (icmp, libc::NFT_REJECT_ICMPX_PORT_UNREACH),
            (Reject::Prohibited, Family::Ipv4) => (icmp, 13),
            (Reject::Prohibited, Family::Ipv6) => (icmp, 1),
            (Reject::Prohibited, Family::Inet) => (icmp, libc::NFT_REJECT_ICMPX_ADMIN_PROHIBITED),
        };
        (kind as u32, code as u8)
    }
}
