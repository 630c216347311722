//! Reads the elements of a set from the kernel.

use super::attribute::{LIST_ELEMENT, data, element, element_list};
use super::batch::{SUBSYSTEM, Table};
use super::set::Set;
use crate::netlink::{Message, attributes};

/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;

/// An element as the kernel has it. Parts of keys and values are padded to whole registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedElement {
    pub key: Vec<u8>,
    /// `None` for elements of sets, and for verdicts.
    pub value: Option<Vec<u8>>,
}

/// The request for all elements of `set`.
pub(super) fn request(table: &Table, set: &Set) -> Message {
    let head = [table.family.number(), 0, 0, 0];
    let what = format!("list elements {} {}", table.full_name(), set.name);
    let mut message = Message::new(SUBSYSTEM | libc::NFT_MSG_GETSETELEM as u16, 0, &head, what);
    message.text(element_list::TABLE, &table.name).text(element_list::SET, &set.name);
    message
}

/// The elements in one answer.
pub(super) fn read(answer: &[u8]) -> Vec<DumpedElement> {
    let all = answer.get(HEADER..).unwrap_or_default();
    let list = find(all, element_list::ELEMENTS).unwrap_or_default();
    let elements = attributes(list).filter(|(kind, _)| *kind == LIST_ELEMENT);
    elements.filter_map(|(_, bytes)| read_element(bytes)).collect()
}

fn read_element(bytes: &[u8]) -> Option<DumpedElement> {
    let value = |kind| find(find(bytes, kind)?, data::VALUE).map(<[u8]>::to_vec);
    Some(DumpedElement { key: value(element::KEY)?, value: value(element::DATA) })
}

fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}
