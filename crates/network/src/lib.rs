//! How packets find pods. See README.md.

mod addresses;
mod attachments;
mod cidr;
pub mod conntrack;
mod error;
mod link;
mod namespace;
mod netlink;
pub mod nft;
mod pods;
mod records;
mod rules;

pub use cidr::Cidr;
pub use error::{Error, Result};
pub use pods::{Attachment, HostPort, Pods, PodsConfig, Protocol};
