//! The expressions of a rule. Each of them reads or writes registers, or ends the rule.
//!
//! A register has four bytes. Longer values occupy several consecutive registers, and so do the parts of a
//! concatenated key.

use super::attribute::{self, nat};
use super::batch::Family;
use super::set::Set;
use crate::netlink::Message;

/// One of the kernel's sixteen registers. The kernel rejects rules that use a higher number.
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

/// What happens to a packet.
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
    /// The packet's queueing priority.
    Priority,
    InterfaceIn,
    InterfaceOut,
    /// 16 bytes, padded with zeros.
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
    /// Bits: `Expression::STATE_*`.
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
    /// Index of the device through which the packet would leave.
    Index,
    /// `RTN_LOCAL` or another `RTN_*`.
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
    /// ICMP or ICMPv6 port unreachable.
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
    /// Sets the packet's queueing priority.
    SetPriority {
        from: Register,
    },
    Payload {
        header: Header,
        offset: u32,
        length: u32,
        to: Register,
    },
    /// The rule continues only if the comparison holds.
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
    /// The rule continues only if the key is in the set.
    Lookup {
        set: String,
        key: Register,
        invert: bool,
    },
    /// The rule continues only if the map has the key, and puts its value into `to`.
    Map {
        map: String,
        key: Register,
        to: Register,
    },
    /// The map's value is the verdict.
    VerdictMap {
        map: String,
        key: Register,
    },
    Immediate {
        to: Register,
        value: Vec<u8>,
    },
    Verdict(Verdict),
    /// Rewrites the address and optionally the port with values from registers.
    Nat {
        kind: NatKind,
        ipv4: bool,
        address: Register,
        port: Option<Register>,
    },
    /// Rewrites the source to the address of the outgoing device and a free port.
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
    /// Index of the device on which the packet arrived, if replies to its source would leave through it; else 0.
    SourceRoute {
        to: Register,
    },
    Reject(Reject),
    Counter,
    /// A random number below `modulus`, plus `offset`.
    Random {
        to: Register,
        modulus: u32,
        offset: u32,
    },
    /// Adds the key to a set with timeouts, or restarts its timeout.
    Update {
        set: String,
        key: Register,
        data: Option<Register>,
        timeout_ms: u64,
    },
    /// Removes the key from a set with timeouts, if it is there. [`Expression::Update`] does not replace the value of
    /// a key that a map has already.
    Delete {
        set: String,
        key: Register,
        /// For a map. Its content does not matter.
        data: Option<Register>,
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
            Expression::Meta { .. }
            | Expression::SetMark { .. }
            | Expression::SetPriority { .. } => "meta",
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
            Expression::Fib { .. } | Expression::SourceRoute { .. } => "fib",
            Expression::Reject(_) => "reject",
            Expression::Counter => "counter",
            Expression::Random { .. } => "numgen",
            Expression::Update { .. } | Expression::Delete { .. } => "dynset",
        }
    }

    /// Writes the expression as an element of a rule's list.
    pub(super) fn write(&self, message: &mut Message, family: Family) {
        message.nest(attribute::LIST_ELEMENT, |element| {
            element.text(attribute::expression::NAME, self.name());
            element.nest(attribute::expression::DATA, |data| self.write_data(data, family));
        });
    }

    fn write_data(&self, data: &mut Message, family: Family) {
        use attribute::{bitwise, compare, connection, fib, immediate};
        use attribute::{masquerade, meta, number_generator, payload};
        match self {
            Expression::Meta { key, to } => {
                data.be32(meta::DREG, to.number()).be32(meta::KEY, key.number());
            }
            Expression::SetMark { from } => {
                data.be32(meta::KEY, MetaKey::Mark.number()).be32(meta::SREG, from.number());
            }
            Expression::SetPriority { from } => {
                data.be32(meta::KEY, MetaKey::Priority.number()).be32(meta::SREG, from.number());
            }
            Expression::Payload { header, offset, length, to } => {
                data.be32(payload::DREG, to.number()).be32(payload::BASE, header.number());
                data.be32(payload::OFFSET, *offset).be32(payload::LEN, *length);
            }
            Expression::Compare { how, register, value } => {
                data.be32(compare::SREG, register.number()).be32(compare::OP, how.number());
                write_value(data, compare::DATA, value);
            }
            Expression::Bitwise { from, to, mask, xor } => {
                data.be32(bitwise::SREG, from.number()).be32(bitwise::DREG, to.number());
                data.be32(bitwise::LEN, mask.len() as u32);
                write_value(data, bitwise::MASK, mask);
                write_value(data, bitwise::XOR, xor);
            }
            Expression::Immediate { to, value } => {
                data.be32(immediate::DREG, to.number());
                write_value(data, immediate::DATA, value);
            }
            Expression::Verdict(verdict) => {
                data.be32(immediate::DREG, libc::NFT_REG_VERDICT as u32);
                write_verdict(data, immediate::DATA, verdict);
            }
            Expression::Nat { kind, ipv4, address, port } => {
                write_nat(data, *kind, *ipv4, *address, *port);
            }
            Expression::Masquerade => {
                const FULLY_RANDOM: u32 = 1 << 4;
                data.be32(masquerade::FLAGS, FULLY_RANDOM);
            }
            Expression::Connection { key, to } => {
                const ORIGINAL: u8 = 0;
                data.be32(connection::DREG, to.number()).be32(connection::KEY, key.number());
                if key.needs_direction() {
                    data.attribute(connection::DIRECTION, &[ORIGINAL]);
                }
            }
            Expression::Fib { of, result, to } => {
                data.be32(fib::DREG, to.number()).be32(fib::RESULT, result.number());
                data.be32(fib::FLAGS, of.flag());
            }
            Expression::SourceRoute { to } => {
                const THROUGH_INCOMING_DEVICE: u32 = 1 << 3;
                data.be32(fib::DREG, to.number()).be32(fib::RESULT, FibResult::Index.number());
                data.be32(fib::FLAGS, Direction::Source.flag() | THROUGH_INCOMING_DEVICE);
            }
            Expression::Random { to, modulus, offset } => {
                data.be32(number_generator::DREG, to.number());
                data.be32(number_generator::MODULUS, *modulus);
                data.be32(number_generator::TYPE, libc::NFT_NG_RANDOM as u32);
                data.be32(number_generator::OFFSET, *offset);
            }
            Expression::Lookup { .. }
            | Expression::Map { .. }
            | Expression::VerdictMap { .. }
            | Expression::Update { .. }
            | Expression::Delete { .. } => self.write_set_access(data),
            Expression::Reject(reject) => write_reject(data, *reject, family),
            Expression::Counter => {}
        }
    }

    /// Expressions that read or change a set.
    fn write_set_access(&self, data: &mut Message) {
        use attribute::{dynamic_set, lookup};
        match self {
            Expression::Lookup { set, key, invert } => {
                data.text(lookup::SET, set).be32(lookup::SREG, key.number());
                if *invert {
                    data.be32(lookup::FLAGS, libc::NFT_LOOKUP_F_INV as u32);
                }
            }
            Expression::Map { map, key, to } => {
                data.text(lookup::SET, map).be32(lookup::SREG, key.number());
                data.be32(lookup::DREG, to.number());
            }
            Expression::VerdictMap { map, key } => {
                data.text(lookup::SET, map).be32(lookup::SREG, key.number());
                data.be32(lookup::DREG, libc::NFT_REG_VERDICT as u32);
            }
            Expression::Update { set, key, data: value, timeout_ms } => {
                write_dynamic_set(data, set, libc::NFT_DYNSET_OP_UPDATE as u32, *key, *value);
                data.be64(dynamic_set::TIMEOUT, *timeout_ms);
            }
            Expression::Delete { set, key, data: value } => {
                const NFT_DYNSET_OP_DELETE: u32 = 2;
                write_dynamic_set(data, set, NFT_DYNSET_OP_DELETE, *key, *value);
            }
            _ => {}
        }
    }

    /// Looks up the key that was loaded into the registers from `Register::FIRST` on.
    pub fn in_set(set: &Set) -> Expression {
        Expression::Lookup { set: set.name.clone(), key: Register::FIRST, invert: false }
    }
}

