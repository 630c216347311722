//! What DNS needs to know of a Service and its EndpointSlices (NET-96). Pure.

use super::name::dashed;
use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// How a Service answers. The type decides, not fields that an earlier type left behind (NET-98).
#[derive(Debug, PartialEq)]
pub(crate) enum Form<'a> {
    ClusterIp(Vec<IpAddr>),
    Headless,
    ExternalName(&'a str),
}

pub(crate) fn form_of(service: &Service) -> Form<'_> {
    let Some(spec) = &service.spec else {
        return Form::ClusterIp(Vec::new());
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return Form::ExternalName(spec.external_name.as_deref().unwrap_or_default());
    }
    if spec.cluster_ip.as_deref() == Some("None") {
        return Form::Headless;
    }
    let all = spec.cluster_ips.iter().flatten();
    let mut addresses: Vec<IpAddr> = all.filter_map(|address| address.parse().ok()).collect();
    if addresses.is_empty() {
        addresses
            .extend(spec.cluster_ip.iter().filter_map(|address| address.parse::<IpAddr>().ok()));
    }
    Form::ClusterIp(addresses)
}

/// The port with this name and protocol. Unnamed ports have no name to ask for (NET-97).
pub(crate) fn service_port<'a>(
    service: &'a Service,
    port: &str,
    protocol: &str,
) -> Option<&'a ServicePort> {
    let ports = service.spec.as_ref()?.ports.as_ref()?;
    ports.iter().find(|candidate| {
        is_port(candidate.name.as_deref(), candidate.protocol.as_deref(), port, protocol)
    })
}

fn is_port(name: Option<&str>, has: Option<&str>, port: &str, protocol: &str) -> bool {
    let name = name.unwrap_or_default();
    !name.is_empty()
        && name.eq_ignore_ascii_case(port)
        && has.unwrap_or("TCP").eq_ignore_ascii_case(protocol)
}

/// One address of a ready endpoint.
pub(crate) struct Host<'a> {
    pub(crate) address: IpAddr,
    endpoint: &'a Endpoint,
    slice: &'a EndpointSlice,
}

/// The addresses of all ready endpoints; an endpoint is ready unless its condition says false.
pub(crate) fn hosts(slices: &[Arc<EndpointSlice>]) -> impl Iterator<Item = Host<'_>> {
    slices.iter().flat_map(|slice| {
        let endpoints = slice.endpoints.iter().flatten();
        endpoints.filter(|endpoint| is_ready(endpoint)).flat_map(move |endpoint| {
            let addresses = endpoint.addresses.iter();
            let addresses = addresses.filter_map(|address| address.parse().ok());
            addresses.map(move |address| Host { address, endpoint, slice })
        })
    })
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
}

impl<'a> Host<'a> {
    /// The label below the Service: the endpoint's host name, else the address with dashes.
    pub(crate) fn name(&self) -> String {
        match self.hostname() {
            Some(name) => name.to_ascii_lowercase(),
            None => dashed(self.address),
        }
    }

    /// Whether [`Host::name`] is `label`; `as_address` is what `label` says as an address.
    pub(crate) fn has_name(&self, label: &str, as_address: Option<IpAddr>) -> bool {
        match self.hostname() {
            Some(name) => name.eq_ignore_ascii_case(label),
            None => as_address == Some(self.address),
        }
    }

    fn hostname(&self) -> Option<&'a str> {
        self.endpoint.hostname.as_deref().filter(|name| !name.is_empty())
    }

    pub(crate) fn port(&self, port: &str, protocol: &str) -> Option<u16> {
        let is_asked = |candidate: &&EndpointPort| {
            is_port(candidate.name.as_deref(), candidate.protocol.as_deref(), port, protocol)
        };
        let found = self.slice.ports.iter().flatten().find(is_asked)?;
        u16::try_from(found.port?).ok()
    }
}

/// Each address once, in the order of the slices.
pub(crate) fn unique(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut known = HashSet::new();
    addresses.filter(|address| known.insert(*address)).collect()
}
