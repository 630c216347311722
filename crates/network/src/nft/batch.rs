//! A batch is what changes at once: the kernel takes all of it, or nothing and says why.

use super::rule::Rule;
use super::set::{Element, Set};
use crate::Result;
use crate::netlink::{ACK, APPEND, CREATE, EXCL, Message, Socket};

/// One message holds as many elements as fit well below what an attribute can hold.
const ELEMENTS_BYTES: usize = 32 * 1024;
const COMMENT_MAX: usize = 120;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ipv4,
    Ipv6,
    /// Both at once; rules must then say which header they look at.
    Inet,
}

impl Family {
    fn number(self) -> u8 {
        match self {
            Family::Ipv4 => libc::NFPROTO_IPV4 as u8,
            Family::Ipv6 => libc::NFPROTO_IPV6 as u8,
            Family::Inet => libc::NFPROTO_INET as u8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
            Family::Inet => "inet",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub family: Family,
    pub name: String,
}

impl Table {
    pub fn new(family: Family, name: impl Into<String>) -> Table {
        Table { family, name: name.into() }
    }

    fn shown(&self) -> String {
        format!("{} {}", self.family.name(), self.name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
    /// Like a filter on the way out, but a changed mark changes the way.
    Route,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

/// Smaller comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(pub i32);

impl Priority {
    pub const RAW: Priority = Priority(-300);
    pub const MANGLE: Priority = Priority(-150);
    pub const DESTINATION_NAT: Priority = Priority(-100);
    pub const FILTER: Priority = Priority(0);
    pub const SOURCE_NAT: Priority = Priority(100);
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    /// None: only jumped to.
    pub base: Option<(ChainKind, Hook, Priority)>,
}

impl Chain {
    pub fn new(name: impl Into<String>) -> Chain {
        Chain { name: name.into(), base: None }
    }

    pub fn at(name: impl Into<String>, kind: ChainKind, hook: Hook, priority: Priority) -> Chain {
        Chain { name: name.into(), base: Some((kind, hook, priority)) }
    }
}

/// What to change, in order. Nothing happens before [`Connection::commit`].
#[derive(Default)]
pub struct Batch {
    messages: Vec<Message>,
    sets: u32,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn push(&mut self, kind: i32, flags: u16, table: &Table, what: String) -> &mut Message {
        let head = [table.family.number(), 0, 0, 0];
        let message = Message::new(SUBSYSTEM | kind as u16, flags, &head, what);
        self.messages.push(message);
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    /// A table that is there already is fine.
    pub fn add_table(&mut self, table: &Table) -> &mut Batch {
        let what = format!("add table {}", table.shown());
        let message = self.push(libc::NFT_MSG_NEWTABLE, CREATE, table, what);
        message.text(1, &table.name).be32(2, 0);
        self
    }

    /// With everything in it. Add it first when it may not be there.
    pub fn delete_table(&mut self, table: &Table) -> &mut Batch {
        let what = format!("delete table {}", table.shown());
        self.push(libc::NFT_MSG_DELTABLE, 0, table, what).text(1, &table.name);
        self
    }

    /// A chain that is there already is fine, if it is the same.
    pub fn add_chain(&mut self, table: &Table, chain: &Chain) -> &mut Batch {
        let what = format!("add chain {} {}", table.shown(), chain.name);
        let message = self.push(libc::NFT_MSG_NEWCHAIN, CREATE, table, what);
        message.text(1, &table.name).text(3, &chain.name);
        if let Some((kind, hook, priority)) = chain.base {
            message.nest(4, |nest| {
                nest.be32(1, hook.number()).be32(2, priority.0 as u32);
            });
            const ACCEPT: u32 = 1;
            message.be32(5, ACCEPT).text(7, kind.name());
        }
        self
    }

    /// Removes the chain's rules.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) -> &mut Batch {
        let what = format!("flush chain {} {chain}", table.shown());
        let message = self.push(libc::NFT_MSG_DELRULE, 0, table, what);
        message.text(1, &table.name).text(2, chain);
        self
    }

    /// It must be empty, and nothing may lead to it.
    pub fn delete_chain(&mut self, table: &Table, chain: &str) -> &mut Batch {
        let what = format!("delete chain {} {chain}", table.shown());
        let message = self.push(libc::NFT_MSG_DELCHAIN, 0, table, what);
        message.text(1, &table.name).text(3, chain);
        self
    }

    /// At the end of the chain.
    pub fn add_rule(&mut self, table: &Table, chain: &str, rule: &Rule) -> &mut Batch {
        let what = format!("add rule {} {chain} {}", table.shown(), rule.comment);
        let message = self.push(libc::NFT_MSG_NEWRULE, CREATE | APPEND, table, what);
        message.text(1, &table.name).text(2, chain);
        message.nest(4, |list| {
            for expression in &rule.expressions {
                expression.write(list, table.family);
            }
        });
        if !rule.comment.is_empty() {
            message.attribute(7, &comment(&rule.comment));
        }
        self
    }

    /// A set that is there already is fine, if it is the same.
    pub fn add_set(&mut self, table: &Table, set: &Set) -> &mut Batch {
        self.sets += 1;
        let id = self.sets;
        let what = format!("add set {} {}", table.shown(), set.name);
        let message = self.push(libc::NFT_MSG_NEWSET, CREATE, table, what);
        set.write(message, table, id);
        self
    }

    pub fn delete_set(&mut self, table: &Table, set: &str) -> &mut Batch {
        let what = format!("delete set {} {set}", table.shown());
        let message = self.push(libc::NFT_MSG_DELSET, 0, table, what);
        message.text(1, &table.name).text(2, set);
        self
    }

    /// Removes all elements.
    pub fn flush_set(&mut self, table: &Table, set: &str) -> &mut Batch {
        let what = format!("flush set {} {set}", table.shown());
        let message = self.push(libc::NFT_MSG_DELSETELEM, 0, table, what);
        message.text(1, &table.name).text(2, set);
        self
    }

    /// An element that is there already is fine; a map's key with another value is refused.
    pub fn add_elements(&mut self, table: &Table, set: &Set, elements: &[Element]) -> &mut Batch {
        self.elements(libc::NFT_MSG_NEWSETELEM, CREATE, "add", table, set, elements)
    }

    /// Refused when one is there already.
    pub fn create_elements(
        &mut self,
        table: &Table,
        set: &Set,
        elements: &[Element],
    ) -> &mut Batch {
        self.elements(libc::NFT_MSG_NEWSETELEM, CREATE | EXCL, "create", table, set, elements)
    }

    /// Refused when one is not there.
    pub fn delete_elements(
        &mut self,
        table: &Table,
        set: &Set,
        elements: &[Element],
    ) -> &mut Batch {
        self.elements(libc::NFT_MSG_DELSETELEM, 0, "delete", table, set, elements)
    }

    fn elements(
        &mut self,
        kind: i32,
        flags: u16,
        verb: &str,
        table: &Table,
        set: &Set,
        elements: &[Element],
    ) -> &mut Batch {
        let mut rest = elements.iter().peekable();
        while rest.peek().is_some() {
            let what = format!("{verb} elements {} {}", table.shown(), set.name);
            let message = self.push(kind, flags, table, what);
            message.text(1, &table.name).text(2, &set.name);
            message.nest(3, |list| {
                let start = list.len();
                while list.len() - start < ELEMENTS_BYTES
                    && let Some(element) = rest.next()
                {
                    element.write(list, set);
                }
            });
        }
        self
    }
}

/// A way to the packet rules of one network namespace: that of the thread that opens it.
pub struct Connection(Socket);

impl Connection {
    pub fn open() -> Result<Connection> {
        Socket::netfilter().map(Connection)
    }

    /// Makes all changes at once. An error names the message that failed; nothing has then changed.
    pub fn commit(&mut self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mark = |kind, what: &str| {
            let head = [0, 0, 0, libc::NFNL_SUBSYS_NFTABLES as u8];
            Message::new(kind, 0, &head, what)
        };
        let mut messages = batch.messages;
        if let Some(last) = messages.last_mut() {
            // Failures are always answered. One acknowledgement is enough to see that all is done.
            last.flag(ACK);
        }
        messages.insert(0, mark(BATCH_BEGIN, "change packet rules"));
        messages.push(mark(BATCH_END, "commit packet rules"));
        self.0.request(messages).map(drop)
    }
}

/// In the form that the `nft` program reads comments from.
fn comment(text: &str) -> Vec<u8> {
    const COMMENT: u8 = 0;
    let mut end = text.len().min(COMMENT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = vec![COMMENT, end as u8 + 1];
    bytes.extend_from_slice(&text.as_bytes()[..end]);
    bytes.push(0);
    bytes
}

impl ChainKind {
    fn name(self) -> &'static str {
        match self {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
            ChainKind::Route => "route",
        }
    }
}

impl Hook {
    fn number(self) -> u32 {
        match self {
            Hook::Prerouting => 0,
            Hook::Input => 1,
            Hook::Forward => 2,
            Hook::Output => 3,
            Hook::Postrouting => 4,
        }
    }
}