fn write_dynamic_set(
    message: &mut Message,
    set: &str,
    operation: u32,
    key: Register,
    data: Option<Register>,
) {
    use attribute::dynamic_set;
    message.text(dynamic_set::SET_NAME, set).be32(dynamic_set::OP, operation);
    message.be32(dynamic_set::SREG_KEY, key.number());
    if let Some(data) = data {
        message.be32(dynamic_set::SREG_DATA, data.number());
    }
}

fn write_reject(data: &mut Message, reject: Reject, family: Family) {
    let (kind, code) = reject.numbers(family);
    data.be32(attribute::reject::TYPE, kind).attribute(attribute::reject::ICMP_CODE, &[code]);
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
    data.be32(nat::TYPE, kind as u32).be32(nat::FAMILY, family as u32);
    data.be32(nat::REG_ADDR_MIN, address.number()).be32(nat::REG_ADDR_MAX, address.number());
    if let Some(port) = port {
        data.be32(nat::REG_PROTO_MIN, port.number()).be32(nat::REG_PROTO_MAX, port.number());
    }
}

pub(super) fn write_value(message: &mut Message, kind: u16, value: &[u8]) {
    message.nest(kind, |data| {
        data.attribute(attribute::data::VALUE, value);
    });
}

pub(super) fn write_verdict(message: &mut Message, kind: u16, verdict: &Verdict) {
    const NF_DROP: i32 = 0;
    const NF_ACCEPT: i32 = 1;
    let (code, chain) = match verdict {
        Verdict::Accept => (NF_ACCEPT, None),
        Verdict::Drop => (NF_DROP, None),
        Verdict::Continue => (libc::NFT_CONTINUE, None),
        Verdict::Return => (libc::NFT_RETURN, None),
        Verdict::Jump(chain) => (libc::NFT_JUMP, Some(chain)),
        Verdict::Goto(chain) => (libc::NFT_GOTO, Some(chain)),
    };
    message.nest(kind, |data| {
        data.nest(attribute::data::VERDICT, |verdict| {
            verdict.be32(attribute::verdict::CODE, code as u32);
            if let Some(chain) = chain {
                verdict.text(attribute::verdict::CHAIN, chain);
            }
        });
    });
}

