#![doc = include_str!("../README.md")]

mod address_pool;
mod attachments;
mod cidr;
mod cluster_ranges;
pub mod conntrack;
mod error;
mod link;
mod namespace;
mod netlink;
pub mod nft;
mod overlay;
mod ownership;
mod pods;
mod records;
mod route_table;
mod routes;
mod rules;
mod tunnels;

pub use cidr::Cidr;
pub use error::{Error, Result};
pub use namespace::UserRange;
pub use overlay::{Overlay, overlay_address, pod_mtu};
pub use ownership::check_link;
pub use pods::{Attachment, HostPort, Pods, PodsConfig, Protocol};
pub use route_table::Reach;
pub use routes::{NextHop, OverlayState, Routes, Tunnel};
