#![doc = include_str!("../README.md")]

mod address_pool;
mod attachments;
pub mod census;
mod cidr;
pub mod conntrack;
mod error;
mod ipv6;
mod link;
mod namespace;
mod netlink;
pub mod nft;
mod overlay;
mod ownership;
mod pods;
pub mod policies;
mod records;
mod route_table;
mod routes;
mod rules;
mod services;
mod tunnels;

pub use cidr::Cidr;
pub use error::{Error, Result};
pub use ipv6::ipv6_unavailable;
pub use namespace::UserRange;
pub use overlay::{Overlay, overlay_address, pod_mtu};
pub use ownership::check_link;
pub use pods::{Attachment, HostPort, Pods, PodsConfig, Protocol};
pub use route_table::Reach;
pub use routes::{NextHop, OverlayState, Routes, Tunnel};
pub use services::{
    Frontend, Ranges, ServiceEntry, ServiceRules, Services, ServicesConfig, Unserved,
    remove_service_rules,
};