impl MetaKey {
    fn number(self) -> u32 {
        let number = match self {
            MetaKey::Mark => libc::NFT_META_MARK,
            MetaKey::Priority => libc::NFT_META_PRIORITY,
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
        const NFTA_FIB_F_SADDR: u32 = 1;
        const NFTA_FIB_F_DADDR: u32 = 2;
        match self {
            Direction::Source => NFTA_FIB_F_SADDR,
            Direction::Destination => NFTA_FIB_F_DADDR,
        }
    }
}

impl FibResult {
    fn number(self) -> u32 {
        const NFT_FIB_RESULT_OIF: u32 = 1;
        const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
        match self {
            FibResult::Index => NFT_FIB_RESULT_OIF,
            FibResult::AddressType => NFT_FIB_RESULT_ADDRTYPE,
        }
    }
}

impl Reject {
    /// The type of the answer and its ICMP code. ICMP and ICMPv6 have different codes; in a table for both
    /// families the kernel translates them.
    fn numbers(self, family: Family) -> (u32, u8) {
        const ICMP_PORT_UNREACH: i32 = 3;
        const ICMP_PKT_FILTERED: i32 = 13;
        const ICMPV6_ADM_PROHIBITED: i32 = 1;
        const ICMPV6_PORT_UNREACH: i32 = 4;
        let icmp = match family {
            Family::Ipv4 | Family::Ipv6 => libc::NFT_REJECT_ICMP_UNREACH,
            Family::Inet => libc::NFT_REJECT_ICMPX_UNREACH,
        };
        let (kind, code) = match (self, family) {
            (Reject::TcpReset, _) => (libc::NFT_REJECT_TCP_RST, 0),
            (Reject::PortUnreachable, Family::Ipv4) => (icmp, ICMP_PORT_UNREACH),
            (Reject::PortUnreachable, Family::Ipv6) => (icmp, ICMPV6_PORT_UNREACH),
            (Reject::PortUnreachable, Family::Inet) => (icmp, libc::NFT_REJECT_ICMPX_PORT_UNREACH),
            (Reject::Prohibited, Family::Ipv4) => (icmp, ICMP_PKT_FILTERED),
            (Reject::Prohibited, Family::Ipv6) => (icmp, ICMPV6_ADM_PROHIBITED),
            (Reject::Prohibited, Family::Inet) => (icmp, libc::NFT_REJECT_ICMPX_ADMIN_PROHIBITED),
        };
        (kind as u32, code as u8)
    }
}
