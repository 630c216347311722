//! Rules, put together from what people say about packets rather than from registers.
//!
//! Every method appends what it needs; registers from `Register::FIRST` on are scratch. A table is
//! `ip` or `ip6`, so a rule knows which header it looks at.

use super::expression::{
    Compare, ConnectionKey, Direction, Expression, FibResult, Header, MetaKey, NatKind, Register,
    Reject, Verdict,
};
use super::set::{Field, Set};
use crate::Cidr;
use std::net::IpAddr;

const FIRST: Register = Register::FIRST;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub expressions: Vec<Expression>,
    /// Shown by `nft list`; at most 120 bytes are kept.
    pub comment: String,
}

impl Rule {
    pub fn new() -> Rule {
        Rule::default()
    }

    pub fn comment(mut self, text: impl Into<String>) -> Rule {
        self.comment = text.into();
        self
    }

    pub fn with(mut self, expression: Expression) -> Rule {
        self.expressions.push(expression);
        self
    }

    fn compare(self, how: Compare, value: Vec<u8>) -> Rule {
        self.with(Expression::Compare { how, register: FIRST, value })
    }

    pub fn source_in(self, range: &Cidr) -> Rule {
        self.address(Direction::Source, range, Compare::Equal)
    }

    pub fn source_not_in(self, range: &Cidr) -> Rule {
        self.address(Direction::Source, range, Compare::NotEqual)
    }

    pub fn destination_in(self, range: &Cidr) -> Rule {
        self.address(Direction::Destination, range, Compare::Equal)
    }

    pub fn destination_not_in(self, range: &Cidr) -> Rule {
        self.address(Direction::Destination, range, Compare::NotEqual)
    }

    fn address(self, direction: Direction, range: &Cidr, how: Compare) -> Rule {
        let field = Field::address(range.is_ipv4(), direction);
        let (mask, value) = (range.mask(), octets(range.base()));
        let xor = vec![0; mask.len()];
        self.with(field.load(FIRST))
            .with(Expression::Bitwise { from: FIRST, to: FIRST, mask, xor })
            .compare(how, value)
    }

    /// The device the packet came in by. A name that ends in `*` means all that start so.
    pub fn from_interface(self, name: &str) -> Rule {
        self.interface(MetaKey::InterfaceInName, name, Compare::Equal)
    }

    pub fn not_from_interface(self, name: &str) -> Rule {
        self.interface(MetaKey::InterfaceInName, name, Compare::NotEqual)
    }

    /// The device the packet leaves by.
    pub fn to_interface(self, name: &str) -> Rule {
        self.interface(MetaKey::InterfaceOutName, name, Compare::Equal)
    }

    fn interface(self, key: MetaKey, name: &str, how: Compare) -> Rule {
        let value = match name.strip_suffix('*') {
            Some(start) => start.as_bytes().to_vec(),
            None => {
                let mut whole = name.as_bytes().to_vec();
                whole.resize(16, 0);
                whole
            }
        };
        self.with(Expression::Meta { key, to: FIRST }).compare(how, value)
    }

    pub fn protocol(self, protocol: u8) -> Rule {
        self.with(Expression::Meta { key: MetaKey::Layer4Protocol, to: FIRST })
            .compare(Compare::Equal, vec![protocol])
    }

    /// The destination is one of this machine's own addresses.
    pub fn destination_is_local(self) -> Rule {
        self.address_type(Direction::Destination)
    }

    pub fn source_is_local(self) -> Rule {
        self.address_type(Direction::Source)
    }

    fn address_type(self, of: Direction) -> Rule {
        let value = u32::from(libc::RTN_LOCAL).to_ne_bytes().to_vec();
        self.with(Expression::Fib { of, result: FibResult::AddressType, to: FIRST })
            .compare(Compare::Equal, value)
    }

    /// The connection is in one of these states (`Expression::STATE_*`).
    pub fn state(self, bits: u32) -> Rule {
        self.connection_bits(ConnectionKey::State, bits)
    }

    /// The connection's destination was rewritten.
    pub fn was_redirected(self) -> Rule {
        self.connection_bits(ConnectionKey::Status, Expression::STATUS_DNAT)
    }

    fn connection_bits(self, key: ConnectionKey, bits: u32) -> Rule {
        let (mask, none) = (bits.to_ne_bytes().to_vec(), vec![0; 4]);
        self.with(Expression::Connection { key, to: FIRST })
            .with(Expression::Bitwise { from: FIRST, to: FIRST, mask, xor: none.clone() })
            .compare(Compare::NotEqual, none)
    }

