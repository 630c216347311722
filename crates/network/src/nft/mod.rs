//! A client of the kernel's nf_tables protocol.
//!
//!     Batch ── tables, chains, rules, sets, elements ──▶ commit: all of it or nothing
//!
//! It is deliberately small and has only the expressions that pods, host ports, Services and policies need.
//! `nft list ruleset` shows the rules that it writes. Types of sets have the numbers of the `nft` program, so
//! that this program prints addresses as addresses.
//! Not here: which rules there are (`rules`).

mod attribute;
mod batch;
mod dump;
mod expression;
mod rule;
mod set;

pub use batch::{Batch, Chain, ChainKind, Connection, Family, Hook, Priority, Table};
pub use dump::DumpedElement;
pub use expression::{
    Compare, ConnectionKey, Direction, Expression, FibResult, Header, MetaKey, NatKind, Register,
    Reject, Verdict,
};
pub use rule::Rule;
pub use set::{Data, Element, Field, Key, Kind, Set};
