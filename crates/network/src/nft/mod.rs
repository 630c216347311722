//! Packet rules, spoken to the kernel directly in the nf_tables protocol.
//!
//!     Batch ── tables, chains, rules, sets, elements ──▶ commit: all of it or nothing
//!
//! Small on purpose: the expressions that pods, host ports, Services and policies are made of. What
//! is written here can be read with `nft list ruleset`; types of sets carry the numbers that tool
//! knows, so that it prints addresses as addresses.
//! Not here: which rules there should be.

mod batch;
mod expression;
mod rule;
mod set;

pub use batch::{Batch, Chain, ChainKind, Connection, Family, Hook, Priority, Table};
pub use expression::{
    Compare, ConnectionKey, Direction, Expression, FibResult, Header, MetaKey, NatKind, Register,
    Reject, Verdict,
};
pub use rule::Rule;
pub use set::{Data, Element, Field, Key, Kind, Set};
