//! A builder for rules, in terms of packets instead of registers.
//!
//! Every method appends expressions and may overwrite all registers from `Register::FIRST` on. The table is
//! `ip` or `ip6`, so that a rule knows the format of the header.

use super::expression::{
    Compare, ConnectionKey, Direction, Expression, FibResult, Header, MetaKey, NatKind, Register,
    Reject, Verdict,
};
use super::set::{Field, Set};
use crate::Cidr;
use crate::cidr::octets;
use std::net::IpAddr;

const FIRST: Register = Register::FIRST;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub expressions: Vec<Expression>,
    /// Shown by `nft list`; truncated to 120 bytes.
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

    /// Matches the device on which the packet arrived. A name that ends in `*` matches a prefix.
    pub fn from_interface(self, name: &str) -> Rule {
        self.interface(MetaKey::InterfaceInName, name, Compare::Equal)
    }

    pub fn not_from_interface(self, name: &str) -> Rule {
        self.interface(MetaKey::InterfaceInName, name, Compare::NotEqual)
    }

    /// Matches the device through which the packet leaves.
    pub fn to_interface(self, name: &str) -> Rule {
        self.interface(MetaKey::InterfaceOutName, name, Compare::Equal)
    }

    fn interface(self, key: MetaKey, name: &str, how: Compare) -> Rule {
        let value = match name.strip_suffix('*') {
            Some(start) => start.as_bytes().to_vec(),
            None => {
                let mut whole = name.as_bytes().to_vec();
                whole.resize(libc::IFNAMSIZ, 0);
                whole
            }
        };
        self.with(Expression::Meta { key, to: FIRST }).compare(how, value)
    }

    pub fn protocol(self, protocol: u8) -> Rule {
        self.with(Expression::Meta { key: MetaKey::Layer4Protocol, to: FIRST })
            .compare(Compare::Equal, vec![protocol])
    }

    /// Matches if the destination is an address of this machine.
    pub fn destination_is_local(self) -> Rule {
        self.address_type(Direction::Destination, Compare::Equal)
    }

    pub fn source_is_local(self) -> Rule {
        self.address_type(Direction::Source, Compare::Equal)
    }

    pub fn source_is_not_local(self) -> Rule {
        self.address_type(Direction::Source, Compare::NotEqual)
    }

    fn address_type(self, of: Direction, how: Compare) -> Rule {
        let value = u32::from(libc::RTN_LOCAL).to_ne_bytes().to_vec();
        self.with(Expression::Fib { of, result: FibResult::AddressType, to: FIRST })
            .compare(how, value)
    }

    /// Matches if the connection is in one of these states (`Expression::STATE_*`).
    pub fn state(self, bits: u32) -> Rule {
        self.connection_bits(ConnectionKey::State, bits)
    }

    /// Matches if the destination of the connection was rewritten.
    pub fn was_redirected(self) -> Rule {
        self.connection_bits(ConnectionKey::Status, Expression::STATUS_DNAT)
    }

    fn connection_bits(self, key: ConnectionKey, bits: u32) -> Rule {
        let (mask, none) = (bits.to_ne_bytes().to_vec(), vec![0; 4]);
        self.with(Expression::Connection { key, to: FIRST })
            .with(Expression::Bitwise { from: FIRST, to: FIRST, mask, xor: none.clone() })
            .compare(Compare::NotEqual, none)
    }

    /// Matches if all bits of `bits` are set in the packet's mark.
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

    /// Loads fields of the packet into consecutive registers, as the key of a set.
    pub fn load(self, fields: &[Field]) -> Rule {
        self.load_at(FIRST, fields)
    }

    /// As [`Rule::load`], from this register on.
    pub fn load_at(mut self, mut to: Register, fields: &[Field]) -> Rule {
        for field in fields {
            self.expressions.push(field.load(to));
            to = to.plus(field.registers());
        }
        self
    }

    /// Matches if the packet's `fields` are in `set`.
    pub fn in_set(self, fields: &[Field], set: &Set) -> Rule {
        self.load(fields).with(Expression::in_set(set))
    }

    pub fn not_in_set(self, fields: &[Field], set: &Set) -> Rule {
        let set = set.name.clone();
        self.load(fields).with(Expression::Lookup { set, key: FIRST, invert: true })
    }

    /// Applies the verdict that `map` has for the packet's `fields`. Without one, the next rule runs.
    pub fn verdict_map(self, fields: &[Field], map: &Set) -> Rule {
        self.load(fields).with(Expression::VerdictMap { map: map.name.clone(), key: FIRST })
    }

    /// Redirects to the address and port that `map` has for the packet's `fields`, if any.
    pub fn redirect_by(self, fields: &[Field], map: &Set, ipv4: bool) -> Rule {
        let port = FIRST.plus(Field::address(ipv4, Direction::Destination).registers());
        self.load(fields)
            .with(Expression::Map { map: map.name.clone(), key: FIRST, to: FIRST })
            .with(Expression::Nat {
                kind: NatKind::Destination,
                ipv4,
                address: FIRST,
                port: Some(port),
            })
    }

    /// Rewrites the source address.
    pub fn set_source(self, address: IpAddr) -> Rule {
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

    pub fn return_from_chain(self) -> Rule {
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
    /// The expression that loads this field of the packet into `to`.
    pub(crate) fn load(self, to: Register) -> Expression {
        // Offsets and lengths are those of the IPv4, IPv6, TCP and UDP headers.
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
            Field::Priority => Meta { key: MetaKey::Priority, to },
            Field::Random { modulus } => Expression::Random { to, modulus, offset: 0 },
        }
    }
}
