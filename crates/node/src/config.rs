//! From a pod's words to a container in the kernel's terms: environment, mounts, identity, limits.
//!
//!     Pod ─┬─▶ sandbox() ──▶ runtime::SandboxSpec
//!          └─▶ container() ─▶ runtime::ContainerSpec      (reads ConfigMaps, Secrets by `objects`)
//!
//! Not here: when to start what (`worker`), and how volumes come to be on disk (`volumes`).
#![allow(dead_code, reason = "its callers are written next to it")]

mod containers;
mod facts;
mod notes;
mod objects;

pub(crate) use containers::{Kind, PodContainer, containers};
pub(crate) use facts::NodeFacts;
pub(crate) use notes::Notes;
pub(crate) use objects::Objects;

use crate::volumes::Mounted;
use k8s_openapi::api::core::v1::Pod;
use std::net::IpAddr;

/// Why a container cannot be made as its pod says: waiting reason CreateContainerConfigError (N-45).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ConfigError {
    pub(crate) message: String,
}

/// A Warning for the pod that goes with something that works nevertheless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// All that [`container`] looks at.
pub(crate) struct Inputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a PodContainer<'a>,
    /// Which instance of this container: its restart count.
    pub(crate) attempt: u32,
    pub(crate) image: &'a runtime::Image,
    /// The node's primary family first; for a pod in the node's network the node's addresses.
    pub(crate) pod_ips: &'a [IpAddr],
    pub(crate) facts: &'a NodeFacts,
    pub(crate) objects: &'a Objects,
    pub(crate) volumes: &'a Mounted,
    /// The id of the container that an ephemeral one wants to look into, if it was found.
    pub(crate) target: Option<&'a str>,
}

/// What the pod's sandbox should be. Writes the files that all its containers share.
/// `handler` is left empty: [`Objects::handler`] looks it up.
pub(crate) fn sandbox(
    pod: &Pod,
    facts: &NodeFacts,
    attempt: u32,
    network: runtime::PodNetwork,
) -> Result<runtime::SandboxSpec, String> {
    let _ = (pod, facts, attempt, network);
    Err("not there yet".into())
}

/// DNSConfigForming and MissingClusterDNS (N-60), to be told when a sandbox is made.
pub(crate) fn dns_warnings(pod: &Pod, facts: &NodeFacts) -> Vec<Warning> {
    let _ = (pod, facts);
    Vec::new()
}

/// What a container should be. Makes its files (hosts, termination message) and its subPath mounts.
pub(crate) async fn container(inputs: Inputs<'_>) -> Result<runtime::ContainerSpec, ConfigError> {
    let _ = inputs;
    Err(ConfigError { message: "not there yet".into() })
}
