//! A batch of changes. The kernel applies all of them or none.

use super::attribute::{
    chain as chain_attribute, element_list, hook as hook_attribute, rule as rule_attribute,
    set as set_attribute, table as table_attribute,
};
use super::dump::{self, DumpedElement};
use super::rule::Rule;
use super::set::{Element, Set};
use crate::Result;
use crate::netlink::{ACK, APPEND, CREATE, EXCL, Message, Socket};

/// Elements are distributed over several messages, because an attribute holds at most 64 KiB.
const ELEMENTS_BYTES: usize = 32 * 1024;
const COMMENT_MAX: usize = 120;

// Constants of the kernel's headers that `libc` does not have.
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NF_ACCEPT: u32 = 1;
pub(super) const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ipv4,
    Ipv6,
    /// Both families. A rule must then say which header it reads.
    Inet,
}

impl Family {
    pub(super) fn number(self) -> u8 {
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

    pub(super) fn full_name(&self) -> String {
        format!("{} {}", self.family.name(), self.name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
    /// Like a filter for outgoing packets; the kernel routes a packet again if its mark changes.
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

/// Chains with smaller priorities run first.
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
    /// `None` for a chain that runs only when a rule jumps to it.
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

/// Changes in their order. [`Connection::commit`] applies them.
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

    /// No error if the table exists.
    pub fn add_table(&mut self, table: &Table) -> &mut Batch {
        let what = format!("add table {}", table.full_name());
        let message = self.push(libc::NFT_MSG_NEWTABLE, CREATE, table, what);
        message.text(table_attribute::NAME, &table.name).be32(table_attribute::FLAGS, 0);
        self
    }

    /// Deletes the table and its contents. To avoid an error if it does not exist, add it first.
    pub fn delete_table(&mut self, table: &Table) -> &mut Batch {
        let what = format!("delete table {}", table.full_name());
        let message = self.push(libc::NFT_MSG_DELTABLE, 0, table, what);
        message.text(table_attribute::NAME, &table.name);
        self
    }

    /// No error if an equal chain exists.
    pub fn add_chain(&mut self, table: &Table, chain: &Chain) -> &mut Batch {
        let what = format!("add chain {} {}", table.full_name(), chain.name);
        let message = self.push(libc::NFT_MSG_NEWCHAIN, CREATE, table, what);
        message.text(chain_attribute::TABLE, &table.name);
        message.text(chain_attribute::NAME, &chain.name);
        if let Some((kind, hook, priority)) = chain.base {
            message.nest(chain_attribute::HOOK, |nest| {
                nest.be32(hook_attribute::HOOKNUM, hook.number());
                nest.be32(hook_attribute::PRIORITY, priority.0 as u32);
            });
            message.be32(chain_attribute::POLICY, NF_ACCEPT);
            message.text(chain_attribute::TYPE, kind.name());
        }
        self
    }

    /// Removes the chain's rules.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) -> &mut Batch {
        let what = format!("flush chain {} {chain}", table.full_name());
        let message = self.push(libc::NFT_MSG_DELRULE, 0, table, what);
        message.text(rule_attribute::TABLE, &table.name).text(rule_attribute::CHAIN, chain);
        self
    }

    /// The chain must be empty, and no rule may jump to it.
    pub fn delete_chain(&mut self, table: &Table, chain: &str) -> &mut Batch {
        let what = format!("delete chain {} {chain}", table.full_name());
        let message = self.push(libc::NFT_MSG_DELCHAIN, 0, table, what);
        message.text(chain_attribute::TABLE, &table.name).text(chain_attribute::NAME, chain);
        self
    }

    /// Appends a rule to the chain.
    pub fn add_rule(&mut self, table: &Table, chain: &str, rule: &Rule) -> &mut Batch {
        let what = format!("add rule {} {chain} {}", table.full_name(), rule.comment);
        let message = self.push(libc::NFT_MSG_NEWRULE, CREATE | APPEND, table, what);
        message.text(rule_attribute::TABLE, &table.name).text(rule_attribute::CHAIN, chain);
        message.nest(rule_attribute::EXPRESSIONS, |list| {
            for expression in &rule.expressions {
                expression.write(list, table.family);
            }
        });
        if !rule.comment.is_empty() {
            message.attribute(rule_attribute::USERDATA, &comment(&rule.comment));
        }
        self
    }

    /// No error if an equal set exists.
    pub fn add_set(&mut self, table: &Table, set: &Set) -> &mut Batch {
        self.sets += 1;
        let id = self.sets;
        let what = format!("add set {} {}", table.full_name(), set.name);
        let message = self.push(libc::NFT_MSG_NEWSET, CREATE, table, what);
        set.write(message, table, id);
        self
    }

    pub fn delete_set(&mut self, table: &Table, set: &str) -> &mut Batch {
        let what = format!("delete set {} {set}", table.full_name());
        let message = self.push(libc::NFT_MSG_DELSET, 0, table, what);
        message.text(set_attribute::TABLE, &table.name).text(set_attribute::NAME, set);
        self
    }

    /// Removes all elements.
    pub fn flush_set(&mut self, table: &Table, set: &str) -> &mut Batch {
        let what = format!("flush set {} {set}", table.full_name());
        let message = self.push(libc::NFT_MSG_DELSETELEM, 0, table, what);
        message.text(element_list::TABLE, &table.name).text(element_list::SET, set);
        self
    }

    /// No error if an element exists, unless it is a map's key with another value.
    pub fn add_elements(&mut self, table: &Table, set: &Set, elements: &[Element]) -> &mut Batch {
        self.elements(libc::NFT_MSG_NEWSETELEM, CREATE, "add", table, set, elements)
    }

    /// Fails if an element exists.
    pub fn create_elements(
        &mut self,
        table: &Table,
        set: &Set,
        elements: &[Element],
    ) -> &mut Batch {
        self.elements(libc::NFT_MSG_NEWSETELEM, CREATE | EXCL, "create", table, set, elements)
    }

    /// Fails if an element does not exist.
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
            let what = format!("{verb} elements {} {}", table.full_name(), set.name);
            let message = self.push(kind, flags, table, what);
            message.text(element_list::TABLE, &table.name).text(element_list::SET, &set.name);
            message.nest(element_list::ELEMENTS, |list| {
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

/// A connection to nf_tables in the network namespace of the thread that opens it.
pub struct Connection(Socket);

impl Connection {
    pub fn open() -> Result<Connection> {
        Socket::netfilter().map(Connection)
    }

    /// Applies all changes of the batch, or none. An error names the change that failed.
    pub fn commit(&mut self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let marker = |kind, what: &str| {
            let head = [0, 0, 0, libc::NFNL_SUBSYS_NFTABLES as u8];
            Message::new(kind, 0, &head, what)
        };
        let mut messages = batch.messages;
        if let Some(last) = messages.last_mut() {
            // The kernel always reports failures. For success, the acknowledgement of the last message is enough.
            last.add_flags(ACK);
        }
        messages.insert(0, marker(NFNL_MSG_BATCH_BEGIN, "begin a batch of packet rules"));
        messages.push(marker(NFNL_MSG_BATCH_END, "commit a batch of packet rules"));
        self.0.request(messages).map(drop)
    }

    /// The elements of a set or map that has no intervals, in any order.
    pub fn elements(&mut self, table: &Table, set: &Set) -> Result<Vec<DumpedElement>> {
        let answers = self.0.dump(dump::request(table, set))?;
        Ok(answers.iter().flat_map(|answer| dump::read(answer)).collect())
    }
}

/// User data in the format in which the `nft` program expects comments.
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
