//! Numbers of netlink attributes, as in the kernel's `linux/netfilter/nf_tables.h`.
//!
//! `rule::TABLE` is the kernel's `NFTA_RULE_TABLE`.

/// `NFTA_LIST_ELEM`
pub(super) const LIST_ELEMENT: u16 = 1;

pub(super) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
}

pub(super) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
}

pub(super) mod hook {
    pub(crate) const HOOKNUM: u16 = 1;
    pub(crate) const PRIORITY: u16 = 2;
}

pub(super) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
}

pub(super) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LEN: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LEN: u16 = 7;
    pub(crate) const DESCRIPTION: u16 = 9;
    pub(crate) const ID: u16 = 10;
    pub(crate) const TIMEOUT: u16 = 11;
}

/// `NFTA_SET_DESC_*`
pub(super) mod set_description {
    pub(crate) const SIZE: u16 = 1;
}

/// `NFTA_SET_ELEM_LIST_*`
pub(super) mod element_list {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const SET: u16 = 2;
    pub(crate) const ELEMENTS: u16 = 3;
}

/// `NFTA_SET_ELEM_*`
pub(super) mod element {
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
}

pub(super) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
}

pub(super) mod verdict {
    pub(crate) const CODE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
}

/// `NFTA_EXPR_*`
pub(super) mod expression {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DATA: u16 = 2;
}

pub(super) mod meta {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const KEY: u16 = 2;
    pub(crate) const SREG: u16 = 3;
}

pub(super) mod payload {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const BASE: u16 = 2;
    pub(crate) const OFFSET: u16 = 3;
    pub(crate) const LEN: u16 = 4;
}

/// `NFTA_CMP_*`
pub(super) mod compare {
    pub(crate) const SREG: u16 = 1;
    pub(crate) const OP: u16 = 2;
    pub(crate) const DATA: u16 = 3;
}

pub(super) mod bitwise {
    pub(crate) const SREG: u16 = 1;
    pub(crate) const DREG: u16 = 2;
    pub(crate) const LEN: u16 = 3;
    pub(crate) const MASK: u16 = 4;
    pub(crate) const XOR: u16 = 5;
}

pub(super) mod lookup {
    pub(crate) const SET: u16 = 1;
    pub(crate) const SREG: u16 = 2;
    pub(crate) const DREG: u16 = 3;
    pub(crate) const FLAGS: u16 = 5;
}

pub(super) mod immediate {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const DATA: u16 = 2;
}

pub(super) mod nat {
    pub(crate) const TYPE: u16 = 1;
    pub(crate) const FAMILY: u16 = 2;
    pub(crate) const REG_ADDR_MIN: u16 = 3;
    pub(crate) const REG_ADDR_MAX: u16 = 4;
    pub(crate) const REG_PROTO_MIN: u16 = 5;
    pub(crate) const REG_PROTO_MAX: u16 = 6;
}

pub(super) mod masquerade {
    pub(crate) const FLAGS: u16 = 1;
}

/// `NFTA_CT_*`
pub(super) mod connection {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const KEY: u16 = 2;
    pub(crate) const DIRECTION: u16 = 3;
}

pub(super) mod fib {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const RESULT: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
}

pub(super) mod reject {
    pub(crate) const TYPE: u16 = 1;
    pub(crate) const ICMP_CODE: u16 = 2;
}

/// `NFTA_NG_*`
pub(super) mod number_generator {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const MODULUS: u16 = 2;
    pub(crate) const TYPE: u16 = 3;
    pub(crate) const OFFSET: u16 = 4;
}

/// `NFTA_DYNSET_*`
pub(super) mod dynamic_set {
    pub(crate) const SET_NAME: u16 = 1;
    pub(crate) const OP: u16 = 3;
    pub(crate) const SREG_KEY: u16 = 4;
    pub(crate) const SREG_DATA: u16 = 5;
    pub(crate) const TIMEOUT: u16 = 6;
}
