//! Numbers of netlink attributes, as in the kernel's `linux/netfilter/nf_tables.h`.
//!
//! `rule::TABLE` is the kernel's `NFTA_RULE_TABLE`.

/// `NFTA_LIST_ELEM`
pub(super) const LIST_ELEMENT: u16 = 1;

/// A module of constants for each group of attributes.
macro_rules! attributes {
    ($($(#[$doc:meta])* $group:ident { $($name:ident = $number:literal),+ })+) => {$(
        $(#[$doc])*
        pub(super) mod $group {
            $(pub(crate) const $name: u16 = $number;)+
        }
    )+};
}

attributes! {
    table { NAME = 1, FLAGS = 2 }
    chain { TABLE = 1, NAME = 3, HOOK = 4, POLICY = 5, TYPE = 7 }
    hook { HOOKNUM = 1, PRIORITY = 2 }
    rule { TABLE = 1, CHAIN = 2, EXPRESSIONS = 4, USERDATA = 7 }
    set {
        TABLE = 1, NAME = 2, FLAGS = 3, KEY_TYPE = 4, KEY_LEN = 5, DATA_TYPE = 6,
        DATA_LEN = 7, DESCRIPTION = 9, ID = 10, TIMEOUT = 11, USERDATA = 13
    }
    /// `NFTA_SET_DESC_*`
    set_description { SIZE = 1 }
    /// `NFTA_SET_ELEM_LIST_*`
    element_list { TABLE = 1, SET = 2, ELEMENTS = 3 }
    /// `NFTA_SET_ELEM_*`
    element { KEY = 1, DATA = 2, FLAGS = 3 }
    data { VALUE = 1, VERDICT = 2 }
    verdict { CODE = 1, CHAIN = 2 }
    /// `NFTA_EXPR_*`
    expression { NAME = 1, DATA = 2 }
    meta { DREG = 1, KEY = 2, SREG = 3 }
    payload { DREG = 1, BASE = 2, OFFSET = 3, LEN = 4 }
    /// `NFTA_CMP_*`
    compare { SREG = 1, OP = 2, DATA = 3 }
    bitwise { SREG = 1, DREG = 2, LEN = 3, MASK = 4, XOR = 5 }
    lookup { SET = 1, SREG = 2, DREG = 3, FLAGS = 5 }
    immediate { DREG = 1, DATA = 2 }
    nat { TYPE = 1, FAMILY = 2, REG_ADDR_MIN = 3, REG_ADDR_MAX = 4, REG_PROTO_MIN = 5, REG_PROTO_MAX = 6 }
    masquerade { FLAGS = 1 }
    /// `NFTA_CT_*`
    connection { DREG = 1, KEY = 2, DIRECTION = 3 }
    fib { DREG = 1, RESULT = 2, FLAGS = 3 }
    reject { TYPE = 1, ICMP_CODE = 2 }
    /// `NFTA_NG_*`
    number_generator { DREG = 1, MODULUS = 2, TYPE = 3, OFFSET = 4 }
    /// `NFTA_DYNSET_*`
    dynamic_set { SET_NAME = 1, OP = 3, SREG_KEY = 4, SREG_DATA = 5, TIMEOUT = 6 }
}