    /// All bits of `bits` are set in the packet's mark.
    pub fn marked(self, bits: u32) -> Rule {
        let value = bits.to_ne_bytes().to_vec();
        let (mask, xor) = (value.clone(), vec![0; 4]);
        self.with(Expression::Meta { key: MetaKey::Mark, to: FIRST })
            .with(Expression::Bitwise { from: FIRST, to: FIRST, mask, xor })
            .compare(Compare::Equal, value)
    }

    pub fn set_mark(self, bits: u32) -> Rule {
        let (mask, xor) = ((!bits).to_ne_bytes().to_vec(), bits.to_ne_bytes().to_vec());
        self.with(Expression::Meta { key: MetaKey::Mark, to: FIRST })
            .with(Expression::Bitwise { from: FIRST, to: FIRST, mask, xor })
            .with(Expression::SetMark { from: FIRST })
    }

    pub fn clear_mark(self, bits: u32) -> Rule {
        let (mask, xor) = ((!bits).to_ne_bytes().to_vec(), vec![0; 4]);
        self.with(Expression::Meta { key: MetaKey::Mark, to: FIRST })
            .with(Expression::Bitwise { from: FIRST, to: FIRST, mask, xor })
            .with(Expression::SetMark { from: FIRST })
    }

    /// Puts fields of the packet next to each other, as the key of a set.
    fn load(mut self, fields: &[Field]) -> Rule {
        let mut to = FIRST;
        for field in fields {
            self.expressions.push(field.load(to));
            to = to.plus(field.words());
        }
        self
    }

    /// The packet's `fields` are in `set`.
    pub fn in_set(self, fields: &[Field], set: &Set) -> Rule {
        self.load(fields).with(Expression::in_set(set))
    }

    pub fn not_in_set(self, fields: &[Field], set: &Set) -> Rule {
        let set = set.name.clone();
        self.load(fields).with(Expression::Lookup { set, key: FIRST, invert: true })
    }

    /// What `map` says for the packet's `fields` becomes of it; if it says nothing the next rule
    /// is looked at.
    pub fn verdict_map(self, fields: &[Field], map: &Set) -> Rule {
        self.load(fields).with(Expression::VerdictMap { map: map.name.clone(), key: FIRST })
    }

    /// To the address and port that `map` has for the packet's `fields`, if it has any.
    pub fn redirect_by(self, fields: &[Field], map: &Set, ipv4: bool) -> Rule {
        let port = FIRST.plus(if ipv4 { 1 } else { 4 });
        self.load(fields)
            .with(Expression::Map { map: map.name.clone(), key: FIRST, to: FIRST })
            .with(Expression::Nat {
                kind: NatKind::Destination,
                ipv4,
                address: FIRST,
                port: Some(port),
            })
    }

    /// From then on the packet comes from `address`.
    pub fn source_becomes(self, address: IpAddr) -> Rule {
        self.with(Expression::Immediate { to: FIRST, value: octets(address) }).with(
            Expression::Nat {
                kind: NatKind::Source,
                ipv4: address.is_ipv4(),
                address: FIRST,
                port: None,
            },
        )
    }

    pub fn masquerade(self) -> Rule {
        self.with(Expression::Masquerade)
    }

    pub fn reject(self, how: Reject) -> Rule {
        self.with(Expression::Reject(how))
    }

    pub fn drop(self) -> Rule {
        self.with(Expression::Verdict(Verdict::Drop))
    }

    pub fn accept(self) -> Rule {
        self.with(Expression::Verdict(Verdict::Accept))
    }

    pub fn go_back(self) -> Rule {
        self.with(Expression::Verdict(Verdict::Return))
    }

    pub fn jump(self, chain: &str) -> Rule {
        self.with(Expression::Verdict(Verdict::Jump(chain.into())))
    }

    pub fn goto(self, chain: &str) -> Rule {
        self.with(Expression::Verdict(Verdict::Goto(chain.into())))
    }
}

impl Field {
    /// The expression that puts this field of the packet into `to`.
    fn load(self, to: Register) -> Expression {
        use Expression::{Meta, Payload};
        let network = |offset, length| Payload { header: Header::Network, offset, length, to };
        let transport = |offset| Payload { header: Header::Transport, offset, length: 2, to };
        match self {
            Field::Source4 => network(12, 4),
            Field::Destination4 => network(16, 4),
            Field::Source6 => network(8, 16),
            Field::Destination6 => network(24, 16),
            Field::Protocol => Meta { key: MetaKey::Layer4Protocol, to },
            Field::SourcePort => transport(0),
            Field::DestinationPort => transport(2),
            Field::Mark => Meta { key: MetaKey::Mark, to },
            Field::Random { modulus } => Expression::Random { to, modulus, offset: 0 },
        }
    }
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
