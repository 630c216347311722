#![doc = include_str!("../README.md")]

mod address_pool;
mod attachments;
mod cidr;
pub mod conntrack;
mod error;
mod link;
mod namespace;
mod netlink;
pub mod nft;
mod ownership;
mod pods;
mod records;
mod rules;
mod services;

pub use cidr::Cidr;
pub use error::{Error, Result};
pub use namespace::UserRange;
pub use ownership::check_link;
pub use pods::{Attachment, HostPort, Pods, PodsConfig, Protocol};
pub use services::{
    Affinity, Frontend, Ranges, ServiceEntry, ServiceRules, Services, ServicesConfig, Unserved,
    remove_service_rules,
};
